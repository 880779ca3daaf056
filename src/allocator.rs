//! What the system's allocator is told before the first thread starts.
//! Knows nothing of what is allocated.

/// Lets glibc have one arena instead of eight for each core. Memory that is freed in one arena is not found by threads that
/// allocate in another, and blocks are made by one thread and dropped by any: with an arena for each thread the process
/// grows to nearly twice what it holds. `MALLOC_ARENA_MAX` in the environment, or another allocator, has the last word.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a call into the C library")]
pub fn one_arena() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: takes two numbers and touches the allocator's own settings only; it locks them. What it returns says
        // whether it knew the setting: where it did not, nothing has changed.
        let _known = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Other allocators have no such arenas.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn one_arena() {}
