//! Kept spans to context: the caller's text, word for word, with as little around it as the format asks for.

use std::fmt::Write;
use std::sync::Arc;

use crate::domain::{ByteRange, Chunk, CopiedSpan, Format};

/// What of one chunk goes into the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// Ascending, disjoint spans of its text.
    pub spans: Vec<ByteRange>,
}

/// The context and where each piece of it came from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context {
    /// What to send to the LLM.
    pub text: String,
    /// Its pieces in order; what lies between them is ours.
    pub pieces: Vec<CopiedSpan>,
}

/// Stands between two chunks in every format.
pub const BETWEEN_CHUNKS: &str = "\n\n";

/// Writes `kept` in the order given; the n-th chunk gets marker n.
pub fn context(chunks: &[Arc<Chunk>], kept: &[Kept], format: Format) -> Context {
    let mut out = Context::default();
    for (position, kept) in kept.iter().enumerate() {
        if position > 0 {
            out.text.push_str(BETWEEN_CHUNKS);
        }
        let chunk = &chunks[kept.chunk];
        open(&mut out.text, chunk, position + 1, format);
        spans(&mut out, chunk, kept);
        out.text.push_str(close(format));
    }
    out
}

/// What a chunk with `text` for its text would add to a context in which it stands at `position`, from 0, and is not
/// last. With an empty text: what stands around it.
pub fn block(chunk: &Chunk, text: &str, position: usize, format: Format) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    open(&mut out, chunk, position + 1, format);
    out.push_str(text);
    out.push_str(close(format));
    out.push_str(BETWEEN_CHUNKS);
    out
}

fn open(text: &mut String, chunk: &Chunk, marker: usize, format: Format) {
    match format {
        Format::Plain => {}
        Format::Numbered => write!(text, "[{marker}] ").expect("writing to a String cannot fail"),
        Format::Xml => {
            write!(text, "<document index=\"{marker}\" id=\"{}\"", attribute(&chunk.id)).expect("as above");
            if let Some(title) = &chunk.title {
                write!(text, " title=\"{}\"", attribute(title)).expect("as above");
            }
            text.push_str(">\n");
        }
    }
}

fn close(format: Format) -> &'static str {
    if format == Format::Xml { "\n</document>" } else { "" }
}

/// Spans of one text, as they stand together in a context.
pub fn joined(text: &str, spans: impl IntoIterator<Item = ByteRange>) -> String {
    let (mut out, mut end) = (String::new(), None);
    for span in spans {
        if let Some(end) = end {
            out.push_str(between(&text[end..span.start]));
        }
        out.push_str(span.of(text));
        end = Some(span.end);
    }
    out
}

fn spans(out: &mut Context, chunk: &Chunk, kept: &Kept) {
    let mut end = None;
    for &source in &kept.spans {
        if let Some(end) = end {
            out.text.push_str(between(&chunk.text[end..source.start]));
        }
        let start = out.text.len();
        out.text.push_str(source.of(&chunk.text));
        out.pieces.push(CopiedSpan {
            chunk: kept.chunk,
            source,
            output: ByteRange::new(start, out.text.len()),
        });
        end = Some(source.end);
    }
}

/// Stands for a gap. Never longer than the gap: between two spans at least one byte was left out, and a line break is
/// put back only where one was.
fn between(gap: &str) -> &'static str {
    if gap.contains('\n') { "\n" } else { " " }
}

fn attribute(value: &str) -> String {
    value.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks() -> Vec<Arc<Chunk>> {
        let chunk = |id: &str, title: Option<&str>, text: &str| {
            Arc::new(Chunk {
                id: id.to_owned(),
                title: title.map(str::to_owned),
                text: text.to_owned(),
                metadata: None,
            })
        };
        vec![
            chunk("a", None, "One. Two.\nThree."),
            chunk("\"b\" & <c>", Some("5 > 4"), "Größe 👋 zählt."),
            chunk("d", None, "last"),
        ]
    }

    /// Kept spans as `(chunk, ranges)`.
    #[track_caller]
    fn check(name: &str, format: Format, kept: &[(usize, &[(usize, usize)])], expect: &str) {
        let kept_of = |&(chunk, spans): &(usize, &[(usize, usize)])| Kept {
            chunk,
            spans: spans.iter().map(|&(start, end)| ByteRange::new(start, end)).collect(),
        };
        let (chunks, kept) = (chunks(), kept.iter().map(kept_of).collect::<Vec<_>>());
        let found = context(&chunks, &kept, format);
        assert_eq!(found.text, expect, "{name}");
        for piece in &found.pieces {
            assert_eq!(piece.source.of(&chunks[piece.chunk].text), piece.output.of(&found.text), "{name}");
        }
        let spans = kept.iter().flat_map(|kept| kept.spans.iter().map(|&span| (kept.chunk, span)));
        assert!(
            found.pieces.iter().map(|piece| (piece.chunk, piece.source)).eq(spans),
            "{name}: one piece a span"
        );
    }

    #[test]
    fn formats() {
        use Format::{Numbered, Plain, Xml};
        let (first, rest): (&[_], &[_]) = (&[(0, 4)], &[(0, 4), (10, 16)]);
        check("nothing", Numbered, &[], "");
        check("one", Numbered, &[(0, first)], "[1] One.");
        check("one, plain", Plain, &[(0, first)], "One.");
        check("one, as XML", Xml, &[(0, first)], "<document index=\"1\" id=\"a\">\nOne.\n</document>");
        check("a gap without a line break", Plain, &[(0, &[(0, 4), (5, 9)])], "One. Two.");
        check("a gap with one", Plain, &[(0, rest)], "One.\nThree.");
        check(
            "numbers go by place, not by index",
            Numbered,
            &[(2, &[(0, 4)]), (0, first)],
            "[1] last\n\n[2] One.",
        );
        let wide = "<document index=\"1\" id=\"&quot;b&quot; &amp; &lt;c&gt;\" title=\"5 &gt; 4\">\nGröße 👋\n</document>";
        check("attributes are escaped, text is not", Xml, &[(1, &[(0, 12)])], wide);
    }

    #[test]
    fn a_block_is_what_stands_in_the_context() {
        let chunks = chunks();
        for format in [Format::Numbered, Format::Plain, Format::Xml] {
            let whole = |(chunk, c): (usize, &Arc<Chunk>)| Kept {
                chunk,
                spans: vec![ByteRange::new(0, c.text.len())],
            };
            let kept: Vec<_> = chunks.iter().enumerate().map(whole).collect();
            let blocks = chunks.iter().enumerate().map(|(i, chunk)| block(chunk, &chunk.text, i, format));
            let expect = context(&chunks, &kept, format).text + BETWEEN_CHUNKS;
            assert_eq!(blocks.collect::<String>(), expect, "{format:?}");
        }
    }
}
