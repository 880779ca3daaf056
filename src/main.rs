//! Arguments → configuration → command. No logic of its own.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    thresher::cli::main()
}
