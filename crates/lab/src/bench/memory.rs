//! Resident memory of this process or of another one, as the system counts it.
//! Knows nothing of who uses it.

/// Resident memory in MB of a million bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resident {
    /// Now.
    pub now_mb: f64,
    /// At most, since the process began or [`forget_peak`].
    pub peak_mb: f64,
}

/// Of this process; none where the system does not say it as Linux does.
pub fn resident() -> Option<Resident> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Of the process with this id; none where it has ended, or the system does not say it as Linux does.
pub fn resident_of(process: u32) -> Option<Resident> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

/// Forgets what was resident at most until now, where the system can.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Resets the peak of the process with this id to what is resident now, where the system can.
pub fn forget_peak_of(process: u32) {
    let _ = std::fs::write(format!("/proc/{process}/clear_refs"), "5");
}

fn parse(status: &str) -> Option<Resident> {
    let mb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024.0 / 1e6)
    };
    Some(Resident { now_mb: mb("VmRSS:")?, peak_mb: mb("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_files() {
        let check = |name: &str, status: &str, expect: Option<Resident>| {
            assert_eq!(parse(status), expect, "{name}");
        };
        let whole = "Name:\tthresher\nVmPeak:\t  900000 kB\nVmHWM:\t  500000 kB\nVmRSS:\t  250000 kB\n";
        check("Linux", whole, Some(Resident { now_mb: 256.0, peak_mb: 512.0 }));
        check("no peak", "VmRSS:\t  250000 kB\n", None);
        check("another unit", &whole.replace("kB", "pages"), None);
        check("nothing", "", None);
    }
}
