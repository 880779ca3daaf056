//! Every text comes back, whatever it is; what programs print becomes shorter.

use std::fmt::Write as _;
use std::time::Instant;

use proptest::prelude::*;
use tiktoken_rs::o200k_base_singleton;

use super::*;

/// Encodes a text, and checks that it comes back.
fn encoded(text: &str) -> String {
    let encoded = encode(text).into_owned();
    assert_eq!(decode(&encoded).as_deref(), Ok(text));
    encoded
}

/// The share of the text's tokens (`o200k_base`) that encoding saves.
fn saved(text: &str) -> f64 {
    let count = |text: &str| o200k_base_singleton().encode_ordinary(text).len() as f64;
    1.0 - count(&encoded(text)) / count(text)
}

fn log(lines: usize) -> String {
    let line = |at: usize| {
        let (second, id) = (at % 60, at * 7_919 % 99_991);
        match at % 5 {
            0 => format!(
                "2026-11-28T09:14:{second:02}Z WARN  [db] slow query ({id} ms): SELECT * FROM t WHERE id = {at}\n"
            ),
            4 => {
                format!("2026-11-28T09:14:{second:02}Z INFO  [auth] user ada from 10.0.{}.{second}\n", at % 7)
            }
            _ => format!(
                "2026-11-28T09:14:{second:02}Z INFO  [http] request {id:08x} GET /orders/{at} status=200 took {second} ms\n"
            ),
        }
    };
    (0..lines).map(line).collect()
}

fn processes() -> String {
    let mut text = "USER         PID %CPU    VSZ STAT COMMAND\n".to_owned();
    for at in 1..40_usize {
        let (pid, size) = (at * at * 3, at * 1_313 % 70_000);
        let _ = writeln!(
            text,
            "root     {pid:>7}  0.{} {size:>6} S    /usr/lib/worker --shard {at} of 40",
            at % 7
        );
    }
    text
}

fn rows(indent: &str) -> String {
    let mut text = format!("{{\n{indent}\"total\": 30,\n{indent}\"rows\": [");
    for at in 0..30 {
        let comma = if at == 0 { "" } else { "," };
        let (one, two) = (indent.repeat(2), indent.repeat(3));
        let _ = write!(
            text,
            "{comma}\n{one}{{\n{two}\"id\": {at},\n{two}\"name\": \"item {at}\",\n{two}\"conclusion\": \"success\",\n{two}\"tags\": []\n{one}}}"
        );
    }
    let _ = write!(text, "\n{indent}]\n}}\n");
    text
}

#[test]
fn a_log_has_one_template_for_like_lines() {
    let text = encoded(&log(40));
    let lines: Vec<&str> = text.lines().take(7).collect();
    assert_eq!(
        lines,
        [
            "[thresher: #1= is a line with its <fields>; #1|a|b is that line with fields a, b, |a|b the same template again, \" the value above]",
            "#1=2026-11-28T09:14:<00>Z WARN  [db] slow query (<0> ms): SELECT * FROM t WHERE id = <0>",
            "#2=2026-11-28T09:14:<01>Z INFO  [http] request <00001eef> GET /orders/<1> status=200 took <1> ms",
            "|02|00003dde|2|2",
            "|03|00005ccd|3|3",
            "#3=2026-11-28T09:14:<04>Z INFO  [auth] user ada from 10.0.<4.4>",
            "#1|05|39595|5",
        ]
    );
}

#[test]
fn what_programs_print_is_shorter_in_tokens() {
    let check = |name: &str, text: &str, least: f64| {
        let saved = saved(text);
        assert!(saved >= least, "{name}: {saved:.2} of the tokens are saved, not {least}");
    };
    check("a log", &log(200), 0.5);
    check("processes", &processes(), 0.4);
    check("indented JSON", &rows("  "), 0.75);
    check("JSON with tabs", &rows("\t"), 0.75);
    check(
        "lines of JSON",
        &(0..40).fold(String::new(), |all, at| {
            format!("{all}{{\"at\": {at}, \"level\": \"info\", \"msg\": \"a message of {at}\"}}\n")
        }),
        0.5,
    );
    check(
        "a table",
        &(0..60).fold("id,status,currency\n".to_owned(), |all, at| {
            format!("{all}{},shipped by parcel,EUR,DE,{}\n", 9_000 + at, at * 17)
        }),
        0.3,
    );
    check("a repeated trace", &"Traceback (most recent call last):\n  File \"/srv/app/views.py\", line 41, in order\n    total = price * count\nTypeError: unsupported operand\n".repeat(9), 0.55);
}

#[test]
fn estimates_agree_with_the_vocabulary() {
    for text in [log(100), processes(), rows("    "), include_str!("lib.rs").to_owned()] {
        let count = o200k_base_singleton().encode_ordinary(&text).len() as f64;
        let ratio = estimate(&text) as f64 / count;
        assert!((0.75..1.35).contains(&ratio), "{ratio:.2} of {count} tokens:\n{}", &text[..200]);
    }
}

#[test]
fn prose_code_and_short_texts_stay() {
    for text in ["", "a", "{\"a\": 1}", include_str!("words.rs")] {
        assert_eq!(encode(text), text);
    }
}

#[test]
fn every_layout_of_json_comes_back() {
    let row = |at: usize| format!("{{\"a\": {at}.50, \"b\": \"\\u00e9 {at}\", \"a\": null}}");
    let lines = |separator: &str| (0..12).map(row).collect::<Vec<_>>().join(separator);
    for text in [
        format!("[{}]", lines(", ")),
        format!("[{}]\n", lines(",\n")),
        format!("[\n  {}\n]", lines(",\n  ")),
        format!("{{\"rows\": [{}], \"empty\": [], \"none\": {{}}, \"deep\": [[[1]], []]}}", lines(", ")),
        format!("> GET /\n< 200\n[\n  {}\n]\ndone\n[{}]\nend", lines(",\n  "), lines(", ")),
        rows("  ").replace(": ", ":"),
        rows("   ").replace("[]", "[\n        1\n      ]"),
        rows("  ").replace("[]", "[1, 2, 3]"),
        rows(""),
        format!("{}\n{}", rows("  ").trim_end(), rows("  ")),
        rows("  ").replace('\n', "\r\n"),
        lines("\n"),
    ] {
        encoded(&text);
    }
    let whole = rows("  ");
    for end in 0..whole.len() {
        encoded(&whole[..end]);
        encoded(&format!("{}\n[truncated, 300 lines]", &whole[..end]));
    }
    let cut = encoded(&whole[..whole.len() - 100]);
    assert!(cut.len() < whole.len() / 3, "JSON that is cut: {cut}");
}

#[test]
fn texts_that_look_encoded_come_back() {
    let text = encode(&log(40)).into_owned();
    for text in [text.as_str(), BEGINNING, "[thresher: as it is]\nx", "[thresher: no end"] {
        assert_eq!(decode(&encode(text)).as_deref(), Ok(text));
    }
    let mut lines: Vec<String> = log(40).lines().map(str::to_owned).collect();
    for line in ["#1=x", "#1|a|b", "|a", "#", "#=#", "\"", "#2-9", "", "|", "a|b", "<1>", "{2}"] {
        lines.push(line.to_owned());
        lines.insert(lines.len() / 2, line.to_owned());
    }
    encoded(&lines.join("\n"));
}

#[test]
fn changed_texts_are_refused_or_read_without_a_panic() {
    for text in
        [encode(&log(40)).into_owned(), encode(&rows("  ")).into_owned(), encode(&processes()).into_owned()]
    {
        assert_eq!(decode(&text.replacen("#1", "#7", 1)), Err(Damaged));
        assert_eq!(decode(text.split('\n').next().unwrap_or_default()), Err(Damaged));
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let _ = decode(&text[..at]);
            let _ = decode(&format!("{}9{}", &text[..at], &text[at..]));
        }
    }
    for styles in ["1-999/2", "0-1/2", "2-1/2", "1-1/255d9999999999", "1-1/99999", "1-1/x", "1-1"] {
        let _ = decode(&format!("[thresher: JSON without white space: {styles}]\n{}", "[".repeat(9_000)));
    }
}

/// Inputs that take quadratic time or deep recursion in careless code.
#[test]
fn hostile_texts_take_linear_time() {
    let distinct = (0..100_000).fold(String::new(), |mut all, at: u64| {
        let _ =
            writeln!(all, "{:x} {}", at.wrapping_mul(0x9e37_79b9_7f4a_7c15), "w".repeat((at % 7) as usize));
        all
    });
    let numbers =
        (0..9_000).fold("[".to_owned(), |all, at| format!("{all}{at}.123456789012345678901234567890,"));
    let texts = [
        ("depth", format!("{}{}", "[".repeat(1_000), "]".repeat(1_000))),
        ("indented depth", (0..1_000).fold(String::new(), |all, at| format!("{all}[\n{}", " ".repeat(at)))),
        ("open brackets", "[".repeat(1_000_000)),
        ("open lines", "[{\"a\":\n".repeat(100_000)),
        ("one line", "word 12 ".repeat(640_000)),
        ("one line of JSON", format!("{{\"a\":\"{}\"}}", "x".repeat(5_000_000))),
        ("distinct lines", distinct),
        ("equal lines", "the same line as the one above\n".repeat(100_000)),
        ("control characters", "\0\u{1b}[31m\u{7f}\r".repeat(200_000)),
        ("numbers", numbers),
        ("blanks", " ".repeat(5_000_000)),
        ("line breaks", "\n".repeat(5_000_000)),
    ];
    for (name, text) in texts {
        let start = Instant::now();
        encoded(&text);
        // A text of a few megabytes takes about a second in a build without optimisation; quadratic time would take hours.
        assert!(start.elapsed().as_secs() < 1_000, "{name}");
    }
}

/// Lines as programs print them, from a few forms with many values.
fn printed() -> impl Strategy<Value = String> {
    let word = "[a-z]{1,8}|[0-9]{1,6}|[A-Z][a-z]+=[0-9]+|[|#\"<>{}\\[\\]=~]{1,2}|é|10\\.0\\.0\\.[0-9]";
    let form = prop::collection::vec((word, " {1,4}|\t|,|, |\\|"), 1..9);
    prop::collection::vec((form, prop::collection::vec("[0-9]{0,5}|[a-z]{1,3}", 1..12)), 1..5).prop_map(
        |forms| {
            let mut lines: Vec<String> = Vec::new();
            for (form, values) in &forms {
                for value in values {
                    let mut line: String = form.iter().map(|(word, gap)| format!("{word}{gap}")).collect();
                    let _ = write!(line, "{value:>7} {value} end");
                    lines.push(line);
                }
            }
            let step = lines.len() / 2 + 1;
            (0..lines.len()).map(|at| lines[at * step % lines.len()].clone()).collect::<Vec<_>>().join("\n")
        },
    )
}

/// JSON, pretty or compact, perhaps cut.
fn json() -> impl Strategy<Value = String> {
    let scalar = "-?[0-9]{1,9}|[0-9]\\.[0-9]{1,20}|true|null|NaN|\"[a-z 0-9,:|]{0,12}\"|\"\\\\n\\\\\"é\"";
    let value = scalar.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(("[a-c]", inner.clone()), 0..6).prop_map(|fields| {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", fields.join(","))
            }),
            (inner, 2..9_usize).prop_map(|(item, count)| format!(
                "[{}]",
                vec![format!("{{\"x\":{item}}}"); count].join(",")
            )),
        ]
    });
    (value, "[0-9]|t|-", any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(value, indent, cut, is_cut)| {
            let tokens = json::find(&format!("{value} "), 0).tokens;
            let style = Style::parse(&format!("{indent}c")).expect("a style");
            let text = json::write(&value, &tokens, style, usize::MAX);
            let end = text.floor_char_boundary(cut.index(text.len() + 1));
            if is_cut { text[..end].to_owned() } else { text }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in "\\PC{0,400}|[\\[\\]{}\",:#|= \n0-9a-c]{0,600}") {
        encoded(&text);
    }

    #[test]
    fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        encoded(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn printed_lines_come_back(text in printed()) {
        encoded(&text);
        encoded(&text.replace('\n', "\r\n"));
    }

    #[test]
    fn json_comes_back(text in json(), before in "[a-z\n]{0,9}", after in "[\\[a-z\n,]{0,9}") {
        encoded(&text);
        encoded(&format!("{before}{text}{after}"));
    }

    /// Without the threshold, too, and with the check of [`encode`] left out.
    #[test]
    fn the_form_itself_gives_every_text_back(text in prop_oneof![printed(), json(), "[\\[\\]{}\",:#|= \n0-9a-c]{0,300}"]) {
        prop_assume!(!text.starts_with(BEGINNING));
        let written = write(&text);
        let found = decode(&written).map(Cow::into_owned);
        prop_assert_eq!(found.as_ref(), Ok(&text), "{}", written);
    }
}
