//! Reads a GGUF file: its header, its metadata, the list of its tensors, and the tensors one at a time. Does
//! not know what keys and tensors mean.
//!
//! Every length in the file is checked before memory is allocated for it: against the length of the file, and
//! against the limits below. The metadata in memory take at most three times their size in the file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use thresher_core::regular_files;

use super::quant::Encoding;
use crate::ExportError;

const MAGIC: &[u8; 4] = b"GGUF";

/// The limit on the number of metadata keys and on the number of tensors.
const ENTRIES_MAX: u64 = 1 << 16;

/// The limit on the length of a key or of a tensor's name, in bytes.
const NAME_BYTES_MAX: u64 = 1 << 16;

/// The limit on the length of one text in the metadata, in bytes.
const TEXT_BYTES_MAX: u64 = 1 << 22;

/// The limit on everything before the tensors, in bytes. A vocabulary of 262,144 tokens takes 20 MB.
const HEADER_BYTES_MAX: u64 = 1 << 26;

const AXES_MAX: u32 = 4;

/// The alignment of tensors in a file that does not say, in bytes.
const ALIGNMENT_DEFAULT: u64 = 32;

/// The limit on the alignment of tensors, in bytes.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// The numbers that stand for texts and arrays in a file.
const TYPE_TEXT: u32 = 8;
const TYPE_ARRAY: u32 = 9;

/// A GGUF file whose header was read.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Where the data of the tensors begin, in bytes from the start of the file.
    data_offset_bytes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Negative(i64),
    /// A number of 32 or 64 bits.
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    /// A list of numbers, or of true and false.
    Numbers(Numbers),
}

/// A list of numbers as it is stored in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    scalar: Scalar,
    bytes: Vec<u8>,
}

/// The type of a number in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

#[derive(Debug)]
struct TensorInfo {
    /// The sizes of the axes, the slowest first.
    dims: Vec<usize>,
    encoding: &'static Encoding,
    /// The offset from the start of the data, in bytes.
    offset_bytes: u64,
    bytes: u64,
}

impl GgufFile {
    /// Opens a file and reads everything but its tensors.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be read, is not a GGUF file of a supported version and
    /// byte order, is truncated, exceeds a limit, or has a tensor of an unsupported type.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let failed = |cause| ExportError::Read { file: path.to_owned(), cause };
        let file = regular_files::open(path).map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        let mut reader = Reader { path, input: BufReader::new(&file), position: 0, file_bytes };
        let (tensor_count, key_count) = reader.header()?;
        let metadata = reader.metadata(key_count)?;
        let alignment = alignment(path, &metadata)?;
        let tensors = reader.tensors(tensor_count)?;
        let data_offset_bytes = reader.position.next_multiple_of(alignment);
        let opened = Self { path: path.to_owned(), file, metadata, tensors, data_offset_bytes };
        opened.check_tensors(alignment, file_bytes)?;
        Ok(opened)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The metadata keys and their values, sorted by key.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The names of the tensors, sorted.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The sizes of a tensor's axes, the slowest first; `None` if there is no tensor with this name.
    pub fn dims(&self, tensor: &str) -> Option<&[usize]> {
        self.tensors.get(tensor).map(|info| info.dims.as_slice())
    }

    /// Reads a tensor and converts its elements to `f32`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if there is no tensor with this name, or if the file cannot be read.
    pub fn read(&self, tensor: &str) -> Result<Vec<f32>, ExportError> {
        let missing = || ExportError::TensorMissing { file: self.path.clone(), key: tensor.to_owned() };
        let info = self.tensors.get(tensor).ok_or_else(missing)?;
        // The tensor lies within the file, so a short file cannot ask for much memory.
        let mut bytes = vec![0; info.bytes as usize];
        // `&File` can read and seek. One thread reads the file.
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_offset_bytes + info.offset_bytes))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|cause| ExportError::Read { file: self.path.clone(), cause })?;
        Ok(info.encoding.decode(&bytes))
    }

    /// Fails if a tensor is not aligned, lies outside the file, or overlaps another tensor.
    fn check_tensors(&self, alignment: u64, file_bytes: u64) -> Result<(), ExportError> {
        let malformed = |name: &str, reason| malformed(&self.path, format!("tensor `{name}`"), reason);
        let mut spans: Vec<_> =
            self.tensors.iter().map(|(name, info)| (info.offset_bytes, info, name)).collect();
        spans.sort_by_key(|(offset, _, _)| *offset);
        let mut end = (0, "");
        for (offset, info, name) in spans {
            if !offset.is_multiple_of(alignment) {
                return Err(malformed(name, format!("offset {offset} is not a multiple of {alignment}")));
            }
            let data_end =
                offset.checked_add(info.bytes).and_then(|end| end.checked_add(self.data_offset_bytes));
            match data_end {
                None => return Err(malformed(name, format!("offset {offset} is too large"))),
                Some(expected_bytes) if expected_bytes > file_bytes => {
                    return Err(ExportError::FileTruncated {
                        file: self.path.clone(),
                        at: format!("tensor `{name}`"),
                        expected_bytes,
                        found_bytes: file_bytes,
                    });
                }
                Some(_) => {}
            }
            if offset < end.0 {
                return Err(malformed(name, format!("overlaps tensor `{}`", end.1)));
            }
            end = (offset + info.bytes, name);
        }
        Ok(())
    }
}

impl Value {
    /// What the value is, for errors: the value itself, or the type and length of a list or long text.
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(number) => number.to_string(),
            Self::Negative(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) if text.chars().count() <= 64 => text.clone(),
            Self::Text(text) => format!("a text of {} bytes", text.len()),
            Self::Texts(texts) => format!("a list of {} texts", texts.len()),
            Self::Numbers(numbers) => format!("a list of {} numbers", numbers.count()),
        }
    }
}

impl Numbers {
    pub fn count(&self) -> usize {
        self.bytes.len() / self.scalar.bytes()
    }

    pub fn iter(&self) -> impl Iterator<Item = Value> {
        self.bytes.chunks_exact(self.scalar.bytes()).map(|bytes| self.scalar.decode(bytes))
    }
}

impl Scalar {
    fn with_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Decodes a number of exactly [`Self::bytes`] bytes. A byte that is not 0 is true.
    fn decode(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        let unused = 64 - 8 * self.bytes() as u32;
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Value::Unsigned(bits),
            Self::Bool => Value::Bool(bits != 0),
            Self::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
            Self::F64 => Value::Float(f64::from_bits(bits)),
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => {
                // Moves the sign to the top, and spreads it over the unused bits.
                let number = (bits << unused).cast_signed() >> unused;
                u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned)
            }
        }
    }
}

/// Reads the part before the tensors from start to end.
struct Reader<'a> {
    path: &'a Path,
    input: BufReader<&'a File>,
    /// The number of bytes that were read.
    position: u64,
    file_bytes: u64,
}

impl Reader<'_> {
    /// Reads the header. Returns the number of tensors and the number of metadata keys.
    fn header(&mut self) -> Result<(u64, u64), ExportError> {
        let magic: [u8; 4] = self.array("the header")?;
        if magic != *MAGIC {
            let found = String::from_utf8_lossy(&magic).escape_default().to_string();
            let reason = format!("begins with `{found}`, expected `GGUF`");
            return Err(malformed(self.path, "the header".to_owned(), reason));
        }
        let version = self.u32("the header")?;
        if !matches!(version, 2 | 3) {
            let is_swapped = (1..=3).contains(&version.swap_bytes());
            return Err(if is_swapped {
                self.unsupported("byte order", "big-endian", "little-endian")
            } else {
                self.unsupported("version", &version.to_string(), "2, 3")
            });
        }
        let counts = (self.u64("the header")?, self.u64("the header")?);
        for (name, count) in [("number of tensors", counts.0), ("number of metadata keys", counts.1)] {
            if count > ENTRIES_MAX {
                return Err(malformed(
                    self.path,
                    name.to_owned(),
                    format!("{count}, the limit is {ENTRIES_MAX}"),
                ));
            }
        }
        Ok(counts)
    }

    fn metadata(&mut self, count: u64) -> Result<BTreeMap<String, Value>, ExportError> {
        let mut metadata = BTreeMap::new();
        for index in 0..count {
            let key = self.text(NAME_BYTES_MAX, &format!("metadata key {index}"))?;
            let kind = self.u32(&key)?;
            let value = match kind {
                TYPE_TEXT => Value::Text(self.text(TEXT_BYTES_MAX, &key)?),
                TYPE_ARRAY => self.list(&key)?,
                _ => {
                    let scalar = self.scalar(kind, &key)?;
                    let bytes = self.bytes(scalar.bytes() as u64, &key)?;
                    scalar.decode(&bytes)
                }
            };
            if metadata.contains_key(&key) {
                return Err(malformed(self.path, key, "appears twice".to_owned()));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }

    fn list(&mut self, key: &str) -> Result<Value, ExportError> {
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        if kind == TYPE_ARRAY {
            return Err(self.unsupported(key, "a list of lists", "lists of texts and of numbers"));
        }
        if kind == TYPE_TEXT {
            // The list grows with the texts that are read, whatever the count says.
            let mut texts = Vec::new();
            for _ in 0..count {
                texts.push(self.text(TEXT_BYTES_MAX, key)?);
            }
            return Ok(Value::Texts(texts));
        }
        let scalar = self.scalar(kind, key)?;
        let bytes = self.bytes(count.saturating_mul(scalar.bytes() as u64), key)?;
        Ok(Value::Numbers(Numbers { scalar, bytes }))
    }

    fn tensors(&mut self, count: u64) -> Result<BTreeMap<String, TensorInfo>, ExportError> {
        let mut tensors = BTreeMap::new();
        for index in 0..count {
            let name = self.text(NAME_BYTES_MAX, &format!("tensor {index}"))?;
            let at = format!("tensor `{name}`");
            let info = self.tensor(&at)?;
            if tensors.insert(name, info).is_some() {
                return Err(malformed(self.path, at, "appears twice".to_owned()));
            }
        }
        Ok(tensors)
    }

    fn tensor(&mut self, at: &str) -> Result<TensorInfo, ExportError> {
        let axes = self.u32(at)?;
        if !(1..=AXES_MAX).contains(&axes) {
            return Err(malformed(
                self.path,
                at.to_owned(),
                format!("{axes} axes, expected 1 to {AXES_MAX}"),
            ));
        }
        // The file has the fastest axis first.
        let mut sizes = Vec::new();
        for _ in 0..axes {
            sizes.push(self.u64(at)?);
        }
        let encoding = Encoding::with_id(self.u32(at)?)
            .map_err(|found| self.unsupported(at, &found, &Encoding::supported()))?;
        let offset_bytes = self.u64(at)?;
        let elements = sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
        // The elements are converted to four bytes each, and that size must fit the address space.
        let elements = elements.filter(|&elements| elements <= isize::MAX as u64 / 4);
        let Some(elements) = elements else {
            return Err(malformed(self.path, at.to_owned(), format!("sizes {sizes:?} are too large")));
        };
        let per_block = encoding.block_elements as u64;
        if !sizes[0].is_multiple_of(per_block) {
            let reason = format!("rows of {} elements are not whole blocks of {per_block}", sizes[0]);
            return Err(malformed(self.path, at.to_owned(), reason));
        }
        // A block has at most as many bytes as four for each of its elements, so this does not overflow.
        let bytes = elements / per_block * encoding.block_bytes as u64;
        let dims = sizes.iter().rev().map(|&size| size as usize).collect();
        Ok(TensorInfo { dims, encoding, offset_bytes, bytes })
    }

    fn scalar(&self, kind: u32, key: &str) -> Result<Scalar, ExportError> {
        Scalar::with_id(kind)
            .ok_or_else(|| malformed(self.path, key.to_owned(), format!("type {kind} does not exist")))
    }

    fn text(&mut self, bytes_max: u64, at: &str) -> Result<String, ExportError> {
        let length = self.u64(at)?;
        if length > bytes_max && length <= self.file_bytes - self.position {
            let reason = format!("a text of {length} bytes, the limit is {bytes_max}");
            return Err(malformed(self.path, at.to_owned(), reason));
        }
        String::from_utf8(self.bytes(length, at)?)
            .map_err(|_| malformed(self.path, at.to_owned(), "a text is not UTF-8".to_owned()))
    }

    fn u32(&mut self, at: &str) -> Result<u32, ExportError> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&mut self, at: &str) -> Result<u64, ExportError> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self, at: &str) -> Result<[u8; N], ExportError> {
        self.advance(N as u64, at)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn bytes(&mut self, count: u64, at: &str) -> Result<Vec<u8>, ExportError> {
        self.advance(count, at)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ExportError> {
        self.input.read_exact(bytes).map_err(|cause| ExportError::Read { file: self.path.to_owned(), cause })
    }

    /// Moves the position over the next `count` bytes, which must exist and be part of a header of a
    /// supported size.
    fn advance(&mut self, count: u64, at: &str) -> Result<(), ExportError> {
        let expected_bytes = self.position.saturating_add(count);
        if expected_bytes > self.file_bytes {
            let (file, at) = (self.path.to_owned(), at.to_owned());
            return Err(ExportError::FileTruncated {
                file,
                at,
                expected_bytes,
                found_bytes: self.file_bytes,
            });
        }
        if expected_bytes > HEADER_BYTES_MAX {
            let reason =
                format!("the metadata have {expected_bytes} bytes or more, the limit is {HEADER_BYTES_MAX}");
            return Err(malformed(self.path, at.to_owned(), reason));
        }
        self.position = expected_bytes;
        Ok(())
    }

    fn unsupported(&self, at: &str, found: &str, supported: &str) -> ExportError {
        ExportError::FileUnsupported {
            file: self.path.to_owned(),
            at: at.to_owned(),
            found: found.to_owned(),
            supported: supported.to_owned(),
        }
    }
}

/// The alignment of the tensors, in bytes.
fn alignment(path: &Path, metadata: &BTreeMap<String, Value>) -> Result<u64, ExportError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(Value::Unsigned(bytes)) if bytes.is_power_of_two() && *bytes <= ALIGNMENT_MAX => Ok(*bytes),
        Some(other) => {
            let reason = format!("{}, expected a power of two up to {ALIGNMENT_MAX}", other.describe());
            Err(malformed(path, KEY.to_owned(), reason))
        }
    }
}

fn malformed(path: &Path, at: String, reason: String) -> ExportError {
    ExportError::FileMalformed { file: path.to_owned(), at, reason }
}

/// The error for a value that the export does not support.
pub fn unsupported(file: &GgufFile, at: &str, found: String, supported: &str) -> ExportError {
    ExportError::FileUnsupported {
        file: file.path().to_owned(),
        at: at.to_owned(),
        found,
        supported: supported.to_owned(),
    }
}
