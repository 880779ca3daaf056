//! Conversations on their way to an upstream: a letter for the API's dialect, then the body. What goes on must be JSON, and a
//! conversation of which nothing is changed must go on to the byte. Every piece that is found stands in the body.

use libfuzzer_sys::Corpus;
use thresher::middleware::dialect::Dialect;
use thresher::middleware::find::{self, Bounds, CONTEXT_DELIMITERS, Policy};
use thresher::middleware::json::{Edits, Located};
use thresher::middleware::rewrite;
use thresher::middleware::untouched::TextKinds;

pub fn run(data: &[u8]) -> Corpus {
    let Some((letter, body)) = data.split_first() else { return Corpus::Reject };
    let dialect = match letter {
        b'c' => Dialect::Chat,
        b'r' => Dialect::Responses,
        b'm' => Dialect::Messages,
        _ => return Corpus::Reject,
    };
    let Ok(text) = std::str::from_utf8(body) else { return Corpus::Reject };
    // The middleware refuses everything else.
    if !text.trim_start().starts_with('{') {
        return Corpus::Reject;
    }
    let Ok(body) = Located::parse(text) else { return Corpus::Reject };
    let policy = Policy {
        tools: vec!["*".to_owned()],
        tools_untouched: Vec::new(),
        delimiters: Some(CONTEXT_DELIMITERS),
        keeps_documents: false,
        result_tokens_min: 0,
        bounds: Bounds { turn_count_max: 50, piece_count_max: 200 },
    };
    let found = find::turns(&dialect.conversation(body), &policy, &TextKinds::default());
    for piece in found.turns.iter().flat_map(|turn| &turn.passages) {
        assert!(text.get(piece.string.clone()).is_some(), "a piece outside the body");
    }
    let conversation =
        rewrite::Conversation { dialect, body, turns: &found.turns, added: &[], is_cited: true };
    let whole = rewrite::uncompressed(conversation);
    assert_eq!(whole.edits().apply(text), text, "nothing is changed");

    let mut edits = Edits::default();
    dialect.remove_citations(body, &mut edits);
    edits.set_field(body, "stream", "true");
    edits.remove_field(body, "thresher");
    let sent = edits.apply(text);
    assert!(Located::parse(&sent).is_ok(), "not JSON: {sent}");
    Corpus::Keep
}
