//! What a caller may ask of metadata, from JSON and with the place of the first mistake.
//! Knows nothing of how it is looked up.
//!
//! An object of fields by dotted path, all of which must hold: `{"lang": "en", "year": {"gte": 2020}}`; and `and`, `or`,
//! `not` around more of them. A list in metadata passes when one of its values does.

use std::ops::Bound;

use serde_json::{Map, Value};
use thiserror::Error;
use thresher_core::plain::{Quoted, Shortened};
use thresher_core::shape::{self, ShapeError, ShapeLimits};

/// Bytes of one filter as JSON.
const BYTES_MAX: usize = 262_144;
/// Conditions in one filter.
const CONDITIONS_MAX: usize = 1_024;
/// JSON values in one filter: the conditions and all objects and lists around them.
const VALUES_MAX: usize = 16 * CONDITIONS_MAX;
/// `and`, `or`, `not` inside each other.
const DEPTH_MAX: usize = 16;
/// Objects and lists inside each other: two for each filter, and the tests and the list of the innermost field.
const JSON_DEPTH_MAX: usize = 2 * DEPTH_MAX + 4;

/// A condition on metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// All of them hold.
    All(Vec<Filter>),
    /// One of them holds.
    Any(Vec<Filter>),
    /// It does not hold.
    Not(Box<Filter>),
    /// A field passes a test.
    Field {
        /// Dotted path into the metadata.
        field: String,
        /// Where the condition stands in the request.
        place: String,
        /// What it has to be.
        test: Test,
    },
}

/// What a field has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// One of these: text, number or boolean.
    In(Vec<Value>),
    /// Between two numbers, or two times.
    Range(Bound<Value>, Bound<Value>),
    /// There at all, and not null.
    Exists,
}

/// A filter that its sender has to change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct FilterError {
    /// Stable code for programs.
    pub code: &'static str,
    /// What is wrong.
    pub message: String,
    /// Where, as a path into the body.
    pub param: String,
}

fn invalid(place: &str, message: impl Into<String>) -> FilterError {
    FilterError { code: "filter_invalid", message: message.into(), param: place.to_owned() }
}

impl FilterError {
    /// A field that no registered chunk has.
    pub fn unknown(field: &str, place: &str) -> Self {
        let message = format!("no registered chunk has a metadata field {}", Quoted(field));
        Self { code: "filter_field_unknown", message, param: place.to_owned() }
    }
}

impl Filter {
    /// Reads a filter from JSON. Its bytes, values and nesting are bounded before it is built.
    ///
    /// # Errors
    /// As [`Self::parse`]; when it is not JSON, too large, or has a key twice, of which only one could hold.
    pub fn from_json(json: &str, place: &str) -> Result<Self, FilterError> {
        if json.len() > BYTES_MAX {
            return Err(invalid(
                place,
                format!("the filter has {} bytes; the limit is {BYTES_MAX}", json.len()),
            ));
        }
        let limits =
            ShapeLimits { value_count_max: VALUES_MAX, depth_max: JSON_DEPTH_MAX, duplicate_keys: false };
        let value = shape::check(json.as_bytes(), limits)
            .and_then(|()| serde_json::from_str(json).map_err(ShapeError::Json));
        match value {
            Ok(value) => Self::parse(&value, place),
            Err(ShapeError::TooMany) => {
                let message = format!(
                    "the filter has more than {VALUES_MAX} JSON values, and may have {CONDITIONS_MAX} conditions"
                );
                Err(invalid(place, message))
            }
            Err(ShapeError::TooDeep) => {
                Err(invalid(place, format!("more than {DEPTH_MAX} filters or lists inside each other")))
            }
            Err(ShapeError::DuplicateKey) => {
                Err(invalid(place, "an object of the filter has the same key twice: only one would hold"))
            }
            Err(ShapeError::Json(error)) => Err(invalid(place, format!("the filter is not JSON: {error}"))),
        }
    }

    /// Reads a filter that stands at `place` in its request.
    ///
    /// # Errors
    /// [`FilterError`] with the path of the first thing wrong.
    pub fn parse(value: &Value, place: &str) -> Result<Self, FilterError> {
        Reader { left: CONDITIONS_MAX }.filter(value, place, DEPTH_MAX)
    }

    /// Every field that is asked about, with its place.
    pub fn fields(&self) -> Vec<(&str, &str)> {
        match self {
            Self::All(filters) | Self::Any(filters) => filters.iter().flat_map(Self::fields).collect(),
            Self::Not(filter) => filter.fields(),
            Self::Field { field, place, .. } => vec![(field, place)],
        }
    }
}

struct Reader {
    left: usize,
}

impl Reader {
    fn filter(&mut self, value: &Value, place: &str, depth: usize) -> Result<Filter, FilterError> {
        let Value::Object(object) = value else {
            return Err(invalid(place, "a filter is an object, such as {\"lang\": \"en\"}"));
        };
        if depth == 0 {
            return Err(invalid(place, format!("more than {DEPTH_MAX} filters inside each other")));
        }
        if object.is_empty() {
            return Err(invalid(place, "the filter is empty: leave it out to take every chunk"));
        }
        let mut all = Vec::with_capacity(object.len());
        for (name, value) in object {
            let place = format!("{place}.{}", Shortened(name));
            all.push(match &**name {
                "and" => Filter::All(self.filters(value, &place, depth)?),
                "or" => Filter::Any(self.filters(value, &place, depth)?),
                "not" => Filter::Not(Box::new(self.filter(value, &place, depth - 1)?)),
                field => self.field(field, value, &place)?,
            });
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Filter::All(all) })
    }

    fn filters(&mut self, value: &Value, place: &str, depth: usize) -> Result<Vec<Filter>, FilterError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let Some(list) = list else { return Err(invalid(place, "expected a list of at least one filter")) };
        let read = |(at, value)| self.filter(value, &format!("{place}[{at}]"), depth - 1);
        list.iter().enumerate().map(read).collect()
    }

    fn field(&mut self, field: &str, value: &Value, place: &str) -> Result<Filter, FilterError> {
        if field.split('.').any(str::is_empty) {
            return Err(invalid(
                place,
                format!("{} is not a dotted path such as \"author.name\"", Quoted(field)),
            ));
        }
        let of = |test| Filter::Field { field: field.to_owned(), place: place.to_owned(), test };
        match value {
            Value::Object(object) => {
                let tests = self.tests(object, place)?;
                let mut all: Vec<Filter> = tests
                    .into_iter()
                    .map(|(test, holds)| if holds { of(test) } else { Filter::Not(Box::new(of(test))) })
                    .collect();
                Ok(if all.len() == 1 { all.remove(0) } else { Filter::All(all) })
            }
            value => {
                self.count(1, place)?;
                Ok(of(Test::In(vec![scalar(value, place)?])))
            }
        }
    }

    fn tests(&mut self, object: &Map<String, Value>, place: &str) -> Result<Vec<(Test, bool)>, FilterError> {
        let (mut tests, mut lower, mut upper) = (Vec::new(), None, None);
        for (name, value) in object {
            let place = format!("{place}.{}", Shortened(name));
            match &**name {
                "in" => tests.push((Test::In(self.values(value, &place)?), true)),
                "exists" => {
                    let exists = value.as_bool().ok_or_else(|| invalid(&place, "expected true or false"))?;
                    tests.push((Test::Exists, exists));
                }
                "gt" => once(&mut lower, Bound::Excluded(bound(value, &place)?), &place)?,
                "gte" => once(&mut lower, Bound::Included(bound(value, &place)?), &place)?,
                "lt" => once(&mut upper, Bound::Excluded(bound(value, &place)?), &place)?,
                "lte" => once(&mut upper, Bound::Included(bound(value, &place)?), &place)?,
                _ => {
                    let name = Quoted(name);
                    let message =
                        format!("unknown test {name}, expected one of in, gt, gte, lt, lte, exists");
                    return Err(invalid(&place, message));
                }
            }
        }
        if let (Some(Bound::Included(a) | Bound::Excluded(a)), Some(Bound::Included(b) | Bound::Excluded(b))) =
            (&lower, &upper)
            && a.is_number() != b.is_number()
        {
            return Err(invalid(place, "one end of the range is a number, the other a time"));
        }
        if lower.is_some() || upper.is_some() {
            let end = |bound: Option<_>| bound.unwrap_or(Bound::Unbounded);
            tests.push((Test::Range(end(lower), end(upper)), true));
        }
        if tests.is_empty() {
            return Err(invalid(place, "expected a value, or an object of in, gt, gte, lt, lte, exists"));
        }
        self.count(tests.len(), place)?;
        Ok(tests)
    }

    fn values(&mut self, value: &Value, place: &str) -> Result<Vec<Value>, FilterError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let Some(list) = list else { return Err(invalid(place, "expected a list of at least one value")) };
        self.count(list.len(), place)?;
        list.iter().enumerate().map(|(at, value)| scalar(value, &format!("{place}[{at}]"))).collect()
    }

    fn count(&mut self, conditions: usize, place: &str) -> Result<(), FilterError> {
        self.left = self
            .left
            .checked_sub(conditions)
            .ok_or_else(|| invalid(place, format!("more than {CONDITIONS_MAX} conditions in one filter")))?;
        Ok(())
    }
}

fn scalar(value: &Value, place: &str) -> Result<Value, FilterError> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(value.clone()),
        Value::Null => Err(invalid(place, "null is not kept; ask for {\"exists\": false}")),
        _ => Err(invalid(place, "expected a text, a number or a boolean")),
    }
}

fn bound(value: &Value, place: &str) -> Result<Value, FilterError> {
    let is_time = |text: &str| super::search::time(text).is_some();
    match value {
        Value::Number(_) => Ok(value.clone()),
        Value::String(text) if is_time(text) => Ok(value.clone()),
        _ => Err(invalid(place, "expected a number, or a time such as \"2024-05-01T00:00:00Z\"")),
    }
}

fn once(slot: &mut Option<Bound<Value>>, bound: Bound<Value>, place: &str) -> Result<(), FilterError> {
    match slot.replace(bound) {
        None => Ok(()),
        Some(_) => Err(invalid(place, "the range has this end twice")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mistakes_have_a_place() {
        let check = |filter: Value, place: &str, message: &str| {
            let error = Filter::parse(&filter, "filter").expect_err("a mistake");
            assert_eq!(error.param, place, "{filter}: {}", error.message);
            assert!(error.message.contains(message), "{filter}: {}", error.message);
        };
        check(json!([]), "filter", "an object");
        check(json!({}), "filter", "empty");
        check(json!({"a": null}), "filter.a", "exists");
        check(json!({"a": []}), "filter.a", "a text, a number");
        check(json!({"a": {}}), "filter.a", "expected a value");
        check(json!({"a..b": 1}), "filter.a..b", "dotted path");
        check(json!({"": 1}), "filter.", "dotted path");
        check(json!({"a": {"like": "x"}}), "filter.a.like", "unknown test \"like\"");
        check(json!({"a": {"in": []}}), "filter.a.in", "at least one");
        check(json!({"a": {"in": "x"}}), "filter.a.in", "a list");
        check(json!({"a": {"in": ["x", {}]}}), "filter.a.in[1]", "a text");
        check(json!({"a": {"gte": "soon"}}), "filter.a.gte", "a time");
        check(json!({"a": {"gte": 1, "gt": 2}}), "filter.a.gt", "twice");
        check(json!({"a": {"gte": 1, "lt": "2024-05-01T00:00:00Z"}}), "filter.a", "the other a time");
        check(json!({"a": {"exists": 1}}), "filter.a.exists", "true or false");
        check(json!({"or": []}), "filter.or", "at least one");
        check(json!({"or": {"a": 1}}), "filter.or", "a list");
        check(json!({"and": [{"a": 1}, {"not": 5}]}), "filter.and[1].not", "an object");
        let many: Vec<u32> = (0..2000).collect();
        check(json!({"a": {"in": many}}), "filter.a.in", "1024 conditions");
        let deep = (0..40).fold(json!({"a": 1}), |inner, _| json!({"not": inner}));
        assert!(Filter::parse(&deep, "filter").expect_err("too deep").message.contains("inside each other"));
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_built() {
        let check = |name: &str, json: String, message: &str| {
            let error = Filter::from_json(&json, "filter").expect_err(name);
            assert_eq!((error.code, &*error.param), ("filter_invalid", "filter"), "{name}");
            assert!(error.message.contains(message), "{name}: {}", error.message);
            assert!(error.message.len() < 400, "{name}: {}", error.message);
        };
        let list = |item: &str, count| vec![item; count].join(",");
        check("bytes", format!(r#"{{"a": "{}"}}"#, "x".repeat(BYTES_MAX)), "the limit is 262144");
        check("values", format!(r#"{{"a": {{"in": [{}]}}}}"#, list("1", VALUES_MAX)), "1024 conditions");
        check("depth", format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), "inside each other");
        check("a key twice", r#"{"tenant": "a", "tenant": "b"}"#.to_owned(), "twice");
        check("no JSON", "{".to_owned(), "not JSON");
        let long = format!(r#"{{"{}": {{"like": 1}}}}"#, "k".repeat(100_000));
        let error = Filter::from_json(&long, "filter").expect_err("an unknown test");
        assert!(error.param.len() < 200, "{}", error.param);
    }

    #[test]
    fn filters_nested_as_deep_as_allowed_are_read() {
        let nested = (1..DEPTH_MAX)
            .fold(r#"{"a": {"in": [1]}}"#.to_owned(), |inner, _| format!(r#"{{"or": [{inner}]}}"#));
        Filter::from_json(&nested, "filter").expect("within the limits");
        let deeper = format!(r#"{{"not": {nested}}}"#);
        let error = Filter::from_json(&deeper, "filter").expect_err("one more");
        assert!(error.message.contains("inside each other"), "{}", error.message);
    }

    #[test]
    fn every_field_is_named() {
        let filter = json!({"a": 1, "or": [{"b.c": {"gt": 1, "lte": 5}}, {"not": {"d": {"exists": false}}}]});
        let filter = Filter::parse(&filter, "f").expect("a filter");
        assert_eq!(filter.fields(), [("a", "f.a"), ("b.c", "f.or[0].b.c"), ("d", "f.or[1].not.d")]);
    }
}
