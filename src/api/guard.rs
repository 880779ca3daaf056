//! Keeps the parsing of a request body from allocating much more than the body has bytes.
//!
//! [`Guarded`] wraps a deserializer and everything that it hands out. It counts the elements of the body's bounded lists while they are
//! read, and stops before the first element over the limit is built. It also shortens keys that are too long to be a field's name, and
//! strings that an error message would quote: serde's messages, and the path of an error, repeat both in full.

use std::cell::Cell;
use std::fmt::{self, Display, Write as _};

use serde::de::value::CowStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, Visitor};
use thresher_core::plain::{Quoted, Shortened};
use thresher_core::shape::Key;

use super::limits::ListLimit;
use crate::error::ApiError;

/// The most bytes of a key that is passed on in full. The names of all fields are shorter.
const KEY_BYTES_MAX: usize = 128;
/// The most bytes of a string that serde may quote in full.
const QUOTED_BYTES_MAX: usize = 256;
/// The most bytes of a message about a longer string.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// A deserializer, visitor or seed, and the position in the body at which it reads.
pub(super) struct Guarded<'a, T> {
    inner: T,
    guard: Guard<'a>,
}

#[derive(Clone, Copy)]
struct Guard<'a> {
    lists: &'a [ListLimit],
    exceeded: &'a Exceeded,
    position: Position,
}

#[derive(Default)]
pub(super) struct Exceeded(Cell<Option<ListLimit>>);

#[derive(Clone, Copy)]
enum Position {
    Body,
    /// The bounded list with this index in [`Guard::lists`].
    List(usize),
    Elsewhere,
}

impl Exceeded {
    pub(super) fn error(&self) -> Option<ApiError> {
        self.0.get().map(|list| list.error())
    }
}

impl<'a, T> Guarded<'a, T> {
    /// Guards a body whose fields `lists` are bounded lists. `exceeded` is set to the list that is too long.
    pub(super) fn body(inner: T, lists: &'a [ListLimit], exceeded: &'a Exceeded) -> Self {
        Self { inner, guard: Guard { lists, exceeded, position: Position::Body } }
    }

    fn at(inner: T, guard: Guard<'a>, position: Position) -> Self {
        Self { inner, guard: Guard { position, ..guard } }
    }
}

/// Methods that are forwarded unchanged.
macro_rules! forward {
    ($($method:ident($($name:ident: $of:ty),*);)*) => {
        $(fn $method<V: Visitor<'de>>(self, $($name: $of,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($name,)* Guarded { inner: visitor, guard: self.guard })
        })*
    };
}

/// Methods that are forwarded as `deserialize_any`, since JSON itself says the type of a value. A parser that is asked for a number and
/// finds a string would quote the string in full; the visitor here shortens it.
macro_rules! forward_as_any {
    ($($method:ident($($name:ident: $of:ty),*);)*) => {
        $(fn $method<V: Visitor<'de>>(self, $($name: $of,)* visitor: V) -> Result<V::Value, D::Error> {
            self.deserialize_any(visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Guarded<'_, D> {
    type Error = D::Error;

    forward! {
        deserialize_any();
        deserialize_i128();
        deserialize_u128();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_ignored_any();
    }

    forward_as_any! {
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_unit();
        deserialize_seq();
        deserialize_tuple(_len: usize);
        deserialize_tuple_struct(_name: &'static str, _len: usize);
        deserialize_map();
        deserialize_struct(_name: &'static str, _fields: &'static [&'static str]);
        deserialize_identifier();
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Guarded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<V::Value, E> {
        self.inner.visit_bool(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<V::Value, E> {
        self.inner.visit_i64(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<V::Value, E> {
        self.inner.visit_u64(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<V::Value, E> {
        self.inner.visit_f64(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<V::Value, E> {
        if value.len() <= QUOTED_BYTES_MAX {
            return self.inner.visit_str(value);
        }
        self.inner.visit_str(value).map_err(|Brief(message)| E::custom(message))
    }

    fn visit_borrowed_str<E: de::Error>(self, value: &'de str) -> Result<V::Value, E> {
        if value.len() <= QUOTED_BYTES_MAX {
            return self.inner.visit_borrowed_str(value);
        }
        self.inner.visit_borrowed_str(value).map_err(|Brief(message)| E::custom(message))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<V::Value, E> {
        if value.len() <= QUOTED_BYTES_MAX {
            return self.inner.visit_string(value);
        }
        self.inner.visit_string(value).map_err(|Brief(message)| E::custom(message))
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Guarded { inner: json, guard: self.guard })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, json: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Guarded { inner: json, guard: self.guard })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(List { inner: list, guard: self.guard, read: 0 })
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Object { inner: object, guard: self.guard, value: Position::Elsewhere })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, word: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(word)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Guarded<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Guarded { inner: json, guard: self.guard })
    }
}

/// A list. Its elements are counted if it is a bounded list.
struct List<'a, A> {
    inner: A,
    guard: Guard<'a>,
    read: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for List<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        if let Position::List(index) = self.guard.position {
            let limit = self.guard.lists[index];
            if self.read == limit.max {
                return match self.inner.next_element::<IgnoredAny>()? {
                    None => Ok(None),
                    Some(_) => {
                        self.guard.exceeded.0.set(Some(limit));
                        Err(de::Error::custom("a list is too long"))
                    }
                };
            }
            self.read += 1;
        }
        self.inner.next_element_seed(Guarded::at(seed, self.guard, Position::Elsewhere))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// An object. Its keys are shortened; in the body itself, they identify the bounded lists.
struct Object<'a, A> {
    inner: A,
    guard: Guard<'a>,
    /// The position of the value of the key that was read last.
    value: Position,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Object<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Some(key) = self.inner.next_key_seed(Key)? else { return Ok(None) };
        let list = match self.guard.position {
            Position::Body => self.guard.lists.iter().position(|list| list.field == key),
            Position::List(_) | Position::Elsewhere => None,
        };
        self.value = list.map_or(Position::Elsewhere, Position::List);
        // One that is too long to be the name of a field is only quoted.
        let key = if key.len() <= KEY_BYTES_MAX { key } else { Shortened(&key).to_string().into() };
        seed.deserialize(CowStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Guarded::at(seed, self.guard, self.value))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// An error whose message has at most [`MESSAGE_BYTES_MAX`] bytes.
#[derive(Debug)]
struct Brief(String);

impl Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Brief {}

impl de::Error for Brief {
    fn custom<T: Display>(message: T) -> Self {
        let mut brief = Bounded(String::new());
        // Writing fails at the bound, so that the rest is not even formatted.
        let _ = write!(brief, "{message}");
        Self(brief.0)
    }

    fn invalid_type(found: de::Unexpected, expected: &dyn de::Expected) -> Self {
        match found {
            de::Unexpected::Str(text) => {
                Self::custom(format_args!("invalid type: string {}, expected {expected}", Quoted(text)))
            }
            found => Self::custom(format_args!("invalid type: {found}, expected {expected}")),
        }
    }

    fn invalid_value(found: de::Unexpected, expected: &dyn de::Expected) -> Self {
        match found {
            de::Unexpected::Str(text) => {
                Self::custom(format_args!("invalid value: string {}, expected {expected}", Quoted(text)))
            }
            found => Self::custom(format_args!("invalid value: {found}, expected {expected}")),
        }
    }
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MESSAGE_BYTES_MAX - self.0.len();
        self.0.push_str(&text[..text.floor_char_boundary(left)]);
        if text.len() > left { Err(fmt::Error) } else { Ok(()) }
    }
}
