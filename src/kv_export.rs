//! Keys and values as a file that a language model takes over: safetensors, written piece by piece while it is sent.
//! Knows nothing of transports. `docs/kv_export.md` describes the file for those who read it.

use std::ops::Range;

use bytes::Bytes;
use half::f16;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thresher_core::domain::Chunk;
use thresher_core::model::{KeyMask, PlaneLayout};
use thresher_core::pipeline::kv_export::{KvExport, KvExportToken};
use thresher_core::pipeline::{Codec, Pipeline};

/// How much is held for those who fetch it, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvExportSettings {
    /// Bytes of keys and values that are held, of each tenant; 0: none.
    pub bytes_max: u64,
    /// Seconds after which they are forgotten.
    pub expire_s: u64,
}

impl Default for KvExportSettings {
    fn default() -> Self {
        Self { bytes_max: 268_435_456, expire_s: 600 }
    }
}

/// The version of the file.
pub const FORMAT: &str = "thresher-kv/1";

/// What a file has for the chunk, window or offset of a token that has none.
const NONE: i32 = -1;

/// What is handed over, as it lies in the cache: the file is written when it is fetched.
pub struct KvExportFile {
    kv_export: KvExport,
    kept: Option<KeyMask>,
    shape: Shape,
    header: Bytes,
    /// Of the tensors.
    data_bytes: usize,
}

/// Sizes of the model, and how its numbers are written.
#[derive(Debug, Clone, Copy)]
struct Shape {
    layers: usize,
    kv_heads: usize,
    layout: PlaneLayout,
    head_dim: usize,
    /// Special tokens in front.
    prefix: usize,
    is_half: bool,
}

/// A piece of the file: the header, or a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Piece(Option<Part>);

/// A tensor of the file.
#[derive(Debug, Clone, Copy)]
enum Part {
    TokenIds,
    Positions,
    Chunks,
    Windows,
    Offsets,
    /// Of a layer: how many each head has of the rows below; only where heads keep different ones.
    Counts(usize),
    /// Which tokens these are.
    Tokens(usize),
    Keys(usize),
    Values(usize),
}

impl KvExportFile {
    /// Of `chunks` as they are handed over; `kept` where heads keep some of their keys only.
    pub fn new(
        kv_export: KvExport,
        kept: Option<KeyMask>,
        chunks: &[impl AsRef<Chunk>],
        pipeline: &Pipeline,
    ) -> Self {
        let info = pipeline.model();
        let decoder = info.decoder.as_ref().expect("only a decoder's chunks are handed over");
        let shape = Shape {
            layers: decoder.layers,
            kv_heads: decoder.kv_heads,
            layout: decoder.planes(),
            head_dim: info.head_dim,
            prefix: decoder.prefix_tokens(),
            is_half: pipeline.settings().codec != Codec::F32,
        };
        let ids: Vec<&str> = chunks.iter().map(|chunk| &*chunk.as_ref().id).collect();
        let about = json!({
            "format": FORMAT,
            "policy": if kept.is_some() { "heads" } else { "chunks" },
            "model": info.name,
            "fingerprint": decoder.weights,
            "chunk_ids": json!(ids).to_string(),
            "layers": shape.layers.to_string(),
            "kv_heads": shape.kv_heads.to_string(),
            "head_dim": shape.head_dim.to_string(),
            "next_position": kv_export.next_position.to_string(),
            "rotary_frequencies": json!(decoder.rotary.as_ref().map(|rotary| &rotary.frequencies)).to_string(),
        });
        let mut file = Self { kv_export, kept, shape, header: Bytes::new(), data_bytes: 0 };
        let (mut header, mut at) = (Map::new(), 0);
        header.insert("__metadata__".to_owned(), about);
        for part in file.parts() {
            let bytes = file.bytes_of(part);
            let entry = json!({"dtype": file.dtype(part), "shape": file.shape_of(part), "data_offsets": [at, at + bytes]});
            header.insert(part.name(), entry);
            at += bytes;
        }
        let mut text = Value::Object(header).to_string();
        // Tensors begin at a multiple of eight.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let length = (text.len() as u64).to_le_bytes();
        (file.header, file.data_bytes) = ([&length[..], text.as_bytes()].concat().into(), at);
        file
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> usize {
        self.header.len() + self.data_bytes
    }

    /// Tokens, those in front of the chunks included.
    pub fn tokens(&self) -> usize {
        self.kv_export.next_position
    }

    /// Share of the keys that is kept.
    pub fn share(&self) -> f64 {
        self.kept.as_ref().map_or(1.0, KeyMask::share)
    }

    /// What the file is made of, in order: its header, then the tensors.
    pub fn pieces(&self) -> Vec<Piece> {
        std::iter::once(Piece(None)).chain(self.parts().into_iter().map(|part| Piece(Some(part)))).collect()
    }

    /// The bytes of one: at most those of a layer's keys, or values.
    pub fn bytes_of_piece(&self, piece: Piece, pipeline: &Pipeline) -> Bytes {
        piece.0.map_or_else(|| self.header.clone(), |part| self.data(part, pipeline))
    }

    /// In their order in the file: full words first, so that all are aligned.
    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::TokenIds, Part::Positions, Part::Chunks, Part::Windows, Part::Offsets];
        if self.kept.is_some() {
            parts.extend((0..self.shape.layers).flat_map(|layer| [Part::Counts(layer), Part::Tokens(layer)]));
        }
        parts.extend((0..self.shape.layers).flat_map(|layer| [Part::Keys(layer), Part::Values(layer)]));
        parts
    }

    fn dtype(&self, part: Part) -> &'static str {
        match part {
            Part::Keys(_) | Part::Values(_) if self.shape.is_half => "F16",
            Part::Keys(_) | Part::Values(_) => "F32",
            _ => "I32",
        }
    }

    fn shape_of(&self, part: Part) -> Vec<usize> {
        let Shape { kv_heads, head_dim, .. } = self.shape;
        match part {
            Part::TokenIds | Part::Positions | Part::Chunks | Part::Windows => vec![self.tokens()],
            Part::Offsets => vec![self.tokens(), 2],
            Part::Counts(_) => vec![kv_heads],
            Part::Tokens(layer) => vec![self.rows(layer).iter().map(Vec::len).sum()],
            Part::Keys(layer) | Part::Values(layer) => match self.kept {
                None => vec![kv_heads, self.tokens(), head_dim],
                Some(_) => vec![self.rows(layer).iter().map(Vec::len).sum(), head_dim],
            },
        }
    }

    fn bytes_of(&self, part: Part) -> usize {
        let size = if self.dtype(part) == "F16" { 2 } else { 4 };
        self.shape_of(part).iter().product::<usize>() * size
    }

    /// `[kv_head]`: the tokens that a layer's heads keep, special ones in front included.
    fn rows(&self, layer: usize) -> Vec<Vec<usize>> {
        let Shape { kv_heads, prefix, .. } = self.shape;
        let of_head = |head: usize| match &self.kept {
            None => (0..self.tokens()).collect(),
            Some(kept) => {
                let of_head = kept.of(layer, head);
                let behind =
                    of_head.iter().enumerate().filter(|(_, kept)| **kept).map(|(token, _)| prefix + token);
                (0..prefix).chain(behind).collect()
            }
        };
        (0..kv_heads).map(of_head).collect()
    }

    fn data(&self, part: Part, pipeline: &Pipeline) -> Bytes {
        let prefix = pipeline.model().decoder.as_ref().map_or(&[][..], |decoder| &decoder.prefix);
        let of_tokens = |special: fn(u32) -> i32, own: fn(&KvExportToken) -> i32| {
            let special = prefix.iter().map(|&id| special(id));
            integers(special.chain(self.kv_export.tokens.iter().map(own)))
        };
        match part {
            Part::TokenIds => of_tokens(|id| id as i32, |token| token.id as i32),
            Part::Positions => integers(0..self.tokens() as i32),
            Part::Chunks => of_tokens(|_| NONE, |token| token.chunk as i32),
            Part::Windows => of_tokens(|_| NONE, |token| token.window as i32),
            Part::Offsets => {
                let special = prefix.iter().flat_map(|_| [NONE, NONE]);
                let own = self.kv_export.tokens.iter();
                integers(special.chain(own.flat_map(|token| {
                    token.bytes.map_or([NONE, NONE], |bytes| [bytes.start as i32, bytes.end as i32])
                })))
            }
            Part::Counts(layer) => integers(self.rows(layer).iter().map(|rows| rows.len() as i32)),
            Part::Tokens(layer) => integers(self.rows(layer).into_iter().flatten().map(|token| token as i32)),
            Part::Keys(layer) => self.planes(self.shape.layout.keys(layer), layer, pipeline),
            Part::Values(layer) => self.planes(self.shape.layout.values(layer), layer, pipeline),
        }
    }

    /// The `planes` of a layer's keys or values, the rows that each head keeps.
    fn planes(&self, planes: Range<usize>, layer: usize, pipeline: &Pipeline) -> Bytes {
        let dim = self.shape.head_dim;
        let mut plane = vec![0.0_f32; self.tokens() * dim];
        let mut out = Vec::with_capacity(self.bytes_of(Part::Keys(layer)));
        for (plane_index, rows) in planes.zip(self.rows(layer)) {
            self.kv_export.read_plane(pipeline, plane_index, &mut plane);
            for value in rows.iter().flat_map(|&row| &plane[row * dim..(row + 1) * dim]) {
                match self.shape.is_half {
                    true => out.extend(f16::from_f32(*value).to_le_bytes()),
                    false => out.extend(value.to_le_bytes()),
                }
            }
        }
        out.into()
    }
}

impl KvExportFile {
    /// Bytes of memory that the export takes. Blocks that the cache holds as well are counted in full.
    pub fn bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.view().len());
        self.kv_export.block_bytes() + kept + self.header.len() + size_of_val(&*self.kv_export.tokens)
    }
}

impl Part {
    fn name(self) -> String {
        match self {
            Self::TokenIds => "token_ids".to_owned(),
            Self::Positions => "positions".to_owned(),
            Self::Chunks => "chunks".to_owned(),
            Self::Windows => "windows".to_owned(),
            Self::Offsets => "offsets".to_owned(),
            Self::Counts(layer) => format!("layers.{layer}.counts"),
            Self::Tokens(layer) => format!("layers.{layer}.tokens"),
            Self::Keys(layer) => format!("layers.{layer}.key"),
            Self::Values(layer) => format!("layers.{layer}.value"),
        }
    }
}

fn integers(values: impl Iterator<Item = i32>) -> Bytes {
    values.flat_map(i32::to_le_bytes).collect::<Vec<u8>>().into()
}
