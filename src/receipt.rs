//! Receipts: signed records of attributions, which anybody can verify later and replay.
//!
//! A receipt is a DSSE envelope (github.com/secure-systems-lab/dsse): a payload, and an Ed25519 signature of the payload and its type. The
//! payload is a [`Statement`] as JSON: hashes of the input, never its texts, and every range, score and verdict of the result.

mod key;
mod statement;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::AttributeRequest;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::attribute::Attributed;

pub use self::key::{BEGIN as KEY_BEGIN, KeyError, SigningKey};
pub use self::statement::{Difference, Statement};

/// The type of the payload, which is signed together with the payload.
pub const PAYLOAD_TYPE: &str = "application/vnd.thresher.attribution+json";

/// A statement with its signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    payload_type: String,
    /// Base64 of the statement as JSON.
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Signature {
    /// Base64 of the public key.
    keyid: String,
    /// Base64 of the signature.
    sig: String,
}

#[derive(Debug, Error)]
pub enum ReceiptError {
    #[error("the type of the payload is {0:?}; it must be {PAYLOAD_TYPE:?}")]
    Type(String),
    #[error("{0} is not base64")]
    Base64(&'static str),
    #[error("the receipt has {0} signatures; it must have one")]
    Signatures(usize),
    #[error("the receipt was signed by {found}, not by {expected}")]
    OtherKey { found: String, expected: String },
    #[error("the signature does not match the payload; one of them was changed")]
    Signature,
    #[error(
        "the statement has version {found}, and this version of thresher reads {}; verify it with the version that it names",
        statement::VERSION
    )]
    Version { found: u32 },
    #[error("the payload is not a statement: {0}")]
    Payload(#[from] serde_json::Error),
}

impl Receipt {
    /// Creates and signs the statement of an attribution by the pipeline `by`.
    pub fn issue(
        request: &AttributeRequest,
        attributed: &Attributed,
        by: &Pipeline,
        key: &SigningKey,
    ) -> Self {
        Self::sign(&Statement::new(request, attributed, by), key)
    }

    /// Signs a statement.
    ///
    /// # Panics
    /// Never panics in practice: every statement can be written as JSON.
    pub fn sign(statement: &Statement, key: &SigningKey) -> Self {
        let payload = serde_json::to_vec(statement).expect("a statement is JSON");
        let sig = BASE64.encode(key.sign(&signed_bytes(PAYLOAD_TYPE, &payload)));
        Self {
            payload_type: PAYLOAD_TYPE.to_owned(),
            payload: BASE64.encode(payload),
            signatures: vec![Signature { keyid: key.public(), sig }],
        }
    }

    /// Returns the statement if the signature is valid and by `public_key` (base64). `None` accepts a valid signature by any key.
    ///
    /// # Errors
    /// Fails if the receipt is malformed, if the signature is invalid or by another key, or if the payload is not a statement.
    pub fn statement(&self, public_key: Option<&str>) -> Result<Statement, ReceiptError> {
        if self.payload_type != PAYLOAD_TYPE {
            return Err(ReceiptError::Type(self.payload_type.clone()));
        }
        let [Signature { keyid, sig }] = &self.signatures[..] else {
            return Err(ReceiptError::Signatures(self.signatures.len()));
        };
        if let Some(expected) = public_key.filter(|expected| expected.trim() != keyid) {
            return Err(ReceiptError::OtherKey {
                found: keyid.clone(),
                expected: expected.trim().to_owned(),
            });
        }
        let decode = |text: &str, field| BASE64.decode(text).map_err(|_| ReceiptError::Base64(field));
        let (payload, sig, key) =
            (decode(&self.payload, "payload")?, decode(sig, "sig")?, decode(keyid, "keyid")?);
        if !key::verifies(&key, &signed_bytes(&self.payload_type, &payload), &sig) {
            return Err(ReceiptError::Signature);
        }
        let statement: Statement = serde_json::from_slice(&payload)?;
        match statement.version() {
            statement::VERSION => Ok(statement),
            found => Err(ReceiptError::Version { found }),
        }
    }

    /// Returns the public key (base64) that the receipt names as its signer. The signature is not checked here.
    pub fn key(&self) -> Option<&str> {
        self.signatures.first().map(|signature| &*signature.keyid)
    }
}

/// The bytes that DSSE signs: its pre-authentication encoding.
fn signed_bytes(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use thresher_core::domain::Chunk;

    fn statement() -> Statement {
        serde_json::from_str(include_str!("../tests/fixtures/receipt_statement.json")).expect("a statement")
    }

    #[test]
    fn a_signed_statement_is_returned() {
        let key = SigningKey::generate().expect("there is randomness");
        let receipt = Receipt::sign(&statement(), &key);
        assert_eq!(receipt.statement(None).expect("just signed"), statement());
        assert_eq!(receipt.statement(Some(&key.public())).expect("by this key"), statement());
        let newer = serde_json::from_value({
            let mut newer = serde_json::to_value(statement()).expect("JSON");
            newer["version"] = 3.into();
            newer
        });
        let newer = Receipt::sign(&newer.expect("a statement"), &key);
        assert!(matches!(newer.statement(None), Err(ReceiptError::Version { found: 3 })));
        let other = SigningKey::generate().expect("there is randomness").public();
        assert!(matches!(receipt.statement(Some(&other)), Err(ReceiptError::OtherKey { .. })));
    }

    /// The point has order 1, so that this signature would hold for every payload.
    #[test]
    fn a_key_of_small_order_is_refused() {
        let key = BASE64.encode([&[1][..], &[0; 31]].concat());
        let sig = BASE64.encode([&[1][..], &[0; 63]].concat());
        let signed = Receipt::sign(&statement(), &SigningKey::generate().expect("there is randomness"));
        let forged = Receipt { signatures: vec![Signature { keyid: key, sig }], ..signed };
        assert!(matches!(forged.statement(None), Err(ReceiptError::Signature)));
    }

    #[test]
    fn a_changed_envelope_is_refused() {
        let key = SigningKey::generate().expect("there is randomness");
        let receipt = serde_json::to_value(Receipt::sign(&statement(), &key)).expect("JSON");
        for pointer in ["/payloadType", "/payload", "/signatures/0/keyid", "/signatures/0/sig"] {
            let mut changed = receipt.clone();
            let field = changed.pointer_mut(pointer).expect(pointer);
            let text = field.as_str().expect("text");
            let flipped = if text.starts_with('e') { "f" } else { "e" };
            *field = Value::from(format!("{flipped}{}", &text[1..]));
            let changed: Receipt = serde_json::from_value(changed).expect("the shape is the same");
            assert!(changed.statement(None).is_err(), "{pointer}");
        }
    }

    /// For every single value of the statement: the signature covers it, and a replay would find the change.
    #[test]
    fn a_changed_statement_is_refused() {
        let key = SigningKey::generate().expect("there is randomness");
        let honest = serde_json::to_value(statement()).expect("JSON");
        let receipt = Receipt::sign(&statement(), &key);
        let pointers = leaves(&honest, String::new());
        assert!(pointers.len() > 25, "{pointers:?}");
        for pointer in pointers {
            let mut changed = honest.clone();
            let value = changed.pointer_mut(&pointer).expect("a value of the statement");
            *value = match &value {
                Value::String(text) => Value::from(format!("{text}x")),
                Value::Bool(is) => Value::from(!is),
                Value::Number(number) if number.is_f64() => {
                    Value::from(number.as_f64().expect("a number") + 0.5)
                }
                Value::Number(number) => Value::from(number.as_u64().expect("a count") + 1),
                _ => Value::from(1),
            };
            let payload = BASE64.encode(changed.to_string());
            let forged = Receipt { payload, ..receipt.clone() };
            assert!(matches!(forged.statement(None), Err(ReceiptError::Signature)), "{pointer} is signed");
            if ["/issued_at", "/thresher"].contains(&&*pointer) {
                continue;
            }
            // Some changes make the JSON something other than a statement, which parsing refuses.
            let Ok(changed) = serde_json::from_value::<Statement>(changed) else { continue };
            let found: Vec<String> = changed.compare(&statement()).into_iter().map(|d| d.place).collect();
            assert_eq!(found, [pointer], "the replay names the value");
        }
    }

    /// A receipt of an answer to compressed chunks has the ranges that the model saw; ranges do not fit other texts.
    #[test]
    fn a_statement_about_other_texts_is_not_replayed() {
        let chunk = |text: &str| Arc::new(Chunk::new("a", text));
        let found = statement().compare_input("é", &[chunk("aaaaaaaaé of more than nine bytes"), chunk("b")]);
        let pointers: Vec<&str> = found.iter().map(|difference| &*difference.place).collect();
        assert!(
            pointers.contains(&"/answer/sha256") && pointers.contains(&"/chunks/0/text/sha256"),
            "{pointers:?}"
        );
        assert!(pointers.contains(&"/chunks/0/seen"), "{pointers:?}: byte 9 is inside a character");
    }

    fn leaves(value: &Value, pointer: String) -> Vec<String> {
        let below = |(key, value): (String, &Value)| leaves(value, format!("{pointer}/{key}"));
        match value {
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.clone(), value)).flat_map(below).collect()
            }
            Value::Array(list) => {
                list.iter().enumerate().map(|(i, value)| (i.to_string(), value)).flat_map(below).collect()
            }
            _ => vec![pointer],
        }
    }
}
