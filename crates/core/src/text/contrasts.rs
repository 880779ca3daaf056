//! Contrasts: English words that exclude each other, such as `Monday` and `Tuesday`, or `rose` and `fell`.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::Term;

/// The classes, one per line.
const CLASSES: &str = include_str!("contrasts.txt");

/// Words that are names only if they are capitalised, besides months and weekdays.
const NAMES: [&str; 6] = ["turkey", "china", "jersey", "tony", "polish", "swiss"];

/// A word of a class whose groups exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contrast {
    pub class: usize,
    /// The number of the group in the class. The words of a group mean the same.
    pub group: usize,
    /// Whether the groups are opposites, such as `high` and `low`, and not things of one kind.
    pub is_opposite: bool,
}

/// Returns the contrasts of a term. `word` is the term as it is written: a small `may` is no month.
///
/// ```
/// use thresher_core::text::{contrasts, terms};
///
/// let found = terms("rose fell may", &[]);
/// let (rose, fell) = (contrasts(&found[0], "rose")[0], contrasts(&found[1], "fell")[0]);
/// assert!(rose.class == fell.class && rose.group != fell.group);
/// assert!(contrasts(&found[2], "may").is_empty());
/// ```
pub fn contrasts(term: &Term, word: &str) -> &'static [Contrast] {
    static BY_WORD: LazyLock<HashMap<&str, Vec<Contrast>>> = LazyLock::new(by_word);
    let is_name = term.is_calendar() || NAMES.contains(&&*term.folded);
    if is_name && !term.is_translated && !word.starts_with(char::is_uppercase) {
        &[]
    } else {
        BY_WORD.get(&*term.folded).map_or(&[], Vec::as_slice)
    }
}

/// Returns whether one of two words is the other one with a prefix that denies it, such as `paid` and `unpaid`.
pub fn is_denied_form(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let could_be = short.len() >= DENIED_BYTES_MIN && !NOT_DENIED.contains(&short);
    let Some(prefix) = long.strip_suffix(short).filter(|_| could_be) else {
        return false;
    };
    let ends = |endings: &[&str]| endings.iter().any(|ending| short.ends_with(ending));
    match prefix {
        "un" | "non" => true,
        // "Inform" is no denial of "form": only adjectives are denied so.
        "in" | "im" | "il" | "ir" => ends(&ADJECTIVES),
        "dis" => DENIED_BY_DIS.iter().any(|stem| short.starts_with(stem)),
        _ => false,
    }
}

/// The shortest word that is looked for after a prefix, in bytes.
const DENIED_BYTES_MIN: usize = 4;

/// Endings of adjectives and adverbs that `in-`, `im-`, `il-` and `ir-` deny.
const ADJECTIVES: [&str; 16] = [
    "able", "ably", "al", "ally", "ant", "ate", "ect", "ent", "ently", "ible", "ibly", "ite", "ive", "ively",
    "ular", "ure",
];

/// Words that are other words with such a prefix, and not denied.
const NOT_DENIED: [&str; 14] = [
    "cite",
    "different",
    "fall",
    "formative",
    "habitable",
    "kosten",
    "less",
    "mate",
    "migrate",
    "plant",
    "stalment",
    "sure",
    "valuable",
    "vent",
];

/// Stems of the words that `dis-` denies.
const DENIED_BY_DIS: [&str; 24] = [
    "abled", "advantag", "agree", "allow", "appear", "approv", "assembl", "believ", "charg", "comfort",
    "connect", "continu", "engag", "honest", "integrat", "like", "obey", "order", "prove", "qualif",
    "regard", "satisf", "similar", "trust",
];

fn by_word() -> HashMap<&'static str, Vec<Contrast>> {
    let mut found: HashMap<_, Vec<_>> = HashMap::new();
    let (mut is_opposite, mut class) = (false, 0);
    for line in CLASSES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            is_opposite = line == "[opposites]";
            continue;
        }
        for (group, words) in line.split('|').enumerate() {
            for word in words.split_whitespace() {
                found.entry(word).or_default().push(Contrast { class, group, is_opposite });
            }
        }
        class += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_can_deny_a_word() {
        for (one, other) in [
            ("paid", "unpaid"),
            ("incorrect", "correct"),
            ("connected", "disconnected"),
            ("nonrefundable", "refundable"),
            ("impossible", "possible"),
        ] {
            assert!(is_denied_form(one, other), "{one}, {other}");
        }
        for (one, other) in [
            ("form", "inform"),
            ("formed", "informed"),
            ("played", "displayed"),
            ("valuable", "invaluable"),
            ("it", "unit"),
            ("paid", "paid"),
        ] {
            assert!(!is_denied_form(one, other), "{one}, {other}");
        }
    }

    #[test]
    fn every_class_has_groups_without_a_common_word() {
        let words = by_word();
        let classes = words.values().flatten().map(|contrast| contrast.class).max().expect("classes");
        for class in 0..=classes {
            let of_class = words.values().flatten().filter(|contrast| contrast.class == class);
            assert!(of_class.map(|contrast| contrast.group).max() >= Some(1), "class {class} has one group");
        }
        for (word, contrasts) in &words {
            let mut classes: Vec<usize> = contrasts.iter().map(|contrast| contrast.class).collect();
            classes.dedup();
            assert_eq!(classes.len(), contrasts.len(), "{word} is in two groups of one class");
            assert_eq!(*word, word.to_lowercase());
        }
    }
}
