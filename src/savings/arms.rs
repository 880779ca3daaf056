//! The comparison of conversations that are compressed with conversations that go whole: means per request, their difference, and how
//! certain it is.
//!
//! Conversations are assigned to an arm, not requests, and the requests of one conversation resemble each other. So the variance is that of
//! the ratio of two sums over conversations (the linearized, cluster-robust estimator): with `y` and `n` the sum and the number of requests of
//! one conversation and `r` the mean per request, it is the sum of `(y - r n)²`, divided by the squared number of requests, times `c / (c - 1)`
//! for `c` conversations.

use std::collections::{HashMap, VecDeque};

use schemars::JsonSchema;
use serde::Serialize;

use crate::middleware::usage::Usage;

/// The least conversations of each arm from which on an interval is given: the estimator needs enough of them.
pub const CONVERSATIONS_MIN: u64 = 30;

/// The quantile of the normal distribution for an interval of 95 %.
const Z: f64 = 1.959_963_985;

/// The measured values of a request: tokens of its prompt, those read from a cache, tokens of its answer, and its cost.
const MEASURES: usize = 4;

/// One arm of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arm {
    /// Conversations that are sent uncompressed, for comparison.
    Whole,
    Compressed,
}

/// The requests of both arms. It keeps sums, and the requests of the newest conversations.
#[derive(Debug)]
pub struct Arms {
    whole: Sums,
    compressed: Sums,
    /// The sums of conversations that may go on.
    open: HashMap<(Arm, u64), Conversation>,
    /// The same conversations, oldest first.
    order: VecDeque<(Arm, u64)>,
    open_count_max: usize,
    /// The currency of all costs; `None` while there is none, and if costs are missing or in several currencies.
    currency: Option<String>,
    has_all_costs: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Conversation {
    requests: f64,
    sums: [f64; MEASURES],
}

/// Sums over conversations.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    conversations: u64,
    requests: f64,
    requests_squared: f64,
    values: [f64; MEASURES],
    values_squared: [f64; MEASURES],
    values_by_requests: [f64; MEASURES],
}

/// The comparison of conversations that are compressed with conversations that go whole.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsHoldout")]
pub struct HoldoutReport {
    /// The share of conversations that go whole (`savings.holdout`).
    pub share: f64,
    /// Conversations that go whole.
    pub whole: ArmReport,
    /// Conversations that are compressed.
    pub compressed: ArmReport,
    /// Whether there are enough conversations for an interval.
    pub is_enough: bool,
    /// What the numbers say, in a sentence.
    pub conclusion: String,
    /// Billed tokens of prompts per request, cached or not.
    pub input_tokens: Difference,
    /// Billed tokens of prompts per request that were read from a cache.
    pub cached_input_tokens: Difference,
    /// Billed tokens of answers per request.
    pub output_tokens: Difference,
    /// The cost per request; `null` if a request has no price, or prices have several currencies.
    pub cost: Option<Difference>,
    /// The currency of `cost`.
    pub currency: Option<String>,
}

/// How much an arm has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsArm")]
pub struct ArmReport {
    /// Requests whose answers say how many tokens were billed.
    pub requests: u64,
    /// Conversations of these requests.
    pub conversations: u64,
}

/// The mean of a value per request in both arms, and the difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsDifference")]
pub struct Difference {
    /// The mean of conversations that go whole; `null` if there is no request.
    pub whole: Option<f64>,
    /// The mean of conversations that are compressed; `null` if there is no request.
    pub compressed: Option<f64>,
    /// `whole` less `compressed`: more than 0 if compression saves.
    pub saved: Option<f64>,
    /// The lower end of the 95 % interval of `saved`; `null` if there are too few conversations.
    pub saved_low: Option<f64>,
    /// The upper end of the interval.
    pub saved_high: Option<f64>,
}

impl Arms {
    /// Creates the arms without any request. The requests of at most `open_count_max` conversations are known to belong together.
    pub fn new(open_count_max: usize) -> Self {
        Self {
            whole: Sums::default(),
            compressed: Sums::default(),
            open: HashMap::new(),
            order: VecDeque::new(),
            open_count_max,
            currency: None,
            has_all_costs: true,
        }
    }

    /// Adds a request of a conversation. `cost` is what it cost, and in which currency.
    pub fn add(&mut self, arm: Arm, conversation: u64, usage: Usage, cost: Option<(f64, &str)>) {
        match (&self.currency, cost) {
            (None, Some((_, currency))) if self.has_all_costs => self.currency = Some(currency.to_owned()),
            (Some(known), Some((_, currency))) if known == currency => {}
            _ => (self.has_all_costs, self.currency) = (false, None),
        }
        let key = (arm, conversation);
        let is_new = !self.open.contains_key(&key);
        if is_new {
            while self.order.len() >= self.open_count_max.max(1) {
                // A conversation that goes on after that counts as another one.
                if let Some(oldest) = self.order.pop_front() {
                    self.open.remove(&oldest);
                }
            }
            self.order.push_back(key);
        }
        let before = self.open.entry(key).or_default();
        let values = [usage.prompt(), usage.cached_read, usage.output].map(|tokens| tokens as f64);
        let values = [values[0], values[1], values[2], cost.map_or(0.0, |(cost, _)| cost)];
        let after = Conversation {
            requests: before.requests + 1.0,
            sums: std::array::from_fn(|at| before.sums[at] + values[at]),
        };
        let sums = match arm {
            Arm::Whole => &mut self.whole,
            Arm::Compressed => &mut self.compressed,
        };
        sums.conversations += u64::from(is_new);
        sums.replace(*before, after);
        *before = after;
    }

    /// Returns the comparison, for the setting `savings.holdout`.
    pub fn report(&self, share: f64) -> HoldoutReport {
        let [input_tokens, cached_input_tokens, output_tokens, cost] =
            std::array::from_fn(|at| Difference::between(&self.whole, &self.compressed, at));
        let is_enough = [self.whole, self.compressed].iter().all(Sums::are_enough);
        let arm =
            |sums: &Sums| ArmReport { requests: sums.requests as u64, conversations: sums.conversations };
        let conclusion = match (input_tokens.saved_low, input_tokens.saved_high) {
            (Some(low), _) if low > 0.0 => {
                "compressed conversations are billed fewer input tokens".to_owned()
            }
            (_, Some(high)) if high < 0.0 => {
                "compressed conversations are billed more input tokens".to_owned()
            }
            (Some(_), Some(_)) => {
                "no difference of billed input tokens can be told: the interval contains 0".to_owned()
            }
            _ => format!(
                "too few conversations to tell: {} whole and {} compressed; each needs at least {CONVERSATIONS_MIN}",
                self.whole.conversations, self.compressed.conversations
            ),
        };
        HoldoutReport {
            share,
            whole: arm(&self.whole),
            compressed: arm(&self.compressed),
            is_enough,
            conclusion,
            input_tokens,
            cached_input_tokens,
            output_tokens,
            cost: self.currency.as_ref().map(|_| cost),
            currency: self.currency.clone(),
        }
    }
}

impl Sums {
    fn replace(&mut self, before: Conversation, after: Conversation) {
        self.requests += after.requests - before.requests;
        self.requests_squared += after.requests.powi(2) - before.requests.powi(2);
        for at in 0..MEASURES {
            let (old, new) = (before.sums[at], after.sums[at]);
            self.values[at] += new - old;
            self.values_squared[at] += new.powi(2) - old.powi(2);
            self.values_by_requests[at] += new * after.requests - old * before.requests;
        }
    }

    fn are_enough(&self) -> bool {
        self.conversations >= CONVERSATIONS_MIN
    }

    fn mean(&self, at: usize) -> Option<f64> {
        (self.requests > 0.0).then(|| self.values[at] / self.requests)
    }

    /// The variance of the mean.
    fn variance(&self, at: usize) -> Option<f64> {
        let mean = self.mean(at).filter(|_| self.are_enough())?;
        let deviations = self.values_squared[at] - 2.0 * mean * self.values_by_requests[at]
            + mean.powi(2) * self.requests_squared;
        let conversations = self.conversations as f64;
        // Rounding can make a sum of squares that is 0 negative.
        Some(deviations.max(0.0) * conversations / (conversations - 1.0) / self.requests.powi(2))
    }
}

impl Difference {
    fn between(whole: &Sums, compressed: &Sums, at: usize) -> Self {
        let (mean_whole, mean_compressed) = (whole.mean(at), compressed.mean(at));
        let saved = mean_whole.zip(mean_compressed).map(|(whole, compressed)| whole - compressed);
        let variances = whole.variance(at).zip(compressed.variance(at));
        let least = whole.conversations.min(compressed.conversations);
        let margin = variances.map(|(a, b)| t_quantile(least.saturating_sub(1)) * (a + b).sqrt());
        let interval = saved.zip(margin);
        Self {
            whole: mean_whole,
            compressed: mean_compressed,
            saved,
            saved_low: interval.map(|(saved, margin)| saved - margin),
            saved_high: interval.map(|(saved, margin)| saved + margin),
        }
    }
}

/// The quantile of Student's distribution for an interval of 95 %, from that of the normal distribution (the first terms of Cornish and Fisher's
/// expansion, which are exact to three digits from 29 degrees of freedom on).
fn t_quantile(degrees: u64) -> f64 {
    let degrees = degrees.max(1) as f64;
    Z + (Z.powi(3) + Z) / (4.0 * degrees)
        + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * degrees.powi(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, output: u64) -> Usage {
        Usage { input, output, ..Usage::default() }
    }

    /// A number from 0 to 1 that depends on `seed` only.
    fn noise(seed: u64) -> f64 {
        let hash = blake3::hash(&seed.to_le_bytes());
        let bytes: [u8; 8] = hash.as_bytes()[..8].try_into().expect("8 bytes");
        u64::from_le_bytes(bytes) as f64 / u64::MAX as f64
    }

    #[test]
    fn quantiles_of_students_distribution() {
        let check = |degrees, expect: f64| {
            let found = t_quantile(degrees);
            assert!((found - expect).abs() < 3e-3, "{degrees}: {found}");
        };
        check(10, 2.228);
        check(29, 2.045);
        check(100, 1.984);
        check(1_000_000, 1.960);
    }

    #[test]
    fn the_interval_is_that_of_a_direct_computation() {
        let mut arms = Arms::new(1_000);
        let mut conversations: HashMap<u64, (f64, f64)> = HashMap::new();
        for at in 0..200_u64 {
            let (conversation, tokens) = (at % 40, 500 + (noise(at) * 1_000.0) as u64);
            // Some conversations are longer than others.
            if at >= 40 && conversation % 3 == 0 {
                continue;
            }
            arms.add(Arm::Whole, conversation, usage(tokens, 7), None);
            arms.add(Arm::Compressed, conversation, usage(100, 7), None);
            let (sum, count) = conversations.entry(conversation).or_default();
            (*sum, *count) = (*sum + tokens as f64, *count + 1.0);
        }
        let (sum, count) = conversations.values().fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        let mean = sum / count;
        let squares: f64 = conversations.values().map(|(sum, n)| (sum - mean * n).powi(2)).sum();
        let margin = t_quantile(39) * (squares * 40.0 / 39.0).sqrt() / count;
        let report = arms.report(0.5);
        let found = report.input_tokens;
        assert!((found.whole.expect("requests") - mean).abs() < 1e-6);
        let expect = [mean - 100.0, mean - 100.0 - margin, mean - 100.0 + margin];
        let found_all = [found.saved, found.saved_low, found.saved_high].map(|found| found.expect("enough"));
        expect.iter().zip(found_all).for_each(|(expect, found)| assert!((expect - found).abs() < 1e-6));
        assert!(report.is_enough && report.conclusion.contains("fewer input tokens"), "{report:?}");
        assert_eq!((report.whole.conversations, report.whole.requests), (40, count as u64));
        let same = report.output_tokens;
        assert_eq!((same.saved, same.saved_low, same.saved_high), (Some(0.0), Some(0.0), Some(0.0)));
    }

    #[test]
    fn an_interval_holds_the_true_difference_as_often_as_it_says() {
        let (mut held, trials) = (0, 400);
        for trial in 0..trials {
            let mut arms = Arms::new(1_000);
            for at in 0..60 {
                let arm = if at % 2 == 0 { Arm::Whole } else { Arm::Compressed };
                // What a conversation is about changes all of its requests: they are not independent.
                let topic = noise(trial * 1_000 + at) * 1_000.0;
                for request in 0..1 + (at / 2) % 3 {
                    let tokens = topic + noise(trial * 1_000_000 + at * 10 + request) * 100.0;
                    let less = if arm == Arm::Whole { 0.0 } else { 200.0 };
                    arms.add(arm, at, usage((1_000.0 + tokens - less) as u64, 1), None);
                }
            }
            let found = arms.report(0.5).input_tokens;
            let (low, high) = found.saved_low.zip(found.saved_high).expect("enough");
            held += u64::from(low <= 200.0 && 200.0 <= high);
        }
        let share = held as f64 / trials as f64;
        assert!((0.91..=0.985).contains(&share), "{share}");
    }

    #[test]
    fn too_few_conversations_are_called_so() {
        let mut arms = Arms::new(1_000);
        assert_eq!(arms.report(0.5).input_tokens.saved, None);
        for at in 0..CONVERSATIONS_MIN {
            let report = arms.report(0.5);
            assert!(!report.is_enough && report.input_tokens.saved_low.is_none(), "{report:?}");
            assert!(report.conclusion.starts_with("too few conversations to tell"), "{report:?}");
            // More requests of the same conversations do not help.
            for _ in 0..5 {
                arms.add(Arm::Whole, at, usage(10, 1), None);
                arms.add(Arm::Compressed, at, usage(20, 1), None);
            }
        }
        let report = arms.report(0.5);
        assert!(report.is_enough && report.conclusion.contains("more input tokens"), "{report:?}");
        let mut equal = Arms::new(1_000);
        for at in 0..100 {
            equal.add(Arm::Whole, at, usage(10 + at % 7, 1), None);
            equal.add(Arm::Compressed, at, usage(10 + (at + 1) % 7, 1), None);
        }
        assert!(equal.report(0.5).conclusion.starts_with("no difference"), "{:?}", equal.report(0.5));
    }

    #[test]
    fn memory_is_bounded_and_costs_are_all_or_none() {
        let mut arms = Arms::new(10);
        for at in 0..1_000 {
            arms.add(Arm::Whole, at, usage(10, 1), Some((0.5, "USD")));
            assert!(arms.open.len() <= 10 && arms.open.len() == arms.order.len());
        }
        let report = arms.report(0.1);
        assert_eq!((report.whole.conversations, report.currency.as_deref()), (1_000, Some("USD")));
        assert_eq!(report.cost.and_then(|cost| cost.whole), Some(0.5));
        arms.add(Arm::Whole, 1, usage(10, 1), None);
        assert_eq!(arms.report(0.1).cost, None);
        arms.add(Arm::Whole, 1, usage(10, 1), Some((0.5, "USD")));
        assert_eq!(arms.report(0.1).cost, None);
    }
}
