//! Schemas of tools, from the types that read and write their bodies.

use std::sync::Arc;

use rmcp::model::JsonObject;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};

/// What names something that only a daemon knows.
const REMEMBERED: [&str; 2] = ["chunk_ids", "compress_id"];

/// The definition of error codes, which tools describe as strings: a model that reads all of a tool's schema has no use for the list.
const ERROR_CODE: &str = "ErrorCode";

/// How a request of this type is read.
pub fn asked<T: JsonSchema>(remembers: bool) -> Arc<JsonObject> {
    let mut schema = object(SchemaSettings::draft2020_12().for_deserialize(), |settings| {
        settings.into_generator().into_root_schema_for::<T>()
    });
    // Providers of models refuse tools whose outermost schema is a choice; a request that makes the wrong one is told so.
    schema.remove("oneOf");
    if let Some(properties) = schema.get_mut("properties").and_then(|all| all.as_object_mut())
        && !remembers
    {
        properties.retain(|name, _| !REMEMBERED.contains(&name.as_str()));
    }
    schema.into()
}

/// How an answer of this type is written.
pub fn answered<T: JsonSchema>() -> Arc<JsonObject> {
    object(SchemaSettings::draft2020_12().for_serialize(), |settings| {
        settings.into_generator().into_root_schema_for::<T>()
    })
    .into()
}

fn object(settings: SchemaSettings, schema: impl FnOnce(SchemaSettings) -> Schema) -> JsonObject {
    let mut schema = schema(settings.with_transform(RecursiveTransform(plain)));
    if let Some(definitions) = schema.get_mut("$defs").and_then(|all| all.as_object_mut()) {
        definitions.remove(ERROR_CODE);
    }
    schema.as_object().expect("bodies are objects").clone()
}

/// Formats that only schemars knows make strict readers refuse a schema.
fn plain(schema: &mut Schema) {
    schema.remove("format");
    let refers = schema.get("$ref").and_then(|reference| reference.as_str()?.strip_prefix("#/$defs/"));
    if refers == Some(ERROR_CODE) {
        schema.remove("$ref");
        schema.insert("type".to_owned(), "string".into());
    }
}
