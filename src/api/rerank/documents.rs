//! Reads the text to rank out of documents, without parsing the rest of them.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

use serde_json::value::RawValue;
use thresher_core::plain::{self, Quoted, Shortened};

use crate::api::fields;
use crate::api::request::without_position;
use crate::error::{ApiError, ErrorCode};

/// Names in `rank_fields` that an error message quotes.
const FIELDS_QUOTED_MAX: usize = 3;

pub(super) struct DocumentReader<'a> {
    /// The names in `rank_fields`; none if the field `text` is read.
    fields: Option<&'a [String]>,
    /// The index of each field that is read.
    indexes: HashMap<&'a str, usize>,
    bytes_max: usize,
}

impl<'a> DocumentReader<'a> {
    pub(super) fn new(fields: Option<&'a [String]>, bytes_max: usize) -> Result<Self, ApiError> {
        let mut indexes = HashMap::new();
        for (second, field) in fields.unwrap_or_default().iter().enumerate() {
            if let Some(first) = indexes.insert(&**field, second) {
                let message = format!(
                    "rank_fields[{first}] and rank_fields[{second}] both name {}: name each field once",
                    Quoted(field)
                );
                let param = format!("rank_fields[{second}]");
                return Err(ApiError::with_param(ErrorCode::Duplicate, message, param));
            }
        }
        if fields.is_none() {
            indexes.insert("text", 0);
        }
        Ok(Self { fields, indexes, bytes_max })
    }

    /// The text of a document: a string itself, or of an object the fields that are read, one a line.
    pub(super) fn text(&self, index: usize, document: &RawValue) -> Result<String, ApiError> {
        let param = || format!("documents[{index}]");
        let unreadable = |error: serde_json::Error| {
            // Lines and columns would be those of a part of the document.
            let message = plain::message(&error.to_string());
            let message = format!("{}: {}", param(), without_position(&message));
            ApiError::with_param(ErrorCode::InvalidJson, message, param())
        };
        // The fields are distinct, and borrowed if they have no escapes: together they are no longer than the document.
        let texts: Vec<Cow<str>> = if document.get().starts_with('{') {
            let (seen, twice) = (vec![Cell::new(false); self.indexes.len()], Cell::new(None));
            let found = fields::pick(document.get(), self.indexes.len(), |key| {
                let index = self.indexes.get(key).copied()?;
                if seen[index].replace(true) {
                    twice.set(Some(index));
                }
                Some(index)
            });
            let found = found.map_err(unreadable)?;
            if let Some(twice) = twice.get() {
                let name = self.name(twice);
                let message = format!("{} has the field {} twice", param(), Quoted(name));
                let param = format!("{}.{}", param(), Shortened(name));
                return Err(ApiError::with_param(ErrorCode::DuplicateField, message, param));
            }
            let mut texts = Vec::new();
            for value in found.into_iter().flatten() {
                let Some(text) = self.field_text(value) else {
                    let message = format!("{}.text has to be a string", param());
                    return Err(ApiError::with_param(
                        ErrorCode::WrongType,
                        message,
                        format!("{}.text", param()),
                    ));
                };
                texts.push(text.map_err(unreadable)?);
            }
            texts
        } else if let Some(text) = fields::text(document) {
            vec![text.map_err(unreadable)?]
        } else {
            let message = format!("{} is neither a string nor an object with a field `text`", param());
            return Err(ApiError::with_param(ErrorCode::WrongType, message, param()));
        };
        if texts.is_empty() && self.fields.is_some_and(<[String]>::is_empty) {
            let message = format!(
                "rank_fields names no field, and {} is an object: name the fields to rank by, or leave rank_fields out",
                param()
            );
            return Err(ApiError::with_param(ErrorCode::FieldEmpty, message, "rank_fields"));
        }
        if texts.is_empty() {
            let message = format!("{} has no field {} to rank by", param(), self.field_names());
            return Err(ApiError::with_param(ErrorCode::MissingField, message, param()));
        }
        let bytes = texts.iter().map(|text| text.len()).sum::<usize>() + texts.len() - 1;
        let max = self.bytes_max;
        if bytes > max {
            let what = if self.fields.is_some() { "in its rank_fields together" } else { "of text" };
            let message = format!("{} has {bytes} bytes {what}; the limit is {max}", param());
            return Err(ApiError::with_param(ErrorCode::TooLong, message, param()));
        }
        Ok(texts.join("\n"))
    }

    /// The text of a field. A field of `rank_fields` that is not a string is ranked as JSON; `text` has to be a string.
    fn field_text<'b>(&self, value: &'b RawValue) -> Option<serde_json::Result<Cow<'b, str>>> {
        fields::text(value).or_else(|| self.fields.map(|_| Ok(Cow::Borrowed(value.get()))))
    }

    /// The name of the field with this index.
    fn name(&self, index: usize) -> &str {
        self.fields.map_or("text", |fields| &*fields[index])
    }

    /// The fields that are read, for an error message.
    fn field_names(&self) -> String {
        let Some(fields) = self.fields else { return "`text`".to_owned() };
        let first: Vec<String> =
            fields.iter().take(FIELDS_QUOTED_MAX).map(|field| Quoted(field).to_string()).collect();
        let more = fields.len().saturating_sub(FIELDS_QUOTED_MAX);
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("that rank_fields names ({}{and})", first.join(", "))
    }
}
