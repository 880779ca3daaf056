//! Places in the documents that chunks come from: the pages and the line that a request names, and the page, the line and the headings of a
//! citation.

use std::cell::OnceCell;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thresher_core::domain::{Anchors, ByteRange, Chunk, InvalidAnchors, PageStart};
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::place::{Place, Places};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::wire::Object;
use crate::error::{ApiError, ErrorCode};

/// The beginning of a page in the text of a chunk.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PageStart")]
pub(super) struct PageBody {
    /// The offset in the text at which the page begins, in the unit that `offsets` of the request names; in code points where the request has
    /// no `offsets`.
    start: usize,
    /// The number of the page, from 1.
    #[schemars(range(min = 1))]
    page: u32,
}

/// Where a cited passage stands in its document, as far as the request or the text says so.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[schemars(rename = "Place")]
pub(super) struct PlaceAnswer {
    /// The page on which the passage begins; left out if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<u32>,
    /// The line of the file on which the passage begins, from 1; left out if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// The headings that the passage stands under, the outermost first; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    heading: Vec<String>,
}

impl From<Place> for PlaceAnswer {
    fn from(Place { pages, line, headings }: Place) -> Self {
        Self { page: pages.map(|pages| *pages.start()), line, heading: headings }
    }
}

/// Converts the pages and the line that a chunk names. `text` is its text, in which `unit` counts the offsets.
///
/// # Errors
/// `out_of_range` and `too_many`, about a path inside of the chunk.
pub(super) fn anchors(
    pages: &[Object<PageBody>],
    line: Option<u32>,
    text: &str,
    unit: OffsetUnit,
) -> Result<Anchors, ApiError> {
    if pages.is_empty() && line.is_none() {
        return Ok(Anchors::default());
    }
    let map = OffsetMap::new(text, unit);
    let start = |(at, Object(body)): (usize, &Object<PageBody>)| {
        let start = map.to_byte(body.start).map_err(|error| {
            let param = format!("pages[{at}].start");
            ApiError::with_param((&error).into(), format!("{param}: {error}"), param)
        })?;
        Ok(PageStart { start, page: body.page })
    };
    let pages = pages.iter().enumerate().map(start).collect::<Result<_, ApiError>>()?;
    Anchors::new(pages, line, text).map_err(|invalid| {
        let message = invalid.to_string();
        match invalid {
            InvalidAnchors::TooMany { .. } => ApiError::with_param(ErrorCode::TooMany, message, "pages"),
            InvalidAnchors::LineZero => ApiError::with_param(ErrorCode::OutOfRange, message, "line"),
            InvalidAnchors::PageZero { at } | InvalidAnchors::PageDescends { at } => {
                ApiError::with_param(ErrorCode::OutOfRange, message, format!("pages[{at}].page"))
            }
            InvalidAnchors::StartDescends { at } | InvalidAnchors::NotInText { at } => {
                ApiError::with_param(ErrorCode::OutOfRange, message, format!("pages[{at}].start"))
            }
        }
    })
}

/// Returns the pages of a chunk as a response lists them, with offsets in code points.
pub(super) fn pages(chunk: &Chunk) -> Vec<PageBody> {
    if chunk.anchors.pages().is_empty() {
        return Vec::new();
    }
    let map = OffsetMap::new(&chunk.text, OffsetUnit::Codepoint);
    let page = |page: &PageStart| PageBody { start: map.from_byte(page.start), page: page.page };
    chunk.anchors.pages().iter().map(page).collect()
}

/// The places in chunks. Most chunks are no part's source: one is read when it is first cited.
pub(super) struct ChunkPlaces<'a> {
    chunks: &'a [Arc<Chunk>],
    pipeline: &'a Pipeline,
    places: Vec<OnceCell<Places<'a>>>,
}

impl<'a> ChunkPlaces<'a> {
    pub fn new(chunks: &'a [Arc<Chunk>], pipeline: &'a Pipeline) -> Self {
        Self { chunks, pipeline, places: chunks.iter().map(|_| OnceCell::new()).collect() }
    }

    /// The place of a range of the text of the chunk with this index.
    pub fn at(&self, chunk: usize, bytes: ByteRange) -> Place {
        self.places[chunk].get_or_init(|| self.pipeline.places(&self.chunks[chunk])).at(bytes)
    }
}
