//! Rows of work, on one thread or on all: owns the threshold between the two.
//! Knows nothing of what a row computes.

use std::borrow::Cow;

use ndarray::ArrayView1;
use rayon::prelude::*;

/// One thread finds the peaks of this many logits in some 10 µs (measured); handing out less is taken not to pay.
const ELEMENTS_PARALLEL_MIN: usize = 1 << 16;

/// Runs `each` once per row. `elements` is the size of the whole work; `scratch` is reused from row to row, so `each`
/// must not read what an earlier row left there: that is what keeps the result independent of the thread count.
pub(super) fn for_each_row<S: Default, R: Send>(
    elements: usize,
    rows: Vec<R>,
    each: impl Fn(&mut S, R) + Sync + Send,
) {
    if elements < ELEMENTS_PARALLEL_MIN {
        let mut scratch = S::default();
        rows.into_iter().for_each(|row| each(&mut scratch, row));
    } else {
        rows.into_par_iter().for_each_init(S::default, each);
    }
}

/// The row as a slice; copied only when its elements do not lie side by side.
pub(super) fn contiguous<'a>(row: ArrayView1<'a, f32>) -> Cow<'a, [f32]> {
    match row.to_slice() {
        Some(slice) => Cow::Borrowed(slice),
        None => Cow::Owned(row.to_vec()),
    }
}
