//! Finds lines that are equal but for some fields, and writes them as rows of a template.
//!
//! Lines are grouped by a key, in several ways: by all words without digits; by the same words but one; by the number of words; and by their
//! first words, as in a table with a text in its last column. A way takes the lines that the ways before it left over. Whether a group saves
//! tokens is estimated, and whether its template gives each line back is checked.

use std::collections::HashMap;

use crate::template::{DITTO, Pad, Signs, Template};
use crate::tokens::estimate;
use crate::words::{Division, Line};

/// A line of the text to encode.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub text: &'a str,
    /// Whether it is a line of JSON.
    pub is_json: bool,
}

/// The least tokens of a line that may be a row; a shorter one is no longer than its row.
const LINE_TOKENS_MIN: usize = 5;

/// How many tokens a group has to save.
const GAIN_MIN: isize = 12;

/// The most columns of a table before a text in its last one.
const COLUMNS_MAX: usize = 14;

/// The most lines by which the number of columns is chosen.
const SAMPLE_LINES_MAX: usize = 96;

/// The words without digits that may differ within a group that is equal in all others.
const OTHER_WORDS_MAX: usize = 16;

/// How often in a row a value is written as [`DITTO`]. After that it is written again, so that it stands near the row that needs it.
const DITTO_MAX: usize = 12;

/// The least tokens of a value that is written as [`DITTO`].
const DITTO_TOKENS_MIN: usize = 3;

/// A line that may belong to a group, with its index.
type Member<'a> = (usize, &'a Line<'a>);

/// Lines with one template.
struct Group {
    template: Template,
    /// Lines in their order, with their fields. The first one is the template's own.
    rows: Vec<(usize, Vec<String>)>,
    gain: isize,
}

/// The lines as templates and rows.
pub struct Rows {
    pub text: String,
    pub signs: Signs,
    pub has_templates: bool,
}

/// Writes lines as templates and rows.
pub fn write(lines: &[Input]) -> Rows {
    let tokens: Vec<usize> = lines.iter().map(|line| estimate(line.text)).collect();
    let signs = choose_signs(lines);
    let division = find_division(lines);
    let division_of = |line: &Input| if line.is_json { Division::Json } else { division };
    let divided: Vec<Line> = lines.iter().map(|line| Line::divide(line.text, division_of(line))).collect();
    let search = Search { lines, divided: &divided, tokens: &tokens, signs, division };
    // Which way comes first decides whether a table becomes one group or many.
    let all = [Way::Words, Way::WordsButOne, Way::Count, Way::Columns];
    let found = [&all[..], &all[2..], &all[3..]].into_iter().map(|ways| search.groups(ways));
    let gain = |groups: &Vec<Group>| groups.iter().map(|group| group.gain).sum::<isize>();
    let mut groups: Vec<Group> = found.rev().max_by_key(gain).unwrap_or_default();
    groups.sort_by_key(|group| group.rows[0].0);
    Rows { text: write_groups(lines, &groups, signs), signs, has_templates: !groups.is_empty() }
}

/// How lines are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Words,
    WordsButOne,
    Count,
    Columns,
}

struct Search<'a> {
    lines: &'a [Input<'a>],
    divided: &'a [Line<'a>],
    /// The estimated tokens of each line.
    tokens: &'a [usize],
    signs: Signs,
    /// How lines that are not JSON are divided.
    division: Division,
}

impl<'a> Search<'a> {
    /// Groups the lines. A line is in one group at most.
    fn groups(&self, ways: &[Way]) -> Vec<Group> {
        let mut left: Vec<usize> =
            (0..self.lines.len()).filter(|&at| self.tokens[at] >= LINE_TOKENS_MIN).collect();
        let mut groups = Vec::new();
        for &way in ways {
            if left.len() < 2 {
                break;
            }
            let mut is_taken = vec![false; self.lines.len()];
            let columns = if way == Way::Columns { self.columns(&left) } else { Vec::new() };
            let members = match way {
                Way::Columns => vec![columns.iter().map(|(at, line)| (*at, line)).collect()],
                way => self.members(&left, way),
            };
            for members in members {
                if let Some(group) = self.group(&members) {
                    group.rows.iter().for_each(|(at, _)| is_taken[*at] = true);
                    groups.push(group);
                }
            }
            left.retain(|&at| !is_taken[at]);
        }
        groups
    }

    /// Divides lines into those with equal keys, in the order of their first lines.
    fn members(&self, left: &[usize], way: Way) -> Vec<Vec<Member<'a>>> {
        let keys: Vec<u64> = if way == Way::WordsButOne {
            let keys: Vec<Vec<u64>> = left.iter().map(|&at| self.keys_but_one(at)).collect();
            let mut counts: HashMap<u64, u32> = HashMap::new();
            keys.iter().flatten().for_each(|key| *counts.entry(*key).or_default() += 1);
            let best = |keys: &Vec<u64>| keys.iter().copied().max_by_key(|key| counts[key]);
            keys.iter().map(|keys| best(keys).unwrap_or_default()).collect()
        } else {
            left.iter().map(|&at| self.key(at, way == Way::Words)).collect()
        };
        let mut groups: Vec<Vec<Member>> = Vec::new();
        let mut known: HashMap<u64, usize> = HashMap::new();
        for (key, &at) in keys.into_iter().zip(left) {
            let group = *known.entry(key).or_insert(groups.len());
            if group == groups.len() {
                groups.push(Vec::new());
            }
            groups[group].push((at, &self.divided[at]));
        }
        groups.retain(|group| group.len() > 1);
        groups
    }

    /// The lines of a table as a number of columns and a text in the last one, with the number that saves most; none if they are no table.
    fn columns(&self, left: &[usize]) -> Vec<(usize, Line<'a>)> {
        let plain: Vec<usize> = left.iter().copied().filter(|&at| !self.lines[at].is_json).collect();
        if self.division != Division::Blanks || plain.len() < 2 {
            return Vec::new();
        }
        let divide = |lines: &mut dyn Iterator<Item = &usize>, count| -> Vec<(usize, Line<'a>)> {
            lines.filter_map(|&at| Some((at, self.divided[at].first_words(count)?))).collect()
        };
        let step = plain.len().div_ceil(SAMPLE_LINES_MAX);
        let gain = |&count: &usize| {
            let sample = divide(&mut plain.iter().step_by(step), count);
            let members: Vec<Member> = sample.iter().map(|(at, line)| (*at, line)).collect();
            self.group(&members).map_or(0, |group| group.gain)
        };
        match (1..=COLUMNS_MAX).map(|count| (gain(&count), count)).max() {
            Some((gain, count)) if gain > 0 => divide(&mut plain.iter(), count),
            _ => Vec::new(),
        }
    }

    fn division_of(&self, at: usize) -> Division {
        if self.lines[at].is_json { Division::Json } else { self.division }
    }

    /// The key of a line: the texts between its words and, with `has_words`, its words without digits.
    fn key(&self, at: usize, has_words: bool) -> u64 {
        let line = &self.divided[at];
        let division = self.division_of(at);
        let mut key = hash(usize::from(division == Division::Json), &(line.words.len() as u64).to_le_bytes());
        for gap in 0..=line.words.len() {
            let text =
                if division == Division::Json { line.gap(gap) } else { line.gap(gap).trim_matches(' ') };
            key = key.wrapping_add(hash(2 * gap, text.as_bytes()));
        }
        if has_words && division == Division::Blanks {
            for word in literal_words(line) {
                key = key.wrapping_add(hash(2 * word + 1, line.word(word).as_bytes()));
            }
        }
        key
    }

    /// The keys of a line without one of its words each.
    fn keys_but_one(&self, at: usize) -> Vec<u64> {
        let line = &self.divided[at];
        let all = self.key(at, true);
        if self.division_of(at) != Division::Blanks || literal_words(line).next().is_none() {
            return vec![all];
        }
        let without = |word| {
            all.wrapping_sub(hash(2 * word + 1, line.word(word).as_bytes()))
                .wrapping_add(hash(2 * word + 1, b""))
        };
        literal_words(line).take(OTHER_WORDS_MAX).map(without).collect()
    }

    /// Makes a group of lines with the same number of words. Lines that its template does not give back are left out. `None` if it saves
    /// too little.
    fn group(&self, members: &[Member]) -> Option<Group> {
        let (members, pads) = align(members)?;
        let (first_at, first) = members[0];
        let count = first.words.len();
        let varies: Vec<bool> =
            (0..count).map(|at| members.iter().any(|(_, line)| line.word(at) != first.word(at))).collect();
        let mut affixes = Vec::with_capacity(count);
        for at in 0..count {
            let words = members.iter().map(|(_, line)| line.word(at));
            affixes.push(if varies[at] { find_affixes(words, pads[at]) } else { (0, 0) });
        }
        let (mut literals, mut field_pads) = (vec![String::new()], Vec::new());
        for at in 0..=count {
            let literal = literals.last_mut().expect("there is one");
            literal.push_str(first.gap(at));
            let Some(word) = (at < count).then(|| first.word(at)) else { break };
            if !varies[at] {
                literal.push_str(word);
                continue;
            }
            let (prefix, suffix) = affixes[at];
            literal.push_str(&word[..prefix]);
            field_pads.push(pads[at]);
            literals.push(word[word.len() - suffix..].to_owned());
        }
        let fields_of = |line: &Line| -> Vec<String> {
            let varying = (0..count).filter(|&at| varies[at]);
            varying
                .map(|at| {
                    let (word, (prefix, suffix)) = (line.word(at), affixes[at]);
                    word[prefix..word.len() - suffix].to_owned()
                })
                .collect()
        };
        let template = Template::new(literals, fields_of(first), field_pads);
        let Signs { brackets: (open, close), delimiter, .. } = self.signs;
        if first.text.contains([open, close]) {
            return None;
        }
        let mut rows = vec![(first_at, template.first().to_vec())];
        // The definition costs its signs.
        let mut gain = -(2 * template.first().len() as isize + 3);
        for &(at, line) in &members[1..] {
            let fields = fields_of(line);
            if fields.iter().any(|field| field.contains(delimiter) || field == DITTO) {
                continue;
            }
            let texts: Vec<&str> = fields.iter().map(String::as_str).collect();
            if template.fill(&texts).as_deref() != Some(line.text) {
                continue;
            }
            let before = &rows[rows.len() - 1];
            let tag = if before.0 + 1 == at { 1 } else { 2 };
            let cost_of =
                |(field, before): (&String, &String)| if field == before { 1 } else { 1 + estimate(field) };
            let cost: usize = fields.iter().zip(&before.1).map(cost_of).sum();
            gain += self.tokens[at] as isize - (cost + tag) as isize;
            rows.push((at, fields));
        }
        (gain >= GAIN_MIN).then_some(Group { template, rows, gain })
    }
}

/// The words of a line that have no digits.
fn literal_words<'a>(line: &'a Line) -> impl Iterator<Item = usize> + 'a {
    (0..line.words.len()).filter(|&at| !line.word(at).bytes().any(|byte| byte.is_ascii_digit()))
}

/// FNV-1a, from a seed. Lines with equal hashes by chance only save less.
fn hash(seed: usize, bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64 ^ (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hashed =
        bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    // Sums of hashes are compared, so that the high bits have to matter.
    (hashed ^ (hashed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Finds how blanks depend on the lengths of words. Returns the lines that follow the same rules, of which the first one is the template, and for
/// each word its alignment.
fn align<'a>(members: &[Member<'a>]) -> Option<(Vec<Member<'a>>, Vec<Pad>)> {
    let first = members.first()?.1;
    let count = first.words.len();
    let mut pads = vec![Pad::default(); count];
    let mut fits = vec![true; members.len()];
    let mut is_exact = vec![true; members.len()];
    for gap in 0..=count {
        let mut sides = vec![Side::Before];
        let core = first.gap(gap).trim_matches(' ');
        if !core.is_empty() {
            sides.push(Side::After);
        }
        for side in sides {
            let blanks = |line: &Line| side.blanks(line.gap(gap));
            if members.iter().all(|(_, line)| line.gap(gap) == first.gap(gap)) {
                continue;
            }
            let (before, after) = (gap.checked_sub(1), Some(gap).filter(|&after| after < count));
            // By the word before, the word after, or both.
            let mut rules = vec![(None, None)];
            if side == Side::Before {
                rules.push((before, None));
            }
            if side == Side::After || core.is_empty() {
                rules.push((None, after));
            }
            if core.is_empty() {
                rules.push((before, after));
            }
            let width = |line: &Line, rule: (Option<usize>, Option<usize>)| {
                let length = |word: Option<usize>| word.map_or(0, |at| line.word(at).chars().count());
                blanks(line) + length(rule.0) + length(rule.1)
            };
            let mut best = (0, (None, None), 0);
            for rule in rules {
                let mut counts: HashMap<usize, usize> = HashMap::new();
                members.iter().for_each(|(_, line)| *counts.entry(width(line, rule)).or_default() += 1);
                let most =
                    counts.into_iter().max_by_key(|&(width, count)| (count, width)).unwrap_or_default();
                if most.1 > best.0 {
                    best = (most.1, rule, most.0);
                }
            }
            let (_, rule, most) = best;
            if let Some(word) = rule.0 {
                pads[word].after = true;
            }
            if let Some(word) = rule.1 {
                pads[word].before = true;
            }
            for (at, (_, line)) in members.iter().enumerate() {
                let exact = width(line, rule) == most;
                is_exact[at] &= exact;
                // A word that is longer than its column is followed by one blank, or by none.
                fits[at] &= exact || rule != (None, None) && width(line, rule) > most && blanks(line) < 2;
            }
        }
    }
    let start = (0..members.len()).find(|&at| fits[at] && is_exact[at])?;
    let kept: Vec<Member> = members
        .iter()
        .enumerate()
        .filter(|(at, _)| *at >= start && fits[*at])
        .map(|(_, member)| *member)
        .collect();
    // A word that is the same in all lines has no need of a rule.
    for (at, pad) in pads.iter_mut().enumerate() {
        if kept.iter().all(|(_, line)| line.word(at) == kept[0].1.word(at)) {
            *pad = Pad::default();
        }
    }
    (kept.len() > 1).then_some((kept, pads))
}

/// The blanks of the text between two words: before its other signs, or after them.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Before,
    After,
}

impl Side {
    fn blanks(self, gap: &str) -> usize {
        match self {
            Self::Before => gap.len() - gap.trim_start_matches(' ').len(),
            Self::After => gap.len() - gap.trim_end_matches(' ').len(),
        }
    }
}

/// Finds the bytes that all words begin and end with, without dividing numbers and names.
fn find_affixes<'a>(words: impl Iterator<Item = &'a str> + Clone, pad: Pad) -> (usize, usize) {
    let first = words.clone().next().unwrap_or_default();
    let mut prefix = first.len();
    for word in words.clone() {
        prefix = common(first.bytes(), word.bytes(), prefix);
    }
    prefix = first[..first.floor_char_boundary(prefix)]
        .rfind(is_sign)
        .map_or(0, |at| first.ceil_char_boundary(at + 1));
    // The blanks of a column stand directly beside its field.
    if pad.before {
        prefix = 0;
    }
    let mut suffix = if pad.after { 0 } else { first.len() - prefix };
    for word in words.clone() {
        suffix = common(first[prefix..].bytes().rev(), word[prefix..].bytes().rev(), suffix);
    }
    let start = first.ceil_char_boundary(first.len() - suffix);
    let ends_numbers = first[start..].bytes().all(|byte| byte.is_ascii_alphabetic())
        && words.clone().all(|word| {
            let number = &word[prefix..word.len() - (first.len() - start)];
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        });
    let start =
        if ends_numbers { start } else { first[start..].find(is_sign).map_or(first.len(), |at| start + at) };
    (prefix, first.len() - start)
}

fn is_sign(c: char) -> bool {
    !c.is_alphanumeric()
}

fn common(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>, most: usize) -> usize {
    a.zip(b).take(most).take_while(|(a, b)| a == b).count()
}

/// Chooses the division of lines that are not JSON: by a sign, if most lines have it equally often.
fn find_division(lines: &[Input]) -> Division {
    let plain: Vec<&str> = lines.iter().filter(|line| !line.is_json).map(|line| line.text).collect();
    let plain: Vec<&str> = plain.into_iter().filter(|line| !line.trim().is_empty()).collect();
    for sign in ['\t', ',', ';', '|'] {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        plain.iter().for_each(|line| *counts.entry(line.matches(sign).count()).or_default() += 1);
        let most = counts.into_iter().filter(|(count, _)| *count > 1).map(|(_, lines)| lines).max();
        if most.is_some_and(|most| most > 2 && 4 * most >= 3 * plain.len()) {
            return Division::Cells(sign);
        }
    }
    Division::Blanks
}

/// Chooses the signs that stand in the fewest lines.
fn choose_signs(lines: &[Input]) -> Signs {
    let count = |is: &dyn Fn(&str) -> bool| lines.iter().filter(|line| is(line.text)).count();
    let rarest = |signs: &[char], is: &dyn Fn(&str, char) -> bool| {
        *signs.iter().min_by_key(|sign| count(&|text| is(text, **sign))).expect("there are signs")
    };
    let brackets = [('<', '>'), ('{', '}'), ('«', '»'), ('‹', '›')];
    Signs {
        tag: rarest(&['#', '@', '%', '§'], &|text, sign| text.starts_with(sign)),
        delimiter: rarest(&['|', '~', '^', '¦'], &|text, sign| text.contains(sign)),
        brackets: *brackets
            .iter()
            .min_by_key(|pair| count(&|text| text.contains([pair.0, pair.1])))
            .expect("pairs"),
    }
}

fn write_groups(lines: &[Input], groups: &[Group], signs: Signs) -> String {
    // The group and the row of each line.
    let mut places: Vec<Option<(usize, usize)>> = vec![None; lines.len()];
    for (number, group) in groups.iter().enumerate() {
        group.rows.iter().enumerate().for_each(|(row, (line, _))| places[*line] = Some((number, row)));
    }
    // How often each field was written as `DITTO` since it was written itself.
    let mut dittos: Vec<Vec<usize>> =
        groups.iter().map(|group| vec![0; group.template.first().len()]).collect();
    let mut out: Vec<String> = Vec::with_capacity(lines.len());
    let mut last = None;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        match places[at] {
            None if line.text.starts_with([signs.tag, signs.delimiter]) => {
                out.push(format!("{}={}", signs.tag, line.text));
            }
            None => out.push(line.text.to_owned()),
            Some((number, 0)) => out.push(groups[number].template.write(number + 1, signs)),
            Some((number, row)) => {
                let rows = &groups[number].rows;
                let fields = &rows[row].1;
                let mut text = String::new();
                if fields.is_empty() {
                    // Lines that stand again one after the other.
                    let is_again = |next: &usize| {
                        let template = number + (next - at);
                        matches!(places[*next], Some((found, row)) if found == template && row > 0 && groups[found].template.first().is_empty())
                    };
                    let end = (at + 1..lines.len()).take_while(is_again).last().unwrap_or(at);
                    text = format!("{}{}", signs.tag, number + 1);
                    if end > at {
                        text.push_str(&format!("-{}", number + 1 + (end - at)));
                    }
                    last = Some(number + (end - at));
                    at = end + 1;
                    out.push(text);
                    continue;
                }
                if last != Some(number) {
                    text = format!("{}{}", signs.tag, number + 1);
                }
                for (field, value) in fields.iter().enumerate() {
                    let before = &rows[row - 1].1[field];
                    let used = &mut dittos[number][field];
                    text.push(signs.delimiter);
                    if value == before && *used < DITTO_MAX && estimate(value) >= DITTO_TOKENS_MIN {
                        *used += 1;
                        text.push_str(DITTO);
                    } else {
                        *used = 0;
                        text.push_str(value);
                    }
                }
                out.push(text);
            }
        }
        if let Some((number, _)) = places[at] {
            last = Some(number);
        }
        at += 1;
    }
    out.join("\n")
}

/// Gives the lines back; `None` if the text is damaged.
pub fn read(text: &str, signs: Signs, bytes_max: usize) -> Option<Vec<String>> {
    let mut templates: Vec<(Template, Vec<String>)> = Vec::new();
    let mut lines = Vec::new();
    let mut last = 0;
    let mut bytes = 0;
    let mut push = |lines: &mut Vec<String>, line: String| {
        bytes += line.len() + 1;
        lines.push(line);
        (bytes <= bytes_max + 1).then_some(())
    };
    for line in text.split('\n') {
        let row = if let Some(rest) = line.strip_prefix(signs.tag) {
            if let Some(literal) = rest.strip_prefix('=') {
                push(&mut lines, literal.to_owned())?;
                continue;
            }
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let number: usize = rest[..digits].parse().ok()?;
            let rest = &rest[digits..];
            last = number.checked_sub(1)?;
            if last == templates.len() {
                let template = Template::parse(rest, signs)?;
                let first = template.first().to_vec();
                push(&mut lines, template.fill(&first.iter().map(String::as_str).collect::<Vec<_>>())?)?;
                templates.push((template, first));
                continue;
            }
            if !rest.starts_with(signs.delimiter) {
                let end: usize = match rest.strip_prefix('-') {
                    Some(end) => end.parse().ok()?,
                    None if rest.is_empty() => number,
                    None => return None,
                };
                if end < number || end > templates.len() {
                    return None;
                }
                for number in number..=end {
                    push(&mut lines, templates.get(number.checked_sub(1)?)?.0.fill(&[])?)?;
                    last = number - 1;
                }
                continue;
            }
            rest
        } else if line.starts_with(signs.delimiter) {
            line
        } else {
            push(&mut lines, line.to_owned())?;
            continue;
        };
        let (template, before) = templates.get_mut(last)?;
        let values = row[signs.delimiter.len_utf8()..].split(signs.delimiter);
        let fields: Vec<String> = values
            .enumerate()
            .map(|(at, value)| if value == DITTO { before.get(at).cloned() } else { Some(value.to_owned()) })
            .collect::<Option<_>>()?;
        push(&mut lines, template.fill(&fields.iter().map(String::as_str).collect::<Vec<_>>())?)?;
        *before = fields;
    }
    Some(lines)
}
