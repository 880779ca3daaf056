//! The daemon as its users run it: the real binary with the real model, its commands, settings and files, and
//! two daemons that share a Redis server.

mod cli;
mod config;
mod originals;
mod own_model;
mod private_files;
mod reader;
mod savings;
mod sidecars;
#[path = "../support/mod.rs"]
mod support;
