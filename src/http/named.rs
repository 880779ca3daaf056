//! Registered chunks that a request names by their ids.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::ApiError;
use thresher_core::domain::Chunk;
use thresher_core::pipeline::cancel::Cancel;
use thresher_registry::Registry;

/// Registered chunks that are looked up at a time.
const LOOKUP_COUNT: usize = 1_000;

/// Some, not too many, each once.
///
/// # Errors
/// What is wrong, and where.
pub fn check_ids(ids: &[String], count_max: usize) -> Result<(), ApiError> {
    if ids.is_empty() {
        return Err(ApiError::ids_empty());
    }
    if ids.len() > count_max {
        return Err(ApiError::ids_too_many(ids.len(), count_max));
    }
    let mut first_at = HashMap::with_capacity(ids.len());
    for (second, id) in ids.iter().enumerate() {
        if let Some(first) = first_at.insert(id, second) {
            return Err(ApiError::id_duplicate(id, first, second));
        }
    }
    Ok(())
}

/// Finds registered chunks, while somebody waits for them and within a request's bytes.
pub struct Lookup<'a> {
    /// Where.
    pub registry: &'a Registry,
    /// All ids of the request.
    pub ids: &'a [String],
    /// Text of the chunks that are found.
    pub bytes_max: usize,
    /// Who waits.
    pub cancel: &'a Cancel,
}

impl Lookup<'_> {
    /// The chunks whose ids stand at `places`.
    ///
    /// # Errors
    /// Ids that nobody has registered; texts over the limit; a deadline.
    pub fn chunks(&self, places: Vec<usize>) -> Result<Vec<Arc<Chunk>>, ApiError> {
        let (mut chunks, mut missing, mut bytes) = (Vec::with_capacity(places.len()), Vec::new(), 0);
        for places in places.chunks(LOOKUP_COUNT) {
            self.cancel.check()?;
            let names: Vec<&str> = places.iter().map(|&place| &*self.ids[place]).collect();
            for (chunk, &place) in self.registry.get(&names)?.into_iter().zip(places) {
                match chunk {
                    None => missing.push(place),
                    Some(chunk) => {
                        bytes += chunk.text.len();
                        chunks.push(chunk);
                    }
                }
            }
            if bytes > self.bytes_max {
                return Err(ApiError::ids_too_long(self.bytes_max));
            }
        }
        if missing.is_empty() { Ok(chunks) } else { Err(ApiError::ids_unknown(self.ids, &missing)) }
    }
}
