//! Assembly: writes the kept spans of the chunks as a context. The caller's text is copied byte for byte;
//! only the markup of the format is added around it.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::domain::{ByteRange, Chunk, Format, KeptSpan};

/// The text between two chunks in every format.
pub const BETWEEN_CHUNKS: &str = "\n\n";

/// Returns the context. Each element of `kept` has the spans of one chunk: at least one, ascending and
/// disjoint. The chunks are written in the order of `kept` and numbered from 1. Sets the `output` of each
/// span.
pub fn context<'a>(
    chunks: &[Arc<Chunk>],
    kept: impl IntoIterator<Item = &'a mut [KeptSpan]>,
    format: Format,
) -> String {
    let mut out = String::new();
    for (index, spans) in kept.into_iter().enumerate() {
        if index > 0 {
            out.push_str(BETWEEN_CHUNKS);
        }
        let chunk = &chunks[spans[0].chunk];
        write_opening(&mut out, chunk, index + 1, format);
        write_spans(&mut out, chunk, spans);
        out.push_str(closing(format));
    }
    out
}

/// Returns everything that the chunk at `index` (from 0) of a context adds to it besides the chunk's own
/// text: the markup before and after the text, and the break before the next chunk.
pub fn frame(chunk: &Chunk, index: usize, format: Format) -> String {
    with_frame(chunk, "", index, format)
}

fn with_frame(chunk: &Chunk, text: &str, index: usize, format: Format) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    write_opening(&mut out, chunk, index + 1, format);
    out.push_str(text);
    out.push_str(closing(format));
    out.push_str(BETWEEN_CHUNKS);
    out
}

fn write_opening(out: &mut String, chunk: &Chunk, number: usize, format: Format) {
    match format {
        Format::Plain => {}
        Format::Numbered => write!(out, "[{number}] ").expect("writing to a String cannot fail"),
        Format::Xml => {
            let id = escaped(&chunk.id);
            write!(out, "<document index=\"{number}\" id=\"{id}\"").expect("writing to a String cannot fail");
            if let Some(title) = &chunk.title {
                write!(out, " title=\"{}\"", escaped(title)).expect("writing to a String cannot fail");
            }
            out.push_str(">\n");
        }
    }
}

fn closing(format: Format) -> &'static str {
    match format {
        Format::Xml => "\n</document>",
        Format::Numbered | Format::Plain => "",
    }
}

/// Returns the spans of one text as they are written together in a context. They must be ascending and
/// disjoint.
pub fn joined(text: &str, spans: impl IntoIterator<Item = ByteRange>) -> String {
    let (mut out, mut end) = (String::new(), None);
    for span in spans {
        if let Some(end) = end {
            out.push_str(separator(&text[end..span.start]));
        }
        out.push_str(span.of(text));
        end = Some(span.end);
    }
    out
}

fn write_spans(out: &mut String, chunk: &Chunk, spans: &mut [KeptSpan]) {
    let mut end = None;
    for span in spans {
        if let Some(end) = end {
            out.push_str(separator(&chunk.text[end..span.source.start]));
        }
        let start = out.len();
        out.push_str(span.source.of(&chunk.text));
        span.output = ByteRange::new(start, out.len());
        end = Some(span.source.end);
    }
}

/// Returns the text that replaces a gap between two spans: a line break if the gap has one, otherwise a
/// space. It is never longer than the gap, because at least one byte was left out.
fn separator(gap: &str) -> &'static str {
    if gap.contains('\n') { "\n" } else { " " }
}

/// Escapes the value of an XML attribute.
fn escaped(value: &str) -> String {
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

    /// `kept` are the spans of each chunk, as `(chunk, ranges)`.
    #[track_caller]
    fn check(name: &str, format: Format, kept: &[(usize, &[(usize, usize)])], expect: &str) {
        let spans_of = |&(chunk, spans): &(usize, &[(usize, usize)])| {
            spans.iter().map(|&(start, end)| span(chunk, ByteRange::new(start, end))).collect()
        };
        let (chunks, mut kept) = (chunks(), kept.iter().map(spans_of).collect::<Vec<Vec<_>>>());
        let found = context(&chunks, kept.iter_mut().map(Vec::as_mut_slice), format);
        assert_eq!(found, expect, "{name}");
        for span in kept.iter().flatten() {
            assert_eq!(span.source.of(&chunks[span.chunk].text), span.output.of(&found), "{name}");
        }
    }

    fn span(chunk: usize, source: ByteRange) -> KeptSpan {
        KeptSpan::unscored(chunk, source)
    }

    #[test]
    fn formats() {
        use Format::{Numbered, Plain, Xml};
        let (first, rest): (&[_], &[_]) = (&[(0, 4)], &[(0, 4), (10, 16)]);
        check("no chunks", Numbered, &[], "");
        check("one chunk", Numbered, &[(0, first)], "[1] One.");
        check("one chunk, plain", Plain, &[(0, first)], "One.");
        check("one chunk, as XML", Xml, &[(0, first)], "<document index=\"1\" id=\"a\">\nOne.\n</document>");
        check("a gap without a line break", Plain, &[(0, &[(0, 4), (5, 9)])], "One. Two.");
        check("a gap with a line break", Plain, &[(0, rest)], "One.\nThree.");
        check(
            "numbers follow the order of the context",
            Numbered,
            &[(2, &[(0, 4)]), (0, first)],
            "[1] last\n\n[2] One.",
        );
        let wide = "<document index=\"1\" id=\"&quot;b&quot; &amp; &lt;c&gt;\" title=\"5 &gt; 4\">\nGröße 👋\n</document>";
        check("attributes are escaped, text is not", Xml, &[(1, &[(0, 12)])], wide);
    }

    #[test]
    fn framed_chunks_together_are_the_context() {
        let chunks = chunks();
        for format in [Format::Numbered, Format::Plain, Format::Xml] {
            let whole = |(chunk, c): (usize, &Arc<Chunk>)| [span(chunk, ByteRange::new(0, c.text.len()))];
            let mut kept: Vec<_> = chunks.iter().enumerate().map(whole).collect();
            let framed =
                chunks.iter().enumerate().map(|(i, chunk)| with_frame(chunk, &chunk.text, i, format));
            let context = context(&chunks, kept.iter_mut().map(|spans| &mut spans[..]), format);
            assert_eq!(framed.collect::<String>(), context + BETWEEN_CHUNKS, "{format:?}");
        }
    }
}
