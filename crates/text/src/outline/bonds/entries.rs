//! Entries of definition lists, as help texts and manuals have them: a term, and deeper in the page all that explains it, whatever the
//! blank lines in between.

use super::{Part, Pieces, TITLE_BYTES_MAX};
use crate::line::is_option;

/// The fewest terms of a text that is divided into entries, unless one of them is an option of a command.
const TERMS_MIN: usize = 2;

/// A line, below which there may be deeper ones.
struct Open {
    piece: usize,
    indent: usize,
    /// Whether it is a term, and the piece has what explains it, too.
    is_term: bool,
    is_explained: bool,
}

/// Lets all that stands deeper than a term require it, and be scored with it.
pub(super) fn entries(pieces: &mut Pieces, parts: &[Part]) {
    let terms: Vec<bool> = (0..parts.len()).map(|at| is_term(parts, at)).collect();
    let has_option = || (0..parts.len()).any(|at| terms[at] && is_option(parts[at].text));
    if terms.iter().filter(|is| **is).count() < TERMS_MIN && !has_option() {
        return;
    }
    let mut open: Vec<Open> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        while part.begins_line && open.last().is_some_and(|above| above.indent >= part.indent) {
            open.pop();
        }
        // What goes on in the line of a term explains it.
        let is_above = |above: &&Open| above.indent < part.indent || above.is_explained && !part.begins_line;
        if let Some(term) = open.iter().rev().find(is_above).filter(|above| above.is_term) {
            pieces.require_first(at, term.piece);
            let term_piece = &pieces.list[term.piece];
            let is_complete = term_piece.required().any(|other| other > term.piece);
            if !term.is_explained && !is_complete && term_piece.introduces().is_none() {
                pieces.introduce(term.piece, at);
            }
        }
        if part.begins_line {
            let is_explained = terms[at] && part.text.contains('\n');
            open.push(Open { piece: at, indent: part.indent, is_term: terms[at], is_explained });
        }
    }
}

/// Returns whether a piece begins with a short line that is no sentence, above a deeper line.
fn is_term(parts: &[Part], at: usize) -> bool {
    let part = &parts[at];
    let mut lines = part.text.lines();
    let first = lines.next().unwrap_or_default().trim_end();
    let indent_below = match lines.next() {
        Some(below) => Some(below.len() - below.trim_start().len()),
        None => parts.get(at + 1).filter(|next| next.begins_line).map(|next| next.indent),
    };
    part.begins_line
        && !(part.is_frame || part.is_row || part.is_item())
        && first.len() <= TITLE_BYTES_MAX
        && !first.ends_with(['.', '!', '?', ';', ','])
        && indent_below.is_some_and(|below| below > part.indent)
}
