//! A whole answer, with its citations put where its API has them. The rest of it stays as it is, to the byte.

use serde_json::Value;

use super::dialect::Dialect;
use super::json::{Edits, Items, Located};

/// What a text of an answer takes beside its bytes, where the bytes that are held are bounded: an answer may be many texts of one letter.
pub const TEXT_BYTES: usize = 64;

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

/// The texts of an answer, in order, as long as they take at most `bytes_max` together; and whether these are all.
pub fn texts(dialect: Dialect, answer: Located<'_>, bytes_max: usize) -> (Vec<Text<'_>>, bool) {
    fn list<'a>(object: Located<'a>, name: &str) -> Items<'a> {
        object.get(name).map(Located::items).unwrap_or_default()
    }
    let found: Box<dyn Iterator<Item = (Located<'_>, &str)>> = match dialect {
        Dialect::Chat => {
            let messages = list(answer, "choices").filter_map(|choice| choice.get("message"));
            Box::new(messages.map(|message| (message, "content")))
        }
        Dialect::Responses => {
            let blocks = list(answer, "output").flat_map(|item| list(item, "content"));
            let is_text = |block: &Located| block.text_of("type").as_deref() == Some("output_text");
            Box::new(blocks.filter(is_text).map(|block| (block, "text")))
        }
        Dialect::Messages => {
            let is_text = |block: &Located| block.text_of("type").as_deref() == Some("text");
            Box::new(list(answer, "content").filter(is_text).map(|block| (block, "text")))
        }
    };
    let (mut texts, mut bytes) = (Vec::new(), 0);
    for (object, field) in found {
        let Some(text) = object.text_of(field).filter(|text| !text.trim().is_empty()) else { continue };
        bytes += text.len() + TEXT_BYTES;
        if bytes > bytes_max {
            return (texts, false);
        }
        texts.push(Text { text, object });
    }
    (texts, true)
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
            let (texts, is_all) = texts(dialect, located, "It is.".len() + TEXT_BYTES);
            assert!(is_all, "{dialect:?}");
            let less = super::texts(dialect, located, "It is.".len() + TEXT_BYTES - 1);
            assert!(less.0.is_empty() && !less.1, "{dialect:?}");
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
