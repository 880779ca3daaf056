//! Answers of upstreams: a letter for the API's dialect, a number for the length of pieces in which it arrives, then its bytes.
//! Nothing of an answer may be lost or changed, but where citations of a response or the sentences of a message renumber it, and what is held of
//! it is bounded.

use libfuzzer_sys::Corpus;
use serde_json::json;
use thresher::api::anthropic::CitedSpan;
use thresher::middleware::answer::{self, TEXT_BYTES};
use thresher::middleware::dialect::Dialect;
use thresher::middleware::json::{Edits, Located};
use thresher::middleware::sse::Events;
use thresher::middleware::stream::{AnswerStream, Step};
use thresher_core::domain::ByteRange;

const HELD_BYTES_MAX: usize = 2_000;

/// As the middleware has it: eight for each byte of text that may be held.
const EVENT_BYTES_MAX: usize = 8 * HELD_BYTES_MAX;

pub fn run(data: &[u8]) -> Corpus {
    let [letter, step, answer @ ..] = data else { return Corpus::Reject };
    let dialect = match letter {
        b'c' => Dialect::Chat,
        b'r' => Dialect::Responses,
        b'm' => Dialect::Messages,
        _ => return Corpus::Reject,
    };
    whole(dialect, answer);

    let mut events = Events::new(EVENT_BYTES_MAX);
    let mut arriving = AnswerStream::new(dialect, HELD_BYTES_MAX);
    let (mut came, mut ended_bytes, mut is_renumbered) = (Vec::new(), 0, false);
    let mut pieces = answer.chunks(usize::from(*step).max(1));
    for piece in pieces.by_ref() {
        for event in events.push(piece) {
            came.extend_from_slice(&event);
            let mut passed = Vec::new();
            for step in arriving.read(event.clone()) {
                match step {
                    Step::Cite { finished, event } => {
                        // Several sentences of a message are one text.
                        let more_bytes = if dialect == Dialect::Messages { 0 } else { TEXT_BYTES };
                        ended_bytes += finished.text.len() + more_bytes;
                        let told = arriving.cite(finished, vec![json!({"type": "url_citation"})], &event);
                        assert!(!told.is_empty(), "a citation is lost");
                        is_renumbered |= dialect != Dialect::Chat;
                    }
                    Step::Forward(event) => passed.extend_from_slice(&arriving.forward(event)),
                    Step::Send(bytes) => passed.extend_from_slice(&bytes),
                }
            }
            assert!(arriving.held_bytes() <= HELD_BYTES_MAX, "more is held than may be");
            assert!(ended_bytes <= HELD_BYTES_MAX, "more is cited than may be held");
            // Text of a message may be held back.
            let is_whole = passed == event || is_renumbered || dialect == Dialect::Messages;
            assert!(is_whole, "an event is changed");
        }
        // What comes then goes on as it comes.
        if arriving.is_over() || events.is_too_long() {
            break;
        }
    }
    let held_bytes = events.held_bytes();
    assert!(held_bytes <= EVENT_BYTES_MAX + usize::from(u8::MAX), "more of an event is held than may be");
    came.extend_from_slice(&events.rest());
    assert_eq!(events.held_bytes(), 0, "what went on is held");
    pieces.for_each(|piece| came.extend_from_slice(piece));
    assert!(came == answer, "events lose or add bytes");
    Corpus::Keep
}

/// The same bytes as an answer that comes whole.
fn whole(dialect: Dialect, answer: &[u8]) {
    let Ok(text) = std::str::from_utf8(answer) else { return };
    let Ok(located) = Located::parse(text) else { return };
    let (texts, _) = answer::texts(dialect, located, HELD_BYTES_MAX);
    let mut edits = Edits::default();
    for text in &texts {
        let middle = text.text.floor_char_boundary(text.text.len() / 2);
        let span =
            |start, end| CitedSpan { bytes: ByteRange::new(start, end), citations: vec![json!({"n": 1})] };
        let spans = [span(0, middle), span(middle, text.text.len())];
        answer::cite(dialect, text, &spans, &mut edits);
    }
    let cited = edits.apply(text);
    assert!(Located::parse(&cited).is_ok(), "not JSON: {cited}");
}
