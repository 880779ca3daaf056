//! How a turn of a chat begins. Knows the formats of programs and of transcripts.

use super::super::stamp;
use crate::lexicon::{Class, is};
use crate::line::Line;

/// The longest name of a speaker, in bytes.
const NAME_BYTES_MAX: usize = 40;
const NAME_WORDS_MAX: usize = 4;
/// How many lines decide how the turns of a chat begin.
const LINES_READ: usize = 400;
const SPEAKERS_MAX: usize = 64;

/// How the turns of a chat begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Format {
    /// `[09:02] Mia: hi`, `09:02 - Mia: hi`, `09:02 | mia | hi`, `[09:02] <mia> hi`.
    Timed,
    /// `Mia (09:02): hi`, `Mia [09:02]: hi`.
    NameThenTime,
    /// `Mia  9:02 AM`, with the text on the lines below.
    NameLine,
    /// `**Mia:** hi`, `**Mia**: hi`.
    Bold,
    Angle,
    /// A name and a colon: `Mia: hi`.
    Named,
}

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Head<'a> {
    pub speaker: &'a str,
    /// Where the words of the speaker begin, from the beginning of the line.
    pub said_at: usize,
}

impl Format {
    /// Returns the beginning of a turn if the line has one.
    pub fn head<'a>(self, line: &'a str) -> Option<Head<'a>> {
        match self {
            Self::Timed => timed(line),
            Self::NameThenTime => name_then_time(line),
            Self::NameLine => name_line(line),
            Self::Bold => bold(line),
            Self::Angle => angle(line),
            Self::Named => {
                let (name, rest) = line.split_once(':')?;
                let is_turn = is_speaker(name) && (rest.is_empty() || rest.starts_with([' ', '\t']));
                is_turn.then(|| Head { speaker: name, said_at: line.len() - rest.trim_start().len() })
            }
        }
    }
}

const FORMATS: [Format; 6] =
    [Format::Timed, Format::NameThenTime, Format::NameLine, Format::Bold, Format::Angle, Format::Named];

/// Returns how the turns begin; none if this is no chat.
pub(in super::super) fn format(lines: &[Line]) -> Option<Format> {
    let (all, are_apart) = (read(lines), are_apart(lines));
    FORMATS.into_iter().find(|format| is_chat(*format, &all, are_apart))
}

/// Returns how the turns begin of a text that is a chat, even if it is too short to tell; none if it has no turns.
pub(super) fn format_of_chat(lines: &[Line]) -> Option<Format> {
    let has_turns = |format: &Format| {
        let lines = read(lines);
        let turns: Vec<&&str> = lines.iter().filter(|line| format.head(line).is_some()).collect();
        let sentences = turns.iter().filter(|line| ends_sentence(line)).count();
        turns.len() >= 2 && turns.len() * 4 >= lines.len() && sentences * 2 >= turns.len()
    };
    format(lines).or_else(|| FORMATS.into_iter().find(has_turns))
}

/// Returns the lines that decide, without blank ones.
fn read<'a>(lines: &[Line<'a>]) -> Vec<&'a str> {
    let lines = lines.iter().take(LINES_READ).map(|line| line.text);
    lines.filter(|line| !line.trim().is_empty()).collect()
}

/// Returns whether a blank line is before each line that begins as the first one does, up to a colon: those are the first fields of records.
fn are_apart(lines: &[Line]) -> bool {
    let lines = &lines[..lines.len().min(LINES_READ)];
    let name = |line: &Line| line.text.split(':').next().unwrap_or_default().to_owned();
    let Some(first) = lines.iter().position(|line| !line.is_blank()) else { return false };
    let named = name(&lines[first]);
    // Blank lines may have been taken out: what is between two lines is longer there.
    // Lines of different texts have no place in common.
    let gap = |at: usize| lines[at].start.saturating_sub(lines[at - 1].start + lines[at - 1].text.len());
    let least = (1..lines.len()).map(gap).min().unwrap_or_default();
    let is_apart = |at: usize| lines[at - 1].is_blank() || gap(at) > least;
    let mut again =
        (first + 1..lines.len()).filter(|&at| !lines[at].is_blank() && name(&lines[at]) == named).peekable();
    again.peek().is_some() && again.all(is_apart)
}

/// The fewest different names that make turns in a fixed order the fields of records.
const RECORD_FIELDS_MIN: usize = 3;

/// Returns whether the lines are a chat in a format: at least two speakers who speak again and again. `are_apart` says whether they may be records
/// between blank lines.
fn is_chat(format: Format, lines: &[&str], are_apart: bool) -> bool {
    let (mut speakers, mut turns, mut roles): (Vec<(&str, usize)>, usize, usize) = (Vec::new(), 0, 0);
    // People speak in sentences, and the values of fields hardly ever are some.
    let (mut sentences, mut changes) = (0, 0);
    // The fields of records come in the same order again and again, as speakers hardly do.
    let (mut last, mut records, mut is_ordered) = (0, 1, true);
    for line in lines {
        let Some(speaker) = format.head(line).map(|head| head.speaker).filter(|name| !name.is_empty()) else {
            continue;
        };
        turns += 1;
        sentences += usize::from(ends_sentence(line));
        let at = speakers.iter().position(|(name, _)| *name == speaker).unwrap_or(speakers.len());
        changes += usize::from(turns == 1 || at != last);
        is_ordered &= turns == 1 || at > last || at == 0;
        records += usize::from(turns > 1 && at == 0);
        last = at;
        if at == SPEAKERS_MAX {
            return false;
        }
        match speakers.get_mut(at) {
            Some((_, count)) => *count += 1,
            None => speakers.push((speaker, 1)),
        }
        roles += usize::from(is_role(speaker));
    }
    let is_speech = sentences * 3 >= turns * 2 && !are_apart;
    let is_again = records > 2 || records == 2 && turns == 2 * speakers.len();
    if format == Format::Named && !is_speech && is_ordered && is_again && speakers.len() >= RECORD_FIELDS_MIN
    {
        return false;
    }
    let again: usize = speakers.iter().filter(|(_, count)| *count > 1).map(|(_, count)| count).sum();
    let is_dense = match format {
        Format::Named => turns * 10 >= lines.len() * 7,
        Format::NameLine => turns * 4 >= lines.len(),
        _ => turns * 2 >= lines.len(),
    };
    let are_roles = roles >= 2 && roles == turns && turns * 4 >= lines.len();
    let speak_again = match format {
        Format::Named if is_speech && changes == turns => turns >= 3 && again >= 2,
        Format::Named => {
            turns >= 4 && again * 3 >= turns * 2 && speakers.iter().filter(|s| s.1 > 1).count() >= 2
        }
        _ => turns >= 3 && again * 2 >= turns,
    };
    speakers.len() >= 2 && (are_roles || is_dense && speak_again)
}

fn ends_sentence(line: &str) -> bool {
    line.trim_end()
        .trim_end_matches(['"', '”', '»', ')', '」'])
        .ends_with(['.', '!', '?', '…', '。', '！', '？'])
}

/// Returns whether a name is that of a part, such as "User": no other text than a chat is made of those.
fn is_role(name: &str) -> bool {
    is(Class::Role, name)
}

fn timed(line: &str) -> Option<Head<'_>> {
    let stamp = stamp::length(line)?;
    let rest = line[stamp..].trim_start_matches([' ', '\t', '-', '–', '|', '\u{200e}', ',']);
    let at = line.len() - rest.len();
    if let Some(head) = angle(rest) {
        return Some(Head { said_at: at + head.said_at, ..head });
    }
    let cut = rest.char_indices().find(|&(at, c)| {
        let next = rest[at + c.len_utf8()..].chars().next();
        matches!(c, ':' | '|') && next.is_none_or(char::is_whitespace)
    });
    let speaker = cut.map(|(cut, _)| rest[..cut].trim()).filter(|name| is_nickname(name));
    let Some(speaker) = speaker else { return Some(Head { speaker: "", said_at: at }) };
    let said = &rest[cut.map_or(0, |(cut, c)| cut + c.len_utf8())..];
    Some(Head { speaker, said_at: line.len() - said.trim_start().len() })
}

fn name_then_time(line: &str) -> Option<Head<'_>> {
    let open = line.find([' ', '\t'])?;
    let bracket = open + line[open..].find(['(', '['])?;
    let name = line[..bracket].trim_end();
    let end = bracket + stamp::length(&line[bracket..])?;
    let rest = line[end..].strip_prefix(':')?;
    is_speaker(name).then(|| Head { speaker: name, said_at: line.len() - rest.trim_start().len() })
}

fn name_line(line: &str) -> Option<Head<'_>> {
    let digit = line.find(|c: char| c.is_ascii_digit())?;
    let digit = if line[..digit].ends_with(['[', '(']) { digit - 1 } else { digit };
    let (name, time) = line.split_at(digit);
    let is_end = stamp::length(time).is_some_and(|length| time[length..].trim().is_empty());
    (is_end && name.ends_with(' ') && is_speaker(name.trim()))
        .then(|| Head { speaker: name.trim(), said_at: line.len() })
}

fn bold(line: &str) -> Option<Head<'_>> {
    let (name, rest) = line.strip_prefix("**")?.split_once("**")?;
    let (name, rest) = match name.strip_suffix(':') {
        Some(name) => (name, rest),
        None => (name, rest.strip_prefix(':')?),
    };
    is_speaker(name).then(|| Head { speaker: name, said_at: line.len() - rest.trim_start().len() })
}

fn angle(line: &str) -> Option<Head<'_>> {
    let (name, rest) = line.strip_prefix('<')?.split_once("> ")?;
    let name = name.trim_matches(['@', '+', '~', ' ']);
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains([' ', '/', '=', '"']);
    is_name.then(|| Head { speaker: name, said_at: line.len() - rest.trim_start().len() })
}

/// Returns whether a text could name a speaker: a few words that begin with a capital, as in "Oom Jef",
/// "SPEAKER 1", "Mme Collard", or a role.
fn is_speaker(name: &str) -> bool {
    let begins_well = |word: &str| {
        word.chars().next().is_some_and(|c| c.is_alphabetic() && !c.is_lowercase() || c.is_ascii_digit())
    };
    is_role(name)
        || is_nickname(name)
            && name.starts_with(|c: char| c.is_alphabetic() && !c.is_lowercase())
            && name.split_whitespace().all(|word| begins_well(word) || word.len() <= 3)
}

/// Returns whether a text could name a speaker after a point in time, where names in lower case are usual.
fn is_nickname(name: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '.' | '-' | '\'' | '’' | '&');
    let words = name.split_whitespace().count();
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with(' ')
        && (1..=NAME_WORDS_MAX).contains(&words)
        && name.contains(char::is_alphabetic)
        && name.chars().all(|c| is_letter(c) || !c.is_ascii())
        && !is(Class::NoName, name)
        && !is(Class::Level, name)
        && (words == 1 || name.chars().any(char::is_uppercase) || !name.is_ascii())
}
