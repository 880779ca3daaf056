//! The pieces of a chat or of a transcript: its turns. Knows how a turn begins, and which turn answers which
//! question. Must not know what is asked.
//!
//! - A turn is a piece, with the lines that follow it. A long turn is divided into sentences, which require
//!   the name of the speaker.
//! - A question requires its answer: the next turn of whoever is asked, or of another speaker. An answer that
//!   is short requires its question, because "the second one" says nothing without it.

mod answers;
mod turn;

pub(super) use turn::format;
use turn::{Format, format_of_chat};

use super::{Pieces, Sentences};
use crate::line::{Line, lines, span};
use crate::range::ByteRange;

/// The longest turn that is one piece, in bytes.
const TURN_BYTES_WHOLE: usize = 350;

/// What one speaker says at a time.
struct Turn<'a> {
    /// Who speaks; empty if nobody is named, as in a message of the program.
    speaker: &'a str,
    said: &'a str,
    bytes: ByteRange,
    /// The pieces of the turn that may be chosen, as their indices.
    pieces: std::ops::Range<usize>,
}

/// Returns the pieces of a chat; none if fewer than two turns are found.
pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let lines = lines(text);
    let Some(format) = format_of_chat(&lines) else { return Pieces::default() };
    let mut pieces = Pieces::default();
    let mut turns = turns(text, &lines, format);
    if turns.len() < 2 {
        return Pieces::default();
    }
    let first = &turns[0].bytes;
    let above = crate::line::trimmed(text, 0, first.start);
    if !above.is_empty() {
        pieces.prose(text, above, &[], sentences);
    }
    for turn in &mut turns {
        turn.pieces = write(&mut pieces, text, turn, sentences);
    }
    answers::link(&mut pieces, &turns);
    pieces
}

/// Returns the turns, each with the lines up to the next one.
fn turns<'a>(text: &'a str, lines: &[Line<'a>], format: Format) -> Vec<Turn<'a>> {
    let heads: Vec<_> = (0..lines.len()).filter_map(|at| Some((at, format.head(lines[at].text)?))).collect();
    let ends = heads.iter().skip(1).map(|&(at, _)| at).chain([lines.len()]);
    let turns = heads.iter().zip(ends).map(|(&(at, head), end)| {
        let bytes = span(&lines[at..end]);
        let said = (bytes.start + head.said_at).min(bytes.end);
        Turn { speaker: head.speaker, said: &text[said..bytes.end], bytes, pieces: 0..0 }
    });
    turns.filter(|turn| !turn.bytes.is_empty()).collect()
}

/// Writes a turn, and returns its pieces that may be chosen.
fn write(pieces: &mut Pieces, text: &str, turn: &Turn, sentences: &Sentences) -> std::ops::Range<usize> {
    if turn.bytes.len() > TURN_BYTES_WHOLE {
        let said_at = turn.bytes.end - turn.said.len();
        let said = crate::line::trimmed(text, said_at, turn.bytes.end);
        if sentences(said.slice(text)).len() > 1 {
            let name = crate::line::trimmed(text, turn.bytes.start, said.start);
            let requires = Vec::from_iter((!name.is_empty()).then(|| pieces.frame(name, &[])));
            return pieces.prose(text, said, &requires, sentences);
        }
    }
    let piece = pieces.push(turn.bytes, &[]);
    piece..piece + 1
}

#[cfg(test)]
mod tests {
    use super::super::Kind;

    #[test]
    fn a_long_turn_is_divided() {
        let said = "This is said at some length. ".repeat(20);
        let text = format!("Ann: {said}\nBob: b\nAnn: c\nBob: d");
        let pieces = super::super::tests::pieces(&text, Kind::Chat);
        assert!(pieces[0].is_frame() && pieces[0].bytes.slice(&text) == "Ann:");
        assert!(pieces[1..21].iter().all(|piece| piece.required().eq([0])));
    }
}
