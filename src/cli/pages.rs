//! `thresher completions` and `thresher man`: what shells and `man` know of the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: clap_complete::Shell,
}

#[derive(clap::Args)]
pub struct ManArgs {
    /// The folder to write the pages to, one for each command.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "thresher", &mut text);
    super::success(String::from_utf8(text)?.trim_end())
}

pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(super::Args::command(), &args.dir));
    written.with_context(|| format!("cannot write to {}", args.dir.display()))?;
    super::success(format_args!("man pages: {}", args.dir.display()))
}
