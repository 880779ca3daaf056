//! Where the text of a chunk stands in its document: the pages and the line that the caller names. Knows nothing of what the text shows
//! itself; see [`pipeline::place`](crate::pipeline::place).

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub const PAGES_MAX: usize = 10_000;

/// The pages and the line at which the text of a chunk stands in its document, as far as the caller names them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchors {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pages: Vec<PageStart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// The beginning of a page in the text of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageStart {
    /// Byte offset in the text.
    pub start: usize,
    /// The number of the page, from 1.
    pub page: u32,
}

/// Why anchors do not fit their text. `at` is the index of the wrong entry of `pages`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidAnchors {
    #[error("pages has {found} entries; the limit is {PAGES_MAX}")]
    TooMany { found: usize },
    #[error("pages[{at}].page is 0; pages are numbered from 1")]
    PageZero { at: usize },
    #[error("pages[{at}].page is smaller than the page before it; name the pages in their order")]
    PageDescends { at: usize },
    #[error(
        "pages[{at}].start is not behind the start of the page before it; name the pages in the order of the text"
    )]
    StartDescends { at: usize },
    #[error("pages[{at}].start is no position between two characters of the text")]
    NotInText { at: usize },
    #[error("line is 0; lines are numbered from 1")]
    LineZero,
}

impl Anchors {
    /// Returns the anchors of `text`. `pages` lists the pages in the order of the text: each begins behind the one before, and has no smaller
    /// number. `line` is the number of the first line of the text in its file, from 1.
    ///
    /// # Errors
    /// Fails if `pages` is longer than [`PAGES_MAX`] or not in order, if a page begins outside of the text or inside a character, and if a
    /// number is 0.
    pub fn new(pages: Vec<PageStart>, line: Option<u32>, text: &str) -> Result<Self, InvalidAnchors> {
        if pages.len() > PAGES_MAX {
            return Err(InvalidAnchors::TooMany { found: pages.len() });
        }
        for (at, page) in pages.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| pages[before]);
            if page.page == 0 {
                return Err(InvalidAnchors::PageZero { at });
            } else if !text.is_char_boundary(page.start) {
                return Err(InvalidAnchors::NotInText { at });
            } else if before.is_some_and(|before| page.start <= before.start) {
                return Err(InvalidAnchors::StartDescends { at });
            } else if before.is_some_and(|before| page.page < before.page) {
                return Err(InvalidAnchors::PageDescends { at });
            }
        }
        if line == Some(0) {
            return Err(InvalidAnchors::LineZero);
        }
        Ok(Self { pages, line })
    }

    pub fn pages(&self) -> &[PageStart] {
        &self.pages
    }

    /// Returns the number of the first line of the text.
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.line.is_none()
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * size_of::<PageStart>()
    }

    /// Returns the anchors as JSON, in which they are stored; `None` if there are none.
    pub fn to_json(&self) -> Option<String> {
        (!self.is_empty()).then(|| serde_json::to_string(self).expect("numbers can be written as JSON"))
    }

    /// Returns the anchors of `text` that [`Self::to_json`] wrote; none if they are damaged.
    pub fn from_json(json: &str, text: &str) -> Self {
        let read: Self = serde_json::from_str(json).unwrap_or_default();
        Self::new(read.pages, read.line, text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_that_do_not_fit_their_text_are_refused() {
        let check = |name: &str, pages: &[(usize, u32)], line, expect: Result<(), InvalidAnchors>| {
            let pages = pages.iter().map(|&(start, page)| PageStart { start, page }).collect();
            assert_eq!(Anchors::new(pages, line, "ä b c").map(drop), expect, "{name}");
        };
        check("none", &[], None, Ok(()));
        check(
            "a page that goes on, and one that begins at the end",
            &[(0, 3), (2, 3), (6, 9)],
            Some(1),
            Ok(()),
        );
        check("page 0", &[(0, 0)], None, Err(InvalidAnchors::PageZero { at: 0 }));
        check("line 0", &[], Some(0), Err(InvalidAnchors::LineZero));
        check("starts out of order", &[(2, 1), (0, 2)], None, Err(InvalidAnchors::StartDescends { at: 1 }));
        check(
            "two pages in one place",
            &[(0, 1), (0, 2)],
            None,
            Err(InvalidAnchors::StartDescends { at: 1 }),
        );
        check("pages out of order", &[(0, 2), (2, 1)], None, Err(InvalidAnchors::PageDescends { at: 1 }));
        check("behind the text", &[(0, 1), (7, 2)], None, Err(InvalidAnchors::NotInText { at: 1 }));
        check("inside a character", &[(1, 1)], None, Err(InvalidAnchors::NotInText { at: 0 }));
        let many: Vec<_> = (0..=PAGES_MAX).map(|at| (at, 1)).collect();
        check("too many", &many, None, Err(InvalidAnchors::TooMany { found: PAGES_MAX + 1 }));
    }

    #[test]
    fn stored_anchors_are_read_as_they_were_and_only_with_their_text() {
        let anchors = Anchors::new(vec![PageStart { start: 2, page: 12 }], Some(120), "a b").expect("valid");
        let json = anchors.to_json().expect("some");
        assert_eq!(json, r#"{"pages":[{"start":2,"page":12}],"line":120}"#);
        assert_eq!(Anchors::from_json(&json, "a b"), anchors);
        assert_eq!(Anchors::from_json(&json, "a"), Anchors::default());
        assert_eq!(
            (Anchors::from_json("{", "a b"), Anchors::default().to_json()),
            (Anchors::default(), None)
        );
    }
}
