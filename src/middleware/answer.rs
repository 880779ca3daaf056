//! An answer that is one JSON body: its texts, and the fields in which its API expects citations. The rest of the body does not change by a
//! single byte.

use serde_json::Value;

use super::dialect::Dialect;
use super::json::{Edits, Items, Located};

/// The bytes that each text of an answer counts in addition to its own, where buffered bytes are limited: an answer may have many very short
/// texts.
pub const TEXT_BYTES: usize = 64;

/// A text of an answer.
#[derive(Debug, Clone)]
pub struct AnswerText<'a> {
    /// The text, decoded.
    pub text: String,
    /// The object that has the text, and gets its citations.
    object: Located<'a>,
}

impl<'a> AnswerText<'a> {
    /// Returns the text of an object with the field `text`, which is empty if the field is missing.
    pub fn of(object: Located<'a>) -> Self {
        Self { text: object.text_of("text").unwrap_or_default(), object }
    }
}

/// Returns the texts of an answer that are not blank, in order, up to `bytes_max` bytes together, and whether these are all texts. Each text
/// counts [`TEXT_BYTES`] in addition to its own bytes.
pub fn texts(dialect: Dialect, answer: Located<'_>, bytes_max: usize) -> (Vec<AnswerText<'_>>, bool) {
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
        texts.push(AnswerText { text, object });
    }
    (texts, true)
}

/// Adds citations to a text, after those that it already has.
pub fn cite(dialect: Dialect, text: &AnswerText, citations: &[Value], edits: &mut Edits) {
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
    fn citations_are_in_the_field_that_the_api_expects() {
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
