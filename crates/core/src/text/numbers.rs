//! Reads numbers by their value, so that `1,200`, `1200.0`, `1.2 thousand` and `twelve hundred` are the same
//! number. Knows English words only.

/// Numbers in words. `one` is missing because it is often not a number.
const WORDS: [(&str, &str); 20] = [
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("thirteen", "13"),
    ("fourteen", "14"),
    ("fifteen", "15"),
    ("sixteen", "16"),
    ("seventeen", "17"),
    ("eighteen", "18"),
    ("nineteen", "19"),
    ("twenty", "20"),
    ("thirty", "30"),
];

/// Words after a number that multiply it, with the number of zeros that they add.
const SCALES: [(&str, usize); 5] =
    [("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)];

/// Suffixes that multiply the number they touch, with the number of zeros that they add. Letters that are
/// also units (`m`, `b`) are suffixes only as capitals.
const SUFFIXES: [(&str, usize); 6] = [("k", 3), ("K", 3), ("M", 6), ("mn", 6), ("B", 9), ("bn", 9)];

/// Endings of ordinals and decades, which are not units.
const ENDINGS: [&str; 5] = ["st", "nd", "rd", "th", "s"];

/// Returns the value of a word that is a number: the sign, the digits without separators, and the decimals
/// without trailing zeros. Returns `None` for any other word.
pub(super) fn value(word: &str) -> Option<String> {
    if let Some((_, digits)) = WORDS.iter().find(|(name, _)| *name == word) {
        return Some((*digits).to_owned());
    }
    let (sign, number) = word.strip_prefix('-').map_or(("", word), |number| ("-", number));
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().filter(|first| is_digits(first))?;
    let is_grouped = groups.clone().next().is_none() || first.len() <= 3;
    if !(is_digits(decimals) && is_grouped && groups.all(|group| group.len() == 3 && is_digits(group))) {
        return None;
    }
    let (whole, decimals) = (whole.replace(',', ""), decimals.trim_end_matches('0'));
    Some(if decimals.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{decimals}") })
}

/// Returns how many zeros a word after a number adds to it. `touches` says whether the word touches the
/// number; otherwise a space or a hyphen is between them.
pub(super) fn zeros(word: &str, touches: bool) -> Option<usize> {
    let table: &[(&str, usize)] = if touches { &SUFFIXES } else { &SCALES };
    table.iter().find(|(name, _)| *name == word).map(|(_, zeros)| *zeros)
}

/// Returns a value multiplied by 10 to the power `zeros`.
pub(super) fn times_ten_to(value: &str, zeros: usize) -> String {
    let (whole, decimals) = value.split_once('.').unwrap_or((value, ""));
    let (moved, remaining) = decimals.split_at(zeros.min(decimals.len()));
    let whole = format!("{whole}{moved}{}", "0".repeat(zeros - moved.len()));
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        significant => significant,
    };
    if remaining.is_empty() { whole.to_owned() } else { format!("{whole}.{remaining}") }
}

/// Returns the byte offset at which the unit begins in a word such as `200mg`. Returns `None` for other
/// words, ordinals and decades.
pub(super) fn unit_at(word: &str) -> Option<usize> {
    let at = word.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',')))?;
    let unit = &word[at..];
    let is_unit = at > 0 && unit.chars().all(char::is_alphabetic) && !ENDINGS.contains(&unit);
    is_unit.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_their_value() {
        for (word, expect) in [
            ("1,200", Some("1200")),
            ("1,234,567.50", Some("1234567.5")),
            ("1999.0", Some("1999")),
            ("-5", Some("-5")),
            ("seven", Some("7")),
            ("007", Some("007")),
            ("1,2", None),
            ("1234,567", None),
            ("1.2.3", None),
            ("b12", None),
            ("-", None),
            ("", None),
        ] {
            assert_eq!(value(word).as_deref(), expect, "{word}");
        }
    }

    #[test]
    fn multiplying_moves_the_decimal_point() {
        for (value, zeros, expect) in [
            ("4.2", 6, "4200000"),
            ("12", 2, "1200"),
            ("1.2345", 3, "1234.5"),
            ("0.5", 6, "500000"),
            ("0", 3, "0"),
        ] {
            assert_eq!(times_ten_to(value, zeros), expect, "{value} {zeros}");
        }
    }

    #[test]
    fn units_are_separated_from_numbers() {
        for (word, expect) in [
            ("200mg", Some(3)),
            ("4.2B", Some(3)),
            ("20th", None),
            ("90s", None),
            ("b12", None),
            ("12", None),
            ("3d4", None),
        ] {
            assert_eq!(unit_at(word), expect, "{word}");
        }
    }
}
