//! The pieces of a mail: fields of its head, sentences, and lines that it quotes. Knows how mails quote each other; must not know what they
//! are about.
//!
//! - A sentence requires who wrote it: the sender in the head above it, or the line "On … wrote:" above a quotation. If it names
//!   a day such as "tomorrow", it requires the date of the mail, too.
//! - Quoted text is divided between lines only, so that every kept line has its `>`.
//! - What stands below a quotation answers its last sentence, and requires it.
//! - Quoted text requires the reply that may correct it: what stands below it, or what the newest mail, above it, begins with.
//! - A subject introduces what its mail begins with.

use std::ops::Range;

use super::{Pieces, Sentences};
use crate::lexicon::{Class, has, is, is_phrase};
use crate::line::{Line, lines, span, trimmed};
use crate::range::ByteRange;

const HEAD_LINES_MAX: usize = 30;

/// The most lines of a line such as "On Tuesday, Ann wrote:".
const ATTRIBUTION_LINES_MAX: usize = 3;

/// Returns which lines are fields of a head, and which ones quote a mail: several below a line that says who wrote it, or one in four.
pub(super) fn signs(lines: &[Line]) -> (Vec<bool>, Vec<bool>) {
    let contents: Vec<(usize, &str)> = lines.iter().map(|line| content(line.text)).collect();
    let mut heads = vec![false; lines.len()];
    for at in 0..lines.len() {
        let end = head_end(&contents, at);
        heads[at.min(end)..end].fill(true);
    }
    // `>>> ` is the prompt of Python.
    let is_quoted = |line: &Line| line.text.trim_start().starts_with('>') && !line.text.starts_with(">>> ");
    let quotes: Vec<bool> = lines.iter().map(is_quoted).collect();
    let quoted = quotes.iter().filter(|is| **is).count();
    let is_attributed = contents.windows(2).any(|pair| {
        pair[0].0 < pair[1].0 && pair[0].1.ends_with(':') && pair[0].1.contains(char::is_whitespace)
    });
    let is_mail = quoted >= 2 && is_attributed || quoted >= 3 && quoted * 4 >= lines.len();
    (heads, if is_mail { quotes } else { vec![false; lines.len()] })
}

/// Returns how deep a line is quoted, and what it says.
fn content(line: &str) -> (usize, &str) {
    let (mut depth, mut rest) = (0, line.trim_start());
    while let Some(inner) = rest.strip_prefix('>') {
        (depth, rest) = (depth + 1, inner.trim_start());
    }
    (depth, rest.trim_end())
}

/// Returns the name of the field that a line of a head gives, in small letters without marks around it.
fn field(content: &str) -> Option<String> {
    let (name, _) = content.split_once(':')?;
    let name = name.trim_matches(['*', ' ']).to_lowercase();
    const FIELDS: [Class; 4] = [Class::MailSender, Class::MailDate, Class::MailSubject, Class::MailOther];
    let is_known = FIELDS.iter().any(|class| has(*class, &name));
    is_known.then_some(name)
}

/// Returns the end of the head that begins at a line; the line itself if none begins there.
fn head_end(contents: &[(usize, &str)], start: usize) -> usize {
    let depth = contents[start].0;
    let mut names = Vec::new();
    let mut end = start;
    let last = contents.len().min(start + HEAD_LINES_MAX);
    while let Some((_, content)) = contents[..last].get(end).filter(|line| line.0 == depth) {
        match field(content) {
            Some(name) => names.push(name),
            // A field can go on in the next line.
            None if end > start
                && end + 1 < contents.len()
                && field(contents[end + 1].1).is_some()
                && !content.is_empty() => {}
            None => break,
        }
        end += 1;
    }
    let has_one = |class: Class| names.iter().any(|name| has(class, name));
    let is_head = names.len() >= 2
        && has_one(Class::MailSender)
        && (has_one(Class::MailDate) || has_one(Class::MailSubject));
    if is_head { end } else { start }
}

/// Who wrote the text at one depth, and when.
#[derive(Clone, Default)]
struct Origin {
    sender: Option<usize>,
    date: Option<usize>,
}

struct Writer<'a, 'b> {
    text: &'a str,
    sentences: &'a Sentences<'b>,
    pieces: Pieces,
    /// `[depth]`: who wrote the mail that is quoted so deep, and when.
    origins: Vec<Origin>,
    /// The depth and the last piece of the paragraph above.
    above: Option<(usize, usize)>,
    /// `[depth]`: the first sentences of the mail at this depth that is longer than a greeting.
    says: Vec<Range<usize>>,
    /// The quoted pieces to which nothing below them replies, with their depths.
    quoted: Vec<(usize, usize)>,
    /// What the newest mail begins with, if the text at depth 0 is quoted below it.
    reply: Range<usize>,
    /// The depth and the subject of the last head, until the text below it begins.
    subject: Option<(usize, usize)>,
    /// Whether the last line was one between two mails.
    is_separated: bool,
}

/// How many sentences of a reply a quoted text requires.
const REPLY_PIECES_MAX: usize = 3;

/// The most words of greetings and thanks.
const GREETING_WORDS_MAX: usize = 5;

pub(super) fn outline(text: &str, sentences: &Sentences) -> Pieces {
    let lines = lines(text);
    let contents: Vec<(usize, &str)> = lines.iter().map(|line| content(line.text)).collect();
    let mut writer = Writer {
        text,
        sentences,
        pieces: Pieces::default(),
        origins: Vec::new(),
        above: None,
        says: Vec::new(),
        quoted: Vec::new(),
        reply: 0..0,
        subject: None,
        is_separated: false,
    };
    let mut at = 0;
    while at < lines.len() {
        let (depth, first) = contents[at];
        if first.is_empty() {
            // An empty line of a quotation belongs to nothing, but its marks must be in some piece.
            if depth > 0 {
                writer.pieces.frame(lines[at].trimmed(), &[]);
            }
            at += 1;
            continue;
        }
        if first == "--" {
            // What follows is a signature, and no answer to what is quoted above.
            writer.pieces.frame(lines[at].trimmed(), &[]);
            writer.above = None;
            at += 1;
            continue;
        }
        let head = head_end(&contents, at);
        if head > at {
            writer.head(&lines[at..head], depth);
            at = head;
            continue;
        }
        let bare = first.trim_matches(['-', '_', '=', '*', ':', ' ']).to_lowercase();
        let is_separator = is_phrase(Class::MailBetween, &bare);
        // Below a line between two mails the next line is looked at anew, so no more lines than decide are read here.
        let last = if is_separator { lines.len().min(at + ATTRIBUTION_LINES_MAX + 1) } else { lines.len() };
        let mut end = at + 1;
        while end < last
            && contents.get(end).is_some_and(|line| line.0 == depth && !line.1.is_empty() && line.1 != "--")
            && head_end(&contents, end) == end
        {
            end += 1;
        }
        let next_depth = contents.get(end).map_or(0, |line| line.0);
        let is_attribution =
            contents[end - 1].1.ends_with(':') && next_depth > depth && end - at <= ATTRIBUTION_LINES_MAX;
        if is_attribution {
            let piece = writer.pieces.push(range(text, &lines[at..end]), &[]);
            writer.set_origin(depth + 1, Origin { sender: Some(piece), date: Some(piece) });
            writer.above = None;
        } else if is_separator {
            let own = lines[at].trimmed();
            writer.pieces.push(own, &[]);
            writer.above = None;
            writer.is_separated = depth == 0;
            at += 1;
            continue;
        } else {
            writer.paragraph(&lines[at..end], &contents[at..end], depth);
        }
        at = end;
    }
    // What is quoted below a mail is mostly what the mail answers.
    for (piece, _) in std::mem::take(&mut writer.quoted) {
        let says = writer.says.first().cloned().unwrap_or_default();
        says.for_each(|says| writer.pieces.need(piece, says));
    }
    writer.pieces
}

impl Writer<'_, '_> {
    fn set_origin(&mut self, depth: usize, origin: Origin) {
        self.origins.truncate(depth);
        self.origins.resize(depth, Origin::default());
        self.origins.push(origin);
    }

    fn head(&mut self, lines: &[Line], depth: usize) {
        let mut origin = Origin::default();
        let mut at = 0;
        let mut is_sent = false;
        self.subject = None;
        while at < lines.len() {
            let is_field = |line: &Line| field(content(line.text).1);
            let end =
                (at + 1..lines.len()).find(|&end| is_field(&lines[end]).is_some()).unwrap_or(lines.len());
            let piece = self.pieces.push(range(self.text, &lines[at..end]), &[]);
            match is_field(&lines[at]) {
                Some(name) if has(Class::MailSender, &name) => origin.sender = Some(piece),
                Some(name) if has(Class::MailDate, &name) => {
                    is_sent |= has(Class::MailQuoted, &name);
                    origin.date = Some(piece);
                }
                Some(name) if has(Class::MailSubject, &name) => {
                    self.subject = Some((depth, piece));
                }
                _ => {}
            }
            at = end;
        }
        if depth == 0 {
            let is_separated = std::mem::take(&mut self.is_separated);
            if !(is_separated || is_sent) {
                self.reply = 0..0;
            } else if self.reply.is_empty() {
                self.reply = self.says.first().cloned().unwrap_or_default();
            }
        }
        self.set_origin(depth, origin);
        self.says.truncate(depth);
        self.above = None;
    }

    fn paragraph(&mut self, lines: &[Line], contents: &[(usize, &str)], depth: usize) {
        let first = self.pieces.len();
        let whole = range(self.text, lines);
        if depth == 0 {
            self.pieces.prose(self.text, whole, &[], self.sentences);
        } else {
            let mut start = 0;
            for at in 0..lines.len() {
                if ends_sentence(contents[at].1) || at + 1 == lines.len() {
                    self.pieces.push(range(self.text, &lines[start..=at]), &[]);
                    start = at + 1;
                }
            }
        }
        let origin = self.origins.get(depth).cloned().unwrap_or_default();
        let answered = self.above.filter(|(above, _)| *above > depth).map(|(_, piece)| piece);
        self.is_separated = false;
        for piece in first..self.pieces.len() {
            let says = self.pieces.list[piece].bytes.slice(self.text);
            let date = origin.date.filter(|_| is_relative(says));
            origin
                .sender
                .into_iter()
                .chain(date)
                .chain(answered)
                .for_each(|other| self.pieces.require(piece, other));
        }
        let text_of = |writer: &Self, piece: usize| writer.pieces.list[piece].bytes.slice(writer.text);
        let Some(begin) = (first..self.pieces.len()).find(|&piece| !is_greeting(text_of(self, piece))) else {
            return;
        };
        let reply = begin..self.pieces.len().min(begin + REPLY_PIECES_MAX);
        if answered.is_some() {
            // The deepest quotations are the last ones.
            while let Some((quoted, _)) = self.quoted.pop_if(|(_, of)| *of > depth) {
                // A quoted sentence is not scored as the reply to it.
                reply.clone().for_each(|reply| self.pieces.need(quoted, reply));
            }
        }
        for piece in first..self.pieces.len() {
            if depth > 0 {
                self.quoted.push((piece, depth));
            } else {
                self.reply.clone().for_each(|reply| self.pieces.need(piece, reply));
            }
        }
        self.says.resize(self.says.len().max(depth + 1), 0..0);
        if self.says[depth].is_empty() {
            self.says[depth] = reply;
            if let Some((_, subject)) = self.subject.take_if(|(of, _)| *of == depth) {
                self.pieces.introduce(subject, begin);
            }
        }
        self.above = Some((depth, self.pieces.len() - 1));
    }
}

/// Returns whether a text is as short as "Hi Ann," or "Thanks a lot!" and begins so.
fn is_greeting(text: &str) -> bool {
    let first = text.split(|c: char| !c.is_alphabetic()).find(|word| !word.is_empty()).unwrap_or_default();
    let is_short = text.split_whitespace().nth(GREETING_WORDS_MAX).is_none();
    is_short && (text.ends_with(',') || is(Class::Greeting, first))
}

fn ends_sentence(content: &str) -> bool {
    content.trim_end_matches(|c: char| "\"'”’»)".contains(c)).ends_with(|c: char| ".!?:…".contains(c))
}

/// Returns whether a text names a day that depends on the day on which it was written.
fn is_relative(text: &str) -> bool {
    // "Sat" is a day, and "sat" is not.
    let mut words = text.split(|c: char| !c.is_alphabetic());
    words.any(|word| {
        is(Class::RelativeDay, word)
            || (word.len() > 3 || word.starts_with(char::is_uppercase)) && is(Class::Weekday, word)
    })
}

/// Returns the range of some lines without the whitespace at its ends.
fn range(text: &str, lines: &[Line]) -> ByteRange {
    let ByteRange { start, end } = span(lines);
    trimmed(text, start, end)
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, grammar::kind_of};

    const MAIL: &str = "From: Ann Lee\nTo: Bob\nDate: 3 March 2026\nSubject: Crane\n\nThe crane comes tomorrow. Bring gloves.\n\nOn Mon, Bob wrote:\n> When does it come? I have\n> a lorry on Friday.\n>\n> Bob";

    #[test]
    fn mails_are_recognised() {
        assert_eq!(kind_of(MAIL), Kind::Mail);
        assert_eq!(kind_of("Hi,\n\nfine.\n\nOn Tue, Ann wrote:\n> Is it?\n> Ann"), Kind::Mail);
        assert_ne!(kind_of("From: Paris\nTo: London\n\nThe train is fast."), Kind::Mail);
        assert_ne!(kind_of("# Title\n\n> A quotation.\n> It goes on.\n> And on.\n\nText."), Kind::Mail);
    }
}
