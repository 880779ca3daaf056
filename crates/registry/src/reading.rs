//! Reads chunks out of the index by their ids and addresses.

use std::sync::Arc;

use tantivy::schema::IndexRecordOption;
use tantivy::{DocAddress, DocSet, Searcher, SegmentReader, TERMINATED, TantivyDocument, TantivyError};
use thresher_core::domain::Chunk;

use super::schema::Fields;

/// Where the chunks of `ids` are, in their order.
pub fn addresses(
    searcher: &Searcher,
    fields: &Fields,
    ids: &[&str],
) -> Result<Vec<Option<DocAddress>>, TantivyError> {
    let mut found = vec![None; ids.len()];
    for (segment_ord, segment) in searcher.segment_readers().iter().enumerate() {
        let index = segment.inverted_index(fields.id)?;
        for (id, found) in ids.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            if let Some(docs) = index.read_postings(&fields.term(id), IndexRecordOption::Basic)? {
                *found = alive(docs, segment).map(|doc| DocAddress::new(segment_ord as u32, doc));
            }
        }
    }
    Ok(found)
}

fn alive(mut docs: impl DocSet, segment: &SegmentReader) -> Option<u32> {
    while docs.doc() != TERMINATED && segment.is_deleted(docs.doc()) {
        docs.advance();
    }
    (docs.doc() != TERMINATED).then(|| docs.doc())
}

/// The chunk at `address`.
pub fn chunk(searcher: &Searcher, fields: &Fields, address: DocAddress) -> Result<Arc<Chunk>, TantivyError> {
    let document: TantivyDocument = searcher.doc(address)?;
    fields
        .chunk(&document)
        .ok_or_else(|| TantivyError::InternalError(format!("document {address:?} is not a chunk")))
}

/// The chunks of `ids`, in their order.
pub fn chunks(
    searcher: &Searcher,
    fields: &Fields,
    ids: &[&str],
) -> Result<Vec<Option<Arc<Chunk>>>, TantivyError> {
    let mut places: Vec<(DocAddress, usize)> = Vec::with_capacity(ids.len());
    for (at, address) in addresses(searcher, fields, ids)?.into_iter().enumerate() {
        places.extend(address.map(|address| (address, at)));
    }
    // Neighbours on disk are compressed together: each piece is then unpacked once.
    places.sort_unstable();
    let mut found = vec![None; ids.len()];
    for (address, at) in places {
        found[at] = Some(chunk(searcher, fields, address)?);
    }
    Ok(found)
}
