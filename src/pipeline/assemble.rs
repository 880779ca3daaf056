//! Kept spans to context: the caller's text, word for word, with as little around it as the format asks for.

use std::fmt::Write;

use crate::domain::{ByteRange, Chunk, Format, Piece};

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
    pub pieces: Vec<Piece>,
}

/// Stands between two chunks in every format.
pub const BETWEEN_CHUNKS: &str = "\n\n";

/// Writes `kept` in the order given; the n-th chunk gets marker n.
pub fn context(chunks: &[Chunk], kept: &[Kept], format: Format) -> Context {
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

fn spans(out: &mut Context, chunk: &Chunk, kept: &Kept) {
    let mut end = None;
    for &source in &kept.spans {
        if let Some(end) = end {
            out.text.push_str(between(&chunk.text[end..source.start]));
        }
        let start = out.text.len();
        out.text.push_str(source.of(&chunk.text));
        out.pieces.push(Piece { chunk: kept.chunk, source, output: ByteRange::new(start, out.text.len()) });
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
