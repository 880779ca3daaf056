//! The layout of a chunk in the index: writing a chunk as a document, and reading chunks back by id or
//! address. Does not know about files, commits or queries.

use std::sync::Arc;

use tantivy::schema::{
    FAST, Field, IndexRecordOption, JsonObjectOptions, STORED, STRING, Schema, TextFieldIndexing,
    TextOptions, Value,
};
use tantivy::{DocAddress, DocSet, Searcher, SegmentReader, TERMINATED, TantivyDocument, TantivyError, Term};
use thresher_core::domain::{Anchors, Chunk, Kind};

use super::analyzer;
use super::change::{content_hash, id_hash};

#[derive(Debug, Clone, Copy)]
pub struct Fields {
    pub id: Field,
    pub id_hash: Field,
    /// The hash of the content, as a column.
    pub content: Field,
    /// The words of the title and the text.
    pub words: Field,
    _metadata: Field,
    title: Field,
    /// The text and, as its second value, the anchors as JSON if there are any: a field of their own would have indexes of earlier versions
    /// refused.
    text: Field,
    /// Missing if the kind is found out from the text.
    kind: Field,
    metadata_source: Field,
}

/// The schema of the index. After any change to it, indexes that were written before are refused.
pub fn schema() -> (Schema, Fields) {
    let mut schema = Schema::builder();
    let words = TextFieldIndexing::default()
        .set_tokenizer(analyzer::NAME)
        .set_index_option(IndexRecordOption::WithFreqs);
    let terms = TextFieldIndexing::default().set_tokenizer("raw").set_index_option(IndexRecordOption::Basic);
    let metadata =
        JsonObjectOptions::default().set_indexing_options(terms).set_fast("raw").set_expand_dots_enabled();
    let fields = Fields {
        id: schema.add_text_field("id", STRING | STORED),
        id_hash: schema.add_u64_field("id_hash", FAST),
        content: schema.add_u64_field("content", FAST),
        words: schema.add_text_field("words", TextOptions::default().set_indexing_options(words)),
        // Nothing is written there any more; without the field, indexes of earlier versions would be refused.
        _metadata: schema.add_json_field("metadata", metadata),
        title: schema.add_text_field("title", STORED),
        text: schema.add_text_field("text", STORED),
        kind: schema.add_text_field("kind", STORED),
        metadata_source: schema.add_text_field("metadata_source", STORED),
    };
    (schema.build(), fields)
}

impl Fields {
    /// The term that matches only the chunk with this id.
    pub fn term(&self, id: &str) -> Term {
        Term::from_field_text(self.id, id)
    }

    pub fn document(&self, chunk: &Chunk) -> TantivyDocument {
        let mut document = TantivyDocument::default();
        document.add_text(self.id, &chunk.id);
        document.add_u64(self.id_hash, id_hash(&chunk.id));
        document.add_u64(self.content, content_hash(chunk));
        if let Some(title) = &chunk.title {
            document.add_text(self.words, title);
            document.add_text(self.title, title);
        }
        document.add_text(self.words, &chunk.text);
        document.add_text(self.text, &chunk.text);
        if let Some(anchors) = chunk.anchors.to_json() {
            document.add_text(self.text, anchors);
        }
        if !chunk.kind.is_auto() {
            document.add_text(self.kind, chunk.kind.name());
        }
        if let Some(source) = &chunk.metadata {
            document.add_text(self.metadata_source, source);
        }
        document
    }

    /// Converts a stored document to a chunk. Returns `None` if a field that every chunk has is missing.
    pub fn chunk(&self, document: &TantivyDocument) -> Option<Arc<Chunk>> {
        let text = |field| document.get_first(field).and_then(|value| value.as_str()).map(str::to_owned);
        let (id, title, metadata) = (text(self.id)?, text(self.title), text(self.metadata_source));
        let kind = text(self.kind).and_then(|name| Kind::named(&name)).unwrap_or_default();
        let text = text(self.text)?;
        let anchors = document.get_all(self.text).nth(1).and_then(|value| value.as_str());
        let anchors = anchors.map(|json| Anchors::from_json(json, &text)).unwrap_or_default();
        Some(Arc::new(Chunk { id, title, text, kind, metadata, anchors }))
    }
}

pub fn read_chunk(
    searcher: &Searcher,
    fields: &Fields,
    address: DocAddress,
) -> Result<Arc<Chunk>, TantivyError> {
    let document: TantivyDocument = searcher.doc(address)?;
    fields
        .chunk(&document)
        .ok_or_else(|| TantivyError::InternalError(format!("document {address:?} is not a chunk")))
}

/// Reads the chunks with these `ids`, in the order of `ids`; `None` for ids that are not in the index.
pub fn read_chunks(
    searcher: &Searcher,
    fields: &Fields,
    ids: &[&str],
) -> Result<Vec<Option<Arc<Chunk>>>, TantivyError> {
    let mut addresses: Vec<(DocAddress, usize)> = Vec::with_capacity(ids.len());
    for (index, address) in find_addresses(searcher, fields, ids)?.into_iter().enumerate() {
        addresses.extend(address.map(|address| (address, index)));
    }
    // Documents that are neighbours on disk are compressed together: in this order each compressed block is
    // unpacked once.
    addresses.sort_unstable();
    let mut found = vec![None; ids.len()];
    for (address, index) in addresses {
        found[index] = Some(read_chunk(searcher, fields, address)?);
    }
    Ok(found)
}

/// Returns the addresses of the chunks with these `ids`, in the order of `ids`.
fn find_addresses(
    searcher: &Searcher,
    fields: &Fields,
    ids: &[&str],
) -> Result<Vec<Option<DocAddress>>, TantivyError> {
    let mut found = vec![None; ids.len()];
    for (segment_ord, segment) in searcher.segment_readers().iter().enumerate() {
        let index = segment.inverted_index(fields.id)?;
        for (id, found) in ids.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            if let Some(docs) = index.read_postings(&fields.term(id), IndexRecordOption::Basic)? {
                *found = first_live(docs, segment).map(|doc| DocAddress::new(segment_ord as u32, doc));
            }
        }
    }
    Ok(found)
}

/// The first document that is not deleted.
fn first_live(mut docs: impl DocSet, segment: &SegmentReader) -> Option<u32> {
    while docs.doc() != TERMINATED && segment.is_deleted(docs.doc()) {
        docs.advance();
    }
    (docs.doc() != TERMINATED).then(|| docs.doc())
}
