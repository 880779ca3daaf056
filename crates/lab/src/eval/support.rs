//! How well support tells what the chunks say from what they do not: the area under the ROC curve.

use super::bootstrap::{Estimate, estimate};
use super::report::SupportReport;

/// From the support of `supported` spans and of several kinds of others.
pub fn report(supported: &[f64], others: &[(&str, Vec<f64>)], faithful: &[f64]) -> Option<SupportReport> {
    let all: Vec<f64> = others.iter().flat_map(|(_, support)| support).copied().collect();
    let auroc_of =
        |others: &[f64]| (!supported.is_empty() && !others.is_empty()).then(|| auroc(supported, others));
    Some(SupportReport {
        auroc: auroc_of(&all)?,
        kinds: others
            .iter()
            .filter_map(|(kind, support)| Some(((*kind).to_owned(), auroc_of(support)?)))
            .collect(),
        faithful: (!faithful.is_empty()).then(|| estimate(faithful)),
    })
}

/// The share of pairs in which the supported one has more support, ties counted by half. The interval is that of a mean over the
/// unsupported ones.
fn auroc(supported: &[f64], others: &[f64]) -> Estimate {
    let mut sorted = supported.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let above = |other: &f64| {
        let below = sorted.partition_point(|value| value < other);
        let up_to = sorted.partition_point(|value| value <= other);
        (sorted.len() as f64 - (below + up_to) as f64 / 2.0) / sorted.len() as f64
    };
    estimate(&others.iter().map(above).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_of_small_samples() {
        let check = |name: &str, (supported, others): (&[f64], &[f64]), expect: f64| {
            assert_eq!(auroc(supported, others).mean, expect, "{name}");
        };
        check("apart", (&[0.9, 0.8], &[0.1]), 1.0);
        check("reversed", (&[0.1], &[0.9, 0.8]), 0.0);
        check("the same", (&[0.5], &[0.5]), 0.5);
        check("half way", (&[0.2, 0.6], &[0.4]), 0.5);
    }
}
