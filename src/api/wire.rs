//! How single values of a body are read: an object, one of several words, or null as the default.

use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};
use thresher_core::plain::Shortened;

/// Reads null as the default, since some clients write null for fields that are not set.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// Reads one of several words, or null as the default.
pub(super) fn choice<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Option::<Word<T>>::deserialize(from).map(|word| word.map(|Word(word)| word).unwrap_or_default())
}

// Without a doc comment, which the schema would show to users.
#[derive(JsonSchema)]
#[schemars(inline)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum TextOrInteger {
    Text(String),
    Integer(i64),
}

/// The id of a chunk: a string, or the digits of an integer.
#[derive(Debug, Clone)]
pub(super) struct Id(pub(super) String);

/// Reads an id, or null as none.
pub(super) fn id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::deserialize(from)?.map(|Id(id)| id))
}

/// Reads a list of ids, or null as none.
pub(super) fn ids<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let ids: Option<Vec<Id>> = Option::deserialize(from)?;
    Ok(ids.map(|ids| ids.into_iter().map(|Id(id)| id).collect()))
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string or an integer")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Id(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        let number = i64::try_from(number)
            .map_err(|_| E::custom("an integer of more than 63 bits: send it as a string"))?;
        self.visit_i64(number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Id(number.to_string()))
    }
}

/// One of several words. It is read as a string first: for any other type, `serde_json` would report invalid JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = String::deserialize(from)?;
        // An error about an unknown word quotes it. No known word is long enough to be shortened.
        let word = Shortened(&word).to_string();
        T::deserialize(word.into_deserializer()).map(Self)
    }
}

/// A JSON object. serde alone would also read a struct from a list of its values.
#[derive(Debug, Clone)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}
