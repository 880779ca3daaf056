//! Amounts: what numbers count, in a form in which equal amounts are equal, such as `5 km` and `5,000 m`, and in
//! which a year lies in its decade and its century. Converts units only where the factor is exact. Knows English
//! and the international symbols.

use thresher_text::lexicon::{self, Class};

use super::measure::{Amount, Measure, VERSION_BASE, YEARS};
use super::term::{MONTHS, Run, Term, WEEKDAYS};
use crate::domain::ByteRange;

/// Units by their names: the base unit, and how many of it one unit is. Names that are also other words, such as
/// `in`, and units of several sizes, such as `ton`, are missing.
const UNITS: [(&[&str], &str, f64); 33] = [
    (&["%", "percent"], "%", 1.0),
    (&["$", "dollar", "dollars", "usd"], "$", 1.0),
    (&["€", "euro", "euros", "eur"], "€", 1.0),
    (&["£", "gbp"], "£", 1.0),
    (&["¥", "yen", "jpy"], "¥", 1.0),
    (&["mm", "millimetre", "millimetres", "millimeter", "millimeters"], "m", 0.001),
    (&["cm", "centimetre", "centimetres", "centimeter", "centimeters"], "m", 0.01),
    (&["m", "metre", "metres", "meter", "meters"], "m", 1.0),
    (&["km", "kilometre", "kilometres", "kilometer", "kilometers"], "m", 1000.0),
    (&["inch", "inches"], "m", 0.0254),
    (&["foot", "feet", "ft"], "m", 0.3048),
    (&["yard", "yards"], "m", 0.9144),
    (&["mile", "miles"], "m", 1609.344),
    (&["sqm"], "m²", 1.0),
    (&["ha", "hectare", "hectares"], "m²", 10_000.0),
    (&["acre", "acres"], "m²", 4_046.856_422_4),
    (&["ml", "millilitre", "millilitres", "milliliter", "milliliters"], "l", 0.001),
    (&["l", "litre", "litres", "liter", "liters"], "l", 1.0),
    (&["mg", "milligram", "milligrams"], "g", 0.001),
    (&["g", "gram", "grams"], "g", 1.0),
    (&["kg", "kilogram", "kilograms", "kilo", "kilos"], "g", 1000.0),
    (&["tonne", "tonnes"], "g", 1_000_000.0),
    (&["lb", "lbs"], "g", 453.592_37),
    (&["ms", "millisecond", "milliseconds"], "s", 0.001),
    (&["seconds", "sec"], "s", 1.0),
    (&["minute", "minutes", "min", "mins"], "s", 60.0),
    (&["hour", "hours", "hr", "hrs"], "s", 3600.0),
    (&["day", "days"], "s", 86_400.0),
    (&["week", "weeks"], "s", 604_800.0),
    (&["month", "months"], "month", 1.0),
    (&["year", "years", "yr", "yrs"], "month", 12.0),
    (&["decade", "decades"], "month", 120.0),
    (&["century", "centuries"], "month", 1200.0),
];

/// Words that are amounts by themselves, in percent.
const SHARES: [(&str, f64); 2] = [("half", 50.0), ("quarter", 25.0)];

const ORDINALS: [(&str, f64); 2] = [("first", 1.0), ("second", 2.0)];

/// What may be between a number and its unit.
const SPACES: [&str; 4] = ["", " ", "-", "\u{a0}"];

/// What stands between the ends of a range.
const DASHES: [&str; 3] = ["-", "–", "—"];

/// Sets the amounts of `terms`, the words of `text` in order. Times of day have theirs.
pub(super) fn set(text: &str, terms: &mut [Term]) {
    for at in 0..terms.len() {
        if terms[at].amount.is_some() {
            continue;
        }
        if let Some((folded, amount)) = version(text, terms, at) {
            (terms[at].folded, terms[at].amount) = (folded, Some(amount));
            continue;
        }
        terms[at].amount = amount(text, terms, at);
    }
    let has_unit = |term: &Term| term.amount.is_some_and(|amount| matches!(amount.measure, Measure::Unit(_)));
    for at in 1..terms.len() {
        terms[at].is_unit =
            has_unit(&terms[at - 1]) && is_after(text, terms, at) && unit(&terms[at].folded).is_some();
        if ["a", "an"].contains(&&*terms[at - 1].folded) {
            let of = unit(&terms[at].folded);
            terms[at].of_article = of.map(|(base, factor)| Amount::exact(Measure::Unit(base), factor));
        }
    }
    for at in 0..terms.len() {
        set_range(text, terms, at);
    }
}

/// Sets the range that the number `at` begins, as in `two to three weeks`, `8:00–18:00` and `between October and April`.
fn set_range(text: &str, terms: &mut [Term], at: usize) {
    let Some(first) = terms[at].amount else { return };
    // The unit of the first number may stand behind it.
    let after = at + 1 + usize::from(terms.get(at + 1).is_some_and(|term| term.is_unit));
    let Some(next) = terms.get(after) else { return };
    let is_joined = DASHES.contains(&text[terms[after - 1].bytes.end..next.bytes.start].trim());
    let is_between = || at > 0 && lexicon::has(Class::Between, &terms[at - 1].folded);
    let is_to =
        || lexicon::has(Class::To, &next.folded) || lexicon::has(Class::And, &next.folded) && is_between();
    let last = if next.amount.is_some() && is_joined {
        after
    } else if is_to() {
        after + 1
    } else {
        return;
    };
    let Some(end) = terms.get(last) else { return };
    let (Some(first), Some(second)) = (in_unit_of(end, first), end.amount) else { return };
    let Some(second) = in_unit_of(&terms[at], second) else { return };
    // `8-18, Mon-Fri`.
    let neighbours = [at.checked_sub(1), Some(last + 1)].into_iter().flatten();
    let mut amounts = neighbours.filter_map(|at| terms.get(at)?.amount);
    let is_hours = is_joined && amounts.any(|amount| amount.measure == Measure::Weekday);
    // "2-14" without anything that is counted may also be a number of a room, a score or a telephone. In "3-5 working days" it is days.
    let is_counted = || terms.get(last + 2).is_some_and(|counted| unit(&counted.folded).is_some());
    if is_joined && !is_hours && first.measure == Measure::Count && !is_between() && !is_counted() {
        return;
    }
    let [first, second] = [first, second].map(|end| end.as_hour().filter(|_| is_hours).unwrap_or(end));
    if let Some(range) = first.through(&second) {
        (terms[at].amount, terms[at].range) = (Some(first), Some(range));
        (terms[last].amount, terms[last].range) = (Some(second), Some(range));
    }
}

/// Returns a number in the measure of the other end of its range if only that has one, as in `two to three weeks` and `8 bis 18 Uhr`.
fn in_unit_of(other: &Term, number: Amount) -> Option<Amount> {
    let amount = other.amount?;
    if number.measure != Measure::Count {
        return Some(number);
    }
    let value = number.low;
    match amount.measure {
        Measure::Unit(_) => {
            let of_other: f64 = other.folded.parse().ok().filter(|value| *value != 0.0)?;
            Some(Amount::exact(amount.measure, rounded(value * amount.low / of_other)?))
        }
        Measure::Clock => number.as_hour().or(Some(number)),
        // A day of the month of the other one.
        Measure::Date | Measure::DayOfYear if (1.0..=31.0).contains(&value) => {
            Some(Amount::exact(amount.measure, (amount.low / 100.0).floor() * 100.0 + value))
        }
        _ => Some(number),
    }
}

/// Returns a number with ten digits, which are more than any text gives, and hide the rounding of a factor.
fn rounded(value: f64) -> Option<f64> {
    format!("{value:.9e}").parse().ok()
}

fn amount(text: &str, terms: &[Term], at: usize) -> Option<Amount> {
    let term = &terms[at];
    if let Some((_, share)) = SHARES.iter().find(|(word, _)| *word == term.folded) {
        return Some(Amount::exact(Measure::Unit("%"), *share));
    }
    // Too often no number to be read as one everywhere, but in comparison with another ordinal.
    if let Some((_, place)) = ORDINALS.iter().find(|(word, _)| *word == term.folded) {
        return Some(Amount::exact(Measure::Ordinal, *place));
    }
    if let Some(day) = place_among(&WEEKDAYS, text, terms, at) {
        return Some(Amount::exact(Measure::Weekday, day as f64));
    }
    if let Some(month) = place_among(&MONTHS, text, terms, at) {
        let first = 100.0 * (month + 1) as f64;
        return Some(Amount { measure: Measure::DayOfYear, low: first, high: first + 99.0 });
    }
    if term.folded == "one" {
        let unit =
            terms.get(at + 1).filter(|_| is_after(text, terms, at + 1)).and_then(|next| unit(&next.folded));
        return unit.map(|(base, factor)| Amount::exact(Measure::Unit(base), factor));
    }
    if !term.is_number() {
        return None;
    }
    let Ok(value) = term.folded.parse::<f64>() else { return in_order(terms, at) };
    if is_in_ratio(text, term) {
        return None;
    }
    let named = symbol_after(text, term)
        .or_else(|| symbol_before(text, term))
        .or_else(|| area_after(text, terms, at))
        .or_else(|| unit(&terms.get(at + 1).filter(|_| is_after(text, terms, at + 1))?.folded));
    Some(match named {
        Some((base, factor)) => Amount::exact(Measure::Unit(base), rounded(value * factor)?),
        None if term.bytes.len() == 4 && term.bytes.slice(text) == term.folded && YEARS.contains(&value) => {
            Amount::exact(Measure::Year, value)
        }
        None => Amount::exact(Measure::Count, value),
    })
}

/// How many words a short name may be from what shows that it is one.
const SHORT_NAME_REACH: usize = 2;

/// Returns the place among the names of weekdays or months of the word at an index. Short names are also other words: they count near another
/// name or a time of day, as in `Mon-Fri` and `Sat 10:00`.
fn place_among(names: &[&str], text: &str, terms: &[Term], at: usize) -> Option<usize> {
    let place = |term: &Term| {
        let is_name = term.is_translated || term.bytes.slice(text).starts_with(char::is_uppercase);
        let is_short =
            || [Class::Weekday, Class::Month].iter().any(|&class| lexicon::has(class, &term.folded));
        let is_it = |name: &&str| **name == term.folded || name.starts_with(&*term.folded) && is_short();
        if is_name { names.iter().position(is_it) } else { None }
    };
    let found = place(&terms[at])?;
    let is_time = |term: &Term| term.amount.is_some_and(|amount| amount.measure == Measure::Clock);
    let near = at.saturating_sub(SHORT_NAME_REACH)..terms.len().min(at + SHORT_NAME_REACH + 1);
    let is_shown = || {
        near.clone().any(|other| other != at && (is_time(&terms[other]) || place(&terms[other]).is_some()))
    };
    (names[found] == terms[at].folded || is_shown()).then_some(found)
}

/// Returns `half a` before a unit as a number, as in `half an hour`.
pub(super) fn half(terms: &[Term]) -> Option<Run> {
    let [half, article, of, ..] = terms else { return None };
    let is_half =
        half.folded == "half" && ["a", "an"].contains(&&*article.folded) && unit(&of.folded).is_some();
    is_half.then(|| Run { terms: 2, folded: "0.5".to_owned(), amount: None })
}

/// Returns the version that a word is, as it is written and as an amount: `v2.1`, `1.2.3`, or two numbers after a name or a word such as
/// `version`.
fn version(text: &str, terms: &[Term], at: usize) -> Option<(String, Amount)> {
    let word = terms[at].bytes.slice(text);
    let bare = word.strip_prefix(['v', 'V']).unwrap_or(word);
    if !bare.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let numbers: Vec<&str> = bare.split('.').collect();
    let is_named = || {
        let before = &terms[at.checked_sub(1)?];
        let name = before.bytes.slice(text);
        let is_name = name.starts_with(char::is_uppercase) && at > 1 && !before.is_calendar();
        let is_near = &text[before.bytes.end..terms[at].bytes.start] == " ";
        (is_near && (is_name || lexicon::has(Class::Version, &before.folded))).then_some(())
    };
    let is_version = match numbers.len() {
        2 => bare.len() < word.len() || is_named().is_some() && !has_unit_after(text, terms, at),
        3 => true,
        _ => false,
    };
    let mut value = 0.0;
    for at in 0..3 {
        let number: f64 =
            numbers.get(at).map_or(Some(0.0), |number| number.parse::<u32>().ok().map(f64::from))?;
        value = value * VERSION_BASE + number;
        if number >= VERSION_BASE {
            return None;
        }
    }
    is_version.then(|| (bare.to_owned(), Amount::exact(Measure::Version, value)))
}

/// Returns whether a unit or a percent sign follows a word.
pub(super) fn has_unit_after(text: &str, terms: &[Term], at: usize) -> bool {
    let next = terms.get(at + 1).filter(|_| is_after(text, terms, at + 1));
    symbol_after(text, &terms[at]).is_some() || next.is_some_and(|next| unit(&next.folded).is_some())
}

/// Returns the amount of `20th`, `19th century` or `1990s`.
fn in_order(terms: &[Term], at: usize) -> Option<Amount> {
    let folded = &terms[at].folded;
    if let Some(decade) = folded.strip_suffix('s').and_then(|digits| digits.parse::<f64>().ok()) {
        let years = if decade % 100.0 == 0.0 { 99.0 } else { 9.0 };
        let is_decade = YEARS.contains(&decade) && decade % 10.0 == 0.0;
        return is_decade.then_some(Amount { measure: Measure::Year, low: decade, high: decade + years });
    }
    let digits = ["st", "nd", "rd", "th"].iter().find_map(|ending| folded.strip_suffix(ending))?;
    let value: f64 = digits.parse().ok()?;
    let is_century = terms.get(at + 1).is_some_and(|next| ["century", "centuries"].contains(&&*next.folded));
    Some(if is_century {
        Amount { measure: Measure::Year, low: 100.0 * (value - 1.0), high: 100.0 * value }
    } else {
        Amount::exact(Measure::Ordinal, value)
    })
}

/// Returns whether a number is one side of a ratio or a score, such as `3:1`, or part of a date whose month cannot be told, such as
/// `5/6/1931`. These are compared as words.
fn is_in_ratio(text: &str, term: &Term) -> bool {
    let ByteRange { start, end } = term.bytes;
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let signs = [':', '/'];
    let before = text[..start].strip_suffix(signs).is_some_and(|before| is_digit(before.chars().next_back()));
    let after = text[end..].strip_prefix(signs).is_some_and(|after| is_digit(after.chars().next()));
    before || after
}

/// Returns the unit of an area, such as `km²` or `square kilometres`: a unit of length, and what says that it is squared.
fn area_after(text: &str, terms: &[Term], at: usize) -> Option<(&'static str, f64)> {
    let next = terms.get(at + 1).filter(|_| is_after(text, terms, at + 1))?;
    if ["square", "sq"].contains(&&*next.folded) {
        let of = terms.get(at + 2).filter(|_| is_after(text, terms, at + 2))?;
        return unit(&of.folded).filter(|(base, _)| *base == "m").map(|(_, factor)| ("m²", factor * factor));
    }
    let (_, factor) = unit(&next.folded).filter(|(base, _)| *base == "m")?;
    match text[next.bytes.end..].chars().next()? {
        '²' => Some(("m²", factor * factor)),
        '³' => Some(("m³", factor * factor * factor)),
        _ => None,
    }
}

/// Returns whether a term follows the one before it as a unit follows its number.
fn is_after(text: &str, terms: &[Term], at: usize) -> bool {
    SPACES.contains(&&text[terms[at - 1].bytes.end..terms[at].bytes.start])
}

fn symbol_after(text: &str, term: &Term) -> Option<(&'static str, f64)> {
    let rest = text[term.bytes.end..].trim_start_matches([' ', '\u{a0}', '\u{202f}']);
    if rest.get(..8).is_some_and(|rest| rest.eq_ignore_ascii_case("per cent")) {
        return unit("%");
    }
    let mut rest = rest.chars();
    let first = rest.next().filter(|c| !c.is_alphanumeric())?;
    // "In 2019 $12 million": the sign belongs to the number after it.
    if first != '%' && rest.next().is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    unit(first.encode_utf8(&mut [0; 4]))
}

fn symbol_before(text: &str, term: &Term) -> Option<(&'static str, f64)> {
    let before = text[..term.bytes.start].trim_end_matches(' ');
    let last = before.chars().next_back().filter(|c| !c.is_alphanumeric() && *c != '%')?;
    unit(last.encode_utf8(&mut [0; 4]))
}

fn unit(name: &str) -> Option<(&'static str, f64)> {
    UNITS.iter().find(|(names, ..)| names.contains(&name)).map(|(_, base, factor)| (*base, *factor))
}

#[cfg(test)]
mod tests {
    use super::{Amount, Measure, Term};
    use crate::text::{terms, terms_in};

    fn amounts(text: &str) -> Vec<Amount> {
        terms(text, &[]).into_iter().filter_map(|term| term.amount).collect()
    }

    #[test]
    fn units_are_converted_to_a_base_unit() {
        let check = |text: &str, base: &'static str, expect: &[f64]| {
            let found = amounts(text);
            assert!(found.iter().all(|amount| amount.measure == Measure::Unit(base)), "{text}: {found:?}");
            let values: Vec<f64> = found.iter().map(|amount| amount.low).collect();
            assert_eq!(values, expect, "{text}");
        };
        check("5 km, 5,000 m, a 5-kilometre walk", "m", &[5000.0, 5000.0, 5000.0]);
        check("3 miles or 5km", "m", &[4828.032, 5000.0]);
        check("50%, 50 percent, 50 per cent, half", "%", &[50.0, 50.0, 50.0, 50.0]);
        check("$12 and 12 dollars, $4.2 million", "$", &[12.0, 12.0, 4_200_000.0]);
        check("12 euros and € 12", "€", &[12.0, 12.0]);
        check("ninety minutes, 1.5 hours", "s", &[5400.0, 5400.0]);
        check("two years, 24 months, one year", "month", &[24.0, 24.0, 12.0]);
        check("one hour, 60 mins, half an hour, one-hour", "s", &[3600.0, 3600.0, 1800.0, 3600.0]);
        check("0.1 kg, 100 g", "g", &[100.0, 100.0]);
        check("9 km², 9,000,000 m², 9 square kilometres, 900 hectares", "m²", &[9e6, 9e6, 9e6, 9e6]);
        check("2 m³", "m³", &[2.0]);
    }

    #[test]
    fn numbers_without_a_unit_are_years_places_or_counts() {
        let check = |text: &str, measure: Measure, low: f64, high: f64| {
            assert_eq!(amounts(text), [Amount { measure, low, high }], "{text}");
        };
        check("in 1874", Measure::Year, 1874.0, 1874.0);
        check("the 1990s", Measure::Year, 1990.0, 1999.0);
        check("the 1800s", Measure::Year, 1800.0, 1899.0);
        check("the nineteenth century", Measure::Year, 1800.0, 1900.0);
        check("the 20th day", Measure::Ordinal, 20.0, 20.0);
        check("1,874 men", Measure::Count, 1874.0, 1874.0);
        check("37 rooms", Measure::Count, 37.0, 37.0);
        check("In 2019 the fund", Measure::Year, 2019.0, 2019.0);
        let measures: Vec<Measure> =
            amounts("In 2019 $12 million").iter().map(|amount| amount.measure).collect();
        assert_eq!(measures, [Measure::Year, Measure::Unit("$")]);
        assert_eq!(amounts("B12 and no number, %; 3:1, 12/5/1931; one of them, the Sun"), []);
        check("in May", Measure::DayOfYear, 500.0, 599.0);
    }

    #[test]
    fn amounts_cover_what_they_contain_and_exclude_others() {
        let of = |text: &str| amounts(text)[0];
        let check = |claim: &str, source: &str, covers: bool, excludes: bool| {
            let (one, other) = (of(claim), of(source));
            assert_eq!((one.covers(&other), one.excludes(&other)), (covers, excludes), "{claim}, {source}");
        };
        check("the 19th century", "1874", true, false);
        check("1874", "the 19th century", false, false);
        check("the 1990s", "1994", true, false);
        check("the 1990s", "2004", false, true);
        check("5 km", "5 miles", false, true);
        check("5 km", "5 kg", false, false);
        check("$12", "12 euros", false, true);
        check("12 men", "50,000 men", false, false);
        check("12 men", "37 rooms", false, true);
        check("1,000 men", "-1,000 men", false, true);
        check("version 2.1", "version 2.10", false, true);
        check("v2.1", "version 2.1", true, false);
        check("1.2.3", "1.2.4", false, true);
        check("3.50 m", "3.5 m", true, false);
        check("the first day", "the 1st day", true, false);
    }

    #[test]
    fn ranges_hold_what_lies_between_their_ends() {
        for (source, stated, is_within) in [
            ("from 8:00 to 18:00", "10:00", true),
            ("from 8:00 to 18:00", "18:00", true),
            ("8:00–18:00", "19:00", false),
            ("9:00 to 5:00", "4 pm", true),
            ("22:00 until 6:00", "23:30", true),
            ("between October and April", "January", true),
            ("between October and April", "June", false),
            ("Monday to Friday", "Wednesday", true),
            ("Monday to Friday", "Sunday", false),
            ("two to three weeks", "17 days", true),
            ("two to three weeks", "four weeks", false),
            ("1 May to 30 June 2028", "2028-06-12", true),
            ("5 km - 10 km", "7,000 m", true),
            ("$5 to 10", "$7", true),
            ("1990-1995", "1993", true),
            // No ranges.
            ("10 to 5", "7", false),
            ("5 km to 7 kg", "6 km", false),
            ("October and April", "January", false),
            ("von 8 bis 18 Uhr", "10 Uhr", true),
            ("from 8 to 6 pm", "10 am", true),
            ("24 to 31 December", "28 December", true),
            ("from 2 to 5", "4", true),
            ("2-14", "8", false),
            ("Mon-Fri, 8-18", "19:00", false),
            ("Mon-Fri 8-18, Sat 9-12", "10:00", true),
            ("Mon to Fri", "Wednesday", true),
            ("Mon–Fri", "Sunday", false),
            ("Oct-Apr", "January", true),
            ("takes 3-5 working days", "4", true),
            ("3-5 working days", "7", false),
        ] {
            let of = |text: &str| terms_in(text, &[], None);
            let stated = of(stated).remove(0);
            let ends = of(source);
            assert_eq!(ends.iter().any(|end| end.range_has(&stated)), is_within, "{source}: {stated:?}");
        }
    }

    #[test]
    fn units_are_known_as_such() {
        let found = terms("5 km away, km", &[]);
        let units: Vec<bool> = found.iter().map(|term| term.is_unit).collect();
        assert_eq!(units, [false, true, false, false]);
        let keys = |text: &str| terms(text, &[]).iter().filter_map(Term::number_key).collect::<Vec<_>>();
        assert_eq!(keys("an hour"), keys("60 minutes"));
        assert_eq!(amounts("an hour"), [], "it may be a rate");
    }
}
