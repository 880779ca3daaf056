//! Searches the index: BM25 over words.
//! Does not know about models, files or commits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tantivy::collector::{Collector, SegmentCollector, TopDocs};
use tantivy::columnar::Column;
use tantivy::query::{BooleanQuery, Occur, Query, TermQuery};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, Score, Searcher, SegmentOrdinal, SegmentReader, Term};
use thresher_core::domain::Chunk;

use super::change::id_hash;
use super::schema::{self, Fields};
use super::{RegistryError, analyzer};

#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    pub chunk: Arc<Chunk>,
    /// The chunk's BM25 score, unbounded; 0 if it was found by its vector alone.
    pub bm25: f32,
}

/// Searches one snapshot of the index.
pub struct IndexSearch<'a> {
    pub searcher: &'a Searcher,
    pub fields: &'a Fields,
}

impl IndexSearch<'_> {
    /// Returns the `limit` best chunks for `query`. Fails if they have more than `bytes_max` bytes of text
    /// together.
    pub fn best(&self, query: &str, limit: usize, bytes_max: usize) -> Result<Vec<Hit>, RegistryError> {
        let Some(query) = self.words_query(query) else { return Ok(Vec::new()) };
        if limit == 0 {
            return Ok(Vec::new());
        }
        let found = self.searcher.search(&*query, &TopDocs::with_limit(limit).order_by_score())?;
        let (mut hits, mut bytes) = (Vec::with_capacity(found.len()), 0);
        for (bm25, address) in found {
            let chunk = schema::read_chunk(self.searcher, self.fields, address)?;
            bytes += chunk.text.len();
            if bytes > bytes_max {
                return Err(RegistryError::FoundTooLong { bytes_max });
            }
            hits.push(Hit { chunk, bm25 });
        }
        hits.sort_by(|a, b| b.bm25.total_cmp(&a.bm25).then_with(|| a.chunk.id.cmp(&b.chunk.id)));
        Ok(hits)
    }

    /// Returns the BM25 score of each of `ids`, in their order; 0 for chunks without any word of `query`.
    pub fn scores(&self, query: &str, ids: &[impl AsRef<str>]) -> Result<Vec<f32>, RegistryError> {
        let mut scores = vec![0.0; ids.len()];
        if let Some(words) = self.words_query(query) {
            let id_hashes = Arc::new(ids.iter().map(|id| id_hash(id.as_ref())).collect());
            let collector = IdHashCollector { id_hashes };
            let found: HashMap<u64, f32> = self.searcher.search(&*words, &collector)?.into_iter().collect();
            for (score, id) in scores.iter_mut().zip(ids) {
                *score = found.get(&id_hash(id.as_ref())).copied().unwrap_or(0.0);
            }
        }
        Ok(scores)
    }

    /// A query for any of the words of `query`; `None` if it has no words.
    fn words_query(&self, query: &str) -> Option<Box<dyn Query>> {
        let term = |word: String| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(self.fields.words, &word);
            (Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)))
        };
        let terms: Vec<_> = analyzer::words(query).into_iter().map(term).collect();
        (!terms.is_empty()).then(|| Box::new(BooleanQuery::new(terms)) as Box<dyn Query>)
    }
}

/// Collects the scores of those chunks found whose id hashes are in `id_hashes`.
struct IdHashCollector {
    id_hashes: Arc<HashSet<u64>>,
}

struct IdHashSegmentCollector {
    id_hashes: Arc<HashSet<u64>>,
    column: Column<u64>,
    found: Vec<(u64, Score)>,
}

impl Collector for IdHashCollector {
    type Fruit = Vec<(u64, Score)>;
    type Child = IdHashSegmentCollector;

    fn for_segment(
        &self,
        _: SegmentOrdinal,
        segment: &SegmentReader,
    ) -> tantivy::Result<IdHashSegmentCollector> {
        let column = segment.fast_fields().u64("id_hash")?;
        let id_hashes = Arc::clone(&self.id_hashes);
        Ok(IdHashSegmentCollector { id_hashes, column, found: Vec::new() })
    }

    fn requires_scoring(&self) -> bool {
        true
    }

    fn merge_fruits(&self, fruits: Vec<Vec<(u64, Score)>>) -> tantivy::Result<Vec<(u64, Score)>> {
        Ok(fruits.concat())
    }
}

impl SegmentCollector for IdHashSegmentCollector {
    type Fruit = Vec<(u64, Score)>;

    fn collect(&mut self, doc: DocId, score: Score) {
        let id = self.column.first(doc).expect("every document has an id");
        if self.id_hashes.contains(&id) {
            self.found.push((id, score));
        }
    }

    fn harvest(self) -> Vec<(u64, Score)> {
        self.found
    }
}
