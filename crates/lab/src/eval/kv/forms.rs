//! Chooses the form of eviction by RC that suits a model (`thresher calibrate --kv`): measures every form on
//! half of the questions, and the best one beside the published methods on the other half.
//!
//! No labels are needed: the model continues each question with all keys, and a form is good if the model's
//! distribution over the next tokens stays the same with the kept keys.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use thresher_core::Engine;
use thresher_core::model::KeyMask;
use thresher_core::model::contract::{BudgetScope, EvictionForm};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::evict::{Eviction, HeadBudget};
use thresher_core::pipeline::kv_export;
use thresher_core::rc::OverQuestion;

use super::methods::Method;
use super::reading::ReadRow;
use super::rows::{self, KvRow, RowOptions};
use super::scores::KeyScores;
use super::{RATIOS, for_each_row};
use crate::eval::estimate::{Estimate, bootstrap_mean};

/// The ratios at which forms are compared.
const COMPARED_RATIOS: [u32; 3] = [4, 8, 16];

/// The number of tokens by which the model continues each question.
const CONTINUATION_TOKENS: usize = 6;

/// The seed of the continuations, together with the index of the question.
const SEED: u64 = 0x00D1_CE00;

/// The fewest questions for a choice: half of them choose, half of them test.
const QUESTIONS_MIN: usize = 8;

/// A measured form.
#[derive(Debug, Clone)]
pub struct MeasuredForm {
    /// The form.
    pub form: EvictionForm,
    /// The mean KL divergence in nats at each of the compared ratios, on the half that chooses.
    pub kl: Vec<f64>,
}

/// The result of [`calibrate`].
#[derive(Debug, Clone)]
pub struct FormChoice {
    /// All forms with their losses on the half that chooses, best first.
    pub forms: Vec<MeasuredForm>,
    /// The number of questions.
    pub questions: usize,
    /// For each of [`RATIOS`] and each method, the KL divergence on the other half. `rc` is the best form.
    pub held_out: BTreeMap<u32, Vec<(&'static str, Estimate)>>,
}

impl FormChoice {
    /// The ratios at which forms are compared: one key in N is kept.
    pub fn compared_ratios() -> &'static [u32] {
        &COMPARED_RATIOS
    }

    /// Returns the best form.
    pub fn best(&self) -> EvictionForm {
        self.forms[0].form
    }

    /// Returns the KL divergence of the best form on the other half, for each of [`RATIOS`].
    pub fn held_out_of_best(&self) -> Vec<f64> {
        let rc = |ratio: u32| self.held_out[&ratio].iter().find(|(name, _)| *name == Method::Rc.name());
        RATIOS.into_iter().filter_map(rc).map(|(_, kl)| kl.mean).collect()
    }
}

/// Returns the forms that are compared.
fn candidates() -> Vec<EvictionForm> {
    let mut forms = Vec::new();
    for over_question in [OverQuestion::Peak, OverQuestion::RootMeanSquare, OverQuestion::Mean] {
        for neighbours in [1, 5] {
            for budget in [BudgetScope::Head, BudgetScope::Layer, BudgetScope::Model] {
                forms.push(EvictionForm { over_question, neighbours, budget, floor: 0.2 });
            }
        }
    }
    forms
}

/// Compares the forms on the questions of a file. `progress` is called after each question with the number
/// done and the number of all.
///
/// # Errors
/// Fails if the file has fewer than eight questions, and otherwise as [`super::evaluate`] does.
pub fn calibrate(
    path: &Path,
    engine: &Engine,
    options: &RowOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<FormChoice> {
    let rows = rows::read(path, options)?;
    if rows.len() < QUESTIONS_MIN {
        bail!(
            "{} has {} questions; at least {QUESTIONS_MIN} are needed: one half chooses the form, the other half tests it",
            path.display(),
            rows.len()
        );
    }
    let forms = candidates();
    // Each question counts once for progress: one half here, the other half below.
    let all = rows.len();
    let half = |which: usize| rows.iter().skip(which).step_by(2).cloned().collect::<Vec<KvRow>>();
    let (chosen_on, held_out) = (half(0), half(1));
    let place = |index: usize, which: usize| rows::place(path, 2 * index + which);
    let measured = for_each_row(&chosen_on, &|done, _| progress(done, all), |row, index| {
        losses_of_forms(row, index, engine, options, &forms).with_context(|| place(index, 0))
    })?;
    let mean = |form: usize, ratio: usize| {
        measured.iter().map(|row| row[form * COMPARED_RATIOS.len() + ratio]).sum::<f64>()
            / measured.len() as f64
    };
    let kl = |form: usize| (0..COMPARED_RATIOS.len()).map(|ratio| mean(form, ratio)).collect::<Vec<_>>();
    let mut forms: Vec<MeasuredForm> =
        forms.iter().enumerate().map(|(i, &form)| MeasuredForm { form, kl: kl(i) }).collect();
    // Ratios count equally, although losses grow with them: the product of the losses decides.
    let product = |form: &MeasuredForm| form.kl.iter().map(|kl| kl.max(f64::MIN_POSITIVE).ln()).sum::<f64>();
    forms.sort_by(|a, b| product(a).total_cmp(&product(b)));
    let best = forms[0].form;
    let tested = for_each_row(&held_out, &|done, _| progress(chosen_on.len() + done, all), |row, index| {
        losses_of_methods(row, index, engine, options, &best).with_context(|| place(index, 1))
    })?;
    let estimate = |case: usize| bootstrap_mean(&tested.iter().map(|row| row[case]).collect::<Vec<_>>());
    let of_ratio = |at: usize| {
        let methods = Method::ALL.iter().enumerate();
        methods.map(|(i, method)| (method.name(), estimate(at * Method::ALL.len() + i))).collect()
    };
    let held_out = RATIOS.into_iter().enumerate().map(|(at, ratio)| (ratio, of_ratio(at))).collect();
    Ok(FormChoice { forms, questions: all, held_out })
}

fn continued<'a>(
    row: &KvRow,
    index: usize,
    engine: &'a Engine,
    options: &RowOptions,
) -> anyhow::Result<ReadRow<'a>> {
    ReadRow::with_own_continuation(row, engine, options, (CONTINUATION_TOKENS, SEED + index as u64))
}

/// Returns the KL divergence of one question for each form and, within a form, each compared ratio.
fn losses_of_forms(
    row: &KvRow,
    index: usize,
    engine: &Engine,
    options: &RowOptions,
    forms: &[EvictionForm],
) -> anyhow::Result<Vec<f64>> {
    let read = continued(row, index, engine, options)?;
    let pipeline = engine.pipeline();
    let decoder = kv_export::check_model(pipeline.model())?;
    let cancel = Cancel::default();
    let attention = pipeline.attend_export(&read.kv_export, &read.question, &cancel)?;
    let mut masks: Vec<KeyMask> = Vec::new();
    let mut scores = None;
    for form in forms {
        // Forms with the same scores follow one another.
        let is_same = |(of, _): &(EvictionForm, _)| {
            (of.over_question, of.neighbours) == (form.over_question, form.neighbours)
        };
        let (_, scores) = match scores.take().filter(is_same) {
            Some(found) => scores.insert(found),
            None => scores.insert((*form, attention.rc_of_keys(form))),
        };
        for ratio in COMPARED_RATIOS {
            let eviction = Eviction::of(HeadBudget::Ratio(1.0 / f64::from(ratio)));
            let kept = eviction.choose(scores, decoder.prefix_tokens(), form)?;
            masks.push(decoder.mask_of_all_layers(&kept));
        }
    }
    let (_, losses) = read.losses(&masks.iter().collect::<Vec<_>>())?;
    Ok(losses.into_iter().map(|loss| loss.kl).collect())
}

/// Returns the KL divergence of one question for each ratio and, within a ratio, each method. `rc` has the
/// given form.
fn losses_of_methods(
    row: &KvRow,
    index: usize,
    engine: &Engine,
    options: &RowOptions,
    form: &EvictionForm,
) -> anyhow::Result<Vec<f64>> {
    let read = continued(row, index, engine, options)?;
    let scores = KeyScores::new(&read, engine, form, index)?;
    let cases = RATIOS.into_iter().flat_map(|ratio| Method::ALL.map(|method| (ratio, method)));
    let decoder = kv_export::check_model(engine.pipeline().model())?;
    let mask = |(ratio, method): (u32, Method)| {
        anyhow::Ok(decoder.mask_of_all_layers(&method.select_keys(&scores, ratio)?))
    };
    let masks: Vec<KeyMask> = cases.map(mask).collect::<anyhow::Result<_>>()?;
    let (_, losses) = read.losses(&masks.iter().collect::<Vec<_>>())?;
    Ok(losses.into_iter().map(|loss| loss.kl).collect())
}
