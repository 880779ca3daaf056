//! What a body must not have if it is sent with a key that all tenants share: whatever the provider stores or has stored under that key would
//! be open to every tenant who learns its id.

use std::collections::HashSet;

use super::json::{Edits, Located};

/// Fields of a request that name something stored, or have the answer stored.
const STORED: [&str; 4] = ["background", "container", "conversation", "previous_response_id"];

/// Fields that name something stored, at any depth.
const STORED_ANYWHERE: [&str; 7] =
    ["container", "container_id", "file_id", "file_ids", "skill_id", "vector_store_id", "vector_store_ids"];

/// Values of `background` that are the look of an image: only a request to compute in the background is stored.
const IMAGE_BACKGROUNDS: [&str; 3] = ["\"auto\"", "\"opaque\"", "\"transparent\""];

/// Fields of an item of a conversation that say nothing by themselves: an item that has an id, and nothing in other fields, names one that is
/// stored.
const BARE: [&str; 4] = ["id", "role", "status", "type"];

/// Fields of an item of reasoning that have its content. A summary is not enough for a provider to continue from.
const REASONING: [&str; 2] = ["content", "encrypted_content"];

/// The field of an answer to a server of tools that asked for an approval: the id of the item in which it asked.
const APPROVAL: &str = "approval_request_id";

/// Fields whose values are the caller's own data, in which a name means nothing: arguments and schemas of tools, and labels.
const DATA: [&str; 8] =
    ["arguments", "input_schema", "json_schema", "metadata", "output_schema", "parameters", "schema", "text"];

/// The most values inside each other that are looked at. Deeper ones count as stored.
const DEPTH_MAX: usize = 20;

/// Returns the path of the first field of a body that reads or writes what the provider stores; `None` if there is none.
pub fn stored(body: Located) -> Option<String> {
    let named = body.fields().find(|(name, value)| {
        let is_stored_prompt =
            || is_any(name, &["prompt"]) && value.fields().any(|(name, _)| is_any(&name, &["id"]));
        let is_look = || is_any(name, &["background"]) && IMAGE_BACKGROUNDS.contains(&value.json());
        is_any(name, &STORED) && value.json() != "false" && !is_empty(*value) && !is_look()
            || is_stored_prompt()
    });
    named.map(|(name, _)| name.into_owned()).or_else(|| find(body, 0, &mut stored_in))
}

/// Returns the rest of the path, if a field of a body names something stored. `depth` is 0 for the fields of the body itself.
fn stored_in(depth: usize, name: &str, value: Located) -> Option<String> {
    let is_text = value.json().starts_with(['"', '[']) && !is_empty(value);
    let is_reference = is_any(name, &["type"]) && value.text().as_deref() == Some("item_reference")
        || is_any(name, &["audio"]) && value.fields().any(|(name, _)| is_any(&name, &["id"]));
    if is_text && is_any(name, &STORED_ANYWHERE) || is_reference {
        return Some(String::new());
    }
    if depth > 0 || !is_any(name, &["input", "messages"]) {
        return None;
    }
    let bare = value.items().position(is_bare).map(|at| format!("[{at}].id"));
    bare.or_else(|| unknown_approval(value).map(|at| format!("[{at}].{APPROVAL}")))
}

/// Returns the path and the name of the first model in a body that `has` does not have: its own, that of a tool, or one of a list of models to
/// try.
pub fn other_model(body: Located, has: &dyn Fn(&str) -> bool) -> Option<(String, String)> {
    let foreign = |value: Located| value.text().filter(|model| !has(model));
    let mut model = None;
    let mut is_other = |depth: usize, name: &str, value: Located| {
        if is_any(name, &["model"]) {
            model = foreign(value);
        } else if depth == 0 && is_any(name, &["models", "fallbacks"]) {
            model = value.items().find_map(foreign);
        }
        model.is_some().then(String::new)
    };
    let path = find(body, 0, &mut is_other)?;
    Some((path, model.unwrap_or_default()))
}

/// Returns the path of the first field at any depth for which `found` returns the rest of the path. The caller's own data is not looked at.
fn find(
    value: Located,
    depth: usize,
    found: &mut dyn FnMut(usize, &str, Located) -> Option<String>,
) -> Option<String> {
    if depth == DEPTH_MAX {
        return Some("too many values inside each other".to_owned());
    }
    // Of the body itself, `input` is the conversation.
    let is_call = depth > 0 && kind(value).is_some_and(|kind| kind.ends_with("tool_use"));
    for (name, inside) in value.fields() {
        if let Some(rest) = found(depth, &name, inside) {
            return Some(format!("{name}{rest}"));
        }
        if is_any(&name, &DATA) || is_call && name == "input" {
            continue;
        }
        if let Some(rest) = find(inside, depth + 1, found) {
            let dot = if rest.starts_with('[') { "" } else { "." };
            return Some(format!("{name}{dot}{rest}"));
        }
    }
    for (at, inside) in value.items().enumerate() {
        if let Some(rest) = find(inside, depth + 1, found) {
            let dot = if rest.starts_with('[') { "" } else { "." };
            return Some(format!("[{at}]{dot}{rest}"));
        }
    }
    None
}

/// Returns whether an item of a conversation has an id and no content of its own.
fn is_bare(item: Located) -> bool {
    let has_id = item.fields().any(|(name, _)| is_any(&name, &["id"]));
    let is_reasoning = kind(item).is_some_and(|kind| kind == "reasoning");
    let says_nothing = |name: &str, value: Located| {
        is_empty(value) || if is_reasoning { !is_any(name, &REASONING) } else { is_any(name, &BARE) }
    };
    has_id && item.fields().all(|(name, value)| says_nothing(&name, value))
}

/// Returns the place of the first item that approves what no item of the conversation asks for.
fn unknown_approval(items: Located) -> Option<usize> {
    let asked: HashSet<String> = items
        .items()
        .filter(|item| kind(*item).is_some_and(|kind| kind == "mcp_approval_request"))
        .filter_map(|item| item.text_of("id"))
        .collect();
    let is_unknown = |item: Located| {
        item.fields().any(|(name, id)| {
            is_any(&name, &[APPROVAL]) && !is_empty(id) && id.text().is_none_or(|id| !asked.contains(&id))
        })
    };
    items.items().position(is_unknown)
}

/// The field `type` of an object, if it has exactly one.
fn kind(value: Located) -> Option<String> {
    let mut kinds = value.fields().filter(|(name, _)| is_any(name, &["type"]));
    let (name, kind) = kinds.next()?;
    kind.text().filter(|_| name == "type" && kinds.next().is_none())
}

fn is_empty(value: Located) -> bool {
    let inside = value.json().get(1..value.json().len() - 1);
    value.json() == "null"
        || value.json().starts_with(['"', '[', '{']) && inside.is_some_and(|inside| inside.trim().is_empty())
}

/// Returns whether a part of a form names something that the provider stores.
pub fn names_stored(name: &str) -> bool {
    is_any(base(name), &STORED_ANYWHERE)
}

/// Returns whether a server may read a part of a form as the name of a model.
pub fn names_model(name: &str) -> bool {
    is_any(base(name), &["model"])
}

/// The name of a part of a form without what makes it an entry of a list or an object: `a` of `a[]`, `a[b]` and `a.b`.
fn base(name: &str) -> &str {
    name.trim_start_matches(['[', ' ']).split(['[', ']', '.']).next().unwrap_or_default()
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

/// Whether some server may read a field as one with one of these names: in another case, as Go does, also with the two letters that become
/// an ASCII letter in lower case; without underscores, as the JSON of protocol buffers; or only up to a NUL, as C does.
fn is_any(name: &str, names: &[&str]) -> bool {
    names.iter().any(|one| letters(one).eq(letters(name)))
}

fn letters(name: &str) -> impl Iterator<Item = char> {
    let of_name = name.chars().take_while(|&letter| letter != '\0').filter(|&letter| letter != '_');
    of_name.map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    })
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
        check(
            r#"{"input":[{"type":"message","id":"m","role":"assistant","content":[]}]}"#,
            Some("input[0].id"),
        );
        check(r#"{"input":[{"type":"file_search_call","id":"f","queries":[ ]}]}"#, Some("input[0].id"));
        check(
            r#"{"input":[{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"x"}]}]}"#,
            Some("input[0].id"),
        );
        check(r#"{"input":[{"type":"reasoning","summary":[]}]}"#, None);
        check(r#"{"input":[{"type":"reasoning","id":"r","summary":[],"encrypted_content":"x"}]}"#, None);
        check(
            r#"{"input":[{"type":"mcp_approval_response","approval_request_id":"a","approve":true}]}"#,
            Some("input[0].approval_request_id"),
        );
        let asked = r#"{"input":[{"type":"mcp_approval_request","id":"a","name":"n"},{"type":"mcp_approval_response","approval_request_id":"a"}]}"#;
        check(asked, None);
        // What Go, protocol buffers and C read as one of the names.
        check("{\"bac\u{212a}ground\":true}", Some("bac\u{212a}ground"));
        check(r#"{"previousResponseId":"r"}"#, Some("previousResponseId"));
        check(r#"{"conversation\u0000x":"r"}"#, Some("conversation\0x"));
        check(r#"{"background":"transparent"}"#, None);
        check(r#"{"background":"true"}"#, Some("background"));
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
    fn models_inside_a_body_are_those_of_the_upstream() {
        let check = |body: &str, expect: Option<&str>| {
            let found = other_model(Located::parse(body).expect("JSON"), &|model| model.starts_with("gpt-"));
            assert_eq!(found.map(|(place, _)| place).as_deref(), expect, "{body}");
        };
        check(r#"{"model":"gpt-5","tools":[{"type":"image_generation","model":"gpt-image"}]}"#, None);
        check(r#"{"model":"gpt-5","tools":[{"x":[[{"Model":"other"}]]}]}"#, Some("tools[0].x[0][0].Model"));
        check(r#"{"model":"gpt-5","models":["gpt-5","other"]}"#, Some("models"));
        check(r#"{"model":"gpt-5","tools":[{"parameters":{"model":"other"}}],"messages":[]}"#, None);
    }

    #[test]
    fn the_names_of_parts_are_read_as_servers_read_them() {
        for name in ["model", "Model", "model[]", "model[x]", "model.x", "[model]", "mo_del"] {
            assert!(names_model(name), "{name}");
        }
        assert!(names_stored("file_ids[]") && !names_stored("file") && !names_model("models"));
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
