//! Tests of the whole statistic: golden values from an independent implementation, and properties.
//! Cases that are small enough to calculate by hand are in the modules of the functions.

use std::collections::BTreeMap;

use ndarray::{Array, Array2, Array3, ArrayView2, Axis, Dimension, Slice};
use proptest::collection::vec;
use proptest::prelude::*;

use super::bound::PooledReference;
use super::*;
use crate::domain::TokenSpan;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Mean,
    Peak,
}

const FORMS: [(&str, Form); 2] = [("mean/self", Form::Mean), ("peak/self", Form::Peak)];

// ---------------------------------------------------------------- golden values

#[derive(serde::Deserialize)]
struct Golden {
    cross: Vec<Vec<Vec<f32>>>,
    #[serde(rename = "own")]
    self_logits: Vec<Vec<Vec<f32>>>,
    segments: Vec<(usize, usize)>,
    raw_maxsim: Vec<f32>,
    estimators: BTreeMap<String, GoldenScores>,
}

#[derive(serde::Deserialize)]
struct GoldenScores {
    per_query: Vec<Vec<f32>>,
    scores: Vec<f32>,
}

fn array3(values: &[Vec<Vec<f32>>]) -> Array3<f32> {
    let shape = (values.len(), values[0].len(), values[0][0].len());
    Array3::from_shape_vec(shape, values.concat().concat()).expect("a full array")
}

fn assert_close<'a>(name: &str, found: impl IntoIterator<Item = &'a f32>, expect: &[f32]) {
    let found: Vec<f32> = found.into_iter().copied().collect();
    assert_eq!(found.len(), expect.len(), "{name}");
    for (found, expect) in found.iter().zip(expect) {
        let tolerance = 1e-5 * expect.abs().max(1e-3);
        assert!((found - expect).abs() <= tolerance, "{name}: {found} is not {expect}");
    }
}

#[test]
fn goldens() {
    let text = include_str!("goldens/goldens.json");
    let golden: Golden = serde_json::from_str(text).expect("the fixture is JSON");
    let (cross, self_logits) = (array3(&golden.cross), array3(&golden.self_logits));
    let segments: Vec<_> = golden.segments.iter().map(|&(a, b)| TokenSpan::new(a, b)).collect();
    let case = Case { cross: cross.clone(), self_logits, segments: segments.clone() };
    for (name, form) in FORMS {
        let (found, expect) = (case.per_query(form), &golden.estimators[name]);
        assert_close(name, &mean_over_queries(found.view()), &expect.scores);
        assert_close(name, &found, &expect.per_query.concat());
    }
    assert_close("raw_maxsim", &raw_maxsim(&peaks(cross.view(), &segments)), &golden.raw_maxsim);
}

// ---------------------------------------------------------------- the definition, O(n · m), in f64

fn definition(x: f32, y: &[f32]) -> f64 {
    let sum: f64 = y.iter().map(|&y| (f64::from(x) - f64::from(y)).max(0.0)).sum();
    sum / y.len().max(1) as f64
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count().max(1);
    values.sum::<f64>() / count as f64
}

/// RC of one head, query and segment by the definition.
fn definition_of(case: &Case, (h, j): (usize, usize), segment: TokenSpan, form: Form) -> f64 {
    let row = case.cross.index_axis(Axis(0), h).row(j).to_vec();
    // A segment without keys has no peak, and one whose only logits are EMPTY counts as such.
    let peak = |span: &TokenSpan| {
        row[span.range()].iter().copied().max_by(f32::total_cmp).filter(|&peak| peak != EMPTY)
    };
    // Keys that the query does not see are not part of the reference.
    let self_row = case.self_logits.index_axis(Axis(0), h).row(j).to_vec();
    let visible: Vec<f32> = self_row.into_iter().filter(|&logit| logit != EMPTY).collect();
    match form {
        Form::Mean => mean(row[segment.range()].iter().map(|&x| definition(x, &visible))),
        Form::Peak => peak(&segment).map_or(0.0, |x| definition(x, &visible)),
    }
}

// ---------------------------------------------------------------- random input

#[derive(Debug, Clone)]
struct Case {
    cross: Array3<f32>,
    self_logits: Array3<f32>,
    segments: Vec<TokenSpan>,
}

impl Case {
    /// Returns the mean RC over heads, `[query, segment]`.
    fn per_query(&self, form: Form) -> Array2<f32> {
        mean_over_heads(match form {
            Form::Mean => mean_rc(self.cross.view(), self.self_logits.view(), &self.segments),
            Form::Peak => {
                let peaks = peaks(self.cross.view(), &self.segments);
                peaks_against_self(peaks.value.view(), self.self_logits.view())
            }
        })
    }

    fn scores(&self, form: Form) -> Vec<f32> {
        mean_over_queries(self.per_query(form).view())
    }

    fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self {
            cross: self.cross.mapv(&f),
            self_logits: self.self_logits.mapv(&f),
            segments: self.segments.clone(),
        }
    }

    /// Returns the largest magnitude among the logits, to which rounding errors are relative.
    fn magnitude(&self) -> f32 {
        self.cross.iter().chain(&self.self_logits).fold(0.0, |most, x| x.abs().max(most))
    }
}

/// Returns the values in reverse order along `axis`. The strides are negative, so views of the result are not
/// contiguous.
fn reversed<T: Clone, D: Dimension>(values: &Array<T, D>, axis: Axis) -> Array<T, D> {
    let mut values = values.clone();
    values.invert_axis(axis);
    values
}

/// Generates multiples of 1/64, whose sums and differences are exact, so that ties and invariances are exact
/// too.
fn grid() -> impl Strategy<Value = f32> + Clone {
    (-640_i16..640).prop_map(|x| f32::from(x) / 64.0)
}

/// Generates finite floats of all kinds, with extreme values and near-ties more often than by chance.
fn any_finite() -> impl Strategy<Value = f32> + Clone {
    use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    let near_one = (0_u32..4).prop_map(|ulps| f32::from_bits(1.0_f32.to_bits() + ulps));
    let ends = prop_oneof![Just(f32::MAX), Just(f32::MIN), Just(f32::MIN_POSITIVE), Just(-0.0)];
    prop_oneof![4 => NORMAL | SUBNORMAL | ZERO | POSITIVE | NEGATIVE, 1 => ends, 1 => near_one]
}

fn case_of(logit: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = Case> {
    (1_usize..3, 0_usize..4, 0_usize..80, 0_usize..6).prop_flat_map(move |(h, q, n, m)| {
        let span = (0..=n, 0..=n).prop_map(|(a, b)| TokenSpan::new(a.min(b), a.max(b)));
        let cross = vec(logit.clone(), h * q * n);
        let self_logits = vec(logit.clone(), h * q * m);
        (cross, self_logits, vec(span, 0..7)).prop_map(move |(cross, self_logits, segments)| Case {
            cross: Array3::from_shape_vec((h, q, n), cross).expect("h · q · n logits"),
            self_logits: Array3::from_shape_vec((h, q, m), self_logits).expect("h · q · m logits"),
            segments,
        })
    })
}

/// Generates x `[query, key]` and for every query a reference of random length.
fn ragged(logit: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = (Array2<f32>, Vec<Vec<f32>>)> {
    (1_usize..5, 1_usize..20).prop_flat_map(move |(q, n)| {
        let x = vec(logit.clone(), q * n);
        (x, vec(vec(logit.clone(), 0..12), q))
            .prop_map(move |(x, y)| (Array2::from_shape_vec((q, n), x).expect("q · n logits"), y))
    })
}

fn exact_mean(x: ArrayView2<'_, f32>, y: &[Vec<f32>]) -> f64 {
    mean(x.outer_iter().zip(y).flat_map(|(x, y)| x.to_vec().into_iter().map(move |x| definition(x, y))))
}

/// ∫ min(1 − F_X, F_Y), interval by interval. `x` are the logits of the queries that have a reference.
fn integral_of_the_bound(x: &[f32], y: &[Vec<f32>]) -> f64 {
    let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
    let mass = share(y.iter().filter(|y| !y.is_empty()).count(), y.len());
    let above = |t: f32| mass * share(x.iter().filter(|&&x| x > t).count(), x.len());
    let of_query = |y: &Vec<f32>, t: f32| share(y.iter().filter(|&&y| y <= t).count(), y.len());
    let below = |t: f32| y.iter().map(|y| of_query(y, t)).sum::<f64>() / y.len().max(1) as f64;
    let mut places: Vec<f32> = x.iter().chain(y.iter().flatten()).copied().collect();
    places.sort_unstable_by(f32::total_cmp);
    let interval = |ab: &[f32]| above(ab[0]).min(below(ab[0])) * (f64::from(ab[1]) - f64::from(ab[0]));
    places.windows(2).map(interval).sum()
}

fn close(found: f32, expect: f64) -> bool {
    let expect = f64::from(saturated(expect));
    // Below the last term, an f32 is less precise than 1e-5 of its value.
    (f64::from(found) - expect).abs() <= 1e-5 * expect.abs() + 1e-40
}

fn close_all(found: &[f32], expect: &[f32], tolerance: f32) -> bool {
    found.len() == expect.len() && found.iter().zip(expect).all(|(a, b)| (a - b).abs() <= tolerance)
}

// ---------------------------------------------------------------- properties

proptest! {
    #[test]
    fn scores_equal_the_definition(case in prop_oneof![case_of(grid()).boxed(), case_of(any_finite()).boxed()]) {
        let (heads, queries, _) = case.cross.dim();
        for (name, form) in FORMS {
            let (of_queries, scores) = (case.per_query(form), case.scores(form));
            for (p, &segment) in case.segments.iter().enumerate() {
                let of_row = |h, j| f64::from(saturated(definition_of(&case, (h, j), segment, form)));
                let per_query = |j| mean((0..heads).map(|h| of_row(h, j)));
                for j in 0..queries {
                    let (found, expect) = (of_queries[[j, p]], per_query(j));
                    prop_assert!(close(found, expect), "{name} query {j}: {found} is not {expect}");
                }
                let (found, expect) = (scores[p], mean((0..queries).map(per_query)));
                prop_assert!(close(found, expect), "{name}: {found} is not {expect}");
            }
        }
    }

    #[test]
    fn the_bound_is_the_integral_and_no_less_than_the_mean(
        (x, y) in prop_oneof![ragged(grid()).boxed(), ragged(any_finite()).boxed()],
    ) {
        let exact = exact_mean(x.view(), &y);
        let with_reference = x.outer_iter().zip(&y).filter(|(_, y)| !y.is_empty());
        let mut logits: Vec<f32> = with_reference.flat_map(|(x, _)| x.to_vec()).collect();
        let bound = PooledReference::new(&y).upper_bound(&mut logits);
        let integral = integral_of_the_bound(&logits, &y);
        let range = x.iter().chain(y.iter().flatten()).fold(0.0, |most: f64, &v| f64::from(v).abs().max(most));
        let slack = 1e-12 * range;
        prop_assert!(exact <= bound + slack, "{exact} ≤ {bound}");
        prop_assert!((bound - integral).abs() <= slack, "{bound} is not {integral}");
    }

    #[test]
    fn a_common_shift_changes_nothing(case in case_of(grid()), shift in -1000_i16..1000) {
        let shifted = case.map(|x| x + f32::from(shift));
        for (_, form) in FORMS {
            prop_assert_eq!(case.per_query(form), shifted.per_query(form));
        }
    }

    #[test]
    fn scaling_the_logits_scales_the_scores(case in case_of(grid()), scale in 0.01_f32..100.0) {
        let scaled = case.map(|x| x * scale);
        let tolerance = 1e-6 * scaled.magnitude();
        for (_, form) in FORMS {
            let expect: Vec<f32> = case.scores(form).iter().map(|x| x * scale).collect();
            prop_assert!(close_all(&scaled.scores(form), &expect, tolerance));
        }
    }

    #[test]
    fn own_keys_in_any_order_give_the_same_bits(case in case_of(any_finite())) {
        let other = Case { self_logits: reversed(&case.self_logits, Axis(2)), ..case.clone() };
        for (_, form) in FORMS {
            prop_assert_eq!(case.per_query(form), other.per_query(form));
        }
    }

    #[test]
    fn the_order_of_keys_in_a_segment_does_not_matter(case in case_of(grid())) {
        // With reversed keys, segment a..b becomes n−b..n−a and has the same logits in reverse order.
        let keys = case.cross.dim().2;
        let segments = case.segments.iter().map(|span| TokenSpan::new(keys - span.end, keys - span.start));
        let other = Case {
            cross: reversed(&case.cross, Axis(2)),
            self_logits: case.self_logits.clone(),
            segments: segments.collect(),
        };
        let values = |case: &Case| peaks(case.cross.view(), &case.segments).value;
        prop_assert_eq!(values(&case), values(&other));
        for (_, form) in FORMS {
            prop_assert!(close_all(&case.scores(form), &other.scores(form), 1e-6 * case.magnitude()));
        }
    }

    #[test]
    fn the_order_of_queries_does_not_matter(case in case_of(grid())) {
        let other = Case {
            cross: reversed(&case.cross, Axis(1)),
            self_logits: reversed(&case.self_logits, Axis(1)),
            segments: case.segments.clone(),
        };
        for (_, form) in FORMS {
            prop_assert_eq!(case.per_query(form), reversed(&other.per_query(form), Axis(0)));
            prop_assert!(close_all(&case.scores(form), &other.scores(form), 1e-6 * case.magnitude()));
        }
    }

    #[test]
    fn the_order_of_segments_does_not_matter(case in case_of(any_finite())) {
        let mut other = case.clone();
        other.segments.reverse();
        let keys = |case: &Case| peaks(case.cross.view(), &case.segments).key;
        prop_assert_eq!(keys(&case), reversed(&keys(&other), Axis(2)));
        for (_, form) in FORMS {
            prop_assert_eq!(case.per_query(form), reversed(&other.per_query(form), Axis(1)));
        }
    }

    #[test]
    fn finite_input_gives_finite_output(case in case_of(any_finite())) {
        for (_, form) in FORMS {
            let (of_queries, scores) = (case.per_query(form), case.scores(form));
            prop_assert!(scores.iter().chain(&of_queries).all(|x| x.is_finite() && *x >= 0.0));
        }
        let peaks = peaks(case.cross.view(), &case.segments);
        prop_assert!(raw_maxsim(&peaks).iter().all(|x| x.is_finite()));
    }

    #[test]
    fn the_key_of_a_peak_has_the_value_of_the_peak(case in case_of(any_finite())) {
        let found = peaks(case.cross.view(), &case.segments);
        for ((h, j, p), &key) in found.key.indexed_iter() {
            let (segment, value) = (case.segments[p], found.value[[h, j, p]]);
            if key == KEY_NONE {
                prop_assert!(segment.is_empty());
                continue;
            }
            let key = key as usize;
            prop_assert_eq!(case.cross[[h, j, key]].to_bits(), value.to_bits());
            let row = case.cross.index_axis(Axis(0), h);
            prop_assert!(segment.range().all(|i| row[[j, i]] < value || (i >= key && row[[j, i]] == value)));
        }
    }
}

// ---------------------------------------------------------------- threads

/// Returns the logits of a fixed pseudo-random sequence between −8 and 8.
fn logits(shape: (usize, usize, usize), seed: u32) -> Array3<f32> {
    let mut state = seed;
    Array3::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 20) as f32 - 8.0
    })
}

#[test]
fn thread_count_does_not_change_a_bit() {
    let case = Case {
        cross: logits((2, 8, 6000), 1),
        self_logits: logits((2, 8, 8), 2),
        segments: (0..600).map(|p| TokenSpan::new(10 * p, 10 * p + 10)).collect(),
    };
    for (name, form) in FORMS {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads can be started").install(|| case.per_query(form))
        };
        assert_eq!(on(1), on(4), "{name}");
        // A single query has so few elements that it is computed on this thread.
        let one_query = Case {
            cross: case.cross.slice_axis(Axis(1), Slice::from(3..4)).to_owned(),
            self_logits: case.self_logits.slice_axis(Axis(1), Slice::from(3..4)).to_owned(),
            segments: case.segments.clone(),
        };
        assert_eq!(on(4).row(3), one_query.per_query(form).row(0), "{name}");
    }
}
