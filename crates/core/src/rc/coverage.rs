//! Coverage: scores that reward what the better segments leave open.
//! Knows nothing of how RC was computed: per query token and segment is what it takes.

use ndarray::Array2;

use super::saturated;

/// How much of a query token is spent once a chosen segment speaks for it. Flat between 0.5 and 0.7.
pub const COVERAGE: f64 = 0.6;

/// Segments that are chosen one by one; the rest are scored once, against all of the chosen.
pub const PICKS: usize = 10;

/// Scores that reward what the better segments leave open, `[segment]`, from RC per query token `[query, segment]`.
///
/// The best segment by mean RC comes first. Every next one is the best when each query token counts for
/// 1 − [`COVERAGE`] · (its largest RC among the chosen / its largest RC anywhere): a question of two parts then finds the
/// passage for its second part, though several speak louder of the first. Scores never increase in the order of choice,
/// so sorting by them gives that order back; equal ones keep the order of the segments.
pub fn with_coverage(rc: &Array2<f32>) -> Vec<f32> {
    let (queries, segments) = rc.dim();
    let best: Vec<f64> =
        rc.outer_iter().map(|row| row.iter().fold(0.0, |best, &z| f64::from(z).max(best))).collect();
    let mut spent = vec![0.0; queries];
    let mut scores = vec![0.0; segments];
    let mut open: Vec<usize> = (0..segments).collect();
    let mut last = f64::INFINITY;
    for _ in 0..PICKS.min(segments) {
        let found = weighed(rc, &open, &spent, &best);
        // The first of equals: the comparison is strict.
        let at = (1..found.len()).fold(0, |best, at| if found[at] > found[best] { at } else { best });
        last = found[at].min(last);
        let chosen = open.remove(at);
        scores[chosen] = last;
        for (spent, z) in spent.iter_mut().zip(rc.column(chosen)) {
            *spent = f64::from(*z).max(*spent);
        }
    }
    for (segment, score) in open.iter().zip(weighed(rc, &open, &spent, &best)) {
        scores[*segment] = score.min(last);
    }
    scores.into_iter().map(saturated).collect()
}

/// Mean over queries of RC, each query weighed by what is left of it; one value per open segment.
fn weighed(rc: &Array2<f32>, open: &[usize], spent: &[f64], best: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; open.len()];
    for ((row, spent), best) in rc.outer_iter().zip(spent).zip(best) {
        let left = if *best > 0.0 { 1.0 - COVERAGE * spent / best } else { 1.0 };
        for (sum, &segment) in sums.iter_mut().zip(open) {
            *sum += left * f64::from(row[segment]);
        }
    }
    let queries = rc.nrows().max(1) as f64;
    sums.into_iter().map(|sum| sum / queries).collect()
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn check(name: &str, rc: &Array2<f32>, expect: &[f32]) {
        let found = with_coverage(rc);
        assert_eq!(found.len(), expect.len(), "{name}");
        for (found, expect) in found.iter().zip(expect) {
            assert!((found - expect).abs() < 1e-6, "{name}: {found} for {expect}");
        }
    }

    #[test]
    fn small_cases() {
        check("one segment keeps its mean", &array![[1.0], [3.0]], &[2.0]);
        check("none", &Array2::zeros((2, 0)), &[]);
        check("no query", &Array2::zeros((0, 2)), &[0.0, 0.0]);
        check("nothing found", &Array2::zeros((2, 2)), &[0.0, 0.0]);
        // The first speaks for token 0; what the second adds to token 1 then counts for more than the third's echo.
        check("the other half", &array![[4.0, 0.0, 3.0], [0.0, 2.0, 0.0]], &[2.0, 1.0, 0.6]);
    }

    /// The definition, choosing one by one without the bookkeeping.
    fn order_by_definition(rc: &Array2<f32>, picks: usize) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.len() < picks {
            let value = |segment: usize| -> f64 {
                let left = |row: ndarray::ArrayView1<f32>| {
                    let best = row.iter().copied().fold(0.0_f32, f32::max);
                    let spent = chosen.iter().map(|&c| row[c]).fold(0.0_f32, f32::max);
                    let left =
                        if best > 0.0 { 1.0 - COVERAGE * f64::from(spent) / f64::from(best) } else { 1.0 };
                    left * f64::from(row[segment])
                };
                rc.outer_iter().map(left).sum()
            };
            let open = (0..rc.ncols()).filter(|segment| !chosen.contains(segment));
            let best = open.reduce(|a, b| if value(b) > value(a) { b } else { a });
            chosen.push(best.expect("fewer picks than segments"));
        }
        chosen
    }

    #[test]
    fn sorting_by_score_gives_the_order_of_choice_back() {
        let rc = Array2::from_shape_fn((3, 40), |(j, i)| ((i * i * 7 + j * 13 + i * j) % 101) as f32);
        let scores = with_coverage(&rc);
        let mut order: Vec<usize> = (0..40).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        assert_eq!(order[..PICKS], order_by_definition(&rc, PICKS));
        assert!(scores.iter().all(|score| *score >= 0.0));
    }
}
