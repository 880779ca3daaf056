//! Kept spans to context: the caller's text, word for word, with as little around it as the format asks for.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::domain::{ByteRange, Chunk, Format, KeptSpan};

/// Stands between two chunks in every format.
pub const BETWEEN_CHUNKS: &str = "\n\n";

/// Writes the context: the chunks of `kept` in the order given, the n-th with marker n. Each element holds the spans of one chunk,
/// ascending, disjoint and at least one. Sets the `output` of each span.
pub fn context<'a>(
    chunks: &[Arc<Chunk>],
    kept: impl IntoIterator<Item = &'a mut [KeptSpan]>,
    format: Format,
) -> String {
    let mut out = String::new();
    for (position, kept) in kept.into_iter().enumerate() {
        if position > 0 {
            out.push_str(BETWEEN_CHUNKS);
        }
        let chunk = &chunks[kept[0].chunk];
        open(&mut out, chunk, position + 1, format);
        write_spans(&mut out, chunk, kept);
        out.push_str(close(format));
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

fn write_spans(out: &mut String, chunk: &Chunk, kept: &mut [KeptSpan]) {
    let mut end = None;
    for span in kept {
        if let Some(end) = end {
            out.push_str(between(&chunk.text[end..span.source.start]));
        }
        let start = out.len();
        out.push_str(span.source.of(&chunk.text));
        span.output = ByteRange::new(start, out.len());
        end = Some(span.source.end);
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
            let whole = |(chunk, c): (usize, &Arc<Chunk>)| [span(chunk, ByteRange::new(0, c.text.len()))];
            let mut kept: Vec<_> = chunks.iter().enumerate().map(whole).collect();
            let blocks = chunks.iter().enumerate().map(|(i, chunk)| block(chunk, &chunk.text, i, format));
            let context = context(&chunks, kept.iter_mut().map(|spans| &mut spans[..]), format);
            assert_eq!(blocks.collect::<String>(), context + BETWEEN_CHUNKS, "{format:?}");
        }
    }
}
