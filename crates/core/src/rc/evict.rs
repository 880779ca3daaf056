//! Decides which keys are kept when a cache is reduced: the RC of each key in each head, and two rules for
//! how many keys are kept. Knows nothing of models: scores are `[head, key]`, whatever a head is.

use std::fmt;

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, ArrayView3, Axis};
use serde::{Deserialize, Serialize};

use super::exact::{SortedReference, seen};
use super::{heads_and_queries, saturated};

/// What the logits of query j over the keys are compared with: the values Y_j.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// The logits of query j over the question's own keys, as in the RCStat paper (arXiv 2506.19549).
    #[serde(rename = "self")]
    SelfLogits,
    /// The logits of query j over all keys that could be kept, so a key with average logits for all queries scores low.
    Rivals,
}

/// How the RC of a key for each token of the question, in each query head that shares the key's head, is
/// reduced to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverQuestion {
    /// The largest RC: what one token needs counts in full, whatever the other tokens need.
    Peak,
    /// The root of the mean square: between the mean and the peak.
    RootMeanSquare,
    /// The mean: the more tokens need a key, the more it counts.
    Mean,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// Keeps in each head the fewest keys whose RC sums to at least this share of the head's RC.
    Mass(f64),
    /// Keeps the `count` keys with the largest RC of all heads together, so that heads with large RC keep
    /// more keys than others. Each head keeps at least `each` keys, those that are always kept included (Feng
    /// et al. 2024, arXiv 2407.11550, section 3).
    Shared {
        /// How many keys all heads keep together.
        count: usize,
        /// How many keys each head keeps at least.
        each: usize,
    },
}

/// Returns the RC of each key of a key head for the question, `[key]`: E over y in Y_j of max(x_ij − y, 0) for
/// each query j, reduced over the queries of all heads as `over` says. `x` `[head, query, key]` are the raw
/// logits of the query heads that share the key head, over all keys that could be kept. `self_logits`
/// `[head, query, own key]` are those over the question's own keys, [`EMPTY`](super::EMPTY) where a query does not see the
/// key.
///
/// Without queries, every key scores 0.
///
/// # Panics
/// When `x` and `self_logits` differ in heads or queries.
pub fn key_rc(
    x: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    reference: Reference,
    over: OverQuestion,
) -> Array1<f32> {
    let (heads, queries) = heads_and_queries(x, self_logits);
    let rows = (heads * queries).max(1) as f64;
    let fold = |fold: fn(f64, f64) -> f64| folded_over_rows(x, self_logits, reference, fold).into_iter();
    match over {
        OverQuestion::Peak => fold(f64::max).map(saturated).collect(),
        OverQuestion::RootMeanSquare => {
            fold(|sum, rc| sum + rc * rc).map(|sum| saturated((sum / rows).sqrt())).collect()
        }
        OverQuestion::Mean => fold(|sum, rc| sum + rc).map(|sum| saturated(sum / rows)).collect(),
    }
}

/// Folds the RC of each key, `[key]`, over the queries of all heads, beginning with 0.
fn folded_over_rows(
    x: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    reference: Reference,
    fold: fn(f64, f64) -> f64,
) -> Vec<f64> {
    let mut folded = vec![0.0; x.len_of(Axis(2))];
    let mut sorted = SortedReference::default();
    for (row, own) in x.rows().into_iter().zip(self_logits.rows()) {
        sorted.refill(|values| match reference {
            Reference::SelfLogits => values.extend(seen(own)),
            Reference::Rivals => values.extend(row),
        });
        for (folded, &logit) in folded.iter_mut().zip(row) {
            *folded = fold(*folded, sorted.rc(logit));
        }
    }
    folded
}

/// Replaces the score of each key by the mean over itself and its neighbours, at most `width` keys in all,
/// fewer at the ends. What an answer needs is seldom one token: a name has several, and the keys around it
/// say what it is (Li et al. 2024, arXiv 2404.14469, section 4). An even `width` counts as the next smaller
/// one; 0 and 1 change nothing.
pub fn average_over_neighbours(scores: ArrayView1<'_, f32>, width: usize) -> Array1<f32> {
    let radius = width.saturating_sub(1) / 2;
    let mut sums = Vec::with_capacity(scores.len() + 1);
    sums.push(0.0_f64);
    for &score in scores {
        sums.push(sums[sums.len() - 1] + f64::from(score));
    }
    let mean = |key: usize| {
        let (first, end) = (key.saturating_sub(radius), (key + radius + 1).min(scores.len()));
        saturated((sums[end] - sums[first]) / (end - first) as f64)
    };
    (0..scores.len()).map(mean).collect()
}

/// Divides the scores of a head by a power of their mean. The scores of heads with large logits and of heads with
/// small ones get the same mean, 1, with the exponent 1, and come closer to each other with one between 0 and 1.
/// Scores that are all 0 stay 0.
pub fn divided_by_mean(scores: ArrayView1<'_, f32>, exponent: f64) -> Array1<f32> {
    let sum: f64 = scores.iter().map(|&score| f64::from(score)).sum();
    let mean = sum / scores.len().max(1) as f64;
    let divisor = if mean > 0.0 { mean.powf(exponent) } else { 1.0 };
    scores.iter().map(|&score| saturated(f64::from(score) / divisor)).collect()
}

/// Returns which keys each head keeps, `[head, key]`, from `scores` `[head, key]`. Keys that `always` `[key]`
/// marks are kept in every head and count towards the number of kept keys. Of equal scores the earlier key is
/// kept.
pub fn keep(scores: ArrayView2<'_, f32>, always: &[bool], how: Keep) -> Array2<bool> {
    let mut kept = Array2::from_shape_fn(scores.dim(), |(_, key)| always[key]);
    let heads = || scores.outer_iter().enumerate();
    match how {
        Keep::Mass(share) => {
            for (head, scores) in heads() {
                let mut kept = kept.row_mut(head);
                let mass_needed = share * scores.iter().map(|&rc| f64::from(rc.max(0.0))).sum::<f64>();
                let already_kept = scores.iter().zip(&kept).filter(|(_, kept)| **kept);
                let mut mass: f64 = already_kept.map(|(&rc, _)| f64::from(rc.max(0.0))).sum();
                for key in best_first(scores) {
                    if mass >= mass_needed || scores[key] <= 0.0 {
                        break;
                    }
                    if !std::mem::replace(&mut kept[key], true) {
                        mass += f64::from(scores[key]);
                    }
                }
            }
        }
        Keep::Shared { count, each } => {
            for (head, scores) in heads() {
                let mut kept = kept.row_mut(head);
                let missing = each.saturating_sub(kept.iter().filter(|kept| **kept).count());
                let unkept: Vec<usize> = best_first(scores).into_iter().filter(|&key| !kept[key]).collect();
                unkept.into_iter().take(missing).for_each(|key| kept[key] = true);
            }
            let fixed = kept.iter().filter(|kept| **kept).count();
            let mut unkept: Vec<(usize, usize)> =
                kept.indexed_iter().filter(|(_, kept)| !**kept).map(|(at, _)| at).collect();
            unkept.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            unkept.into_iter().take(count.saturating_sub(fixed)).for_each(|at| kept[at] = true);
        }
    }
    kept
}

impl fmt::Display for OverQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peak => "peak",
            Self::RootMeanSquare => "root mean square",
            Self::Mean => "mean",
        })
    }
}

fn best_first(scores: ArrayView1<'_, f32>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, array};

    use super::*;

    fn check(name: &str, how: Keep, expect: [[bool; 4]; 2]) {
        let scores = array![[0.0, 6.0, 3.0, 1.0], [0.0, 2.0, 2.0, 0.0]];
        let kept = keep(scores.view(), &[true, false, false, false], how);
        assert_eq!(kept, Array2::from(expect.to_vec()), "{name}");
    }

    #[test]
    fn kept_keys_by_each_rule() {
        let (t, f) = (true, false);
        check("the fewest keys with half of the RC", Keep::Mass(0.5), [[t, t, f, f], [t, t, f, f]]);
        check("slightly more than half of the RC", Keep::Mass(0.61), [[t, t, t, f], [t, t, t, f]]);
        check("all keys with RC above 0", Keep::Mass(1.0), [[t, t, t, t], [t, t, t, f]]);
        check("only the keys that are always kept", Keep::Mass(0.0), [[t, f, f, f], [t, f, f, f]]);
        let shared = |count, each| Keep::Shared { count, each };
        check(
            "shared by RC, with the keys that are always kept counted",
            shared(5, 0),
            [[t, t, t, f], [t, t, f, f]],
        );
        check("one head has all of the best keys", shared(4, 0), [[t, t, t, f], [t, f, f, f]]);
        check("each head keeps its two best keys", shared(4, 2), [[t, t, f, f], [t, t, f, f]]);
        check("fewer keys than are always kept", shared(1, 0), [[t, f, f, f], [t, f, f, f]]);
        check("more keys than there are", shared(99, 99), [[t, t, t, t], [t, t, t, t]]);
    }

    #[test]
    fn keys_that_are_always_kept_count_towards_the_share() {
        let scores = array![[5.0, 3.0, 2.0]];
        let kept = |always: &[bool]| keep(scores.view(), always, Keep::Mass(0.5)).into_raw_vec_and_offset().0;
        assert_eq!(kept(&[false; 3]), [true, false, false]);
        assert_eq!(kept(&[false, true, true]), [false, true, true]);
    }

    #[test]
    fn rc_of_keys_by_each_reduction() {
        let x = array![[0.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]];
        let own = array![[1.0, f32::MIN], [1.0, 0.0]];
        let of = |reference, over| {
            let [x, own] = [&x, &own].map(|logits| logits.view().insert_axis(Axis(0)));
            key_rc(x, own, reference, over)
        };
        let rc = |over| of(Reference::Rivals, over);
        assert_eq!(rc(OverQuestion::Peak), array![0.0, 3.0, 0.0, 0.0], "one query needs the second key");
        assert_eq!(rc(OverQuestion::RootMeanSquare), array![0.0, 4.5_f32.sqrt(), 0.0, 0.0]);
        assert_eq!(rc(OverQuestion::Mean), array![0.0, 1.5, 0.0, 0.0]);
        let [heads, own_of_heads] = [&x, &own].map(|logits| logits.view().insert_axis(Axis(1)));
        let of_heads = key_rc(heads, own_of_heads, Reference::Rivals, OverQuestion::Mean);
        assert_eq!(of_heads, rc(OverQuestion::Mean), "heads count like tokens");
        let paper = of(Reference::SelfLogits, OverQuestion::Mean);
        assert_eq!(paper, array![0.25, 1.75, 0.25, 0.25], "a query sees no later key");
    }

    #[test]
    fn averages_over_neighbours() {
        let scores = array![3.0, 0.0, 0.0, 9.0];
        let check = |width: usize, expect: Array1<f32>| {
            assert_eq!(average_over_neighbours(scores.view(), width), expect, "width {width}");
        };
        check(0, scores.clone());
        check(1, scores.clone());
        check(2, scores.clone());
        check(3, array![1.5, 1.0, 3.0, 4.5]);
        check(99, array![3.0, 3.0, 3.0, 3.0]);
    }

    #[test]
    fn scores_divided_by_a_power_of_their_mean() {
        let check = |scores: Array1<f32>, exponent: f64, expect: Array1<f32>| {
            assert_eq!(divided_by_mean(scores.view(), exponent), expect, "{scores}, {exponent}");
        };
        check(array![3.0, 0.0, 9.0], 0.0, array![3.0, 0.0, 9.0]);
        check(array![3.0, 0.0, 9.0], 0.5, array![1.5, 0.0, 4.5]);
        check(array![3.0, 0.0, 9.0], 1.0, array![0.75, 0.0, 2.25]);
        check(array![0.0, 0.0], 1.0, array![0.0, 0.0]);
        check(array![], 0.5, array![]);
        check(array![f32::MAX, 0.0], 1.0, array![2.0, 0.0]);
    }

    #[test]
    fn empty_inputs_are_valid() {
        for over in [OverQuestion::Peak, OverQuestion::RootMeanSquare, OverQuestion::Mean] {
            for reference in [Reference::SelfLogits, Reference::Rivals] {
                let of = |x, own| key_rc(Array3::zeros(x).view(), Array3::zeros(own).view(), reference, over);
                assert_eq!(of((2, 0, 3), (2, 0, 0)), array![0.0, 0.0, 0.0], "{over}, {reference:?}");
                assert_eq!(of((1, 2, 0), (1, 2, 2)).len(), 0, "{over}, {reference:?}");
            }
        }
        assert_eq!(average_over_neighbours(Array1::zeros(0).view(), 5).len(), 0);
        assert_eq!(keep(Array2::zeros((2, 0)).view(), &[], Keep::Shared { count: 3, each: 1 }).dim(), (2, 0));
    }
}
