//! The words that the rules know. Each language is a file in `lexicon/`, named by its ISO 639-1 code, and so are programs (`code`) and the
//! names of tools (`tools`). In a file, each class of words has a paragraph:
//!
//! ```text
//! [whole]
//! summar- translat-
//! ```
//!
//! Words are in lower case, except abbreviations, and sorted. `-` at the end stands for any ending, and `_` for the space in an expression of several words. A class
//! that a language lacks has no words in it. Stop words also come from the crate `stop-words`, as far as it has the language.

use std::collections::HashMap;
use std::sync::LazyLock;

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident $name:literal,)*) => {
        /// What a word does in a text or a question.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Class { $($(#[$doc])* $class,)* }

        /// The classes with their names in the files.
        const CLASSES: &[(Class, &str)] = &[$((Class::$class, $name),)*];
    };
}

classes! {
    /// Is shortened with a full stop, which also ends a sentence before a word that clearly begins one. With case, as the next two.
    Abbreviation "abbreviation",
    /// As that, but its full stop ends no sentence: a title before a name, or a word that introduces something.
    AbbreviationNever "abbreviation-never",
    /// As that, but its full stop ends no sentence before a number.
    AbbreviationNumber "abbreviation-number",
    /// Follows `no information`.
    About "about",
    /// Stands between other words of a sentence that finds no answer.
    Abstention "abstention",
    /// Agrees, thanks or asks to go on.
    Agrees "agrees",
    /// Says in an introduction that all items of its list belong together.
    AllOf "all-of",
    /// Is a number in one place and something else in the next, unless it is a part of a longer number, such as `one` in `twenty-one`.
    AmbiguousNumber "ambiguous-number",
    /// Joins questions, as `and`.
    And "and",
    /// Stands with a colon before an answer.
    AnswerLabel "answer-label",
    /// Begins a question, as `why`.
    Asks "asks",
    /// Asks for one thing, as `who`.
    AsksOne "asks-one",
    /// Limits a number after it from below, as `over`.
    AtLeast "at-least",
    /// Limits a number after it from above, as `under`.
    AtMost "at-most",
    /// Says above a text that it does not hold, or not yet.
    Banner "banner",
    /// Stands before a number whose full stop makes it an ordinal, as in `am 3. Oktober`.
    BeforeOrdinal "before-ordinal",
    /// Stands before a time in the morning, where another word follows it.
    BeforeTime "before-time",
    /// Stands before two numbers that are the ends of a range, as `from`.
    Between "between",
    /// Says that a number after it is an end of what is meant, as `up` in `up to 30 days`.
    Bound "bound",
    /// Stands before the number of a table or a figure.
    Caption "caption",
    /// Continues a statement of a program with another part, as `else`.
    Clause "clause",
    /// Names an element that clients insert into messages of the user, as far as its name has no word of the next two classes.
    ClientElement "client-element",
    /// Begins the name of such an element.
    ClientElementBegins "client-element-begins",
    /// Ends the name of such an element.
    ClientElementEnds "client-element-ends",
    /// Ends a block of a program.
    Closes "closes",
    /// Compares all things of a kind, as `cheapest` and `total`.
    Compares "compares",
    /// Stands before a hyphen of its own, as in `well-known`.
    Compound "compound",
    /// Begins a clause that limits the rest of its sentence.
    Concedes "concedes",
    /// Names a table of contents.
    Contents "contents",
    /// Begins a sentence of an answer that thanks or offers more.
    Courtesy "courtesy",
    /// Begins what may follow a courtesy, as `just ask`.
    CourtesyRequest "courtesy-request",
    /// Says that something is not so, or not always.
    Denies "denies",
    /// Says how certain the writer of an answer is.
    Doubts "doubts",
    /// Names a text that a new edition replaces, as `policy`.
    Edition "edition",
    /// Stands before the reason for which a program ended.
    Ends "ends",
    /// Begins an exception to what was said before.
    Exception "exception",
    /// Says that something went wrong in a program.
    Fault "fault",
    /// Says nothing by which two sentences would differ: an article or an auxiliary verb.
    Filler "filler",
    /// Has little meaning by itself, as `the`. Only these words count less where texts are compared word by word.
    Function "function",
    /// Names no content: kinds of text, their parts, and what one does with them.
    Generic "generic",
    /// Goes on with something else after the words of an abstention.
    GoesOn "goes-on",
    /// Begins a greeting or thanks.
    Greeting "greeting",
    /// The same, of sources only, as `contain`.
    Has "has",
    /// Is the key of a member of JSON that says which record it is.
    Identity "identity",
    /// Begins a line that imports something into a program.
    Imports "imports",
    /// Joins two words, of which the first can end with a hyphen.
    Joins "joins",
    /// Begins a line of a program.
    Keyword "keyword",
    /// Is what sources without an answer do not have, as `information`.
    Lacked "lacked",
    /// Says in an answer that something is not there.
    Lacks "lacks",
    /// Begins a phrase of time or place before the subject of a sentence.
    Leads "leads",
    /// The level of an event of a log.
    Level "level",
    /// The level of an event that is an error.
    LevelFault "level-fault",
    /// Forbids or limits something.
    Limits "limits",
    /// Asks for a list if a sentence begins with it.
    Lists "lists",
    /// Stands between a reply and the mail that it answers.
    MailBetween "mail-between",
    /// Names the field of a mail that says when it was sent.
    MailDate "mail-date",
    /// Names another field of the head of a mail.
    MailOther "mail-other",
    /// Names the date in a head that is quoted below a reply.
    MailQuoted "mail-quoted",
    /// Names the field of a mail that says who wrote it.
    MailSender "mail-sender",
    /// Names the field of a mail that says what it is about.
    MailSubject "mail-subject",
    /// Is a unit without a full stop behind a number.
    Measure "measure",
    /// Makes a duration of hours and minutes, after the number of minutes.
    Minutes "minutes",
    /// Begins a question that is also a polite request, as `can`.
    Modal "modal",
    /// The name of a month, as `march`.
    Month "month",
    /// Is a name if it is written in capitals, as `IT`.
    NameInCapitals "name-in-capitals",
    /// Says that the next word, or if none follows the one before, does not hold.
    Negation "negation",
    /// Negates the verb of a sentence, as `not`.
    Negates "negates",
    /// Stands before a colon, and is no speaker.
    NoName "no-name",
    /// Names after a word what the thing is of.
    Of "of",
    /// Ends no sentence and no heading.
    Open "open",
    /// Says the place in an order, as `first`.
    Ordinal "ordinal",
    /// A word of this language that is an abbreviation in another.
    Ordinary "ordinary",
    /// Asks for the contents of a text as a whole, as `decided`.
    Overview "overview",
    /// Stands for the owner of a thing, who was named before.
    Owner "owner",
    /// Says in the header of a page of figures what they are, as `year` and `million`.
    Period "period",
    /// Greets, thanks or agrees, alone or before a name.
    Pleasantry "pleasantry",
    /// Is a program that prints a file.
    Prints "prints",
    /// Stands for a thing or a person named before.
    Pronoun "pronoun",
    /// Begins a line of a query.
    Query "query",
    /// Continues a query on a new line.
    QueryClause "query-clause",
    /// Stands with a colon before a question.
    QuestionLabel "question-label",
    /// Refers at the beginning of a sentence to the one before it.
    Refers "refers",
    /// Stands before an abstention, as `unfortunately`.
    Regrets "regrets",
    /// Begins a relative clause as well as a question.
    Relative "relative",
    /// Says which day something is, as seen from another.
    RelativeDay "relative-day",
    /// Answers a question of yes or no.
    Reply "reply",
    /// Names who speaks in a chat by a part, as `customer`.
    Role "role",
    /// Is what is not done with an answer that is not there.
    Said "said",
    /// Is what sources, or their reader, do not do if they have no answer.
    Says "says",
    /// Stands in the tables of a query.
    Schema "schema",
    /// Stands before the number of a section, an article or a clause.
    Section "section",
    /// Stands in the name of a tool that runs commands.
    Shell "shell",
    /// Is what an answer calls its sources.
    Source "source",
    /// Stands before the number of a source.
    SourceLabel "source-label",
    /// Begins a sentence even after an abbreviation.
    Starter "starter",
    /// Stands before a number that says how a program or a request ended.
    Status "status",
    /// Begins a line of a program that only steers what happens.
    Steers "steers",
    /// Has little meaning by itself: the words of [`Self::Function`], and those that the crate `stop-words` lists.
    Stop "stop",
    /// Takes back what was said before.
    TakesBack "takes-back",
    /// Stands before the end of a range of numbers.
    To "to",
    /// Stands in the name of a tool that works on files, or on what a person or another agent says.
    ToolActs "tool-acts",
    /// Means a file in the name of a tool.
    ToolFile "tool-file",
    /// Stands in the name of a tool that lists files or lines.
    ToolLists "tool-lists",
    /// Stands in the name of a tool that reads something: a file, unless another word says what.
    ToolReads "tool-reads",
    /// Stands in the name of a tool that reads something of the web.
    ToolWeb "tool-web",
    /// Begins the label of a sum.
    Total "total",
    /// Begins the question that has no answer.
    Unanswered "unanswered",
    /// Is a unit in what programs print.
    Unit "unit",
    /// Is an answer that finds nothing.
    Unknown "unknown",
    /// Names an element in which clients put what the person wrote, next to elements of their own. People write such elements, too, beside
    /// other words.
    UserElement "user-element",
    /// Stands before the number of a version.
    Version "version",
    /// The name of a day of the week, as `monday`.
    Weekday "weekday",
    /// Asks for one of several, as `which`.
    Which "which",
    /// Asks for something that needs a whole text, as `translate`.
    Whole "whole",
    /// A time zone or a half of the day.
    Zone "zone",
}

impl Class {
    /// Whether words of the class can be beginnings of words.
    fn has_stems(self) -> bool {
        matches!(self, Self::Fault | Self::Whole)
    }
}

/// A set of languages, with one bit for each of `FILES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Langs(u32);

impl Langs {
    /// English, the first of the files.
    pub const ENGLISH: Self = Self(1);
    /// All languages that have a file.
    pub const ALL: Self = Self((1 << FILES.len()) - 1);

    /// Returns whether the set has no language.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the languages of this set or of another.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the languages of this set that are in another, too.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the languages of this set that are not in another.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

macro_rules! files {
    ($($lang:literal)*) => { [$(($lang, include_str!(concat!("../lexicon/", $lang, ".txt")))),*] };
}

/// The languages with their files. The first is English; the last two are none.
const FILES: [(&str, &str); 14] =
    files!["en" "de" "fr" "es" "it" "pt" "nl" "da" "pl" "ru" "zh" "ja" "code" "tools"];

/// The most characters of the beginning of a word: a word of a megabyte is looked up no longer than others.
const STEM_CHARS_MAX: usize = 24;

#[derive(Default)]
struct Lexicon {
    /// The words of the files by their class.
    of_class: HashMap<Class, Vec<&'static str>>,
    words: HashMap<(Class, &'static str), Langs>,
    /// Beginnings of words, in classes that have stems.
    stems: HashMap<(Class, &'static str), Langs>,
    /// The expressions of several words by the first one: the others.
    expressions: HashMap<(Class, &'static str), Vec<&'static str>>,
}

static LEXICON: LazyLock<Lexicon> = LazyLock::new(|| {
    let mut lexicon = Lexicon::default();
    for (number, (lang, file)) in FILES.into_iter().enumerate() {
        let lang_bit = Langs(1 << number);
        for word in stop_words::lookup(lang).unwrap_or_default() {
            lexicon.add(Class::Stop, word, lang_bit);
        }
        for (class, word) in entries(file) {
            let class = CLASSES.iter().find(|(_, name)| *name == class);
            let class = class.expect("the test of the files has checked the names").0;
            lexicon.of_class.entry(class).or_default().push(word);
            if let Some((first, rest)) = word.split_once('_') {
                lexicon.expressions.entry((class, first)).or_default().push(rest);
            }
            lexicon.add(class, word, lang_bit);
            if class == Class::Function {
                lexicon.add(Class::Stop, word, lang_bit);
            }
        }
    }
    lexicon
});

impl Lexicon {
    fn add(&mut self, class: Class, word: &'static str, lang: Langs) {
        let (words, word) = match word.strip_suffix('-') {
            Some(stem) => (&mut self.stems, stem),
            None => (&mut self.words, word),
        };
        let langs = words.entry((class, word)).or_default();
        *langs = langs.or(lang);
    }
}

/// Returns the entries of a file, each with the name of its class.
fn entries(file: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut class = "";
    let lines = file.lines().filter(|line| !line.starts_with("# "));
    lines.flat_map(move |line| {
        let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        class = name.unwrap_or(class);
        let words = if name.is_some() { "" } else { line };
        words.split_whitespace().map(move |word| (class, word))
    })
}

/// Returns the languages in which `word`, in lower case, is of a class.
pub fn langs(class: Class, word: &str) -> Langs {
    let exact = LEXICON.words.get(&(class, word)).copied().unwrap_or_default();
    if !class.has_stems() {
        return exact;
    }
    let ends = word.char_indices().take(STEM_CHARS_MAX).map(|(at, c)| at + c.len_utf8());
    let stems = ends.filter_map(|end| LEXICON.stems.get(&(class, &word[..end])));
    stems.fold(exact, |langs, &stem| langs.or(stem))
}

/// Returns whether `word`, in lower case, is of a class in some language.
///
/// ```
/// use thresher_text::lexicon::{Class, has};
///
/// assert!(has(Class::Whole, "summarise") && has(Class::Whole, "übersetzen"));
/// assert!(!has(Class::Compares, "first"));
/// ```
pub fn has(class: Class, word: &str) -> bool {
    !langs(class, word).is_empty()
}

/// Returns whether a text in lower case contains a word of a class, also inside a word: some programs lose the blanks of a page.
pub fn is_within(class: Class, text: &str) -> bool {
    LEXICON.of_class.get(&class).is_some_and(|words| words.iter().any(|word| text.contains(word)))
}

/// As [`has`], for a word in any case.
pub fn is(class: Class, word: &str) -> bool {
    has(class, &word.to_lowercase())
}

/// Returns whether a text in lower case is an expression of a class, with any blanks between its words.
pub fn is_phrase(class: Class, text: &str) -> bool {
    has(class, &text.split_whitespace().collect::<Vec<_>>().join("_"))
}

/// Returns of how many words, in lower case, the expression of several words consists with which `words` begin; `None` if they begin with
/// none of the class.
pub fn expression<'a>(class: Class, mut words: impl Iterator<Item = &'a str> + Clone) -> Option<usize> {
    let expressions = LEXICON.expressions.get(&(class, words.next()?))?;
    expressions.iter().find_map(|rest| {
        let rest = rest.split('_');
        let count = rest.clone().count();
        rest.eq(words.clone().take(count)).then_some(count + 1)
    })
}

/// Returns the rest of a text in lower case behind an expression of a class with which it begins.
pub fn strip(class: Class, text: &str) -> Option<&str> {
    LEXICON.of_class.get(&class)?.iter().find_map(|expression| {
        let mut words = expression.split('_');
        let rest = text.strip_prefix(words.next()?)?;
        words.try_fold(rest, |rest, word| rest.strip_prefix(' ')?.strip_prefix(word))
    })
}

/// Returns whether a word of a text is of a class.
pub fn has_word(class: Class, text: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).any(|word| !word.is_empty() && is(class, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_known_classes_and_sorted_words_in_lower_case() {
        for (lang, file) in FILES {
            let found: Vec<_> = entries(file).collect();
            assert!(
                found.is_sorted_by(|one, next| one < next),
                "{lang}.txt is sorted, and has no word twice"
            );
            for (class, word) in found {
                let known = CLASSES.iter().find(|(_, name)| *name == class);
                assert!(known.is_some(), "{lang}.txt: [{class}]");
                assert!(
                    class.starts_with("abbreviation") || word == word.to_lowercase(),
                    "{lang}.txt: {word}"
                );
                let has_stems = known.is_some_and(|(class, _)| class.has_stems());
                assert!(!word.ends_with('-') || has_stems, "{lang}.txt: {word}");
                assert!(!word.ends_with('-') || word.chars().count() <= STEM_CHARS_MAX, "{lang}.txt: {word}");
            }
        }
    }
}
