//! Questions to the index: BM25 over words, filters over metadata.
//! Knows nothing of models, files or commits.

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

use super::content::id_hash;
use super::filter::{Filter, FilterError, Test};
use super::schema::{Fields, METADATA};
use super::{RegistryError, analyzer, reading};

/// A chunk that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Its BM25.
    pub bm25: f32,
}

/// One state of the index, and how to ask it.
pub struct Questions<'a> {
    pub searcher: &'a Searcher,
    pub fields: &'a Fields,
}

impl Questions<'_> {
    /// The best chunks for `query`, of `bytes_max` bytes of text at most.
    pub fn best(
        &self,
        query: &str,
        filter: Option<&Filter>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        let Some(words) = self.words(query) else { return Ok(Vec::new()) };
        let query: Box<dyn Query> = match filter {
            None => words,
            Some(filter) => {
                let filter = ConstScoreQuery::new(self.filter(filter)?, 0.0);
                Box::new(BooleanQuery::new(vec![(Occur::Must, words), (Occur::Must, Box::new(filter))]))
            }
        };
        if limit == 0 {
            return Ok(Vec::new());
        }
        let found = self.searcher.search(&*query, &TopDocs::with_limit(limit).order_by_score())?;
        let (mut hits, mut bytes) = (Vec::with_capacity(found.len()), 0);
        for (bm25, address) in found {
            let chunk = reading::chunk(self.searcher, self.fields, address)?;
            bytes += chunk.text.len();
            if bytes > bytes_max {
                return Err(RegistryError::FoundTooLong { bytes_max });
            }
            hits.push(Hit { chunk, bm25 });
        }
        hits.sort_by(|a, b| b.bm25.total_cmp(&a.bm25).then_with(|| a.chunk.id.cmp(&b.chunk.id)));
        Ok(hits)
    }

    /// BM25 of each of `ids`, in their order; 0 for those without a word of `query`.
    pub fn scores(&self, query: &str, ids: &[impl AsRef<str>]) -> Result<Vec<f32>, RegistryError> {
        let mut scores = vec![0.0; ids.len()];
        if let Some(words) = self.words(query) {
            let asked =
                Asked { ids: Arc::new(ids.iter().map(|id| id_hash(id.as_ref())).collect()), scored: true };
            let found: HashMap<u64, f32> = self.searcher.search(&*words, &asked)?.into_iter().collect();
            for (score, id) in scores.iter_mut().zip(ids) {
                *score = found.get(&id_hash(id.as_ref())).copied().unwrap_or(0.0);
            }
        }
        Ok(scores)
    }

    /// Hashes of the ids of all chunks that pass `filter`.
    pub fn passing(&self, filter: &Filter) -> Result<HashSet<u64>, RegistryError> {
        let all = Asked { ids: Arc::default(), scored: false };
        let found = self.searcher.search(&*self.filter(filter)?, &all)?;
        Ok(found.into_iter().map(|(id, _)| id).collect())
    }

    fn words(&self, query: &str) -> Option<Box<dyn Query>> {
        let term = |word: String| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(self.fields.words, &word);
            (Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)))
        };
        let terms: Vec<_> = analyzer::words(query).into_iter().map(term).collect();
        (!terms.is_empty()).then(|| Box::new(BooleanQuery::new(terms)) as Box<dyn Query>)
    }

    /// A filter whose fields are all known. An empty registry knows none and says so of none: nothing passes.
    fn filter(&self, filter: &Filter) -> Result<Box<dyn Query>, RegistryError> {
        if self.searcher.num_docs() == 0 {
            return Ok(Box::new(EmptyQuery));
        }
        let mut known = HashSet::new();
        for (field, place) in filter.fields() {
            if known.insert(field) && self.searcher.search(&exists(field), &Count)? == 0 {
                return Err(FilterError::unknown(field, place).into());
            }
        }
        Ok(self.query(filter))
    }

    fn query(&self, filter: &Filter) -> Box<dyn Query> {
        let each = |filters: &[Filter], occur| {
            BooleanQuery::new(filters.iter().map(|filter| (occur, self.query(filter))).collect())
        };
        match filter {
            Filter::All(filters) => Box::new(each(filters, Occur::Must)),
            Filter::Any(filters) => Box::new(each(filters, Occur::Should)),
            Filter::Not(filter) => Box::new(BooleanQuery::new(vec![
                (Occur::Must, Box::new(AllQuery)),
                (Occur::MustNot, self.query(filter)),
            ])),
            Filter::Field { field, test, .. } => self.test(field, test),
        }
    }

    fn test(&self, field: &str, test: &Test) -> Box<dyn Query> {
        match test {
            Test::Exists => Box::new(exists(field)),
            Test::In(values) => {
                let values = values.iter().map(|value| (Occur::Should, self.equals(field, value)));
                Box::new(BooleanQuery::new(values.collect()))
            }
            Test::Range(lower, upper) => {
                let (lower, upper) = alike(lower, upper);
                let term = |bound: Bound<Value>| bound.map(|value| self.range_term(field, &value));
                Box::new(RangeQuery::new(term(lower), term(upper)))
            }
        }
    }

    fn equals(&self, field: &str, value: &Value) -> Box<dyn Query> {
        let term = self.term(field, value);
        match value {
            // Terms of times are cut to the second; columns are not.
            Value::String(text) if time(text).is_some() => {
                Box::new(RangeQuery::new(Bound::Included(term.clone()), Bound::Included(term)))
            }
            _ => Box::new(TermQuery::new(term, IndexRecordOption::Basic)),
        }
    }

    /// As [`Self::term`], but a whole number that was made a float stays one.
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

    /// A value as the index writes it.
    fn term(&self, field: &str, value: &Value) -> Term {
        let mut term = Term::from_field_json_path(self.fields.metadata, field, true);
        match OwnedValue::from(value.clone()) {
            OwnedValue::Str(text) => term.append_type_and_str(&text),
            OwnedValue::Bool(value) => term.append_type_and_fast_value(value),
            OwnedValue::Date(time) => term.append_type_and_fast_value(time),
            OwnedValue::I64(number) => term.append_type_and_fast_value(number),
            OwnedValue::U64(number) => term.append_type_and_fast_value(number),
            // 2.0 is written as 2.
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

/// Ends of a range of one type: the index takes no others.
fn alike(lower: &Bound<Value>, upper: &Bound<Value>) -> (Bound<Value>, Bound<Value>) {
    let is = |test: fn(&Value) -> bool| [lower, upper].into_iter().all(|end| holds(end).is_none_or(test));
    if is(|value| value.is_string() || value.is_i64()) || is(Value::is_u64) {
        return (lower.clone(), upper.clone());
    }
    let float =
        |bound: &Bound<Value>| bound.as_ref().map(|value| value.as_f64().map_or(Value::Null, Value::from));
    (float(lower), float(upper))
}

fn holds(bound: &Bound<Value>) -> Option<&Value> {
    match bound {
        Bound::Included(value) | Bound::Excluded(value) => Some(value),
        Bound::Unbounded => None,
    }
}

fn exists(field: &str) -> ExistsQuery {
    ExistsQuery::new(format!("{METADATA}.{field}"), true)
}

/// A text that is a time (RFC 3339), which the index then keeps as one.
pub fn time(text: &str) -> Option<DateTime> {
    match OwnedValue::from(Value::String(text.to_owned())) {
        OwnedValue::Date(time) => Some(time),
        _ => None,
    }
}

/// Collects id hashes with scores: of those asked for, or of all when none are named.
struct Asked {
    ids: Arc<HashSet<u64>>,
    scored: bool,
}

struct AskedInSegment {
    ids: Arc<HashSet<u64>>,
    column: Column<u64>,
    found: Vec<(u64, Score)>,
}

impl Collector for Asked {
    type Fruit = Vec<(u64, Score)>;
    type Child = AskedInSegment;

    fn for_segment(&self, _: SegmentOrdinal, segment: &SegmentReader) -> tantivy::Result<AskedInSegment> {
        let column = segment.fast_fields().u64("id_hash")?;
        Ok(AskedInSegment { ids: Arc::clone(&self.ids), column, found: Vec::new() })
    }

    fn requires_scoring(&self) -> bool {
        self.scored
    }

    fn merge_fruits(&self, fruits: Vec<Vec<(u64, Score)>>) -> tantivy::Result<Vec<(u64, Score)>> {
        Ok(fruits.concat())
    }
}

impl SegmentCollector for AskedInSegment {
    type Fruit = Vec<(u64, Score)>;

    fn collect(&mut self, doc: DocId, score: Score) {
        let id = self.column.first(doc).expect("every document has an id");
        if self.ids.is_empty() || self.ids.contains(&id) {
            self.found.push((id, score));
        }
    }

    fn harvest(self) -> Vec<(u64, Score)> {
        self.found
    }
}
