//! Reads some fields of a JSON object without building the others.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use thresher_core::shape::Key;

/// The raw values of the fields for which `index_of` has an index below `count`, by that index. Of a key that is there twice the last value
/// counts, as for most parsers of JSON.
///
/// # Errors
/// Fails if `json` is not an object.
pub(super) fn pick(
    json: &str,
    count: usize,
    index_of: impl Fn(&str) -> Option<usize>,
) -> serde_json::Result<Vec<Option<&RawValue>>> {
    // The parser's own error would quote a string.
    if !json.starts_with('{') {
        return Err(de::Error::custom("expected an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(json);
    let found = reader.deserialize_map(Picker { count, index_of })?;
    reader.end().map(|()| found)
}

/// As [`pick`], for a fixed number of names.
pub(super) fn pick_named<'a, const N: usize>(
    json: &'a str,
    names: [&str; N],
) -> serde_json::Result<[Option<&'a RawValue>; N]> {
    let found = pick(json, N, |key| names.iter().position(|name| *name == key))?;
    Ok(found.try_into().expect("as many as there are names"))
}

/// The value of a JSON string; none if `value` is not a string. A string without escapes is borrowed.
pub(super) fn text(value: &RawValue) -> Option<serde_json::Result<Cow<'_, str>>> {
    let written = value.get().strip_prefix('"')?.strip_suffix('"')?;
    Some(if written.contains('\\') {
        serde_json::from_str(value.get()).map(Cow::Owned)
    } else {
        Ok(Cow::Borrowed(written))
    })
}

struct Picker<F> {
    count: usize,
    index_of: F,
}

impl<'de, F: Fn(&str) -> Option<usize>> Visitor<'de> for Picker<F> {
    type Value = Vec<Option<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found = vec![None; self.count];
        while let Some(key) = object.next_key_seed(Key)? {
            match (self.index_of)(&key) {
                Some(index) => found[index] = Some(object.next_value()?),
                None => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}
