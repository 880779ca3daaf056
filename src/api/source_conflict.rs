//! Sentences of two sources that disagree, in responses of `POST /v1/compress` and `POST /v1/attribute`.

use schemars::JsonSchema;
use serde::Serialize;
use thresher_core::pipeline::source_conflicts::{DifferenceKind, SourceConflict};
use thresher_core::pipeline::units::Unit;

use super::place::PlaceAnswer;

/// Two sentences of different chunks that say the same of the same thing, with another value.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "SourceConflict")]
pub(super) struct SourceConflictAnswer {
    pub(super) a: StatementAnswer,
    pub(super) b: StatementAnswer,
    /// In what they differ.
    kind: DifferenceKind,
    /// Which of the two is newer, by what their chunks say; left out if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    newer: Option<SideName>,
}

/// A sentence of a chunk that another one contradicts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Statement")]
pub(super) struct StatementAnswer {
    /// The id of the chunk.
    pub(super) chunk: String,
    /// The index of the chunk in the request.
    pub(super) index: usize,
    /// Where the sentence begins in the text of the chunk.
    pub(super) start: usize,
    /// Where it ends.
    pub(super) end: usize,
    /// The sentence.
    pub(super) text: String,
    /// Where the sentence stands in the document of the chunk.
    #[serde(flatten)]
    pub(super) place: PlaceAnswer,
}

/// A side of a conflict.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ConflictSide")]
enum SideName {
    A,
    B,
}

impl SourceConflictAnswer {
    /// The conflicts, with the sentences that `statement` returns for units.
    pub(super) fn all(
        conflicts: &[SourceConflict],
        statement: impl Fn(&Unit) -> StatementAnswer,
    ) -> Vec<Self> {
        let conflict = |SourceConflict { units: [a, b], kind, newer, .. }: &SourceConflict| Self {
            a: statement(a),
            b: statement(b),
            kind: *kind,
            newer: newer.map(|side| if side == 0 { SideName::A } else { SideName::B }),
        };
        conflicts.iter().map(conflict).collect()
    }
}
