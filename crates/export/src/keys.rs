//! Reads single keys of a `config.json`, with errors that name the key. Does not know which keys a model has.

use std::path::Path;

use serde_json::{Map, Value};

use super::{ExportError, source::optional};

/// The limit on any size in a configuration. It is larger than any size of a real model, and the product of
/// two such sizes fits a `usize`.
const SIZE_MAX: usize = 1 << 24;

/// `config.json`, read one key at a time.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    pub file: &'a Path,
    pub map: &'a Map<String, Value>,
}

impl Config<'_> {
    /// Fails if one of these keys has another value than the given one, which is also its default.
    pub fn check_flags(&self, flags: &[(&'static str, bool)]) -> Result<(), ExportError> {
        for &(key, supported) in flags {
            let found = self.get(key)?.unwrap_or(supported);
            if found != supported {
                return self.refuse(key, found.to_string(), supported.to_string());
            }
        }
        Ok(())
    }

    /// Fails if a key has another value than `supported`, which is also its default.
    pub fn check_text(&self, key: &'static str, supported: &str) -> Result<(), ExportError> {
        match self.get::<String>(key)? {
            Some(found) if found != supported => self.refuse(key, found, supported.to_owned()),
            _ => Ok(()),
        }
    }

    /// Whether the configuration has this key, even if its value is null.
    pub fn contains(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Returns the value of a key; `None` if the key is missing or null.
    pub fn get<T: serde::de::DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, ExportError> {
        optional(self.map, key, self.file)
    }

    /// Reads a size that the configuration must have.
    pub fn number(&self, key: &'static str) -> Result<usize, ExportError> {
        match self.size(key)? {
            Some(number) => Ok(number),
            None => self.refuse(key, "missing".to_owned(), "a number".to_owned()),
        }
    }

    /// Reads a size from 1 to [`SIZE_MAX`]; `None` if the key is missing or null.
    pub fn size(&self, key: &'static str) -> Result<Option<usize>, ExportError> {
        match self.get::<usize>(key)? {
            Some(size) if size == 0 || size > SIZE_MAX => {
                self.refuse(key, size.to_string(), format!("1 to {SIZE_MAX}"))
            }
            size => Ok(size),
        }
    }

    /// The number of components of one of `heads` heads, of which the key `key` is the number.
    pub fn head_dim(&self, hidden: usize, heads: usize, key: &'static str) -> Result<usize, ExportError> {
        if !hidden.is_multiple_of(heads) {
            return self.refuse(key, heads.to_string(), format!("divisors of the hidden size {hidden}"));
        }
        Ok(hidden / heads)
    }

    /// Returns the error for a value that is not supported.
    pub fn refuse<T>(&self, key: &'static str, found: String, supported: String) -> Result<T, ExportError> {
        Err(ExportError::Unsupported { file: self.file.to_owned(), key, found, supported })
    }
}
