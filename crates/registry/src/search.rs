//! Searches the index: BM25 over words, and filters over metadata.
//! Does not know about models, files or commits.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;
use tantivy::collector::{Collector, Count, SegmentCollector, TopDocs};
use tantivy::columnar::{Column, NumericalValue};
use tantivy::query::{
    AllQuery, BooleanQuery, ConstScoreQuery, EmptyQuery, ExistsQuery, Occur, Query, RangeQuery, TermQuery,
};
use tantivy::schema::IndexRecordOption;
use tantivy::schema::document::OwnedValue;
use tantivy::{DateTime, DocId, Score, Searcher, SegmentOrdinal, SegmentReader, Term};
use thresher_core::domain::Chunk;

use super::change::id_hash;
use super::filter::{Filter, FilterError, Test};
use super::schema::{self, Fields, METADATA};
use super::{RegistryError, analyzer};

/// A chunk that a search found.
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
    pub fn best(
        &self,
        query: &str,
        filter: Option<&Filter>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        let Some(words) = self.words_query(query) else { return Ok(Vec::new()) };
        let query: Box<dyn Query> = match filter {
            None => words,
            Some(filter) => {
                let filter = ConstScoreQuery::new(self.checked_query(filter)?, 0.0);
                Box::new(BooleanQuery::new(vec![(Occur::Must, words), (Occur::Must, Box::new(filter))]))
            }
        };
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
            let collector = IdHashCollector { id_hashes, requires_scores: true };
            let found: HashMap<u64, f32> = self.searcher.search(&*words, &collector)?.into_iter().collect();
            for (score, id) in scores.iter_mut().zip(ids) {
                *score = found.get(&id_hash(id.as_ref())).copied().unwrap_or(0.0);
            }
        }
        Ok(scores)
    }

    /// Returns the hashes of the ids of all chunks that pass `filter`.
    pub fn matching(&self, filter: &Filter) -> Result<HashSet<u64>, RegistryError> {
        let all = IdHashCollector { id_hashes: Arc::default(), requires_scores: false };
        let found = self.searcher.search(&*self.checked_query(filter)?, &all)?;
        Ok(found.into_iter().map(|(id, _)| id).collect())
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

    /// Converts a filter to a query, after checking that each of its fields exists in some chunk. In an empty
    /// registry fields are not checked, and no chunk passes.
    fn checked_query(&self, filter: &Filter) -> Result<Box<dyn Query>, RegistryError> {
        if self.searcher.num_docs() == 0 {
            return Ok(Box::new(EmptyQuery));
        }
        let mut checked = HashSet::new();
        for (field, param) in filter.fields() {
            if checked.insert(field) && self.searcher.search(&exists_query(field), &Count)? == 0 {
                return Err(FilterError::unknown_field(field, param).into());
            }
        }
        Ok(self.filter_query(filter))
    }

    fn filter_query(&self, filter: &Filter) -> Box<dyn Query> {
        let each = |filters: &[Filter], occur| {
            BooleanQuery::new(filters.iter().map(|filter| (occur, self.filter_query(filter))).collect())
        };
        match filter {
            Filter::All(filters) => Box::new(each(filters, Occur::Must)),
            Filter::Any(filters) => Box::new(each(filters, Occur::Should)),
            Filter::Not(filter) => Box::new(BooleanQuery::new(vec![
                (Occur::Must, Box::new(AllQuery)),
                (Occur::MustNot, self.filter_query(filter)),
            ])),
            Filter::Field { field, test, .. } => self.test_query(field, test),
        }
    }

    fn test_query(&self, field: &str, test: &Test) -> Box<dyn Query> {
        match test {
            Test::Exists => Box::new(exists_query(field)),
            Test::In(values) => {
                let values = values.iter().map(|value| (Occur::Should, self.equals_query(field, value)));
                Box::new(BooleanQuery::new(values.collect()))
            }
            Test::Range(lower, upper) => {
                let (lower, upper) = same_type(lower, upper);
                let term = |bound: Bound<Value>| bound.map(|value| self.range_term(field, &value));
                Box::new(RangeQuery::new(term(lower), term(upper)))
            }
        }
    }

    fn equals_query(&self, field: &str, value: &Value) -> Box<dyn Query> {
        let term = self.term(field, value);
        match value {
            // Terms hold times in whole seconds, columns in full precision, so times are compared by a range
            // query.
            Value::String(text) if parse_time(text).is_some() => {
                Box::new(RangeQuery::new(Bound::Included(term.clone()), Bound::Included(term)))
            }
            _ => Box::new(TermQuery::new(term, IndexRecordOption::Basic)),
        }
    }

    /// Does the same as [`Self::term`], except that a whole number of float type stays a float.
    fn range_term(&self, field: &str, value: &Value) -> Term {
        match value {
            Value::Number(number) if number.is_f64() => {
                let mut term = Term::from_field_json_path(self.fields.metadata, field, true);
                term.append_type_and_fast_value(number.as_f64().expect("a float"));
                term
            }
            other => self.term(field, other),
        }
    }

    /// The term that the index writes for a value.
    fn term(&self, field: &str, value: &Value) -> Term {
        let mut term = Term::from_field_json_path(self.fields.metadata, field, true);
        match OwnedValue::from(value.clone()) {
            OwnedValue::Str(text) => term.append_type_and_str(&text),
            OwnedValue::Bool(value) => term.append_type_and_fast_value(value),
            OwnedValue::Date(time) => term.append_type_and_fast_value(time),
            OwnedValue::I64(number) => term.append_type_and_fast_value(number),
            OwnedValue::U64(number) => term.append_type_and_fast_value(number),
            // The index writes 2.0 as 2.
            OwnedValue::F64(number) => match NumericalValue::F64(number).normalize() {
                NumericalValue::I64(number) => term.append_type_and_fast_value(number),
                NumericalValue::U64(number) => term.append_type_and_fast_value(number),
                NumericalValue::F64(number) => term.append_type_and_fast_value(number),
            },
            other => unreachable!("filters hold no {other:?}"),
        }
        term
    }
}

/// Converts both ends of a range to the same type, which the index requires.
fn same_type(lower: &Bound<Value>, upper: &Bound<Value>) -> (Bound<Value>, Bound<Value>) {
    let is =
        |test: fn(&Value) -> bool| [lower, upper].into_iter().all(|end| bound_value(end).is_none_or(test));
    if is(|value| value.is_string() || value.is_i64()) || is(Value::is_u64) {
        return (lower.clone(), upper.clone());
    }
    let float =
        |bound: &Bound<Value>| bound.as_ref().map(|value| value.as_f64().map_or(Value::Null, Value::from));
    (float(lower), float(upper))
}

fn bound_value(bound: &Bound<Value>) -> Option<&Value> {
    match bound {
        Bound::Included(value) | Bound::Excluded(value) => Some(value),
        Bound::Unbounded => None,
    }
}

fn exists_query(field: &str) -> ExistsQuery {
    ExistsQuery::new(format!("{METADATA}.{field}"), true)
}

/// Parses a string that the index stores as a time (RFC 3339). Returns `None` for other strings.
pub fn parse_time(text: &str) -> Option<DateTime> {
    match OwnedValue::from(Value::String(text.to_owned())) {
        OwnedValue::Date(time) => Some(time),
        _ => None,
    }
}

/// Collects the id hashes and scores of the chunks found: of those in `id_hashes`, or of all chunks if it is
/// empty.
struct IdHashCollector {
    id_hashes: Arc<HashSet<u64>>,
    requires_scores: bool,
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
        self.requires_scores
    }

    fn merge_fruits(&self, fruits: Vec<Vec<(u64, Score)>>) -> tantivy::Result<Vec<(u64, Score)>> {
        Ok(fruits.concat())
    }
}

impl SegmentCollector for IdHashSegmentCollector {
    type Fruit = Vec<(u64, Score)>;

    fn collect(&mut self, doc: DocId, score: Score) {
        let id = self.column.first(doc).expect("every document has an id");
        if self.id_hashes.is_empty() || self.id_hashes.contains(&id) {
            self.found.push((id, score));
        }
    }

    fn harvest(self) -> Vec<(u64, Score)> {
        self.found
    }
}
