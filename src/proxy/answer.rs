//! A whole answer, with its citations put where its API has them. The rest of it stays as it is, to the byte.

use serde_json::Value;

use super::dialect::Dialect;
use super::json::{Edits, Located};

/// A text of an answer, and where its citations belong.
#[derive(Debug, Clone)]
pub struct Text<'a> {
    /// What it says.
    pub text: String,
    /// The object that has the field.
    object: Located<'a>,
}

impl<'a> Text<'a> {
    /// The text whose citations belong into this object.
    pub fn of(object: Located<'a>) -> Self {
        Self { text: object.text_of("text").unwrap_or_default(), object }
    }
}

/// The texts of an answer, in order.
pub fn texts(dialect: Dialect, answer: Located<'_>) -> Vec<Text<'_>> {
    fn list<'a>(object: Located<'a>, name: &str) -> Vec<Located<'a>> {
        object.get(name).map(Located::items).unwrap_or_default()
    }
    let found: Vec<(Located, &str)> = match dialect {
        Dialect::Chat => {
            let messages = list(answer, "choices").into_iter().filter_map(|choice| choice.get("message"));
            messages.map(|message| (message, "content")).collect()
        }
        Dialect::Responses => {
            let blocks = list(answer, "output").into_iter().flat_map(|item| list(item, "content"));
            let is_text = |block: &Located| block.text_of("type").as_deref() == Some("output_text");
            blocks.filter(is_text).map(|block| (block, "text")).collect()
        }
        Dialect::Messages => {
            let is_text = |block: &Located| block.text_of("type").as_deref() == Some("text");
            list(answer, "content").into_iter().filter(is_text).map(|block| (block, "text")).collect()
        }
    };
    let text = |(object, field): (_, &str)| {
        let object: Located = object;
        Some(Text { text: object.text_of(field).filter(|text| !text.trim().is_empty())?, object })
    };
    found.into_iter().filter_map(text).collect()
}

/// Adds citations behind those that a text has already.
pub fn cite(dialect: Dialect, text: &Text, citations: &[Value], edits: &mut Edits) {
    let field = match dialect {
        Dialect::Messages => "citations",
        Dialect::Chat | Dialect::Responses => "annotations",
    };
    if !citations.is_empty() {
        edits.append(text.object, field, citations);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn citations_stand_where_the_api_has_them() {
        let check = |dialect: Dialect, answer: &str, expect: &str| {
            let located = Located::parse(answer).expect("JSON");
            let mut edits = Edits::default();
            let texts = texts(dialect, located);
            assert_eq!(texts.iter().map(|text| &*text.text).collect::<Vec<_>>(), ["It is."], "{dialect:?}");
            cite(dialect, &texts[0], &[json!({"c": 1})], &mut edits);
            assert_eq!(edits.apply(answer), expect, "{dialect:?}");
        };
        check(
            Dialect::Chat,
            r#"{"n":1e2, "choices":[{"message":{"content":"It is."}},{"message":{"content":null}}]}"#,
            r#"{"n":1e2, "choices":[{"message":{"annotations":[{"c":1}],"content":"It is."}},{"message":{"content":null}}]}"#,
        );
        check(
            Dialect::Responses,
            r#"{"output":[{"type":"reasoning"},{"type":"message","content":[{"type":"output_text","text":"It is.","annotations":[{"b":0}]}]}]}"#,
            r#"{"output":[{"type":"reasoning"},{"type":"message","content":[{"type":"output_text","text":"It is.","annotations":[{"b":0},{"c":1}]}]}]}"#,
        );
        check(
            Dialect::Messages,
            r#"{"content":[{"type":"text","text":" "},{"type":"tool_use"},{"type":"text","text":"It is.","citations":null}]}"#,
            r#"{"content":[{"type":"text","text":" "},{"type":"tool_use"},{"type":"text","text":"It is.","citations":[{"c":1}]}]}"#,
        );
    }
}
