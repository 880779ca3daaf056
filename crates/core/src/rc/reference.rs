//! What a query token's logits are compared with: owns the choice of Y_j.
//! Knows nothing of how the comparison is done.

use std::fmt;
use std::str::FromStr;

use super::peaks::{EMPTY, KEY_NONE};

/// The reference Y_j of query token j.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reference {
    /// `self`: the question's own keys, as in the paper.
    Own,
    /// `rivals`: the peaks of all candidate segments, the scored one included. A word that matches everywhere then
    /// counts for little, as with IDF.
    Rivals,
    /// `both`: the two together.
    Both,
}

/// The text names no reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reference {0:?} is not one of self, rivals, both")]
pub struct UnknownReference(pub String);

impl Reference {
    /// Every reference, in the order in which messages name them.
    pub const ALL: [Self; 3] = [Self::Own, Self::Rivals, Self::Both];

    /// Adds Y_j to `out`: `own` is row j of the self logits, [`EMPTY`] where query j does not see the key; `values` and `keys` are row
    /// j of the peaks. Empty segments have no peak, so they are nobody's rival.
    pub(super) fn collect<'a>(
        self,
        own: impl IntoIterator<Item = &'a f32>,
        (values, keys): (&[f32], &[u32]),
        out: &mut Vec<f32>,
    ) {
        if self != Self::Rivals {
            out.extend(own.into_iter().filter(|&&own| own != EMPTY));
        }
        if self != Self::Own {
            let found = values.iter().zip(keys).filter(|&(_, &key)| key != KEY_NONE);
            out.extend(found.map(|(value, _)| value));
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "self",
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
        reference.collect(&[1.0, 2.0], (&[5.0, f32::MIN, 7.0], &[0, KEY_NONE, 3]), &mut out);
        assert_eq!(out, expect, "{name}");
    }

    #[test]
    fn what_each_holds() {
        check("self", Reference::Own, &[1.0, 2.0]);
        let mut seen = Vec::new();
        Reference::Own.collect(&[EMPTY, 2.0, EMPTY], (&[], &[]), &mut seen);
        assert_eq!(seen, [2.0], "what is not seen is not compared with");
        check("rivals leave out the empty", Reference::Rivals, &[5.0, 7.0]);
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
