//! Times of day: `9:00`, `9 am`, `18.30 Uhr` and `noon` are one term each, so that equal times are equal and a
//! different one is a different number.

use thresher_text::lexicon::{self, Class};

use super::measure::{Amount, Measure};
use super::term::{Run, Term};

/// Words that are times of day by themselves.
const NAMED: [(&str, u16); 3] = [("noon", 12 * 60), ("midday", 12 * 60), ("midnight", 0)];

/// What may be between a time and `am` or `Uhr`.
const SPACES: [&str; 4] = ["", " ", "\u{a0}", "\u{202f}"];

/// A day and half a day, in minutes.
const DAY: u16 = 24 * 60;
const HALF_DAY: u16 = DAY / 2;

/// A time of day in some terms of a text.
struct Time {
    terms: usize,
    minutes: u16,
    /// Seconds after the minute, as they are written.
    seconds: Option<String>,
    /// Whether it can be in the morning or in the evening.
    is_ambiguous: bool,
}

impl Time {
    fn run(self) -> Run {
        let (hours, minutes) = (self.minutes / 60, self.minutes % 60);
        let seconds = self.seconds.map_or_else(String::new, |seconds| format!(":{seconds}"));
        let other = if self.is_ambiguous { (self.minutes + HALF_DAY) % DAY } else { self.minutes };
        let amount = Amount { measure: Measure::Clock, low: f64::from(self.minutes), high: f64::from(other) };
        Run { terms: self.terms, folded: format!("{hours}:{minutes:02}{seconds}"), amount: Some(amount) }
    }
}

/// Returns the time of day with which a list of terms begins.
pub(super) fn read(text: &str, terms: &[Term]) -> Option<Run> {
    time(text, terms).map(Time::run)
}

/// Returns the minutes of a time such as `7 h 30` or `7点30分`, and how many terms it has. `7 h`, `7 h 30 min` and `3点` may be durations or
/// points.
fn after_hour_sign(text: &str, terms: &[Term]) -> Option<(u16, usize)> {
    let [hour, sign, rest @ ..] = terms else { return None };
    let gap = |before: &Term, after: &Term| &text[before.bytes.end..after.bytes.start];
    let is_han = matches!(&*sign.folded, "点" | "點" | "時" | "时");
    if !(is_han || sign.folded == "h") || !SPACES.contains(&gap(hour, sign)) {
        return None;
    }
    let found = rest.first().filter(|minutes| SPACES.contains(&gap(sign, minutes)))?;
    let minutes = digits(found.bytes.slice(text), 2..=2)?;
    let next = rest.get(1).filter(|next| SPACES.contains(&gap(found, next))).map_or("", |next| &next.folded);
    match (is_han, next) {
        (true, "分") => Some((minutes, 4)),
        (false, next) if !lexicon::has(Class::Minutes, next) => Some((minutes, 3)),
        _ => None,
    }
}

fn time(text: &str, terms: &[Term]) -> Option<Time> {
    let first = terms.first()?;
    if let Some((_, minutes)) = NAMED.iter().find(|(name, _)| *name == first.folded) {
        return Some(Time { terms: 1, minutes: *minutes, seconds: None, is_ambiguous: false });
    }
    let written = first.bytes.slice(text);
    if !written.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    // The end of a ratio or of a longer number is no time.
    if text[..first.bytes.start].ends_with([':', '.', ',', '/']) {
        return None;
    }
    let (hours, minutes, mut count) = match written.split_once(['.', 'h']) {
        Some((hours, minutes)) => (digits(hours, 1..=2)?, Some(digits(minutes, 2..=2)?), 1),
        None => (digits(written, 1..=2)?, None, 1),
    };
    let after_colon = |at: usize| {
        let (before, term) = (terms.get(at - 1)?, terms.get(at)?);
        (&text[before.bytes.end..term.bytes.start] == ":").then(|| term.bytes.slice(text))
    };
    let (mut is_time, mut seconds) = (written.contains('h') && minutes.is_some(), None);
    let minutes = match minutes {
        Some(minutes) => minutes,
        None => match after_colon(1) {
            Some(minutes) => {
                let minutes = digits(minutes, 2..=2)?;
                (is_time, count) = (true, 2);
                // "10:15:30.250"
                seconds = after_colon(2)
                    .filter(|seconds| digits(seconds.get(..2).unwrap_or_default(), 2..=2).is_some());
                count += usize::from(seconds.is_some());
                minutes
            }
            None => match after_hour_sign(text, terms) {
                Some((minutes, terms)) => {
                    (is_time, count) = (true, terms);
                    minutes
                }
                None => 0,
            },
        },
    };
    let next =
        terms.get(count).filter(|next| SPACES.contains(&&text[terms[count - 1].bytes.end..next.bytes.start]));
    let half = next.map_or("", |next| &*next.folded);
    // "Gleis 7 am Montag" is no time: in German, "am" is a preposition.
    let is_spaced_am = half == "am"
        && !is_time
        && next.is_some_and(|next| {
            next.bytes.start > terms[count - 1].bytes.end
                && text[next.bytes.end..].trim_start().starts_with(char::is_alphabetic)
        });
    let before =
        || text[..first.bytes.start].split_whitespace().next_back().unwrap_or_default().to_lowercase();
    let half = if is_spaced_am && !lexicon::has(Class::BeforeTime, &before()) { "" } else { half };
    let is_half = matches!(half, "am" | "pm" | "a.m" | "p.m");
    if is_half || matches!(half, "uhr" | "o'clock") {
        (is_time, count) = (true, count + 1);
    }
    let is_valid = minutes < 60 && if is_half { (1..=12).contains(&hours) } else { hours <= 24 };
    if !(is_time && is_valid) {
        return None;
    }
    let hours = match half {
        "am" | "a.m" => hours % 12,
        "pm" | "p.m" => hours % 12 + 12,
        _ => hours % 24,
    };
    Some(Time {
        terms: count,
        minutes: hours * 60 + minutes,
        seconds: seconds.map(str::to_owned),
        is_ambiguous: !is_half && (1..=12).contains(&hours) && !written.starts_with('0'),
    })
}

/// Returns the value of a text that consists of so many digits.
fn digits(text: &str, count: std::ops::RangeInclusive<usize>) -> Option<u16> {
    (count.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::super::terms;

    #[test]
    fn times_of_day_are_one_term() {
        for (text, expect) in [
            ("from 9:00 to 17:30", &["from", "9:00", "to", "17:30"][..]),
            ("at 9 am, 9am, 9 a.m. and 5:15 p.m.", &["at", "9:00", "9:00", "9:00", "and", "17:15"]),
            ("um 18.30 Uhr, um 9 Uhr", &["um", "18:30", "um", "9:00"]),
            ("12 am, 12 pm, noon, midnight", &["0:00", "12:00", "12:00", "0:00"]),
            ("à 20h30, à 7 h 30", &["à", "20:30", "à", "7:30"]),
            ("早上7点30分出发，3点", &["早", "上", "7:30", "出", "发", "3", "点"]),
            ("il dure 24 h 5 fois", &["il", "dure", "24", "h", "5", "fois"]),
            ("2 h 30 min, 1h 45m", &["2", "h", "30", "min", "1", "h", "45", "m"]),
            ("9:00-17:00, 9am–5pm", &["9:00", "17:00", "9:00", "17:00"]),
            ("2026-03-01 10:15:30.250 done", &["2026", "03", "01", "10:15:30.250", "done"]),
            ("09:05:07", &["9:05:07"]),
            ("5 o’clock", &["5:00"]),
            // No times.
            ("a ratio of 3:1, 16:9", &["a", "ratio", "of", "3", "1", "16", "9"]),
            ("25:00, 9:75, 1:2:03", &["25", "00", "9", "75", "1", "2", "03"]),
            ("19.30 euros, 8 amps, 24h", &["19.3", "euros", "8", "amps", "24", "h"]),
            ("13 pm", &["13", "pm"]),
            ("Gleis 7 am Montag", &["gleis", "7", "am", "montag"]),
        ] {
            let found: Vec<String> = terms(text, &[]).into_iter().map(|term| term.folded).collect();
            assert_eq!(found, expect, "{text}");
        }
        assert_eq!(terms("9:00", &[2]).len(), 2, "a cut divides a time");
    }

    #[test]
    fn times_agree_if_they_can_be_the_same() {
        let of = |text: &str| terms(text, &[])[0].amount.expect("a time");
        for (one, other, agrees) in [
            ("9:00", "9 am", true),
            ("9:00", "8:00", false),
            ("6 pm", "18:00", true),
            ("6:00", "6 p.m.", true),
            ("6 am", "6 p.m.", false),
            ("06:00", "18:00", false),
            ("noon", "12:00", true),
            ("7:45", "7:15", false),
        ] {
            assert_eq!(of(one).covers(&of(other)), agrees, "{one}, {other}");
            assert_ne!(of(one).excludes(&of(other)), agrees, "{one}, {other}");
        }
    }
}
