//! The chunks that a soak asks about: many more than the tiers hold, some of them asked about again and again.
//! Knows nothing of requests.

use serde_json::json;

use crate::bench::workload::{Random, prose, prose_of};

/// Tokens of a chunk; as many short ones as long ones, by magnitude.
const TOKENS: (usize, usize) = (20, 600);

/// What a chunk takes on disk: its tokens' mean times what a block takes for one.
const CHUNK_BYTES: u64 = 70_000;

/// Times the disk tier's bound that all chunks come to.
const TIMES_DISK: u64 = 3;

/// However small or large the disk tier is.
const COUNT: (u64, u64) = (500, 20_000);

/// JSON of chunks, an id away from being an object.
pub struct Chunks(Vec<Box<str>>);

impl Chunks {
    /// Several times as many as a disk tier of this size holds.
    pub fn for_disk(bytes_max: u64) -> Self {
        let count = (TIMES_DISK * bytes_max / CHUNK_BYTES).clamp(COUNT.0, COUNT.1);
        let mut random = Random::new(0, "soak chunks");
        Self((0..count).map(|n| write(&mut random, n)).collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One of them: the n-th with a probability of about 1/n, as questions come about what people ask most.
    pub fn draw(&self, random: &mut Random) -> usize {
        random.magnitude(1, self.0.len()) - 1
    }

    /// Appends a chunk's JSON under this id.
    pub fn append(&self, chunk: usize, id: usize, body: &mut String) {
        body.push_str(&format!("{{\"id\":\"{id}\","));
        body.push_str(&self.0[chunk]);
    }
}

/// Every seventh has a title, every eleventh metadata.
fn write(random: &mut Random, n: u64) -> Box<str> {
    let tokens = random.magnitude(TOKENS.0, TOKENS.1);
    let mut chunk = json!({"text": prose_of(random, tokens)});
    if n.is_multiple_of(7) {
        chunk["title"] = json!(prose(random, 3));
    }
    if n.is_multiple_of(11) {
        chunk["metadata"] = json!({"page": n, "tags": ["a", "b"]});
    }
    chunk.to_string()[1..].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_come_often_and_most_come_at_all() {
        let chunks = Chunks::for_disk(16 << 20);
        let mut random = Random::new(1, "test");
        let mut times = vec![0; chunks.len()];
        (0..100 * chunks.len()).for_each(|_| times[chunks.draw(&mut random)] += 1);
        let often: usize = times[..10].iter().sum();
        assert!(often * 4 > 100 * chunks.len(), "the first ten: {often} times");
        let never = times.iter().filter(|&&times| times == 0).count();
        assert!(never * 10 < chunks.len(), "{never} of {} never", chunks.len());
    }
}
