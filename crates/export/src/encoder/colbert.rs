//! What ColBERT adds to an encoder: a projection of the last hidden states, markers before questions and
//! passages, and the padding of questions. Reads the files of the two programs that train such models. Does
//! not know about graphs.

use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::Value;
use thresher_core::model::contract::{QuestionPadding, Weights};

use crate::{
    ExportError,
    input::Input,
    linear::Linear,
    prefixes::Markers,
    source::{ExportedTokenizer, Header, read_json, read_json_if_exists, token_of_config},
    weights::{Checkpoint, Tensor},
    write::WeightFile,
};

/// The class name of checkpoints that Stanford's ColBERT writes.
pub const ARCHITECTURE: &str = "HF_ColBERT";

/// The file with the settings of such a checkpoint.
const METADATA: &str = "artifact.metadata";

/// The file with the parts of a model that Sentence Transformers or PyLate wrote.
const MODULES: &str = "modules.json";

/// The file with the settings of such a model.
const SETTINGS: &str = "config_sentence_transformers.json";

/// The length to which questions are padded, if the settings have none, in tokens.
const QUESTION_TOKENS_DEFAULT: usize = 32;

const WEIGHT: &str = "linear.weight";
const BIAS: &str = "linear.bias";

#[derive(Debug)]
pub struct Colbert {
    pub projection: Projection,
    pub markers: Markers,
    /// The token of a question that no token attends to: that of the padding, unless tokens attend to it.
    pub hidden_token: Option<u32>,
    /// The length of the longest passage that the model was trained with, in tokens.
    pub passage_tokens_max: Option<usize>,
}

#[derive(Debug)]
pub struct Projection {
    /// The number of components of a projected vector.
    pub dim: usize,
    /// `[dim, d]`: from hidden states to keys.
    weight: Tensor,
    /// `[dim]`; none if the checkpoint has none.
    bias: Option<Tensor>,
}

/// The settings that both programs have, under different names.
struct Settings {
    question_marker: (&'static str, String),
    passage_marker: (&'static str, String),
    /// The length to which questions are padded, in tokens; `None` if they are not padded.
    question_tokens: Option<usize>,
    passage_tokens: Option<usize>,
    attends_to_padding: bool,
}

impl Colbert {
    /// Reads what a ColBERT adds to its encoder, whose hidden states have `hidden` components. Returns `None`
    /// if the model is not a ColBERT.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a file is malformed, has a value that the export does not support, or
    /// names a token that the tokenizer does not have.
    pub fn read(
        input: &Input,
        tokenizer: &ExportedTokenizer,
        hidden: usize,
    ) -> Result<Option<Self>, ExportError> {
        let (file, settings, projection) = if is_stanford(&input.header, &input.dir) {
            let file = input.dir.join(METADATA);
            let projection = Projection::read(&input.checkpoint, hidden)?;
            (file.clone(), stanford_settings(&file)?, projection)
        } else if let Some(dense) = dense_module(&input.dir)? {
            let file = input.dir.join(SETTINGS);
            let projection = Projection::read(&Checkpoint::open(&input.dir.join(dense))?, hidden)?;
            (file.clone(), pylate_settings(&file)?, projection)
        } else {
            return Ok(None);
        };
        let marker = |(key, token): &(&'static str, String)| {
            tokenizer.id_of(token).ok_or_else(|| ExportError::Unsupported {
                file: file.clone(),
                key,
                found: token.clone(),
                supported: "tokens of tokenizer.json".to_owned(),
            })
        };
        let padding_token = mask_token(&input.dir, tokenizer)?;
        let padding = settings.question_tokens.map(|tokens_min| QuestionPadding {
            token: padding_token,
            tokens_min,
            attended: settings.attends_to_padding,
        });
        let hidden_token = padding.as_ref().filter(|padding| !padding.attended).map(|padding| padding.token);
        let question = marker(&settings.question_marker)?;
        let passage = marker(&settings.passage_marker)?;
        Ok(Some(Self {
            projection,
            markers: Markers { question, passage, padding },
            hidden_token,
            passage_tokens_max: settings.passage_tokens,
        }))
    }
}

impl Projection {
    fn read(checkpoint: &Checkpoint, hidden: usize) -> Result<Self, ExportError> {
        let dim = checkpoint.dims(WEIGHT).and_then(|dims| dims.first().copied()).unwrap_or_default();
        let weight = checkpoint.read(WEIGHT, &[dim, hidden])?;
        let bias = checkpoint.contains(BIAS).then(|| checkpoint.read(BIAS, &[dim])).transpose()?;
        Ok(Self { dim, weight, bias })
    }

    /// Writes the projection to the weights file, as `f32`.
    pub(super) fn store(&self, out: &mut WeightFile) -> Result<Linear, ExportError> {
        let tensors = (&self.weight.transposed(), self.bias.as_ref());
        Linear::store(out, "projection", tensors, Weights::F32)
    }
}

fn is_stanford(header: &Header, dir: &Path) -> bool {
    header.architectures.first().is_some_and(|name| name == ARCHITECTURE) || dir.join(METADATA).is_file()
}

/// Reads the settings of a checkpoint of Stanford's ColBERT. All have defaults, as in that program.
fn stanford_settings(file: &Path) -> Result<Settings, ExportError> {
    #[derive(Default, Deserialize)]
    struct Metadata {
        query_token_id: Option<String>,
        doc_token_id: Option<String>,
        query_maxlen: Option<usize>,
        doc_maxlen: Option<usize>,
        attend_to_mask_tokens: Option<bool>,
        similarity: Option<String>,
    }
    let found: Metadata = read_json_if_exists(file)?.unwrap_or_default();
    let similarity = found.similarity.unwrap_or_else(|| "cosine".to_owned());
    if similarity != "cosine" {
        return refuse(file, "similarity", similarity, "cosine");
    }
    let token = |found: Option<String>, default: &str| found.unwrap_or_else(|| default.to_owned());
    Ok(Settings {
        question_marker: ("query_token_id", token(found.query_token_id, "[unused0]")),
        passage_marker: ("doc_token_id", token(found.doc_token_id, "[unused1]")),
        question_tokens: Some(found.query_maxlen.unwrap_or(QUESTION_TOKENS_DEFAULT)),
        passage_tokens: found.doc_maxlen,
        attends_to_padding: found.attend_to_mask_tokens.unwrap_or(false),
    })
}

fn pylate_settings(file: &Path) -> Result<Settings, ExportError> {
    #[derive(Deserialize)]
    struct Found {
        #[serde(default = "question_prefix")]
        query_prefix: String,
        #[serde(default = "passage_prefix")]
        document_prefix: String,
        query_length: Option<usize>,
        document_length: Option<usize>,
        attend_to_expansion_tokens: Option<bool>,
        do_query_expansion: Option<bool>,
    }
    let found: Found = read_json(file)?;
    let is_padded = found.do_query_expansion.unwrap_or(true);
    Ok(Settings {
        question_marker: ("query_prefix", found.query_prefix),
        passage_marker: ("document_prefix", found.document_prefix),
        question_tokens: is_padded.then(|| found.query_length.unwrap_or(QUESTION_TOKENS_DEFAULT)),
        passage_tokens: found.document_length,
        attends_to_padding: found.attend_to_expansion_tokens.unwrap_or(false),
    })
}

fn question_prefix() -> String {
    "[Q] ".to_owned()
}

fn passage_prefix() -> String {
    "[D] ".to_owned()
}

/// The folder of the projection of a model that PyLate wrote. `None` for other models, among them those whose
/// tokens are pooled before they are projected.
fn dense_module(dir: &Path) -> Result<Option<String>, ExportError> {
    #[derive(Deserialize)]
    struct Module {
        path: String,
        r#type: String,
    }
    let file = dir.join(MODULES);
    let modules: Vec<Module> = read_json_if_exists(&file)?.unwrap_or_default();
    let is = |module: &&Module, kind: &str| module.r#type.rsplit('.').next() == Some(kind);
    let mut dense = modules.iter().filter(|module| is(module, "Dense"));
    let Some(first) = dense.next() else { return Ok(None) };
    if modules.iter().any(|module| is(&module, "Pooling")) {
        return Ok(None);
    }
    if dense.next().is_some() {
        return refuse(&file, "type", "several modules Dense".to_owned(), "one module Dense");
    }
    // The path must be that of a folder in this folder: the file must not point outside it.
    if !Path::new(&first.path).components().eq([Component::Normal(first.path.as_ref())]) {
        return refuse(&file, "path", first.path.clone(), "the name of a folder");
    }
    let file = dir.join(&first.path).join("config.json");
    let config: Value = read_json(&file)?;
    let activation = config["activation_function"].as_str().unwrap_or("torch.nn.modules.linear.Identity");
    if !activation.ends_with("Identity") {
        return refuse(&file, "activation_function", activation.to_owned(), "Identity");
    }
    if config["use_residual"] == true {
        return refuse(&file, "use_residual", "true".to_owned(), "false");
    }
    Ok(Some(first.path.clone()))
}

/// The token that questions are padded with.
fn mask_token(dir: &Path, tokenizer: &ExportedTokenizer) -> Result<u32, ExportError> {
    let (file, configured) = token_of_config(dir, "mask_token")?;
    let candidates = configured.iter().map(String::as_str).chain(["[MASK]", "<mask>"]);
    let id = candidates.filter_map(|token| tokenizer.id_of(token)).next();
    match id {
        Some(id) => Ok(id),
        None => {
            let found = configured.unwrap_or_else(|| "missing".to_owned());
            refuse(&file, "mask_token", found, "tokens of tokenizer.json")
        }
    }
}

fn refuse<T>(
    file: &Path,
    key: &'static str,
    found: String,
    supported: &'static str,
) -> Result<T, ExportError> {
    Err(ExportError::Unsupported { file: file.to_owned(), key, found, supported: supported.to_owned() })
}
