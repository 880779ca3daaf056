//! How a chunk lies in the index, and its way there and back.
//! Knows nothing of files, commits or questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use tantivy::schema::document::OwnedValue;
use tantivy::schema::{
    FAST, Field, IndexRecordOption, JsonObjectOptions, STORED, STRING, Schema, TextFieldIndexing,
    TextOptions, Value,
};
use tantivy::{TantivyDocument, Term};
use thresher_core::domain::Chunk;

use super::analyzer;
use super::content::{content_of, id_hash};

/// Name of the field that filters look into.
pub const METADATA: &str = "metadata";

/// The fields of the index.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    /// The id, as one term.
    pub id: Field,
    /// The id's hash, in a column.
    pub id_hash: Field,
    /// The content's hash, in a column.
    pub content: Field,
    /// Words of title and text.
    pub words: Field,
    /// Metadata: terms by path for equality, columns for ranges.
    pub metadata: Field,
    title: Field,
    text: Field,
    metadata_source: Field,
}

/// The layout. Any change to it makes older indexes unreadable, and they are refused.
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
        metadata: schema.add_json_field(METADATA, metadata),
        title: schema.add_text_field("title", STORED),
        text: schema.add_text_field("text", STORED),
        metadata_source: schema.add_text_field("metadata_source", STORED),
    };
    (schema.build(), fields)
}

impl Fields {
    /// The term that only this chunk has.
    pub fn term(&self, id: &str) -> Term {
        Term::from_field_text(self.id, id)
    }

    /// A chunk as a document.
    pub fn document(&self, chunk: &Chunk) -> TantivyDocument {
        let mut document = TantivyDocument::default();
        document.add_text(self.id, &chunk.id);
        document.add_u64(self.id_hash, id_hash(&chunk.id));
        document.add_u64(self.content, content_of(chunk));
        if let Some(title) = &chunk.title {
            document.add_text(self.words, title);
            document.add_text(self.title, title);
        }
        document.add_text(self.words, &chunk.text);
        document.add_text(self.text, &chunk.text);
        if let Some(source) = &chunk.metadata {
            document.add_text(self.metadata_source, source);
            document.add_object(self.metadata, object(source));
        }
        document
    }

    /// A stored document as a chunk; none when it is not one.
    pub fn chunk(&self, document: &TantivyDocument) -> Option<Arc<Chunk>> {
        let text = |field| document.get_first(field).and_then(|value| value.as_str()).map(str::to_owned);
        let (id, title, metadata) = (text(self.id)?, text(self.title), text(self.metadata_source));
        Some(Arc::new(Chunk { id, title, text: text(self.text)?, metadata }))
    }
}

/// Metadata that is no object, or that cannot be read, is kept but not searched. The API refuses it before.
fn object(source: &str) -> BTreeMap<String, OwnedValue> {
    match serde_json::from_str(source) {
        Ok(serde_json::Value::Object(map)) => {
            map.into_iter().map(|(key, value)| (key, value.into())).collect()
        }
        _ => BTreeMap::new(),
    }
}
