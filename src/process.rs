//! Settings of the process that must be made before its first thread starts, and its immediate exit. The module knows nothing of what
//! the process does in between.

/// Prepares the process: no telemetry from ONNX Runtime, as many file descriptors as the system allows. `main` calls it first, before there
/// are threads of this program.
pub fn prepare() {
    disable_runtime_telemetry();
    raise_file_descriptor_limit();
}

/// Ends the process at once with exit status `code`, without waiting for work that outlived the drain or for a model that is still being
/// loaded. The handlers of an ordinary exit would free memory that ONNX Runtime's threads still use.
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn leave(code: i32) -> ! {
    // SAFETY: the call takes a number and does not return, so no code can observe the state that it leaves behind.
    unsafe { libc::_exit(code) }
}

/// Sets the umask so that only this process's user can read the files that the process creates from now on, those of libraries included.
/// It is for commands that keep other people's data, such as the daemon. Commands that write for their user, such as reports, keep the
/// user's own umask.
#[cfg(unix)]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn keep_files_private() {
    // SAFETY: the call takes a number and changes the process's own umask; it cannot fail.
    unsafe { libc::umask(0o077) };
}

/// Does nothing: files have no modes on this platform.
#[cfg(not(unix))]
pub fn keep_files_private() {}

/// Tells the service manager that the daemon is ready, if it was started by one that wants to know (`Type=notify` of systemd).
#[cfg(unix)]
pub fn notify_ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the service manager that the daemon is ready");
    }
}

/// Does nothing: only systemd wants to know.
#[cfg(not(unix))]
pub fn notify_ready() {}

/// Sets the umask so that every user can read the files that the process creates from now on: those of a whole machine, which a service of
/// another user reads.
#[cfg(unix)]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn share_files() {
    // SAFETY: as for `keep_files_private`.
    unsafe { libc::umask(0o022) };
}

/// Does nothing: files have no modes on this platform.
#[cfg(not(unix))]
pub fn share_files() {}

/// Turns off the telemetry of ONNX Runtime. Its published builds (1.29 and later) send data about the machine and the program to their
/// vendor, and keep a device id in the user's home, unless this variable is set before the library is loaded: turning events off later is
/// too late for the first ones. A value that is already in the environment is kept.
#[allow(unsafe_code, reason = "the environment is changed")]
fn disable_runtime_telemetry() {
    const NAME: &str = "ORT_DISABLE_TELEMETRY";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: no other thread exists yet that could read the environment; the thread of the allocator does not.
        unsafe { std::env::set_var(NAME, "1") };
    }
}

/// Returns the number of file descriptors that this process may have open, or 1,024 if the system does not say.
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn file_descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes only to this structure, which outlives the call.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if is_known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1_024 }
}

/// Raises the limit of open file descriptors to the highest value that the system allows. Every connection takes a file descriptor, and
/// many systems allow only 1,024 unless a program raises the limit itself.
#[allow(unsafe_code, reason = "calls into the C library")]
fn raise_file_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read and write only this structure, which outlives them. If the second one fails, the limit is unchanged.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            let _refused = libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
