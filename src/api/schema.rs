//! Conditions on fields in JSON Schema, written so that programs that generate clients from the OpenAPI document keep one type for the object:
//! they read `if` as a remark, but make a type of each branch of `oneOf`.

use schemars::Schema;
use serde_json::{Map, Value, json};

/// Requires that exactly one of `fields` is given; null counts as not given. `then` of the result is the condition of the first field.
///
/// # Panics
/// Panics if there are fewer than two fields.
pub(super) fn require_one(schema: &mut Schema, fields: &[&str]) {
    assert!(fields.len() > 1, "one of several fields");
    schema.ensure_object().extend(choice(fields, 0));
}

/// `if` the field at `index` is given, `then` no other is, `else` the condition of the next one.
fn choice(fields: &[&str], index: usize) -> Map<String, Value> {
    let only = given(fields, index);
    if index + 1 == fields.len() {
        return only;
    }
    let field = fields[index];
    let condition = json!({"required": [field], "properties": {field: {"not": {"type": "null"}}}});
    let branches = [("if", condition), ("then", only.into()), ("else", choice(fields, index + 1).into())];
    branches.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The field at `index` is given, and no other.
fn given(fields: &[&str], index: usize) -> Map<String, Value> {
    let of = |(at, field): (usize, &&str)| {
        let schema = if at == index { json!({"not": {"type": "null"}}) } else { json!({"type": "null"}) };
        ((*field).to_owned(), schema)
    };
    let properties: Map<String, Value> = fields.iter().enumerate().map(of).collect();
    let required = json!([fields[index]]);
    [("required", required), ("properties", properties.into())]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}
