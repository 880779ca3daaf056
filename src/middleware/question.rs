//! What a person asks in a message. Clients put other text beside it: reminders, the state of an editor, memories, files of rules.
//! And a person does not always ask: "continue" agrees to what the model proposed, and "summarise this" needs the whole text.

use std::collections::HashSet;
use std::sync::LazyLock;

use stop_words::Language;
use thresher_core::text;

use super::untouched::is_in;

/// What the text of a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Something that some parts of a text answer and others do not.
    Part,
    /// Something that needs the whole text, such as a summary, a translation or a list of everything.
    Whole,
    /// Nothing new: the text agrees to what the model said before.
    Agreed,
}

/// Elements that clients insert into messages of the user, as far as their names follow no rule of [`is_inserted`].
const INSERTED: [&str; 10] = [
    "additional_data",
    "attached_files",
    "command-name",
    "current_file",
    "editor_state",
    "git_status",
    "open_and_recently_viewed_files",
    "project_layout",
    "tool_use_error",
    "workspace",
];

/// Elements in which clients put what the person wrote, next to elements of their own. People write such elements, too, beside
/// other words.
const WRITTEN: [&str; 8] =
    ["feedback", "query", "question", "request", "task", "user_message", "user_query", "user_request"];

/// Words that agree, thank or ask to go on, in eleven languages.
const AGREEING: &str = "\
    yes yeah yep yup ok okay k sure thanks thank thx please go ahead continue proceed next good great perfect fine right correct exactly agreed \
    sounds done cool nice lgtm approved resume keep going more \
    ja jawohl gut danke bitte weiter genau richtig mach fortfahren einverstanden klar super los \
    oui merci vas continue continuez poursuis poursuivez parfait bien accord exact \
    sí si gracias vale adelante continúa continua sigue perfecto claro bien bueno favor \
    sì grazie va bene continua procedi perfetto certo prego avanti \
    sim obrigado obrigada continue prossiga certo perfeito ótimo \
    graag dank bedankt ga door goed prima akkoord verder \
    tak dzięki dziękuję dalej kontynuuj dobrze proszę świetnie \
    да ок спасибо продолжай продолжайте дальше хорошо давай пожалуйста верно отлично \
    继续 好 好的 是 是的 对 谢谢 可以 请 行 \
    はい 続け て 続けて ください お願い します お願いします ありがとう ok";

/// Beginnings of words that ask for something of a whole text, in eleven languages.
const WHOLE: &str = "\
    summar tldr translat rewrit rephras paraphras proofread extract enumerat outlin quiz takeaway recap reformat \
    zusammenfass zusammenzufass übersetz umschreib umformulier extrahier auflist aufzähl gliedere korrekturles \
    résum traduis tradui extrai réécri reformul énumèr \
    resum traduc traduz extrae reescrib reescrev enumer reformul \
    riassum tradur riscriv riformul estrai elenca \
    samenvat vertaal vertal herschrijf herformuleer opsom \
    streść podsumuj przetłumacz wypisz przepisz wyodrębnij \
    резюм подытож перевед перевест извлек перепиш перефраз перечисл обобщ \
    总结 概括 摘要 翻译 提取 改写 列出 校对 總結 翻譯 \
    要約 翻訳 抽出 列挙 まとめ";

/// Words that ask for something of a whole text only as they are.
const WHOLE_EXACT: &str =
    "list lists review summary convert liste fasse lista listar elenco überprüfe tl;dr tl dr";

/// Words that ask without saying for what: kinds of text, their parts, and what one does with them.
const GENERIC: &str = "\
    document documents text texts file files page pages article articles paper chapter passage email mail message content contents \
    attachment attached tell explain describe say says explanation mean means give show find read look check know think something \
    anything everything main key important overall dokument datei seite erkläre beschreibe worum geht documento fichier explique describe \
    archivo explica documento документ текст файл объясни опиши";

/// Words at the beginning of a question, after which a verb such as "translate" asks about a part.
const ASKING: &str = "\
    what which who whom whose when where why how is are was were does did do has have \
    was welche welcher welches wer wen wem wann wo warum wie wieviel ist sind hat \
    que quel quelle quels qui quand où pourquoi comment combien \
    qué cuál quién cuándo dónde cómo cuánto che quale chi quando dove perché come quanto \
    qual quem onde wat welke wie wanneer waar waarom hoe co który kto kiedy gdzie dlaczego jak ile \
    что какой какая кто когда где почему как сколько";

static STOP_WORDS: LazyLock<Vec<HashSet<&'static str>>> = LazyLock::new(|| {
    let languages = [
        Language::English,
        Language::German,
        Language::French,
        Language::Spanish,
        Language::Italian,
        Language::Portuguese,
        Language::Dutch,
        Language::Russian,
        Language::Chinese,
    ];
    languages.map(|language| stop_words::get(language).iter().copied().collect()).into()
});

/// Returns what the text of a person asks for.
pub fn asked(text: &str) -> Asked {
    let words = words(text);
    let asks = text.contains(['?', '？']) || words.first().is_some_and(|word| is_in(ASKING, word));
    if !words.is_empty() && words.len() <= 8 && is_without_content(&words, &|word| is_in(AGREEING, word)) {
        let agrees = !asks && words.iter().any(|word| is_in(AGREEING, word));
        return if agrees { Asked::Agreed } else { Asked::Whole };
    }
    let sentences: Vec<Vec<String>> =
        text::sentences(text).into_iter().map(|sentence| self::words(sentence.slice(text))).collect();
    let has_question = || {
        let is_question = |sentence: &Vec<String>| {
            sentence.iter().take(2).any(|word| is_in(ASKING, word)) && !is_generic(sentence)
        };
        sentences.iter().any(is_question)
    };
    let is_of_whole = is_generic(&words) || sentences.iter().any(|sentence| is_of_whole(sentence));
    if is_of_whole && !has_question() { Asked::Whole } else { Asked::Part }
}

/// Returns whether a sentence asks for something of the whole text: one of its first words says so, or its last one, where
/// German and Japanese have their verb.
fn is_of_whole(sentence: &[String]) -> bool {
    let says = |word: &String| {
        WHOLE.split_whitespace().any(|stem| word.starts_with(stem)) || is_in(WHOLE_EXACT, word)
    };
    let begins_to_ask = sentence.first().is_some_and(|word| is_in(ASKING, word));
    !begins_to_ask && (sentence.iter().take(5).any(says) || sentence.last().is_some_and(says))
}

fn is_generic(words: &[String]) -> bool {
    !words.is_empty() && is_without_content(words, &|word| is_in(GENERIC, word))
}

/// Returns whether all words are function words of one language, or as `is_allowed` says.
fn is_without_content(words: &[String], is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let is_of = |stops: &HashSet<&str>| words.iter().all(|word| is_allowed(word) || stops.contains(&**word));
    STOP_WORDS.iter().any(is_of)
}

fn words(text: &str) -> Vec<String> {
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    text::words(text)
        .into_iter()
        .map(|range| bare(range.slice(text)))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Returns what a person wrote of the text of a message: without the elements that clients insert, and only the content of
/// elements such as `<task>`, if there are any.
pub fn written(text: &str) -> String {
    let mut rest = String::with_capacity(text.len());
    let mut written = String::new();
    let mut at = 0;
    while let Some(element) = Element::next(text, at) {
        rest.push_str(&text[at..element.start]);
        at = element.end;
        if WRITTEN.contains(&element.name) {
            written.push_str(if written.is_empty() { "" } else { "\n" });
            written.push_str(&text[element.content.clone()]);
        } else if !is_inserted(element.name) {
            rest.push_str(&text[element.start..element.end]);
        }
    }
    rest.push_str(&text[at..]);
    match (written.trim().is_empty(), rest.trim().is_empty()) {
        (true, _) => rest,
        (false, true) => written,
        (false, false) => format!("{rest}\n{written}"),
    }
}

/// Returns whether clients insert elements with this name.
fn is_inserted(name: &str) -> bool {
    let ends = [
        "reminder",
        "details",
        "context",
        "memory",
        "memories",
        "rules",
        "stdout",
        "stderr",
        "caveat",
        "info",
        "hook",
        "selection",
    ];
    let begins = [
        "system-",
        "system_",
        "environment",
        "ide_",
        "command-",
        "local-command",
        "user-prompt-",
        "claude",
        "agents",
    ];
    INSERTED.contains(&name)
        || name.contains(['-', '_']) && ends.iter().any(|end| name.ends_with(end))
        || begins.iter().any(|begin| name.starts_with(begin))
        || ["memory", "memories"].contains(&name)
}

/// An element such as `<task>…</task>` that begins a line of a text.
struct Element<'a> {
    name: &'a str,
    start: usize,
    end: usize,
    content: std::ops::Range<usize>,
}

impl<'a> Element<'a> {
    /// Returns the first element at or after `at` whose name this module knows. One that is never closed ends with the text.
    fn next(text: &'a str, mut at: usize) -> Option<Self> {
        loop {
            let start = at + text[at..].find('<')?;
            let name_end = start
                + 1
                + text[start + 1..].find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c))?;
            at = start + 1;
            let name = &text[start + 1..name_end];
            let begins_line = text[..start]
                .trim_end_matches([' ', '\t'])
                .chars()
                .next_back()
                .is_none_or(|c| c == '\n' || c == '>');
            if !begins_line || !(WRITTEN.contains(&name) || is_inserted(name)) {
                continue;
            }
            let open = name_end + text[name_end..].find('>')? + 1;
            if text[..open].ends_with("/>") {
                return Some(Self { name, start, end: open, content: open..open });
            }
            let closing = format!("</{name}>");
            let (content_end, end) = match text[open..].find(&closing) {
                Some(length) => (open + length, open + length + closing.len()),
                None => (text.len(), text.len()),
            };
            return Some(Self { name, start, end, content: open..content_end });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_texts_are_asked_for_in_many_ways() {
        let check = |expect: Asked, texts: &[&str]| {
            texts.iter().for_each(|text| assert_eq!(asked(text), expect, "{text}"));
        };
        check(
            Asked::Whole,
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
            Asked::Part,
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
            Asked::Agreed,
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
    fn text_of_clients_is_not_what_a_person_wrote() {
        let check = |text: &str, expect: &str| assert_eq!(written(text).trim(), expect, "{text}");
        check("When?\n<system-reminder>Use the list of tasks.</system-reminder>", "When?");
        check(
            "<system-reminder>\n# claudeMd\nRules.\n</system-reminder>\nWhen does it open?",
            "When does it open?",
        );
        check("<environment_details>\n# Open tabs\nx.rs\n</environment_details>", "");
        check("<task>\nRepair it.\n</task>\n<environment_details>x</environment_details>", "Repair it.");
        check("<user_info>Linux</user_info><user_query>When?</user_query>", "When?");
        check("<system-reminder>never closed", "");
        check("<ide_selection/>\nWhen?", "When?");
        check("Why is this refused?\n<request>4</request>", "Why is this refused?\n\n4");
        check("<unknown>When?</unknown>", "<unknown>When?</unknown>");
        check("Is <task> a tag?", "Is <task> a tag?");
        check("a < b and c", "a < b and c");
    }
}
