//! What operations are written with: schemas by their types, and the answers that several share.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::error::{ErrorAnswer, ErrorCode};
use crate::http::error::{AnthropicError, OpenAiError, RerankError, TeiError};

/// Schemas that operations name, each written once.
pub struct Schemas {
    asked: SchemaGenerator,
    answered: SchemaGenerator,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self {
            asked: settings.clone().for_deserialize().into_generator(),
            answered: settings.for_serialize().into_generator(),
        }
    }
}

impl Schemas {
    /// How a request of this type is read.
    pub fn asked<T: JsonSchema>(&mut self) -> Value {
        self.asked.subschema_for::<T>().to_value()
    }

    /// How an answer of this type is written.
    pub fn answered<T: JsonSchema>(&mut self) -> Value {
        self.answered.subschema_for::<T>().to_value()
    }

    /// All of them by their names.
    ///
    /// # Panics
    /// When a type that is both read and written has two schemas: then one of them needs another name.
    pub fn finish(mut self) -> Map<String, Value> {
        let mut all = self.asked.take_definitions(true);
        for (name, schema) in self.answered.take_definitions(true) {
            let before = all.insert(name.clone(), schema.clone());
            assert!(before.is_none_or(|before| before == schema), "{name} is read and written in two ways");
        }
        if let Some(codes) = all.get_mut("ErrorCode").and_then(|schema| schema["oneOf"].as_array_mut()) {
            // Their order is that of the declaration, as in `ALL`.
            for (schema, code) in codes.iter_mut().zip(ErrorCode::ALL) {
                assert_eq!(schema["const"], code.as_str(), "the schema lists the codes in their order");
                schema["x-http-status"] = code.status().as_u16().into();
            }
        }
        for schema in all.values_mut() {
            let schema: &mut Schema = schema.try_into().expect("a schema");
            RecursiveTransform(bounded).transform(schema);
        }
        all
    }
}

/// Whole numbers are those that the types hold.
fn bounded(schema: &mut Schema) {
    let max = match schema.get("format").and_then(Value::as_str) {
        Some("uint" | "uint64") => u64::MAX,
        Some("uint32") => u64::from(u32::MAX),
        _ => return,
    };
    schema.remove("format");
    if schema.get("maximum").is_none() {
        schema.insert("maximum".to_owned(), max.into());
    }
}

/// In whose words an operation's errors are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// Ours.
    Ours,
    /// Ours with the message where others look for it; or those of Text Embeddings Inference.
    Rerankers,
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// What can go wrong with any operation that asks for a key.
pub const ANY: &[u16] = &[401, 403, 429, 500, 503];
/// With a body.
pub const BODY: &[u16] = &[400, 408, 413, 415, 422];
/// With work that waits for its turn, or for a disk.
pub const WORK: &[u16] = &[504];
/// With changes of the registry.
pub const CHANGE: &[u16] = &[507];

/// Errors with these statuses.
pub fn errors(schemas: &mut Schemas, words: Words, statuses: &[&[u16]]) -> Map<String, Value> {
    let mut statuses = statuses.concat();
    statuses.sort_unstable();
    statuses.into_iter().map(|status| (status.to_string(), error(schemas, words, status))).collect()
}

fn error(schemas: &mut Schemas, words: Words, status: u16) -> Value {
    let description = match status {
        400 => "The request is not what its schema says: no JSON, an unknown field, a wrong type.",
        401 => "The daemon asks for a key, and this is none.",
        403 => {
            "The key has been revoked; or, without keys, a web page of another site asks, or a host name that is not allowed."
        }
        404 => "There is nothing under this name.",
        408 => "The body did not arrive in time.",
        409 => "It is of another model.",
        413 => "The body is too large (http.body_bytes_max).",
        415 => "The body is not sent as JSON (`Content-Type: application/json`), or it is compressed.",
        422 => {
            "The request is well formed and cannot be done as it asks: a limit, an unknown id, a budget that holds nothing."
        }
        429 => "Too much is asked at once.",
        500 => "Our fault; the daemon's log says where.",
        502 => "The server that has this model cannot be reached.",
        503 => "The model is still loading, or the daemon is shutting down.",
        504 => "There was no answer before the deadline.",
        507 => "The registry cannot be written, for want of room say.",
        _ => unreachable!("no operation has {status}"),
    };
    let ours = schemas.answered::<ErrorAnswer>();
    let schema = match words {
        Words::Ours => ours,
        Words::Rerankers => either(
            [schemas.answered::<RerankError>(), schemas.answered::<TeiError>()],
            (status >= 500).then_some(ours),
        ),
        Words::OpenAi => either([schemas.answered::<OpenAiError>()], (status >= 500).then_some(ours)),
        Words::Anthropic => either([schemas.answered::<AnthropicError>()], (status >= 500).then_some(ours)),
    };
    let mut answer = json!({"description": description, "content": {"application/json": {"schema": schema}}});
    match status {
        429 | 503 | 504 | 507 => {
            answer["headers"] = json!({"retry-after": {
                "description": "Seconds after which trying again is expected to help.",
                // An upstream server that is silent says nothing of when it will speak.
                "required": status != 504,
                "schema": {"type": "integer", "minimum": 0},
            }})
        }
        401 => {
            answer["headers"] = json!({"www-authenticate": {"required": true, "schema": {"type": "string"}}})
        }
        _ => {}
    }
    answer
}

/// What fails before a handler, a panic say, is told in our words.
fn either<const N: usize>(schemas: [Value; N], or: Option<Value>) -> Value {
    let all: Vec<Value> = schemas.into_iter().chain(or).collect();
    match &all[..] {
        [one] => one.clone(),
        _ => json!({"anyOf": all}),
    }
}

/// A body or an answer in JSON.
pub fn in_json(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// A stream of events; `says` which.
pub fn in_events(says: &str) -> Value {
    json!({"text/event-stream": {"schema": {"type": "string", "description": says}}})
}

/// A parameter of a path or a query.
pub fn parameter(place: &str, name: &str, schema: Value, description: &str) -> Value {
    json!({"in": place, "name": name, "required": place == "path", "schema": schema, "description": description})
}
