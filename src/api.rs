//! The native JSON shapes of requests and answers, and their way to and from the domain.
//! HTTP and the command line speak through it; it knows no transport.

mod attribute;
mod chunks;
mod fields;
mod guard;
mod kv;
mod limits;
mod messages;
mod middleware;
mod models;
mod request;
mod rerank;
mod response;
mod search;

pub use attribute::{
    Arrival, AttributeAnswer, AttributeBody, AttributeOptions, Named, Names, PartAnswer, Words, anthropic,
    arrival, openai, values,
};
pub use chunks::{
    Batch, ChangesAnswer, DeleteBody, PageAnswer, ProgressAnswer, RegisterBody, RegisterLimits,
    RegisteredAnswer,
};
pub use kv::{Include, KvAnswer, KvPolicy, KvWanted};
pub use limits::{Body, BodyLimits, ListLimit};
pub use messages::{MessagesAnswer, MessagesBody, OriginalAnswer, RelevantAnswer};
pub use middleware::{MiddlewareBody, MiddlewareOptions};
pub use models::ModelsAnswer;
pub use request::{CompressBody, ServeOptions, parse, parse_field};
pub use rerank::{RerankAnswer, RerankBody, RerankDialect, RerankRequest, ScoreAnswer, ScoreBody, Scored};
pub use response::{CompressAnswer, Prefiltered, TimingMs};
pub use search::{FilterBody, Rank, SearchAnswer, SearchBody, SearchLimits, SearchRequest};
