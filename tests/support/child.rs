//! Starts this test binary again as a child process, for tests that kill a process, restrict it or measure it
//! alone.

use std::process::Command;

/// A command that runs one `#[ignore]`d test of this binary in a process of its own. `module` is the
/// `module_path!()` of the test and `name` is its function. If no test has this name, the process succeeds
/// without running anything: callers check its output.
pub fn child_process(module: &str, name: &str) -> Command {
    // libtest names a test by its path without the crate.
    let test = module.split_once("::").map_or(name.to_owned(), |(_crate, path)| format!("{path}::{name}"));
    let mut command = Command::new(std::env::current_exe().expect("the path of this test binary"));
    command.args(["--exact", &test, "--ignored", "--nocapture", "--test-threads", "1"]);
    command
}
