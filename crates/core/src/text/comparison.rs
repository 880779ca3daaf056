//! Questions that compare: "Which is the cheapest?" can only be answered from all rows of a table.

use unicode_segmentation::UnicodeSegmentation;

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

#[cfg(test)]
mod tests {
    use super::compares_all;

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
