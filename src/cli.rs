//! The command line: thin callers of the library.

mod calibrate;
mod doctor;
mod eval;
mod expand;
mod export;
mod health;
mod init;
mod key;
mod mcp;
mod pages;
mod report;
mod request;
mod serve;
mod tenant;
mod verify;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Config};
use crate::error::{ApiError, ErrorAnswer};
use crate::process;

/// Keeps the parts of retrieved context that a question needs, word for word, each with a citation.
#[derive(Parser)]
#[command(name = "thresher", version)]
struct Args {
    /// The settings file. Default: ~/.config/thresher/thresher.toml (written by `thresher init`), else /etc/thresher/thresher.toml; if
    /// neither exists, or if this is empty, all settings have their defaults. Environment variables override all of them:
    /// THRESHER__SECTION__NAME=value.
    #[arg(long, global = true, value_name = "FILE", env = "THRESHER_CONFIG")]
    config: Option<OsString>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make this machine ready: fetch ONNX Runtime and the default model, and write a settings file.
    Init(init::Args),
    /// Run the daemon.
    Serve,
    /// Compress text files for a question, or one JSON request, as POST /v1/compress.
    Compress(request::CompressArgs),
    /// Find the chunk that each part of an answer came from: JSON in, JSON out, as POST /v1/attribute.
    Attribute(request::AttributeArgs),
    /// Serve compress and attribute as MCP tools (Model Context Protocol), over standard input and output.
    Mcp,
    /// Give back the text that the middleware has encoded for a model, byte for byte.
    Expand(expand::Args),
    /// Check the signature of a receipt, and whether attributing the answer again gives the same result. Exits with 3 if not.
    Verify(verify::Args),
    /// Create API keys.
    Key(key::Args),
    /// Delete the data of a tenant.
    Tenant(tenant::Args),
    /// Convert a Hugging Face model or a GGUF file to ONNX graphs and a contract.
    Export(export::Args),
    /// Fit what a model's scores mean, by questions of your own: for an encoder, `related`, `answerable` and the limits of coverage; for a
    /// decoder, the attention heads over which RC is computed.
    Calibrate(calibrate::Args),
    /// Measure selection, compression and attribution on your own labelled data, beside BM25.
    Eval(Box<eval::Args>),
    /// Compute what compression would have saved of recorded traffic, in tokens and money, and which sources of its answers it would have kept.
    Report(report::Args),
    /// Check the installation and the settings, and say what to do about problems.
    Doctor,
    /// Ask the daemon of these settings whether it is ready: exits with 0 if it is, else with 1.
    Health,
    /// Print completions of the command line for a shell.
    Completions(pages::CompletionsArgs),
    /// Write man pages.
    #[command(hide = true)]
    Man(pages::ManArgs),
}

/// Runs the command that the arguments name. An error is printed to standard error, in one line.
pub fn main() -> ExitCode {
    process::prepare();
    let args = Args::parse();
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", visible(&in_one_line(&error), ""));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, without causes that the error quotes already.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |line, cause| {
        if line.contains(&cause) { line } else { format!("{line}: {cause}") }
    })
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    let named = args.config.as_deref().filter(|file| !file.is_empty()).map(Path::new);
    let file = match args.config {
        Some(_) => named.map(Path::to_owned),
        None => config::settings_file(),
    };
    let config = || Config::load(file.as_deref(), environment());
    match args.command {
        Command::Init(args) => init::run(&args, named),
        Command::Serve => serve::run(config()?),
        Command::Compress(args) => request::compress(&config()?, &args),
        Command::Attribute(args) => request::attribute(&config()?, &args),
        Command::Mcp => mcp::run(config()?),
        Command::Expand(args) => expand::run(&args),
        Command::Verify(args) => verify::run(&config()?, &args),
        Command::Key(args) => key::run(args),
        Command::Tenant(args) => tenant::run(&config()?, args),
        Command::Export(args) => export::run(&args),
        Command::Calibrate(args) => calibrate::run(&config()?, &args),
        Command::Eval(args) => eval::run(&config()?, &args),
        Command::Report(args) => report::run(&config()?, &args),
        Command::Doctor => doctor::run(config()),
        Command::Health => health::run(&config()?),
        Command::Completions(args) => pages::completions(&args),
        Command::Man(args) => pages::man(&args),
    }
}

/// The environment variables that are UTF-8; a setting cannot be anything else.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Prints an error of a request to standard error, and as JSON to standard output if a program reads that.
fn refuse(error: ApiError, is_read_by_program: bool) -> anyhow::Result<ExitCode> {
    eprintln!("error: {}: {}", error.code, visible(&error.message, "\n"));
    if is_read_by_program {
        print(serde_json::to_string_pretty(&ErrorAnswer { error })?);
    }
    Ok(ExitCode::FAILURE)
}

fn success(text: impl std::fmt::Display) -> anyhow::Result<ExitCode> {
    print(text);
    Ok(ExitCode::SUCCESS)
}

/// A text without control characters but those of `kept`, which are escaped: a terminal would obey them, and texts of models, reports and
/// documents come from elsewhere.
fn visible<'a>(text: &'a str, kept: &str) -> Cow<'a, str> {
    let is_hidden = |c: char| c.is_control() && !kept.contains(c);
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_hidden(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Prints to standard output, with control characters escaped. Exits if that fails; a closed pipe, as of `head`, is not an error.
fn print(text: impl std::fmt::Display) {
    write(&visible(&text.to_string(), "\n\t"));
}

/// Prints a text of the caller as it is, but to a terminal as [`print`] does.
fn print_text(text: &str) {
    if std::io::stdout().is_terminal() { print(text) } else { write(text) }
}

fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write to standard output: {error}");
            std::process::exit(1)
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(visible("Größe\n", "\n"), "Größe\n");
        assert_eq!(visible("\u{1b}[31mred\r\n\u{9b}x", "\n"), "\\u{1b}[31mred\\r\n\\u{9b}x");
    }
}
