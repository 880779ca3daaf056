//! Pooling: from (head, query) rows to one number per segment.

use ndarray::{Array2, Array3, ArrayView2, Axis};

use super::saturated;

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

#[cfg(test)]
mod tests {
    use ndarray::array;

    use crate::domain::TokenSpan;
    use crate::rc::{peaks, raw_maxsim};

    #[test]
    fn maxsim_ranks_an_empty_segment_last() {
        let cross = array![[[-5.0, 3.0], [1.0, 7.0]]];
        let segments = [(0, 1), (1, 1), (1, 2)].map(|(a, b)| TokenSpan::new(a, b));
        assert_eq!(raw_maxsim(&peaks(cross.view(), &segments)), [-2.0, f32::MIN, 5.0]);
    }
}
