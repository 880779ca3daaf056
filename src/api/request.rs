//! Reads request bodies. It is strict about names and types, and an error names the first value that is wrong.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::Number;
use serde_json::value::RawValue;
use thresher_core::domain::{
    Budget, Chunk, CompressRequest, Format, Granularity, Kind, Omissions, OnError, Order, TokenizerName,
};
use thresher_core::plain;
use thresher_core::text::offsets::OffsetUnit;

use super::budget::BudgetBody;
use super::guard::{Exceeded, Guarded};
use super::history::{self, MessageBody};
use super::kv::{Include, KvBody, KvWanted};
use super::limits::{Body, BodyLimits, ListLimit};
use super::place::{self, PageBody};
use super::schema::require_one;
use super::wire::{Object, TextOrInteger, Word, choice, id, ids, or_default};
use crate::error::{ApiError, ErrorCode};

/// Body of `POST /v1/compress`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either_chunks_or_ids)]
pub struct CompressBody {
    /// The question; not blank.
    query: String,
    /// The conversation before the question, oldest message first. The question is read with its newest turns.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<Vec<MessageBody>>", length(max = 1000))]
    messages: Vec<Object<MessageBody>>,
    /// The retrieved chunks, in any order.
    #[serde(default)]
    chunks: Option<Vec<ChunkBody>>,
    /// Instead of `chunks`: the ids of registered chunks, each once.
    #[serde(default, deserialize_with = "ids")]
    #[schemars(with = "Option<Vec<TextOrInteger>>")]
    chunk_ids: Option<Vec<String>>,
    /// How much may be kept. Default: as much as the scores support.
    #[serde(default)]
    budget: Option<Object<BudgetBody>>,
    /// The unit that is kept or dropped as a whole.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Granularity>")]
    granularity: Granularity,
    /// The ids of chunks to keep whole.
    #[serde(default, deserialize_with = "ids")]
    #[schemars(with = "Option<Vec<TextOrInteger>>")]
    keep: Option<Vec<String>>,
    /// The order of chunks in the context.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Order>")]
    order: Order,
    /// The format of the context.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Format>")]
    format: Format,
    /// Whether the context has the titles of its chunks. Default: true. The format `xml` has them in any case.
    #[serde(default = "yes", deserialize_with = "or_yes")]
    #[schemars(with = "Option<bool>")]
    titles: bool,
    /// How the places are marked at which text of a chunk was left out.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Omissions>")]
    omissions: Omissions,
    /// The tokenizer by which the budget and the usage are counted.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<TokenizerName>")]
    tokenizer: TokenizerName,
    /// Whether nothing is kept if no chunk is related to the question. Default: false, which keeps the best text all the same.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    related_only: bool,
    /// The share of answerable questions that may be taken for unanswerable. Default: that of the settings.
    #[serde(default)]
    #[schemars(range(min = 0.01, max = 0.5))]
    missed_max: Option<f64>,
    /// The unit of every offset in the answer.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<OffsetUnit>")]
    offsets: OffsetUnit,
    /// Whether the answer has the RC of every token, and where each token of the question found it.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    explain: bool,
    /// Milliseconds until the answer is due, including the time in the queue.
    #[serde(default)]
    deadline_ms: Option<u64>,
    /// What to answer if the daemon fails, is overloaded or misses the deadline.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<OnError>")]
    on_error: OnError,
    /// What the answer has beside the context.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<Vec<Include>>", length(max = 16))]
    include: Vec<Word<Include>>,
    /// Options of the export of keys and values; they are exported if this is given.
    #[serde(default)]
    kv: Option<Object<KvBody>>,
}

/// Options of a request that the pipeline does not need.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeOptions {
    pub offsets: OffsetUnit,
    pub deadline_ms: Option<u64>,
    pub on_error: OnError,
    pub kv: Option<KvWanted>,
}

/// A chunk: an object, or a string that is its text.
#[derive(Debug, Clone)]
pub(super) struct ChunkBody(pub(super) ChunkFields);

#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChunkObject")]
/// A chunk: its text, and optionally an id, a title, metadata and its place in the document.
pub(super) struct ChunkFields {
    /// The id of the chunk, unique within the request. Default: its index. An integer is taken as the string of its digits.
    #[serde(default, deserialize_with = "id")]
    #[schemars(with = "Option<TextOrInteger>")]
    pub(super) id: Option<String>,
    /// The title, which the model reads before the text.
    #[serde(default)]
    pub(super) title: Option<String>,
    /// The text, of which parts may be kept or cited.
    pub(super) text: String,
    /// What the text is, which decides how it is divided. Default: found out from the text.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Kind>")]
    pub(super) kind: Kind,
    /// Any JSON; it is returned unchanged.
    #[serde(default)]
    pub(super) metadata: Option<Box<RawValue>>,
    /// The pages of the document on which the text stands, in the order of the text. Citations name the page.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<Vec<PageBody>>", length(max = 10_000))]
    pub(super) pages: Vec<Object<PageBody>>,
    /// The number of the first line of the text in its file, from 1. Citations name the line.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub(super) line: Option<u32>,
    /// What the retriever made of the chunk. It is not used: scores of two questions have different scales.
    #[serde(default, rename = "score")]
    #[schemars(with = "Option<f64>")]
    pub(super) _score: Option<Number>,
}

/// Parses a request body. The entries of its lists are counted while they are parsed, so that a list over its limit needs no more memory
/// than one at the limit.
///
/// # Errors
/// Names the first value that is not what the body takes, or the list that is too long.
pub fn parse<T: Body>(body: &[u8], limits: &BodyLimits) -> Result<T, ApiError> {
    read(body, &T::lists(limits), "the body").map(|Object(value)| value)
}

/// As [`parse`], for the value of `field` of a larger body.
///
/// # Errors
/// As [`parse`]; paths begin with `field`, and lines and columns, which would be those of the value alone, are left out.
pub fn parse_field<T: Body>(field: &str, json: &[u8], limits: &BodyLimits) -> Result<T, ApiError> {
    let read = read(json, &T::lists(limits), field);
    read.map(|Object(value)| value).map_err(|error| {
        let message = without_position(&error.message).to_owned();
        ApiError { message, ..error }.inside(field)
    })
}

/// Parses JSON as a `T` in which the fields of `lists` are bounded lists. Error messages call the JSON `name`.
pub(super) fn read<T: de::DeserializeOwned>(
    body: &[u8],
    lists: &[ListLimit],
    name: &str,
) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let exceeded = Exceeded::default();
    let guarded = Guarded::body(&mut json, lists, &exceeded);
    let value = serde_path_to_error::deserialize(guarded).map_err(|error| {
        if let Some(error) = exceeded.error() {
            return error;
        }
        let path = error.path().to_string();
        let error = error.into_inner();
        let (code, message) = (code_of(&error), plain::message(&error.to_string()));
        let path = (error.is_data() && path != ".").then_some(path);
        let message = reworded(code, &message, path.as_deref().unwrap_or(name));
        ApiError { param: with_field(path, code, &message), ..ApiError::new(code, message) }
    })?;
    json.end().map_err(|error| ApiError::new(ErrorCode::InvalidJson, error.to_string()))?;
    Ok(value)
}

/// A message of serde in plain words: it names the value at `place` in the request. The line and the column are left out where the place
/// says more, which is everywhere but in text that is not JSON.
fn reworded(code: ErrorCode, message: &str, place: &str) -> String {
    if code == ErrorCode::InvalidJson {
        return message.to_owned();
    }
    let message = without_position(message);
    let prefixes = ["invalid type: ", "invalid value: ", "unknown variant "];
    let Some(rest) = prefixes.iter().find_map(|prefix| message.strip_prefix(prefix)) else {
        return message.to_owned();
    };
    let (found, expected) = match code {
        // The names of the variants hold no comma, and the value may.
        ErrorCode::UnknownValue => rest.split_at(rest.rfind("`, expected ").map_or(rest.len(), |at| at + 1)),
        _ => rest.split_at(rest.rfind(", expected ").unwrap_or(rest.len())),
    };
    let found = match found.split(' ').next() {
        Some("map") => "an object".to_owned(),
        Some("sequence") => "a list".to_owned(),
        Some("boolean" | "integer" | "string") => format!("the {found}"),
        Some("floating") => format!("the number {}", found.trim_start_matches("floating point ")),
        _ => found.to_owned(),
    };
    format!("{place} is {found}{expected}")
}

/// A message without the line and the column at its end.
pub(super) fn without_position(message: &str) -> &str {
    match message.rsplit_once(" at line ") {
        Some((message, position)) if position.starts_with(|c: char| c.is_ascii_digit()) => {
            message.trim_end_matches(',')
        }
        _ => message,
    }
}

/// serde gives the path of the object where a field is missing or doubled, and names the field in its message.
fn with_field(param: Option<String>, code: ErrorCode, message: &str) -> Option<String> {
    let names_field = matches!(code, ErrorCode::MissingField | ErrorCode::DuplicateField);
    let field = names_field.then(|| message.split('`').nth(1)).flatten();
    match (param, field) {
        (Some(path), Some(field)) if !path.ends_with(field) => Some(format!("{path}.{field}")),
        (None, Some(field)) => Some(field.to_owned()),
        (param, _) => param,
    }
}

fn yes() -> bool {
    true
}

/// Parses a boolean, and null as true.
fn or_yes<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Option::deserialize(from).map(|given| given.unwrap_or(true))
}

/// The code of a parse error. The errors of serde differ only by their messages.
fn code_of(error: &serde_json::Error) -> ErrorCode {
    let message = error.to_string();
    if !error.is_data() {
        ErrorCode::InvalidJson
    } else if message.starts_with("unknown field") {
        ErrorCode::UnknownField
    } else if message.starts_with("missing field") {
        ErrorCode::MissingField
    } else if message.starts_with("unknown variant") {
        ErrorCode::UnknownValue
    } else if message.starts_with("duplicate field") {
        ErrorCode::DuplicateField
    } else {
        ErrorCode::WrongType
    }
}

impl Body for CompressBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("chunks"), limits.chunk_ids(), limits.keep(), limits.include(), limits.messages()]
    }
}

impl CompressBody {
    /// The ids of registered chunks, if the request names some instead of sending its own.
    pub fn chunk_ids(&self) -> Option<&[String]> {
        self.chunk_ids.as_deref()
    }

    /// As [`Self::into_domain`], where no daemon answers: nothing is registered, and nothing can be fetched later.
    ///
    /// # Errors
    /// As [`Self::into_domain`]; `unavailable`, if the request asks for keys and values.
    pub fn into_domain_alone(self) -> Result<(CompressRequest, ServeOptions), ApiError> {
        let (request, options) = self.into_domain(None)?;
        if options.kv.is_some() {
            let message =
                "keys and values can be exported only by a daemon; leave out `kv` and `\"kv\"` in `include`";
            return Err(ApiError::with_param(ErrorCode::Unavailable, message, "include"));
        }
        Ok((request, options))
    }

    /// The request to the pipeline, and the options. `registered` are the chunks of [`Self::chunk_ids`]; none if there is no registry.
    ///
    /// # Errors
    /// Fails if the request has no chunks or two kinds of them, registered chunks without a registry, or a budget with none or several of
    /// its forms.
    pub fn into_domain(
        self,
        registered: Option<Vec<Arc<Chunk>>>,
    ) -> Result<(CompressRequest, ServeOptions), ApiError> {
        let by_id = self.chunk_ids.is_some();
        let chunks = chunks_of(self.chunks, self.chunk_ids.is_some(), registered, self.offsets)?;
        let request = CompressRequest {
            history: history::turns(self.messages, &self.query)?,
            query: self.query,
            chunks,
            registered: by_id,
            budget: self.budget.map_or(Ok(Budget::default()), |Object(budget)| budget.into_domain())?,
            granularity: self.granularity,
            keep: self.keep.unwrap_or_default(),
            order: self.order,
            format: self.format,
            titles: self.titles,
            omissions: self.omissions,
            tokenizer: self.tokenizer,
            keeps_notable: false,
            related_only: self.related_only,
            missed_max: self.missed_max,
            best_effort: self.on_error == OnError::BestEffort,
            explain: self.explain,
        };
        let kv = match self.kv {
            Some(Object(kv)) => Some(kv.into_domain()?),
            None => self.include.iter().any(|Word(wanted)| *wanted == Include::Kv).then(KvWanted::default),
        };
        let options = ServeOptions {
            offsets: self.offsets,
            deadline_ms: self.deadline_ms,
            on_error: self.on_error,
            kv,
        };
        Ok((request, options))
    }
}

/// The chunks of a request: its own, with offsets in `unit`, or the registered chunks that it names.
pub(super) fn chunks_of(
    chunks: Option<Vec<ChunkBody>>,
    by_id: bool,
    registered: Option<Vec<Arc<Chunk>>>,
    unit: OffsetUnit,
) -> Result<Vec<Arc<Chunk>>, ApiError> {
    let given: HashSet<String> =
        chunks.iter().flatten().filter_map(|ChunkBody(fields)| fields.id.clone()).collect();
    // A chunk without an id has its index, unless another chunk was given that id.
    let id_of = |index: usize| {
        let mut id = index.to_string();
        while given.contains(&id) {
            id.insert(0, '#');
        }
        id
    };
    let chunk = |(index, ChunkBody(fields)): (usize, ChunkBody)| {
        let anchors = place::anchors(&fields.pages, fields.line, &fields.text, unit)
            .map_err(|error| error.inside(&format!("chunks[{index}]")))?;
        Ok(Arc::new(Chunk {
            id: fields.id.unwrap_or_else(|| id_of(index)),
            title: fields.title,
            text: fields.text,
            kind: fields.kind,
            metadata: fields.metadata.map(|metadata| Box::<str>::from(metadata).into_string()),
            anchors,
        }))
    };
    match (chunks, by_id, registered) {
        (Some(chunks), false, _) => chunks.into_iter().enumerate().map(chunk).collect(),
        (None, true, Some(registered)) => Ok(registered),
        (None, true, None) => {
            let message = "`chunk_ids` works only with a daemon, which registers chunks; send `chunks`";
            Err(ApiError::with_param(ErrorCode::Unavailable, message, "chunk_ids"))
        }
        (Some(_), true, _) => {
            let message = "send `chunks` or name registered ones in `chunk_ids`, not both";
            Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "chunk_ids"))
        }
        (None, false, _) => {
            let message = "missing field `chunks`, or `chunk_ids` to name registered ones; a conversation goes to POST /headroom/v1/compress";
            Err(ApiError::with_param(ErrorCode::MissingField, message, "chunks"))
        }
    }
}

fn either_chunks_or_ids(schema: &mut Schema) {
    require_one(schema, &["chunks", "chunk_ids"]);
}

impl JsonSchema for ChunkBody {
    fn schema_name() -> Cow<'static, str> {
        "Chunk".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let object = generator.subschema_for::<ChunkFields>();
        json_schema!({
            "description": "A chunk: an object, or a string that is its text.",
            "anyOf": [{"type": "string"}, object],
        })
    }
}

impl<T: JsonSchema> JsonSchema for Object<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<'de> Deserialize<'de> for ChunkBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChunkVisitor)
    }
}

struct ChunkVisitor;

impl<'de> Visitor<'de> for ChunkVisitor {
    type Value = ChunkBody;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a chunk: an object with \"text\", or a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ChunkBody, E> {
        Ok(ChunkBody(ChunkFields { text: text.to_owned(), ..ChunkFields::default() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ChunkBody, A::Error> {
        ChunkFields::deserialize(MapAccessDeserializer::new(map)).map(ChunkBody)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_chunk_is_taken_as_a_vector_database_returns_it() {
        let read = |json: &str| serde_json::from_str::<ChunkFields>(json).map(|fields| fields.id);
        for (json, id) in [
            (r#"{"id": 17, "score": 0.83, "text": "a"}"#, Some("17")),
            (r#"{"id": -1, "score": null, "text": "a"}"#, Some("-1")),
            (r#"{"id": "17", "text": "a"}"#, Some("17")),
            (r#"{"id": null, "text": "a"}"#, None),
            (r#"{"id": 9223372036854775807, "text": "a"}"#, Some("9223372036854775807")),
        ] {
            assert_eq!(read(json).expect(json).as_deref(), id, "{json}");
        }
        for json in [
            r#"{"id": 1.5, "text": "a"}"#,
            r#"{"id": true, "text": "a"}"#,
            r#"{"id": 9223372036854775808, "text": "a"}"#,
            r#"{"score": "high", "text": "a"}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn ids_of_chunks_may_be_integers() {
        let read = |ids: &str| {
            let body = format!(r#"{{"query": "q", "chunk_ids": {ids}}}"#);
            parse::<CompressBody>(body.as_bytes(), &BodyLimits::default()).map(|body| body.chunk_ids)
        };
        let ids = ["7", "a", "-1"].map(str::to_owned).to_vec();
        assert_eq!(read(r#"[7, "a", -1]"#).expect("ids"), Some(ids));
        assert_eq!(read("null").expect("none"), None);
        let error = read("[null]").expect_err("null is no id");
        assert_eq!(error.message, "chunk_ids[0] is null, expected a string or an integer");
    }

    #[test]
    fn a_chunk_without_an_id_takes_none_that_another_has() {
        let chunks = r##"[{"id": "1", "text": "a"}, {"text": "b"}, "c", {"id": "#1", "text": "d"}]"##;
        let chunks = serde_json::from_str(chunks).expect("chunks");
        let chunks = chunks_of(Some(chunks), false, None, OffsetUnit::default()).expect("chunks");
        let ids: Vec<&str> = chunks.iter().map(|chunk| &*chunk.id).collect();
        assert_eq!(ids, ["1", "##1", "2", "#1"]);
    }

    #[test]
    fn messages_name_the_field_and_say_what_it_takes() {
        let limits = BodyLimits::default();
        let check = |body: &str, expect: &str| {
            let error = parse::<CompressBody>(body.as_bytes(), &limits).expect_err(body);
            assert_eq!(error.message, expect, "{body}");
        };
        check("[]", "the body is a list, expected an object");
        check(r#"{"query": 5}"#, "query is the integer `5`, expected a string");
        check(r#"{"query": "q", "chunks": {}}"#, "chunks is an object, expected a list");
        check(
            r#"{"query": "q", "chunks": ["a", null]}"#,
            "chunks[1] is null, expected a chunk: an object with \"text\", or a string",
        );
        check(
            r#"{"query": "q", "offsets": "char"}"#,
            "offsets is `char`, expected one of `byte`, `codepoint`, `utf16`",
        );
        check(
            r#"{"query": "q", "on_error": "a`, expected b"}"#,
            "on_error is `a`, expected b`, expected one of `fail`, `best_effort`, `passthrough`",
        );
        check(r#"{"query": "q", "query": "q"}"#, "duplicate field `query`");
        check(r#"{"query": "q",}"#, "trailing comma at line 1 column 15");
    }

    #[test]
    fn a_field_of_another_body_is_named_and_has_no_column() {
        let limits = BodyLimits::default();
        let check = |json: &str, expect: (&str, &str)| {
            let error = parse_field::<CompressBody>("thresher", json.as_bytes(), &limits).expect_err(json);
            assert_eq!((error.param.as_deref().unwrap_or_default(), &*error.message), expect, "{json}");
        };
        check("5", ("thresher", "thresher is the integer `5`, expected an object"));
        check(r#"{"query": 5}"#, ("thresher.query", "query is the integer `5`, expected a string"));
        check(r#"{"query": "q",}"#, ("thresher", "trailing comma"));
    }

    #[test]
    fn messages_are_counted() {
        let limits = BodyLimits::default();
        let parse = |count: usize| {
            let messages = vec![r#"{"role": "user"}"#; count].join(",");
            parse::<CompressBody>(
                format!(r#"{{"query": "q", "messages": [{messages}]}}"#).as_bytes(),
                &limits,
            )
        };
        assert!(parse(1000).is_ok());
        let error = parse(1001).expect_err("one too many");
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::TooMany, Some("messages")));
    }
}
