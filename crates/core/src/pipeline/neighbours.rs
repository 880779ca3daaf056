//! Neighbours: the turns around a turn of a dialogue, whose turns are chunks or units of one chunk. A turn such as "Yes, let's
//! do that" belongs to an answer because of the turns around it. Knows nothing of models and scores of tokens.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::Chunk;
use crate::text::outline;

/// The fewest chunks that are taken as a dialogue.
const TURNS_MIN: usize = 8;

/// How much the turns on one side of a turn count, relative to the turn itself.
#[derive(Debug, Clone, Copy)]
struct Side {
    /// What the nearest turn counts.
    nearest: f32,
    /// How much less each further turn counts than the one nearer by.
    decay: f32,
    /// How far away the turns are that count.
    distance_max: u64,
}

/// By how many standard deviations fewer speakers must follow themselves than by chance, if chunks are to be in the order of the dialogue.
const ORDER_DEVIATIONS_MIN: f64 = 3.0;

/// The turns before a turn. They count most, and from far away: a discussion follows the turn that names its topic.
const BEFORE: Side = Side { nearest: 0.5, decay: 0.95, distance_max: 24 };

const AFTER: Side = Side { nearest: 0.35, decay: 0.7, distance_max: 8 };

/// The turns before a turn within one chunk. A chunk that is a chat is shorter than a meeting, and changes its topic more often.
const BEFORE_IN_CHAT: Side = AFTER;

#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    /// `[chunk]`: its neighbours, with how much they count. Empty if the chunks are no dialogue.
    of: Vec<Vec<(usize, f32)>>,
}

impl Neighbours {
    /// Finds the neighbours of chunks that are turns. Chunks are turns if most begin with the name of a speaker,
    /// and speakers come again. Which turns follow each other is known from the numbers at the end of their ids,
    /// so turns that a retriever found are neighbours only if they were. Ids that may only count the chunks of the request say nothing of
    /// turns that a retriever sends by relevance, so the speakers must take turns as well.
    pub fn find(chunks: &[Arc<Chunk>]) -> Self {
        if chunks.len() < TURNS_MIN {
            return Self::default();
        }
        let Some(speakers) = outline::speakers(chunks.iter().map(|chunk| &*chunk.text)) else {
            return Self::default();
        };
        let numbers: Option<Vec<u64>> = chunks.iter().map(|chunk| chunk.id.parse().ok()).collect();
        let are_counted = numbers.is_some_and(|numbers| numbers.is_sorted());
        if are_counted && !take_turns(&speakers) {
            return Self::default();
        }
        let places: Vec<Option<Place>> = chunks.iter().map(|chunk| Place::parse(chunk)).collect();
        let at: HashMap<Place, usize> =
            places.iter().enumerate().filter_map(|(index, place)| Some(((*place)?, index))).collect();
        let neighbours = |place: &Option<Place>| {
            let Some(place) = place else { return Vec::new() };
            let before = BEFORE.shares().map(|(distance, share)| (place.number.checked_sub(distance), share));
            let after = AFTER.shares().map(|(distance, share)| (place.number.checked_add(distance), share));
            let found = |(number, share): (Option<u64>, f32)| {
                Some((*at.get(&Place { number: number?, ..*place })?, share))
            };
            before.chain(after).filter_map(found).collect()
        };
        Self { of: places.iter().map(neighbours).collect() }
    }

    /// Returns whether the chunks are no dialogue.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Returns for each chunk the mean of its score and those of its neighbours, in which a turn counts less the
    /// further away it is. A turn that is not there counts as one with the score 0.
    pub fn smoothed(&self, own: Vec<f32>) -> Vec<f32> {
        if self.is_empty() {
            return own;
        }
        let total = 1.0 + BEFORE.total() + AFTER.total();
        let smooth = |(own_score, neighbours): (&f32, &Vec<(usize, f32)>)| {
            let around: f32 = neighbours.iter().map(|&(other, share)| share * own[other]).sum();
            (own_score + around) / total
        };
        own.iter().zip(&self.of).map(smooth).collect()
    }
}

/// Returns whether speakers follow themselves so much less often than in a random order that the order is that of the dialogue.
fn take_turns(speakers: &[Option<&str>]) -> bool {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    speakers.iter().flatten().for_each(|speaker| *counts.entry(speaker).or_default() += 1);
    let known = counts.values().sum::<usize>().max(1) as f64;
    // How probable it is that two turns of a random order are of the same speaker.
    let chance: f64 = counts.values().map(|&count| (count * (count - 1)) as f64).sum::<f64>()
        / (known * (known - 1.0)).max(1.0);
    let pairs = speakers.windows(2).filter(|pair| pair[0].is_some() && pair[1].is_some());
    let (pairs, same) = pairs.fold((0.0, 0.0), |(pairs, same), pair| {
        (pairs + 1.0, same + f64::from(u8::from(pair[0] == pair[1])))
    });
    let deviation = (pairs * chance * (1.0 - chance)).sqrt();
    deviation > 0.0 && pairs * chance - same >= ORDER_DEVIATIONS_MIN * deviation
}

impl Side {
    /// Returns the distances of the turns that count, with how much they count.
    fn shares(self) -> impl Iterator<Item = (u64, f32)> {
        (1..=self.distance_max).scan(self.nearest, move |share, distance| {
            let found = *share;
            *share *= self.decay;
            Some((distance, found))
        })
    }

    fn total(self) -> f32 {
        self.shares().map(|(_, share)| share).sum()
    }
}

/// Returns for each turn of one chat the mean of its score and those of the turns before it, in which a turn counts
/// less the further away it is: what an answer is about is said before it. A turn that is not there counts as one
/// with the score 0.
pub fn with_turns_before(own: &[f32]) -> Vec<f32> {
    let total = 1.0 + BEFORE_IN_CHAT.total();
    let before = |turn: usize| BEFORE_IN_CHAT.shares().zip(own[..turn].iter().rev());
    let sum = |turn: usize| own[turn] + before(turn).map(|((_, share), other)| share * other).sum::<f32>();
    (0..own.len()).map(|turn| sum(turn) / total).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place<'a> {
    title: Option<&'a str>,
    /// The id before its number.
    pub prefix: &'a str,
    pub number: u64,
}

impl<'a> Place<'a> {
    /// Returns the place that a chunk's id names; `None` if the id does not end with a number.
    pub fn parse(chunk: &'a Chunk) -> Option<Self> {
        let prefix = chunk.id.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = chunk.id[prefix.len()..].parse().ok()?;
        Some(Self { title: chunk.title.as_deref(), prefix, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_take_part_of_the_scores_of_the_turns_before_them() {
        let total = 1.0 + (1..=8).map(|distance| 0.35 * 0.7_f32.powi(distance - 1)).sum::<f32>();
        let found = with_turns_before(&[0.0, 1.0, 0.0, 2.0]);
        let expect = [0.0, 1.0, 0.35, 2.0 + 0.35 * 0.7].map(|sum| sum / total);
        assert!(found.iter().zip(expect).all(|(found, expect)| (found - expect).abs() < 1e-6), "{found:?}");
        let far: Vec<f32> = std::iter::once(1.0).chain([0.0; 9]).collect();
        assert_eq!(
            with_turns_before(&far).iter().filter(|&&score| score > 0.0).count(),
            9,
            "itself and eight more"
        );
        assert!(with_turns_before(&[]).is_empty());
    }

    fn chunks(ids: &[&str], text: impl Fn(usize) -> String) -> Vec<Arc<Chunk>> {
        let chunk = |(index, id): (usize, &&str)| Chunk::new(*id, text(index));
        ids.iter().enumerate().map(chunk).map(Arc::new).collect()
    }

    fn turn(index: usize) -> String {
        format!("{}: I said {index}.", ["Ann", "Bob"][index % 2])
    }

    const IDS: [&str; 8] = ["t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"];

    #[track_caller]
    fn check(name: &str, chunks: &[Arc<Chunk>], expect: &[f32]) {
        let mut own = vec![0.0; chunks.len()];
        own[0] = 1.0;
        let found = Neighbours::find(chunks).smoothed(own);
        let relative: Vec<f32> =
            found.iter().map(|score| (score / found[0] * 1000.0).round() / 1000.0).collect();
        assert_eq!(relative, expect, "{name}");
    }

    #[test]
    fn turns_share_their_scores_with_their_neighbours() {
        let after_it = [1.0, 0.5, 0.475, 0.451, 0.429, 0.407, 0.387, 0.368];
        check("a dialogue", &chunks(&IDS, turn), &after_it);
        let mut backwards = IDS;
        backwards.reverse();
        let before_it = [1.0, 0.35, 0.245, 0.172, 0.12, 0.084, 0.059, 0.041];
        check("the same from its end", &chunks(&backwards, turn), &before_it);
        let alone = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        check("prose", &chunks(&IDS, |index| format!("This is paragraph {index}.")), &alone);
        check("too few turns", &chunks(&IDS[..7], turn), &alone[..7]);
        let found = ["t90", "t17", "t91", "t40", "t60", "t77", "u90", "x"];
        let near_ones = [1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0];
        check("turns that a retriever found", &chunks(&found, turn), &near_ones);
        let counted = ["0", "1", "2", "3", "4", "5", "6", "7"];
        check("ids that count too few chunks to tell the order", &chunks(&counted, turn), &alone);
        let read = ["0", "2", "3", "5", "6", "8", "9", "11"];
        check("the same of which some were not read", &chunks(&read, turn), &alone);
    }

    #[test]
    fn speakers_who_take_turns_tell_that_chunks_are_in_order() {
        let names = ["Ann", "Bob", "Cas"];
        let in_turns: Vec<Option<&str>> = (0..40).map(|at| Some(names[at % 3])).collect();
        assert!(take_turns(&in_turns));
        assert!(!take_turns(&in_turns[..8]), "too few");
        assert!(!take_turns(&[Some("Ann"); 40]), "one speaker");
        assert!(!take_turns(&[None; 40]), "no speaker");
        let mut random = fastrand::Rng::with_seed(1);
        for turns in [10, 15, 40] {
            let wrong = (0..1_000).filter(|_| {
                let mut mixed = in_turns[..turns].to_vec();
                random.shuffle(&mut mixed);
                take_turns(&mixed)
            });
            assert!(wrong.count() < 5, "{turns} in a random order are hardly taken for a dialogue");
        }
    }
}
