//! What the model copies from results of tools: evidence of what it needed.
//!
//! What the model writes after it has read results, in its text and in its calls, and what stands in none of its instructions, questions and
//! earlier texts, comes from the results. If compression leaves out what is copied later, it lost what was needed. Whatever the model uses
//! without copying it leaves no trace.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use thresher_core::domain::Kind;
use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::text;
use thresher_core::text::outline::Layout;

use super::dialect::{Conversation, PartKind, Role};
use super::find::Turn;
use super::rewrite::{TurnPlan, gaps};
use super::untouched;

/// The most bytes of what the model wrote that are read. They are taken from the end.
const WRITTEN_BYTES_MAX: usize = 64 * 1024;

/// The most pieces that are looked for, and the most bytes of one: they bound the automaton that finds them.
const PIECE_COUNT_MAX: usize = 256;
const PIECE_BYTES_MAX: usize = 200;

/// The most places of pieces that are looked at in one text. Pieces inside of each other may have many times as many as the text has bytes.
const PLACE_COUNT_MAX: usize = 100_000;

/// The least words and bytes of a sentence that is not written twice by chance.
const SENTENCE_WORDS_MIN: usize = 4;
const SENTENCE_BYTES_MIN: usize = 24;

/// The pieces of what the model wrote last that only a result can have given it.
#[derive(Debug, Default)]
pub struct Copied {
    /// `[piece]`: whether it counts, and whether a text that is always sent has it.
    pieces: Vec<Piece>,
    /// `None`: there are no pieces.
    finder: Option<AhoCorasick>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    /// Whether somebody had written it before without having it from a result.
    is_known: bool,
    /// Whether it stands in text of results that is always sent.
    is_elsewhere: bool,
}

/// A result of a tool from which the model has copied in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// A hash of the conversation up to the end of the result's turn, with the result's place in it.
    pub result: [u8; 32],
    pub tool: Arc<str>,
    pub kind: Kind,
    /// How many pieces of it the model wrote.
    pub pieces: u64,
    /// Of these, those that were left out of the result, or in shadow mode would have been.
    pub lost: u64,
}

/// Returns whether a turn before the newest one has results of tools, from which the model may have copied.
pub fn has_results(turns: &[Turn]) -> bool {
    let earlier = turns.iter().rev().skip(1).flat_map(|turn| &turn.passages);
    earlier.into_iter().any(|passage| matches!(passage.kind, PartKind::ToolResult { .. }))
}

impl Copied {
    /// Finds what the model wrote between the newest turn and the one before it, and has from results of tools.
    ///
    /// # Errors
    /// Fails if `cancel` is cancelled, which is checked before every text.
    pub fn find(conversation: &Conversation, turns: &[Turn], cancel: &Cancel) -> Result<Self, PipelineError> {
        let messages = &conversation.messages;
        let is_model = |at: usize| messages[at].role == Role::Assistant;
        let Some(end) = (0..messages.len()).rev().find(|&at| is_model(at)).map(|at| at + 1) else {
            return Ok(Self::default());
        };
        let begin = (0..end).rev().take_while(|&at| is_model(at)).last().unwrap_or(end);
        let texts = messages[begin..end].iter().flat_map(|message| &message.parts).map(|part| &*part.text);
        let calls = messages[end..].iter().flat_map(|message| &message.parts);
        let written: Vec<&str> = texts.chain(calls.filter_map(|part| part.arguments.as_deref())).collect();
        let mut copied = Self::of(&pieces(&written.join("\n")));
        if copied.finder.is_none() {
            return Ok(copied);
        }
        // The passages of each string, which are not always sent.
        let mut passages: HashMap<usize, Vec<Range<usize>>> = HashMap::new();
        for passage in turns.iter().flat_map(|turn| &turn.passages) {
            passages.entry(passage.string.start).or_default().push(passage.range.clone());
        }
        for message in &messages[..begin] {
            if message.role == Role::Assistant {
                // As JSON, because the arguments of calls are no texts.
                copied.mark(message.at.json(), cancel, |piece| piece.is_known = true)?;
                continue;
            }
            for part in &message.parts {
                match &part.kind {
                    // What was left out and is fetched again is lost all the same.
                    PartKind::ToolResult { name, .. } if untouched::retrieves(name) => {}
                    PartKind::ToolResult { .. } => {
                        let inside = passages.get(&part.at.range().start).map_or(&[][..], Vec::as_slice);
                        for text in outside(&part.text, inside) {
                            copied.mark(text, cancel, |piece| piece.is_elsewhere = true)?;
                        }
                    }
                    _ => copied.mark(&part.text, cancel, |piece| piece.is_known = true)?,
                }
            }
        }
        Ok(copied)
    }

    fn of(pieces: &[String]) -> Self {
        // A deterministic automaton of that many pieces would take many megabytes. Without any automaton, nothing is counted.
        let build = || AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(pieces).ok();
        let finder = (!pieces.is_empty()).then(build).flatten();
        Self { pieces: vec![Piece::default(); pieces.len()], finder }
    }

    fn mark(&mut self, text: &str, cancel: &Cancel, mark: impl Fn(&mut Piece)) -> Result<(), PipelineError> {
        cancel.check()?;
        let found: Vec<usize> = self.places(text).map(|(piece, _)| piece).collect();
        found.into_iter().for_each(|piece| mark(&mut self.pieces[piece]));
        Ok(())
    }

    /// Returns the pieces in a text, as whole words, with their places.
    fn places<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        let is_whole = move |place: &Range<usize>| {
            let goes_on = |a: Option<char>, b: Option<char>| {
                a.is_some_and(char::is_alphanumeric) && b.is_some_and(char::is_alphanumeric)
            };
            let (before, piece, after) = (&text[..place.start], &text[place.clone()], &text[place.end..]);
            !goes_on(before.chars().next_back(), piece.chars().next())
                && !goes_on(piece.chars().next_back(), after.chars().next())
        };
        let found = self.finder.iter().flat_map(move |finder| finder.find_overlapping_iter(text));
        found
            .take(PLACE_COUNT_MAX)
            .map(|found| (found.pattern().as_usize(), found.range()))
            .filter(move |(_, place)| is_whole(place))
    }

    /// Returns the results of earlier turns from which the model has copied. A piece counts for the newest of the results that have it, and is
    /// lost if it was sent of none of them.
    ///
    /// # Errors
    /// Fails if `cancel` is cancelled, which is checked before every text.
    pub fn uses(
        &self,
        turns: &[Turn],
        plans: &[TurnPlan],
        cancel: &Cancel,
    ) -> Result<Vec<Use>, PipelineError> {
        // `[piece]`: the newest result that has it, as the indexes of its turn and of its first passage, and whether it was sent.
        let mut found: BTreeMap<usize, ((usize, usize), bool)> = BTreeMap::new();
        let earlier = turns.iter().zip(plans).take(turns.len().saturating_sub(1)).enumerate();
        for (at, (turn, plan)) in earlier.filter(|_| self.finder.is_some()) {
            let sent = match plan {
                TurnPlan::AsBefore(sent) => Some(sent),
                _ => None,
            };
            for string in turn.strings() {
                if !matches!(turn.passages[string.start].kind, PartKind::ToolResult { .. }) {
                    continue;
                }
                for index in string.clone() {
                    cancel.check()?;
                    let kept = sent.and_then(|sent| sent.kept_of(index));
                    for (piece, place) in self.places(&turn.passages[index].text) {
                        let is_sent = kept.is_none_or(|kept| {
                            kept.iter().any(|&(start, end)| start <= place.start && place.end <= end)
                        });
                        let (newest, is_held) = found
                            .entry(piece)
                            .or_insert(((at, string.start), self.pieces[piece].is_elsewhere));
                        *newest = (at, string.start);
                        *is_held |= is_sent;
                    }
                }
            }
        }
        let mut uses: BTreeMap<(usize, usize), Use> = BTreeMap::new();
        for (_, ((turn, passage), is_held)) in
            found.into_iter().filter(|(piece, _)| !self.pieces[*piece].is_known)
        {
            let result = &turns[turn].passages[passage];
            let PartKind::ToolResult { name, .. } = &result.kind else { continue };
            let of_result = uses.entry((turn, passage)).or_insert_with(|| Use {
                result: blake3::derive_key("thresher 2026 used result 1", &key_of(&turns[turn], passage)),
                tool: Arc::clone(name),
                kind: Layout::detect(&result.text, Kind::Auto).kind,
                pieces: 0,
                lost: 0,
            });
            of_result.pieces += 1;
            of_result.lost += u64::from(!is_held);
        }
        Ok(uses.into_values().collect())
    }
}

fn key_of(turn: &Turn, passage: usize) -> Vec<u8> {
    [&turn.key[..], &(passage as u64).to_le_bytes()].concat()
}

/// Returns the parts of a text outside of ranges, which ascend.
fn outside<'a>(text: &'a str, ranges: &[Range<usize>]) -> Vec<&'a str> {
    gaps(ranges.iter().cloned(), text.len()).filter_map(|gap| text.get(gap)).collect()
}

/// Returns the parts of a text that hardly anybody writes twice by chance: paths, ids, numbers of three digits or more, names of two words,
/// and sentences.
fn pieces(written: &str) -> Vec<String> {
    let written = &written[written.ceil_char_boundary(written.len().saturating_sub(WRITTEN_BYTES_MAX))..];
    let ends_word = |letter: char| letter.is_whitespace() || "\"'`()[]{}<>,;|=*".contains(letter);
    let words = written.split(ends_word).map(|word| word.trim_matches(['.', ':', '!', '?', '#']));
    let sentences = text::sentences(written).into_iter().map(|sentence| sentence.slice(written).trim());
    let is_sentence = |sentence: &&str| {
        sentence.len() >= SENTENCE_BYTES_MIN && sentence.split_whitespace().count() >= SENTENCE_WORDS_MIN
    };
    let mut found: Vec<String> = Vec::new();
    for piece in
        words.filter(|word| is_distinctive(word)).chain(names(written)).chain(sentences.filter(is_sentence))
    {
        if found.len() < PIECE_COUNT_MAX
            && piece.len() <= PIECE_BYTES_MAX
            && !found.iter().any(|known| known == piece)
        {
            found.push(piece.to_owned());
        }
    }
    found
}

/// Returns two or more words with a capital each, one after another within a sentence, such as the name of a person.
fn names(written: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in written.lines() {
        let (mut first, mut last, mut begins) = (None, 0, true);
        for word in line.split(' ') {
            let at = word.as_ptr() as usize - line.as_ptr() as usize;
            let is_capital =
                word.starts_with(char::is_uppercase) && word.chars().skip(1).any(char::is_lowercase);
            if is_capital && !begins {
                first.get_or_insert(at);
                last = at + word.len();
            }
            let ends = word.ends_with(['.', '!', '?', ':', ',', ';']);
            found.extend(first.take_if(|_| ends || !is_capital).map(|start| &line[start..last]));
            begins = word.ends_with(['.', '!', '?', ':']);
        }
        found.extend(first.map(|start| &line[start..last]));
    }
    found
        .into_iter()
        .map(|name| name.trim_end_matches(|letter: char| !letter.is_alphanumeric()))
        .filter(|name| name.contains(' '))
        .collect()
}

/// Returns whether a word is a path, an id, a version or a number of at least three digits.
fn is_distinctive(word: &str) -> bool {
    let letters: Vec<char> = word.chars().collect();
    let digits = letters.iter().filter(|letter| letter.is_numeric()).count();
    let has_inner = |marks: &[char]| {
        letters
            .windows(3)
            .any(|near| marks.contains(&near[1]) && near[0].is_alphanumeric() && near[2].is_alphanumeric())
    };
    let changes_case = letters.windows(2).any(|near| near[0].is_lowercase() && near[1].is_uppercase());
    let is_path =
        word.contains(['/', '\\', '_', '@']) && letters.iter().any(|letter| letter.is_alphanumeric());
    let is_number = digits >= 3 || digits >= 1 && has_inner(&['.', '-', ':']);
    letters.len() >= 3
        && (is_path || is_number || changes_case || letters.len() >= 5 && has_inner(&['.', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::dialect::Dialect;
    use crate::middleware::find::{self, Policy};
    use crate::middleware::json::Located;
    use crate::middleware::rewrite::SentTurn;
    use crate::middleware::untouched::TextKinds;

    #[test]
    fn pieces_are_what_is_not_written_by_chance() {
        let check = |written: &str, expect: &[&str]| assert_eq!(pieces(written), expect, "{written}");
        check("Then open src/main.rs.", &["src/main.rs"]);
        check(
            "It fails with E0599: see \"max_tokens\".",
            &["E0599", "max_tokens", "It fails with E0599: see \"max_tokens\"."],
        );
        check("Restart it, e.g. twice", &[]);
        check("pod web-7f9c4 uses 1.25.3", &["web-7f9c4", "1.25.3", "pod web-7f9c4 uses 1.25.3"]);
        check("Ask Ada. I met Grace Hopper", &["Grace Hopper"]);
        check("12 of 20", &[]);
    }

    /// A conversation in which the model reads two results, the first of which was sent without its second line, and then writes `said`.
    /// Returns the uses as the name of the tool, the pieces and the lost ones.
    #[track_caller]
    fn check(name: &str, said: &str, expect: &[(&str, u64, u64)]) {
        let result =
            "The job build-41 failed on host-3.\nThe log is in /var/log/build-41.log and has 18233 lines.";
        let call = |id: &str, name: &str, arguments: &str| {
            serde_json::json!({"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function",
                "function": {"name": name, "arguments": arguments}}]})
        };
        let body = serde_json::json!({"messages": [
            {"role": "user", "content": "Why did build-41 fail?"},
            call("1", "jobs", "{}"),
            {"role": "tool", "tool_call_id": "1", "content": result},
            call("2", "read_file", r#"{"path": "a"}"#),
            {"role": "tool", "tool_call_id": "2", "content": "host-3 is owned by team_red, not 18233"},
            call("3", "shell", &serde_json::json!({"command": said}).to_string()),
            {"role": "tool", "tool_call_id": "3", "content": "ok"},
        ]})
        .to_string();
        let conversation = Dialect::Chat.conversation(Located::parse(&body).expect("JSON"));
        let policy = Policy { tools: vec!["*".to_owned()], ..Policy::default() };
        let turns = find::turns(&conversation, &policy, &TextKinds::default()).turns;
        let end = result.find('\n').expect("two lines");
        let at = turns.iter().position(|turn| !turn.passages.is_empty()).expect("a turn with the result");
        let mut plans = vec![TurnPlan::Whole { is_recorded: false, is_late: false }; turns.len()];
        plans[at] = TurnPlan::AsBefore(SentTurn::keeping(vec![Some(vec![(0, end)])]));
        let cancel = Cancel::default();
        let copied = Copied::find(&conversation, &turns, &cancel).expect("nobody cancels");
        let uses = copied.uses(&turns, &plans, &cancel).expect("nobody cancels");
        let found: Vec<(&str, u64, u64)> =
            uses.iter().map(|one| (&*one.tool, one.pieces, one.lost)).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn what_is_copied_was_needed() {
        check("nothing is copied", "ls", &[]);
        check("what the user said is no evidence", "restart build-41", &[]);
        check("a copied name that was sent", "ssh host-3", &[("jobs", 1, 0)]);
        check("a copied path that was left out", "tail /var/log/build-41.log", &[("jobs", 1, 1)]);
        check("both", "ssh host-3 tail /var/log/build-41.log", &[("jobs", 2, 1)]);
        check("a number that a whole result has, too", "head -n 18233", &[("jobs", 1, 0)]);
        check("a result that is never compressed", "grep team_red", &[]);
        check("a part of a word", "ssh host-33", &[]);
    }

    #[test]
    fn what_a_result_has_outside_its_passages_is_always_sent() {
        assert_eq!(outside("one two three", &[4..7, 8..9]), ["one ", " ", "hree"]);
        assert_eq!(outside("one", &[]), ["one"]);
    }
}
