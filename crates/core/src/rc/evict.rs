//! Which keys are kept when not all can be: RC of each key in each head, and the two ways of drawing a line under it.
//! Knows nothing of models: scores are `[head, key]`, whatever a head is.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2};

use super::exact::SortedReference;
use super::rows::contiguous;

/// How much of the keys is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// In each head the fewest keys that carry this share of the head's RC.
    Mass(f64),
    /// `count` keys of all heads together, shared out by RC: heads that find much keep more. Each keeps at least its `each` best
    /// (Feng et al. 2024, arXiv 2407.11550, section 3).
    Shared {
        /// Keys of all heads.
        count: usize,
        /// Keys of a head at least.
        each: usize,
    },
}

/// RC of each key for its best query: max over j of E over y in Y_j of max(x_ij − y, 0), with `x [query, key]` a head's raw logits.
/// Y_j are that query's logits over all keys that could be kept, so that a key that everything finds a little is worth little.
///
/// A mean over queries, as segments are scored by, would lose a key that one word alone asks for.
pub fn peak_over_queries(x: ArrayView2<'_, f32>) -> Array1<f32> {
    over_queries(x, |j| contiguous(x.row(j)), |all, one| all.max(one), |all, _| all)
}

/// Expected RC of each key: mean over j of E over y in Y_j of max(x_ij − y, 0), with Y_j the logits of query j over the question's own
/// keys, `own [query, query]`, of which it sees those up to itself (RCStat, arXiv 2506.19549).
///
/// # Panics
/// When `own` is not as wide and as high as there are queries.
pub fn expected_over_self(x: ArrayView2<'_, f32>, own: ArrayView2<'_, f32>) -> Array1<f32> {
    assert_eq!(own.dim(), (x.nrows(), x.nrows()), "one reference per query");
    let seen = |j: usize| contiguous(own.row(j))[..=j].to_vec().into();
    over_queries(x, seen, |all, one| all + one, |all, queries| all / queries)
}

fn over_queries<'a>(
    x: ArrayView2<'_, f32>,
    reference_of: impl Fn(usize) -> std::borrow::Cow<'a, [f32]>,
    fold: impl Fn(f64, f64) -> f64,
    finish: impl Fn(f64, f64) -> f64,
) -> Array1<f32> {
    let mut folded = vec![0.0_f64; x.ncols()];
    let mut reference = SortedReference::default();
    for (j, row) in x.outer_iter().enumerate() {
        reference.refill(|buffer| buffer.extend_from_slice(&reference_of(j)));
        for (folded, &logit) in folded.iter_mut().zip(row) {
            *folded = fold(*folded, reference.rc(logit));
        }
    }
    let queries = x.nrows().max(1) as f64;
    folded.into_iter().map(|rc| super::saturated(finish(rc, queries))).collect()
}

/// Draws the line under `scores [head, key]`. Keys of `always [key]` are kept in every head, and count. Ties go to the earlier.
pub fn keep(scores: ArrayView2<'_, f32>, always: &[bool], how: Keep) -> Array2<bool> {
    let mut kept = Array2::from_shape_fn(scores.dim(), |(_, key)| always[key]);
    let heads = || scores.outer_iter().enumerate();
    match how {
        Keep::Mass(share) => {
            for (head, scores) in heads() {
                let mut kept = kept.row_mut(head);
                let wanted = share * scores.iter().map(|&rc| f64::from(rc.max(0.0))).sum::<f64>();
                let of_kept = scores.iter().zip(&kept).filter(|(_, kept)| **kept);
                let mut carried: f64 = of_kept.map(|(&rc, _)| f64::from(rc.max(0.0))).sum();
                for key in best_first(scores) {
                    if carried >= wanted || scores[key] <= 0.0 {
                        break;
                    }
                    if !std::mem::replace(&mut kept[key], true) {
                        carried += f64::from(scores[key]);
                    }
                }
            }
        }
        Keep::Shared { count, each } => {
            for (head, scores) in heads() {
                let mut kept = kept.row_mut(head);
                let missing = each.saturating_sub(kept.iter().filter(|kept| **kept).count());
                let open: Vec<usize> = best_first(scores).into_iter().filter(|&key| !kept[key]).collect();
                open.into_iter().take(missing).for_each(|key| kept[key] = true);
            }
            let fixed = kept.iter().filter(|kept| **kept).count();
            let mut open: Vec<(usize, usize)> =
                kept.indexed_iter().filter(|(_, kept)| !**kept).map(|(at, _)| at).collect();
            open.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            open.into_iter().take(count.saturating_sub(fixed)).for_each(|at| kept[at] = true);
        }
    }
    kept
}

fn best_first(scores: ArrayView1<'_, f32>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn check(name: &str, how: Keep, expect: [[bool; 4]; 2]) {
        let scores = array![[0.0, 6.0, 3.0, 1.0], [0.0, 2.0, 2.0, 0.0]];
        let kept = keep(scores.view(), &[true, false, false, false], how);
        assert_eq!(kept, Array2::from(expect.to_vec()), "{name}");
    }

    #[test]
    fn lines() {
        let (t, f) = (true, false);
        check("the fewest that carry half", Keep::Mass(0.5), [[t, t, f, f], [t, t, f, f]]);
        check("a little more than half", Keep::Mass(0.61), [[t, t, t, f], [t, t, t, f]]);
        check("all that is worth anything", Keep::Mass(1.0), [[t, t, t, t], [t, t, t, f]]);
        check("nothing", Keep::Mass(0.0), [[t, f, f, f], [t, f, f, f]]);
        let shared = |count, each| Keep::Shared { count, each };
        check("shared out by RC, those kept anyway counted", shared(5, 0), [[t, t, t, f], [t, t, f, f]]);
        check("one head finds all", shared(4, 0), [[t, t, t, f], [t, f, f, f]]);
        check("and the other has its own best, too", shared(4, 2), [[t, t, f, f], [t, t, f, f]]);
        check("fewer than are kept anyway", shared(1, 0), [[t, f, f, f], [t, f, f, f]]);
        check("more than there are", shared(99, 99), [[t, t, t, t], [t, t, t, t]]);
    }

    #[test]
    fn what_is_kept_anyway_carries_its_share() {
        let scores = array![[5.0, 3.0, 2.0]];
        let kept = |always: &[bool]| keep(scores.view(), always, Keep::Mass(0.5)).into_raw_vec_and_offset().0;
        assert_eq!(kept(&[false; 3]), [true, false, false]);
        assert_eq!(kept(&[false, true, true]), [false, true, true]);
    }

    #[test]
    fn a_key_that_one_query_asks_for_is_worth_what_it_says() {
        let x = array![[0.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]];
        assert_eq!(peak_over_queries(x.view()), array![0.0, 3.0, 0.0, 0.0]);
        let own = array![[1.0, f32::MIN], [1.0, 0.0]];
        assert_eq!(expected_over_self(x.view(), own.view()), array![0.25, 1.75, 0.25, 0.25]);
    }

    #[test]
    fn nothing_asks_for_nothing() {
        assert_eq!(peak_over_queries(Array2::zeros((0, 3)).view()), array![0.0, 0.0, 0.0]);
        assert_eq!(peak_over_queries(Array2::zeros((2, 0)).view()).len(), 0);
        assert_eq!(keep(Array2::zeros((2, 0)).view(), &[], Keep::Shared { count: 3, each: 1 }).dim(), (2, 0));
    }
}
