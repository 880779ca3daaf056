//! What a reader must see of the result of a tool, whatever the question is: what went wrong, what is forbidden, and what happens
//! once among lines that differ in numbers only. Knows texts only: what they have to do with the question is a matter of scores.

use std::collections::{HashMap, HashSet};

use crate::text;

/// The levels of lines that warn, as loggers write them.
const LEVELS: [&str; 13] = [
    "WARN", "WARNING", "ERROR", "ERR", "FATAL", "CRITICAL", "CRIT", "SEVERE", "PANIC", "ALERT", "EMERG",
    "FAIL", "FAILED",
];

/// Beginnings of words with which programs say that something went wrong.
const FAULTS: [&str; 22] = [
    "abort",
    "assert",
    "cannot",
    "crash",
    "critical",
    "denied",
    "error",
    "exception",
    "fail",
    "fatal",
    "forbidden",
    "killed",
    "oom",
    "panic",
    "refused",
    "rejected",
    "stuck",
    "timeout",
    "traceback",
    "unable",
    "unreachable",
    "warn",
];

/// Phrases with which programs say why they ended.
const ENDS: [&str; 6] = ["exit code", "exit status", "exited with", "reason:", "timed out", "no space left"];

/// Phrases with which programs say that nothing went wrong.
const NO_FAULTS: [&str; 14] = [
    "0 error",
    "0 fail",
    "0 warn",
    "no error",
    "no fail",
    "no warn",
    "error: 0",
    "errors: 0",
    "failed: 0",
    "failures: 0",
    "errors=0",
    "failed=0",
    "exit code 0",
    "exit code: 0",
];

/// Words with which instructions forbid or limit something.
const LIMITS: [&str; 16] = [
    "caution",
    "except",
    "exception",
    "exceptions",
    "forbidden",
    "important",
    "must",
    "mustn't",
    "never",
    "not",
    "only",
    "otherwise",
    "prohibited",
    "required",
    "unless",
    "warning",
];

/// The fewest lines in which a line can be rare, and of one form that are folded.
const LINES_MIN: usize = 20;
const FOLDED_MIN: usize = 5;

/// The largest share of the lines that may be rare: where every line is, none is.
const RARE_SHARE_MAX: f32 = 0.1;

/// A unit of a text.
#[derive(Debug, Clone, Copy)]
pub struct UnitText<'a> {
    pub text: &'a str,
    /// Whether it is a line that a program wrote, and not prose.
    pub is_line: bool,
}

/// What is notable among the units of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notable {
    /// `[unit]`: whether the unit must be seen.
    pub kept: Vec<bool>,
    /// `[unit]`: the first unit of the same form, for units of which two come before it and one after it.
    pub folded: Vec<Option<usize>>,
}

/// Finds what is notable. A unit with a number or identifier of the question `query` is never folded.
pub fn find(units: &[UnitText], query: &str) -> Notable {
    let mut found = Notable { kept: vec![false; units.len()], folded: vec![None; units.len()] };
    let asked: HashSet<&str> = query
        .split(|c: char| c.is_whitespace() || ",;?!\"'()".contains(c))
        .filter(|word| has_digit(word))
        .collect();
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
                let is_asked = asked.iter().any(|word| units[line].text.contains(word));
                found.folded[line] = (!is_asked).then_some(first);
            }
        }
    }
    found
}

fn has_digit(word: &str) -> bool {
    word.bytes().any(|b| b.is_ascii_digit())
}

/// Returns the text of a line with its numbers and identifiers replaced: lines that differ in these only have one form. A number of
/// three digits between blanks stays, since it may be the status of a request.
fn form(line: &str) -> String {
    let mut form = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| c.is_alphanumeric()) {
        form.push_str(&rest[..start]);
        let end = rest[start..].find(|c: char| !c.is_alphanumeric()).map_or(rest.len(), |end| start + end);
        let word = &rest[start..end];
        let is_apart = |beside: Option<char>| beside.is_none_or(char::is_whitespace);
        let is_status = word.len() == 3
            && word.bytes().all(|b| b.is_ascii_digit())
            && is_apart(rest[..start].chars().next_back())
            && is_apart(rest[end..].chars().next());
        form.push_str(if has_digit(word) && !is_status { "#" } else { word });
        rest = &rest[end..];
    }
    form.push_str(rest);
    form
}

/// Returns whether a text says that something went wrong, or why a program ended.
fn is_fault(text: &str) -> bool {
    let words = || text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    if words().any(|word| LEVELS.contains(&word)) {
        return true;
    }
    let lower = text.to_lowercase();
    if NO_FAULTS.iter().any(|phrase| lower.contains(phrase)) {
        return false;
    }
    ENDS.iter().any(|phrase| lower.contains(phrase))
        || words().any(|word| {
            let word = word.to_lowercase();
            FAULTS.iter().any(|fault| {
                word.starts_with(fault) || word.ends_with("error") || word.ends_with("exception")
            })
        })
}

/// Returns whether a sentence forbids or limits something.
fn limits(sentence: &str) -> bool {
    text::words(sentence).iter().any(|word| {
        let word = word.slice(sentence).to_lowercase().replace('’', "'");
        LIMITS.contains(&&*word) || word.ends_with("n't")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept<'a>(units: &[&'a str], is_line: bool) -> Vec<&'a str> {
        let texts: Vec<UnitText> = units.iter().map(|&text| UnitText { text, is_line }).collect();
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
        lines[30] = "GET /basket/4711 200 in 8 ms".to_owned();
        let units: Vec<UnitText> = lines.iter().map(|text| UnitText { text, is_line: true }).collect();
        let found = find(&units, "What happened to basket 4711?");
        let shown: Vec<usize> = (0..40).filter(|&line| found.folded[line].is_none()).collect();
        assert_eq!(shown, [0, 1, 20, 30, 39]);
        assert_eq!((0..40).filter(|&line| found.kept[line]).collect::<Vec<_>>(), [20]);
    }
}
