//! What a question asks for. Decided from its words alone, before any text is looked at; every path of the product asks here.

use crate::lexicon::{Class, Langs, has, langs};
use crate::sentences::{sentences, words};

/// What a question asks of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wants {
    /// Those parts that answer it.
    #[default]
    Parts,
    /// All rows of a table, which it compares, adds up or orders.
    Rows,
    /// All of the text, as for a summary, a translation or a list of everything.
    Whole,
    /// Nothing new: the text agrees to what was said before.
    Nothing,
}

/// The longest text that only agrees, in words.
const AGREEMENT_WORDS_MAX: usize = 8;

/// Among how many words at the beginning of a sentence a request for a whole text has its verb.
const REQUEST_WORDS: usize = 5;

/// Returns what a question or an instruction asks for.
///
/// ```
/// use thresher_text::intent::{Wants, wants};
///
/// assert_eq!(wants("When did the first bridge open?"), Wants::Parts);
/// assert_eq!(wants("Which bridge is the longest?"), Wants::Rows);
/// assert_eq!(wants("Fasse das Protokoll zusammen."), Wants::Whole);
/// ```
pub fn wants(text: &str) -> Wants {
    let all = Words::of(text);
    let asks = text.contains(['?', '？']) || all.first_is(Class::Asks);
    if all.lower.is_empty() {
        return Wants::Parts;
    }
    if all.lower.len() <= AGREEMENT_WORDS_MAX && all.are_free_or(&[Class::Agrees]) {
        let agrees = !asks && all.lower.iter().any(|word| has(Class::Agrees, word));
        return match all.lower.len() {
            _ if agrees => Wants::Nothing,
            // A letter or a word alone is what a search box gets.
            1 if !asks => Wants::Parts,
            _ => Wants::Whole,
        };
    }
    let sentences: Vec<Words> =
        sentences(text).into_iter().map(|sentence| Words::of(sentence.slice(text))).collect();
    let is_of_whole = all.name_nothing() || sentences.iter().any(Words::ask_for_whole);
    if is_of_whole && !sentences.iter().any(|sentence| sentence.begin_to_ask() && !sentence.name_nothing()) {
        Wants::Whole
    } else if all.compare() {
        Wants::Rows
    } else {
        Wants::Parts
    }
}

/// The words of a sentence or of a text.
pub(crate) struct Words {
    /// In lower case, without punctuation.
    lower: Vec<String>,
    /// Whether a word is written with a capital, and is not the first one.
    is_capital: Vec<bool>,
}

impl Words {
    pub fn of(text: &str) -> Self {
        let bare = |word: &'_ str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
        let written = words(text).into_iter().map(|range| bare(range.slice(text)));
        let written: Vec<String> = written.filter(|word| !word.is_empty()).collect();
        let is_capital =
            |(at, word): (usize, &String)| at > 0 && word != "I" && word.starts_with(char::is_uppercase);
        Self {
            is_capital: written.iter().enumerate().map(is_capital).collect(),
            lower: written.iter().map(|word| word.to_lowercase()).collect(),
        }
    }

    fn first_is(&self, class: Class) -> bool {
        self.lower.first().is_some_and(|word| has(class, word))
    }

    /// Whether a question word is among the first two words.
    fn begin_to_ask(&self) -> bool {
        self.lower.iter().take(2).any(|word| has(Class::Asks, word))
    }

    /// Whether there is a language of which all words are function words, or of one of these classes.
    pub fn are_free_or(&self, classes: &[Class]) -> bool {
        let free = |(word, is_capital): (&String, &bool)| {
            let listed = classes.iter().fold(Langs::default(), |found, class| found.or(langs(*class, word)));
            let function = langs(Class::Stop, word);
            // "Will", "May" and "IT" can be names.
            let function = if *is_capital { function.without(Langs::ENGLISH) } else { function };
            // What one language lists is known in all.
            if listed.is_empty() { function } else { Langs::ALL }
        };
        let common = self.lower.iter().zip(&self.is_capital).map(free).fold(Langs::ALL, Langs::and);
        !common.is_empty()
    }

    /// Whether the words ask, and name nothing that some parts of a text are about and others are not.
    fn name_nothing(&self) -> bool {
        let is_for_one = || self.lower.iter().any(|word| has(Class::AsksOne, word));
        let asks_for_overview = self.lower.iter().any(|word| has(Class::Overview, word));
        !self.lower.is_empty()
            && self.are_free_or(&[Class::Generic, Class::Overview])
            && !(asks_for_overview && is_for_one())
    }

    /// Whether a sentence is a request that needs the whole text: one of its first words says so, or its last one, where German and
    /// Japanese have their verb.
    fn ask_for_whole(&self) -> bool {
        let is_of_whole = |word: &String| has(Class::Whole, word);
        let lists =
            self.first_is(Class::Lists) && !self.lower.get(1).is_some_and(|word| has(Class::Of, word));
        let says = self.lower.iter().take(REQUEST_WORDS).chain(self.lower.last()).any(is_of_whole);
        !self.first_is(Class::Asks) && (lists || says)
    }

    /// Whether a question compares all things of a kind.
    fn compare(&self) -> bool {
        let is_pair = |pair: &[String]| has(Class::Compares, &pair.join("_"));
        self.lower.iter().any(|word| has(Class::Compares, word))
            || self.lower.windows(2).any(is_pair)
            || self.lower.iter().take(2).any(|word| has(Class::Which, word))
                && self.lower.iter().any(|word| has(Class::Ordinal, word))
    }
}

#[cfg(test)]
mod tests {
    use super::{Wants, wants};

    #[test]
    fn whole_texts_are_asked_for_in_many_ways() {
        let check = |expect: Wants, texts: &[&str]| {
            texts.iter().for_each(|text| assert_eq!(wants(text), expect, "{text}"));
        };
        check(
            Wants::Whole,
            &[
                "Summarise this document in five bullet points.",
                "Can you summarize the attached report for the board?",
                "Please translate it into French.",
                "Extract all suppliers as JSON.",
                "List the headings.",
                "What is this about?",
                "What is next?",
                "Explain this to me.",
                "Rewrite the text below in a friendly tone. Keep the names.",
                "Key takeaways?",
                "TL;DR",
                "Bitte fasse das Dokument zusammen.",
                "Kannst du das ins Englische übersetzen?",
                "Bitte den Text zusammenfassen",
                "Résume ce document en trois phrases.",
                "¿Puedes traducir este texto?",
                "Traduce este texto al inglés.",
                "Riassumi il documento.",
                "Resuma o documento em cinco pontos.",
                "Vat samen en vertaal het naar het Engels.",
                "Przetłumacz ten tekst na angielski.",
                "Переведите этот текст на английский.",
                "请总结这篇文章",
                "この文書を要約してください",
            ],
        );
        check(
            Wants::Parts,
            &[
                "When was the lighthouse opened?",
                "How much more does the second ferry carry?",
                "Who translated the Iliad into English in 1715?",
                "How do I list the running jobs?",
                "Why does the build fail since Monday?",
                "The nightly job fails. Find out why and repair it.",
                "Explain how the harbour pays for the crane.",
                "Summarise this. And when does the ferry to Mull leave?",
                "Wie übersetzt man einen Vertrag?",
                "Welche Übersetzung ist beglaubigt?",
                "灯塔什么时候开放?",
            ],
        );
        check(
            Wants::Nothing,
            &[
                "continue",
                "yes",
                "ok thanks!",
                "Yes, please do it.",
                "go ahead",
                "ja bitte",
                "weiter",
                "oui, merci",
                "sí, continúa",
                "да, продолжай",
                "继续",
                "はい",
            ],
        );
    }
    #[test]
    fn rows_are_compared_by_superlatives_and_sums() {
        let check = |expect: Wants, texts: &[&str]| {
            texts.iter().for_each(|text| assert_eq!(wants(text), expect, "{text}"));
        };
        check(
            Wants::Rows,
            &[
                "Which hut is the CHEAPEST?",
                "Which job was the last to end?",
                "Welche Hütte hat die meisten Betten?",
                "Quelle cabane est la plus haute ?",
                "What is the total of all invoices?",
            ],
        );
        check(
            Wants::Parts,
            &[
                "When did the first bridge open?",
                "How many redirects does curl follow by default?",
                "What does Pra Bréon cost?",
                "list of ferries to Mull",
                "What happened to Will?",
                "What was agreed in May?",
                "Who decided?",
                "When was it decided?",
                "Who called the meeting?",
                "a",
                "",
            ],
        );
        check(
            Wants::Whole,
            &[
                "What was decided?",
                "Summarize the whole meeting.",
                "What are the main points of this report?",
                "Which decisions and action items came out of the meeting?",
                "Please give me a short summary",
                "Fasse zusammen",
                "Was wurde in der Sitzung beschlossen?",
            ],
        );
    }
}
