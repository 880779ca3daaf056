//! Chooses the form of eviction by RC that suits a model (`thresher calibrate --kv`): measures every form on
//! half of the questions, and the best one beside the published methods on the other half.
//!
//! No labels are needed: a question without answers is answered by the model itself with all keys, and a form
//! is good if the model's distribution over the tokens of the answer stays the same with the kept keys.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use thresher_core::Engine;
use thresher_core::model::KeyMask;
use thresher_core::model::contract::{BudgetScope, EvictionForm, KeyScale};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::evict::{Eviction, HeadBudget};
use thresher_core::pipeline::kv_export;
use thresher_core::rc::{OverQuestion, Reference};

use super::methods::Method;
use super::reading::ReadRow;
use super::rows::{self, KvRow, RowOptions};
use super::{RATIOS, for_each_row, losses_of_methods};
use crate::estimate::{Estimate, bootstrap_mean};

const COMPARED_RATIOS: [u32; 2] = [4, 16];

/// The number of tokens of an answer that the model chooses itself.
const ANSWER_TOKENS: usize = 6;

/// The name under which the default form is reported beside the best one.
const RC_DEFAULT: &str = "rc, default";

/// The seed of these answers, together with the index of the question.
const SEED: u64 = 0x00D1_CE00;

/// The fewest questions for a choice: half of them choose, half of them test.
const QUESTIONS_MIN: usize = 8;

#[derive(Debug, Clone)]
pub struct MeasuredForm {
    pub form: EvictionForm,
    /// The mean KL divergence in nats at each of the compared ratios, on the half that chooses.
    pub kl: Vec<f64>,
}

/// The result of [`calibrate`].
#[derive(Debug, Clone)]
pub struct FormChoice {
    /// All forms with their losses on the half that chooses, best first.
    pub forms: Vec<MeasuredForm>,
    /// The chosen form: the best one, or the default. The best one must be better than the default with 95 %
    /// confidence on the half that chooses, and on average on the other half.
    pub chosen: EvictionForm,
    pub questions: usize,
    /// For each of [`RATIOS`] and each method, the KL divergence on the other half. `rc` is the best form. If it
    /// is not the default, `rc, default` follows it.
    pub held_out: BTreeMap<u32, Vec<(&'static str, Estimate)>>,
}

impl FormChoice {
    /// The ratios at which forms are compared: one key in N is kept.
    pub fn compared_ratios() -> &'static [u32] {
        &COMPARED_RATIOS
    }

    /// Returns the KL divergence of the chosen form on the other half, for each of [`RATIOS`].
    pub fn held_out_of_chosen(&self) -> Vec<f64> {
        let is_best = self.forms.first().is_some_and(|best| best.form == self.chosen);
        let names: &[&str] = if is_best { &[Method::Rc.name()] } else { &[RC_DEFAULT, Method::Rc.name()] };
        let of = |ratio: &u32, name: &str| {
            self.held_out[ratio].iter().find(|(of, _)| *of == name).map(|(_, kl)| kl.mean)
        };
        RATIOS.iter().filter_map(|ratio| names.iter().find_map(|name| of(ratio, name))).collect()
    }
}

/// Returns the forms that are compared. Others were never among the best on any model that was measured
/// (`docs/decisions/kv-export.md`).
fn candidates() -> Vec<EvictionForm> {
    let budgets = [
        (KeyScale::RootOfMean, BudgetScope::Model, 0.2),
        (KeyScale::RootOfMean, BudgetScope::Model, 0.5),
        (KeyScale::RootOfMean, BudgetScope::Layer, 0.2),
        (KeyScale::Mean, BudgetScope::Model, 0.2),
        (KeyScale::Logit, BudgetScope::Model, 0.5),
        (KeyScale::Logit, BudgetScope::Layer, 0.2),
        (KeyScale::Logit, BudgetScope::Head, 0.0),
    ];
    let mut forms = Vec::new();
    for reference in [Reference::SelfLogits, Reference::Rivals] {
        for over_question in [OverQuestion::RootMeanSquare, OverQuestion::Peak] {
            for neighbours in [1, 5] {
                let form = |(scale, budget, floor)| EvictionForm {
                    reference,
                    over_question,
                    neighbours,
                    scale,
                    budget,
                    floor,
                };
                forms.extend(budgets.map(form));
            }
        }
    }
    forms
}

/// Compares the forms on the questions of a file. `progress` is called after each question with the number
/// done and the number of all.
///
/// # Errors
/// Fails if the file has fewer than eight questions, if it cannot be read, or if the model fails.
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
        losses_of_forms(row, index, engine, options, &forms, &COMPARED_RATIOS)
            .with_context(|| place(index, 0))
    })?;
    let default = kv_export::check_model(engine.pipeline().model())?.default_eviction;
    let (forms, mut chosen) = choose(&forms, &default, &measured);
    let tested = for_each_row(&held_out, &|done, _| progress(chosen_on.len() + done, all), |row, index| {
        let test = || {
            let read = answered(row, index, engine, options)?;
            let (_, losses) = losses_of_methods(&read, index, engine, &chosen)?;
            let others: &[EvictionForm] = if chosen == default { &[] } else { &[default] };
            anyhow::Ok((losses, losses_of_forms(row, index, engine, options, others, &RATIOS)?))
        };
        test().with_context(|| place(index, 1))
    })?;
    let of_ratio = |(at, ratio): (usize, u32)| {
        let estimate =
            |case| bootstrap_mean(&tested.iter().map(|(losses, _)| losses[&case].kl).collect::<Vec<_>>());
        let mut found = Method::ALL.map(|method| (method.name(), estimate((ratio, method)))).to_vec();
        let of_default: Vec<f64> = tested.iter().filter_map(|(_, of)| of.get(at).copied()).collect();
        if !of_default.is_empty() {
            found.insert(1, (RC_DEFAULT, bootstrap_mean(&of_default)));
        }
        (ratio, found)
    };
    let held_out: BTreeMap<u32, Vec<_>> = RATIOS.into_iter().enumerate().map(of_ratio).collect();
    if chosen != default && !is_better_on_average(&held_out) {
        chosen = default;
    }
    Ok(FormChoice { forms, chosen, questions: all, held_out })
}

/// Returns whether `rc` loses less than the default form, on average over the ratios, each loss being relative
/// to the default's.
fn is_better_on_average(held_out: &BTreeMap<u32, Vec<(&'static str, Estimate)>>) -> bool {
    let of = |methods: &[(&str, Estimate)], name: &str| {
        methods.iter().find(|(of, _)| *of == name).map_or(0.0, |(_, kl)| kl.mean)
    };
    let relative = |methods: &Vec<(&'static str, Estimate)>| {
        of(methods, Method::Rc.name()) / of(methods, RC_DEFAULT).max(f64::MIN_POSITIVE)
    };
    held_out.values().map(relative).sum::<f64>() < held_out.len() as f64
}

/// Returns the forms with their mean losses, best first, and the chosen form. `measured` has for each question
/// the loss of each form and, within a form, of each compared ratio.
///
/// The default is kept unless the best form is better with 95 % confidence: few questions often prefer some
/// form by chance, and the default has been measured on many.
fn choose(
    forms: &[EvictionForm],
    default: &EvictionForm,
    measured: &[Vec<f64>],
) -> (Vec<MeasuredForm>, EvictionForm) {
    let ratios = COMPARED_RATIOS.len();
    let mean = |form: usize, ratio: usize| {
        measured.iter().map(|row| row[form * ratios + ratio]).sum::<f64>() / measured.len() as f64
    };
    let scale: Vec<f64> = (0..ratios)
        .map(|ratio| {
            let sum: f64 = (0..forms.len()).map(|form| mean(form, ratio)).sum();
            (sum / forms.len() as f64).max(f64::MIN_POSITIVE)
        })
        .collect();
    // Losses grow with the ratio. Divided by the mean of all forms, all ratios count equally.
    let relative = |row: &[f64], form: usize| -> f64 {
        (0..ratios).map(|ratio| row[form * ratios + ratio] / scale[ratio]).sum::<f64>() / ratios as f64
    };
    let total = |form: usize| measured.iter().map(|row| relative(row, form)).sum::<f64>();
    let mut order: Vec<usize> = (0..forms.len()).collect();
    order.sort_by(|&a, &b| total(a).total_cmp(&total(b)));
    let best = order[0];
    let of_default = forms.iter().position(|form| form == default);
    let is_better = of_default.is_none_or(|default| {
        let gains: Vec<f64> =
            measured.iter().map(|row| relative(row, default) - relative(row, best)).collect();
        bootstrap_mean(&gains).interval[0] > 0.0
    });
    let chosen = if is_better { forms[best] } else { *default };
    let with_losses = |&form: &usize| MeasuredForm {
        form: forms[form],
        kl: (0..ratios).map(|ratio| mean(form, ratio)).collect(),
    };
    (order.iter().map(with_losses).collect(), chosen)
}

/// Reads a row with its correct answers or, if it has none, with an answer of the model.
fn answered<'a>(
    row: &KvRow,
    index: usize,
    engine: &'a Engine,
    options: &RowOptions,
) -> anyhow::Result<ReadRow<'a>> {
    if row.answers.is_empty() {
        ReadRow::with_own_answer(row, engine, options, ANSWER_TOKENS, SEED + index as u64)
    } else {
        ReadRow::new(row, engine, options)
    }
}

/// Returns the KL divergence of one question for each form and, within a form, each ratio.
fn losses_of_forms(
    row: &KvRow,
    index: usize,
    engine: &Engine,
    options: &RowOptions,
    forms: &[EvictionForm],
    ratios: &[u32],
) -> anyhow::Result<Vec<f64>> {
    let read = answered(row, index, engine, options)?;
    let pipeline = engine.pipeline();
    let decoder = kv_export::check_model(pipeline.model())?;
    let cancel = Cancel::default();
    let attention = pipeline.attend_export(&read.kv_export, &read.question, &cancel)?;
    let mut masks: Vec<KeyMask> = Vec::new();
    let mut scores = None;
    for form in forms {
        // Forms with the same scores follow one another.
        let is_same = |(of, _): &(EvictionForm, _)| form.has_scores_of(of);
        let (_, scores) = match scores.take().filter(is_same) {
            Some(found) => scores.insert(found),
            None => scores.insert((*form, attention.rc_of_keys(form))),
        };
        for &ratio in ratios {
            let eviction = Eviction::with_budget(HeadBudget::Ratio(1.0 / f64::from(ratio)));
            let kept = eviction.choose(scores, decoder.prefix_tokens(), form)?;
            masks.push(decoder.mask_of_all_layers(&kept));
        }
    }
    let (_, losses) = read.losses(&masks)?;
    Ok(losses.into_iter().map(|loss| loss.kl).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_must_lose_less_than_the_default_on_the_other_half_too() {
        let check = |name: &str, losses: [[f64; 2]; 2], expect: bool| {
            let estimate = |mean: f64| bootstrap_mean(&[mean]);
            let methods = |[rc, default]: [f64; 2]| {
                vec![(Method::Rc.name(), estimate(rc)), (RC_DEFAULT, estimate(default))]
            };
            let held_out = RATIOS.into_iter().zip(losses.map(methods)).collect();
            assert_eq!(is_better_on_average(&held_out), expect, "{name}");
        };
        check("less at both ratios", [[0.1, 0.2], [0.3, 0.4]], true);
        check("much more at one ratio", [[0.7, 0.1], [0.3, 0.4]], false);
        check("a little more at one ratio", [[0.11, 0.1], [0.2, 0.4]], true);
    }

    #[test]
    fn a_form_is_chosen_only_if_it_is_certainly_better_than_the_default() {
        let form = |neighbours| EvictionForm {
            reference: Reference::Rivals,
            over_question: OverQuestion::Peak,
            neighbours,
            scale: KeyScale::Logit,
            budget: BudgetScope::Head,
            floor: 0.0,
        };
        let (default, other) = (form(1), form(3));
        let check = |name: &str, losses: &[[f64; 2]], expect: EvictionForm| {
            let ratios = COMPARED_RATIOS.len();
            let row = |[a, b]: &[f64; 2]| [vec![*a; ratios], vec![*b; ratios]].concat();
            let measured: Vec<Vec<f64>> = losses.iter().map(row).collect();
            assert_eq!(choose(&[default, other], &default, &measured).1, expect, "{name}");
        };
        check("better on every question", &[[2.0, 1.0], [3.0, 1.0], [2.0, 1.5]], other);
        check("worse", &[[1.0, 2.0], [1.0, 3.0]], default);
        check("better on average by one question", &[[9.0, 1.0], [1.0, 2.0], [1.0, 2.0]], default);
    }
}
