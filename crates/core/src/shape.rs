//! Checks limits on the shape of a JSON text before anything is built from it: how many values it has and how
//! deep they are nested. The check allocates nothing for the values that it counts. Knows nothing of what the
//! values mean.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

/// Limits on the shape of a JSON text. Both maxima are inclusive.
#[derive(Debug, Clone, Copy)]
pub struct ShapeLimits {
    /// The most values: every scalar, list and object counts as one.
    pub value_count_max: usize,
    /// The most objects and lists nested inside each other. The parser has a limit of its own, 127.
    pub depth_max: usize,
}

#[derive(Debug, Error)]
pub enum ShapeError {
    #[error("it has too many values")]
    TooMany,
    /// Objects and lists are nested deeper than [`ShapeLimits::depth_max`], or than the parser's own limit of
    /// 127.
    #[error("it is nested too deeply")]
    TooDeep,
    #[error("{0}")]
    Json(serde_json::Error),
}

/// Checks that a text is JSON within `limits`, reading it once.
///
/// # Errors
/// Returns [`ShapeError`] for the first limit that the text exceeds, or when it is not JSON.
pub fn check(json: &[u8], limits: ShapeLimits) -> Result<(), ShapeError> {
    let mut walk = Walk { values_left: limits.value_count_max, limits, exceeded: None };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let walked = Value { walk: &mut walk, depth: 0 }.deserialize(&mut reader).and_then(|()| reader.end());
    match (walk.exceeded, walked) {
        (Some(exceeded), _) => Err(exceeded),
        // The parser's own limit. Its error has no kind, only this message.
        (None, Err(error)) if error.to_string().contains("recursion limit") => Err(ShapeError::TooDeep),
        (None, walked) => walked.map_err(ShapeError::Json),
    }
}

struct Walk {
    values_left: usize,
    limits: ShapeLimits,
    exceeded: Option<ShapeError>,
}

impl Walk {
    /// Records the exceeded limit and returns an error that ends the walk.
    fn stop<E: de::Error>(&mut self, exceeded: ShapeError) -> E {
        let error = E::custom(&exceeded);
        self.exceeded = Some(exceeded);
        error
    }
}

struct Value<'a> {
    walk: &'a mut Walk,
    /// How many objects and lists enclose this value.
    depth: usize,
}

impl Value<'_> {
    fn enter<E: de::Error>(&mut self) -> Result<usize, E> {
        let depth = self.depth + 1;
        if depth > self.walk.limits.depth_max { Err(self.walk.stop(ShapeError::TooDeep)) } else { Ok(depth) }
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        match self.walk.values_left.checked_sub(1) {
            Some(left) => self.walk.values_left = left,
            None => return Err(self.walk.stop(ShapeError::TooMany)),
        }
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let depth = self.enter()?;
        while list.next_element_seed(Value { walk: &mut *self.walk, depth })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
        let depth = self.enter()?;
        while object.next_key::<IgnoredAny>()?.is_some() {
            object.next_value_seed(Value { walk: &mut *self.walk, depth })?;
        }
        Ok(())
    }
}

/// Deserializes the key of an object. A key without escapes is borrowed from the text, without a copy.
pub struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Cow<'de, str>, D::Error> {
        key.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShapeLimits = ShapeLimits { value_count_max: 4, depth_max: 2 };

    #[test]
    fn limits_are_inclusive() {
        let check = |json: &str, expect: &str| {
            let found =
                check(json.as_bytes(), LIMITS).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
            assert!(found.contains(expect), "{json}: {found}");
        };
        check(r#""text""#, "ok");
        check("[1, 2.5, true]", "ok");
        check("[1, 2, 3, null]", "too many");
        check(r#"{"a": [1, 2]}"#, "ok");
        check(r#"{"a": [1, 2, 3]}"#, "too many");
        check("[[1]]", "ok");
        check("[[[]]]", "too deeply");
        check(r#"{"a": 1, "b": 2}"#, "ok");
        check("[1, 1e999]", "out of range");
        check("[1] 2", "trailing");
    }

    #[test]
    fn exceeding_the_parsers_own_depth_limit_is_reported_as_too_deep() {
        let limits = ShapeLimits { value_count_max: usize::MAX, depth_max: usize::MAX };
        let deep = "[".repeat(1_000_000);
        assert!(matches!(check(deep.as_bytes(), limits), Err(ShapeError::TooDeep)));
    }
}
