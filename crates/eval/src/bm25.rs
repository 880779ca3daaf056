//! BM25 over a small list of texts, in memory. It is the lexical baseline that every estimator is compared
//! with.

use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::{
    FAST, Field, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions, Value,
};
use tantivy::{Index, IndexReader, TantivyDocument, Term, doc};
use thiserror::Error;
use thresher_registry::analyzer;

/// The bytes that the writer may buffer: the smallest value that tantivy accepts.
const WRITER_BYTES: usize = 15_000_000;

#[derive(Debug, Error)]
#[error("lexical search failed: {0}")]
pub struct LexicalError(#[from] tantivy::TantivyError);

/// An index in memory over a fixed list of texts. Texts are split into words as for registered chunks.
pub struct Bm25Index {
    reader: IndexReader,
    body: Field,
    position: Field,
    len: usize,
}

impl Bm25Index {
    /// Indexes `texts`.
    ///
    /// # Errors
    /// Returns a [`LexicalError`] if tantivy fails.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, LexicalError> {
        let mut schema = Schema::builder();
        let words = TextFieldIndexing::default()
            .set_tokenizer(analyzer::NAME)
            .set_index_option(IndexRecordOption::WithFreqs);
        let body = schema.add_text_field("body", TextOptions::default().set_indexing_options(words));
        let position = schema.add_u64_field("position", FAST | STORED);
        let index = Index::create_in_ram(schema.build());
        index.tokenizers().register(analyzer::NAME, analyzer::analyzer());
        let mut writer = index.writer_with_num_threads(1, WRITER_BYTES)?;
        let mut len = 0;
        for text in texts {
            writer.add_document(doc!(body => text, position => len as u64))?;
            len += 1;
        }
        writer.commit()?;
        Ok(Self { reader: index.reader()?, body, position, len })
    }

    /// Returns the BM25 score of every text for `query`, in the order of the texts; 0 for texts without any
    /// word of the query.
    ///
    /// # Errors
    /// Returns a [`LexicalError`] if tantivy fails.
    pub fn scores(&self, query: &str) -> Result<Vec<f32>, LexicalError> {
        let mut scores = vec![0.0; self.len];
        if self.len == 0 {
            return Ok(scores);
        }
        let searcher = self.reader.searcher();
        for (score, address) in
            searcher.search(&self.query(query), &TopDocs::with_limit(self.len).order_by_score())?
        {
            let found: TantivyDocument = searcher.doc(address)?;
            let position = found.get_first(self.position).and_then(|value| value.as_u64());
            scores[position.expect("every document was stored with its position") as usize] = score;
        }
        Ok(scores)
    }

    fn query(&self, query: &str) -> BooleanQuery {
        let term = |word: String| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(self.body, &word);
            (Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)))
        };
        BooleanQuery::new(analyzer::words(query).into_iter().map(term).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_words_count_more_than_common_ones() {
        let texts = ["the tide and the moon", "the bridge and the road", "the tide table", ""];
        let scores =
            Bm25Index::new(texts).and_then(|index| index.scores("Moon, the?")).expect("an index in memory");
        assert_eq!(scores.len(), 4);
        assert!(scores[0] > scores[1] && scores[1] > 0.0, "{scores:?}");
        assert_eq!(scores[3], 0.0);
    }

    #[test]
    fn scripts_without_spaces_are_compared_by_pairs_of_characters() {
        let texts = ["他在东京出生", "她在上海出生"];
        let scores =
            Bm25Index::new(texts).and_then(|index| index.scores("谁在上海?")).expect("an index in memory");
        assert!(scores[1] > scores[0], "{scores:?}");
    }
}
