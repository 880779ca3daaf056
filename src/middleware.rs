//! In front of somebody else's model: what of a conversation is compressed on its way there, and what is cited on the way back.
//! Knows nothing of transports.
//!
//! ```text
//! request ─▶ dialect: messages and parts ─▶ find: turns, pieces ─▶ rewrite ─▶ the same request, shorter
//! answer  ─▶ answer, or stream: its texts ─▶ cite ─▶ the same answer, with citations
//! ```
//!
//! A body is never written anew: strings are replaced where they stand (`json`).

pub mod answer;
pub mod cite;
pub mod dialect;
pub mod find;
pub mod json;
pub mod rewrite;
pub mod settings;
pub mod stream;
