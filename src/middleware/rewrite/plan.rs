//! Decides how each turn of a conversation is sent: as before, whole, encoded, or compressed.

use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::cancel::Cancel;

use super::SentTurn;
use crate::middleware::find::Turn;

/// How much of a conversation is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every turn, for its own question.
    AllTurns,
    /// The newest turn. Earlier turns are sent as they were sent before, but with `again`, those that went whole for lack of time are
    /// compressed now.
    NewestTurn { again: bool },
    /// Nothing: all turns are sent as they were sent before.
    AsBefore,
    /// Nothing: earlier turns are sent as they were sent before, and the newest one whole.
    NewestWhole,
}

/// How one turn is sent. A turn that was never sent shortened is sent whole.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnPlan {
    /// The turn is sent byte for byte as it was sent before.
    AsBefore(SentTurn),
    Whole {
        /// Whether that is recorded: a turn without a record is resent whole, so only one that has a record, or instructions, need it.
        is_recorded: bool,
        /// Whether there was no time to read it, which is recorded, too.
        is_late: bool,
    },
    /// Results of tools are encoded, and nothing is left out: the turn cannot be compressed.
    Encode {
        /// Whether it is recorded even if nothing is encoded.
        is_recorded: bool,
        /// Whether that is for lack of time.
        is_late: bool,
    },
    Compress {
        /// Whether it is recorded even if nothing is shortened.
        is_recorded: bool,
    },
}

/// Decides how each turn of a conversation is sent. `before` is what was sent of a turn, if the store has it, and `options` the id of the
/// options of this request. Instructions, which begin a conversation, are compressed when they are first seen, and never after that.
///
/// # Errors
/// Fails if `cancel` is cancelled, which is checked before every turn.
pub fn plan(
    turns: &[Turn],
    extent: Extent,
    options: &str,
    before: &dyn Fn(&[u8; 32]) -> Option<SentTurn>,
    cancel: &Cancel,
) -> Result<Vec<TurnPlan>, PipelineError> {
    let mut plans = Vec::with_capacity(turns.len());
    for (at, turn) in turns.iter().enumerate() {
        cancel.check()?;
        plans.push(plan_turn(turn, at + 1 == turns.len(), extent, options, before));
    }
    Ok(plans)
}

fn plan_turn(
    turn: &Turn,
    is_newest: bool,
    extent: Extent,
    options: &str,
    before: &dyn Fn(&[u8; 32]) -> Option<SentTurn>,
) -> TurnPlan {
    if extent == Extent::AllTurns {
        return TurnPlan::Compress { is_recorded: false };
    }
    let stays = |sent: &SentTurn| match extent {
        Extent::NewestTurn { again: true } if sent.late => false,
        _ if !is_newest => true,
        Extent::NewestTurn { .. } => sent.options == options,
        Extent::AsBefore => true,
        Extent::AllTurns | Extent::NewestWhole => false,
    };
    let found = before(&turn.key).filter(|sent| sent.fits_turn(turn));
    // A client may have changed or cut what is before an older turn, or another text of the turn.
    let found = found.or_else(|| {
        if is_newest || turn.is_instructions { None } else { SentTurn::from_results(turn, before) }
    });
    let is_recorded = match found {
        Some(sent) if stays(&sent) => return TurnPlan::AsBefore(sent),
        Some(_) => true,
        None if is_newest || turn.is_instructions => turn.is_instructions,
        None => return TurnPlan::Whole { is_recorded: false, is_late: false },
    };
    match extent {
        Extent::NewestTurn { .. } => TurnPlan::Compress { is_recorded },
        _ => TurnPlan::Whole { is_recorded, is_late: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::json::Located;
    use crate::middleware::rewrite::tests::{conversation, turns_of};

    #[test]
    fn each_turn_has_one_plan() {
        let text = conversation(2);
        let mut turns = turns_of(Located::parse(&text).expect("JSON"));
        turns.truncate(2);
        let [first, second] = [turns[0].key, turns[1].key];
        let late =
            |options: &str, late| SentTurn { options: options.into(), late, ..SentTurn::whole(&turns[0]) };
        let sent = |options: &str| late(options, false);
        let whole = |is_recorded| TurnPlan::Whole { is_recorded, is_late: false };
        let compress = |is_recorded| TurnPlan::Compress { is_recorded };
        let newest = Extent::NewestTurn { again: false };
        let as_before = |options: &str| TurnPlan::AsBefore(sent(options));
        let plan = |turns: &[Turn], extent, before: &dyn Fn(&[u8; 32]) -> Option<SentTurn>| {
            plan(turns, extent, "now", before, &Cancel::default()).expect("not cancelled")
        };
        let check = |name: &str, extent, stored: &[([u8; 32], &str)], expect: [TurnPlan; 2]| {
            let before = |key: &[u8; 32]| {
                stored.iter().find(|(stored, _)| stored == key).map(|(_, options)| sent(options))
            };
            assert_eq!(plan(&turns, extent, &before), expect, "{name}");
        };
        let both = [(first, "then"), (second, "now")];
        let other = [(first, "then"), (second, "then")];
        check("new", newest, &[], [whole(false), compress(false)]);
        check("sent with the same options", newest, &both, [as_before("then"), as_before("now")]);
        check("sent with other options", newest, &other, [as_before("then"), compress(true)]);
        check("not compressed, new", Extent::AsBefore, &[], [whole(false), whole(false)]);
        check("not compressed", Extent::AsBefore, &other, [as_before("then"), as_before("then")]);
        check("the newest whole", Extent::NewestWhole, &both, [as_before("then"), whole(true)]);
        check("all", Extent::AllTurns, &both, [compress(false), compress(false)]);
        let again = Extent::NewestTurn { again: true };
        let was_late = |key: &[u8; 32]| (*key == first).then(|| late("then", true));
        let as_late = TurnPlan::AsBefore(late("then", true));
        assert_eq!(plan(&turns, newest, &was_late), [as_late, compress(false)], "too late, and cached since");
        assert_eq!(plan(&turns, again, &was_late), [compress(true), compress(false)], "too late");
        let unfit = SentTurn { kept: vec![Some(vec![(0, 99)])], ..sent("now") };
        let found = plan(&turns, Extent::AsBefore, &|_| Some(unfit.clone()));
        assert_eq!(found, [whole(false), whole(false)], "what was sent does not fit the texts");
        turns[0].is_instructions = true;
        let found = plan(&turns, newest, &|_| None);
        assert_eq!(found, [compress(true), compress(false)], "new instructions");
    }
}
