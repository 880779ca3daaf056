//! What holds for the pieces of every text, whole or damaged, and whether what is kept of a text still
//! parses.

use super::{Joint, Kind, Layout, Piece, kind_of, outline};
use crate::sentences::sentences;

const KINDS: [Kind; 11] = [
    Kind::Prose,
    Kind::Markdown,
    Kind::Code,
    Kind::Json,
    Kind::Table,
    Kind::Log,
    Kind::Chat,
    Kind::Html,
    Kind::Pdf,
    Kind::Mail,
    Kind::Subtitles,
];

/// Returns the pieces of a text after checking what holds for all pieces.
pub(super) fn pieces(text: &str, kind: Kind) -> Vec<Piece> {
    let Some(pieces) = outline(text, kind, &sentences) else { return Vec::new() };
    let mut end = 0;
    let check_gap = |start, stop| {
        let is_gap = |c: char| c.is_whitespace() || c == ',' && kind == Kind::Json;
        let gap: &str = &text[start..stop];
        assert!(gap.chars().all(is_gap), "{kind:?}: {gap:?} is in no piece of {text:?}");
    };
    for (index, piece) in pieces.iter().enumerate() {
        assert!(
            piece.bytes.start >= end,
            "{kind:?}: piece {index} begins before the end of the last: {text:?}"
        );
        check_gap(end, piece.bytes.start);
        end = piece.bytes.end;
        assert!(!piece.bytes.slice(text).trim().is_empty(), "{kind:?}: piece {index} is blank: {text:?}");
        let mut others = piece.links.iter().map(|link| link.to);
        assert!(others.all(|other| other < pieces.len() && other != index), "{kind:?}: {text:?}");
    }
    check_gap(end, text.len());
    assert!(pieces.iter().any(|piece| !piece.is_frame()), "{kind:?}: no piece can be chosen: {text:?}");
    pieces
}

/// Compares the pieces of a text with lines such as `F 0,2 text`: a frame that requires the pieces 0 and 2.
/// `R` marks a row, and `>3` what introduces the piece 3. Line ends are shown as `/`.
pub(super) fn check(name: &str, kind: Kind, text: &str, expect: &[&str]) {
    let shown = pieces(text, kind).into_iter().map(|piece| {
        let mark = if piece.is_frame() {
            "F "
        } else if piece.is_row() {
            "R "
        } else {
            ""
        };
        let mut requires = Vec::from_iter(piece.required());
        requires.sort_unstable();
        let introduces = piece.introduces().map(|other| format!(">{other}"));
        let requires: Vec<String> = requires.iter().map(usize::to_string).chain(introduces).collect();
        let space = if requires.is_empty() { "" } else { " " };
        format!("{mark}{}{space}{}", requires.join(","), piece.bytes.slice(text).replace('\n', "/"))
    });
    assert_eq!(shown.collect::<Vec<_>>(), expect, "{name}");
}

/// Returns which pieces are kept if some are chosen.
pub(super) fn closure(pieces: &[Piece], mut chosen: Vec<usize>) -> Vec<usize> {
    let mut kept = vec![false; pieces.len()];
    while let Some(index) = chosen.pop() {
        if !std::mem::replace(&mut kept[index], true) {
            chosen.extend(pieces[index].required());
        }
    }
    (0..pieces.len()).filter(|&index| kept[index]).collect()
}

/// Writes the kept pieces as a context does: neighbours with the text between them, others with the blanks
/// before the later one, and with a comma where JSON wants one.
fn written(text: &str, pieces: &[Piece], kept: &[usize]) -> String {
    let mut out = String::new();
    let mut before: Option<usize> = None;
    for &index in kept {
        let piece = &pieces[index];
        if let Some(before) = before {
            let gap = &text[pieces[index - 1].bytes.end..piece.bytes.start];
            if before + 1 == index {
                out.push_str(gap);
            } else {
                let comma = Joint::comma(pieces[before].joint, piece.joint);
                out.push_str(if comma { "," } else { "" });
                out.push_str(&gap[gap.trim_end().len()..]);
                let is_apart = out.ends_with(char::is_whitespace) || piece.joint != Joint::Gap;
                out.push_str(if is_apart { "" } else { "\n" });
            }
        }
        out.push_str(piece.bytes.slice(text));
        before = Some(index);
    }
    out
}

/// Returns a random set of the pieces that may be chosen.
fn choice(random: &mut fastrand::Rng, pieces: &[Piece]) -> Vec<usize> {
    let share = random.f64() * 0.6;
    (0..pieces.len()).filter(|&index| !pieces[index].is_frame() && random.f64() < share).collect()
}

const TEXTS: [&str; 16] = [
    include_str!("samples/orders.json"),
    include_str!("samples/compact.json"),
    include_str!("samples/lines.jsonl"),
    include_str!("samples/lease.py"),
    include_str!("samples/lexer.rs.txt"),
    include_str!("samples/values.yaml"),
    include_str!("samples/page.html"),
    include_str!("samples/guide.md"),
    include_str!("samples/app.log"),
    include_str!("samples/talk.txt"),
    include_str!("samples/table.txt"),
    include_str!("samples/rows.csv"),
    include_str!("samples/page.txt"),
    include_str!("samples/thread.txt"),
    include_str!("samples/talk.srt"),
    include_str!("samples/crash.txt"),
];

/// Changes a text at random: cuts it, removes a part, or puts something in.
fn damaged(random: &mut fastrand::Rng, text: &str) -> String {
    const PUT_IN: [&str; 16] = [
        "\"", "{", "}", "[", "]", ",", "é", "🎉", "\n", "\n\n", "```\n", "\"\"\"", "<p>", "</div>", "| ",
        "\u{a0}",
    ];
    let at = |random: &mut fastrand::Rng, text: &str| text.floor_char_boundary(random.usize(0..=text.len()));
    let mut text = text.to_string();
    for _ in 0..random.usize(0..4) {
        let (one, other) = (at(random, &text), at(random, &text));
        match random.u8(0..4) {
            0 => text.truncate(one),
            1 => drop(text.drain(..one)),
            2 if one <= other && other - one < 200 => drop(text.drain(one..other)),
            _ => text.insert_str(one, PUT_IN[random.usize(0..PUT_IN.len())]),
        }
    }
    text
}

/// Each block of `samples/pieces.txt` is a line with a kind and a name, a text, and below `=>` its pieces as [`check`] shows them. A kind
/// that is `detected` is what the text looks like.
#[test]
fn pieces_require_what_they_need() {
    let blocks: Vec<&str> = include_str!("samples/pieces.txt").split("@@@@ ").skip(1).collect();
    for block in blocks {
        let (head, rest) = block.split_once('\n').expect("a head");
        let (text, expect) = rest.split_once("\n=>\n").expect("a text and its pieces");
        let (kind, name) = head.split_once(": ").expect("a kind and a name");
        let named = kind.trim_end_matches(" detected");
        let kind = KINDS.into_iter().find(|of| format!("{of:?}").to_lowercase() == named).expect(head);
        if head.contains(" detected: ") {
            assert_eq!(kind_of(text), kind, "{name}");
        }
        check(name, kind, text, &expect.lines().collect::<Vec<_>>());
    }
}

#[test]
fn every_text_has_sound_pieces_in_every_kind() {
    let mut random = fastrand::Rng::with_seed(7);
    for text in TEXTS {
        for _ in 0..150 {
            let text = damaged(&mut random, text);
            kind_of(&text);
            for kind in KINDS {
                pieces(&text, kind);
            }
        }
    }
}

#[test]
fn every_choice_of_json_parses() {
    let mut random = fastrand::Rng::with_seed(11);
    for text in &TEXTS[..2] {
        let pieces = pieces(text, Kind::Json);
        for _ in 0..300 {
            let kept = closure(&pieces, choice(&mut random, &pieces));
            if kept.is_empty() {
                continue;
            }
            let out = written(text, &pieces, &kept);
            if let Err(error) = serde_json::from_str::<serde_json::Value>(&out) {
                panic!("{error}: {out}");
            }
        }
    }
}

#[test]
fn every_choice_of_json_lines_parses_line_by_line() {
    let mut random = fastrand::Rng::with_seed(13);
    let text = TEXTS[2];
    let pieces = pieces(text, Kind::Json);
    for _ in 0..300 {
        let kept = closure(&pieces, choice(&mut random, &pieces));
        let out = written(text, &pieces, &kept);
        for line in out.lines() {
            assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
        }
    }
}

#[test]
fn kinds_are_told_apart() {
    let kinds = [
        Kind::Json,
        Kind::Json,
        Kind::Json,
        Kind::Code,
        Kind::Code,
        Kind::Code,
        Kind::Html,
        Kind::Markdown,
        Kind::Log,
        Kind::Chat,
        Kind::Table,
        Kind::Table,
        Kind::Pdf,
        Kind::Mail,
        Kind::Subtitles,
        Kind::Log,
    ];
    for (text, kind) in TEXTS.iter().zip(kinds) {
        assert_eq!(kind_of(text), kind, "{}", &text[..text.floor_char_boundary(80)]);
    }
    let prose = [
        "",
        "One line.",
        "The Wright flyer (1903) flew at 10:35. It had: two wings, a rudder; and more.\nIt was built in Dayton.",
        "He said: \"No.\"\nShe said: \"Yes.\"\nThey left.",
        "In `main` we call `run(x)`. Then `x < y` holds, and <b>bold</b> is a tag.",
        "[1] See the list of authors: A. Smith, B. Jones, C. Brown, D. White, E. Black.",
    ];
    for text in prose {
        assert_eq!(kind_of(text), Kind::Prose, "{text}");
    }
}

#[test]
fn a_long_line_of_anything_is_read_in_linear_time() {
    let long = 2 << 20;
    let units = [
        "a",
        " ",
        "[",
        "{",
        "\"",
        "{\"a\":",
        "[1,",
        "{\"a\":1},",
        "}",
        "<",
        "<p>",
        "<div>",
        "<a b=\"",
        "</p>",
        "| ",
        "a,",
        "\"a,",
        "a  ",
        "* ",
        "# ",
        "(",
        "'''",
        "/*",
        "\\",
        "1:00 ",
        "é",
        "?",
        ". ",
        "<!--",
        "&",
        "a b=1 ",
    ];
    for unit in units {
        let text = unit.repeat(long / unit.len() / 4);
        for kind in KINDS {
            let start = std::time::Instant::now();
            let _ = (kind_of(&text), outline(&text, kind, &sentences));
            let millis = start.elapsed().as_millis();
            // Quadratic work would take minutes.
            assert!(millis < 15_000, "{kind:?} of {unit:?} took {millis} ms");
        }
    }
}

#[test]
fn many_lines_of_anything_are_read_in_linear_time() {
    let units = [
        "a\n",
        " a\n",
        "\"a,b\n",
        "```\n",
        "```x\n",
        "{\n",
        "}\n",
        "- a\n",
        "# a\n",
        "a:\n",
        "'''\n",
        "@a(\n",
        "a(\n",
        "| a\n",
        "<p>\n",
        "\"a\":1,\n",
        "else\n",
        "// a\n",
        "[a]\n",
        "09:00 A: b?\n",
        "a\n ",
        "  \n",
        "{\"ts\":1}\n",
        "a \\\n",
        "/*\n",
        "<li>\n",
        "<ul><li>\n",
        "try:\n",
        "12\n",
        "> a\n",
        "1. Do it.\n",
        "   Tt\n - x\n     - q\n",
        "Tea ........ 3\n",
        "Name: a\nBorn: 1\n\n",
        "Q: a?\nA: b.\n",
        "1.2 It is.\n1.3 Clause 1.2 does not apply.\n",
        "1\n00:01:00,000 --> 00:01:02,000\na\n\n",
        "a.B: c\n\tat d.e(F.java:1)\nCaused by: g.H: i\n",
    ];
    for unit in units {
        let text = unit.repeat((1 << 18) / unit.len());
        for kind in KINDS {
            let start = std::time::Instant::now();
            let _ = (kind_of(&text), outline(&text, kind, &sentences));
            let millis = start.elapsed().as_millis();
            // Quadratic work would take minutes.
            assert!(millis < 15_000, "{kind:?} of {unit:?} took {millis} ms");
        }
    }
}

#[test]
fn what_a_piece_requires_has_a_bound() {
    const PIECES_MAX: usize = 24;
    let units = [
        "It is red. ",
        "It is red. That is wrong. ",
        "They are red. However, not all. ",
        "Do it. Then stop. ",
        "1. Do it.\n",
        "- It is a key.\n",
        "1.2 It is.\n1.3 Clause 1.2 does not apply.\n",
        "Name: a\nBorn: 1\n\n",
        "Is it red?\nIt is.\n\n",
        "> Is it?\nNo.\n",
        "1\n00:01:00,000 --> 00:01:02,000\nit goes on\n\n",
        "Table 1 Fees\nIt is a fee. ",
    ];
    for unit in units {
        let text = format!("The hotel is old.\n{}", unit.repeat(200));
        for kind in [Kind::Prose, Kind::Markdown, Kind::Pdf, Kind::Mail, Kind::Subtitles] {
            let pieces = pieces(&text, kind);
            for piece in
                [pieces.len() / 2, pieces.len().saturating_sub(1)].into_iter().filter(|_| !pieces.is_empty())
            {
                let group = closure(&pieces, vec![piece]).len();
                assert!(group <= PIECES_MAX, "{kind:?} of {unit:?}: {group} pieces");
            }
        }
    }
}

#[test]
fn a_text_that_is_no_json_is_not_read_as_json() {
    let check = |text: &str, expect| assert_eq!(Layout::detect(text, Kind::Json).kind, expect, "{text}");
    check("08:00:12 WARN [job-8] disk full\n08:00:15 ERROR [job-8] backup failed", Kind::Prose);
    check("def connect(self):\n    self.session = {}\n    return [self]", Kind::Prose);
    check("[\"a\", \"b\"]", Kind::Json);
    check("{\"a\": 1, \"b\": [2", Kind::Json);
}

#[test]
fn encoded_data_is_never_chosen() {
    let data: String = (0..60).map(|n| format!("iVBORw0KGgo{n:03}Ax")).collect();
    let text = format!("The logo is blue.\n\n![logo](data:image/png;base64,{data})\n\nIt was drawn in 1998.");
    let frames = |text: &str, kind: Kind| -> Vec<bool> {
        outline(text, kind, &sentences).unwrap_or_default().iter().map(|piece| piece.is_frame()).collect()
    };
    let found = frames(&text, Kind::Prose);
    assert!(
        !found[0] && !found[found.len() - 1] && found[1..found.len() - 1].iter().all(|frame| *frame),
        "{found:?}"
    );
    let url = "https://example.org/".to_owned() + &"a-long-path/".repeat(30);
    assert_eq!(frames(&format!("See {url} for more. The rest is short."), Kind::Prose), [] as [bool; 0]);
}
