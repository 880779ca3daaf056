//! Answers of upstreams: a letter for the API's dialect, a number for the length of pieces in which it arrives, then its bytes.
//! Nothing of an answer may be lost, and what is held of it is bounded.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::json;
use thresher::proxy::answer;
use thresher::proxy::dialect::Dialect;
use thresher::proxy::json::{Edits, Located};
use thresher::proxy::stream::{self, Arriving, Events};

const HELD_BYTES_MAX: usize = 2_000;

fuzz_target!(|data: &[u8]| -> Corpus {
    let [letter, step, answer @ ..] = data else { return Corpus::Reject };
    let dialect = match letter {
        b'c' => Dialect::Chat,
        b'r' => Dialect::Responses,
        b'm' => Dialect::Messages,
        _ => return Corpus::Reject,
    };
    whole(dialect, answer);

    let (mut events, mut arriving) = (Events::new(usize::MAX), Arriving::new(dialect, HELD_BYTES_MAX));
    let mut passed = Vec::new();
    for piece in answer.chunks(usize::from(*step).max(1)) {
        for event in events.push(piece) {
            passed.extend_from_slice(&event);
            for ended in arriving.look(&event) {
                let _ = arriving.cite(ended, vec![json!({"type": "url_citation"})], stream::number(&event));
            }
            let _ = arriving.passed(event);
        }
    }
    passed.extend_from_slice(&events.rest());
    assert!(passed == answer, "events lose or add bytes");
    assert!(arriving.held_bytes() <= HELD_BYTES_MAX + answer.len(), "more is held than came");
    Corpus::Keep
});

/// The same bytes as an answer that comes whole.
fn whole(dialect: Dialect, answer: &[u8]) {
    let Ok(text) = std::str::from_utf8(answer) else { return };
    let Ok(located) = Located::parse(text) else { return };
    let (texts, _) = answer::texts(dialect, located, HELD_BYTES_MAX);
    let mut edits = Edits::default();
    texts.iter().for_each(|text| answer::cite(dialect, text, &[json!({"n": 1})], &mut edits));
    let cited = edits.apply(text);
    assert!(Located::parse(&cited).is_ok(), "not JSON: {cited}");
}
