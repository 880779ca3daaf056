//! Calibrations: what the logits of a model mean. Two texts that have nothing to do with each other have a cosine of 0.3 in one
//! model and of 0.75 in another, so every threshold and every probability is fitted for each model. Without a calibration there is
//! no answer, rather than a wrong one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::decide::coverage::CoverageLimits;
use crate::domain::Lang;
use crate::model::contract::Contract;
use crate::regular_files;
use crate::text;

pub const CALIBRATION_FILE: &str = "calibration.toml";

const SCHEMA: u32 = 2;

const SHIPPED: [&str; 3] = [
    include_str!("calibration/minilm-l6.toml"),
    include_str!("calibration/multilingual-e5-small.toml"),
    include_str!("calibration/answerai-colbert-small.toml"),
];

/// What was fitted for one model. Each part is absent if nothing was fitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    schema: u32,
    /// The name of the model, for people.
    pub model: String,
    /// The weights that it belongs to, whatever they were exported as: [`CheckpointInfo::weights`](crate::model::contract::CheckpointInfo::weights).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<String>,
    /// The export that it belongs to: [`Contract::fingerprint`] in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// The cosine that has the place of 0: [`Self::similarity`]. `None` for decoders, whose logits have no fixed scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cosine_floor: Option<f32>,
    /// Whether `related` and `answerable` hold only where the question and the chunks are in one language.
    #[serde(default)]
    pub one_language: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub related: Option<RelatedLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answerable: Option<AnswerableCurve>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relevance: Option<RelevanceCurve>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<CoverageLimits>,
}

/// The least [`relevance`](super::score::Scores::relevance) of chunks that are related to a question.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelatedLimits {
    pub prose: f32,
    /// Where some chunk is not.
    pub structured: f32,
}

/// A logistic regression: how probable it is that the best passage answers the question. See [`answerable`](super::answerable).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerableCurve {
    pub slope: f32,
    pub bias: f32,
    /// The languages of the questions that it was fitted on, as ISO 639-3 codes. Questions and chunks that are recognised as of another one
    /// get no answer. Empty: every language.
    #[serde(default)]
    pub languages: Vec<String>,
    /// `(share, probability)`, both ascending: the probability below which so large a share of the answerable questions lies.
    pub missed: Vec<(f64, f32)>,
}

impl AnswerableCurve {
    /// Returns the probability of the best passage's value.
    pub fn probability(&self, value: f32) -> f32 {
        logistic(self.slope * value + self.bias)
    }
}

/// A logistic regression: how probable it is that a chunk contains something that the question asks, by the mean over the question's
/// tokens of each token's largest raw logit over the chunk's keys ([`Scores::chunk_relevances`](super::score::Scores::chunk_relevances)).
/// No other chunk enters it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelevanceCurve {
    pub slope: f32,
    pub bias: f32,
    /// As in [`AnswerableCurve::languages`].
    #[serde(default)]
    pub languages: Vec<String>,
}

impl RelevanceCurve {
    pub fn probability(&self, value: f32) -> f32 {
        logistic(self.slope * value + self.bias)
    }
}

fn logistic(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

fn is_language_code(code: &str) -> bool {
    code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Returns whether a question is recognised as of a language that is not among those of a curve.
pub(super) fn is_other_language(lang: Option<Lang>, languages: &[String]) -> bool {
    let is_fitted = |lang: Lang| languages.iter().any(|fitted| fitted == lang.code());
    !languages.is_empty() && lang.is_some_and(|lang| !is_fitted(lang))
}

/// The error of a calibration that cannot be used.
#[derive(Debug, Error)]
pub enum CalibrationError {
    #[error("cannot read or write the calibration {}: {cause}", file.display())]
    File { file: PathBuf, cause: io::Error },
    #[error("{} is of another version of thresher; run `thresher calibrate` again, or remove the file", file.display())]
    OtherVersion { file: PathBuf },
    #[error("{} is no calibration: {reason}; run `thresher calibrate` again, or remove the file", file.display())]
    Malformed { file: PathBuf, reason: String },
    #[error(
        "{} was made for another model or export, {found}; run `thresher calibrate` again, or remove the file",
        file.display()
    )]
    OtherModel {
        file: PathBuf,
        /// The model that the file names.
        found: String,
    },
}

impl Calibration {
    /// Returns a calibration of an export, in which nothing is fitted.
    pub fn empty(contract: &Contract) -> Self {
        Self {
            schema: SCHEMA,
            model: contract.name.clone(),
            weights: None,
            fingerprint: Some(hex::encode(contract.fingerprint())),
            cosine_floor: None,
            one_language: false,
            related: None,
            answerable: None,
            relevance: None,
            coverage: None,
        }
    }

    /// Returns the calibration that comes with Thresher for a model with this name, if there is one.
    pub fn shipped(model: &str) -> Option<Arc<Self>> {
        Self::all_shipped().iter().find(|shipped| shipped.model == model).cloned()
    }

    /// Returns the calibration that comes with Thresher for the weights of an export, if there is one.
    pub fn of_contract(contract: &Contract) -> Option<Arc<Self>> {
        contract.source.weights.as_deref().and_then(Self::of_weights)
    }

    /// Returns the calibration that comes with Thresher for these weights, if there is one.
    pub fn of_weights(weights: &str) -> Option<Arc<Self>> {
        Self::all_shipped().iter().find(|shipped| shipped.weights.as_deref() == Some(weights)).cloned()
    }

    /// Returns the coverage limits of the default model. They say how far a context reaches where nothing was fitted for a model, since they
    /// depend on relative scores only; they promise nothing there.
    pub fn usual_coverage() -> &'static CoverageLimits {
        static LIMITS: LazyLock<CoverageLimits> = LazyLock::new(|| {
            let shipped = Calibration::shipped("minilm-l6").and_then(|shipped| shipped.coverage.clone());
            shipped.expect("the default model has limits")
        });
        &LIMITS
    }

    fn all_shipped() -> &'static [Arc<Self>] {
        static PARSED: LazyLock<[Arc<Calibration>; 3]> = LazyLock::new(|| {
            SHIPPED.map(|text| Arc::new(Calibration::parse(text).expect("a shipped calibration is valid")))
        });
        &*PARSED
    }

    /// Returns the calibration of the model in a folder: the file that lies there, else [`Self::of_contract`].
    ///
    /// # Errors
    /// Fails if the file cannot be read, is no calibration, or was made for another model or by another version.
    pub fn load(dir: &Path, contract: &Contract) -> Result<Option<Arc<Self>>, CalibrationError> {
        let file = dir.join(CALIBRATION_FILE);
        let text = match regular_files::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::of_contract(contract));
            }
            Err(cause) => return Err(CalibrationError::File { file, cause }),
        };
        // The version is read first: the keys of another one are unknown.
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        if toml::from_str(&text).is_ok_and(|Version { schema }| schema != SCHEMA) {
            return Err(CalibrationError::OtherVersion { file });
        }
        let found = match Self::parse(&text) {
            Ok(found) => found,
            Err(reason) => return Err(CalibrationError::Malformed { file, reason }),
        };
        if !found.belongs_to(contract) {
            return Err(CalibrationError::OtherModel { file, found: found.model });
        }
        Ok(Some(Arc::new(found)))
    }

    fn belongs_to(&self, contract: &Contract) -> bool {
        let has_weights = self.weights.is_none() || self.weights == contract.source.weights;
        let is_export = self
            .fingerprint
            .as_ref()
            .is_none_or(|fingerprint| *fingerprint == hex::encode(contract.fingerprint()));
        has_weights && is_export
    }

    fn parse(text: &str) -> Result<Self, String> {
        let reason = |error: toml::de::Error| error.message().to_owned();
        let mut table: toml::Table = toml::from_str(text).map_err(reason)?;
        // Files of earlier versions have a key that nothing reads.
        table.remove("compares_languages");
        let found: Self = table.try_into().map_err(reason)?;
        if found.weights.is_none() && found.fingerprint.is_none() {
            return Err("it names no model: weights or fingerprint".to_owned());
        }
        let is_share = |value: f32| (0.0..1.0).contains(&value);
        if !found.cosine_floor.is_none_or(is_share) {
            return Err("cosine_floor is from 0 to less than 1".to_owned());
        }
        let is_cosine = |limit: f32| (-1.0..=1.0).contains(&limit);
        if !found.related.is_none_or(|related| is_cosine(related.prose) && is_cosine(related.structured)) {
            return Err("related.prose and related.structured are from -1 to 1".to_owned());
        }
        if let Some(AnswerableCurve { missed, slope, bias, languages }) = &found.answerable {
            if !slope.is_finite() || !bias.is_finite() || !languages.iter().all(|code| is_language_code(code))
            {
                return Err(
                    "answerable.slope and bias are numbers, and languages are ISO 639-3 codes such as \"eng\"".to_owned()
                );
            }
            let is_sorted = missed.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
            let are_shares = missed
                .iter()
                .all(|&(share, least)| 0.0 < share && share < 1.0 && (0.0..=1.0).contains(&least));
            if missed.len() < 2 || !is_sorted || !are_shares {
                return Err("answerable.missed is two or more ascending pairs of shares".to_owned());
            }
        }
        if let Some(RelevanceCurve { slope, bias, languages }) = &found.relevance
            && !(*slope > 0.0
                && slope.is_finite()
                && bias.is_finite()
                && languages.iter().all(|code| is_language_code(code)))
        {
            return Err(
                "relevance.slope is above 0, bias is a number, and languages are ISO 639-3 codes such as \"eng\"".to_owned()
            );
        }
        if let Some(coverage) = &found.coverage {
            coverage.check()?;
        }
        Ok(found)
    }

    /// Returns whether the thresholds hold for a question over chunks of these languages; `None` is one that is not recognised.
    pub fn holds_for(&self, query: &str, of_chunks: impl IntoIterator<Item = Option<Lang>>) -> bool {
        if self.one_language {
            are_in_one_language(query, of_chunks)
        } else {
            !are_in_two_languages(query, of_chunks)
        }
    }

    /// Returns what a cosine is on a scale on which texts that have nothing in common are near 0.3 and the same text is 1: the scale of
    /// all-MiniLM-L6-v2, for which the evidence of verdicts is weighed.
    pub fn similarity(cosine: f32, floor: f32) -> f32 {
        (cosine - floor) / (1.0 - floor)
    }

    /// Writes the calibration to the folder of an export, and names that.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    ///
    /// # Panics
    /// Never: a calibration has only types of TOML.
    pub fn save(&self, dir: &Path, contract: &Contract) -> Result<PathBuf, CalibrationError> {
        let file = dir.join(CALIBRATION_FILE);
        let of_export = Self { fingerprint: Some(hex::encode(contract.fingerprint())), ..self.clone() };
        let text = toml::to_string(&of_export).expect("a calibration has only types of TOML");
        match fs::write(&file, text) {
            Ok(()) => Ok(file),
            Err(cause) => Err(CalibrationError::File { file, cause }),
        }
    }
}

/// Returns whether a question and its chunks are in one language, as far as it is recognised. Across languages, texts that belong together
/// are as far apart as others are within one. The language of a question is the likeliest one: a question is too short for more.
fn are_in_one_language(query: &str, of_chunks: impl IntoIterator<Item = Option<Lang>>) -> bool {
    let likeliest =
        text::sentence_lang(query).or_else(|| text::likely_lang_of(query)).map(|found| found.lang);
    let mut recognised = of_chunks.into_iter().flatten().peekable();
    recognised.peek().is_some() && recognised.all(|of_chunk| Some(of_chunk) == likeliest)
}

/// Returns whether a question is certainly in another language than all chunks whose language is recognised.
fn are_in_two_languages(query: &str, of_chunks: impl IntoIterator<Item = Option<Lang>>) -> bool {
    let certain = text::sentence_lang(query).filter(|found| found.is_sure);
    let Some(lang) = certain.map(|found| found.lang) else { return false };
    let mut recognised = of_chunks.into_iter().flatten().peekable();
    recognised.peek().is_some() && recognised.all(|of_chunk| of_chunk != lang)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: &str = "e99354adc9a97170fe0ab19ba838036e7b139f8a60837d08b3e50070de453dd9";

    #[test]
    fn shipped_calibrations_are_whole_and_found_by_name_and_by_weights() {
        for name in ["minilm-l6", "multilingual-e5-small"] {
            let shipped = Calibration::shipped(name).expect("it comes with Thresher");
            assert!(
                shipped.related.is_some()
                    && shipped.answerable.is_some()
                    && shipped.relevance.is_some()
                    && shipped.coverage.is_some(),
                "{name}"
            );
            assert_eq!(Calibration::of_weights(shipped.weights.as_deref().expect("weights")), Some(shipped));
        }
        assert_eq!(Calibration::of_weights(WEIGHTS), Calibration::shipped("minilm-l6"));
        assert_eq!(Calibration::of_weights("other"), None);
    }

    #[test]
    fn calibrations_are_read_back_and_belong_to_one_export() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let contract = |name: &str, weights: Option<&str>| {
            let mut contract = crate::model::contract::tests::contract();
            name.clone_into(&mut contract.name);
            contract.source.weights = weights.map(ToOwned::to_owned);
            contract
        };
        let own = contract("own", None);
        assert_eq!(Calibration::load(dir.path(), &own).expect("nothing there"), None);
        let known = Calibration::load(dir.path(), &contract("any", Some(WEIGHTS))).expect("nothing there");
        assert_eq!(known, Calibration::shipped("minilm-l6"), "exports of earlier versions have no file");

        let fitted = Calibration {
            related: Some(RelatedLimits { prose: 0.6, structured: 0.5 }),
            ..Calibration::empty(&own)
        };
        fitted.save(dir.path(), &own).expect("it can be written");
        assert_eq!(Calibration::load(dir.path(), &own).expect("its own").as_deref(), Some(&fitted));
        let mut other = own.clone();
        other.window.tokens_max += 1;
        let refused = Calibration::load(dir.path(), &other).expect_err("another export").to_string();
        assert!(refused.contains("another model or export, own"), "{refused}");
        fs::write(dir.path().join(CALIBRATION_FILE), "schema = 1\nlimits = [1.0]")
            .expect("it can be written");
        let refused = Calibration::load(dir.path(), &own).expect_err("another version").to_string();
        assert!(refused.contains("another version"), "{refused}");
    }

    #[test]
    fn files_that_are_no_calibration_are_refused() {
        let refusal = |text: &str| Calibration::parse(text).expect_err(text);
        let head = "schema = 2\nmodel = \"m\"\nfingerprint = \"f\"\n";
        assert!(refusal("schema = 2\nmodel = \"m\"").contains("names no model"));
        assert!(refusal(&format!("{head}cosine_floor = 1.0")).contains("cosine_floor"));
        assert!(refusal(&format!("{head}cosine_floor = nan")).contains("cosine_floor"));
        assert!(
            refusal(&format!("{head}[related]\nprose = nan\nstructured = 0.5")).contains("related.prose")
        );
        assert!(refusal(&format!("{head}limit = 1.0")).contains("unknown field"));
        let curve = |missed: &str| format!("{head}[answerable]\nslope = 1.0\nbias = 0.0\nmissed = {missed}");
        assert!(Calibration::parse(&curve("[[0.1, 0.2], [0.2, 0.2]]")).is_ok());
        for wrong in [
            "[]",
            "[[0.1, 0.2]]",
            "[[0.2, 0.1], [0.1, 0.2]]",
            "[[0.1, 0.3], [0.2, 0.2]]",
            "[[0.1, 0.3], [1.0, 0.4]]",
        ] {
            assert!(refusal(&curve(wrong)).contains("answerable.missed"), "{wrong}");
        }
        let coverage = format!("{head}[coverage]\nestimator = \"e\"\nrows = 2\nlimits = [2.0, 1.0]");
        assert!(refusal(&coverage).contains("coverage.limits"));
    }
    #[test]
    fn languages_are_compared_as_far_as_they_are_recognised() {
        let german = "Welche Behörde erteilt die Genehmigung für den Umbau des alten Hafengebäudes?";
        let [de, en] = [b"deu", b"eng"].map(|code| Lang::from_bytes(*code));
        assert!(are_in_one_language(german, [de, de]));
        assert!(are_in_one_language(german, [de, None]), "a short text");
        assert!(are_in_one_language("Wer hat das Haus gebaut?", [de]), "a short question");
        assert!(!are_in_one_language(german, [de, en]));
        assert!(!are_in_one_language(german, [en]));
        assert!(!are_in_one_language(german, [None]), "nothing is known of the texts");
        assert!(are_in_two_languages(german, [en, None]) && !are_in_two_languages(german, [en, de]));
        assert!(!are_in_two_languages("Price?", [de]) && !are_in_two_languages(german, [None]));
    }
}
