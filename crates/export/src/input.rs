//! The model that is exported, wherever it comes from: a Hugging Face folder or a file of another format. Does not know
//! about graphs.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thresher_core::model::contract::CheckpointInfo;
use thresher_core::regular_files;

use super::{
    ExportError,
    e5s1::{E5Model, is_e5s1},
    gguf::{GgufModel, is_gguf},
    keys::Config,
    onnx::{ONNX, OnnxCheckpoint},
    prefixes::Prefixes,
    source::{self, CONFIG, ChatTemplate, Header, TOKENIZER, read_json},
    weights::{Checkpoint, INDEX, SINGLE, TensorFile},
};

/// Files that are not read, with the file that is needed instead and what of `transformers` writes it.
const OTHER_FORMS: [(&str, &str, &str); 5] = [
    ("pytorch_model.bin", SINGLE, "AutoModel"),
    ("pytorch_model.bin.index.json", SINGLE, "AutoModel"),
    ("sentencepiece.bpe.model", TOKENIZER, "AutoTokenizer"),
    ("tokenizer.model", TOKENIZER, "AutoTokenizer"),
    ("vocab.txt", TOKENIZER, "AutoTokenizer"),
];

/// A model whose description was read. Its tensors are read later.
#[derive(Debug)]
pub struct Input {
    /// The folder, or the folder of the GGUF file.
    pub dir: PathBuf,
    pub config_file: PathBuf,
    pub config: Map<String, Value>,
    /// The keys of `config` that are common to all architectures.
    pub header: Header,
    pub tokenizer_file: PathBuf,
    /// The content of `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    pub chat_template: Option<ChatTemplate>,
    pub checkpoint: Checkpoint,
    /// The texts before questions and passages that the format of the file implies.
    pub prefixes: Prefixes,
    /// The origin of the model, without the hash of its weights.
    pub origin: CheckpointInfo,
}

impl Input {
    /// Reads the description of the model at `path`: a folder, or a file of another format.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a file is missing, malformed or not supported.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        match path {
            file if is_e5s1(file) => Self::open_e5s1(file),
            file if is_gguf(file) => Self::open_gguf(file),
            folder => Self::open_folder(folder),
        }
    }

    fn open_folder(dir: &Path) -> Result<Self, ExportError> {
        let (mut config_file, tokenizer_file, onnx) = (dir.join(CONFIG), dir.join(TOKENIZER), dir.join(ONNX));
        let has_safetensors = dir.join(SINGLE).is_file() || dir.join(INDEX).is_file();
        let (config, checkpoint): (Map<String, Value>, _) = if !has_safetensors && onnx.is_file() {
            let (checkpoint, described) = OnnxCheckpoint::open(&onnx)?;
            let config: Option<Map<String, Value>> = source::read_json_if_exists(&config_file)?;
            let config = match config {
                Some(config) => {
                    Config { file: &config_file, map: &config }.check_text("model_type", "bert")?;
                    config
                }
                None => {
                    config_file = onnx;
                    described
                }
            };
            (config, Checkpoint::of_file(checkpoint))
        } else {
            let config = read_json(&config_file)?;
            refuse_other_forms(dir)?;
            (config, Checkpoint::open(dir)?)
        };
        let header = header(&config, &config_file)?;
        let tokenizer =
            regular_files::read(&tokenizer_file).map_err(|cause| read_error(&tokenizer_file, cause))?;
        let chat_template = source::chat_template(dir)?;
        let origin = source::provenance(dir, &header);
        let dir = dir.to_owned();
        Ok(Self {
            dir,
            config_file,
            config,
            header,
            tokenizer_file,
            tokenizer,
            chat_template,
            checkpoint,
            prefixes: Prefixes::default(),
            origin,
        })
    }

    fn open_gguf(file: &Path) -> Result<Self, ExportError> {
        let GgufModel { config, tokenizer, chat_template, name, licence, checkpoint } =
            GgufModel::open(file)?;
        let origin = CheckpointInfo { name, revision: None, licence, weights: None };
        let input = Self::of_file(file, config, tokenizer, checkpoint, origin)?;
        Ok(Self { chat_template, ..input })
    }

    fn open_e5s1(file: &Path) -> Result<Self, ExportError> {
        let E5Model { config, tokenizer, prefixes, checkpoint } = E5Model::open(file)?;
        let name = Some("multilingual-e5-small".to_owned());
        let origin = CheckpointInfo { name, revision: None, licence: Some("mit".to_owned()), weights: None };
        let input = Self::of_file(file, config, tokenizer, checkpoint, origin)?;
        Ok(Self { prefixes, ..input })
    }

    /// The model of one file, which has all its parts, without a chat template and prefixes.
    fn of_file(
        file: &Path,
        config: Map<String, Value>,
        tokenizer: Vec<u8>,
        checkpoint: impl TensorFile + 'static,
        origin: CheckpointInfo,
    ) -> Result<Self, ExportError> {
        let header = header(&config, file)?;
        Ok(Self {
            dir: file.parent().unwrap_or(Path::new("")).to_owned(),
            config_file: file.to_owned(),
            config,
            header,
            tokenizer_file: file.to_owned(),
            tokenizer,
            chat_template: None,
            checkpoint: Checkpoint::of_file(checkpoint),
            prefixes: Prefixes::default(),
            origin,
        })
    }
}

fn header(config: &Map<String, Value>, file: &Path) -> Result<Header, ExportError> {
    serde_json::from_value(Value::Object(config.clone()))
        .map_err(|cause| ExportError::JsonMalformed { file: file.to_owned(), cause })
}

/// Fails if the folder lacks a file that it has in another form.
fn refuse_other_forms(dir: &Path) -> Result<(), ExportError> {
    let is_there = |name: &str| match name {
        SINGLE => dir.join(SINGLE).is_file() || dir.join(INDEX).is_file(),
        name => dir.join(name).is_file(),
    };
    match OTHER_FORMS.into_iter().find(|(found, expected, _)| is_there(found) && !is_there(expected)) {
        Some((found, expected, saved_by)) => {
            Err(ExportError::OtherForm { dir: dir.to_owned(), found, expected, saved_by })
        }
        None => Ok(()),
    }
}

fn read_error(file: &Path, cause: io::Error) -> ExportError {
    ExportError::Read { file: file.to_owned(), cause }
}
