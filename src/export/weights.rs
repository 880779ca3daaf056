//! Reads a checkpoint: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
//! Knows nothing of architectures; tensors are read one at a time, so a checkpoint may be larger than memory.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Component, Path, PathBuf},
};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use serde::Deserialize;

use super::{ExportError, source::read_json};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A safetensors file begins with the length of its header, little-endian.
const LENGTH_BYTES: u64 = 8;

/// A checkpoint's tensors, by key.
#[derive(Debug)]
pub struct Checkpoint {
    /// The file to name when a tensor is missing.
    listing: PathBuf,
    tensors: HashMap<String, (usize, TensorInfo)>,
    shards: Vec<Shard>,
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
        Ok(Self { listing: single, tensors, shards: vec![shard] })
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
        Ok(Self { listing: index, tensors, shards })
    }
}

impl Shard {
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
        Dtype::F16 => Some(halves(f16_to_f32)),
        _ => None,
    }
}

/// IEEE 754 half to single: sign, 5 bits of exponent with bias 15, 10 bits of fraction.
fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        // Zero and subnormals count in steps of 2⁻²⁴, which single precision holds exactly.
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_convert_exactly() {
        let check =
            |bits: u16, expect: f32| assert_eq!(f16_to_f32(bits).to_bits(), expect.to_bits(), "{bits:#06x}");
        check(0x0000, 0.0);
        check(0x8000, -0.0);
        check(0x0001, 2f32.powi(-24));
        check(0x83ff, -1023.0 * 2f32.powi(-24));
        check(0x0400, 2f32.powi(-14));
        check(0x3c00, 1.0);
        check(0xc100, -2.5);
        check(0x7bff, 65504.0);
        check(0x7c00, f32::INFINITY);
        check(0xfc00, f32::NEG_INFINITY);
        assert!(f16_to_f32(0x7e00).is_nan());
    }

    #[test]
    fn bf16_is_the_upper_half_of_f32() {
        assert_eq!(to_f32(Dtype::BF16, &[0x80, 0x3f, 0x20, 0xc0]), Some(vec![1.0, -2.5]));
        assert_eq!(to_f32(Dtype::I64, &[0; 8]), None);
    }
}
