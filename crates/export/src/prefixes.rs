//! The texts that a model expects before questions and passages, such as `query: `, and the special tokens
//! around both. Does not know about graphs.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use thresher_core::model::contract::{Question, QuestionPadding};

use super::{
    ExportError,
    source::{ExportedTokenizer, TOKENIZER, read_json_if_exists},
};

/// The texts before questions and passages. With `None`, the text is the one that the model's folder names;
/// with an empty text, there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefixes {
    pub question: Option<String>,
    pub passage: Option<String>,
}

/// The special tokens by which a model tells questions from passages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Markers {
    /// The id of the token between the first special token and a question.
    pub question: u32,
    /// The id of the token between the first special token and a passage.
    pub passage: u32,
    /// The padding of questions; `None` if they are not padded.
    pub padding: Option<QuestionPadding>,
}

/// What stands around passages and questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The ids of the tokens before a passage.
    pub prefix: Vec<u32>,
    /// The text before a passage, if there is one.
    pub prefix_text: Option<String>,
    /// What stands around a question, if it is not what stands around a passage.
    pub question: Option<Question>,
}

impl Surroundings {
    /// Returns what stands around the windows of a decoder, which are all alike.
    pub fn of_decoder(tokenizer: &ExportedTokenizer) -> Self {
        Self { prefix: tokenizer.prefix.clone(), prefix_text: None, question: None }
    }
}

impl Prefixes {
    /// Returns these texts, with those of `other` where there is `None`.
    pub(crate) fn or(self, other: &Self) -> Self {
        Self {
            question: self.question.or_else(|| other.question.clone()),
            passage: self.passage.or_else(|| other.passage.clone()),
        }
    }

    /// Returns these texts, with those of the model in `dir` where there is `None`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if `config_sentence_transformers.json` exists and is malformed.
    fn or_those_of(&self, dir: &Path) -> Result<Self, ExportError> {
        #[derive(Default, Deserialize)]
        struct Settings {
            #[serde(default)]
            prompts: BTreeMap<String, Option<String>>,
        }
        let settings: Settings =
            read_json_if_exists(&dir.join("config_sentence_transformers.json"))?.unwrap_or_default();
        let prompt =
            |keys: &[&str]| keys.iter().find_map(|key| settings.prompts.get(*key).cloned().flatten());
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Self {
            question: text(self.question.clone().or_else(|| prompt(&["query"]))),
            passage: text(self.passage.clone().or_else(|| prompt(&["document", "passage"]))),
        })
    }

    /// Whether no text was chosen, so that those of the model's folder count.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what stands around passages and questions of the model in `dir`: its special tokens, the markers
    /// of a ColBERT, and the tokens of the prefixes.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a file is malformed or the tokenizer refuses a prefix.
    pub fn around(
        &self,
        dir: &Path,
        tokenizer: &ExportedTokenizer,
        markers: Option<&Markers>,
    ) -> Result<Surroundings, ExportError> {
        let Self { question, passage } = self.or_those_of(dir)?;
        let before = |marker: Option<u32>, text: &Option<String>| {
            let mut ids = tokenizer.prefix.clone();
            ids.extend(marker);
            if let Some(text) = text {
                ids.extend(tokenizer.ids_before_text(text).map_err(|reason| ExportError::Tokenizer {
                    file: dir.join(TOKENIZER),
                    key: "model",
                    reason: format!("refuses the prefix {text:?}: {reason}"),
                })?);
            }
            Ok::<_, ExportError>(ids)
        };
        let prefix = before(markers.map(|markers| markers.passage), &passage)?;
        let question = Question {
            prefix: before(markers.map(|markers| markers.question), &question)?,
            suffix: tokenizer.suffix.clone(),
            prefix_text: question,
            padding: markers.and_then(|markers| markers.padding.clone()),
        };
        let is_same = question.prefix == prefix && question.padding.is_none();
        Ok(Surroundings { prefix, prefix_text: passage, question: (!is_same).then_some(question) })
    }
}
