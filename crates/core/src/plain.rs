//! Plain error messages about a caller's values: translates serde's messages so that they name no Rust types,
//! and quotes values at a bounded length. Knows nothing of what the values are for.

use std::fmt;

/// How many bytes of a caller's text a message repeats at most.
const QUOTED_BYTES_MAX: usize = 100;

/// Displays a caller's text inside a message. Of a text over 100 bytes it shows the beginning and the length:
/// `abc... (1000101 bytes)`.
#[derive(Debug, Clone, Copy)]
pub struct Shortened<'a>(pub &'a str);

/// Like [`Shortened`], but in quotation marks and with escapes: `"abc"... (1000101 bytes)`.
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

/// Returns the beginning of a text that is too long to be repeated, and `None` for a short text.
fn beginning(text: &str) -> Option<&str> {
    (text.len() > QUOTED_BYTES_MAX).then(|| &text[..text.floor_char_boundary(QUOTED_BYTES_MAX)])
}

/// Translates a message of serde, `serde_json` or `toml` about a value into words that a caller of any
/// programming language knows: it says "a whole number, 0 or more" instead of `usize`. Messages without a
/// Rust type are returned unchanged.
///
/// ```
/// use thresher_core::plain::message;
///
/// let error = serde_json::from_str::<usize>("-1").expect_err("a negative number");
/// assert_eq!(
///     message(&error.to_string()),
///     "invalid value: integer `-1`, expected a whole number, 0 or more at line 1 column 2"
/// );
/// ```
pub fn message(original: &str) -> String {
    let original = original.trim();
    if original.contains("hex escape") {
        let (_, position) = original.split_once(" at line ").unwrap_or_default();
        return format!(
            "a \\u escape is half of a surrogate pair; \\ud800 to \\udfff come in pairs, at line {position}"
        );
    }
    // This is all that toml says about a value that should be one of several names.
    if original.ends_with("unit variant, expected string only") {
        return "invalid type: expected text".to_owned();
    }
    if original.ends_with("invalid socket address syntax") {
        return "not an address with a port, such as 127.0.0.1:8080".to_owned();
    }
    let Some((found, expected)) = original.rsplit_once(", expected ") else { return original.to_owned() };
    let (expected, position) = match expected.split_once(" at line ") {
        Some((expected, position)) => (expected, format!(" at line {position}")),
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
    format!("{found}, expected {expected}{position}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened() {
        assert_eq!(Quoted("a\"b").to_string(), r#""a\"b""#);
        assert_eq!(Shortened("a\"b").to_string(), "a\"b");
        // The limit of 100 bytes falls inside the two bytes of é, so the text is cut in front of it.
        let long = format!("{}é{}", "x".repeat(99), "y".repeat(1_000_000));
        let shown = "x".repeat(99);
        assert_eq!(Quoted(&long).to_string(), format!("\"{shown}\"... (1000101 bytes)"));
        assert_eq!(Shortened(&long).to_string(), format!("{shown}... (1000101 bytes)"));
    }

    #[test]
    fn messages_name_no_rust_types() {
        let check = |original: &str, expect: &str| assert_eq!(message(original), expect);
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
            "a \\u escape is half of a surrogate pair; \\ud800 to \\udfff come in pairs, at line 1 column 17",
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
