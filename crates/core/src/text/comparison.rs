//! Questions about all of a text: "Which is the cheapest?" can only be answered from all rows of a table, and "What was decided?" from all
//! of a meeting.

use unicode_segmentation::UnicodeSegmentation;

use super::terms;

/// Words that ask for an extreme, a sum or a count, in lower case: English, German, French and Spanish.
const WORDS: [&str; 60] = [
    "highest",
    "lowest",
    "most",
    "least",
    "fewest",
    "largest",
    "smallest",
    "biggest",
    "greatest",
    "longest",
    "shortest",
    "oldest",
    "newest",
    "youngest",
    "latest",
    "earliest",
    "first",
    "last",
    "best",
    "worst",
    "cheapest",
    "fastest",
    "slowest",
    "heaviest",
    "lightest",
    "tallest",
    "deepest",
    "closest",
    "nearest",
    "farthest",
    "maximum",
    "minimum",
    "max",
    "min",
    "average",
    "mean",
    "median",
    "total",
    "sum",
    "overall",
    "altogether",
    "rank",
    "top",
    "many",
    "insgesamt",
    "meisten",
    "wenigsten",
    "höchste",
    "höchsten",
    "niedrigste",
    "größte",
    "kleinste",
    "plus",
    "moins",
    "combien",
    "mayor",
    "menor",
    "cuántos",
    "cuántas",
    "every",
];

/// Returns whether a question compares all items of a kind, as far as its words tell. A word too many costs
/// tokens, one too few an answer.
pub fn compares_all(question: &str) -> bool {
    question.unicode_words().any(|word| WORDS.contains(&&*word.to_lowercase()))
}

/// Words that ask for the contents of a text as a whole.
const OVERVIEWS: [&str; 26] = [
    "agreed",
    "agreements",
    "conclusion",
    "conclusions",
    "decided",
    "decision",
    "decisions",
    "discussed",
    "findings",
    "gist",
    "happened",
    "outcome",
    "outcomes",
    "overview",
    "points",
    "recap",
    "summarise",
    "summarised",
    "summarize",
    "summarized",
    "summary",
    "takeaway",
    "takeaways",
    "tldr",
    "topic",
    "topics",
];

/// Words that may stand beside them and name nothing in the text.
const BESIDE: [&str; 38] = [
    "action",
    "article",
    "brief",
    "briefly",
    "call",
    "came",
    "chapter",
    "chat",
    "come",
    "content",
    "contents",
    "conversation",
    "discussion",
    "document",
    "documents",
    "email",
    "give",
    "important",
    "items",
    "key",
    "list",
    "made",
    "mail",
    "main",
    "major",
    "meeting",
    "out",
    "page",
    "paper",
    "paragraph",
    "please",
    "report",
    "section",
    "short",
    "tell",
    "text",
    "thread",
    "whole",
];

/// Words that ask for one thing: "Who decided?"
const FOR_ONE: [&str; 7] = ["how", "when", "where", "who", "whom", "whose", "why"];

/// Returns whether a question asks for the contents of a text as a whole and names nothing in it: "What was decided?", "Summarize the
/// meeting." Knows English.
pub fn asks_for_overview(question: &str) -> bool {
    let mut asks = false;
    terms(question, &[]).iter().all(|term| {
        let word = term.bytes.slice(question);
        let lower = word.to_lowercase();
        let is_overview = OVERVIEWS.contains(&&*lower);
        asks |= is_overview;
        // "Will", "May" and "IT" can be names.
        let is_name = word != "I" && term.bytes.start > 0 && word.starts_with(char::is_uppercase);
        let is_free = term.is_function_word() && !is_name && !FOR_ONE.contains(&&*lower);
        is_overview || is_free || BESIDE.contains(&&*lower)
    }) && asks
}

#[cfg(test)]
mod tests {
    use super::{asks_for_overview, compares_all};

    #[test]
    fn questions_about_a_text_as_a_whole() {
        let check = |question, expect| assert_eq!(asks_for_overview(question), expect, "{question}");
        check("What was decided?", true);
        check("Summarize the whole meeting.", true);
        check("What are the main points of this report?", true);
        check("Which decisions and action items came out of the meeting?", true);
        check("Please give me a short summary", true);
        check("What was decided about the bridge?", false);
        check("What happened to Will?", false);
        check("What was agreed in May?", false);
        check("Who decided?", false);
        check("When was it decided?", false);
        check("Who called the meeting?", false);
        check("What is the document?", false);
        check("Why?", false);
        check("", false);
    }

    #[test]
    fn superlatives_and_sums_compare() {
        let check = |question, expect| assert_eq!(compares_all(question), expect, "{question}");
        check("Which hut is the CHEAPEST?", true);
        check("How many beds are there?", true);
        check("Welche Hütte hat die meisten Betten?", true);
        check("What does Pra Bréon cost?", false);
        check("Where is the coast?", false);
        check("", false);
    }
}
