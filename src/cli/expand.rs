//! `thresher expand`: gives back the text of which the middleware encoded a result of a tool.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

#[derive(clap::Args)]
pub struct Args {
    /// The encoded text. A file without one is printed as it is. `-` reads standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

/// The most bytes of a file: a text of more is never encoded, and an encoded text is shorter.
const BYTES_MAX: u64 = thresher_codec::TEXT_BYTES_MAX as u64;

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    let input: Box<dyn std::io::Read> = match args.file.as_path() {
        path if path == Path::new("-") => Box::new(std::io::stdin().lock()),
        path => Box::new(File::open(path).with_context(|| format!("cannot read {name}"))?),
    };
    let mut bytes = Vec::new();
    input.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    anyhow::ensure!(bytes.len() as u64 <= BYTES_MAX, "{name} has more than {BYTES_MAX} bytes");
    // Only text is ever encoded.
    let expanded = match std::str::from_utf8(&bytes) {
        Ok(text) => thresher_codec::decode(text).with_context(|| name.to_string())?.into_owned().into_bytes(),
        Err(_) => bytes,
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(&expanded).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
