//! Logistic regression with an L2 penalty. The solver is Newton's method; the conjugate gradient method solves
//! each step, so the matrix of second derivatives is never built. Knows nothing of what the features mean.

use ndarray::{Array1, Array2, ArrayView1, Axis, concatenate};

/// The most steps of Newton's method. The problem is convex, and fewer than ten are usual.
const STEPS_MAX: usize = 50;

/// The most halvings of one step.
const HALVINGS_MAX: usize = 30;

/// The solver stops when the gradient is this much shorter than the first one.
const GRADIENT_SHRINK: f64 = 1e-8;

/// Rows with labels and weights.
#[derive(Debug, Clone)]
pub struct Samples {
    /// `[row, feature]`: the values of each row.
    features: Array2<f64>,
    /// `[row]`: 1 for a positive row, -1 for a negative one.
    signs: Array1<f64>,
    /// `[row]`: how much the row counts; at least 0.
    weights: Array1<f64>,
}

/// The result of a regression: a row's logit is its features times `weights`, plus `bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// `[feature]`: by what the features of a row are multiplied.
    pub weights: Array1<f64>,
    /// The logit of a row whose features are all 0.
    pub bias: f64,
}

impl Samples {
    /// Returns samples from `features` `[row, feature]`, `[row]` labels and `[row]` weights.
    ///
    /// # Panics
    /// When the numbers of rows differ.
    pub fn new(features: &Array2<f64>, labels: &[bool], weights: Vec<f64>) -> Self {
        assert_eq!((labels.len(), weights.len()), (features.nrows(), features.nrows()), "rows");
        // The last feature is 1 in all rows: its weight is the bias.
        let ones = Array2::ones((features.nrows(), 1));
        let features = concatenate(Axis(1), &[features.view(), ones.view()]).expect("rows of one number");
        let signs = labels.iter().map(|&label| if label { 1.0 } else { -1.0 }).collect();
        Self { features, signs, weights: weights.into() }
    }

    /// Returns the weights that minimise the weighted sum of the rows' negative log-likelihoods plus `penalty
    /// / 2` times the sum of all squared weights. The bias is not penalised.
    ///
    /// The result is the minimum up to rounding if both labels occur and `penalty` is above 0.
    pub fn fit(&self, penalty: f64) -> Fitted {
        let mut penalties = Array1::from_elem(self.features.ncols(), penalty);
        let bias = penalties.len() - 1;
        penalties[bias] = 0.0;
        let mut point = Array1::zeros(penalties.len());
        let mut first_length = None;
        for _ in 0..STEPS_MAX {
            let (loss, gradient, curvatures) = self.at(&point, &penalties);
            let length = gradient.dot(&gradient).sqrt();
            let first_length = *first_length.get_or_insert(length);
            if length <= GRADIENT_SHRINK * first_length {
                break;
            }
            let times_hessian = |v: &Array1<f64>| {
                self.features.t().dot(&(&curvatures * &self.features.dot(v))) + &penalties * v
            };
            let step = conjugate_gradient(times_hessian, &gradient, 0.1 * (length / first_length).sqrt());
            let Some(next) = self.line_search(&point, &step, loss, gradient.dot(&step), &penalties) else {
                break;
            };
            point = next;
        }
        Fitted { bias: point[bias], weights: point.slice_move(ndarray::s![..bias]) }
    }

    /// Returns the loss, its gradient, and `[row]` the second derivative of each row's loss by its logit.
    fn at(&self, point: &Array1<f64>, penalties: &Array1<f64>) -> (f64, Array1<f64>, Array1<f64>) {
        let margins = &self.signs * &self.features.dot(point);
        let wrong = margins.mapv(|margin| 1.0 / (1.0 + margin.exp()));
        let slopes = -(&self.weights * &self.signs * &wrong);
        let curvatures = &self.weights * &wrong * &wrong.mapv(|wrong| 1.0 - wrong);
        let gradient = self.features.t().dot(&slopes) + penalties * point;
        (self.loss(point, penalties), gradient, curvatures)
    }

    /// Returns the weighted sum of the rows' negative log-likelihoods by another fit.
    ///
    /// # Panics
    /// When the fit has another number of features.
    pub fn loss_of(&self, fitted: &Fitted) -> f64 {
        let point = concatenate![Axis(0), fitted.weights, [fitted.bias]];
        self.loss(&point, &Array1::zeros(point.len()))
    }

    fn loss(&self, point: &Array1<f64>, penalties: &Array1<f64>) -> f64 {
        let margins = &self.signs * &self.features.dot(point);
        let likelihood = margins.mapv(negative_log_sigmoid).dot(&self.weights);
        likelihood + 0.5 * (penalties * point).dot(point)
    }

    /// Returns the point at the end of the step, which is halved until the loss falls; `None` if it never
    /// does, which happens only at the minimum.
    fn line_search(
        &self,
        point: &Array1<f64>,
        step: &Array1<f64>,
        loss: f64,
        slope: f64,
        penalties: &Array1<f64>,
    ) -> Option<Array1<f64>> {
        let scales = (0..HALVINGS_MAX).map(|halvings| 0.5_f64.powi(halvings as i32));
        let mut tried = scales.map(|scale| (scale, point - &(scale * step)));
        tried
            .find(|(scale, next)| self.loss(next, penalties) < loss - 1e-4 * scale * slope)
            .map(|(_, next)| next)
    }
}

impl Fitted {
    /// Returns the logit of a row.
    ///
    /// # Panics
    /// When the row has another number of features.
    pub fn logit(&self, features: ArrayView1<f64>) -> f64 {
        self.weights.dot(&features) + self.bias
    }
}

/// Solves `matrix · x = target` for a symmetric positive definite matrix, until the rest is `tolerance` times
/// as long as the target.
fn conjugate_gradient(
    matrix: impl Fn(&Array1<f64>) -> Array1<f64>,
    target: &Array1<f64>,
    tolerance: f64,
) -> Array1<f64> {
    let (mut x, mut rest) = (Array1::zeros(target.len()), target.clone());
    let (mut direction, mut square) = (rest.clone(), rest.dot(&rest));
    let enough = tolerance * tolerance * square;
    // In exact arithmetic, as many rounds as unknowns give the solution; rounding may need a few more.
    for _ in 0..2 * target.len() {
        let image = matrix(&direction);
        let curvature = direction.dot(&image);
        if square <= enough || curvature <= 0.0 {
            break;
        }
        let length = square / curvature;
        x.scaled_add(length, &direction);
        rest.scaled_add(-length, &image);
        let next = rest.dot(&rest);
        direction = &rest + &(next / square * &direction);
        square = next;
    }
    x
}

/// Returns `ln(1 + exp(-margin))` without overflow.
fn negative_log_sigmoid(margin: f64) -> f64 {
    (-margin.abs()).exp().ln_1p() + (-margin).max(0.0)
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[track_caller]
    fn check(name: &str, samples: &Samples, penalty: f64, expect: (&[f64], f64)) {
        let found = samples.fit(penalty);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-5;
        let all_close = found.weights.iter().zip(expect.0).all(|(&a, &b)| close(a, b));
        assert!(
            found.weights.len() == expect.0.len() && all_close && close(found.bias, expect.1),
            "{name}: {found:?}"
        );
    }

    #[test]
    fn minima_are_those_of_other_solvers() {
        let none = Array2::zeros((4, 1));
        let labels = [true, false, false, false];
        check(
            "only the base rate",
            &Samples::new(&none, &labels, vec![1.0; 4]),
            1.0,
            (&[0.0], -(3.0_f64.ln())),
        );
        check(
            "a row that counts three times",
            &Samples::new(&none, &labels, vec![3.0, 1.0, 1.0, 1.0]),
            1.0,
            (&[0.0], 0.0),
        );
        // Computed with scikit-learn.
        let six = array![[1.0, 0.0], [2.0, 1.0], [0.0, 2.0], [-1.0, 1.0], [0.0, -1.0], [3.0, 3.0]];
        let labels = [true, true, false, false, true, false];
        let weights = vec![1.0, 2.0, 1.0, 1.0, 0.5, 1.0];
        let expect = (&[0.863_589, -1.604_771][..], 1.156_954);
        check("six rows", &Samples::new(&six, &labels, weights), 0.5, expect);
        // By symmetry the bias is 0, and the weight solves w = 2 / (1 + exp(w)).
        let two = array![[1.0], [-1.0]];
        check("two rows", &Samples::new(&two, &[true, false], vec![1.0; 2]), 1.0, (&[0.674_831_6], 0.0));
    }

    /// At the minimum, the gradient is 0: one condition for each weight and the bias.
    #[test]
    fn random_problems_are_solved_and_nearby_points_are_worse() {
        let mut random = fastrand::Rng::with_seed(1);
        for (rows, columns, penalty) in [(40, 3, 1.0), (60, 90, 0.1), (200, 30, 1e-4)] {
            let features = Array2::from_shape_simple_fn((rows, columns), || random.f64() * 4.0 - 2.0);
            let labels: Vec<bool> = (0..rows).map(|row| features[[row, 0]] + random.f64() > 1.0).collect();
            let weights = (0..rows).map(|_| random.f64()).collect();
            let samples = Samples::new(&features, &labels, weights);
            let found = samples.fit(penalty);
            let mut penalties = Array1::from_elem(columns + 1, penalty);
            penalties[columns] = 0.0;
            let mut point = Array1::zeros(columns + 1);
            let at_start = samples.at(&point, &penalties).1;
            point.slice_mut(ndarray::s![..columns]).assign(&found.weights);
            point[columns] = found.bias;
            let (_, gradient, _) = samples.at(&point, &penalties);
            let shrink = gradient.dot(&gradient).sqrt() / at_start.dot(&at_start).sqrt();
            assert!(shrink < 1e-6, "{rows} rows, {columns} columns: {shrink}");
        }
    }

    #[test]
    fn separable_rows_have_finite_weights() {
        let features = array![[1.0, 1e3], [-1.0, -1e3]];
        let found = Samples::new(&features, &[true, false], vec![1e6; 2]).fit(1e-6);
        assert!(found.weights.iter().all(|weight| weight.is_finite()) && found.bias.is_finite(), "{found:?}");
        assert!(found.logit(features.row(0)) > 0.0 && found.logit(features.row(1)) < 0.0);
    }
}
