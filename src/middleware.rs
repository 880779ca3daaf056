//! The middleware, an OpenAI- and Anthropic-compatible proxy: compresses conversations on their way to an upstream, and adds citations to
//! the answers. The module knows nothing of transports.
//!
//! ```text
//! request ─▶ dialect: messages and parts ─▶ find: turns and passages ─▶ rewrite ─▶ the same request, shorter
//! answer  ─▶ answer, or sse and stream: its texts ─▶ cite ─▶ the same answer, with citations
//! ```
//!
//! A JSON body is never serialized anew: strings are replaced in the text of the body (`json`), and the rest of it does not change.

pub mod answer;
pub mod blocks;
pub mod cite;
pub mod copied;
pub mod dialect;
pub mod find;
pub mod form;
pub mod json;
pub mod marks;
pub mod paths;
pub mod prompt;
pub mod question;
pub mod records;
pub mod reported;
pub mod rewrite;
pub mod session;
pub mod settings;
pub mod shadow;
pub mod shared_key;
pub mod sse;
pub mod stream;
pub mod untouched;
pub mod usage;
