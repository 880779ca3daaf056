//! Tables of abbreviations, and of the words that start a sentence even after an abbreviation. Must not know
//! where in the text a word is: `stops` looks up the word before a full stop and the word after it.
//!
//! Words are looked up as they are written. A word in capitals (`DR`) is also looked up with only its first
//! letter in capitals (`Dr`).

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// Whether a full stop after an abbreviation ends the sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abbreviation {
    /// The sentence never ends here: a title before a name, or a word that introduces something.
    Never,
    /// The sentence continues before a number, a Roman numeral or a single letter, and ends before other
    /// words.
    Numbered,
    /// The sentence ends before a word that clearly starts one, and otherwise continues.
    Ambiguous,
}

/// Returns the kind of abbreviation that `word` is, or `None` for an ordinary word.
pub(crate) fn abbreviation(word: &str) -> Option<Abbreviation> {
    let listed = |word: &str| KINDS.get(word).copied();
    listed(word)
        .or_else(|| listed(&capitalized(word)?))
        .or_else(|| (is_initials(word) || OF_LANGUAGES.contains(word)).then_some(Abbreviation::Ambiguous))
}

/// The languages whose abbreviations are read. A text does not say its language, so the abbreviations of all of them apply
/// to it. The lists of Italian, Dutch and Danish have many ordinary words of other languages, such as `age`, `class` and `on`.
const LANGUAGES: [&str; 10] = ["en", "de", "es", "fr", "pt", "pl", "ru", "sk", "uk", "bg"];

/// Words of these lists that are ordinary words of another language.
#[rustfmt::skip]
const ORDINARY: &[&str] = &[
    "in", "an", "des", "may", "im", "de", "me", "re", "bis", "al", "com", "ago", "red", "post", "pro", "anti", "extra", "la", "vice", "da",
    "pre", "en", "ill", "multi", "di", "port", "let", "semi", "arc", "sing", "del", "super", "arm", "inter", "mini", "pseudo", "miss", "pod",
    "as", "is", "on", "to", "so", "rest", "form", "pass", "part", "term", "age", "class",
];

/// The abbreviations of Wikimedia's sentencex, also with a capital, as titles before a name and days have it.
static OF_LANGUAGES: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let mut words = HashSet::new();
    for language in LANGUAGES {
        for word in sentencex::language_factory(language).get_abbreviations() {
            let word = word.trim_end_matches('.');
            if ORDINARY.contains(&word) {
                continue;
            }
            let mut letters = word.chars();
            let capital = letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>());
            words.extend(capital);
            words.insert(word.to_owned());
        }
    }
    words
});

/// All abbreviations with their kind. For a word in two tables, the later table applies.
static KINDS: LazyLock<HashMap<&str, Abbreviation>> = LazyLock::new(|| {
    let tables = [
        (AMBIGUOUS, Abbreviation::Ambiguous),
        (NUMBERED, Abbreviation::Numbered),
        (NEVER, Abbreviation::Never),
    ];
    tables.into_iter().flat_map(|(words, kind)| words.iter().map(move |&word| (word, kind))).collect()
});

/// Returns whether `word` starts a sentence even after an abbreviation that often precedes a name.
pub(crate) fn is_starter(word: &str) -> bool {
    STARTERS.contains(&word)
}

/// Returns whether a number with a full stop after `word` is a German ordinal: `am 3. Oktober`,
/// `der 1. Platz`.
pub(crate) fn precedes_ordinal(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "ab", "am", "beim", "bis", "das", "dem", "den", "der", "des", "die", "im", "vom", "zum", "zur", "Am",
        "Im", "Das", "Der", "Die", "Vom", "Zum", "Zur", "und", "ihren", "seinen", "ihrem", "seinem",
    ];
    WORDS.contains(&word)
}

/// Returns whether `word` is the German name of a month, after which a number with a full stop is a day: `Montag, 3. August`.
pub(crate) fn is_month(word: &str) -> bool {
    const MONTHS: [&str; 12] = [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ];
    MONTHS.contains(&word)
}

/// Returns whether `word` is a single letter, or parts of one or two letters joined by full stops: `J`,
/// `U.S`, `a.m`, `Ph.D`, `EE.UU`.
fn is_initials(word: &str) -> bool {
    let short = |part: &str, chars_max| {
        (1..=chars_max).contains(&part.chars().take(3).count()) && part.chars().all(char::is_alphabetic)
    };
    short(word, 1) || word.contains('.') && word.split('.').all(|part| short(part, 2))
}

/// Returns a word in capitals with only its first letter in capitals, or `None` for any other word.
fn capitalized(word: &str) -> Option<String> {
    let (first, rest) = word.split_at_checked(1)?;
    let all_capitals = word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase());
    all_capitals.then(|| first.to_owned() + &rest.to_ascii_lowercase())
}

#[rustfmt::skip]
const NEVER: &[&str] = &[
    // English
    "Dr", "Drs", "Mr", "Mrs", "Ms", "Mx", "Messrs", "Prof", "Profs", "Gen", "Lt", "Col", "Maj", "Capt", "Cpt", "Sgt", "TSgt", "SSgt", "Mstr",
    "Cpl", "Pvt", "Cmdr", "Cdr", "Adm", "Rev", "Hon", "Gov", "Sen", "Sens", "Rep", "Reps", "Pres", "Supt", "Insp",
    "Msgr", "Fr", "Br", "Atty", "vs", "cf", "viz", "approx", "eg", "ie", "e.g", "i.e", "E.g", "I.e", "resp", "incl",
    // German
    "Hr", "Frl", "Dipl", "Ing", "ca", "bzw", "vgl", "Vgl", "ggf", "inkl", "sog", "evtl", "z.B", "Z.B", "d.h", "u.a",
    "geb", "gest", "Mag",
    // Danish
    "Skt", "skt",
    // French
    "MM", "Mme", "Mmes", "Mlle", "Mlles", "Mgr", "env", "p.ex",
    // Spanish, Portuguese, Italian
    "Sra", "Sras", "Srta", "Sres", "Dra", "Dña", "Exmo", "Exma", "aprox", "p.ej", "Sig", "Dott", "Avv", "Dir",
];

#[rustfmt::skip]
const NUMBERED: &[&str] = &[
    // English
    "No", "Nos", "no", "nos", "nr", "Fig", "Figs", "fig", "figs", "Tab", "tab", "Eq", "Eqs", "eq", "eqs", "Sec", "sec",
    "Secs", "Ch", "ch", "Chap", "chap", "Vol", "vol", "Vols", "vols", "Art", "art", "Arts", "Ref", "ref", "Refs",
    "refs", "pp", "Pp", "max", "min", "Max", "Min", "ext", "Ext", "App", "app", "Ex", "ex", "ver", "Op", "op", "Ser", "ser", "Pt", "pt", "Rs", "est", "Mar",
    "Sat", "Sun", "Mon", "Wed", "Def", "Thm", "Prop", "Cat", "cat", "Reg", "Ver", "Ps", "Matt", "Cor", "KV",
    // German
    "gem", "lt", "N°", "n°", "Nº", "nº", "№", "§", "§§", "Nr", "Nrn", "Abb", "Bd", "Kap", "Abs", "Anm", "Aufl", "Ziff", "Okt", "Dez",
    // French, Spanish, Portuguese, Italian
    "cap", "Cap", "pag", "Pag", "pág", "págs", "núm", "Núm", "éd", "num",
];

#[rustfmt::skip]
const AMBIGUOUS: &[&str] = &[
    // English
    "Inc", "Ltd", "Corp", "Co", "Cos", "Bros", "Jr", "Sr", "Esq", "St", "Ste", "Mt", "Ft", "Ave", "Blvd", "Rd", "Hwy",
    "Dept", "Univ", "Assn", "Jan", "Feb", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov", "Dec", "Tues",
    "Thurs", "al", "ed", "eds", "trans", "Calif", "Fla", "Ariz", "Conn", "Tex", "Okla", "Tenn", "Colo", "Minn", "Neb",
    "Nev", "Kan", "Wis", "Wyo", "Va", "Ga", "Md", "Ky", "feat", "ft", "Hrs", "hrs", "Intl", "Natl", "Mfg", "PhD", "Det",
    // German
    "Mio", "Mrd", "Jh", "Jhd", "Jhs", "Chr", "Str", "Tel", "Hrsg", "hrsg",
    // French, Spanish, Portuguese, Italian
    "av", "Av", "Avda", "Ud", "Uds", "Vd", "Cía", "boul", "Sto", "Sta", "EE", "UU",
    // Russian
    "ул", "им", "гг", "др", "тыс", "млн", "млрд", "руб",
];

#[rustfmt::skip]
const STARTERS: &[&str] = &[
    // English
    "A", "According", "Additionally", "After", "All", "Also", "Although", "And", "Another", "As", "At", "Because", "Before", "Both", "But", "By",
    "Consequently", "Despite", "During", "Each",
    "Even", "Every", "Finally", "First", "For", "From", "He", "Her", "Here", "His", "How", "However", "I", "I'm", "I've", "If", "In", "It",
    "Its", "It's", "Later", "Many", "Meanwhile", "Moreover", "Most", "My", "Nevertheless", "On", "Once", "One", "Or", "Our",
    "Several", "She", "Since", "Some", "Such", "That", "The", "Their", "Then", "There", "Therefore", "These", "They",
    "This", "Those", "Though", "Thus", "Today", "Two", "Under", "Until", "We", "What", "When", "Where", "Which",
    "While", "Who", "Why", "With", "You", "Your",
    // German
    "Aber", "Auch", "Auf", "Bei", "Das", "Dem", "Den", "Der", "Des", "Die", "Dies", "Diese", "Dieser", "Dieses",
    "Ein", "Eine", "Er", "Es", "Im", "Ich", "Ihr", "Ihre", "Mit", "Nach", "Nur", "Sein", "Seine", "Seit", "Sie", "Und",
    "Vom", "Wenn", "Wir", "Zum", "Zur",
    // French
    "Après", "Ce", "Ces", "Cet", "Cette", "Dans", "Depuis", "Elle", "Elles", "En", "Il", "Ils", "Les", "Lors", "Mais",
    "Nous", "Pour", "Son", "Sur", "Un", "Une", "Vous",
    // Spanish, Italian, Portuguese
    "Además", "Aunque", "Con", "Cuando", "Desde", "Durante", "Ella", "Ellos", "Entre", "Esta", "Este", "Esto", "Pero",
    "Según", "Sin", "Su", "Sus", "Tras", "Una", "Gli", "Nel", "Nella", "Questa", "Questo", "Também", "Ele", "Ela",
    // Russian
    "В", "Во", "Его", "Её", "Если", "И", "Когда", "На", "Но", "Он", "Она", "Они", "Оно", "По", "После", "При", "С",
    "Также", "Эта", "Это", "Этот",
];
