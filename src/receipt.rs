//! Receipts: a signed record of what an attribution was asked and what it said, which anybody can check later and replay.
//!
//! A receipt is a DSSE envelope (github.com/secure-systems-lab/dsse): a payload, and an Ed25519 signature of it and its type. The payload
//! is a [`Statement`] as JSON: hashes of what came in, never the texts, and every place, score and verdict that was found.

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

/// The payload's type, which is signed with it.
pub const PAYLOAD_TYPE: &str = "application/vnd.thresher.attribution+json";

/// A statement and its signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    payload_type: String,
    /// Base64 of a [`Statement`] as JSON.
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Signature {
    /// Base64 of the public key.
    keyid: String,
    /// Base64.
    sig: String,
}

/// Why a receipt proves nothing.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each message says it")]
pub enum ReceiptError {
    #[error("the payload's type is {0:?}, not {PAYLOAD_TYPE:?}")]
    Type(String),
    #[error("{0} is not base64")]
    Base64(&'static str),
    #[error("it has {0} signatures, not one")]
    Signatures(usize),
    #[error("it was signed by {found}, not by {expected}")]
    OtherKey { found: String, expected: String },
    #[error("the signature does not fit the payload: one of them was changed")]
    Signature,
    #[error("the payload is no statement: {0}")]
    Payload(#[from] serde_json::Error),
}

impl Receipt {
    /// Signs what an attribution was asked and what it said.
    pub fn of(request: &AttributeRequest, attributed: &Attributed, by: &Pipeline, key: &SigningKey) -> Self {
        Self::sign(&Statement::new(request, attributed, by), key)
    }

    /// Signs a statement.
    ///
    /// # Panics
    /// Never: a statement is JSON.
    pub fn sign(statement: &Statement, key: &SigningKey) -> Self {
        let payload = serde_json::to_vec(statement).expect("a statement is JSON");
        let sig = BASE64.encode(key.sign(&signed(PAYLOAD_TYPE, &payload)));
        Self {
            payload_type: PAYLOAD_TYPE.to_owned(),
            payload: BASE64.encode(payload),
            signatures: vec![Signature { keyid: key.public(), sig }],
        }
    }

    /// The statement, if `public_key` signed it; without one, whoever did.
    ///
    /// # Errors
    /// Why it proves nothing.
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
        let decode = |text: &str, what| BASE64.decode(text).map_err(|_| ReceiptError::Base64(what));
        let (payload, sig, key) =
            (decode(&self.payload, "payload")?, decode(sig, "sig")?, decode(keyid, "keyid")?);
        if !key::verifies(&key, &signed(&self.payload_type, &payload), &sig) {
            return Err(ReceiptError::Signature);
        }
        Ok(serde_json::from_slice(&payload)?)
    }

    /// Who signed it, as it says itself.
    pub fn key(&self) -> Option<&str> {
        self.signatures.first().map(|signature| &*signature.keyid)
    }
}

/// What DSSE signs: its pre-authentication encoding.
fn signed(payload_type: &str, payload: &[u8]) -> Vec<u8> {
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
    fn what_was_signed_comes_back() {
        let key = SigningKey::generate().expect("there is randomness");
        let receipt = Receipt::sign(&statement(), &key);
        assert_eq!(receipt.statement(None).expect("just signed"), statement());
        assert_eq!(receipt.statement(Some(&key.public())).expect("by this key"), statement());
        let other = SigningKey::generate().expect("there is randomness").public();
        assert!(matches!(receipt.statement(Some(&other)), Err(ReceiptError::OtherKey { .. })));
    }

    #[test]
    fn nothing_of_an_envelope_can_be_changed() {
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

    /// Every single value of the statement: the signature covers it, and a replay would find it.
    #[test]
    fn nothing_of_a_statement_can_be_changed() {
        let key = SigningKey::generate().expect("there is randomness");
        let honest = serde_json::to_value(statement()).expect("JSON");
        let receipt = Receipt::sign(&statement(), &key);
        let places = leaves(&honest, String::new());
        assert!(places.len() > 25, "{places:?}");
        for place in places {
            let mut changed = honest.clone();
            let value = changed.pointer_mut(&place).expect("a place of it");
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
            assert!(matches!(forged.statement(None), Err(ReceiptError::Signature)), "{place} is signed");
            if ["/issued_at", "/thresher"].contains(&&*place) {
                continue;
            }
            // Some changes give what is no statement at all: then the reader says so.
            let Ok(changed) = serde_json::from_value::<Statement>(changed) else { continue };
            let found: Vec<String> = changed.compare(&statement()).into_iter().map(|d| d.place).collect();
            assert_eq!(found, [place], "the replay says where");
        }
    }

    /// A receipt of a compression says what was seen; over other texts there is nothing to lay it over.
    #[test]
    fn what_cannot_be_replayed_is_said_and_not_tried() {
        let chunk = |text: &str| {
            Arc::new(Chunk { id: "a".to_owned(), title: None, text: text.to_owned(), metadata: None })
        };
        let found = statement().compare_input("é", &[chunk("aaaaaaaaé of more than nine bytes"), chunk("b")]);
        let places: Vec<&str> = found.iter().map(|difference| &*difference.place).collect();
        assert!(
            places.contains(&"/answer/sha256") && places.contains(&"/chunks/0/text/sha256"),
            "{places:?}"
        );
        assert!(places.contains(&"/chunks/0/seen"), "{places:?}: byte 9 is inside a character");
    }

    fn leaves(value: &Value, place: String) -> Vec<String> {
        let below = |(key, value): (String, &Value)| leaves(value, format!("{place}/{key}"));
        match value {
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.clone(), value)).flat_map(below).collect()
            }
            Value::Array(list) => {
                list.iter().enumerate().map(|(i, value)| (i.to_string(), value)).flat_map(below).collect()
            }
            _ => vec![place],
        }
    }
}
