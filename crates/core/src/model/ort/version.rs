//! The version of ONNX Runtime.

use std::ffi::CStr;
use std::path::Path;

/// Returns the version that the library itself states: `ort` returns only a description of the build, which does not
/// always have it.
///
/// # Errors
/// Fails if the library cannot be opened or does not have the function of ONNX Runtime.
#[allow(unsafe_code, reason = "calls into the C library")]
pub fn read_version(lib: &Path) -> Result<String, libloading::Error> {
    // SAFETY: the process has loaded this library before and keeps it, so this runs no code of it; the function
    // and the table that it returns are part of ONNX Runtime's stable interface, and the text is static.
    unsafe {
        let library = libloading::Library::new(lib)?;
        let base = library.get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase")?;
        let version = ((*base()).GetVersionString)();
        Ok(CStr::from_ptr(version).to_string_lossy().into_owned())
    }
}
