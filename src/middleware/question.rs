//! What a person wrote in a message. Clients put other text beside it: reminders, the state of an editor, memories, files of rules.

use thresher_core::text::lexicon::{Class, has};

/// Returns what a person wrote of the text of a message: without the elements that clients insert, and only the content of
/// elements such as `<task>`, if there are any.
pub fn written(text: &str) -> String {
    let mut rest = String::with_capacity(text.len());
    let mut written = String::new();
    let mut at = 0;
    while let Some(element) = Element::next(text, at) {
        rest.push_str(&text[at..element.start]);
        at = element.end;
        if has(Class::UserElement, element.name) {
            written.push_str(if written.is_empty() { "" } else { "\n" });
            written.push_str(&text[element.content.clone()]);
        } else if !is_inserted(element.name) {
            rest.push_str(&text[element.start..element.end]);
        }
    }
    rest.push_str(&text[at..]);
    match (written.trim().is_empty(), rest.trim().is_empty()) {
        (true, _) => rest,
        (false, true) => written,
        (false, false) => format!("{rest}\n{written}"),
    }
}

/// Returns whether clients insert elements with this name.
fn is_inserted(name: &str) -> bool {
    let begins =
        || name.match_indices(['-', '_']).any(|(at, _)| has(Class::ClientElementBegins, &name[..at]));
    let end = name.rsplit(['-', '_']).next().unwrap_or_default();
    has(Class::ClientElement, name)
        || name.contains(['-', '_']) && (has(Class::ClientElementEnds, end) || begins())
}

/// An element such as `<task>…</task>` that begins a line of a text.
struct Element<'a> {
    name: &'a str,
    start: usize,
    end: usize,
    content: std::ops::Range<usize>,
}

impl<'a> Element<'a> {
    /// Returns the first element at or after `at` whose name this module knows. One that is never closed ends with the text.
    fn next(text: &'a str, mut at: usize) -> Option<Self> {
        loop {
            let start = at + text[at..].find('<')?;
            let name_end = start
                + 1
                + text[start + 1..].find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c))?;
            at = start + 1;
            let name = &text[start + 1..name_end];
            let begins_line = text[..start]
                .trim_end_matches([' ', '\t'])
                .chars()
                .next_back()
                .is_none_or(|c| c == '\n' || c == '>');
            if !begins_line || !(has(Class::UserElement, name) || is_inserted(name)) {
                continue;
            }
            let open = name_end + text[name_end..].find('>')? + 1;
            if text[..open].ends_with("/>") {
                return Some(Self { name, start, end: open, content: open..open });
            }
            let closing = format!("</{name}>");
            let (content_end, end) = match text[open..].find(&closing) {
                Some(length) => (open + length, open + length + closing.len()),
                None => (text.len(), text.len()),
            };
            return Some(Self { name, start, end, content: open..content_end });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_clients_is_not_what_a_person_wrote() {
        let check = |text: &str, expect: &str| assert_eq!(written(text).trim(), expect, "{text}");
        check("When?\n<system-reminder>Use the list of tasks.</system-reminder>", "When?");
        check(
            "<system-reminder>\n# claudeMd\nRules.\n</system-reminder>\nWhen does it open?",
            "When does it open?",
        );
        check("<environment_details>\n# Open tabs\nx.rs\n</environment_details>", "");
        check("<task>\nRepair it.\n</task>\n<environment_details>x</environment_details>", "Repair it.");
        check("<user_info>Linux</user_info><user_query>When?</user_query>", "When?");
        check("<system-reminder>never closed", "");
        check("<ide_selection/>\nWhen?", "When?");
        check("Why is this refused?\n<request>4</request>", "Why is this refused?\n\n4");
        check("<unknown>When?</unknown>", "<unknown>When?</unknown>");
        check("Is <task> a tag?", "Is <task> a tag?");
        check("a < b and c", "a < b and c");
    }
}
