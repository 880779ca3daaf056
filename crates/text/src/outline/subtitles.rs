//! The pieces of subtitles (SRT, WebVTT): the cues of one sentence. Knows the lines of a cue, and how a sentence ends.
//!
//! - A cue is its identifier, its time and its text. A sentence that goes on in the next cue is one piece with it.
//! - Subtitles without full stops, as programs make them, are divided every [`CUES_UNSTOPPED`] cues.
//! - What is before the first cue, and every block without a time, is a piece of its own or, if it is for programs, a frame.

use super::{Pieces, bonds};
use crate::line::{Line, lines, span};
use crate::range::ByteRange;

/// The most cues in one piece.
const CUES_MAX: usize = 8;

/// The cues in one piece where full stops are missing.
const CUES_UNSTOPPED: usize = 3;

/// Returns whether a line says from when until when a cue is shown: `00:01:02,500 --> 00:01:04,000`.
pub(super) fn is_time(line: &str) -> bool {
    let is_point = |point: &str| {
        let point = point.trim();
        let end = point.find(' ').unwrap_or(point.len());
        point[..end].contains(':')
            && point[..end].bytes().all(|byte| byte.is_ascii_digit() || b":.,".contains(&byte))
    };
    line.split_once("-->").is_some_and(|(from, to)| is_point(from) && is_point(to))
}

/// The most pieces in a row of which each requires the one before it.
const ROW_MAX: usize = 4;

pub(super) fn outline(text: &str) -> Pieces {
    let lines = lines(text);
    let mut pieces = Pieces::default();
    let blocks = blocks(&lines);
    let stopped = blocks.iter().filter(|block| ends_sentence(block)).count();
    let cues_max = if stopped * CUES_MAX < blocks.len() { CUES_UNSTOPPED } else { CUES_MAX };
    // How many pieces in a row refer each to the one before it.
    let mut row = 0;
    let mut at = 0;
    while at < blocks.len() {
        if !has_time(blocks[at]) {
            let range = span(blocks[at]);
            if ["WEBVTT", "STYLE", "REGION"].iter().any(|name| range.slice(text).starts_with(name)) {
                pieces.frame(range, &[])
            } else {
                pieces.push(range, &[])
            };
            at += 1;
            continue;
        }
        let first = at;
        while !ends_sentence(blocks[at])
            && at + 1 - first < cues_max
            && blocks.get(at + 1).is_some_and(|next| has_time(next))
        {
            at += 1;
        }
        let range = ByteRange::new(blocks[first][0].start, span(blocks[at]).end);
        let piece = pieces.push(range, &[]);
        // An answer needs its question, and "They do not." what is said before.
        let said =
            blocks[first].iter().skip_while(|line| !is_time(line.text)).nth(1).map_or("", |line| line.text);
        let above = piece.checked_sub(1).filter(|&above| !pieces.list[above].is_frame());
        let asks = |at: usize| {
            pieces.list[at].bytes.slice(text).trim_end_matches(['"', '”', '\'', '’', '»']).ends_with('?')
        };
        let is_answer = above.is_some_and(asks);
        let refers = is_answer || bonds::is_dependent(said.trim_start_matches(['-', ' ']));
        row = if refers { row + 1 } else { 0 };
        let is_over = row > ROW_MAX;
        if is_over {
            row = usize::from(is_answer);
        }
        if let Some(above) = above.filter(|_| refers && (!is_over || is_answer)) {
            pieces.require(piece, above);
            // An answer keeps its question, which then stands for itself.
            if is_over {
                pieces.list[above].links.retain(|link| link.to + 1 != above);
            }
            // A question alone says nothing.
            if is_answer {
                pieces.introduce(above, piece);
            }
        }
        at += 1;
    }
    pieces
}

/// Returns the cues and other blocks of lines. A cue begins at its identifier, also where no blank line is before it.
fn blocks<'a, 'b>(lines: &'b [Line<'a>]) -> Vec<&'b [Line<'a>]> {
    let begins = |at: usize| {
        let is_after_blank = at == 0 || lines[at - 1].is_blank();
        let is_number = |line: &Line| line.text.trim().bytes().all(|byte| byte.is_ascii_digit());
        let next_is_time = lines.get(at + 1).is_some_and(|next| is_time(next.text));
        let has_identifier = |at: usize| is_number(&lines[at]) || at == 0 || lines[at - 1].is_blank();
        is_after_blank
            || next_is_time && is_number(&lines[at])
            || is_time(lines[at].text) && !has_identifier(at - 1)
    };
    let starts: Vec<usize> = (0..lines.len()).filter(|&at| !lines[at].is_blank() && begins(at)).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let mut blocks: Vec<&[Line]> = Vec::with_capacity(starts.len());
    for (&start, end) in starts.iter().zip(ends) {
        let visible = (start..end).rev().find(|&at| !lines[at].is_blank()).unwrap_or(start);
        blocks.push(&lines[start..=visible]);
    }
    blocks
}

fn has_time(block: &[Line]) -> bool {
    block.iter().take(2).any(|line| is_time(line.text))
}

/// Returns whether the text of a cue ends a sentence, or is a sound in brackets.
fn ends_sentence(block: &[Line]) -> bool {
    let last = block.last().map_or("", |line| line.text.trim_end());
    let last = last.strip_suffix('>').and_then(|last| last.rfind('<').map(|at| &last[..at])).unwrap_or(last);
    last.trim_end_matches(|c: char| "\"'”’»*".contains(c)).ends_with(|c: char| ".!?…。！？)]♪".contains(c))
}
