//! Receipts that somebody hands over to be verified. No receipt but the seed may hold as signed by the seed's key.

use std::sync::LazyLock;

use libfuzzer_sys::Corpus;
use thresher::receipt::Receipt;

/// A receipt that is signed. Its private key is not here.
static SEED: LazyLock<Receipt> = LazyLock::new(|| {
    serde_json::from_slice(include_bytes!("../../seeds/receipts/signed")).expect("a receipt")
});

pub fn run(data: &[u8]) -> Corpus {
    let Ok(receipt) = serde_json::from_slice::<Receipt>(data) else { return Corpus::Reject };
    let _ = receipt.key();
    let _ = receipt.statement(None);
    // The same fields in other JSON are the same receipt.
    let (holds, is_seed) = (receipt.statement(SEED.key()).is_ok(), receipt == *SEED);
    assert_eq!(holds, is_seed, "whether it holds, and whether it is the seed");
    Corpus::Keep
}
