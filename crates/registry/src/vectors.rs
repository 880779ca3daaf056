//! The vectors of chunks, by which a search finds those that say what it asks in other words or in another language. All of them are compared
//! (an exact scan), with eight bits per value. They are in memory only: after a start, chunks are read again, and have their vectors again.

use std::collections::HashMap;
use std::sync::Arc;

/// The most bytes of all vectors of a tenant: those of 100,000 chunks of a model with 384 values. A scan of so many takes about ten
/// milliseconds. Other chunks are found by their words alone.
const BYTES_MAX: usize = 40_000_000;

/// The largest absolute code.
const LARGEST: f32 = 127.0;

/// The vectors of chunks; all have the same length.
#[derive(Debug, Default)]
pub struct Vectors {
    by_id: HashMap<Arc<str>, usize>,
    /// `[vector]`: the id of its chunk.
    ids: Vec<Arc<str>>,
    /// `[vector, value]`: whole numbers from -127 to 127.
    codes: Vec<i8>,
    /// `[vector]`: one divided by the length of its codes.
    scales: Vec<f32>,
    dim: usize,
}

impl Vectors {
    /// Sets the vector of a chunk. An empty one, one of another length than the others, and one beyond [`BYTES_MAX`] are not kept.
    pub fn put(&mut self, id: &Arc<str>, vector: &[f32]) {
        self.remove(id);
        if self.ids.is_empty() {
            self.dim = vector.len();
        }
        let codes = codes(vector);
        let scale = 1.0 / length(&codes);
        let is_full = self.codes.len() + self.dim > BYTES_MAX;
        if self.dim == 0 || vector.len() != self.dim || is_full || !scale.is_finite() {
            return;
        }
        self.by_id.insert(Arc::clone(id), self.ids.len());
        self.ids.push(Arc::clone(id));
        self.codes.extend(codes);
        self.scales.push(scale);
    }

    pub fn remove(&mut self, id: &str) {
        let Some(at) = self.by_id.remove(id) else { return };
        let last = self.ids.len() - 1;
        self.ids.swap_remove(at);
        self.scales.swap_remove(at);
        self.codes.copy_within(last * self.dim.., at * self.dim);
        self.codes.truncate(last * self.dim);
        if let Some(moved) = self.ids.get(at) {
            self.by_id.insert(Arc::clone(moved), at);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the ids of the `count` chunks whose vectors have the largest cosines with `query`, best first.
    pub fn nearest(&self, query: &[f32], count: usize) -> Vec<Arc<str>> {
        if query.len() != self.dim || count == 0 {
            return Vec::new();
        }
        let query = codes(query);
        let product = |codes: &[i8]| -> i32 {
            codes.iter().zip(&query).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
        };
        let cosines = self
            .codes
            .chunks_exact(self.dim)
            .zip(&self.scales)
            .map(|(codes, scale)| product(codes) as f32 * scale);
        let mut found: Vec<(f32, &Arc<str>)> = cosines.zip(&self.ids).collect();
        let order =
            |a: &(f32, &Arc<str>), b: &(f32, &Arc<str>)| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1));
        if found.len() > count {
            found.select_nth_unstable_by(count, order);
            found.truncate(count);
        }
        found.sort_by(order);
        found.into_iter().map(|(_, id)| Arc::clone(id)).collect()
    }
}

/// Returns the values as multiples of the 127th part of the largest one.
fn codes(vector: &[f32]) -> Vec<i8> {
    let largest = vector.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let scale = if largest > 0.0 && largest.is_finite() { LARGEST / largest } else { 0.0 };
    vector.iter().map(|value| (value * scale).round() as i8).collect()
}

fn length(codes: &[i8]) -> f32 {
    (codes.iter().map(|code| i32::from(*code).pow(2)).sum::<i32>() as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vectors: &[(&str, [f32; 3])]) -> Vectors {
        let mut found = Vectors::default();
        vectors.iter().for_each(|(id, vector)| found.put(&Arc::from(*id), vector));
        found
    }

    fn nearest(vectors: &Vectors, query: [f32; 3], count: usize) -> Vec<String> {
        vectors.nearest(&query, count).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_nearest_are_those_of_the_same_direction_whatever_their_length() {
        let vectors =
            with(&[("far", [0.0, 0.0, 9.0]), ("near", [0.1, 0.02, 0.0]), ("same", [5.0, 0.0, 0.0])]);
        assert_eq!(nearest(&vectors, [2.0, 0.0, 0.0], 2), ["same", "near"]);
        assert_eq!(nearest(&vectors, [2.0, 0.0, 0.0], 9).len(), 3);
        assert!(vectors.nearest(&[1.0], 2).is_empty(), "another model's vector");
    }

    #[test]
    fn vectors_are_replaced_and_removed() {
        let mut vectors = with(&[("a", [1.0, 0.0, 0.0]), ("b", [0.0, 1.0, 0.0]), ("c", [0.0, 0.0, 1.0])]);
        vectors.put(&Arc::from("a"), &[0.0, 0.0, 2.0]);
        assert_eq!(nearest(&vectors, [0.0, 0.0, 1.0], 2), ["a", "c"]);
        vectors.remove("b");
        vectors.remove("unknown");
        assert_eq!(nearest(&vectors, [0.0, 0.0, 1.0], 3), ["a", "c"]);
        ["a", "c"].iter().for_each(|id| vectors.remove(id));
        assert!(vectors.is_empty() && vectors.codes.is_empty() && vectors.by_id.is_empty());
        vectors.put(&Arc::from("d"), &[1.0]);
        assert!(!vectors.is_empty(), "vectors of another model can follow");
    }

    #[test]
    fn vectors_without_a_direction_are_not_kept() {
        let vectors =
            with(&[("zero", [0.0; 3]), ("nan", [f32::NAN; 3]), ("huge", [f32::INFINITY, 0.0, 0.0])]);
        assert!(vectors.is_empty());
    }
}
