//! What the process is told before its first thread starts, and how it ends.
//! Knows nothing of what it does in between.

/// Settles what has to be settled before there are threads; called first thing in `main`.
pub fn prepare() {
    one_arena();
    quiet_runtime();
    all_file_descriptors();
}

/// Ends the process at once: work that outlived the drain, or a model that is still being loaded, is not waited for. The
/// handlers of an ordinary exit would free what ONNX Runtime's threads still use.
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn leave(code: i32) -> ! {
    // SAFETY: takes a number and does not return: nothing can see what it leaves behind.
    unsafe { libc::_exit(code) }
}

/// From now on every file that this process creates is for its own user alone, also a file that a library creates. For commands that
/// keep data of others, such as the daemon: what the others write for their user, such as a report, gets the user's own mode.
#[cfg(unix)]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn keep_files_private() {
    // SAFETY: takes a number and changes the process's own mask; it cannot fail.
    unsafe { libc::umask(0o077) };
}

/// There are no modes to set.
#[cfg(not(unix))]
pub fn keep_files_private() {}

/// Lets glibc have one arena instead of eight for each core. Memory that is freed in one arena is not found by threads that
/// allocate in another, and blocks are made by one thread and dropped by any: with an arena for each thread the process
/// grows to nearly twice what it holds. `MALLOC_ARENA_MAX` in the environment, or another allocator, has the last word.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a call into the C library")]
fn one_arena() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: takes two numbers and touches the allocator's own settings only; it locks them. What it returns says
        // whether it knew the setting: where it did not, nothing has changed.
        let _known = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Other allocators have no such arenas.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn one_arena() {}

/// ONNX Runtime's published builds (from 1.29) tell their maker about the machine and the program, and keep a device id in the
/// user's home, unless this variable is set before they are loaded: switching events off later is too late for the first.
/// Who sets it has the last word.
#[allow(unsafe_code, reason = "the environment is changed")]
fn quiet_runtime() {
    const NAME: &str = "ORT_DISABLE_TELEMETRY";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: there is no other thread yet that could read the environment.
        unsafe { std::env::set_var(NAME, "1") };
    }
}

/// Returns what the allocator keeps of freed memory to the system. Takes milliseconds for each hundred megabytes, in which other
/// threads wait when they allocate.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn give_memory_back() {
    // SAFETY: takes a number and touches the allocator's own memory only; it locks it.
    let _released = unsafe { libc::malloc_trim(0) };
}

/// Other allocators give memory back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_memory_back() {}

/// File descriptors that this process may have open.
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn file_descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes this one structure, which lives through it.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if is_known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1_024 }
}

/// Every connection takes a file descriptor, and many systems allow 1,024 unless a program asks for what it may have.
#[allow(unsafe_code, reason = "calls into the C library")]
fn all_file_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read and write this one structure, which lives through them. A refusal leaves the limit as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            let _refused = libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
