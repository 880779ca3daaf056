//! Comparisons on labelled rows: what decided the defaults.

pub mod kinds;
pub mod kv;
pub mod methods;
pub mod paired;
