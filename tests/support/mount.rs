//! A small file system in memory that a test can fill up.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// A mounted file system in memory. It is unmounted when this is dropped.
pub struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    /// Mounts a `tmpfs` with these options. If this user may not mount, a line on standard error says so and
    /// the result is none; with `THRESHER_TEST_MOUNT=require` the test fails instead.
    pub fn new(at: &'a Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            let required = std::env::var("THRESHER_TEST_MOUNT").is_ok_and(|value| value == "require");
            assert!(!required, "cannot mount a file system at {}", at.display());
            // Not `eprintln!`: the test runner hides what tests that pass print.
            let _ = writeln!(
                std::io::stderr(),
                "not tested: this user may not mount a file system at {}",
                at.display()
            );
        }
        mounted.then_some(Self(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazily, so that files that are still open do not keep it mounted.
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}
