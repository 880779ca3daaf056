//! The JSON of requests and answers, and its conversion to and from the domain types. HTTP, MCP and the command line use it; it knows no
//! transport.

mod attribute;
mod budget;
mod chunks;
mod conversation;
mod fields;
mod guard;
mod highlight;
mod history;
mod kv;
mod limits;
mod place;
mod request;
mod rerank;
mod response;
mod schema;
mod search;
mod source_conflict;
mod wire;

pub use attribute::dialects::{ChunkNumbers, CitationContext, anthropic, openai};
pub use attribute::{
    AttributeAnswer, AttributeBody, AttributeOptions, ChunkReference, PartAnswer, json_values,
};
pub use chunks::{
    Batch, ChangesAnswer, DeleteBody, PageAnswer, ProgressAnswer, RegisterBody, RegisteredAnswer,
};
pub use conversation::{
    MessagesAnswer, MessagesBody, MiddlewareBody, MiddlewareOptions, OriginalAnswer, RelevantAnswer,
    RetrieveBody, SessionAnswer,
};
pub use highlight::{HighlightAnswer, HighlightBody, HighlightRequest};
pub use kv::{Include, KvAnswer, KvPolicy, KvWanted};
pub use limits::{Body, BodyLimits, ListLimit};
pub use request::{CompressBody, ServeOptions, parse, parse_field};
pub use rerank::{RerankAnswer, RerankBody, RerankRequest, Reranked, TeiRerankBody, TeiResult};
pub use response::{CompressAnswer, HealthAnswer, ModelsAnswer, Prefiltered, TimingMs};
pub use search::{Rank, SearchAnswer, SearchBody, SearchRequest};
