//! Repeats: finds the units that say again what a unit of another chunk says, because retrievers send the same chunk twice, or windows
//! that overlap. Knows texts only. Single sentences that two documents share are no repeats: "It costs 5 euros." may
//! speak of two things.

use std::collections::HashMap;
use std::sync::Arc;

use super::seams::{Seams, Shared};
use super::units::Unit;
use crate::domain::{ByteRange, Chunk};

/// The shortest run of units that is a repeat where two windows overlap, in bytes.
const OVERLAP_BYTES_MIN: usize = 16;

/// The shortest run that is a repeat anywhere in two chunks, in units and bytes.
const RUN_UNITS_MIN: usize = 3;
const RUN_BYTES_MIN: usize = 120;

/// The shortest piece of a sentence at the edge of a window that is looked for in the other one, in bytes.
const EDGE_BYTES_MIN: usize = 8;

/// With how many earlier units of the same text a unit is compared.
const CANDIDATES_MAX: usize = 4;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repeats {
    /// `[unit]`: the unit of another chunk whose text has that of the unit; `None` for most.
    of: Vec<Option<usize>>,
    /// The ends of units that are the beginnings of others.
    shared: Vec<Shared>,
}

impl Repeats {
    /// Finds the repeats among the units of `chunks`. Of equal units the first one stays.
    pub fn find(chunks: &[Arc<Chunk>], units: &[Unit]) -> Self {
        let mut finder = Finder { chunks, units, of: vec![None; units.len()] };
        finder.find();
        let mut repeats = Self { of: finder.of, shared: Vec::new() };
        // A unit that others repeat can turn out to repeat a later one.
        repeats.follow();
        repeats
    }

    /// Adds what two windows share.
    pub fn add_seams(&mut self, seams: Seams) {
        for (part, whole) in seams.parts {
            let stays = self.stays(whole);
            // Windows of one repeated text could overlap in a ring.
            if self.of[part].is_none() && stays != part && self.of[stays].is_none() {
                self.of[part] = Some(stays);
            }
        }
        self.follow();
        self.shared = seams.shared;
    }

    /// Returns the unit that is kept for a unit: itself, or the one that it repeats.
    pub fn stays(&self, unit: usize) -> usize {
        let mut stays = unit;
        for _ in 0..CHAIN_MAX {
            stays = self.first(stays).unwrap_or(stays);
        }
        stays
    }

    /// Lets units that repeat a unit which itself is a repeat name the one that stays.
    fn follow(&mut self) {
        for unit in 0..self.of.len() {
            for _ in 0..CHAIN_MAX {
                let next = self.of[unit].and_then(|first| self.of[first]).filter(|&next| next != unit);
                self.of[unit] = next.or(self.of[unit]);
            }
        }
    }

    /// Returns the ends of units that are the beginnings of others.
    pub fn shared(&self) -> &[Shared] {
        &self.shared
    }

    /// Returns the repeats where of equal units one stays that is `required`, if there is one.
    pub fn preferring(&self, chunks: &[Arc<Chunk>], units: &[Unit], required: &[bool]) -> Self {
        let mut repeats = self.clone();
        // The required unit that takes the place of each first one.
        let mut instead: HashMap<usize, usize> = HashMap::new();
        for unit in (0..units.len()).filter(|&unit| required[unit]) {
            let first = repeats.first(unit).filter(|&first| !required[first]);
            if let Some(first) =
                first.filter(|&first| text_of(chunks, &units[first]) == text_of(chunks, &units[unit]))
            {
                instead.entry(first).or_insert(unit);
            }
        }
        if !instead.is_empty() {
            for unit in 0..units.len() {
                let first = repeats.first(unit).unwrap_or(unit);
                let stays = instead.get(&first).copied();
                repeats.of[unit] = stays.or(repeats.first(unit)).filter(|&stays| stays != unit);
            }
        }
        repeats
    }

    /// Adds units that are folded into the first one of their form, unless they are required.
    pub fn fold(&mut self, folded: &[Option<usize>], required: &[bool]) {
        self.of.resize(folded.len().max(self.of.len()), None);
        for (unit, first) in folded.iter().enumerate().filter(|(unit, _)| !required[*unit]) {
            self.of[unit] = self.of[unit].or(*first);
        }
    }

    /// Returns the unit that says what a unit repeats.
    pub fn first(&self, unit: usize) -> Option<usize> {
        self.of.get(unit).copied().flatten()
    }

    pub fn all(&self) -> impl Iterator<Item = usize> {
        (0..self.of.len()).filter(|&unit| self.is_repeat(unit))
    }

    pub fn is_repeat(&self, unit: usize) -> bool {
        self.first(unit).is_some()
    }
}

/// Returns where the text of a unit stands in a unit that repeats it or that it is a part of.
pub fn place(chunks: &[Arc<Chunk>], unit: &Unit, other: &Unit) -> Option<ByteRange> {
    let text = unit.bytes.slice(&chunks[unit.chunk].text);
    let at = other.bytes.slice(&chunks[other.chunk].text).find(text)?;
    Some(ByteRange::new(other.bytes.start + at, other.bytes.start + at + text.len()))
}

fn text_of<'a>(chunks: &'a [Arc<Chunk>], unit: &Unit) -> &'a str {
    unit.bytes.slice(&chunks[unit.chunk].text)
}

/// How many windows in a row can have the same sentence cut at their edges.
const CHAIN_MAX: usize = 4;

struct Finder<'a> {
    chunks: &'a [Arc<Chunk>],
    units: &'a [Unit],
    of: Vec<Option<usize>>,
}

impl<'a> Finder<'a> {
    fn text(&self, unit: usize) -> &'a str {
        text_of(self.chunks, &self.units[unit])
    }

    fn find(&mut self) {
        let mut known: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut start = 0;
        let of_chunks: Vec<usize> =
            self.units.chunk_by(|a, b| a.chunk == b.chunk).map(<[Unit]>::len).collect();
        for count in of_chunks {
            let end = start + count;
            let mut unit = start;
            while unit < end {
                let earlier = known.get(self.text(unit)).map_or(&[][..], Vec::as_slice);
                let runs = earlier
                    .iter()
                    .rev()
                    .take(CANDIDATES_MAX)
                    .filter(|&&other| self.is_one_document(other, unit))
                    .map(|&other| (other, self.run(other, unit, end)));
                let longest = runs.max_by_key(|(_, length)| *length);
                match longest.filter(|&(other, length)| self.is_repeat(other, unit, length, start, end)) {
                    Some((other, length)) => {
                        self.add(other, unit, length);
                        self.add_edges(other, unit, length, start, end);
                        unit += length;
                    }
                    None => unit += 1,
                }
            }
            (start..end).for_each(|unit| known.entry(self.text(unit)).or_default().push(unit));
            start = end;
        }
    }

    fn add(&mut self, other: usize, unit: usize, length: usize) {
        for at in 0..length {
            let first = self.of[other + at].unwrap_or(other + at);
            if self.of[unit + at].is_none() && first != unit + at {
                self.of[unit + at] = Some(first);
            }
        }
    }

    /// Returns whether two units have one title. The same words under two titles may speak of two things.
    fn is_one_document(&self, one: usize, other: usize) -> bool {
        let title = |unit: usize| self.chunks[self.units[unit].chunk].title.as_deref().unwrap_or_default();
        title(one) == title(other)
    }

    /// Returns how many units from `unit` on are those from `other` on.
    fn run(&self, other: usize, unit: usize, end: usize) -> usize {
        let is_same = |at: &usize| {
            self.units[other + at].chunk == self.units[other].chunk
                && self.text(other + at) == self.text(unit + at)
        };
        (0..end - unit).take_while(is_same).count()
    }

    /// Returns whether a run of equal units is a repeat: all of a chunk, the overlap of two windows, or a long run.
    fn is_repeat(&self, other: usize, unit: usize, length: usize, start: usize, end: usize) -> bool {
        let is_edge = |unit: usize, step: isize| {
            let beside = unit.checked_add_signed(step).and_then(|beside| self.units.get(beside));
            beside.is_none_or(|beside| beside.chunk != self.units[unit].chunk)
        };
        // The end of a sentence may stand before the run, and the beginning of one after it.
        let begins = |first: usize, whole: usize| {
            let is_piece = || self.text(whole - 1).ends_with(self.text(first - 1));
            is_edge(first, -1) || is_edge(first - 1, -1) && !is_edge(whole, -1) && is_piece()
        };
        let ends = |last: usize, whole: usize| {
            let is_piece = || self.text(whole + 1).starts_with(self.text(last + 1));
            is_edge(last, 1) || is_edge(last + 1, 1) && !is_edge(whole, 1) && is_piece()
        };
        let (last, other_last) = (unit + length - 1, other + length - 1);
        let bytes: usize = (unit..=last).map(|unit| self.text(unit).len()).sum();
        let is_whole = unit == start && last + 1 == end || is_edge(other, -1) && is_edge(other_last, 1);
        let overlaps =
            begins(unit, other) && ends(other_last, last) || begins(other, unit) && ends(last, other_last);
        let is_long = bytes >= RUN_BYTES_MIN && length >= RUN_UNITS_MIN;
        bytes >= OVERLAP_BYTES_MIN && (is_whole || overlaps) || is_long
    }

    /// Adds the pieces of sentences at the edges of windows that the other window has whole.
    fn add_edges(&mut self, other: usize, unit: usize, length: usize, start: usize, end: usize) {
        let in_chunk = |unit: usize, of: usize| {
            self.units.get(unit).is_some_and(|found| found.chunk == self.units[of].chunk)
        };
        let mut found = Vec::new();
        if unit > start && other > 0 && in_chunk(other - 1, other) {
            found.push((unit - 1, other - 1, true));
        }
        if unit + length < end && in_chunk(other + length, other) {
            found.push((unit + length, other + length, false));
        }
        for (one, two, is_before) in found {
            let (short, long) =
                if self.text(one).len() < self.text(two).len() { (one, two) } else { (two, one) };
            let (part, whole) = (self.text(short), self.text(long));
            let is_part = if is_before { whole.ends_with(part) } else { whole.starts_with(part) };
            if is_part
                && part.len() >= EDGE_BYTES_MIN
                && self.of[short].is_none()
                && self.of[long] != Some(short)
            {
                self.of[short] = Some(self.of[long].unwrap_or(long));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::TokenSpan;
    use crate::pipeline::units::UnitSpan;

    /// The units of `texts` are their sentences; `expect` are the texts of the units that are repeats, with the first unit.
    fn check(name: &str, texts: &[(&str, &str)], expect: &[(&str, &str)]) {
        let chunk = |(index, (title, text)): (usize, &(&str, &str))| {
            Arc::new(Chunk { title: Some((*title).to_owned()), ..Chunk::new(index.to_string(), *text) })
        };
        let chunks: Vec<_> = texts.iter().enumerate().map(chunk).collect();
        let mut units = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            for bytes in crate::text::sentences(&chunk.text) {
                let sentence = UnitSpan { bytes, tokens: TokenSpan::new(0, 1) };
                units.push(Unit { chunk: index, bytes, tokens: TokenSpan::new(0, 1), sentence });
            }
        }
        let repeats = Repeats::find(&chunks, &units);
        let text = |unit: usize| units[unit].bytes.slice(&chunks[units[unit].chunk].text);
        let found: Vec<_> =
            (0..units.len()).filter_map(|unit| Some((text(unit), text(repeats.first(unit)?)))).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn what_another_chunk_says_already_is_found() {
        let (a, b, c) = ("The pump is red.", "The valve is blue.", "The hose is green.");
        check("equal chunks", &[("", &format!("{a} {b}")), ("", &format!("{a} {b}"))], &[(a, a), (b, b)]);
        check("windows", &[("", &format!("{a} {b}")), ("", &format!("{b} {c}"))], &[(b, b)]);
        check(
            "windows in the other order",
            &[("", &format!("{b} {c}")), ("", &format!("{a} {b}"))],
            &[(b, b)],
        );
        check(
            "windows that cut sentences",
            &[("", &format!("{a} {b} The hose is")), ("", &format!("pump is red. {b} {c}"))],
            &[("The hose is", c), ("pump is red.", a), (b, b)],
        );
        check(
            "one sentence in two documents",
            &[
                ("", &format!("Hotel A is old. {a} It has a bar.")),
                ("", &format!("Hotel B is new. {a} It has none.")),
            ],
            &[],
        );
        check("the same words under two titles", &[("A", a), ("B", a)], &[]);
        check("within a chunk", &[("", &format!("{a} {b} {a}"))], &[]);
    }
}
