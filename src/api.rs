//! The native JSON shapes of requests and answers, and their way to and from the domain.
//! HTTP and the command line speak through it; it knows no transport.

mod request;
mod response;

pub use request::{CompressBody, RequestError, ServeOptions, parse};
pub use response::{CompressAnswer, ErrorAnswer, ErrorBody, TimingMs};
