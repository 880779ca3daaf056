//! The tags of HTML. Knows where a tag ends, and what its name means for the division of a page.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::range::ByteRange;

/// The longest tag, in bytes. What is longer is a "less than" sign in a text, or a tag that is cut off.
const TAG_BYTES_MAX: usize = 16 * 1024;

pub(super) struct Tag<'a> {
    pub range: ByteRange,
    pub name: &'a str,
    pub closes: bool,
}

/// What an element is for the division of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Part of the text around it.
    Inline,
    /// Has nothing inside, and is no text: a rule, a link to a style sheet, a stray closing tag.
    Void,
    /// Is not divided into elements: a script, a comment, a title.
    Raw,
    /// Never of use: navigation, drawings.
    Junk,
    Heading(u8),
    /// Names what stands beside it in the same element: a caption, a legend.
    Caption,
    /// One piece however long: a row, preformatted text.
    Row,
    Cell,
    /// A list or a table: its items need it.
    List,
    /// One piece if it is short: an item, a paragraph.
    Block,
    /// Only arranges what is inside.
    Wrapper,
}

/// The classes of the elements in `tags.txt`, by the names of the elements.
static CLASSES: LazyLock<HashMap<&str, Class>> = LazyLock::new(|| {
    let mut classes = HashMap::new();
    for line in include_str!("tags.txt").lines().filter(|line| !line.starts_with('#')) {
        let (class, names) = line.split_once(' ').expect("a class and its elements");
        for name in names.split(' ') {
            let class = match class {
                "void" => Class::Void,
                "raw" => Class::Raw,
                "junk" => Class::Junk,
                "heading" => Class::Heading(name.as_bytes()[1] - b'0'),
                "caption" => Class::Caption,
                "row" => Class::Row,
                "cell" => Class::Cell,
                "list" => Class::List,
                "block" => Class::Block,
                "wrapper" => Class::Wrapper,
                _ => Class::Inline,
            };
            classes.insert(name, class);
        }
    }
    classes
});

/// Returns whether an element is an inline one that a part of a page can begin with.
pub(super) fn is_inline(name: &str) -> bool {
    CLASSES.get(&*name.to_ascii_lowercase()) == Some(&Class::Inline)
}

pub(super) fn class_of(name: &str) -> Class {
    CLASSES.get(&*name.to_ascii_lowercase()).copied().unwrap_or(Class::Inline)
}

/// Returns whether a text begins as a page does.
pub(super) fn begins_page(text: &str) -> bool {
    let begins_with = |tag: &str| text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag));
    begins_with("<!doctype html") || begins_with("<html")
}

/// Returns the first tag or comment from `at` on.
pub(super) fn next_tag(text: &str, at: usize) -> Option<Tag<'_>> {
    let bytes = text.as_bytes();
    let mut from = at;
    loop {
        let start = from + text[from..].find('<')?;
        let closes = bytes.get(start + 1) == Some(&b'/');
        let name_start = start + 1 + usize::from(closes);
        let rest = &text[name_start..];
        if rest.starts_with("!--") {
            let end = rest.find("-->").map_or(text.trim_end().len(), |end| name_start + end + 3);
            return Some(Tag { range: ByteRange::new(start, end), name: "!--", closes: false });
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | ':' | '!' | '?' | '_');
        let name = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        if name.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '!' | '?'))
            && let Some(end) = tag_end(bytes, name_start + name.len())
        {
            return Some(Tag { range: ByteRange::new(start, end), name, closes });
        }
        from = start + 1;
    }
}

/// Returns one past the `>` that ends a tag. One between quotes ends nothing.
fn tag_end(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut quote, mut before) = (None, b' ');
    for (offset, &byte) in bytes[at..].iter().take(TAG_BYTES_MAX).enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at + offset + 1),
            (None, b'<') => return None,
            // Only a quote behind an equals sign opens a value.
            (None, b'"' | b'\'') if before == b'=' => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
        before = byte;
    }
    None
}

/// Returns one past an element that is not divided into elements.
pub(super) fn raw_end(text: &str, tag: &Tag) -> usize {
    if tag.name == "!--" {
        return tag.range.end;
    }
    let (mut at, bytes) = (tag.range.end, text.as_bytes());
    while let Some(found) = text[at..].find("</") {
        let name = at + found + 2;
        let end = name + tag.name.len();
        if bytes.get(name..end).is_some_and(|other| other.eq_ignore_ascii_case(tag.name.as_bytes())) {
            return text[end..].find('>').map_or(text.trim_end().len(), |close| end + close + 1);
        }
        at = name;
    }
    text.trim_end().len()
}
