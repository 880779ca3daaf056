//! Which turn of a chat answers which question. Knows question marks and names at the beginning of a turn.

use super::super::Pieces;
use super::Turn;
use crate::lexicon::{Class, has};

/// How many turns after a question can answer it.
const ANSWER_TURNS: usize = 3;
/// How many turns after a question can answer it if it names whom it asks.
const NAMED_ANSWER_TURNS: usize = 6;
/// The longest answer that says little without its question, in bytes.
const ANSWER_BYTES_SHORT: usize = 200;
/// How many earlier turns of a speaker a turn takes back.
const TAKEN_BACK_TURNS: usize = 3;

/// How many turns before are looked at.
const TURNS_BACK_MAX: usize = 64;
/// The longest turn that says little without the one before it, in bytes: "Agreed.", "Then I'll do it."
const REPLY_BYTES_SHORT: usize = 40;
/// The longest turn that says nothing of its own, in bytes: "one moment", "ok".
const FILLER_BYTES: usize = 24;

/// Lets questions require their answers, short answers their questions, short turns the longer ones before them, and turns those that take them back.
pub(super) fn link(pieces: &mut Pieces, turns: &[Turn]) {
    corrections(pieces, turns);
    replies(pieces, turns);
    for (index, turn) in turns.iter().enumerate() {
        let Some(asks) = question_piece(pieces, turn) else { continue };
        let Some(answer) = answer(turns, index) else { continue };
        let turn = &turns[answer];
        let Some(piece) = turn.pieces.clone().next() else { continue };
        pieces.require(asks, piece);
        if turn.said.len() <= ANSWER_BYTES_SHORT {
            pieces.require(piece, asks);
        }
    }
}

/// Lets short turns of one speaker require what another one has said right before.
fn replies(pieces: &mut Pieces, turns: &[Turn]) {
    for pair in turns.windows(2) {
        let [said, reply] = pair else { continue };
        // In a chat of short turns, replies to replies soon end.
        let is_short = reply.said.len() <= REPLY_BYTES_SHORT
            && said.said.len() >= 2 * reply.said.len()
            && !is_same(said.speaker, reply.speaker);
        if let (Some(last), Some(first)) = (said.pieces.clone().next_back(), reply.pieces.clone().next())
            && is_short
        {
            pieces.need(first, last);
        }
    }
}

/// Lets what a speaker said require the turn in which the same speaker takes it back: "Then scratch that, we take the other one."
fn corrections(pieces: &mut Pieces, turns: &[Turn]) {
    for (at, turn) in turns.iter().enumerate().filter(|(_, turn)| takes_back(turn.said)) {
        let Some(correction) = turn.pieces.clone().next() else { continue };
        let before = turns[..at]
            .iter()
            .rev()
            .take(TURNS_BACK_MAX)
            .filter(|other| is_same(other.speaker, turn.speaker));
        for piece in before.take(TAKEN_BACK_TURNS).filter_map(|other| other.pieces.clone().next()) {
            pieces.require(piece, correction);
        }
    }
}

fn takes_back(said: &str) -> bool {
    let words: Vec<String> = said
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    words.windows(2).any(|pair| has(Class::TakesBack, &pair.join("_")))
}

/// Returns the piece of a turn that asks something: its last one with a question mark.
fn question_piece(pieces: &Pieces, turn: &Turn) -> Option<usize> {
    if !is_question(turn.said) {
        return None;
    }
    let offset = turn.bytes.end - turn.said.len();
    let asks = |index: &usize| {
        let bytes = pieces.list[*index].bytes;
        is_question(&turn.said[bytes.start.saturating_sub(offset)..bytes.end - offset])
    };
    turn.pieces.clone().rev().find(asks)
}

/// Returns whether a text has a sentence that ends with a question mark. One inside a word, as in an address
/// of a page, ends nothing.
fn is_question(text: &str) -> bool {
    let ends = |at: usize| text[at..].chars().nth(1).is_none_or(|c| !c.is_alphanumeric() && c != '=');
    text.match_indices(['?', '？', '؟']).any(|(at, _)| ends(at))
}

/// Returns the turn that answers the question in the turn `index`.
fn answer(turns: &[Turn], index: usize) -> Option<usize> {
    let question = &turns[index];
    let end = (index + 1 + NAMED_ANSWER_TURNS).min(turns.len());
    let others = || (index + 1..end).filter(|&at| !is_same(turns[at].speaker, question.speaker));
    let asked = |at: &usize| names(question.said, turns[*at].speaker);
    if let Some(at) = others().find(asked) {
        return Some(at);
    }
    let near: Vec<usize> = others().take_while(|&at| at <= index + ANSWER_TURNS).collect();
    // A question that is asked back is no answer, and neither is a turn that only fills the time.
    let answers = |at: &&usize| !turns[**at].said.trim_end().ends_with('?');
    let says_something = |at: &&usize| answers(at) && turns[**at].said.len() > FILLER_BYTES;
    let first = near.first()?;
    if answers(&first) { Some(*first) } else { near.iter().find(says_something).or(Some(first)).copied() }
}

fn is_same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// Returns whether a turn calls the speaker by the first name: "Tomasz, when", "and you, Tom?".
/// A name inside a sentence is only spoken of.
fn names(said: &str, speaker: &str) -> bool {
    let Some(name) = speaker.split_whitespace().next().filter(|name| name.len() >= 2) else { return false };
    let mut at = 0;
    for word in said.split_inclusive(|c: char| !c.is_alphanumeric() && c != '.' && c != '_') {
        let bare = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        let is_called = word.ends_with([',', '?', ':', '!', '？', '，']) || said[..at].ends_with('@');
        if is_called && bare.to_lowercase() == name.to_lowercase() {
            return true;
        }
        at += word.len();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::super::{Kind, tests};

    #[test]
    fn a_question_finds_its_answer() {
        // The turns are counted from 0; the last two fields are the question and its answer.
        let check = |name: &str, text: &str, asks: usize, answers: Option<usize>| {
            let pieces = tests::pieces(text, Kind::Chat);
            assert_eq!(Vec::from_iter(pieces[asks].required()), Vec::from_iter(answers), "{name}");
        };
        check(
            "next speaker",
            "[1:00] A: why?\n[1:01] B: because it broke\n[1:02] A: ok\n[1:03] B: yes",
            0,
            Some(1),
        );
        check("own turns", "[1:00] A: why?\n[1:01] A: hello\n[1:02] B: because\n[1:03] B: yes", 0, Some(2));
        check(
            "asked by name",
            "[1:00] A: Tom, when?\n[1:01] B: hi all\n[1:02] Tom: at noon\n[1:03] B: ok\n[1:04] A: ok",
            0,
            Some(2),
        );
        check(
            "spoken of",
            "[1:00] A: Tom left. when?\n[1:01] B: at noon\n[1:02] Tom: hi\n[1:03] B: ok\n[1:04] A: ok",
            0,
            Some(1),
        );
        check(
            "asked back",
            "[1:00] A: when?\n[1:01] B: when what?\n[1:02] B: at noon, as we said yesterday\n[1:03] A: ok",
            0,
            Some(2),
        );
        check(
            "an address",
            "[1:00] A: see http://x/?a=1\n[1:01] B: ok\n[1:02] A: hm\n[1:03] B: yes",
            0,
            None,
        );
        check("no answer", "[1:00] A: hi\n[1:01] B: hi\n[1:02] B: so\n[1:03] A: when?", 3, None);
        check(
            "other scripts",
            "[1:00] A: 什么时候？\n[1:01] B: 星期五\n[1:02] A: 好\n[1:03] B: 好",
            0,
            Some(1),
        );
    }
}
