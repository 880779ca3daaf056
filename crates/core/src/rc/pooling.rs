//! Pooling: from keys to segments, and from (head, query) rows to one number per segment. Defines the
//! estimators and their names. Knows nothing of which tokens a segment stands for.

use std::fmt;
use std::str::FromStr;

use ndarray::{Array2, Array3, ArrayView1, ArrayView2, ArrayView3, Axis, s};
use serde::{Deserialize, Serialize};

use super::bound::PooledReference;
use super::exact::SortedReference;
use super::peaks::{EMPTY, Peaks};
use super::reference::Reference;
use super::{contiguous, for_each_row, heads_and_queries, saturated};
use crate::domain::TokenSpan;

/// How the keys of a segment are reduced to one value per question token. As text it is `mean`, `peak` or `bound`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// `mean`: the mean RC of all keys, as in the RCStat paper.
    Mean,
    /// `peak`: the RC of the key with the largest logit.
    Peak,
    /// `bound`: an upper bound of the mean RC of all keys for all queries; see [`PooledReference`]. Every query
    /// gets the same value.
    Bound,
}

impl Pooling {
    /// All poolings.
    pub const ALL: [Self; 3] = [Self::Mean, Self::Peak, Self::Bound];
}

/// How a segment is scored: a pooling and a reference. As text they are separated by a slash, such as
/// `peak/rivals` or `mean/self`. The only bound with a name is `bound/self`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Estimator {
    /// How the keys of a segment are reduced to one value.
    pub pooling: Pooling,
    /// Which values the logits are compared with.
    pub reference: Reference,
}

/// The error for a text that is not the name of an estimator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "estimator {0:?} is not one of mean/self, mean/rivals, mean/both, peak/self, peak/rivals, peak/both, bound/self"
)]
pub struct UnknownEstimator(pub String);

/// Returns the RC of every segment per head and query, `[head, query, segment]`.
///
/// `cross` is `[head, query, key]`; `self_logits` is `[head, query, own key]`; `peaks` are the peaks of the
/// same `cross` and `segments`.
///
/// # Panics
/// When heads, queries or segments differ between the arguments, or a segment ends beyond the key axis.
pub fn coupled_segments(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
    peaks: &Peaks,
    estimator: Estimator,
) -> Array3<f32> {
    let (heads, queries) = heads_and_queries(cross, self_logits);
    assert_eq!((heads, queries, segments.len()), peaks.value.dim(), "shape of the peaks");
    match estimator.pooling {
        Pooling::Mean => means_of_segments(cross, self_logits, segments, peaks, estimator.reference),
        Pooling::Peak => rc_of_peaks(peaks.value.view(), self_logits, estimator.reference),
        Pooling::Bound => bounds_of_segments(cross, self_logits, segments, peaks, estimator.reference),
    }
}

/// Returns the peaks of segments that have keys.
fn existing(peaks: ArrayView1<'_, f32>) -> impl Iterator<Item = &f32> {
    peaks.into_iter().filter(|&&peak| peak != EMPTY)
}

/// Returns the mean RC of every segment's keys. The arguments are those of [`coupled_segments`].
fn means_of_segments(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
    peaks: &Peaks,
    reference: Reference,
) -> Array3<f32> {
    let mut out = Array3::zeros(peaks.value.dim());
    let inputs = cross.rows().into_iter().zip(self_logits.rows()).zip(peaks.value.rows());
    let rows = inputs.zip(out.rows_mut()).collect();
    for_each_row(cross.len(), rows, |y: &mut SortedReference, (((cross, own), peaks), mut out)| {
        y.refill(|buffer| reference.collect(own, existing(peaks), buffer));
        let cross = contiguous(cross);
        for (out, segment) in out.iter_mut().zip(segments) {
            *out = saturated(y.rc_mean(&cross[segment.range()]));
        }
    });
    out
}

/// Returns the RC of every segment's peak. `peaks` is `[head, query, segment]`, [`EMPTY`] for a segment without
/// keys.
fn rc_of_peaks(
    peaks: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    reference: Reference,
) -> Array3<f32> {
    let mut out = Array3::zeros(peaks.dim());
    // Sorting takes about log m comparisons per element, so fewer elements are worth a thread.
    let elements = 8 * (out.len() + self_logits.len());
    let rows = self_logits.rows().into_iter().zip(peaks.rows()).zip(out.rows_mut()).collect();
    for_each_row(elements, rows, |y: &mut SortedReference, ((own, peaks), mut out)| {
        y.refill(|buffer| reference.collect(own, existing(peaks), buffer));
        for (out, &peak) in out.iter_mut().zip(peaks) {
            *out = if peak == EMPTY { 0.0 } else { saturated(y.rc(peak)) };
        }
    });
    out
}

/// Returns the upper bound of every segment per head, the same for all queries, `[head, query, segment]`. The
/// arguments are those of [`coupled_segments`].
fn bounds_of_segments(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
    peaks: &Peaks,
    reference: Reference,
) -> Array3<f32> {
    let mut out = Array3::zeros(peaks.value.dim());
    let inputs = cross.outer_iter().zip(self_logits.outer_iter()).zip(peaks.value.outer_iter());
    let heads = inputs.zip(out.outer_iter_mut()).collect();
    for_each_row(cross.len(), heads, |logits: &mut Vec<f32>, (((cross, own), peaks), mut out)| {
        let mut references = vec![Vec::new(); cross.nrows()];
        for ((own, peaks), of_query) in own.outer_iter().zip(peaks.outer_iter()).zip(&mut references) {
            reference.collect(own, existing(peaks), of_query);
        }
        let pooled = PooledReference::new(&references);
        for (segment, mut out) in segments.iter().zip(out.columns_mut()) {
            logits.clear();
            for (row, _) in cross.outer_iter().zip(&references).filter(|(_, reference)| !reference.is_empty())
            {
                logits.extend(row.slice(s![segment.range()]));
            }
            out.fill(saturated(pooled.upper_bound(logits)));
        }
    });
    out
}

/// Returns the RC of every segment's peak against the self logits, `[head, query, segment]`: the estimator
/// `peak/self`, computed from peaks alone.
///
/// `peaks` is `[head, query, segment]`, [`EMPTY`] for a segment without keys. `self_logits` is
/// `[head, query, own key]`, [`EMPTY`] for a key that the query does not see.
///
/// # Panics
/// When `peaks` and `self_logits` differ in heads or queries.
pub fn peaks_against_self(peaks: ArrayView3<'_, f32>, self_logits: ArrayView3<'_, f32>) -> Array3<f32> {
    heads_and_queries(peaks, self_logits);
    rc_of_peaks(peaks, self_logits, Reference::SelfLogits)
}

/// Returns the mean over heads, `[query, segment]`, of `[head, query, segment]`. It is 0 if there are no
/// heads.
pub fn mean_over_heads(values: Array3<f32>) -> Array2<f32> {
    let (heads, queries, segments) = values.dim();
    if heads == 1 {
        return values.index_axis_move(Axis(0), 0);
    }
    let mut sums = Array2::<f64>::zeros((queries, segments));
    values.outer_iter().for_each(|head| sums.zip_mut_with(&head, |sum, &value| *sum += f64::from(value)));
    sums.mapv(|sum| saturated(sum / heads.max(1) as f64))
}

/// Computes [`mean_over_heads`] incrementally from some heads at a time, so that the arrays of hundreds of
/// heads are never in memory together.
#[derive(Debug, Default)]
pub struct HeadMean {
    /// The first array, until a second one is added.
    first: Option<Array3<f32>>,
    /// The sum over heads, `[query, segment]`, and the number of heads in it.
    sums: Option<(Array2<f64>, usize)>,
}

impl HeadMean {
    /// Adds the values of further heads, `[head, query, segment]`.
    ///
    /// # Panics
    /// When the numbers of queries or segments differ from those of the first call.
    pub fn add(&mut self, values: Array3<f32>) {
        if self.first.is_none() && self.sums.is_none() {
            self.first = Some(values);
            return;
        }
        let (_, queries, segments) = values.dim();
        let (sums, heads) = self.sums.get_or_insert_with(|| (Array2::zeros((queries, segments)), 0));
        for values in self.first.take().iter().chain([&values]) {
            *heads += values.len_of(Axis(0));
            values
                .outer_iter()
                .for_each(|head| sums.zip_mut_with(&head, |sum, &value| *sum += f64::from(value)));
        }
    }

    /// Returns the mean over all added heads, `[query, segment]`, or an array of shape `[0, 0]` if none was
    /// added.
    pub fn finish(self) -> Array2<f32> {
        match (self.first, self.sums) {
            (Some(first), _) => mean_over_heads(first),
            (None, Some((sums, heads))) => sums.mapv(|sum| saturated(sum / heads as f64)),
            (None, None) => Array2::zeros((0, 0)),
        }
    }
}

/// Returns the mean over queries, `[segment]`, of `[query, segment]`. All queries have the same weight. It is
/// 0 if there are no queries.
pub fn mean_over_queries(values: ArrayView2<'_, f32>) -> Vec<f32> {
    let mut sums = vec![0.0; values.ncols()];
    for row in values.outer_iter() {
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    let queries = values.nrows().max(1) as f64;
    sums.into_iter().map(|sum| saturated(sum / queries)).collect()
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Peak => "peak",
            Self::Bound => "bound",
        })
    }
}

impl fmt::Display for Estimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pooling, self.reference)
    }
}

impl FromStr for Estimator {
    type Err = UnknownEstimator;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownEstimator(text.to_owned());
        let (pooling, reference) = text.split_once('/').ok_or_else(unknown)?;
        let pooling =
            Pooling::ALL.into_iter().find(|known| known.to_string() == pooling).ok_or_else(unknown)?;
        let reference = reference.parse().map_err(|_| unknown())?;
        // Pooled, the peaks of many segments would take far more memory than the logits.
        match (pooling, reference) {
            (Pooling::Bound, Reference::Rivals | Reference::Both) => Err(unknown()),
            (pooling, reference) => Ok(Self { pooling, reference }),
        }
    }
}

impl TryFrom<String> for Estimator {
    type Error = UnknownEstimator;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Estimator> for String {
    fn from(estimator: Estimator) -> Self {
        estimator.to_string()
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, array};

    use super::*;
    use crate::rc::{peaks, raw_maxsim, score};

    /// The cross logits by query, the self logits by query, and the segments, for a single head.
    type Input<'a> = (&'a [&'a [f32]], &'a [&'a [f32]], &'a [(usize, usize)]);

    fn rows(rows: &[&[f32]]) -> Array3<f32> {
        let width = rows.first().map_or(0, |row| row.len());
        Array3::from_shape_vec((1, rows.len(), width), rows.concat()).expect("rows of one length")
    }

    fn check(name: &str, estimator: &str, (cross, self_logits, segments): Input<'_>, expect: &[f32]) {
        let segments: Vec<_> = segments.iter().map(|&(a, b)| TokenSpan::new(a, b)).collect();
        let estimator = estimator.parse().expect(name);
        let scored = score(rows(cross).view(), rows(self_logits).view(), &segments, estimator);
        assert_eq!(scored.scores, expect, "{name}: {estimator}");
    }

    #[test]
    fn small_cases() {
        let self_logits: &[&[f32]] = &[&[0.0, 4.0]];
        let cross: &[&[f32]] = &[&[1.0, 5.0, 2.0]];
        let two: &[(usize, usize)] = &[(0, 2), (2, 3)];
        check(
            "mean of (1−0)/2 and (5−0 + 5−4)/2; then 1",
            "mean/self",
            (cross, self_logits, two),
            &[1.75, 1.0],
        );
        // {1, 5} and {2} against {0, 4}: 4 is larger than 1 and 2 only if their query is not known.
        check("the bound of one query", "bound/self", (cross, self_logits, two), &[2.5, 1.0]);
        check("peaks 5 and 2 against 0 and 4", "peak/self", (cross, self_logits, two), &[3.0, 1.0]);
        check("peaks 5 and 2 against each other", "peak/rivals", (cross, self_logits, two), &[1.5, 0.0]);
        check("peaks against all four", "peak/both", (cross, self_logits, two), &[2.25, 0.5]);
        check("keys 1, 5, 2 against 5 and 2", "mean/rivals", (cross, self_logits, two), &[0.75, 0.0]);
        check("a single segment has no rival", "peak/rivals", (cross, self_logits, &[(0, 3)]), &[0.0]);
        check(
            "empty segment",
            "peak/rivals",
            (cross, self_logits, &[(0, 2), (1, 1), (2, 3)]),
            &[1.5, 0.0, 0.0],
        );
        check("only an empty segment", "peak/both", (cross, self_logits, &[(3, 3)]), &[0.0]);
        check("no segment", "peak/rivals", (cross, self_logits, &[]), &[]);
        check(
            "nested: peaks 5, 5, 2",
            "peak/rivals",
            (cross, self_logits, &[(0, 3), (0, 2), (2, 3)]),
            &[1.0, 1.0, 0.0],
        );
        check("no query", "peak/rivals", (&[], &[], &[(0, 0)]), &[0.0]);
        check("no self logits", "peak/self", (cross, &[&[]], two), &[0.0, 0.0]);
        check("equal peaks score 0", "peak/rivals", (&[&[3.0, 3.0]], &[&[]], &[(0, 1), (1, 2)]), &[0.0, 0.0]);
        check("mean over queries", "peak/self", (&[&[1.0], &[3.0]], &[&[0.0], &[0.0]], &[(0, 1)]), &[2.0]);
    }

    #[test]
    fn heads_and_queries_average() {
        let cross = array![[[1.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [4.0, 8.0]]];
        let self_logits = Array3::zeros((2, 2, 1));
        let segments = [TokenSpan::new(0, 1), TokenSpan::new(1, 2)];
        let scored = score(cross.view(), self_logits.view(), &segments, "peak/self".parse().expect("named"));
        assert_eq!(scored.per_query, array![[2.0, 0.0], [3.0, 4.0]]);
        assert_eq!(scored.scores, [2.5, 2.0]);
    }

    #[test]
    fn maxsim_ranks_an_empty_segment_last() {
        let cross = array![[[-5.0, 3.0], [1.0, 7.0]]];
        let segments = [(0, 1), (1, 1), (1, 2)].map(|(a, b)| TokenSpan::new(a, b));
        assert_eq!(raw_maxsim(&peaks(cross.view(), &segments)), [-2.0, f32::MIN, 5.0]);
    }

    #[test]
    fn text_form() {
        for text in
            ["mean/self", "mean/rivals", "mean/both", "peak/self", "peak/rivals", "peak/both", "bound/self"]
        {
            let estimator: Estimator = text.parse().expect(text);
            assert_eq!(estimator.to_string(), text);
            let json = serde_json::to_string(&estimator).expect(text);
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Estimator>(&json).expect(text), estimator);
        }
        for text in ["", "peak", "peak/", "/self", "peak/own", "Peak/self", "peak/self/", "bound/rivals"] {
            assert_eq!(text.parse::<Estimator>(), Err(UnknownEstimator(text.to_owned())));
        }
    }
}
