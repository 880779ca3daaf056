//! Receipts that somebody hands over to be verified. None of the seeds may hold after a change.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use thresher::receipt::Receipt;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(receipt) = serde_json::from_slice::<Receipt>(data) else { return Corpus::Reject };
    let _ = receipt.key();
    let _ = receipt.statement(None);
    Corpus::Keep
});
