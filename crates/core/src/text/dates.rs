//! Dates: `2028-06-30`, `30 June 2028`, `June 30th, 2028` and `30.06.2028` are one term each, so that equal dates are equal and a different
//! one is a different number. Also signs in words: `minus 20`.

use super::amounts;
use super::measure::{Amount, Measure, YEARS};
use super::term::{MONTHS, Run, Term};

/// The fewest letters of the short name of a month: `Jun`.
const MONTH_LETTERS_MIN: usize = 3;

/// The most letters of a word inside of a date, such as `of` and `de`.
const BETWEEN_LETTERS_MAX: usize = 2;

/// What may stand between the words of a date, besides white space.
const SEPARATORS: [&str; 4] = ["", ",", ".", "-"];

/// A day, a month of a year, or a day of any year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Date {
    year: Option<u16>,
    month: u8,
    day: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Day(u8),
    Month(u8),
    Year(u16),
}

impl Date {
    /// Returns the date as ISO 8601 writes it: `2028-06-30`, `2028-06` or, without the year, `06-30`.
    fn folded(self) -> String {
        let Self { year, month, day } = self;
        match (year, day) {
            (Some(year), Some(day)) => format!("{year}-{month:02}-{day:02}"),
            (Some(year), None) => format!("{year}-{month:02}"),
            (None, day) => format!("{month:02}-{:02}", day.unwrap_or_default()),
        }
    }

    fn amount(self) -> Amount {
        let year = self.year.map_or(0.0, |year| f64::from(year) * 10_000.0);
        let first = year + f64::from(self.month) * 100.0;
        let measure = if self.year.is_some() { Measure::Date } else { Measure::DayOfYear };
        match self.day {
            Some(day) => Amount::exact(measure, first + f64::from(day)),
            None => Amount { measure, low: first, high: first + 99.0 },
        }
    }
}

/// Returns the date or the negative number with which a list of terms begins.
pub(super) fn read(text: &str, terms: &[Term]) -> Option<Run> {
    signed(text, terms).or_else(|| {
        let (date, count) = in_digits(text, terms).or_else(|| in_words(text, terms))?;
        Some(Run { terms: count, folded: date.folded(), amount: Some(date.amount()) })
    })
}

/// Reads `minus 20`, unless something is subtracted: `30 minus 20`.
fn signed(text: &str, terms: &[Term]) -> Option<Run> {
    let [sign, number, ..] = terms else { return None };
    let is_number = number.folded.starts_with(|c: char| c.is_ascii_digit());
    let is_joined = is_number && sign.folded == "minus" && gap(text, sign, number).trim().is_empty();
    let before = text[..sign.bytes.start].trim_end();
    (is_joined && !before.ends_with(|c: char| c.is_ascii_digit())).then(|| Run {
        terms: 2,
        folded: format!("-{}", number.folded),
        amount: None,
    })
}

/// Reads `2028-06-30`, `2028/6/30`, `30.6.2028`, and `30/6/2028` where only one of two numbers can be the month.
fn in_digits(text: &str, terms: &[Term]) -> Option<(Date, usize)> {
    let first = terms.first()?;
    let word = first.bytes.slice(text);
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (fields, end, separator): ([&str; 3], usize, &str) = match word.split('.').collect::<Vec<_>>()[..] {
        [day, month, year] => ([day, month, year], 1, "."),
        _ => {
            let [_, second, third, ..] = terms else { return None };
            let separator = gap(text, first, second);
            let is_date = ["-", "/"].contains(&separator) && gap(text, second, third) == separator;
            if !is_date {
                return None;
            }
            ([word, second.bytes.slice(text), third.bytes.slice(text)], 3, separator)
        }
    };
    let goes_on = |c: char| matches!(c, '-' | '/' | '.' | ':');
    let after = &text[terms[end - 1].bytes.end..];
    let is_longer =
        after.strip_prefix(goes_on).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if text[..first.bytes.start].ends_with(goes_on) || is_longer {
        return None;
    }
    let number = |field: &str, digits: usize| {
        let is_number = field.len() <= digits && field.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| field.parse::<u16>().ok()).flatten()
    };
    let [a, b, c] = fields;
    let date = if a.len() == 4 && separator != "." {
        [number(a, 4)?, number(b, 2)?, number(c, 2)?]
    } else {
        let (day, month) = (number(a, 2)?, number(b, 2)?);
        match separator {
            "/" if day > 12 || day == month => [number(c, 4)?, month, day],
            "/" if month > 12 => [number(c, 4)?, day, month],
            "." => [number(c, 4)?, month, day],
            _ => return None,
        }
    };
    let [year, month, day] = date;
    let is_valid = YEARS.contains(&f64::from(year)) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let (month, day) = (u8::try_from(month).ok()?, u8::try_from(day).ok()?);
    is_valid.then_some((Date { year: Some(year), month, day: Some(day) }, end))
}

/// Reads `30 June 2028`, `June 30th, 2028`, `30th of June`, `June 2028` and the like.
fn in_words(text: &str, terms: &[Term]) -> Option<(Date, usize)> {
    let mut fields: Vec<(Field, usize)> = Vec::new();
    let mut at = 0;
    while let Some(term) = terms.get(at).filter(|_| fields.len() < 3) {
        let is_near =
            |at: usize| at == 0 || SEPARATORS.contains(&gap(text, &terms[at - 1], &terms[at]).trim());
        if !is_near(at) {
            break;
        }
        let (found, end) = match (field(text, term), terms.get(at + 1)) {
            (Some(found), _) => (found, at + 1),
            (None, Some(next)) if !fields.is_empty() && is_between(term) && is_near(at + 1) => {
                let Some(found) = field(text, next) else { break };
                (found, at + 2)
            }
            _ => break,
        };
        fields.push((found, end));
        at = end;
    }
    let kinds: Vec<Field> = fields.iter().map(|(field, _)| *field).collect();
    let (date, count) = match kinds[..] {
        [Field::Day(day), Field::Month(month), Field::Year(year)]
        | [Field::Month(month), Field::Day(day), Field::Year(year)]
        | [Field::Year(year), Field::Month(month), Field::Day(day)] => {
            (Date { year: Some(year), month, day: Some(day) }, 3)
        }
        [Field::Day(day), Field::Month(month), ..] => (Date { year: None, month, day: Some(day) }, 2),
        [Field::Month(month), Field::Day(day), ..] => (Date { year: None, month, day: Some(day) }, 2),
        [Field::Month(month), Field::Year(year), ..] => (Date { year: Some(year), month, day: None }, 2),
        _ => return None,
    };
    let end = fields[count - 1].1;
    // "In March 2 percent" has no second of March.
    let counts = matches!(kinds[count - 1], Field::Day(_)) && amounts::has_unit_after(text, terms, end - 1);
    (!counts).then_some((date, end))
}

fn is_between(term: &Term) -> bool {
    term.folded.chars().count() <= BETWEEN_LETTERS_MAX && term.folded.chars().all(char::is_alphabetic)
}

/// Returns what a word is in a date. A month is written with a capital, as `may` and `march` are words, too.
fn field(text: &str, term: &Term) -> Option<Field> {
    let written = term.bytes.slice(text);
    if term.amount.is_some() {
        return None;
    }
    if term.is_translated || written.starts_with(char::is_uppercase) {
        let is_name =
            |month: &&str| term.folded.len() >= MONTH_LETTERS_MIN && month.starts_with(&*term.folded);
        let is_short =
            |month: &str| term.folded.len() == month.len() || term.folded.len() <= MONTH_LETTERS_MIN + 1;
        if let Some(at) = MONTHS.iter().position(|month| is_name(month) && is_short(month)) {
            return u8::try_from(at + 1).ok().map(Field::Month);
        }
    }
    let ordinal = ["st", "nd", "rd", "th"].iter().find_map(|ending| term.folded.strip_suffix(ending));
    let value: u16 = ordinal.unwrap_or(&term.folded).parse().ok()?;
    if written.chars().count() == 4 && ordinal.is_none() && YEARS.contains(&f64::from(value)) {
        return Some(Field::Year(value));
    }
    let is_day = (1..=31).contains(&value) && (ordinal.is_some() || written.chars().count() <= 2);
    is_day.then(|| u8::try_from(value).ok().map(Field::Day)).flatten()
}

fn gap<'a>(text: &'a str, before: &Term, after: &Term) -> &'a str {
    &text[before.bytes.end..after.bytes.start]
}

#[cfg(test)]
mod tests {
    use super::super::terms_in;

    #[test]
    fn dates_are_one_term() {
        for (text, expect) in [
            ("on 2028-06-30, 2028/6/30", &["on", "2028-06-30", "2028-06-30"][..]),
            ("30 June 2028 and June 30th, 2028", &["2028-06-30", "and", "2028-06-30"]),
            ("the 30th of June 2028", &["the", "2028-06-30"]),
            ("30.06.2028 or 30/6/2028 or 6/30/2028", &["2028-06-30", "or", "2028-06-30", "or", "2028-06-30"]),
            ("Jun 30, Sept. 5, 2028", &["06-30", "2028-09-05"]),
            ("June 2028; 12 May", &["2028-06", "05-12"]),
            ("minus 20 degrees", &["-20", "degrees"]),
            // No dates.
            ("5/6/2028", &["5", "6", "2028"]),
            ("30 minus 20", &["30", "minus", "20"]),
            ("In March 2 percent, you may 5", &["in", "march", "2", "percent", "you", "may", "5"]),
            ("10.0.0.12 and 1.2.3", &["10.0.0.12", "and", "1.2.3"]),
            ("2028-13-30, 2019-2020", &["2028", "13", "30", "2019", "2020"]),
        ] {
            let found: Vec<String> = terms_in(text, &[], None).into_iter().map(|term| term.folded).collect();
            assert_eq!(found, expect, "{text}");
        }
        assert_eq!(terms_in("30 June", &[3], None).len(), 2, "a cut divides a date");
    }

    #[test]
    fn a_date_states_what_says_less() {
        let of = |text: &str| terms_in(text, &[], None)[0].amount.expect("an amount");
        for (claim, source, covers, excludes) in [
            ("2028-06-30", "30 June 2028", true, false),
            ("June 2028", "30 June 2028", true, false),
            ("2028", "30 June 2028", true, false),
            ("June", "30 June 2028", true, false),
            ("30 June", "30 June 2028", true, false),
            ("30 June 2028", "June 2028", false, false),
            ("30 June 2028", "2028", false, false),
            ("30 June 2028", "29 June 2028", false, true),
            ("2027", "30 June 2028", false, true),
            ("May", "30 June 2028", false, true),
            ("the 2020s", "30 June 2028", true, false),
            ("Monday", "Tuesday", false, true),
        ] {
            let (one, other) = (of(claim.trim_start_matches("the ")), of(source));
            assert_eq!((one.covers(&other), one.excludes(&other)), (covers, excludes), "{claim}, {source}");
        }
    }
}
