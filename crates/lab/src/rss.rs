//! Reads resident memory of this process or another one from `/proc` (Linux).

/// Resident memory, in millions of bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rss {
    /// Current resident memory (`VmRSS`).
    pub now_mb: f64,
    /// Largest resident memory (`VmHWM`) since the process started or since the last [`reset_peak`].
    pub peak_mb: f64,
}

/// Returns the resident memory of this process; `None` if the system has no Linux-like `/proc`.
pub fn current() -> Option<Rss> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Returns the resident memory of the process `pid`; `None` if it has exited or the system has no Linux-like
/// `/proc`.
pub fn of_process(pid: u32) -> Option<Rss> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Resets the peak of this process to its current resident memory, if the system supports that.
pub fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Resets the peak of the process `pid` to its current resident memory, if the system supports that.
pub fn reset_peak_of_process(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn parse(status: &str) -> Option<Rss> {
    let mb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024.0 / 1e6)
    };
    Some(Rss { now_mb: mb("VmRSS:")?, peak_mb: mb("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_files() {
        let check = |name: &str, status: &str, expect: Option<Rss>| {
            assert_eq!(parse(status), expect, "{name}");
        };
        let whole = "Name:\tthresher\nVmPeak:\t  900000 kB\nVmHWM:\t  500000 kB\nVmRSS:\t  250000 kB\n";
        check("Linux", whole, Some(Rss { now_mb: 256.0, peak_mb: 512.0 }));
        check("no peak", "VmRSS:\t  250000 kB\n", None);
        check("another unit", &whole.replace("kB", "pages"), None);
        check("nothing", "", None);
    }
}
