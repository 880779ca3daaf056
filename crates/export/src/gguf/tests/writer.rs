//! Writes GGUF files for tests: sound ones from the tiny models of this repository, and broken ones.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value as Json;

use crate::gguf::architecture::ARCHITECTURES;
use crate::weights::Checkpoint;

pub struct Writer {
    pub version: u32,
    /// The keys, and their types and values as bytes.
    pub keys: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Stored>,
    pub alignment: usize,
}

pub struct Stored {
    pub name: String,
    pub sizes: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
    /// The offset to write; `None` for the true one.
    pub offset: Option<u64>,
}

pub fn number(value: u32) -> Vec<u8> {
    [4_u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn float(value: f32) -> Vec<u8> {
    [6_u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn flag(value: bool) -> Vec<u8> {
    [&7_u32.to_le_bytes()[..], &[u8::from(value)]].concat()
}

pub fn text(value: &str) -> Vec<u8> {
    [&8_u32.to_le_bytes()[..], &counted(value)].concat()
}

pub fn texts(values: &[impl AsRef<str>]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| counted(value.as_ref())).collect();
    list(8, &values, values_count(&values))
}

pub fn numbers(values: &[i32]) -> Vec<u8> {
    list(5, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>(), values.len() as u64)
}

pub fn floats(values: &[f32]) -> Vec<u8> {
    list(6, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>(), values.len() as u64)
}

/// A list of `count` elements of the type `kind`.
pub fn list(kind: u32, values: &[u8], count: u64) -> Vec<u8> {
    [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), values].concat()
}

fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The number of texts in a row of texts with their lengths.
fn values_count(mut texts: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((length, rest)) = texts.split_first_chunk() {
        texts = &rest[u64::from_le_bytes(*length) as usize..];
        count += 1;
    }
    count
}

impl Writer {
    pub fn set(&mut self, key: &str, value: Vec<u8>) {
        self.remove(key);
        self.keys.push((key.to_owned(), value));
    }

    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(known, _)| known != key);
    }

    pub fn tensor(&mut self, name: &str) -> &mut Stored {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn push_f32(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        self.tensors.push(Stored {
            name: name.to_owned(),
            sizes: dims.iter().rev().map(|&size| size as u64).collect(),
            kind: 0,
            data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            offset: None,
        });
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            bytes.extend(counted(key));
            bytes.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            bytes.extend(counted(&tensor.name));
            bytes.extend((tensor.sizes.len() as u32).to_le_bytes());
            tensor.sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(data);
        bytes
    }
}

pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny").join(name)
}

pub fn read_json(file: &Path) -> Json {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The tiny model `name` as a file of `architecture`, with 32-bit tensors, written as llama.cpp's converter
/// writes them.
pub fn of_tiny(name: &str, architecture: &str) -> Writer {
    let dir = tiny(name);
    let config = read_json(&dir.join("config.json"));
    let mut writer = Writer { version: 3, keys: Vec::new(), tensors: Vec::new(), alignment: 32 };
    writer.set("general.architecture", text(architecture));
    let mut set = |key: &str, value| writer.set(&format!("{architecture}.{key}"), value);
    for (key, from) in [
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("rope.dimension_count", "head_dim"),
        ("vocab_size", "vocab_size"),
    ] {
        config[from].as_u64().into_iter().for_each(|value| set(key, number(value as u32)));
    }
    set("attention.layer_norm_rms_epsilon", float(config["rms_norm_eps"].as_f64().unwrap() as f32));
    set("rope.freq_base", float(config["rope_theta"].as_f64().unwrap() as f32));
    add_tokenizer(&mut writer, &dir);
    add_tensors(&mut writer, &dir, architecture, &config);
    writer
}

/// Adds the tokenizer of a tiny model, which merges characters, as a SentencePiece vocabulary with scores.
fn add_tokenizer(writer: &mut Writer, dir: &Path) {
    let tokenizer = read_json(&dir.join("tokenizer.json"));
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocabulary.len()];
    vocabulary.iter().for_each(|(token, id)| tokens[id.as_u64().unwrap() as usize] = token.clone());
    let merges = tokenizer["model"]["merges"].as_array().unwrap();
    let merged: Vec<String> = merges
        .iter()
        .map(|pair| format!("{}{}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let score =
        |token: &String| merged.iter().position(|merged| merged == token).map_or(-1e3, |at| -(at as f32));
    let kind = |token: &String| match token.as_str() {
        "<unk>" => 2,
        "<s>" => 3,
        _ => 1,
    };
    writer.set("tokenizer.ggml.model", text("llama"));
    writer.set("tokenizer.ggml.tokens", texts(&tokens));
    writer.set("tokenizer.ggml.scores", floats(&tokens.iter().map(score).collect::<Vec<_>>()));
    writer.set("tokenizer.ggml.token_type", numbers(&tokens.iter().map(kind).collect::<Vec<_>>()));
    writer.set("tokenizer.ggml.bos_token_id", number(1));
    writer.set("tokenizer.ggml.add_bos_token", flag(!tokenizer["post_processor"].is_null()));
}

fn add_tensors(writer: &mut Writer, dir: &Path, architecture: &str, config: &Json) {
    let known = ARCHITECTURES.iter().find(|known| known.name == architecture).unwrap();
    let checkpoint = Checkpoint::open(dir).unwrap();
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
    let mut shards: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    shards.retain(is_shard);
    shards.sort();
    for shard in shards {
        let bytes = fs::read(shard).unwrap();
        let shard = SafeTensors::deserialize(&bytes).unwrap();
        for (key, view) in shard.tensors() {
            let mut values = checkpoint.read(&key, view.shape()).unwrap().values;
            let heads = match key.rsplit('.').nth(1) {
                Some("q_proj") => config["num_attention_heads"].as_u64(),
                Some("k_proj") => config["num_key_value_heads"].as_u64(),
                _ => None,
            };
            if let Some(heads) = heads.filter(|_| known.neighbours_rotate) {
                values = neighbours_from_halves(&values, view.shape()[0], heads as usize);
            }
            writer.push_f32(&known.tensor_name(&key).unwrap(), view.shape(), &values);
        }
    }
}

/// Puts the rows of the two halves of each head in turn.
fn neighbours_from_halves(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (row_size, head_rows) = (values.len() / rows, rows / heads);
    let mut out = vec![0.0; values.len()];
    for (row, values) in values.chunks(row_size).enumerate() {
        let (head, at) = (row / head_rows, row % head_rows);
        let to = head * head_rows + at % (head_rows / 2) * 2 + at / (head_rows / 2);
        out[to * row_size..][..row_size].copy_from_slice(values);
    }
    out
}
