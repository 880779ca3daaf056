//! Parts of the OpenAPI document that operations share: schemas by their types, and error responses.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::error::{ErrorAnswer, ErrorCode};
use crate::http::error::{AnthropicError, OpenAiError, RerankError, TeiError};

/// The schemas that operations refer to, each written once.
pub struct Schemas {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self {
            requests: settings.clone().for_deserialize().into_generator(),
            responses: settings.for_serialize().into_generator(),
        }
    }
}

impl Schemas {
    /// The schema of a type that is read from requests.
    pub fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    /// The schema of a type that is written to responses.
    pub fn response<T: JsonSchema>(&mut self) -> Value {
        self.responses.subschema_for::<T>().to_value()
    }

    /// All schemas by their names.
    ///
    /// # Panics
    /// Panics if a type that is both read and written has two schemas: then one of them needs another name.
    pub fn finish(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        for (name, schema) in self.responses.take_definitions(true) {
            let before = all.insert(name.clone(), schema.clone());
            assert!(before.is_none_or(|before| before == schema), "{name} has two schemas");
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

/// Replaces the format of an integer by the largest value of its type.
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

/// The format of an operation's errors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    /// Thresher's own.
    Native,
    /// That of `rerank` and `score`, or that of Text Embeddings Inference.
    Rerank,
    /// That of OpenAI's APIs.
    OpenAi,
    /// That of Anthropic's API.
    Anthropic,
}

/// Statuses of every operation that needs a key.
pub const ANY: &[u16] = &[401, 403, 429, 500, 503];
/// Statuses of operations with a body.
pub const BODY: &[u16] = &[400, 408, 413, 415, 422];
/// Statuses of operations with a deadline.
pub const WORK: &[u16] = &[504];
/// Statuses of operations that change the registry.
pub const CHANGE: &[u16] = &[507];

/// The error responses with these statuses.
pub fn errors(schemas: &mut Schemas, format: ErrorFormat, statuses: &[&[u16]]) -> Map<String, Value> {
    let mut statuses = statuses.concat();
    statuses.sort_unstable();
    statuses.into_iter().map(|status| (status.to_string(), error(schemas, format, status))).collect()
}

fn error(schemas: &mut Schemas, format: ErrorFormat, status: u16) -> Value {
    let description = match status {
        400 => "The request is not what its schema says: not JSON, an unknown field, a wrong type.",
        401 => "The request has no key, or one that the daemon does not know.",
        403 => {
            "The key has been revoked; or, without keys, the request comes from a web page of another site or names a host that is not allowed."
        }
        404 => "Nothing has this name.",
        408 => "The body did not arrive in time.",
        409 => "The keys and values are of another model.",
        413 => "The body is too large (http.body_bytes_max, or middleware.body_bytes_max).",
        415 => "The body is not sent with a content type that the path takes, or it is compressed.",
        422 => {
            "The request has the right form and cannot be answered: it exceeds a limit, names an unknown id, or has an impossible budget."
        }
        429 => "The daemon is overloaded, or the key has used up its rate.",
        500 => "The daemon failed; its log says where.",
        502 => "The upstream that has this model cannot be reached.",
        503 => "The model is still loading, or the daemon is shutting down.",
        504 => "The deadline passed before the answer was ready.",
        507 => "The registry cannot be written, for example because its disk is full.",
        _ => unreachable!("no operation has {status}"),
    };
    let native = schemas.response::<ErrorAnswer>();
    let schema = match format {
        ErrorFormat::Native => native,
        ErrorFormat::Rerank => either(
            [schemas.response::<RerankError>(), schemas.response::<TeiError>()],
            (status >= 500).then_some(native),
        ),
        ErrorFormat::OpenAi => either([schemas.response::<OpenAiError>()], (status >= 500).then_some(native)),
        ErrorFormat::Anthropic => {
            either([schemas.response::<AnthropicError>()], (status >= 500).then_some(native))
        }
    };
    let mut answer = json!({"description": description, "content": {"application/json": {"schema": schema}}});
    match status {
        429 | 503 | 504 | 507 => {
            answer["headers"] = json!({"retry-after": {
                "description": "Seconds after which trying again is expected to help.",
                // Nothing is known of an upstream that does not answer.
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

/// Any of these schemas. Errors from outside a handler, such as those after a panic, are in Thresher's own format.
fn either<const N: usize>(schemas: [Value; N], or: Option<Value>) -> Value {
    let all: Vec<Value> = schemas.into_iter().chain(or).collect();
    match &all[..] {
        [one] => one.clone(),
        _ => json!({"anyOf": all}),
    }
}

/// The content of a JSON body.
pub fn in_json(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// The content of a stream of events.
pub fn in_events(description: &str) -> Value {
    json!({"text/event-stream": {"schema": {"type": "string", "description": description}}})
}

/// A parameter in `location`: `path`, `query` or `header`.
pub fn parameter(location: &str, name: &str, schema: Value, description: &str) -> Value {
    json!({"in": location, "name": name, "required": location == "path", "schema": schema, "description": description})
}
