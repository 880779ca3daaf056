//! Which keys are kept when not all can be: RC of each key in each head, and the two ways of drawing a line under it.
//! Knows nothing of models: scores are `[head, key]`, whatever a head is.
//!
//! A question's RC says what the question asks of a head. It does not say what its answer will: an answer looks back at words that only
//! its own first words lead to. Those stand around what the question found, in segments (sentences): those that the head
//! which is surest finds best are kept whole, in every head.

use ndarray::{Array1, Array2, ArrayView1, ArrayView2, s};

use super::exact::SortedReference;
use super::rows::contiguous;
use crate::domain::TokenSpan;

/// RC of segments of keys as one query has them, `x [key]`: each segment's peak against all segments' peaks.
pub fn ranked_segments(x: ArrayView1<'_, f32>, segments: &[TokenSpan]) -> Vec<f32> {
    let peak = |span: &TokenSpan| x.slice(s![span.range()]).fold(f32::MIN, |most, &logit| most.max(logit));
    let peaks: Vec<f32> = segments.iter().map(peak).collect();
    let rivals = SortedReference::new(&peaks);
    peaks.iter().map(|&peak| super::saturated(rivals.rc(peak))).collect()
}

/// How much of the keys is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// In each head the fewest keys that carry this share of the head's RC.
    Mass(f64),
    /// So many keys of all heads together, shared out by RC: heads that find much keep more.
    Count(usize),
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

/// Share of a head's budget that goes to whole segments: measured (`docs/evaluation.md`).
const SEGMENT_SHARE: f64 = 0.25;

/// A run of keys that stands together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Its keys.
    pub keys: TokenSpan,
    /// Its RC, however heads are taken together.
    pub rc: f32,
}

/// Draws the line under `scores [head, key]` and under `segments`. Keys of `always [key]` are kept in every head, and count. Ties go to the
/// earlier.
pub fn keep(scores: ArrayView2<'_, f32>, segments: &[Segment], always: &[bool], how: Keep) -> Array2<bool> {
    let heads = scores.nrows();
    let mut in_all = always.to_vec();
    let mut best: Vec<&Segment> = segments.iter().filter(|segment| segment.rc > 0.0).collect();
    best.sort_by(|a, b| b.rc.total_cmp(&a.rc));
    match how {
        Keep::Mass(share) => {
            let of_segments: Array1<f32> = best.iter().map(|segment| segment.rc).collect();
            for at in of_mass(of_segments.view(), share) {
                in_all[best[at].keys.range()].fill(true);
            }
        }
        Keep::Count(count) => {
            let room = (count as f64 / heads.max(1) as f64 * SEGMENT_SHARE) as usize;
            let mut held = in_all.iter().filter(|kept| **kept).count();
            for segment in best {
                let more = in_all[segment.keys.range()].iter().filter(|kept| !**kept).count();
                if held + more > room {
                    break;
                }
                held += more;
                in_all[segment.keys.range()].fill(true);
            }
        }
    }
    let mut kept = Array2::from_shape_fn(scores.dim(), |(_, key)| in_all[key]);
    match how {
        Keep::Mass(share) => {
            for (scores, mut kept) in scores.outer_iter().zip(kept.outer_iter_mut()) {
                of_mass(scores, share).into_iter().for_each(|key| kept[key] = true);
            }
        }
        Keep::Count(count) => {
            let fixed = kept.iter().filter(|kept| **kept).count();
            let mut open: Vec<(usize, usize)> =
                kept.indexed_iter().filter(|(_, kept)| !**kept).map(|(at, _)| at).collect();
            open.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
            open.truncate(count.saturating_sub(fixed));
            open.into_iter().for_each(|at| kept[at] = true);
        }
    }
    kept
}

/// The fewest keys that carry `share` of all RC, best first.
fn of_mass(scores: ArrayView1<'_, f32>, share: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|&key| scores[key] > 0.0).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let wanted = share * order.iter().map(|&key| f64::from(scores[key])).sum::<f64>();
    let mut carried = 0.0;
    let enough = order.iter().take_while(|&&key| {
        let more = carried < wanted;
        carried += f64::from(scores[key]);
        more
    });
    let enough = enough.count();
    order.truncate(enough);
    order
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn check(name: &str, how: Keep, expect: [[bool; 4]; 2]) {
        let scores = array![[0.0, 6.0, 3.0, 1.0], [0.0, 2.0, 2.0, 0.0]];
        let kept = keep(scores.view(), &[], &[true, false, false, false], how);
        assert_eq!(kept, Array2::from(expect.to_vec()), "{name}");
    }

    #[test]
    fn lines() {
        let (t, f) = (true, false);
        check("the fewest that carry half", Keep::Mass(0.5), [[t, t, f, f], [t, t, f, f]]);
        check("a little more than half", Keep::Mass(0.61), [[t, t, t, f], [t, t, t, f]]);
        check("all that is worth anything", Keep::Mass(1.0), [[t, t, t, t], [t, t, t, f]]);
        check("nothing", Keep::Mass(0.0), [[t, f, f, f], [t, f, f, f]]);
        check("shared out by RC, those kept anyway counted", Keep::Count(5), [[t, t, t, f], [t, t, f, f]]);
        check("fewer than are kept anyway", Keep::Count(1), [[t, f, f, f], [t, f, f, f]]);
        check("more than there are", Keep::Count(99), [[t, t, t, t], [t, t, t, t]]);
    }

    #[test]
    fn the_best_segments_stay_whole_in_every_head() {
        let scores = Array2::from_shape_fn((2, 24), |(head, key)| if key == 23 * head { 9.0 } else { 0.0 });
        let segment = |start: usize, rc| Segment { keys: TokenSpan::new(start, start + 3), rc };
        let segments = [segment(0, 0.1), segment(3, 3.0), segment(6, 1.0), segment(9, 0.0)];
        let of = |how| -> Vec<Vec<usize>> {
            let kept = keep(scores.view(), &segments, &[false; 24], how);
            kept.outer_iter().map(|row| (0..24).filter(|&key| row[key]).collect()).collect()
        };
        // A quarter of 12 keys a head is one of them; what is left goes where RC is, then to the earlier.
        let kept = of(Keep::Count(24));
        assert_eq!((kept[0].len(), &kept[1][..]), (20, &[3, 4, 5, 23][..]));
        assert_eq!(of(Keep::Mass(0.9)), [vec![0, 3, 4, 5, 6, 7, 8], vec![3, 4, 5, 6, 7, 8, 23]]);
    }

    #[test]
    fn a_key_that_one_query_asks_for_is_worth_what_it_says() {
        let x = array![[0.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]];
        assert_eq!(peak_over_queries(x.view()), array![0.0, 3.0, 0.0, 0.0]);
        let own = array![[1.0, f32::MIN], [1.0, 0.0]];
        assert_eq!(expected_over_self(x.view(), own.view()), array![0.25, 1.75, 0.25, 0.25]);
    }

    #[test]
    fn segments_are_told_apart_by_their_peaks() {
        let x = array![0.0, 5.0, 1.0, 1.0, 2.0];
        let spans = [(0, 2), (2, 4), (4, 5)].map(|(start, end)| TokenSpan::new(start, end));
        assert_eq!(ranked_segments(x.view(), &spans), [7.0 / 3.0, 0.0, 1.0 / 3.0]);
        assert_eq!(ranked_segments(x.view(), &[]), Vec::<f32>::new());
    }

    #[test]
    fn nothing_asks_for_nothing() {
        assert_eq!(peak_over_queries(Array2::zeros((0, 3)).view()), array![0.0, 0.0, 0.0]);
        assert_eq!(peak_over_queries(Array2::zeros((2, 0)).view()).len(), 0);
        assert_eq!(keep(Array2::zeros((2, 0)).view(), &[], &[], Keep::Count(3)).dim(), (2, 0));
    }
}
