//! Writes texts that programs print with fewer tokens for a language model, and gives every byte back.
//!
//! Three things are said once: how JSON is indented, what lines have in common, and values that stay the same from row to row. Nothing is left
//! out: [`decode`] returns exactly the text that [`encode`] was given, which [`encode`] checks before it returns. The first line of an encoded
//! text explains its form to the model.
//!
//! ```text
//! Nov 28 15:31:51 web sshd[812]: Accepted publickey for ada from 10.0.0.7 port 51120 ssh2
//! Nov 28 15:31:58 web sshd[815]: Accepted publickey for ada from 10.0.0.9 port 40022 ssh2
//! ```
//!
//! becomes, after the line that explains it,
//!
//! ```text
//! #1=Nov 28 <15:31:51> web <sshd[812]:> Accepted publickey for ada from <10.0.0.7> port <51120> ssh2
//! |15:31:58|sshd[815]:|10.0.0.9|40022
//! ```
//!
//! The crate knows no model, no request and no budget. Time and memory grow linearly with the text.

mod json;
mod rows;
mod template;
mod tokens;
mod words;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use self::json::Style;
use self::rows::Input;
use self::template::Signs;
pub use self::tokens::estimate;

/// The version of the form. Another version may encode the same text differently, but decodes it alike.
pub const VERSION: u8 = 1;

/// The most bytes of a text that is encoded; a longer one is returned as it is.
pub const TEXT_BYTES_MAX: usize = 8 << 20;

/// The least bytes of JSON that is worth its words in the first line.
const JSON_BYTES_MIN: usize = 160;

/// The share of the tokens that has to be saved, as a divisor: a tenth.
const SAVED_MIN: usize = 10;

/// The least tokens that have to be saved: a model has to learn a form for them.
const TOKENS_SAVED_MIN: usize = 100;

/// How every encoded text begins.
const BEGINNING: &str = "[thresher: ";

/// The text is not one that [`encode`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the text begins as an encoded text does ({BEGINNING:?}), but it was changed or cut")
    }
}

impl std::error::Error for Damaged {}

/// Returns a text with fewer tokens, or the text itself if that would save less than a tenth of them, or less than a hundred. A text that begins like an encoded one is
/// returned with a line before it, so that [`decode`] returns every text as it was.
pub fn encode(text: &str) -> Cow<'_, str> {
    if text.starts_with(BEGINNING) {
        return Cow::Owned(format!("{BEGINNING}as it is]\n{text}"));
    }
    if text.len() > TEXT_BYTES_MAX || text.len() < JSON_BYTES_MIN {
        return Cow::Borrowed(text);
    }
    let encoded = write(text);
    let is_shorter = encoded.len() < text.len() && {
        let (before, after) = (estimate(text), estimate(&encoded));
        after + (before / SAVED_MIN).max(TOKENS_SAVED_MIN) <= before
    };
    if is_shorter && decode(&encoded).as_deref() == Ok(text) {
        Cow::Owned(encoded)
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns the text that was encoded; of another text, itself.
///
/// # Errors
/// Fails if an encoded text was changed or cut.
pub fn decode(text: &str) -> Result<Cow<'_, str>, Damaged> {
    let Some(rest) = text.strip_prefix(BEGINNING) else { return Ok(Cow::Borrowed(text)) };
    let (explanation, rest) = rest.split_once("]\n").ok_or(Damaged)?;
    if explanation == "as it is" {
        return Ok(Cow::Borrowed(rest));
    }
    read(explanation, rest).map(Cow::Owned).ok_or(Damaged)
}

/// Lines of JSON that are written without white space.
struct Minified {
    /// The lines in the text without templates.
    lines: Range<usize>,
    style: Style,
    /// Whether the next line goes on directly after the JSON.
    is_joined: bool,
}

fn write(text: &str) -> String {
    let (lines, minified) = unfold(text);
    let inputs: Vec<Input> = lines.iter().map(|(text, is_json)| Input { text, is_json: *is_json }).collect();
    let rows = rows::write(&inputs);
    let mut explanation = String::new();
    if rows.has_templates {
        explanation.push_str(&explain_rows(rows.signs));
    }
    if !minified.is_empty() {
        if rows.has_templates {
            explanation.push_str("; ");
        }
        explanation.push_str("JSON without white space:");
        for Minified { lines, style, is_joined } in &minified {
            let join = if *is_joined { "+" } else { "" };
            explanation.push_str(&format!(" {}-{}/{}{join}", lines.start + 1, lines.end, style.word()));
        }
    }
    format!("{BEGINNING}{explanation}]\n{}", rows.text)
}

/// Explains templates and rows with an example of each.
fn explain_rows(Signs { tag, delimiter, brackets: (open, close) }: Signs) -> String {
    format!(
        "{tag}1= is a line with its {open}fields{close}; {tag}1{delimiter}a{delimiter}b is that line with fields a, b, {delimiter}a{delimiter}b \
         the same template again, \" the value above"
    )
}

fn read(explanation: &str, text: &str) -> Option<String> {
    let (rows, minified) = match explanation.split_once("JSON without white space:") {
        Some((rows, minified)) => (rows.trim_end_matches("; "), minified),
        None => (explanation, ""),
    };
    let lines: Vec<String> = if rows.is_empty() {
        text.split('\n').map(str::to_owned).collect()
    } else {
        let mut chars = rows.chars();
        let tag = chars.next()?;
        let (_, after) = rows.split_once("its ")?;
        let open = after.chars().next()?;
        let (_, after) = after.split_once("fields")?;
        let close = after.chars().next()?;
        let delimiter =
            after.get(close.len_utf8()..)?.strip_prefix("; ")?.strip_prefix(tag)?.strip_prefix('1')?;
        let signs = Signs { tag, delimiter: delimiter.chars().next()?, brackets: (open, close) };
        if explain_rows(signs) != rows {
            return None;
        }
        rows::read(text, signs, TEXT_BYTES_MAX)?
    };
    fold(&lines, minified)
}

/// Writes the JSON of a text on lines for its elements. Returns all lines, with whether they are JSON, and where JSON is.
fn unfold(text: &str) -> (Vec<(Cow<'_, str>, bool)>, Vec<Minified>) {
    let mut lines: Vec<(Cow<str>, bool)> = Vec::new();
    let mut minified = Vec::new();
    let (mut at, mut json_from) = (0, 0);
    loop {
        let rest = &text[at..];
        if at >= json_from && rest.starts_with(['{', '[']) {
            let mut found = json::find(text, at);
            json_from = found.read_to;
            let style = json::detect_style(text, &found.tokens);
            let written = json::write(text, &found.tokens, style, rest.len());
            let equal = written.bytes().zip(rest.bytes()).take_while(|(a, b)| a == b).count();
            if equal < written.len() {
                found.cut(at + equal);
            }
            let new: Vec<String> = json::minify(text, &found.tokens);
            let is_worth = new.len() > 1 || text[at..found.end.max(at)].contains('\n');
            if found.end >= at + JSON_BYTES_MIN && is_worth {
                let start = lines.len();
                lines.extend(new.into_iter().map(|line| (Cow::Owned(line), true)));
                at = found.end;
                let is_end = at == text.len();
                let is_joined = !is_end && !text[at..].starts_with('\n');
                minified.push(Minified { lines: start..lines.len(), style, is_joined });
                if is_end {
                    break;
                }
                if is_joined {
                    // What follows begins no JSON.
                    json_from = json_from.max(at + 1);
                } else {
                    at += 1;
                }
                continue;
            }
        }
        let line = rest.split('\n').next().unwrap_or_default();
        // A line that is one JSON object, as in logs.
        let is_json = line.starts_with('{') && line.trim_end().ends_with('}') && is_object(line.trim_end());
        lines.push((Cow::Borrowed(line), is_json));
        at += line.len() + 1;
        if at > text.len() {
            break;
        }
    }
    (lines, minified)
}

fn is_object(line: &str) -> bool {
    json::find(line, 0).end == line.len()
}

/// Joins the lines, of which some are JSON, as the explanation says.
fn fold(lines: &[String], minified: &str) -> Option<String> {
    let mut text = String::new();
    let mut next = 0;
    let mut is_joined = true;
    let push = |text: &mut String, line: &str, is_joined: bool| {
        if !is_joined {
            text.push('\n');
        }
        text.push_str(line);
    };
    for part in minified.split_ascii_whitespace() {
        let (part, joins) = match part.strip_suffix('+') {
            Some(part) => (part, true),
            None => (part, false),
        };
        let (range, style) = part.split_once('/')?;
        let (start, end) = range.split_once('-')?;
        let (start, end): (usize, usize) = (start.parse::<usize>().ok()?.checked_sub(1)?, end.parse().ok()?);
        let style = Style::parse(style)?;
        for line in lines.get(next..start)? {
            push(&mut text, line, std::mem::take(&mut is_joined));
        }
        let source = lines.get(start..end)?.join("\n");
        let tokens = json::parse_minified(&source)?;
        let json = json::write(&source, &tokens, style, TEXT_BYTES_MAX);
        if json.len() > TEXT_BYTES_MAX {
            return None;
        }
        push(&mut text, &json, std::mem::take(&mut is_joined));
        (next, is_joined) = (end, joins);
    }
    for line in lines.get(next..)? {
        push(&mut text, line, std::mem::take(&mut is_joined));
    }
    Some(text)
}

#[cfg(test)]
mod tests;
