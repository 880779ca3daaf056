//! Entries of a journal of registered chunks, as another sidecar wrote them: a letter, then the bytes. What can be read must come back
//! the same when it is written again.

use libfuzzer_sys::Corpus;
use thresher_registry::log::{self, Position};

pub fn run(data: &[u8]) -> Corpus {
    let Some((letter, bytes)) = data.split_first() else { return Corpus::Reject };
    match letter {
        b'e' => {
            let Some(changes) = log::decode_changes(bytes) else { return Corpus::Keep };
            let again = log::decode_changes(&log::encode_changes(&changes)).expect("what was just written");
            assert_eq!(changes, again);
        }
        b'c' => {
            let Some(chunk) = log::decode_chunk(bytes) else { return Corpus::Keep };
            assert_eq!(log::decode_chunk(&log::encode_chunk(&chunk)).expect("what was just written"), chunk);
        }
        b'p' => {
            let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
            let Ok(position) = text.parse::<Position>() else { return Corpus::Keep };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        _ => return Corpus::Reject,
    }
    Corpus::Keep
}
