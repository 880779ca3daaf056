//! An answer that is one JSON body: its texts, and the fields in which its API expects citations. The rest of the body does not change by a
//! single byte.

use serde_json::Value;

use super::dialect::Dialect;
use super::json::{Edits, Items, Located};
use crate::api::anthropic::{self, CitedSpan};

/// The bytes that each text of an answer counts in addition to its own, where buffered bytes are limited: an answer may have many very short
/// texts.
pub const TEXT_BYTES: usize = 64;

#[derive(Debug, Clone)]
pub struct AnswerText<'a> {
    pub text: String,
    /// The object that has the text, and gets its citations.
    object: Located<'a>,
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
            // A block that the upstream has cited stays whole.
            let is_text = |block: &Located| {
                block.text_of("type").as_deref() == Some("text") && list(*block, "citations").next().is_none()
            };
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

/// Adds citations to a text: annotations after those that it already has. A text block of Messages becomes several blocks, of which the first
/// keeps the other fields; `spans`, put together, are its text.
pub fn cite(dialect: Dialect, text: &AnswerText, spans: &[CitedSpan], edits: &mut Edits) {
    match (dialect, spans) {
        (Dialect::Chat | Dialect::Responses, spans) => {
            let annotations: Vec<Value> = spans.iter().flat_map(|span| span.citations.clone()).collect();
            annotate(text.object, &annotations, edits);
        }
        (Dialect::Messages, [first, rest @ ..]) if spans.iter().any(|span| !span.citations.is_empty()) => {
            if !rest.is_empty() {
                edits.set_field(text.object, "text", &Value::from(first.bytes.slice(&text.text)).to_string());
            }
            if !first.citations.is_empty() {
                edits.append(text.object, "citations", &first.citations);
            }
            let block = |span: &CitedSpan| {
                format!(",{}", anthropic::block(span.bytes.slice(&text.text), span.citations.clone()))
            };
            let end = text.object.range().end;
            edits.replace(end..end, rest.iter().map(block).collect::<String>());
        }
        (Dialect::Messages, _) => {}
    }
}

/// Adds annotations to an object with a text, after those that it already has.
pub fn annotate(object: Located, annotations: &[Value], edits: &mut Edits) {
    if !annotations.is_empty() {
        edits.append(object, "annotations", annotations);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thresher_core::domain::ByteRange;

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
            let whole = CitedSpan { bytes: ByteRange::new(0, 6), citations: vec![json!({"c": 1})] };
            cite(dialect, &texts[0], &[whole], &mut edits);
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

    #[test]
    fn a_text_block_becomes_one_block_for_each_cited_sentence() {
        let text = "It is \"so\".\nNo.  Yes.";
        let ranges = [(0, 12), (12, 17), (17, 21)];
        let cited = |numbers: [&[u64]; 3]| {
            let span = |((start, end), numbers): ((usize, usize), &[u64])| CitedSpan {
                bytes: ByteRange::new(start, end),
                citations: numbers.iter().map(|number| json!({"c": number})).collect(),
            };
            ranges.into_iter().zip(numbers).map(span).collect::<Vec<_>>()
        };
        let check = |name: &str, block: &str, numbers: [&[u64]; 3], expect: &str| {
            let answer = format!(r#"{{"content":[{{"type":"tool_use"}}, {block} ]}}"#);
            let located = Located::parse(&answer).expect("JSON");
            let (mut edits, (texts, _)) = (Edits::default(), texts(Dialect::Messages, located, 1_000));
            texts.iter().for_each(|text| cite(Dialect::Messages, text, &cited(numbers), &mut edits));
            let expect = format!(r#"{{"content":[{{"type":"tool_use"}}, {expect} ]}}"#);
            assert_eq!(edits.apply(&answer), expect, "{name}");
            let blocks: Value = serde_json::from_str(&expect).expect("JSON");
            let texts = blocks["content"]
                .as_array()
                .expect("blocks")
                .iter()
                .filter_map(|block| block["text"].as_str());
            assert_eq!(texts.collect::<String>(), text, "{name}");
        };
        let block = r#"{"cache_control":{"type":"ephemeral"},"type":"text","text":"It is \u0022so\u0022.\nNo.  Yes.","x":1e2}"#;
        check(
            "other fields",
            block,
            [&[1, 2], &[], &[3]],
            r#"{"citations":[{"c":1},{"c":2}],"cache_control":{"type":"ephemeral"},"type":"text","text":"It is \"so\".\n","x":1e2},{"type":"text","text":"No.  ","citations":null},{"type":"text","text":"Yes.","citations":[{"c":3}]}"#,
        );
        check("no citations", block, [&[], &[], &[]], block);
        let theirs = block.replace("\"x\"", "\"citations\":[{\"t\":0}],\"x\"");
        check("the upstream's citations", &theirs, [&[1], &[2], &[3]], &theirs);
        let empty = r#"{"type":"text","text":"It is \"so\".\nNo.  Yes.","citations":[]}"#;
        check(
            "an empty list",
            empty,
            [&[], &[], &[1]],
            r#"{"type":"text","text":"It is \"so\".\n","citations":[]},{"type":"text","text":"No.  ","citations":null},{"type":"text","text":"Yes.","citations":[{"c":1}]}"#,
        );
    }
}
