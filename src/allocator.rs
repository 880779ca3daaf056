//! The allocator of the program on Linux with glibc. ONNX Runtime uses it, too, because it replaces `malloc`. On other
//! systems the program has the allocator of the system.

use std::ffi::c_char;

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The options of jemalloc; `MALLOC_CONF` in the environment overrides them.
///
/// - `narenas:1`: a thread cannot use memory that was freed in another arena. Blocks are allocated by one thread and freed
///   by any, so with an arena for each thread the process would grow to nearly twice the size of what it holds. Threads
///   hardly wait for each other all the same: each has a cache, and every size of small memory has a lock of its own.
/// - `oversize_threshold:0`: large memory is in the same arena, too, and not in another one that returns it at once.
/// - the others: memory that is not used for a second is returned to the system, by a thread of jemalloc.
const OPTIONS: &[u8] =
    b"narenas:1,oversize_threshold:0,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// A pointer to a text that never changes.
#[repr(transparent)]
struct Options(*const c_char);

#[allow(unsafe_code, reason = "a pointer that several threads may read")]
// SAFETY: the text behind the pointer is constant and lives as long as the program.
unsafe impl Sync for Options {}

/// What jemalloc reads its options from: a symbol with this name, declared as `const char *malloc_conf`.
#[used]
#[allow(unsafe_code, reason = "a symbol that a C library reads")]
// SAFETY: no other code defines this symbol, and it has the type that jemalloc declares: a pointer to a text that ends with 0.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is jemalloc's")]
static malloc_conf: Options = Options(OPTIONS.as_ptr().cast());
