//! Questions: answers and the questions that they answer.

use super::{ANSWER_BYTES_WHOLE, CHAIN_MAX, Part, Pieces, together};
use crate::lexicon::Class;

/// The longest answer that says nothing without its question, in words.
const SHORT_ANSWER_WORDS_MAX: usize = 3;

/// How many pieces below a question still answer it.
const ANSWER_PIECES_MAX: usize = 8;

/// One question in so many pieces makes a text a list of questions.
const PIECES_PER_QUESTION_MAX: usize = 6;

/// Lets answers require their questions, and questions their answers.
pub(super) fn questions(pieces: &mut Pieces, parts: &[Part]) {
    let questions: Vec<usize> =
        (0..parts.len()).filter(|&at| parts[at].is_question() && !parts[at].is_row).collect();
    let has_labels = questions.iter().any(|&at| parts[at].has_label(Class::QuestionLabel))
        && parts.iter().any(|part| part.has_label(Class::AnswerLabel));
    let lines = questions.iter().filter(|&&at| parts[at].begins_line).count();
    let is_dense = questions.len() * PIECES_PER_QUESTION_MAX >= parts.len();
    let is_list = has_labels || is_dense && (lines >= 2 || questions.len() >= 3);
    for (index, &question) in questions.iter().enumerate() {
        let next = questions.get(index + 1).copied().unwrap_or(parts.len());
        // "Frage:" on a line of its own.
        if parts[question].introduces() && next == question + 1 {
            pieces.need(next.min(parts.len() - 1), question);
            pieces.need(question, next.min(parts.len() - 1));
            continue;
        }
        let end = answer_end(parts, question, next);
        let answer = question + 1..end;
        if answer.is_empty() {
            continue;
        }
        if !is_list {
            // What a question among other sentences asks is mostly said next, and "No." needs its question.
            pieces.need(question, question + 1);
            if parts[question + 1].is_within(SHORT_ANSWER_WORDS_MAX) {
                pieces.need(question + 1, question);
            }
            continue;
        }
        answer.clone().for_each(|part| pieces.need(part, question));
        pieces.need(question, question + 1);
        together(pieces, parts, question, answer, ANSWER_BYTES_WHOLE);
        // "I moved. What then?" needs what is said before it in its line.
        let mut before = question;
        while before > 0
            && question - before < CHAIN_MAX
            && !parts[before].begins_line
            && !parts[before - 1].is_question()
        {
            before -= 1;
            pieces.need(question, before);
        }
    }
}

/// Returns where the answer of a question ends: before the next question, a heading, or a paragraph that is far below.
fn answer_end(parts: &[Part], question: usize, next: usize) -> usize {
    let in_line = !parts[question].ends_line;
    let end = (question + 1..next.min(question + 1 + ANSWER_PIECES_MAX)).find(|&at| {
        let part = &parts[at];
        let is_apart = part.begins_paragraph && at > question + 1 && (in_line || !parts[at - 1].introduces());
        part.is_frame || part.is_row || is_apart || part.is_title()
    });
    end.unwrap_or(next.min(question + 1 + ANSWER_PIECES_MAX))
}
