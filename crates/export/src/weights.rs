//! Reads a checkpoint: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
//! Knows nothing of architectures; tensors are read one at a time, so a checkpoint may be larger than memory.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
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
use thresher_core::model::contract::{hex, sha256_of};

use super::{ExportError, source::read_json};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A safetensors file begins with the length of its header, little-endian.
const LENGTH_BYTES: u64 = 8;

/// Columns that are turned into rows together.
const TRANSPOSED_AT_ONCE: usize = 32;

/// A checkpoint's tensors, by key.
#[derive(Debug)]
pub struct Checkpoint {
    /// The file to name when a tensor is missing.
    listing: PathBuf,
    tensors: HashMap<String, (usize, TensorInfo)>,
    shards: Vec<Shard>,
    /// Keys that were asked for.
    read: RefCell<HashSet<String>>,
}

/// A tensor's shape and elements, rows first.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Shape.
    pub dims: Vec<usize>,
    /// Elements as `f32`, whatever they are stored as.
    pub values: Vec<f32>,
}

/// One safetensors file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    data_offset_bytes: u64,
}

impl Checkpoint {
    /// Reads the headers of all files in `dir`.
    ///
    /// # Errors
    /// No checkpoint, a listed shard that is missing, a file that is cut short or no safetensors.
    pub fn open(dir: &Path) -> Result<Self, ExportError> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        if !single.is_file() && index.is_file() {
            return Self::open_sharded(dir, index);
        }
        let (shard, metadata) = Shard::open(&single)?;
        let tensors = metadata.tensors().into_iter().map(|(key, info)| (key, (0, info.clone()))).collect();
        Ok(Self { listing: single, tensors, shards: vec![shard], read: RefCell::default() })
    }

    /// Whether there is a tensor of this key.
    pub fn contains(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }

    /// Reads a tensor that must be of shape `dims`.
    ///
    /// # Errors
    /// It is missing, of another shape, of a type that is no float, or cannot be read.
    pub fn read(&self, key: &str, dims: &[usize]) -> Result<Tensor, ExportError> {
        let (shard, info) = self.info(key)?;
        self.read.borrow_mut().insert(key.to_owned());
        let shard = &self.shards[*shard];
        if info.shape != dims {
            return Err(ExportError::TensorShape {
                file: shard.path.clone(),
                key: key.to_owned(),
                expected: dims.to_vec(),
                found: info.shape.clone(),
            });
        }
        let bytes =
            shard.read(info).map_err(|cause| ExportError::Read { file: shard.path.clone(), cause })?;
        let values = to_f32(info.dtype, &bytes).ok_or_else(|| ExportError::TensorDtype {
            file: shard.path.clone(),
            key: key.to_owned(),
            found: format!("{:?}", info.dtype),
        })?;
        Ok(Tensor { dims: info.shape.clone(), values })
    }

    /// SHA-256 of what `sha256sum` prints of the files, by name.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> Result<String, ExportError> {
        let mut lines = self.shards.iter().map(Shard::sum).collect::<Result<Vec<_>, _>>()?;
        lines.sort_by(|(a, _), (b, _)| a.cmp(b));
        let lines: String = lines.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        Ok(hex(&Sha256::digest(lines)))
    }

    /// The file that lists all tensors.
    pub fn listing(&self) -> &Path {
        &self.listing
    }

    /// The first key, by name, that nobody has read and `ignored` does not know.
    pub fn unread(&self, ignored: impl Fn(&str) -> bool) -> Option<&str> {
        let read = self.read.borrow();
        self.tensors.keys().filter(|key| !read.contains(*key) && !ignored(key)).min().map(String::as_str)
    }

    fn info(&self, key: &str) -> Result<&(usize, TensorInfo), ExportError> {
        let missing = || ExportError::TensorMissing { file: self.listing.clone(), key: key.to_owned() };
        self.tensors.get(key).ok_or_else(missing)
    }

    fn open_sharded(dir: &Path, index: PathBuf) -> Result<Self, ExportError> {
        #[derive(Deserialize)]
        struct Index {
            // Sorted, so that the first error is always the same one.
            weight_map: BTreeMap<String, String>,
        }
        let Index { weight_map } = read_json(&index)?;
        let mut opened: BTreeMap<&str, (usize, Metadata)> = BTreeMap::new();
        let mut shards = Vec::new();
        let mut tensors = HashMap::new();
        for (key, name) in &weight_map {
            if !opened.contains_key(name.as_str()) {
                let path = dir.join(name);
                // A shard is a file of the folder: an index from elsewhere must not point outside it.
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
        Ok(Self { listing: index, tensors, shards, read: RefCell::default() })
    }
}

impl Tensor {
    /// A matrix with its axes exchanged: a checkpoint stores `[out, in]`, a graph multiplies with `[in, out]`.
    ///
    /// # Panics
    /// When it is no matrix.
    pub fn transposed(&self) -> Self {
        let [rows, columns] = self.dims[..] else { panic!("a matrix has two axes, not {:?}", self.dims) };
        let mut values = vec![0.0; rows * columns];
        // Some columns at a time: what is read of a row stays in the cache until its neighbours are written.
        for (strip, out) in values.chunks_mut((TRANSPOSED_AT_ONCE * rows).max(1)).enumerate() {
            let first = strip * TRANSPOSED_AT_ONCE;
            for row in 0..rows {
                let read = &self.values[row * columns + first..][..out.len() / rows];
                read.iter().enumerate().for_each(|(column, value)| out[column * rows + row] = *value);
            }
        }
        Self { dims: vec![columns, rows], values }
    }
}

impl Shard {
    /// Its name and its SHA-256.
    fn sum(&self) -> Result<(String, String), ExportError> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let sum =
            sha256_of(&self.path).map_err(|cause| ExportError::Read { file: self.path.clone(), cause })?;
        Ok((name, sum))
    }

    fn open(path: &Path) -> Result<(Self, Metadata), ExportError> {
        let file_error = |cause| ExportError::Read { file: path.to_owned(), cause };
        let malformed = |reason: String| ExportError::SafetensorsMalformed { file: path.to_owned(), reason };
        let mut file = File::open(path).map_err(file_error)?;
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
        // A file that is no safetensors at all begins with some text, a huge length.
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

    fn read(&self, info: &TensorInfo) -> io::Result<Vec<u8>> {
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        // `&File` reads and seeks: the checkpoint is read by one thread.
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_offset_bytes + start as u64))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Little-endian floats of `dtype` as `f32`, exact; `None` when `dtype` is no float of at most 32 bits.
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
    fn rows_become_columns() {
        for (rows, columns) in [(1, 1), (2, 3), (3, 32), (5, 33), (70, 64), (0, 4)] {
            let tensor =
                Tensor { dims: vec![rows, columns], values: (0..rows * columns).map(|i| i as f32).collect() };
            let turned = tensor.transposed();
            assert_eq!(turned.dims, [columns, rows]);
            for (i, value) in tensor.values.iter().enumerate() {
                assert_eq!(turned.values[i % columns * rows + i / columns], *value, "{rows}x{columns}, {i}");
            }
        }
    }

    #[test]
    fn bf16_is_the_upper_half_of_f32() {
        assert_eq!(to_f32(Dtype::BF16, &[0x80, 0x3f, 0x20, 0xc0]), Some(vec![1.0, -2.5]));
        assert_eq!(to_f32(Dtype::I64, &[0; 8]), None);
    }
}
