//! Filters on metadata: parsed from JSON, with the path of the first mistake in errors.
//! Does not know how the index evaluates a filter.
//!
//! A filter is an object of conditions by dotted field path, all of which must hold: `{"lang": "en", "year":
//! {"gte": 2020}}`. `and`, `or` and `not` combine filters. A list in the metadata passes a condition if one
//! of its values does.

use std::ops::Bound;

use serde_json::{Map, Value};
use thiserror::Error;
use thresher_core::plain::{Quoted, Shortened};
use thresher_core::shape::{self, ShapeError, ShapeLimits};

/// The largest filter, in bytes of JSON.
const BYTES_MAX: usize = 262_144;
const CONDITIONS_MAX: usize = 1_024;
/// The largest number of JSON values in one filter: the conditions, and the objects and lists around them.
const VALUES_MAX: usize = 16 * CONDITIONS_MAX;
/// How deep `and`, `or` and `not` may be nested.
const DEPTH_MAX: usize = 16;
/// How deep JSON objects and lists may be nested: two for each filter, and the tests and the list of the
/// innermost field.
const JSON_DEPTH_MAX: usize = 2 * DEPTH_MAX + 4;

/// A condition on metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
    Field {
        /// The field's dotted path in the metadata.
        field: String,
        /// The path of the condition in the request, for errors.
        param: String,
        test: Test,
    },
}

/// A test of a field's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// The value equals one of these strings, numbers or booleans.
    In(Vec<Value>),
    /// The value lies between two numbers, or between two times (lower end, upper end).
    Range(Bound<Value>, Bound<Value>),
    /// The field exists and is not null.
    Exists,
}

/// A mistake in a filter that a caller sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct FilterError {
    pub kind: FilterErrorKind,
    /// What is wrong, as a sentence for the caller.
    pub message: String,
    /// The path of the mistake in the request, such as `filter.year.gte`.
    pub param: String,
}

/// The kinds of mistakes in a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterErrorKind {
    /// The filter does not have the shape of one, or is too large.
    Invalid,
    /// The filter names a field that no registered chunk has.
    FieldUnknown,
}

fn invalid(param: &str, message: impl Into<String>) -> FilterError {
    FilterError { kind: FilterErrorKind::Invalid, message: message.into(), param: param.to_owned() }
}

impl FilterError {
    /// Makes the error for a field that no registered chunk has.
    pub fn unknown_field(field: &str, param: &str) -> Self {
        let message = format!("no registered chunk has a metadata field {}", Quoted(field));
        Self { kind: FilterErrorKind::FieldUnknown, message, param: param.to_owned() }
    }
}

impl Filter {
    /// Parses a filter from JSON text. Its bytes, values and nesting are checked against limits before it is
    /// built. `param` is the path of the filter in the request.
    ///
    /// # Errors
    /// Returns a [`FilterError`] if the text is not JSON, is over a limit, or has an object with the same key
    /// twice, and the errors of [`Self::parse`].
    pub fn from_json(json: &str, param: &str) -> Result<Self, FilterError> {
        if json.len() > BYTES_MAX {
            return Err(invalid(
                param,
                format!("the filter has {} bytes; the limit is {BYTES_MAX}", json.len()),
            ));
        }
        let limits =
            ShapeLimits { value_count_max: VALUES_MAX, depth_max: JSON_DEPTH_MAX, duplicate_keys: false };
        let value = shape::check(json.as_bytes(), limits)
            .and_then(|()| serde_json::from_str(json).map_err(ShapeError::Json));
        match value {
            Ok(value) => Self::parse(&value, param),
            Err(ShapeError::TooMany) => {
                let message = format!(
                    "the filter has more than {VALUES_MAX} JSON values; it may have at most {CONDITIONS_MAX} conditions"
                );
                Err(invalid(param, message))
            }
            Err(ShapeError::TooDeep) => {
                Err(invalid(param, format!("more than {DEPTH_MAX} filters or lists inside each other")))
            }
            Err(ShapeError::DuplicateKey) => Err(invalid(
                param,
                "an object of the filter has the same key twice: only one of the two conditions would be used",
            )),
            Err(ShapeError::Json(error)) => Err(invalid(param, format!("the filter is not JSON: {error}"))),
        }
    }

    /// Parses a filter. `param` is the path of the filter in the request.
    ///
    /// # Errors
    /// Returns a [`FilterError`] with the path of the first mistake.
    pub fn parse(value: &Value, param: &str) -> Result<Self, FilterError> {
        Parser { conditions_left: CONDITIONS_MAX }.filter(value, param, DEPTH_MAX)
    }

    /// Returns every field in the filter with the path of its condition in the request.
    pub fn fields(&self) -> Vec<(&str, &str)> {
        match self {
            Self::All(filters) | Self::Any(filters) => filters.iter().flat_map(Self::fields).collect(),
            Self::Not(filter) => filter.fields(),
            Self::Field { field, param, .. } => vec![(field, param)],
        }
    }
}

struct Parser {
    conditions_left: usize,
}

impl Parser {
    fn filter(&mut self, value: &Value, param: &str, depth: usize) -> Result<Filter, FilterError> {
        let Value::Object(object) = value else {
            return Err(invalid(param, "a filter is an object, such as {\"lang\": \"en\"}"));
        };
        if depth == 0 {
            return Err(invalid(param, format!("more than {DEPTH_MAX} filters inside each other")));
        }
        if object.is_empty() {
            return Err(invalid(param, "the filter is empty: omit it to search every chunk"));
        }
        let mut all = Vec::with_capacity(object.len());
        for (name, value) in object {
            let param = format!("{param}.{}", Shortened(name));
            all.push(match &**name {
                "and" => Filter::All(self.filters(value, &param, depth)?),
                "or" => Filter::Any(self.filters(value, &param, depth)?),
                "not" => Filter::Not(Box::new(self.filter(value, &param, depth - 1)?)),
                field => self.field(field, value, &param)?,
            });
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Filter::All(all) })
    }

    fn filters(&mut self, value: &Value, param: &str, depth: usize) -> Result<Vec<Filter>, FilterError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let Some(list) = list else { return Err(invalid(param, "expected a list of at least one filter")) };
        let read = |(at, value)| self.filter(value, &format!("{param}[{at}]"), depth - 1);
        list.iter().enumerate().map(read).collect()
    }

    fn field(&mut self, field: &str, value: &Value, param: &str) -> Result<Filter, FilterError> {
        if field.split('.').any(str::is_empty) {
            return Err(invalid(
                param,
                format!("{} is not a dotted path such as \"author.name\"", Quoted(field)),
            ));
        }
        let condition = |test| Filter::Field { field: field.to_owned(), param: param.to_owned(), test };
        match value {
            Value::Object(object) => {
                let tests = self.tests(object, param)?;
                let mut all: Vec<Filter> = tests
                    .into_iter()
                    .map(
                        |(test, holds)| {
                            if holds { condition(test) } else { Filter::Not(Box::new(condition(test))) }
                        },
                    )
                    .collect();
                Ok(if all.len() == 1 { all.remove(0) } else { Filter::All(all) })
            }
            value => {
                self.count(1, param)?;
                Ok(condition(Test::In(vec![scalar(value, param)?])))
            }
        }
    }

    fn tests(&mut self, object: &Map<String, Value>, param: &str) -> Result<Vec<(Test, bool)>, FilterError> {
        let (mut tests, mut lower, mut upper) = (Vec::new(), None, None);
        for (name, value) in object {
            let param = format!("{param}.{}", Shortened(name));
            match &**name {
                "in" => tests.push((Test::In(self.values(value, &param)?), true)),
                "exists" => {
                    let exists = value.as_bool().ok_or_else(|| invalid(&param, "expected true or false"))?;
                    tests.push((Test::Exists, exists));
                }
                "gt" => set_once(&mut lower, Bound::Excluded(bound(value, &param)?), &param)?,
                "gte" => set_once(&mut lower, Bound::Included(bound(value, &param)?), &param)?,
                "lt" => set_once(&mut upper, Bound::Excluded(bound(value, &param)?), &param)?,
                "lte" => set_once(&mut upper, Bound::Included(bound(value, &param)?), &param)?,
                _ => {
                    let name = Quoted(name);
                    let message =
                        format!("unknown test {name}, expected one of in, gt, gte, lt, lte, exists");
                    return Err(invalid(&param, message));
                }
            }
        }
        if let (Some(Bound::Included(a) | Bound::Excluded(a)), Some(Bound::Included(b) | Bound::Excluded(b))) =
            (&lower, &upper)
            && a.is_number() != b.is_number()
        {
            return Err(invalid(
                param,
                "one end of the range is a number, the other a time: use two numbers or two times",
            ));
        }
        if lower.is_some() || upper.is_some() {
            let end = |bound: Option<_>| bound.unwrap_or(Bound::Unbounded);
            tests.push((Test::Range(end(lower), end(upper)), true));
        }
        if tests.is_empty() {
            return Err(invalid(param, "expected a value, or an object of in, gt, gte, lt, lte, exists"));
        }
        self.count(tests.len(), param)?;
        Ok(tests)
    }

    fn values(&mut self, value: &Value, param: &str) -> Result<Vec<Value>, FilterError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let Some(list) = list else { return Err(invalid(param, "expected a list of at least one value")) };
        self.count(list.len(), param)?;
        list.iter().enumerate().map(|(at, value)| scalar(value, &format!("{param}[{at}]"))).collect()
    }

    fn count(&mut self, conditions: usize, param: &str) -> Result<(), FilterError> {
        self.conditions_left = self
            .conditions_left
            .checked_sub(conditions)
            .ok_or_else(|| invalid(param, format!("more than {CONDITIONS_MAX} conditions in one filter")))?;
        Ok(())
    }
}

fn scalar(value: &Value, param: &str) -> Result<Value, FilterError> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(value.clone()),
        Value::Null => Err(invalid(
            param,
            "null is not stored; use {\"exists\": false} to find chunks without the field",
        )),
        _ => Err(invalid(param, "expected a string, a number or a boolean")),
    }
}

fn bound(value: &Value, param: &str) -> Result<Value, FilterError> {
    let is_time = |text: &str| super::search::parse_time(text).is_some();
    match value {
        Value::Number(_) => Ok(value.clone()),
        Value::String(text) if is_time(text) => Ok(value.clone()),
        _ => Err(invalid(param, "expected a number, or a time such as \"2024-05-01T00:00:00Z\"")),
    }
}

/// Sets one end of a range, which may be given only once.
fn set_once(slot: &mut Option<Bound<Value>>, bound: Bound<Value>, param: &str) -> Result<(), FilterError> {
    match slot.replace(bound) {
        None => Ok(()),
        Some(_) => {
            Err(invalid(param, "the range has this end twice: give one of gt and gte, and one of lt and lte"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_path_of_the_mistake() {
        let check = |filter: Value, param: &str, message: &str| {
            let error = Filter::parse(&filter, "filter").expect_err("a mistake");
            assert_eq!(error.param, param, "{filter}: {}", error.message);
            assert!(error.message.contains(message), "{filter}: {}", error.message);
        };
        check(json!([]), "filter", "an object");
        check(json!({}), "filter", "empty");
        check(json!({"a": null}), "filter.a", "exists");
        check(json!({"a": []}), "filter.a", "a string, a number");
        check(json!({"a": {}}), "filter.a", "expected a value");
        check(json!({"a..b": 1}), "filter.a..b", "dotted path");
        check(json!({"": 1}), "filter.", "dotted path");
        check(json!({"a": {"like": "x"}}), "filter.a.like", "unknown test \"like\"");
        check(json!({"a": {"in": []}}), "filter.a.in", "at least one");
        check(json!({"a": {"in": "x"}}), "filter.a.in", "a list");
        check(json!({"a": {"in": ["x", {}]}}), "filter.a.in[1]", "a string");
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
    fn filters_over_a_limit_are_refused_before_they_are_built() {
        let check = |name: &str, json: String, message: &str| {
            let error = Filter::from_json(&json, "filter").expect_err(name);
            assert_eq!((error.kind, &*error.param), (FilterErrorKind::Invalid, "filter"), "{name}");
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
    fn filters_nested_as_deep_as_allowed_are_parsed() {
        let nested = (1..DEPTH_MAX)
            .fold(r#"{"a": {"in": [1]}}"#.to_owned(), |inner, _| format!(r#"{{"or": [{inner}]}}"#));
        Filter::from_json(&nested, "filter").expect("within the limits");
        let deeper = format!(r#"{{"not": {nested}}}"#);
        let error = Filter::from_json(&deeper, "filter").expect_err("one more");
        assert!(error.message.contains("inside each other"), "{}", error.message);
    }

    #[test]
    fn fields_are_listed_with_their_paths() {
        let filter = json!({"a": 1, "or": [{"b.c": {"gt": 1, "lte": 5}}, {"not": {"d": {"exists": false}}}]});
        let filter = Filter::parse(&filter, "f").expect("a filter");
        assert_eq!(filter.fields(), [("a", "f.a"), ("b.c", "f.or[0].b.c"), ("d", "f.or[1].not.d")]);
    }
}
