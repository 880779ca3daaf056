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
    /// Schemas of bodies that no type describes.
    named: Map<String, Value>,
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
            named: Map::new(),
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

    /// A schema that no type describes, under a name of its own.
    pub fn named(&mut self, name: &str, schema: Value) -> Value {
        self.named.insert(name.to_owned(), schema);
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    /// All schemas by their names.
    ///
    /// # Panics
    /// Panics if a type that is both read and written has two schemas: then one of them needs another name.
    pub fn finish(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        let mut responses = self.responses.take_definitions(true);
        for schema in responses.values_mut() {
            let schema: &mut Schema = schema.try_into().expect("a schema");
            RecursiveTransform(left_out_not_null).transform(schema);
        }
        for (name, schema) in responses.into_iter().chain(self.named) {
            let before = all.insert(name.clone(), schema.clone());
            assert!(before.is_none_or(|before| before == schema), "{name} has two schemas");
        }
        for schema in all.values_mut() {
            let schema: &mut Schema = schema.try_into().expect("a schema");
            RecursiveTransform(bounded).transform(schema);
            RecursiveTransform(described_defaults).transform(schema);
            RecursiveTransform(enumerated).transform(schema);
        }
        if let Some(codes) = all.get_mut("ErrorCode") {
            let statuses: Map<String, Value> = ErrorCode::ALL
                .iter()
                .map(|code| (code.as_str().to_owned(), code.status().as_u16().into()))
                .collect();
            codes["x-http-statuses"] = statuses.into();
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

/// Writes a choice of words as a list of them, with their descriptions beside it. Programs that generate types from the document make one type
/// of a list, but of a choice as many as there are words.
fn enumerated(schema: &mut Schema) {
    let Some(forms) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let (mut words, mut descriptions) = (Vec::new(), Vec::new());
    for form in forms {
        let listed = form.get("enum").and_then(Value::as_array).cloned();
        let Some(found) = listed.or_else(|| form.get("const").map(|word| vec![word.clone()])) else { return };
        let description = form.get("description").and_then(Value::as_str).unwrap_or_default();
        descriptions.extend(std::iter::repeat_n(Value::from(description), found.len()));
        words.extend(found);
    }
    schema.remove("oneOf");
    schema.insert("type".to_owned(), "string".into());
    schema.insert("enum".to_owned(), words.into());
    schema.insert("x-enum-descriptions".to_owned(), descriptions.into());
}

/// Takes null from the fields of a response that are not always there: they are left out instead.
fn left_out_not_null(schema: &mut Schema) {
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    let optional = fields.iter_mut().filter(|(name, _)| !required.iter().any(|required| required == *name));
    for field in optional.filter_map(|(_, field)| field.as_object_mut()) {
        if let Some(types) = field.get_mut("type").and_then(Value::as_array_mut) {
            types.retain(|one| one != "null");
            if let [one] = &types[..] {
                let one = one.clone();
                field.insert("type".to_owned(), one);
            }
        }
        let Some(Value::Array(mut forms)) = field.remove("anyOf") else { continue };
        forms.retain(|form| form.get("type").is_none_or(|one| one != "null"));
        match &mut forms[..] {
            [Value::Object(one)] => field.append(one),
            _ => drop(field.insert("anyOf".to_owned(), forms.into())),
        }
    }
}

/// Moves the defaults of fields to their descriptions. Programs that generate types from the document take a field with a default for one that
/// is always there.
fn described_defaults(schema: &mut Schema) {
    let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for field in fields.values_mut().filter_map(Value::as_object_mut) {
        let description = field.get("description").and_then(Value::as_str).unwrap_or_default();
        let described = match field.get("default") {
            None => continue,
            Some(Value::Null) => None,
            Some(_) if description.to_lowercase().contains("default:") => None,
            Some(Value::String(word)) => Some(format!("{description} Default: `{word}`.")),
            Some(value) => Some(format!("{description} Default: {value}.")),
        };
        if let Some(described) = described {
            field.insert("description".to_owned(), described.trim_start().into());
        }
        field.remove("default");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    /// That of Thresher's own API.
    Native,
    Rerank,
    /// That of Text Embeddings Inference.
    Tei,
    OpenAi,
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
        413 => "The body is too large: 8 MiB, or 32 MiB for requests to upstreams.",
        416 => "The file has none of the bytes that `Range` names.",
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
        ErrorFormat::Rerank => either(schemas.response::<RerankError>(), (status >= 500).then_some(native)),
        ErrorFormat::Tei => either(schemas.response::<TeiError>(), (status >= 500).then_some(native)),
        ErrorFormat::OpenAi => either(schemas.response::<OpenAiError>(), (status >= 500).then_some(native)),
        ErrorFormat::Anthropic => {
            either(schemas.response::<AnthropicError>(), (status >= 500).then_some(native))
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
fn either(one: Value, other: Option<Value>) -> Value {
    match other {
        None => one,
        Some(other) => json!({"anyOf": [one, other]}),
    }
}

pub fn in_json(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// A parameter in `location`: `path`, `query` or `header`.
pub fn parameter(location: &str, name: &str, schema: Value, description: &str) -> Value {
    json!({"in": location, "name": name, "required": location == "path", "schema": schema, "description": description})
}
