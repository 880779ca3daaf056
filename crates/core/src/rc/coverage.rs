//! Coverage: adjusts scores so that a segment gains for question tokens that better segments do not answer.
//! Knows nothing of how RC was computed; takes RC per question token and segment.

use ndarray::Array2;

use super::saturated;

/// The share of a question token's weight that is used up once a chosen segment covers the token fully.
/// Results are flat between 0.5 and 0.7.
pub const COVERAGE: f64 = 0.6;

/// How many segments are chosen one by one. All others are scored once, after all of these are chosen.
pub const PICKS: usize = 10;

/// Returns coverage scores `[segment]` from `rc` `[query, segment]`, the RC per question token.
///
/// The segment with the best mean RC is chosen first. Each further choice is the segment with the best mean
/// when each question token has the weight 1 − [`COVERAGE`] · (largest RC of the token among the chosen
/// segments / largest RC of the token among all segments). A question of two parts then finds the passage for
/// its second part even if several passages score higher for the first part.
///
/// Scores never increase in the order of choice, so sorting by score restores that order. Equal scores keep
/// the order of the segments.
pub fn with_coverage(rc: &Array2<f32>) -> Vec<f32> {
    let (queries, segments) = rc.dim();
    let best: Vec<f64> =
        rc.outer_iter().map(|row| row.iter().fold(0.0, |best, &z| f64::from(z).max(best))).collect();
    // `[query]`: the largest RC among the chosen segments.
    let mut covered = vec![0.0; queries];
    let mut scores = vec![0.0; segments];
    let mut remaining: Vec<usize> = (0..segments).collect();
    let mut last = f64::INFINITY;
    for _ in 0..PICKS.min(segments) {
        let found = weighted_means(rc, &remaining, &covered, &best);
        // The comparison is strict, so the first of equal values wins.
        let at = (1..found.len()).fold(0, |best, at| if found[at] > found[best] { at } else { best });
        last = found[at].min(last);
        let chosen = remaining.remove(at);
        scores[chosen] = last;
        for (covered, z) in covered.iter_mut().zip(rc.column(chosen)) {
            *covered = f64::from(*z).max(*covered);
        }
    }
    for (segment, score) in remaining.iter().zip(weighted_means(rc, &remaining, &covered, &best)) {
        scores[*segment] = score.min(last);
    }
    scores.into_iter().map(saturated).collect()
}

/// Returns for each remaining segment its mean RC over queries, in which each query has its remaining weight.
fn weighted_means(rc: &Array2<f32>, remaining: &[usize], covered: &[f64], best: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; remaining.len()];
    for ((row, covered), best) in rc.outer_iter().zip(covered).zip(best) {
        let weight = if *best > 0.0 { 1.0 - COVERAGE * covered / best } else { 1.0 };
        for (sum, &segment) in sums.iter_mut().zip(remaining) {
            *sum += weight * f64::from(row[segment]);
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
        check("a single segment keeps its mean", &array![[1.0], [3.0]], &[2.0]);
        check("no segment", &Array2::zeros((2, 0)), &[]);
        check("no query", &Array2::zeros((0, 2)), &[0.0, 0.0]);
        check("RC of zero", &Array2::zeros((2, 2)), &[0.0, 0.0]);
        // The first segment covers token 0. The second adds token 1, which is then worth more than the third,
        // which repeats token 0.
        check(
            "a segment for the other half of the question",
            &array![[4.0, 0.0, 3.0], [0.0, 2.0, 0.0]],
            &[2.0, 1.0, 0.6],
        );
    }

    /// The order of choice by the definition: recomputes all weights for each choice.
    fn order_by_definition(rc: &Array2<f32>, picks: usize) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.len() < picks {
            let value = |segment: usize| -> f64 {
                let weighted = |row: ndarray::ArrayView1<f32>| {
                    let best = row.iter().copied().fold(0.0_f32, f32::max);
                    let covered = chosen.iter().map(|&c| row[c]).fold(0.0_f32, f32::max);
                    let weight =
                        if best > 0.0 { 1.0 - COVERAGE * f64::from(covered) / f64::from(best) } else { 1.0 };
                    weight * f64::from(row[segment])
                };
                rc.outer_iter().map(weighted).sum()
            };
            let remaining = (0..rc.ncols()).filter(|segment| !chosen.contains(segment));
            let best = remaining.reduce(|a, b| if value(b) > value(a) { b } else { a });
            chosen.push(best.expect("fewer picks than segments"));
        }
        chosen
    }

    #[test]
    fn sorting_by_score_restores_the_order_of_choice() {
        let rc = Array2::from_shape_fn((3, 40), |(j, i)| ((i * i * 7 + j * 13 + i * j) % 101) as f32);
        let scores = with_coverage(&rc);
        let mut order: Vec<usize> = (0..40).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        assert_eq!(order[..PICKS], order_by_definition(&rc, PICKS));
        assert!(scores.iter().all(|score| *score >= 0.0));
    }
}
