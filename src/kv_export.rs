//! The safetensors file of a KV export, which a language model loads as its cache. The file is written in parts while it is sent.
//! The module knows nothing of transports. `docs/kv-export.md` describes the file for its readers.

use std::ops::Range;

use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thresher_core::domain::Chunk;
use thresher_core::model::{KeyMask, PlaneLayout};
use thresher_core::pipeline::kv_export::{KvExport, KvExportToken};
use thresher_core::pipeline::{Codec, Pipeline};

/// The number format of the keys and values of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    F32,
    F16,
    Bf16,
}

impl KvDtype {
    /// The name of the format in a safetensors file.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Writes `values` to `out`, little-endian. `out` has as many numbers.
    fn write(self, values: &[f32], out: &mut [u8]) {
        match self {
            Self::F32 => {
                let numbers = out.as_chunks_mut().0.iter_mut().zip(values);
                numbers.for_each(|(to, value)| *to = value.to_le_bytes());
            }
            Self::F16 => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                let numbers = out.as_chunks_mut().0.iter_mut().zip(halves);
                numbers.for_each(|(to, half)| *to = half.to_le_bytes());
            }
            Self::Bf16 => {
                let numbers = out.as_chunks_mut().0.iter_mut().zip(values);
                numbers.for_each(|(to, value)| *to = bf16::from_f32(*value).to_le_bytes());
            }
        }
    }
}

/// The value of `format` in the file's metadata: the name and version of the format.
pub const FORMAT: &str = "thresher-kv/1";

/// The chunk, window or offset of a token that has none.
const NONE: i32 = -1;

/// The file of an export. It holds the blocks as they are cached; the tensors are written when the file is fetched.
pub struct KvExportFile {
    export: KvExport,
    /// The keys that each head keeps; `None`: all.
    kept: Option<KeyMask>,
    layout: Layout,
    header: Bytes,
    tensor_bytes: usize,
}

/// Sizes of the model, and the number format of keys and values.
#[derive(Debug, Clone, Copy)]
struct Layout {
    layers: usize,
    kv_heads: usize,
    planes: PlaneLayout,
    head_dim: usize,
    /// Number of special tokens before the first chunk.
    prefix: usize,
    dtype: KvDtype,
}

/// A part of the file: its header or one of its tensors.
#[derive(Debug, Clone, Copy)]
pub struct FilePart(Option<Tensor>);

/// A tensor of the file; the number is that of the layer.
#[derive(Debug, Clone, Copy)]
enum Tensor {
    TokenIds,
    Positions,
    Chunks,
    Windows,
    Offsets,
    /// `[token]`: 1 if the token was encoded again, attending to the chunks before it, otherwise 0.
    Recomputed,
    /// `[kv_head]`: the number of rows of each head; only if heads keep different tokens.
    Counts(usize),
    /// `[row]`: the token of each row; only if heads keep different tokens.
    Tokens(usize),
    Keys(usize),
    Values(usize),
}

impl KvExportFile {
    /// Creates the file of `export`, which holds `chunks` in this order. `kept` says which keys each head keeps; `None` keeps all.
    /// `dtype` is the number format of keys and values; `None` stands for F32 if the cache has F32, otherwise for F16.
    ///
    /// # Panics
    /// Panics if the model of `pipeline` is not a decoder: only chunks of a decoder are exported.
    pub fn new(
        export: KvExport,
        kept: Option<KeyMask>,
        dtype: Option<KvDtype>,
        chunks: &[impl AsRef<Chunk>],
        pipeline: &Pipeline,
    ) -> Self {
        let info = pipeline.model();
        let decoder = info.decoder.as_ref().expect("only chunks of a decoder are exported");
        let of_cache = if pipeline.settings().codec == Codec::F32 { KvDtype::F32 } else { KvDtype::F16 };
        let layout = Layout {
            layers: decoder.layers,
            kv_heads: decoder.kv_heads,
            planes: decoder.planes(),
            head_dim: info.head_dim,
            prefix: decoder.prefix_tokens(),
            dtype: dtype.unwrap_or(of_cache),
        };
        let ids: Vec<&str> = chunks.iter().map(|chunk| &*chunk.as_ref().id).collect();
        let mut metadata = json!({
            "format": FORMAT,
            "policy": if kept.is_some() { "heads" } else { "chunks" },
            "model": info.name,
            "fingerprint": decoder.weights,
            "chunk_ids": json!(ids).to_string(),
            "layers": layout.layers.to_string(),
            "kv_heads": layout.kv_heads.to_string(),
            "head_dim": layout.head_dim.to_string(),
            "next_position": export.next_position.to_string(),
            "exact": (kept.is_none() && export.is_exact()).to_string(),
            "rotary_frequencies": json!(decoder.rotary.as_ref().map(|rotary| &rotary.global.frequencies)).to_string(),
        });
        if let Some(local) = decoder.rotary.as_ref().and_then(|rotary| rotary.local.as_ref()) {
            metadata["rotary_frequencies_local"] = json!(json!(local.frequencies).to_string());
        }
        let mut file = Self { export, kept, layout, header: Bytes::new(), tensor_bytes: 0 };
        let (mut header, mut offset) = (Map::new(), 0);
        header.insert("__metadata__".to_owned(), metadata);
        for tensor in file.tensors() {
            let end = offset + file.bytes_of(tensor);
            let entry = json!({"dtype": file.dtype_of(tensor).map_or("I32", KvDtype::name), "shape": file.shape_of(tensor), "data_offsets": [offset, end]});
            header.insert(tensor.name(), entry);
            offset = end;
        }
        let mut text = Value::Object(header).to_string();
        // The first tensor begins at a multiple of eight bytes.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let length = (text.len() as u64).to_le_bytes();
        (file.header, file.tensor_bytes) = ([&length[..], text.as_bytes()].concat().into(), offset);
        file
    }

    pub fn file_bytes(&self) -> usize {
        self.header.len() + self.tensor_bytes
    }

    /// Returns the bytes of memory that the export takes. Blocks that the cache holds as well are counted in full.
    pub fn bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.view().len());
        self.export.bytes() + kept + self.header.len()
    }

    /// Returns the number of tokens, including the special tokens before the chunks.
    pub fn tokens(&self) -> usize {
        self.export.next_position
    }

    /// Returns the share of the chunks' keys that is exported, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.kept.as_ref().map_or(1.0, KeyMask::share)
    }

    /// Returns the number of tokens that were encoded again.
    pub fn recomputed(&self) -> usize {
        self.export.recomputed().len()
    }

    /// Returns whether the file has all keys and values that the model would compute in a prompt.
    pub fn is_exact(&self) -> bool {
        self.kept.is_none() && self.export.is_exact()
    }

    pub fn dtype(&self) -> KvDtype {
        self.layout.dtype
    }

    /// Returns the ids of all tokens, special tokens first.
    pub fn token_ids(&self, pipeline: &Pipeline) -> Vec<u32> {
        let prefix = pipeline.model().decoder.as_ref().map_or(&[][..], |decoder| &decoder.prefix);
        prefix.iter().copied().chain(self.export.tokens.iter().map(|token| token.id)).collect()
    }

    /// Returns the parts of the file that have bytes in `range`, in their order, and which bytes of each part are in it. The first part
    /// of a file is its header, the others are its tensors.
    pub fn parts(&self, range: &Range<usize>) -> Vec<(FilePart, Range<usize>)> {
        let header = (FilePart(None), self.header.len());
        let tensors =
            self.tensors().into_iter().map(|tensor| (FilePart(Some(tensor)), self.bytes_of(tensor)));
        let mut start = 0;
        let within = |(part, bytes): (FilePart, usize)| {
            let from = range.start.clamp(start, start + bytes) - start;
            let to = range.end.clamp(start, start + bytes) - start;
            start += bytes;
            (from < to).then_some((part, from..to))
        };
        std::iter::once(header).chain(tensors).filter_map(within).collect()
    }

    /// Returns the bytes of `part`: the largest part is the keys, or the values, of one layer.
    pub fn read_part(&self, part: FilePart, pipeline: &Pipeline) -> Bytes {
        part.0.map_or_else(|| self.header.clone(), |tensor| self.data(tensor, pipeline))
    }

    /// The tensors in their order in the file: those of 32-bit numbers first, so that every tensor is aligned.
    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![
            Tensor::TokenIds,
            Tensor::Positions,
            Tensor::Chunks,
            Tensor::Windows,
            Tensor::Offsets,
            Tensor::Recomputed,
        ];
        let layers = 0..self.layout.layers;
        if self.kept.is_some() {
            tensors.extend(layers.clone().flat_map(|layer| [Tensor::Counts(layer), Tensor::Tokens(layer)]));
        }
        tensors.extend(layers.flat_map(|layer| [Tensor::Keys(layer), Tensor::Values(layer)]));
        tensors
    }

    /// The number format of a tensor of keys or values; `None`: the tensor has 32-bit integers.
    fn dtype_of(&self, tensor: Tensor) -> Option<KvDtype> {
        matches!(tensor, Tensor::Keys(_) | Tensor::Values(_)).then_some(self.layout.dtype)
    }

    fn shape_of(&self, tensor: Tensor) -> Vec<usize> {
        let Layout { kv_heads, head_dim, .. } = self.layout;
        match tensor {
            Tensor::TokenIds | Tensor::Positions | Tensor::Chunks | Tensor::Windows | Tensor::Recomputed => {
                vec![self.tokens()]
            }
            Tensor::Offsets => vec![self.tokens(), 2],
            Tensor::Counts(_) => vec![kv_heads],
            Tensor::Tokens(layer) => vec![self.rows(layer).iter().map(Vec::len).sum()],
            Tensor::Keys(layer) | Tensor::Values(layer) => match self.kept {
                None => vec![kv_heads, self.tokens(), head_dim],
                Some(_) => vec![self.rows(layer).iter().map(Vec::len).sum(), head_dim],
            },
        }
    }

    fn bytes_of(&self, tensor: Tensor) -> usize {
        let size = self.dtype_of(tensor).map_or(size_of::<i32>(), KvDtype::size);
        self.shape_of(tensor).iter().product::<usize>() * size
    }

    /// `[kv_head][row]`: the tokens that the heads of a layer keep, including the special tokens before the chunks.
    fn rows(&self, layer: usize) -> Vec<Vec<usize>> {
        let Layout { kv_heads, prefix, .. } = self.layout;
        let of_head = |head: usize| match &self.kept {
            None => (0..self.tokens()).collect(),
            Some(kept) => {
                let is_kept = kept.head(layer, head);
                let tokens = is_kept.iter().enumerate().filter(|(_, is_kept)| **is_kept);
                (0..prefix).chain(tokens.map(|(token, _)| prefix + token)).collect()
            }
        };
        (0..kv_heads).map(of_head).collect()
    }

    fn data(&self, tensor: Tensor, pipeline: &Pipeline) -> Bytes {
        let prefix = pipeline.model().decoder.as_ref().map_or(&[][..], |decoder| &decoder.prefix);
        let of_tokens = |of_chunk: fn(&KvExportToken) -> i32| {
            integers(prefix.iter().map(|_| NONE).chain(self.export.tokens.iter().map(of_chunk)))
        };
        match tensor {
            Tensor::TokenIds => integers(self.token_ids(pipeline).into_iter().map(|id| id as i32)),
            Tensor::Positions => integers(0..self.tokens() as i32),
            Tensor::Chunks => of_tokens(|token| token.chunk.map_or(NONE, |chunk| chunk as i32)),
            Tensor::Windows => of_tokens(|token| token.window as i32),
            Tensor::Offsets => {
                let special = prefix.iter().flat_map(|_| [NONE, NONE]);
                let of_chunks = self.export.tokens.iter().flat_map(|token| {
                    token.bytes.map_or([NONE, NONE], |bytes| [bytes.start as i32, bytes.end as i32])
                });
                integers(special.chain(of_chunks))
            }
            Tensor::Recomputed => {
                let mut is_recomputed = vec![0; self.tokens()];
                for &token in self.export.recomputed() {
                    is_recomputed[self.layout.prefix + token] = 1;
                }
                integers(is_recomputed)
            }
            Tensor::Counts(layer) => integers(self.rows(layer).iter().map(|rows| rows.len() as i32)),
            Tensor::Tokens(layer) => {
                integers(self.rows(layer).into_iter().flatten().map(|token| token as i32))
            }
            Tensor::Keys(layer) => self.planes(self.layout.planes.keys(layer), layer, pipeline),
            Tensor::Values(layer) => self.planes(self.layout.planes.values(layer), layer, pipeline),
        }
    }

    /// Reads the `planes` of one layer's keys or values, `[token, head_dim]` each, and writes the rows that each head keeps.
    fn planes(&self, planes: Range<usize>, layer: usize, pipeline: &Pipeline) -> Bytes {
        let Layout { head_dim: dim, dtype, .. } = self.layout;
        let mut out = vec![0; self.bytes_of(Tensor::Keys(layer))];
        let (mut rest, mut of_heads) = (&mut out[..], Vec::new());
        for (index, rows) in planes.zip(self.rows(layer)) {
            let written;
            (written, rest) = rest.split_at_mut(rows.len() * dim * dtype.size());
            of_heads.push((index, rows, written));
        }
        of_heads.into_par_iter().for_each(|(index, rows, written)| {
            let mut plane = vec![0.0_f32; self.tokens() * dim];
            self.export.read_plane(pipeline, index, &mut plane);
            if rows.len() == self.tokens() {
                dtype.write(&plane, written);
            } else {
                let kept: Vec<f32> =
                    rows.iter().flat_map(|&row| &plane[row * dim..(row + 1) * dim]).copied().collect();
                dtype.write(&kept, written);
            }
        });
        out.into()
    }
}

impl Tensor {
    fn name(self) -> String {
        match self {
            Self::TokenIds => "token_ids".to_owned(),
            Self::Positions => "positions".to_owned(),
            Self::Chunks => "chunks".to_owned(),
            Self::Windows => "windows".to_owned(),
            Self::Offsets => "offsets".to_owned(),
            Self::Recomputed => "recomputed".to_owned(),
            Self::Counts(layer) => format!("layers.{layer}.counts"),
            Self::Tokens(layer) => format!("layers.{layer}.tokens"),
            Self::Keys(layer) => format!("layers.{layer}.key"),
            Self::Values(layer) => format!("layers.{layer}.value"),
        }
    }
}

fn integers(values: impl IntoIterator<Item = i32>) -> Bytes {
    values.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>().into()
}
