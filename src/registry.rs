//! Lexical search over chunks. The only user of `tantivy`.

mod bm25;

pub use bm25::{Bm25, LexicalError};
