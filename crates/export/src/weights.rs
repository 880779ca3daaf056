//! Reads a checkpoint: `model.safetensors`, the shards that `model.safetensors.index.json` lists, or a file
//! of another format. Tensors are read one at a time, so that a checkpoint may be larger than memory. Does not know about
//! architectures.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
};

use half::f16;
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use thresher_core::model::contract::sha256_of;
use thresher_core::regular_files;

use super::{ExportError, source::read_json};

/// The name of a checkpoint's file, and of the file that lists its shards.
pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// The size of the little-endian header length at the start of a safetensors file, in bytes.
const LENGTH_BYTES: u64 = 8;

/// The number of columns that are transposed together.
const TRANSPOSED_COLUMNS: usize = 32;

/// The tensors of a checkpoint, by name ("key").
#[derive(Debug)]
pub struct Checkpoint {
    /// The file that lists all tensors, for errors about missing ones.
    listing: PathBuf,
    store: Store,
    /// The names that the tensors that were read have in their file.
    read: RefCell<HashSet<String>>,
}

#[derive(Debug)]
enum Store {
    Safetensors {
        /// The index of the shard and the tensor's metadata, by key.
        tensors: HashMap<String, (usize, TensorInfo)>,
        shards: Vec<Shard>,
    },
    Other(Box<dyn TensorFile>),
}

/// A file of another format, which gives its tensors the form of a Hugging Face checkpoint.
pub trait TensorFile: fmt::Debug {
    fn path(&self) -> &Path;

    /// The paths of all files that were read: the file, and others that it names.
    fn files(&self) -> Vec<&Path> {
        vec![self.path()]
    }

    /// The name in the file of the checkpoint's tensor `key`. A tensor that the format does not have keeps its name.
    fn name(&self, key: &str) -> String;

    /// The sizes of the axes of the tensor with this name in the file, as a checkpoint has them.
    fn dims(&self, name: &str) -> Option<&[usize]>;

    /// The names in the file of all tensors that a checkpoint has, sorted.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// Reads the tensor with this name in the file.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the tensor does not exist, or if the file cannot be read.
    fn read(&self, name: &str) -> Result<Vec<f32>, ExportError>;

    /// The tensor with this name in the file, if bytes hold it without loss.
    fn byte_table(&self, _name: &str) -> Option<ByteTable> {
        None
    }

    /// The matrix of a linear layer with this name in the file, if bytes hold it without loss.
    fn byte_columns(&self, _name: &str) -> Option<ByteColumns> {
        None
    }
}

/// A tensor whose elements are signed bytes times a step, plus an offset.
#[derive(Debug)]
pub struct ByteTable {
    /// The elements of a block, which divide a row.
    pub block: usize,
    pub values: Vec<i8>,
    /// The step of each block; or one step for all.
    pub steps: Vec<f32>,
    /// What is added to each product.
    pub offset: f32,
}

/// The matrix of a linear layer, whose elements are signed bytes times the scale of their column.
#[derive(Debug, Clone, PartialEq)]
pub struct ByteColumns {
    /// `[in, out]`: the quantised weights.
    pub values: Vec<i8>,
    /// `[out]`: by what the values of a column are multiplied.
    pub scales: Vec<f32>,
}

/// A tensor in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub dims: Vec<usize>,
    /// The elements, converted to `f32` from their type in the checkpoint.
    pub values: Vec<f32>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    data_offset_bytes: u64,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir` and reads the headers of its files.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if there is no checkpoint, if a listed shard is missing, or if a file is
    /// truncated or is not a safetensors file.
    pub fn open(dir: &Path) -> Result<Self, ExportError> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        if !single.is_file() && index.is_file() {
            return Self::open_sharded(dir, index);
        }
        let (shard, metadata) = Shard::open(&single)?;
        let tensors = metadata.tensors().into_iter().map(|(key, info)| (key, (0, info.clone()))).collect();
        let store = Store::Safetensors { tensors, shards: vec![shard] };
        Ok(Self { listing: single, store, read: RefCell::default() })
    }

    pub fn of_file(file: impl TensorFile + 'static) -> Self {
        let listing = file.path().to_owned();
        Self { listing, store: Store::Other(Box::new(file)), read: RefCell::default() }
    }

    /// Whether the checkpoint has a tensor with this key.
    pub fn contains(&self, key: &str) -> bool {
        match &self.store {
            Store::Safetensors { tensors, .. } => tensors.contains_key(key),
            Store::Other(file) => file.dims(&file.name(key)).is_some(),
        }
    }

    /// The shape of the tensor `key`; `None` if the checkpoint does not have it.
    pub fn dims(&self, key: &str) -> Option<Vec<usize>> {
        match &self.store {
            Store::Safetensors { tensors, .. } => tensors.get(key).map(|(_, info)| info.shape.clone()),
            Store::Other(file) => file.dims(&file.name(key)).map(<[usize]>::to_vec),
        }
    }

    /// Reads the tensor `key`, which must have the shape `dims`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the tensor is missing, has another shape or an unsupported element type,
    /// or cannot be read.
    pub fn read(&self, key: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        let key = self.name(key);
        let missing = || ExportError::TensorMissing { file: self.listing.clone(), key: key.clone() };
        self.read.borrow_mut().insert(key.clone());
        let (file, found) = match &self.store {
            Store::Safetensors { tensors, shards } => {
                let (shard, info) = tensors.get(&key).ok_or_else(missing)?;
                (&shards[*shard].path, info.shape.as_slice())
            }
            Store::Other(file) => (&self.listing, file.dims(&key).ok_or_else(missing)?),
        };
        if found != dims {
            let (file, expected, found) = (file.clone(), dims.to_vec(), found.to_vec());
            return Err(ExportError::TensorShape { file, key, expected, found });
        }
        let values = match &self.store {
            Store::Safetensors { tensors, shards } => {
                let (shard, info) = &tensors[&key];
                shards[*shard].values(&key, info)?
            }
            Store::Other(file) => file.read(&key)?,
        };
        Ok(Tensor { dims: dims.to_vec(), values })
    }

    /// Returns the tensor `key` of the shape `dims` as bytes, if its file has it in a form that bytes hold without loss.
    pub fn byte_table(&self, key: &str, dims: &[usize]) -> Option<ByteTable> {
        let (file, name) = self.other_file(key, dims)?;
        file.byte_table(&name)
    }

    /// Returns the matrix `key [outputs, inputs]` of a linear layer as bytes, if its file has it in a form that bytes hold without
    /// loss.
    pub fn byte_columns(&self, key: &str, dims: &[usize]) -> Option<ByteColumns> {
        let (file, name) = self.other_file(key, dims)?;
        file.byte_columns(&name)
    }

    /// The file of another format, if it has a tensor `key` of this shape, and the name of the tensor there.
    fn other_file(&self, key: &str, dims: &[usize]) -> Option<(&dyn TensorFile, String)> {
        let Store::Other(file) = &self.store else { return None };
        let name = file.name(key);
        if file.dims(&name) != Some(dims) {
            return None;
        }
        self.read.borrow_mut().insert(name.clone());
        Some((&**file, name))
    }

    /// Returns the SHA-256 of the lines that `sha256sum` prints for the checkpoint's files, sorted by file
    /// name.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a file cannot be read.
    pub fn fingerprint(&self) -> Result<String, ExportError> {
        let files: Vec<&Path> = match &self.store {
            Store::Safetensors { shards, .. } => shards.iter().map(|shard| shard.path.as_path()).collect(),
            Store::Other(file) => file.files(),
        };
        let mut lines = files.into_iter().map(name_and_sha256).collect::<Result<Vec<_>, _>>()?;
        lines.sort_by(|(a, _), (b, _)| a.cmp(b));
        let lines: String = lines.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        Ok(hex::encode(Sha256::digest(lines)))
    }

    pub fn listing(&self) -> &Path {
        &self.listing
    }

    /// Returns the alphabetically first key of a tensor that was not read and is not ignored. In a GGUF file,
    /// it is the tensor's name in the file.
    pub fn first_unread(&self, is_ignored: impl Fn(&str) -> bool) -> Option<&str> {
        let read = self.read.borrow();
        let is_unread = |key: &&str| !read.contains(*key) && !is_ignored(key);
        match &self.store {
            Store::Safetensors { tensors, .. } => tensors.keys().map(String::as_str).filter(is_unread).min(),
            Store::Other(file) => file.names().filter(is_unread).min(),
        }
    }

    /// The name that the tensor `key` has in its file.
    fn name(&self, key: &str) -> String {
        match &self.store {
            Store::Safetensors { .. } => key.to_owned(),
            Store::Other(file) => file.name(key),
        }
    }

    fn open_sharded(dir: &Path, index: PathBuf) -> Result<Self, ExportError> {
        #[derive(Deserialize)]
        struct Index {
            // A sorted map, so that the first error is always the same.
            weight_map: BTreeMap<String, String>,
        }
        let Index { weight_map } = read_json(&index)?;
        let mut opened: BTreeMap<&str, (usize, Metadata)> = BTreeMap::new();
        let mut shards = Vec::new();
        let mut tensors = HashMap::new();
        for (key, name) in &weight_map {
            if !opened.contains_key(name.as_str()) {
                let path = dir.join(name);
                // A shard must be a file of this folder: an index must not point outside it.
                let is_plain = Path::new(name).components().eq([Component::Normal(name.as_ref())]);
                if !is_plain || !path.is_file() {
                    return Err(ExportError::ShardMissing { index, shard: name.clone() });
                }
                let (shard, metadata) = Shard::open(&path)?;
                shards.push(shard);
                opened.insert(name, (shards.len() - 1, metadata));
            }
            let (shard, metadata) = &opened[name.as_str()];
            let missing = || ExportError::TensorMissing { file: dir.join(name), key: key.clone() };
            tensors.insert(key.clone(), (*shard, metadata.info(key).ok_or_else(missing)?.clone()));
        }
        Ok(Self { listing: index, store: Store::Safetensors { tensors, shards }, read: RefCell::default() })
    }
}

impl Tensor {
    /// Returns the transposed matrix. A checkpoint stores `[out, in]`, but a graph multiplies by `[in, out]`.
    ///
    /// # Panics
    /// Panics if the tensor is not a matrix.
    pub fn transposed(&self) -> Self {
        let [rows, columns] = self.dims[..] else { panic!("a matrix has two axes, not {:?}", self.dims) };
        let mut values = vec![0.0; rows * columns];
        // Some columns at a time, so that the cache lines being written stay in the CPU's cache until they
        // are full.
        for (strip, out) in values.chunks_mut((TRANSPOSED_COLUMNS * rows).max(1)).enumerate() {
            let first = strip * TRANSPOSED_COLUMNS;
            for row in 0..rows {
                let read = &self.values[row * columns + first..][..out.len() / rows];
                read.iter().enumerate().for_each(|(column, value)| out[column * rows + row] = *value);
            }
        }
        Self { dims: vec![columns, rows], values }
    }
}

impl Shard {
    fn open(path: &Path) -> Result<(Self, Metadata), ExportError> {
        let file_error = |cause| ExportError::Read { file: path.to_owned(), cause };
        let malformed = |reason: String| ExportError::SafetensorsMalformed { file: path.to_owned(), reason };
        let mut file = regular_files::open(path).map_err(file_error)?;
        let found_bytes = file.metadata().map_err(file_error)?.len();
        let truncated = |expected_bytes| ExportError::SafetensorsTruncated {
            file: path.to_owned(),
            expected_bytes,
            found_bytes,
        };
        if found_bytes < LENGTH_BYTES {
            return Err(truncated(LENGTH_BYTES));
        }
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(file_error)?;
        // The first bytes of a file of another format, such as text, usually decode to a huge length.
        let data_offset_bytes = u64::from_le_bytes(length)
            .checked_add(LENGTH_BYTES)
            .filter(|&bytes| bytes <= u64::from(u32::MAX))
            .ok_or_else(|| malformed(format!("header of {} bytes", u64::from_le_bytes(length))))?;
        if found_bytes < data_offset_bytes {
            return Err(truncated(data_offset_bytes));
        }
        let mut header = vec![0; (data_offset_bytes - LENGTH_BYTES) as usize];
        file.read_exact(&mut header).map_err(file_error)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|cause| malformed(cause.to_string()))?;
        let expected_bytes = data_offset_bytes + metadata.data_len() as u64;
        if found_bytes < expected_bytes {
            return Err(truncated(expected_bytes));
        }
        Ok((Self { path: path.to_owned(), file, data_offset_bytes }, metadata))
    }

    /// Reads a tensor of this file and converts its elements to `f32`.
    fn values(&self, key: &str, info: &TensorInfo) -> Result<Vec<f32>, ExportError> {
        let bytes = self.read(info).map_err(|cause| ExportError::Read { file: self.path.clone(), cause })?;
        to_f32(info.dtype, &bytes).ok_or_else(|| ExportError::TensorDtype {
            file: self.path.clone(),
            key: key.to_owned(),
            found: format!("{:?}", info.dtype),
        })
    }

    fn read(&self, info: &TensorInfo) -> io::Result<Vec<u8>> {
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        // `&File` can read and seek. The position is shared, which is safe because one thread reads the
        // checkpoint.
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_offset_bytes + start as u64))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn name_and_sha256(file: &Path) -> Result<(String, String), ExportError> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sum = sha256_of(file).map_err(|cause| ExportError::Read { file: file.to_owned(), cause })?;
    Ok((name, sum))
}

/// Converts little-endian floats of type `dtype` to `f32` without loss. Returns `None` if `dtype` is not a
/// float of at most 32 bits.
fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let halves = |convert: fn(u16) -> f32| {
        bytes.as_chunks().0.iter().map(|&pair| convert(u16::from_le_bytes(pair))).collect()
    };
    match dtype {
        Dtype::F32 => Some(bytes.as_chunks().0.iter().map(|&quad| f32::from_le_bytes(quad)).collect()),
        Dtype::BF16 => Some(halves(|bits| f32::from_bits(u32::from(bits) << 16))),
        Dtype::F16 => Some(halves(|bits| f16::from_bits(bits).to_f32())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        for (rows, columns) in [(1, 1), (2, 3), (3, 32), (5, 33), (70, 64), (0, 4)] {
            let tensor =
                Tensor { dims: vec![rows, columns], values: (0..rows * columns).map(|i| i as f32).collect() };
            let transposed = tensor.transposed();
            assert_eq!(transposed.dims, [columns, rows]);
            for (i, value) in tensor.values.iter().enumerate() {
                assert_eq!(
                    transposed.values[i % columns * rows + i / columns],
                    *value,
                    "{rows}x{columns}, {i}"
                );
            }
        }
    }

    #[test]
    fn bf16_is_the_upper_half_of_f32() {
        assert_eq!(to_f32(Dtype::BF16, &[0x80, 0x3f, 0x20, 0xc0]), Some(vec![1.0, -2.5]));
        assert_eq!(to_f32(Dtype::I64, &[0; 8]), None);
    }
}
