//! The JSON of requests and answers, and its conversion to and from the domain types. HTTP, MCP and the command line use it; it knows no
//! transport.

mod attribute;
mod budget;
mod chunks;
mod conversation;
mod fields;
mod guard;
mod history;
mod kv;
mod limits;
mod request;
mod rerank;
mod response;
mod schema;
mod score;
mod search;
mod usage;

pub use attribute::dialects::{ChunkNumbers, CitationContext, anthropic, openai};
pub use attribute::{
    Arrival, AttributeAnswer, AttributeBody, AttributeOptions, ChunkReference, PartAnswer, arrival,
    json_values,
};
pub use chunks::{
    Batch, ChangesAnswer, DeleteBody, PageAnswer, ProgressAnswer, RegisterBody, RegisteredAnswer,
};
pub use conversation::{
    MessagesAnswer, MessagesBody, MiddlewareBody, MiddlewareOptions, OriginalAnswer, RelevantAnswer,
    RetrieveBody, SessionAnswer,
};
pub use kv::{Include, KvAnswer, KvPolicy, KvWanted};
pub use limits::{Body, BodyLimits, ListLimit};
pub use request::{CompressBody, ServeOptions, parse, parse_field};
pub use rerank::{
    RerankAnswer, RerankBody, RerankRequest, Reranked, TeiRerankBody, TeiResult, VoyageRanking,
    VoyageRerankBody,
};
pub use response::{CompressAnswer, HealthAnswer, ModelsAnswer, Prefiltered, TimingMs};
pub use score::{ScoreAnswer, ScoreBody, Scored};
pub use search::{FilterBody, Rank, SearchAnswer, SearchBody, SearchRequest};
pub use usage::{ProviderUsage, SessionUsageAnswer, TokensAnswer, UsageAnswer, UsageBody, UsageTaken};
