//! What a reader must see of the result of a tool, whatever the question is: what went wrong, what is forbidden, and what happens
//! once among lines that differ in numbers only. Knows texts only: what they have to do with the question is a matter of scores.

use std::collections::{HashMap, HashSet};

use crate::text;
use crate::text::lexicon::{Class, has, is};

/// The fewest lines in which a line can be rare, and of one form that are folded.
const LINES_MIN: usize = 20;
const FOLDED_MIN: usize = 5;

/// The largest share of the lines that may be rare: where every line is, none is.
const RARE_SHARE_MAX: f32 = 0.1;

#[derive(Debug, Clone, Copy)]
pub struct UnitText<'a> {
    pub text: &'a str,
    /// Whether it is a line that a program wrote, and not prose.
    pub is_line: bool,
    /// Whether it is a line of a log, which may be folded into others of its form.
    pub may_fold: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notable {
    /// `[unit]`: whether the unit must be seen.
    pub kept: Vec<bool>,
    /// `[unit]`: the first unit of the same form, for units of which two come before it and one after it.
    pub folded: Vec<Option<usize>>,
}

/// Finds what is notable. A line with a number or identifier of the question `query` is never folded.
pub fn find(units: &[UnitText], query: &str) -> Notable {
    let mut found = Notable { kept: vec![false; units.len()], folded: vec![None; units.len()] };
    let asked: HashSet<&str> = words(query).filter(|word| has_digit(word)).collect();
    let mut forms: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, unit) in units.iter().enumerate() {
        if unit.is_line {
            forms.entry(form(unit.text)).or_default().push(at);
        } else {
            found.kept[at] = limits(unit.text) || is_fault(unit.text);
        }
    }
    let line_count: usize = forms.values().map(Vec::len).sum();
    let rare = forms.values().filter(|lines| lines.len() == 1).count();
    let has_rare = line_count >= LINES_MIN && rare as f32 <= RARE_SHARE_MAX * line_count as f32;
    for lines in forms.values() {
        let (first, last) = (lines[0], lines[lines.len() - 1]);
        if lines.iter().any(|&line| is_fault(units[line].text)) || lines.len() == 1 && has_rare {
            found.kept[first] = true;
            found.kept[last] = true;
        }
        if lines.len() >= FOLDED_MIN {
            for &line in &lines[2..lines.len() - 1] {
                let is_asked = !asked.is_empty() && words(units[line].text).any(|word| asked.contains(word));
                found.folded[line] = (units[line].may_fold && !is_asked).then_some(first);
            }
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

fn has_digit(word: &str) -> bool {
    word.bytes().any(|b| b.is_ascii_digit())
}

/// Returns the text of a line with its numbers and identifiers replaced: lines that differ in these only have one form. A number that
/// says how a request or a program ended stays.
fn form(line: &str) -> String {
    let mut form = String::with_capacity(line.len());
    let (mut rest, mut before) = (line, "");
    while let Some(start) = rest.find(|c: char| c.is_alphanumeric()) {
        form.push_str(&rest[..start]);
        let end = rest[start..].find(|c: char| !c.is_alphanumeric()).map_or(rest.len(), |end| start + end);
        let word = &rest[start..end];
        let is_number = word.bytes().all(|b| b.is_ascii_digit());
        let is_apart = |beside: Option<char>| beside.is_none_or(char::is_whitespace);
        let is_status = is(Class::Status, before)
            || word.len() == 3
                && matches!(word.as_bytes()[0], b'1'..=b'5')
                && is_apart(rest[..start].chars().next_back())
                && is_apart(rest[end..].chars().next())
                && !has_unit(&rest[end..]);
        form.push_str(if has_digit(word) && !(is_number && is_status) { "#" } else { word });
        before = word;
        rest = &rest[end..];
    }
    form.push_str(rest);
    form
}

/// Returns whether a text begins with the unit of a number before it.
fn has_unit(text: &str) -> bool {
    is(Class::Unit, words(text).next().unwrap_or_default())
}

/// Returns whether a text says that something went wrong, or why a program ended. "0 errors" and "failed=0" say that nothing did.
fn is_fault(text: &str) -> bool {
    let all: Vec<&str> = words(text).collect();
    let ends = all.windows(2).enumerate().any(|(at, pair)| {
        let phrase = format!("{}_{}", pair[0], pair[1]).to_lowercase();
        has(Class::Ends, &phrase) && all.get(at + 2) != Some(&"0")
    });
    let is_none = |word: Option<&&str>| word.is_some_and(|word| ["0", "no", "null", "none"].contains(word));
    ends || all.iter().enumerate().any(|(at, word)| {
        let lower = word.to_lowercase();
        let is_level = word.bytes().all(|byte| byte.is_ascii_uppercase()) && has(Class::LevelFault, &lower);
        let names_fault =
            is_level || has(Class::Fault, &lower) || lower.ends_with("error") || lower.ends_with("exception");
        // The number stands before its word, or behind it as in `failed=0`.
        let is_counted_before = at > 0 && is_none(all.get(at - 1)) && !is_value(text, all[at - 1]);
        names_fault && !is_counted_before && !(is_none(all.get(at + 1)) && is_value(text, all[at + 1]))
    })
}

/// Returns whether a word stands behind an equals sign or a colon, as a value does.
fn is_value(text: &str, word: &str) -> bool {
    let at = word.as_ptr() as usize - text.as_ptr() as usize;
    text[..at].trim_end().ends_with(['=', ':'])
}

/// Returns whether a sentence forbids or limits something.
fn limits(sentence: &str) -> bool {
    text::words(sentence).iter().any(|word| {
        let word = word.slice(sentence).to_lowercase().replace('’', "'");
        has(Class::Limits, &word) || word.ends_with("n't")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept<'a>(units: &[&'a str], is_line: bool) -> Vec<&'a str> {
        let texts: Vec<UnitText> =
            units.iter().map(|&text| UnitText { text, is_line, may_fold: is_line }).collect();
        let found = find(&texts, "Why is the shop down?");
        units.iter().zip(found.kept).filter(|(_, kept)| *kept).map(|(unit, _)| *unit).collect()
    }

    #[test]
    fn lines_that_warn_are_kept_once_for_each_form() {
        let lines = [
            "10:00:01 INFO listening on 8080",
            "10:00:02 ERROR payment 17 failed after 30 ms",
            "10:00:03 ERROR payment 18 failed after 41 ms",
            "10:00:04 ERROR payment 19 failed after 29 ms",
            "10:00:05 WARN heap 78 %",
            "ran 12 checks, 0 errors",
            "Last State: Terminated",
            "  Reason: OOMKilled",
        ];
        assert_eq!(kept(&lines, true), [lines[1], lines[3], lines[4], lines[7]]);
    }

    #[test]
    fn a_fault_is_told_from_a_count_of_none() {
        let check = |text: &str, expect: bool| assert_eq!(is_fault(text), expect, "{text}");
        check("10 failed, 240 passed in 31.2s", true);
        check("Found 20 errors in 3 files", true);
        check("web1 : ok=3 changed=0 unreachable=1 failed=0", true);
        check("Tests run: 5, Failures: 2, Errors: 0", true);
        check("3 failed, 0 warnings", true);
        check("error: 0x80070005 access is denied", true);
        check("Exit Code: 137", true);
        check("exited with code 1", true);
        check("0 errors, 0 warnings", false);
        check("ok=3 failed=0 unreachable=0", false);
        check("Exit Code: 0", false);
        check("\"error\": null", false);
        check("listening on 8080", false);
    }

    #[test]
    fn a_line_that_ended_otherwise_has_another_form() {
        let check = |one: &str, other: &str, expect: bool| {
            assert_eq!(form(one) == form(other), expect, "{one} {other}")
        };
        check("path=/pay status=200 ms=12", "path=/pay status=503 ms=31", false);
        check("job17 exit=0", "job18 exit=137", false);
        check("{\"status\":200}", "{\"status\":503}", false);
        check("GET /a 200 12", "GET /a 404 13", false);
        check("done in 347 ms", "done in 912 ms", true);
        check("10:00:01,801 x", "10:00:02,147 x", true);
    }

    #[test]
    fn what_is_forbidden_is_kept() {
        let sentences = [
            "The cache holds baskets.",
            "Never delete files of the journal.",
            "Restarts take 30 seconds.",
            "Ask the team unless it is night.",
            "You don't need a key.",
        ];
        assert_eq!(kept(&sentences, false), [sentences[1], sentences[3], sentences[4]]);
    }

    #[test]
    fn lines_of_one_form_are_folded_and_a_rare_one_is_kept() {
        let mut lines: Vec<String> =
            (0..40).map(|n| format!("10:00:{n},{} GET /basket/{n} 200 in {n} ms", 100 + n)).collect();
        lines[20] = "reindex started by cron".to_owned();
        lines[30] = "10:00:30,130 GET /basket/4711 200 in 8 ms".to_owned();
        let units: Vec<UnitText> =
            lines.iter().map(|text| UnitText { text, is_line: true, may_fold: true }).collect();
        let found = find(&units, "Look at basket #4711.");
        let shown: Vec<usize> = (0..40).filter(|&line| found.folded[line].is_none()).collect();
        assert_eq!(shown, [0, 1, 20, 30, 39]);
        assert_eq!((0..40).filter(|&line| found.kept[line]).collect::<Vec<_>>(), [20]);
    }
}
