//! Requests and answers about registered chunks: register, fetch, list and delete.

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thresher_core::domain::{Chunk, Kind};
use thresher_core::plain::Quoted;
use thresher_core::shape::{self, ShapeError, ShapeLimits};
use thresher_core::text::offsets::OffsetUnit;
use thresher_registry::{Outcome, Progress, content_id};

use super::fields;
use super::limits::{Body, BodyLimits, ListLimit};
use super::place::{self, PageBody};
use super::request::{ChunkBody, ChunkFields, read, without_position};
use super::wire::{Id, TextOrInteger};
use crate::error::{ApiError, ErrorCode};

/// The most bytes of an id, which is a term of the index and part of a URL.
pub const ID_BYTES_MAX: usize = 512;
/// The most objects and lists inside each other.
const METADATA_DEPTH_MAX: usize = 16;

/// Body of `POST /v1/chunks`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterBody {
    /// The chunks to register. They are checked one by one: the others are registered even if one is invalid.
    #[schemars(with = "Vec<ChunkBody>", length(min = 1))]
    chunks: Vec<Box<RawValue>>,
    /// Whether to answer only when the model has read the chunks.
    #[serde(default, deserialize_with = "super::wire::or_default")]
    #[schemars(with = "Option<bool>")]
    wait: bool,
    /// Milliseconds until the answer is due.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// Body of `POST /v1/chunks/delete`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteBody {
    /// The ids of the chunks to delete.
    #[schemars(with = "Vec<TextOrInteger>", length(min = 1))]
    ids: Vec<Id>,
}

/// A parsed batch: the chunks to register, and the errors about the others.
#[derive(Debug)]
pub struct Batch {
    entries: Vec<Result<Arc<Chunk>, Rejected>>,
    /// Whether the caller waits until the model has read the chunks.
    pub wait: bool,
    pub deadline_ms: Option<u64>,
}

#[derive(Debug)]
struct Rejected {
    id: Option<String>,
    error: ApiError,
}

/// Answer of `POST /v1/chunks` and of `POST /v1/chunks/delete`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Changes")]
pub struct ChangesAnswer {
    /// One outcome for each chunk of the request, in its order.
    chunks: Vec<ChangeAnswer>,
    /// How many of the chunks the model has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    warming: Option<ProgressAnswer>,
}

/// The outcome of one chunk.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Change")]
pub struct ChangeAnswer {
    /// The index of the chunk in the request.
    index: usize,
    /// The id of the chunk; null if it has none that can be read.
    id: Option<String>,
    /// What was done.
    #[schemars(with = "ChangeStatus")]
    status: &'static str,
    /// Why the chunk was not registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ApiError>,
}

/// What was done with a chunk.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "only its schema is used")]
enum ChangeStatus {
    Created,
    Updated,
    Unchanged,
    Deleted,
    Unknown,
    Failed,
}

/// A registered chunk.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "RegisteredChunk")]
pub struct RegisteredAnswer {
    /// The id of the chunk.
    id: String,
    /// The title of the chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The text of the chunk.
    text: String,
    /// What the text is; left out if it is found out from the text.
    #[serde(skip_serializing_if = "Kind::is_auto")]
    #[schemars(with = "Option<Kind>")]
    kind: Kind,
    /// The metadata, as it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    /// The pages on which the text stands, with offsets in code points; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pages: Vec<PageBody>,
    /// The number of the first line of the text in its file; left out if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl RegisteredAnswer {
    /// Returns the chunk, without its metadata and its place.
    pub(super) fn to_chunk(&self) -> Chunk {
        let Self { id, title, text, kind, .. } = self.clone();
        Chunk { title, kind, ..Chunk::new(id, text) }
    }

    /// Replaces the text by an excerpt, in which the pages begin elsewhere.
    pub(super) fn set_excerpt(&mut self, text: String) {
        (self.text, self.pages, self.line) = (text, Vec::new(), None);
    }

    /// The chunk as text for a model: its id and title, and below them its text.
    pub(super) fn to_plain_text(&self) -> String {
        let title = self.title.as_ref().map_or_else(String::new, |title| format!(" {title}"));
        format!("[{}]{title}\n{}", self.id, self.text)
    }
}

/// Answer of `GET /v1/chunks`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Page")]
pub struct PageAnswer {
    /// The chunks, in the order of their ids.
    chunks: Vec<RegisteredAnswer>,
    /// The value of `after` for the next page; null on the last page.
    next: Option<String>,
}

/// How many chunks are registered, and how many of these the model has read.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "Progress")]
pub struct ProgressAnswer {
    /// Registered chunks.
    registered: usize,
    /// Chunks that the model has read.
    warm: usize,
    /// Chunks that the model has still to read.
    queued: usize,
    /// Chunks that the model could not read.
    failed: usize,
}

impl Body for RegisterBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.batch("chunks")]
    }
}

impl Body for DeleteBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.batch("ids")]
    }
}

impl RegisterBody {
    /// Parses every chunk. Errors about single chunks are part of the batch.
    ///
    /// # Errors
    /// `field_empty`.
    pub fn into_batch(self, limits: &BodyLimits) -> Result<Batch, ApiError> {
        check_not_empty(self.chunks.len(), "chunks")?;
        let mut first_at = HashMap::new();
        let mut entries = Vec::with_capacity(self.chunks.len());
        for (index, raw) in self.chunks.iter().enumerate() {
            let entry = chunk(raw.get(), limits).and_then(|chunk| match first_at.entry(chunk.id.clone()) {
                std::collections::hash_map::Entry::Vacant(entry) => {
                    entry.insert(index);
                    Ok(Arc::new(chunk))
                }
                std::collections::hash_map::Entry::Occupied(first) => {
                    let (id, first) = (Quoted(&chunk.id), first.get());
                    let message = format!("chunk id {id} is used by chunks[{first}] already");
                    Err(ApiError::with_param(ErrorCode::Duplicate, message, "id"))
                }
            });
            entries.push(entry.map_err(|error| Rejected::new(index, raw.get(), error)));
        }
        Ok(Batch { entries, wait: self.wait, deadline_ms: self.deadline_ms })
    }
}

impl DeleteBody {
    /// The ids of the chunks to delete.
    ///
    /// # Errors
    /// `field_empty`.
    pub fn into_ids(self) -> Result<Vec<String>, ApiError> {
        check_not_empty(self.ids.len(), "ids")?;
        Ok(self.ids.into_iter().map(|Id(id)| id).collect())
    }
}

fn check_not_empty(count: usize, param: &str) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::with_param(
            ErrorCode::FieldEmpty,
            format!("{param} is empty: send at least one"),
            param,
        )),
        _ => Ok(()),
    }
}

fn chunk(json: &str, limits: &BodyLimits) -> Result<Chunk, ApiError> {
    let ChunkBody(mut fields) = read(json.as_bytes(), &[], "the chunk")?;
    let metadata = fields.metadata.take().map(|metadata| Box::<str>::from(metadata).into_string());
    if let Some(id) = &fields.id {
        check_id(id)?;
    }
    if fields.text.trim().is_empty() {
        return Err(ApiError::with_param(
            ErrorCode::FieldEmpty,
            "the text is empty: a chunk without text cannot be found",
            "text",
        ));
    }
    let max = limits.requests.chunk_bytes_max;
    for (name, len) in [("text", fields.text.len()), ("title", fields.title.as_ref().map_or(0, String::len))]
    {
        if len > max {
            let message = format!("the {name} has {len} bytes, the limit is {max}");
            return Err(ApiError::with_param(ErrorCode::TooLong, message, name));
        }
    }
    if let Some(metadata) = &metadata {
        check_metadata(metadata, limits.metadata_bytes_max)?;
    }
    let ChunkFields { id, title, text, kind, pages, line, .. } = fields;
    let anchors = place::anchors(&pages, line, &text, OffsetUnit::default())?;
    let id = id.unwrap_or_else(|| content_id(title.as_deref(), &text, metadata.as_deref(), &anchors));
    Ok(Chunk { id, title, text, kind, metadata, anchors })
}

fn check_id(id: &str) -> Result<(), ApiError> {
    let wrong = match id.len() {
        0 => "the id is empty: leave it out to get one".to_owned(),
        len if len > ID_BYTES_MAX => format!("the id has {len} bytes, the limit is {ID_BYTES_MAX}"),
        _ if id == "." || id == ".." => {
            format!("the id is {id:?}, which HTTP clients remove from paths: use another")
        }
        _ if id.contains(char::is_control) => "the id has a control character".to_owned(),
        _ => return Ok(()),
    };
    Err(ApiError::with_param(ErrorCode::InvalidValue, wrong, "id"))
}

fn check_metadata(json: &str, bytes_max: usize) -> Result<(), ApiError> {
    let wrong = |code, message: String| Err(ApiError::with_param(code, message, "metadata"));
    if json.len() > bytes_max {
        let message = format!("the metadata has {} bytes, the limit is {bytes_max}", json.len());
        return wrong(ErrorCode::TooLong, message);
    }
    if !json.starts_with('{') {
        let message = "the metadata is not an object";
        return wrong(ErrorCode::InvalidValue, message.to_owned());
    }
    let limits = ShapeLimits { value_count_max: usize::MAX, depth_max: METADATA_DEPTH_MAX };
    match shape::check(json.as_bytes(), limits) {
        Ok(()) => Ok(()),
        Err(ShapeError::TooDeep) => {
            wrong(ErrorCode::TooLong, format!("the metadata is more than {METADATA_DEPTH_MAX} levels deep"))
        }
        Err(error) => wrong(ErrorCode::InvalidValue, format!("the metadata cannot be read: {error}")),
    }
}

impl Rejected {
    fn new(index: usize, json: &str, error: ApiError) -> Self {
        let param = match error.param {
            Some(param) => format!("chunks[{index}].{param}"),
            None => format!("chunks[{index}]"),
        };
        let id = fields::pick_named(json, ["id"])
            .ok()
            .and_then(|[id]| Some(fields::text(id?)?.ok()?.into_owned()));
        // Lines and columns would be those of the chunk alone, and the caller knows the whole body.
        let message = without_position(&error.message);
        Self { id, error: ApiError::with_param(error.code, message, param) }
    }
}

impl Batch {
    /// The chunks that are valid.
    pub fn chunks(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.entries.iter().flatten()
    }

    /// The answer about all chunks of the batch; `outcomes` are those of [`Self::chunks`].
    ///
    /// # Panics
    /// Panics if there are fewer outcomes than valid chunks.
    pub fn answer(self, outcomes: &[Outcome], count_max: usize) -> ChangesAnswer {
        let mut outcomes = outcomes.iter();
        let answer = |(index, entry): (usize, Result<Arc<Chunk>, Rejected>)| match entry {
            Err(Rejected { id, error }) => ChangeAnswer { index, id, status: "failed", error: Some(error) },
            Ok(chunk) => {
                let id = Some(chunk.id.clone());
                match outcomes.next().expect("one outcome per chunk") {
                    Outcome::Full => {
                        let message = format!(
                            "{count_max} chunks are registered already, which is the limit (registry.chunk_count_max)"
                        );
                        let param = format!("chunks[{index}]");
                        let error = Some(ApiError::with_param(ErrorCode::RegistryFull, message, param));
                        ChangeAnswer { index, id, status: "failed", error }
                    }
                    outcome => ChangeAnswer { index, id, status: outcome.name(), error: None },
                }
            }
        };
        let chunks = self.entries.into_iter().enumerate().map(answer).collect();
        ChangesAnswer { chunks, warming: None }
    }
}

impl ChangesAnswer {
    /// The same answer, with how many of the chunks the model has read.
    pub fn with_progress(self, warming: Progress) -> Self {
        Self { warming: Some(warming.into()), ..self }
    }

    /// The answer about the deletion of each of `ids`.
    pub fn deleted(ids: Vec<String>, outcomes: &[Outcome]) -> Self {
        let answer = |(index, (id, outcome)): (usize, (String, &Outcome))| ChangeAnswer {
            index,
            id: Some(id),
            status: outcome.name(),
            error: None,
        };
        Self { chunks: ids.into_iter().zip(outcomes).enumerate().map(answer).collect(), warming: None }
    }
}

impl From<&Chunk> for RegisteredAnswer {
    fn from(chunk: &Chunk) -> Self {
        let (pages, line) = (place::pages(chunk), chunk.anchors.line());
        let Chunk { id, title, text, kind, metadata, anchors: _ } = chunk.clone();
        let metadata = metadata.and_then(|json| RawValue::from_string(json).ok());
        Self { id, title, text, kind, metadata, pages, line }
    }
}

impl PageAnswer {
    /// The answer with these chunks; `next` is the id after which the next page starts.
    pub fn new(chunks: &[Arc<Chunk>], next: Option<String>) -> Self {
        Self { chunks: chunks.iter().map(|chunk| RegisteredAnswer::from(&**chunk)).collect(), next }
    }
}

impl From<Progress> for ProgressAnswer {
    fn from(Progress { registered, warm, queued, failed }: Progress) -> Self {
        Self { registered, warm, queued, failed }
    }
}
