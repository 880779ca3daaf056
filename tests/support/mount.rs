//! A disk that can be filled, for tests.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// A small file system in memory, unmounted at the end.
pub struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    /// None, said on stderr, where this user may not mount; a failure where THRESHER_TEST_MOUNT=require says so.
    pub fn new(at: &'a Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            let required = std::env::var("THRESHER_TEST_MOUNT").is_ok_and(|value| value == "require");
            assert!(!required, "cannot mount a file system at {}", at.display());
            // Past the test runner, which shows nothing of tests that pass.
            let _ =
                writeln!(std::io::stderr(), "not tested: may not mount a file system at {}", at.display());
        }
        mounted.then_some(Self(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazily: what is still open does not keep it.
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}
