//! What a reader may follow or read in a citation: whoever controls a cited text, such as a page that a search found, controls its address and
//! its title, too.

use std::borrow::Cow;

use thresher_core::domain::Chunk;

use crate::api::fields;

/// Beginnings of addresses that are links. Others, such as `javascript:`, would run when a chat shows them as one, and the URN of a chunk may be
/// that of another one.
const LINKS: [&str; 2] = ["http://", "https://"];

/// The URL of a chunk, from its metadata: `url`, or `source`, if it is a link. The rest of the metadata is not parsed.
pub fn url(chunk: &Chunk) -> Option<String> {
    addresses(chunk).into_iter().flatten().find(|text| is_link(text))
}

/// The source of a chunk: its URL, or another name of it in its metadata, or its id. A name that programs could take for a link of another kind
/// becomes the URN of the id.
pub fn source(chunk: &Chunk) -> String {
    let [url, source] = addresses(chunk);
    let named = [url, source].into_iter().flatten().find(|text| !text.trim().is_empty());
    let named = named.unwrap_or_else(|| chunk.id.clone());
    if is_link(&named) || !has_scheme(&named) { title(&named).into_owned() } else { urn(&chunk.id) }
}

/// The URN of a chunk without a URL. Every byte that RFC 3986 does not call unreserved is percent-encoded.
pub fn urn(id: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    format!("urn:thresher:chunk:{}", id.bytes().map(byte).collect::<String>())
}

/// A title in which the characters are escaped that would change the direction of what stands around it.
pub fn title(title: &str) -> Cow<'_, str> {
    if !title.contains(turns) {
        return Cow::Borrowed(title);
    }
    let letter = |c: char| if turns(c) { c.escape_unicode().to_string() } else { c.to_string() };
    Cow::Owned(title.chars().map(letter).collect())
}

/// Whether a character controls the direction of text (Unicode Standard Annex 9).
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn addresses(chunk: &Chunk) -> [Option<String>; 2] {
    let metadata = chunk.metadata.as_deref().unwrap_or("null");
    let found = fields::pick_named(metadata, ["url", "source"]).unwrap_or_default();
    found.map(|value| Some(fields::text(value?)?.ok()?.into_owned()))
}

fn is_link(text: &str) -> bool {
    let begins = |link: &&str| text.get(..link.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(link));
    LINKS.iter().any(begins) && !text.contains(|c: char| c.is_control() || c.is_whitespace() || turns(c))
}

/// Whether a browser reads a text as a URL with a scheme. It skips spaces and control characters at the beginning, and tabs and line breaks
/// everywhere (URL Standard, 4.4).
fn has_scheme(text: &str) -> bool {
    let read = text.chars().filter(|&c| c > ' ' && c != '\u{7f}' && !turns(c));
    let mut scheme = read.take_while(|c| c.is_ascii_alphanumeric() || "+-.:".contains(*c));
    scheme.next().is_some_and(|c| c.is_ascii_alphabetic()) && scheme.any(|c| c == ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(metadata: &str) -> Chunk {
        Chunk { metadata: Some(metadata.to_owned()), ..Chunk::new("a b", "x") }
    }

    #[test]
    fn only_links_are_urls() {
        let check = |address: &str, expect: Option<&str>, expect_source: &str| {
            let chunk = chunk(&serde_json::json!({ "url": address }).to_string());
            assert_eq!(url(&chunk).as_deref(), expect, "{address:?}");
            assert_eq!(source(&chunk), expect_source, "{address:?}");
        };
        let urn = "urn:thresher:chunk:a%20b";
        for link in ["https://x.y/z?a=b#c", "HTTP://x"] {
            check(link, Some(link), link);
        }
        for name in ["docs/a.md", "a.md", "Manual, page 3", "//x.y/z", "1:2"] {
            check(name, None, name);
        }
        check(" ", None, "a b");
        for other in [
            "javascript:alert(1)",
            " JaVaScript:alert(1)//",
            "java\nscript:alert(1)",
            "\u{1}javascript:alert(1)",
            "\u{202e}javascript:alert(1)",
            "data:text/html,x",
            "vbscript:x",
            "file:///etc/passwd",
            "https://x y",
            "urn:isbn:1",
            "urn:thresher:chunk:official",
            "URN:Thresher:chunk:official",
        ] {
            check(other, None, urn);
        }
    }

    #[test]
    fn the_first_link_in_the_metadata_counts() {
        let check = |metadata: &str, expect: Option<&str>| {
            assert_eq!(url(&chunk(metadata)).as_deref(), expect, "{metadata}");
        };
        check(r#"{"url":"javascript:x","source":"https://s"}"#, Some("https://s"));
        check(r#"{"url":"https://u","source":"https://s"}"#, Some("https://u"));
        check(r#"{"url":3,"source":"s"}"#, None);
        check("[]", None);
        let named = Chunk::new("javascript:x", "x");
        assert_eq!(source(&named), "urn:thresher:chunk:javascript%3Ax");
    }

    #[test]
    fn a_title_does_not_turn_what_stands_around_it() {
        assert_eq!(title("Größe, שלום"), "Größe, שלום");
        assert_eq!(title("a\u{202e}b"), "a\\u{202e}b");
    }
}
