//! Seams: where a splitter cut a document, so that the text of one chunk goes on in another. Knows texts, ids and titles only.
//!
//! - Two windows share text: the end of one chunk is the beginning of another. A unit that the other window has whole, or more of, is a
//!   repeat of it. A sentence that begins in one window and ends in the other is both of these units, and what both have is written once.
//! - A sentence goes on in the next chunk of its document without shared text.
//! - The rows of a table stand in a chunk after that with the header.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::neighbours::Place;
use super::units::{Outlines, Unit};
use crate::domain::{ByteRange, Chunk, Kind};
use crate::text::lexicon::{Class, has};

/// The fewest bytes that two windows share. Fewer are a phrase that two documents have.
const SHARED_BYTES_MIN: usize = 24;

/// How far before the end of a chunk the beginning of another one is looked for, in bytes.
const SHARED_BYTES_MAX: usize = 4 << 10;

/// The first bytes of a chunk, by which it is found in others.
const KEY_BYTES: usize = 8;

/// With how many chunks that begin alike a place of another chunk is compared, and how many places of a chunk are compared at all: texts that
/// consist of one repeated word would be compared at every byte.
const CANDIDATES_MAX: usize = 4;
const LOOKS_MAX: usize = 256;

/// How many chunks before the rows of a table may have its header.
const HEADER_DISTANCE_MAX: u64 = 64;

/// The least words of a unit that ends with a word such as `of`, before which no sentence ends, for it to be the beginning of one: "Log in" is
/// none.
const OPEN_WORDS_MIN: usize = 4;

/// The end of a unit that is the beginning of a unit of another chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// The unit at the end of its chunk.
    pub last: usize,
    /// What it shares with `first`, as a range of its chunk's text.
    pub bytes: ByteRange,
    /// The unit at the beginning of the other chunk.
    pub first: usize,
}

/// How the units of different chunks belong together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seams {
    /// Units of which another unit has all text, each with that unit.
    pub parts: Vec<(usize, usize)>,
    /// Sentences over two windows.
    pub shared: Vec<Shared>,
    /// Units that say nothing without a unit of another chunk, each with that unit.
    pub needs: Vec<(usize, usize)>,
}

impl Seams {
    /// Finds the seams between chunks. `units` are those of all chunks in the order of the text.
    pub fn find(chunks: &[Arc<Chunk>], units: &[Unit], outlines: &Outlines) -> Self {
        let mut of_chunk = vec![0..0; chunks.len()];
        let mut start = 0;
        for units in units.chunk_by(|a, b| a.chunk == b.chunk) {
            of_chunk[units[0].chunk] = start..start + units.len();
            start += units.len();
        }
        let finder = Finder { chunks, units, outlines, of_chunk };
        let mut seams = Self::default();
        let overlaps = overlaps(chunks);
        for (chunk, overlap) in overlaps.iter().enumerate() {
            if let Some((next, bytes)) = *overlap {
                finder.add_overlap(&mut seams, chunk, next, bytes);
            }
        }
        let places = Places::new(chunks);
        for (chunk, overlap) in overlaps.iter().enumerate() {
            let next = places.next(chunk).filter(|_| overlap.is_none());
            if let Some((last, first)) = next.and_then(|next| finder.sentence_over(chunk, next)) {
                seams.needs.extend([(last, first), (first, last)]);
            }
        }
        finder.add_headers(&mut seams, &places);
        seams
    }
}

/// Returns `[chunk]`, the chunk that begins with the end of this one, and how many bytes both have; `None` if there is none.
fn overlaps(chunks: &[Arc<Chunk>]) -> Vec<Option<(usize, usize)>> {
    let mut by_key: HashMap<[u8; KEY_BYTES], Vec<usize>> = HashMap::new();
    // A bit for each hash of a key, which rules out nearly all places before the table is asked.
    let mut is_known = vec![false; 1 << 16];
    for (index, chunk) in chunks.iter().enumerate() {
        let text = chunk.text.trim().as_bytes();
        if let Some(key) = text.first_chunk().filter(|_| text.len() > SHARED_BYTES_MIN) {
            is_known[hash(key)] = true;
            by_key.entry(*key).or_default().push(index);
        }
    }
    let overlap = |(index, chunk): (usize, &Arc<Chunk>)| {
        let text = chunk.text.trim();
        let bytes = text.as_bytes();
        let mut looks_left = LOOKS_MAX;
        for at in bytes.len().saturating_sub(SHARED_BYTES_MAX).max(1)..bytes.len() {
            let key = bytes[at..].first_chunk().filter(|_| bytes.len() - at >= SHARED_BYTES_MIN)?;
            if !is_known[hash(key)] || !text.is_char_boundary(at) {
                continue;
            }
            for &other in by_key.get(key).into_iter().flatten().take(CANDIDATES_MAX) {
                looks_left = looks_left.checked_sub(1)?;
                let begins = chunks[other].text.trim().as_bytes();
                if other != index && begins.len() > bytes.len() - at && begins.starts_with(&bytes[at..]) {
                    return Some((other, bytes.len() - at));
                }
            }
        }
        None
    };
    chunks.par_iter().enumerate().with_min_len(16).map(overlap).collect()
}

fn hash(key: &[u8; KEY_BYTES]) -> usize {
    (u64::from_le_bytes(*key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

/// Which chunks stand next to each other in their documents, as far as their ids tell.
struct Places<'a> {
    /// `[chunk]`: its place, if its id tells one.
    of: Vec<Option<Place<'a>>>,
    at: HashMap<(&'a str, u64), Vec<usize>>,
    chunks: &'a [Arc<Chunk>],
}

impl<'a> Places<'a> {
    fn new(chunks: &'a [Arc<Chunk>]) -> Self {
        let mut of: Vec<Option<Place>> = chunks.iter().map(|chunk| Place::parse(chunk)).collect();
        // Numbers in ascending order may only count the chunks of the request.
        let numbers = of.iter().map(|place| place.filter(|place| place.prefix.is_empty())?.number.into());
        if numbers.collect::<Option<Vec<u64>>>().is_some_and(|numbers| numbers.is_sorted()) {
            of = vec![None; chunks.len()];
        }
        let mut at: HashMap<(&str, u64), Vec<usize>> = HashMap::new();
        for (chunk, place) in of.iter().enumerate() {
            if let Some(place) = place {
                at.entry((place.prefix, place.number)).or_default().push(chunk);
            }
        }
        Self { of, at, chunks }
    }

    /// Returns the chunk that stands `distance` before a chunk.
    fn before(&self, chunk: usize, distance: u64) -> Option<usize> {
        let place = self.of[chunk]?;
        self.at_number(chunk, place.number.checked_sub(distance)?)
    }

    fn next(&self, chunk: usize) -> Option<usize> {
        self.at_number(chunk, self.of[chunk]?.number.checked_add(1)?)
    }

    fn at_number(&self, chunk: usize, number: u64) -> Option<usize> {
        let found = self.at.get(&(self.of[chunk]?.prefix, number))?;
        found.iter().copied().find(|&other| is_one_title(&self.chunks[chunk], &self.chunks[other]))
    }
}

/// Returns whether two chunks have the same title, or titles that differ in numbers, such as those of pages.
fn is_one_title(one: &Chunk, other: &Chunk) -> bool {
    let words = |chunk: &Chunk| -> String {
        chunk.title.as_deref().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect()
    };
    one.title == other.title || words(one) == words(other)
}

struct Finder<'a> {
    chunks: &'a [Arc<Chunk>],
    units: &'a [Unit],
    outlines: &'a Outlines,
    /// `[chunk]`: the indices of its units.
    of_chunk: Vec<Range<usize>>,
}

impl Finder<'_> {
    fn text(&self, unit: usize) -> &str {
        let unit = &self.units[unit];
        unit.bytes.slice(&self.chunks[unit.chunk].text)
    }

    /// Adds the seam of two windows, of which the first one ends with `count` bytes with which the other one begins.
    fn add_overlap(&self, seams: &mut Seams, chunk: usize, next: usize, count: usize) {
        let (text, next_text) = (&self.chunks[chunk].text, &self.chunks[next].text);
        let end = text.trim_end().len();
        let shared = ByteRange::new(end - count, end);
        let next_start = next_text.len() - next_text.trim_start().len();
        let next_shared = ByteRange::new(next_start, next_start + count);
        let (lasts, firsts) = (self.of_chunk[chunk].clone(), self.of_chunk[next].clone());
        let lasts: Vec<usize> = lasts.filter(|&unit| self.units[unit].bytes.end > shared.start).collect();
        let firsts: Vec<usize> =
            firsts.filter(|&unit| self.units[unit].bytes.start < next_shared.end).collect();
        let (Some(&last), Some(&first)) = (lasts.last(), firsts.first()) else { return };
        let begins_whole = self.units[lasts[0]].bytes.start >= shared.start;
        let ends_whole = firsts.last().is_some_and(|&unit| self.units[unit].bytes.end <= next_shared.end);
        if begins_whole && ends_whole {
            // Whole sentences that two documents may have.
            return;
        }
        for &unit in &firsts {
            let bytes = self.units[unit].bytes;
            if bytes.end > next_shared.end {
                continue;
            }
            let place = ByteRange::new(
                (shared.start + bytes.start).saturating_sub(next_shared.start),
                shared.start + bytes.end - next_shared.start,
            );
            let holds = |&&other: &&usize| {
                let other = self.units[other].bytes;
                other.start <= place.start && place.end <= other.end
            };
            seams.parts.extend(lasts.iter().find(holds).map(|&whole| (unit, whole)));
        }
        let (last_bytes, first_bytes) = (self.units[last].bytes, self.units[first].bytes);
        if last_bytes.start < shared.start {
            if first_bytes.end > next_shared.end {
                let bytes = ByteRange::new(shared.start, last_bytes.end);
                seams.shared.push(Shared { last, bytes, first });
                seams.needs.extend([(last, first), (first, last)]);
            }
        } else if let Some(&whole) = firsts.last().filter(|_| !ends_whole) {
            // The sentence that the end of the window cut is whole in the other one.
            if self.text(whole).starts_with(self.text(last)) {
                seams.parts.push((last, whole));
            }
        }
    }

    /// Returns the last unit of a chunk and the first unit of the next one, if they are one sentence.
    fn sentence_over(&self, chunk: usize, next: usize) -> Option<(usize, usize)> {
        let is_prose = |chunk: usize| {
            let layout = self.outlines.layouts().get(chunk);
            layout.is_none_or(|layout| matches!(layout.kind, Kind::Prose | Kind::Markdown | Kind::Pdf))
        };
        let (last, first) = (self.of_chunk[chunk].clone().next_back()?, self.of_chunk[next].clone().next()?);
        let lacks_more = || {
            let mut words = self.text(last).split_whitespace().rev();
            words.next().is_some_and(|word| has(Class::Stop, &word.to_lowercase()))
                && words.count() + 1 >= OPEN_WORDS_MIN
        };
        let goes_on = self.text(first).starts_with(char::is_lowercase) || lacks_more();
        let is_open =
            self.text(last).ends_with(|c: char| c.is_alphanumeric() || matches!(c, ',' | '-' | '–'));
        let are_chosen = !self.outlines.is_frame(last, chunk) && !self.outlines.is_frame(first, next);
        (is_prose(chunk) && is_prose(next) && goes_on && is_open && are_chosen).then_some((last, first))
    }

    /// Lets rows without a header need that of the table's beginning in an earlier chunk.
    fn add_headers(&self, seams: &mut Seams, places: &Places) {
        for chunk in 0..self.chunks.len() {
            let rows = self.of_chunk[chunk].clone().filter(|&unit| {
                self.outlines.is_row(unit, chunk)
                    && columns(self.text(unit)) > 1
                    && self.header(unit).is_none()
            });
            let rows: Vec<usize> = rows.collect();
            let Some(count) = rows.first().map(|&row| columns(self.text(row))) else { continue };
            // The table goes on only from a chunk that ends with a row of as many columns.
            let earlier = (1..=HEADER_DISTANCE_MAX).filter_map(|distance| places.before(chunk, distance));
            let ends_with_row = |other: &usize| {
                let last = self.of_chunk[*other].clone().next_back();
                last.is_some_and(|unit| {
                    self.outlines.is_row(unit, *other) && columns(self.text(unit)) == count
                })
            };
            let mut last_rows = earlier
                .take_while(ends_with_row)
                .filter_map(|other| self.of_chunk[other].clone().next_back());
            let header = last_rows
                .find_map(|row| self.header(row))
                .filter(|&header| columns(self.text(header)) == count);
            if let Some(header) = header {
                let of_table = rows.iter().filter(|&&row| columns(self.text(row)) == count);
                seams.needs.extend(of_table.map(|&row| (row, header)));
            }
        }
    }

    fn header(&self, row: usize) -> Option<usize> {
        let chunk = self.units[row].chunk;
        let mut required = self.outlines.required_by(row, chunk);
        required.find(|&other| self.outlines.is_frame(other, chunk) && columns(self.text(other)) > 1)
    }
}

/// Returns how many columns the first line of a table's row has, by its bars.
fn columns(row: &str) -> usize {
    row.lines().next().unwrap_or_default().matches('|').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::CompressRequest;
    use crate::kv::store::KvStore;
    use crate::model::scripted::ScriptedModel;
    use crate::pipeline::cancel::Cancel;
    use crate::pipeline::clock::Clock;
    use crate::pipeline::{Pipeline, Settings};

    /// `texts` are `(id, text)`. `needs` and `repeats` are pairs of units, by their texts.
    #[track_caller]
    fn check(name: &str, texts: &[(&str, &str)], needs: &[(&str, &str)], repeats: &[(&str, &str)]) {
        let (model, tokenizer) = (ScriptedModel::new(64), ScriptedModel::tokenizer(&[]));
        let store = Arc::new(KvStore::without_tiers());
        let pipeline = Pipeline::new(Arc::new(model), Arc::new(tokenizer), store, Settings::default());
        let chunks: Vec<Arc<Chunk>> =
            texts.iter().map(|&(id, text)| Arc::new(Chunk::new(id, text))).collect();
        let owned = texts.iter().map(|&(id, text)| Chunk::new(id, text));
        let request = CompressRequest::new("?", owned.collect());
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading");
        let text = |unit: usize| reading.units[unit].bytes.slice(&chunks[reading.units[unit].chunk].text);
        let mut found: Vec<(&str, &str)> =
            reading.outlines.needs_across().map(|(unit, other)| (text(unit), text(other))).collect();
        found.sort_unstable();
        assert_eq!(found, needs, "{name}: needs");
        let units = 0..reading.units.len();
        let found: Vec<(&str, &str)> =
            units.filter_map(|unit| Some((text(unit), text(reading.repeats.first(unit)?)))).collect();
        assert_eq!(found, repeats, "{name}: repeats");
    }

    #[test]
    fn windows_of_one_text() {
        let (first, second) =
            ("The ferry was launched in May.", "It was built in the yard at Holm by twenty men.");
        let cut = "It was built in the yard at Holm";
        check(
            "a sentence that the next window has whole",
            &[("a", &format!("{first} {cut}")), ("b", second)],
            &[],
            &[(cut, second)],
        );
        let rest = "launched in May. It was built in the yard";
        check(
            "windows that begin and end within sentences",
            &[
                ("a", &format!("{first} It was built in the yard")),
                ("b", &format!("{rest} at Holm by twenty men.")),
            ],
            &[],
            &[("It was built in the yard", second), ("launched in May.", first)],
        );
        let (begun, ended) = (
            "In May the committee checked the books, with the help of the",
            "the committee checked the books, with the help of the auditors.",
        );
        check(
            "a sentence that no window has whole",
            &[("a", begun), ("b", ended)],
            &[(begun, ended), (ended, begun)],
            &[],
        );
        check(
            "a phrase of two documents",
            &[("a", "All of it is in the yard"), ("b", "in the yard we saw it.")],
            &[],
            &[],
        );
    }

    #[test]
    fn a_sentence_goes_on_in_the_next_chunk() {
        let (begun, ended) = ("The hall was built by the masons", "of the next village.");
        let needs: &[(&str, &str)] = &[(begun, ended), (ended, begun)];
        check("ids with a name", &[("doc-4", begun), ("doc-5", ended)], needs, &[]);
        check(
            "a name behind a word that ends no sentence",
            &[("doc-4", "The hall was built in the year of"), ("doc-5", "1987 by Lund.")],
            &[
                ("1987 by Lund.", "The hall was built in the year of"),
                ("The hall was built in the year of", "1987 by Lund."),
            ],
            &[],
        );
        check("a button", &[("doc-4", "Log in with"), ("doc-5", "Google is best.")], &[], &[]);
        check("in any order", &[("doc-5", ended), ("doc-4", begun)], needs, &[]);
        check("other documents", &[("doc-4", begun), ("note-5", ended)], &[], &[]);
        check("other places", &[("doc-4", begun), ("doc-6", ended)], &[], &[]);
        check("numbers of the request", &[("0", begun), ("1", ended)], &[], &[]);
        check("a sentence that ends", &[("doc-4", "The hall was built."), ("doc-5", ended)], &[], &[]);
        check("a sentence that begins", &[("doc-4", begun), ("doc-5", "Nobody knows.")], &[], &[]);
    }

    #[test]
    fn rows_need_the_header_of_their_table() {
        let header = "| Plan | Seats | Storage |\n|---|---|---|";
        let begun = format!("{header}\n| Team | 10 | 500 GB |");
        let (row, other) = ("| Studio | 25 | 2 TB |", "| Agency | 60 | 5 TB |");
        let rows = format!("{row}\n{other}");
        check(
            "a table over two chunks",
            &[("plans-1", &begun), ("plans-2", &rows)],
            &[(other, header), (row, header)],
            &[],
        );
        check("another document", &[("plans-1", &begun), ("rooms-2", &rows)], &[], &[]);
        check(
            "another table",
            &[("plans-1", &begun), ("plans-2", "| Hall | 25 |\n| Cellar | 60 |")],
            &[],
            &[],
        );
    }

    #[test]
    fn time_is_linear() {
        for text in ["a".repeat(60_000), "ab ".repeat(20_000), "The tide. ".repeat(6_000)] {
            let chunks: Vec<Arc<Chunk>> =
                (0..200).map(|at| Arc::new(Chunk::new(at.to_string(), &text))).collect();
            assert!(
                overlaps(&chunks).iter().flatten().all(|&(other, bytes)| other < 200 && bytes < text.len())
            );
        }
    }
}
