//! Arguments → configuration → command. No logic of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    thresher::cli::main()
}
