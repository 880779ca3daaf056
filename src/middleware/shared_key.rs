//! What a body must not have if it is sent with a key that all tenants share: whatever the provider stores or has stored under that key would
//! be open to every tenant who learns its id.

use super::json::{Edits, Located};

/// Fields of a request that name something stored, or have the answer stored.
const STORED: [&str; 4] = ["background", "container", "conversation", "previous_response_id"];

/// Fields that name something stored, at any depth.
const STORED_ANYWHERE: [&str; 7] =
    ["container", "container_id", "file_id", "file_ids", "skill_id", "vector_store_id", "vector_store_ids"];

/// Fields of an item of a conversation that say nothing by themselves: an item that has an id and no other field names one that is stored.
const BARE: [&str; 3] = ["id", "status", "type"];

/// Fields whose values are the caller's own data, in which a name means nothing: arguments and schemas of tools, and labels.
const DATA: [&str; 8] =
    ["arguments", "input_schema", "json_schema", "metadata", "output_schema", "parameters", "schema", "text"];

/// The most values inside each other that are looked at. Deeper ones count as stored.
const DEPTH_MAX: usize = 20;

/// Returns the path of the first field of a body that reads or writes what the provider stores; `None` if there is none.
pub fn stored(body: Located) -> Option<String> {
    let is_set = |value: Located| !matches!(value.json(), "null" | "false" | "[]" | "\"\"");
    let named = body.fields().find(|(name, value)| {
        let is_stored_prompt = || is_any(name, &["prompt"]) && value.get("id").is_some();
        is_any(name, &STORED) && is_set(*value) || is_stored_prompt()
    });
    named.map(|(name, _)| name.into_owned()).or_else(|| stored_inside(body, 0))
}

fn stored_inside(value: Located, depth: usize) -> Option<String> {
    if depth == DEPTH_MAX {
        return Some("too many values inside each other".to_owned());
    }
    let below = |place: String, value: Located| {
        stored_inside(value, depth + 1).map(|rest| {
            let dot = if rest.starts_with('[') { "" } else { "." };
            format!("{place}{dot}{rest}")
        })
    };
    // Of the body itself, `input` is the conversation.
    let is_call = depth > 0 && value.text_of("type").is_some_and(|kind| kind.ends_with("tool_use"));
    for (name, inside) in value.fields() {
        let is_text = inside.json().starts_with(['"', '[']) && !matches!(inside.json(), "[]" | "\"\"");
        let is_reference = is_any(&name, &["type"]) && inside.text().as_deref() == Some("item_reference")
            || is_any(&name, &["audio"]) && inside.fields().any(|(name, _)| is_any(&name, &["id"]));
        if is_text && is_any(&name, &STORED_ANYWHERE) || is_reference {
            return Some(name.into_owned());
        }
        if is_any(&name, &DATA) || is_call && name == "input" {
            continue;
        }
        let items = (depth == 0 && is_any(&name, &["input", "messages"])).then(|| inside.items());
        if let Some(at) = items.and_then(|mut items| items.position(is_bare)) {
            return Some(format!("{name}[{at}].id"));
        }
        if let Some(found) = below(name.into_owned(), inside) {
            return Some(found);
        }
    }
    value.items().enumerate().find_map(|(at, inside)| below(format!("[{at}]"), inside))
}

/// Returns whether an item of a conversation has an id and no content of its own.
fn is_bare(item: Located) -> bool {
    let has_id = item.fields().any(|(name, _)| is_any(&name, &["id"]));
    has_id && item.fields().all(|(name, _)| is_any(&name, &BARE))
}

/// Returns whether a body has several fields `model`, in whatever case: servers would choose different ones.
pub fn names_several_models(body: Located) -> bool {
    body.fields().filter(|(name, _)| is_any(name, &["model"])).count() > 1
}

/// Has the provider not store the answer. Responses are stored unless the request says otherwise; for other APIs, nothing is added.
pub fn store_nothing(body: Located, is_stored_by_default: bool, edits: &mut Edits) {
    let mut is_named = false;
    for (name, value) in body.fields() {
        if is_any(&name, &["store"]) {
            is_named |= name == "store";
            edits.replace(value.range(), "false");
        }
    }
    if is_stored_by_default && !is_named {
        edits.set_field(body, "store", "false");
    }
}

/// Whether a field has one of these names. Some servers read names in any case.
fn is_any(name: &str, names: &[&str]) -> bool {
    names.iter().any(|one| name.eq_ignore_ascii_case(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_reads_or_writes_what_is_stored_is_known() {
        let check = |body: &str, expect: Option<&str>| {
            let found = stored(Located::parse(body).expect("JSON"));
            assert_eq!(found.as_deref(), expect, "{body}");
        };
        check(r#"{"model":"m","input":"x","previous_response_id":null,"background":false}"#, None);
        check(r#"{"previous_response_id":"r"}"#, Some("previous_response_id"));
        check(r#"{"Previous_Response_ID":"r"}"#, Some("Previous_Response_ID"));
        check(r#"{"previous_response_id":"r","previous_response_id":null}"#, Some("previous_response_id"));
        check(r#"{"conversation":{"id":"c"}}"#, Some("conversation"));
        check(r#"{"background":true}"#, Some("background"));
        check(r#"{"container":"c"}"#, Some("container"));
        check(r#"{"prompt":{"id":"p"}}"#, Some("prompt"));
        check(r#"{"prompt":"Once upon a time"}"#, None);
        check(
            r#"{"tools":[{"type":"f"},{"type":"file_search","vector_store_ids":["v"]}]}"#,
            Some("tools[1].vector_store_ids"),
        );
        check(
            r#"{"messages":[{"content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]}"#,
            Some("messages[0].content[0].source.file_id"),
        );
        check(
            r#"{"messages":[{"content":[{"type":"file","file":{"file_id":"f"}}]}]}"#,
            Some("messages[0].content[0].file.file_id"),
        );
        check(
            r#"{"tools":[{"type":"code_interpreter","container":{"type":"auto","file_ids":["f"]}}]}"#,
            Some("tools[0].container.file_ids"),
        );
        check(r#"{"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]}"#, None);
        check(r#"{"input":[{"type":"item_reference","id":"i"}]}"#, Some("input[0].id"));
        check(r#"{"input":[{"type":"item\u005freference","id":"i"}]}"#, Some("input[0].id"));
        check(r#"{"input":[{"id":"msg_1"}]}"#, Some("input[0].id"));
        check(
            r#"{"type":"x_tool_use","input":[{"type":"image_generation_call","id":"ig_1"}]}"#,
            Some("input[0].id"),
        );
        check(r#"{"input":[{"type":"message","id":"m","content":"x"}]}"#, None);
        check(r#"{"messages":[{"role":"assistant","audio":{"id":"a"}}]}"#, Some("messages[0].audio"));
        // Names in arguments and schemas of tools are those of the caller.
        check(r#"{"messages":[{"content":[{"type":"tool_use","input":{"file_id":"f"}}]}]}"#, None);
        check(
            r#"{"tools":[{"input_schema":{"properties":{"file_id":{"type":"string"}},"file_id":"x"}}]}"#,
            None,
        );
        check(r#"{"metadata":{"file_id":"f"}}"#, None);
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(stored(Located::parse(&deep).expect("JSON")).is_some());
    }

    #[test]
    fn the_answer_is_not_stored() {
        let check = |body: &str, by_default: bool, expect: &str| {
            let mut edits = Edits::default();
            store_nothing(Located::parse(body).expect("JSON"), by_default, &mut edits);
            assert_eq!(edits.apply(body), expect, "{body}");
        };
        check(r#"{"store":true}"#, false, r#"{"store":false}"#);
        check(r#"{"store":true,"Store":true}"#, true, r#"{"store":false,"Store":false}"#);
        check(r#"{"a":1}"#, true, r#"{"store":false,"a":1}"#);
        check(r#"{"a":1}"#, false, r#"{"a":1}"#);
    }
}
