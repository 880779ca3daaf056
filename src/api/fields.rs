//! Reads some fields of a JSON object without building the others.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use thresher_core::shape::Key;

/// The values of the fields that `place` knows, as they are written, in `count` places. Of a key that stands twice the last value
/// counts, as for most readers of JSON. Fails where `json` is not an object.
pub(super) fn pick(
    json: &str,
    count: usize,
    place: impl Fn(&str) -> Option<usize>,
) -> serde_json::Result<Vec<Option<&RawValue>>> {
    // The parser's own error would repeat a string.
    if !json.starts_with('{') {
        return Err(de::Error::custom("expected an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(json);
    let found = reader.deserialize_map(Picker { count, place })?;
    reader.end().map(|()| found)
}

/// The same for a fixed number of names.
pub(super) fn pick_named<'a, const N: usize>(
    json: &'a str,
    names: [&str; N],
) -> serde_json::Result<[Option<&'a RawValue>; N]> {
    let found = pick(json, N, |key| names.iter().position(|name| *name == key))?;
    Ok(found.try_into().expect("as many as there are names"))
}

/// What a JSON string says; none where `value` is not a string. One without escapes is borrowed.
pub(super) fn text(value: &RawValue) -> Option<serde_json::Result<Cow<'_, str>>> {
    let written = value.get().strip_prefix('"')?.strip_suffix('"')?;
    Some(match written.contains('\\') {
        true => serde_json::from_str(value.get()).map(Cow::Owned),
        false => Ok(Cow::Borrowed(written)),
    })
}

struct Picker<F> {
    count: usize,
    place: F,
}

impl<'de, F: Fn(&str) -> Option<usize>> Visitor<'de> for Picker<F> {
    type Value = Vec<Option<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found = vec![None; self.count];
        while let Some(key) = object.next_key_seed(Key)? {
            match (self.place)(&key) {
                Some(place) => found[place] = Some(object.next_value()?),
                None => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}
