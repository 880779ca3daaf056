//! Error messages about a caller's values: what serde says of values that do not fit, without the names of Rust's types, and values that
//! are quoted, in a bounded length. Knows nothing of whose values they are.

use std::fmt;

/// Bytes of a caller's text that a message repeats.
const QUOTED_BYTES_MAX: usize = 100;

/// A caller's text inside a message. Of a long one only the beginning is shown, and how many bytes it has.
#[derive(Debug, Clone, Copy)]
pub struct Shortened<'a>(pub &'a str);

/// The same in quotation marks, with escapes.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match beginning(self.0) {
            None => f.write_str(self.0),
            Some(beginning) => write!(f, "{beginning}... ({} bytes)", self.0.len()),
        }
    }
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match beginning(self.0) {
            None => write!(f, "{:?}", self.0),
            Some(beginning) => write!(f, "{beginning:?}... ({} bytes)", self.0.len()),
        }
    }
}

/// The beginning of a text that is too long to be repeated; none of a short one.
fn beginning(text: &str) -> Option<&str> {
    (text.len() > QUOTED_BYTES_MAX).then(|| &text[..text.floor_char_boundary(QUOTED_BYTES_MAX)])
}

/// The message in words that a caller of any language knows.
pub fn message(said: &str) -> String {
    let said = said.trim();
    if said.contains("hex escape") {
        let (_, place) = said.split_once(" at line ").unwrap_or_default();
        return format!("half of a surrogate pair: \\ud800 to \\udfff come in pairs, at line {place}");
    }
    // Of a name's place, toml says no more.
    if said.ends_with("unit variant, expected string only") {
        return "invalid type: expected text".to_owned();
    }
    if said.ends_with("invalid socket address syntax") {
        return "not an address with a port, such as 127.0.0.1:8080".to_owned();
    }
    let Some((found, expected)) = said.rsplit_once(", expected ") else { return said.to_owned() };
    let (expected, place) = match expected.split_once(" at line ") {
        Some((expected, place)) => (expected, format!(" at line {place}")),
        None => (expected, String::new()),
    };
    let expected = match expected {
        "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "path string" => "text",
        kind if kind.starts_with("struct ") => "an object or section",
        other => other,
    };
    format!("{found}, expected {expected}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened() {
        assert_eq!(Quoted("a\"b").to_string(), r#""a\"b""#);
        assert_eq!(Shortened("a\"b").to_string(), "a\"b");
        // 99 bytes and two of the next character: the cut is in front of that.
        let long = format!("{}é{}", "x".repeat(99), "y".repeat(1_000_000));
        let shown = "x".repeat(99);
        assert_eq!(Quoted(&long).to_string(), format!("\"{shown}\"... (1000101 bytes)"));
        assert_eq!(Shortened(&long).to_string(), format!("{shown}... (1000101 bytes)"));
    }

    #[test]
    fn types_of_rust_are_not_named() {
        let check = |said: &str, expect: &str| assert_eq!(message(said), expect);
        check(
            "invalid value: integer `-1`, expected usize at line 1 column 9",
            "invalid value: integer `-1`, expected a whole number, 0 or more at line 1 column 9",
        );
        check(
            "invalid type: string \"low\", expected f32",
            "invalid type: string \"low\", expected a number",
        );
        check(
            "unexpected end of hex escape at line 1 column 17",
            "half of a surrogate pair: \\ud800 to \\udfff come in pairs, at line 1 column 17",
        );
        check("invalid type: unit variant, expected string only", "invalid type: expected text");
        check("invalid socket address syntax", "not an address with a port, such as 127.0.0.1:8080");
        check("EOF while parsing a value", "EOF while parsing a value");
        check(
            "unknown variant `x`, expected one of `a`, `b`",
            "unknown variant `x`, expected one of `a`, `b`",
        );
    }
}
