//! The reference: which values Y_j the logits of question token j are compared with.
//! Knows nothing of how the comparison is computed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::peaks::EMPTY;

/// The choice of the reference Y_j of question token j. As text it is `self`, `rivals` or `both`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// `self`: the logits of token j over the question's own keys (the self logits), as in the RCStat paper.
    #[serde(rename = "self")]
    SelfLogits,
    /// `rivals`: the peaks of all candidate segments for token j, the scored segment included. A word that
    /// matches every segment then scores low, as with inverse document frequency (IDF).
    Rivals,
    /// `both`: the self logits and the peaks of all candidate segments together.
    Both,
}

/// The error for a text that is not the name of a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reference {0:?} is not one of self, rivals, both")]
pub struct UnknownReference(pub String);

impl Reference {
    /// All references, in the order in which error messages list them.
    pub const ALL: [Self; 3] = [Self::SelfLogits, Self::Rivals, Self::Both];

    /// Appends Y_j to `out`. `self_logits` is row j of the self logits, [`EMPTY`] where query j does not see
    /// the key. `rivals` are the peaks of query j, without those of empty segments.
    pub(super) fn collect<'a>(
        self,
        self_logits: impl IntoIterator<Item = &'a f32>,
        rivals: impl IntoIterator<Item = &'a f32>,
        out: &mut Vec<f32>,
    ) {
        if self != Self::Rivals {
            out.extend(self_logits.into_iter().filter(|&&logit| logit != EMPTY));
        }
        if self != Self::SelfLogits {
            out.extend(rivals);
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SelfLogits => "self",
            Self::Rivals => "rivals",
            Self::Both => "both",
        })
    }
}

impl FromStr for Reference {
    type Err = UnknownReference;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|reference| reference.to_string() == text);
        named.ok_or_else(|| UnknownReference(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, reference: Reference, expect: &[f32]) {
        let mut out = Vec::new();
        reference.collect(&[1.0, 2.0], &[5.0, 7.0], &mut out);
        assert_eq!(out, expect, "{name}");
    }

    #[test]
    fn values_of_each_reference() {
        check("self", Reference::SelfLogits, &[1.0, 2.0]);
        let mut seen = Vec::new();
        Reference::SelfLogits.collect(&[EMPTY, 2.0, EMPTY], &[], &mut seen);
        assert_eq!(seen, [2.0], "keys that the query does not see are left out");
        check("rivals", Reference::Rivals, &[5.0, 7.0]);
        check("both", Reference::Both, &[1.0, 2.0, 5.0, 7.0]);
    }

    #[test]
    fn text_form() {
        for reference in Reference::ALL {
            assert_eq!(reference.to_string().parse(), Ok(reference));
        }
        let error = "own".parse::<Reference>().expect_err("the text form is self");
        assert_eq!(error.to_string(), r#"reference "own" is not one of self, rivals, both"#);
    }
}
