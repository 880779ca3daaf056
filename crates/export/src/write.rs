//! Writes the output folder so that it is published whole or not at all, and the file of weights.
//! Does not know what the files mean.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use half::f16;
use thresher_core::model::contract::CONTRACT_FILE;
use thresher_core::model::onnx::DataType;

use super::{ExportError, graph::StoredTensor};

/// The alignment of each weight in the file, in bytes: a cache line, for vector loads.
const ALIGN_BYTES: u64 = 64;

/// A temporary folder beside the output folder. Dropping it before [`Staging::publish`] deletes it.
#[derive(Debug)]
pub struct Staging {
    dir: PathBuf,
    target: PathBuf,
    published: bool,
}

impl Staging {
    /// Creates the temporary folder for the output folder `target`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if `target` has entries that no export wrote, or if the folder cannot be
    /// created.
    pub fn begin(target: &Path) -> Result<Self, ExportError> {
        let target = std::path::absolute(target)
            .map_err(|cause| ExportError::Read { file: target.to_owned(), cause })?;
        refuse_foreign_files(&target)?;
        let dir = sibling(&target, "partial");
        let failed = |cause| ExportError::Write { file: dir.clone(), cause };
        // An export that was killed may have left this folder. No other program uses its name.
        remove_dir(&dir).and_then(|()| fs::create_dir_all(&dir)).map_err(failed)?;
        Ok(Self { dir, target, published: false })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file into the temporary folder and syncs it to disk.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let file = self.dir.join(name);
        let write = || -> io::Result<()> {
            let mut out = File::create(&file)?;
            out.write_all(bytes)?;
            out.sync_all()
        };
        write().map_err(|cause| ExportError::Write { file: file.clone(), cause })
    }

    /// Renames the temporary folder to the output folder, replacing an older export.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a folder cannot be renamed. The older export then still exists, in the
    /// output folder or beside it as `.NAME.replaced`.
    pub fn publish(mut self) -> Result<(), ExportError> {
        let replaced = sibling(&self.target, "replaced");
        let swap = || -> io::Result<()> {
            remove_dir(&replaced)?;
            if self.target.exists() {
                fs::rename(&self.target, &replaced)?;
            }
            if let Err(cause) = fs::rename(&self.dir, &self.target) {
                // Best effort: the first failure is reported.
                let _ = fs::rename(&replaced, &self.target);
                return Err(cause);
            }
            remove_dir(&replaced)
        };
        swap().map_err(|cause| ExportError::Write { file: self.target.clone(), cause })?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            let _ = remove_dir(&self.dir);
        }
    }
}

/// The file of weights: tensors one after the other, each at a multiple of [`ALIGN_BYTES`].
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    out: BufWriter<File>,
    written_bytes: u64,
}

fn check_finite(name: &str, values: &[f32]) -> Result<(), ExportError> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(&value) => Err(ExportError::NotFinite { key: name.to_owned(), value }),
        None => Ok(()),
    }
}

impl WeightFile {
    /// Creates the file.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be created.
    pub fn create(path: PathBuf) -> Result<Self, ExportError> {
        match File::create(&path) {
            Ok(file) => Ok(Self { path, out: BufWriter::new(file), written_bytes: 0 }),
            Err(cause) => Err(ExportError::Write { file: path, cause }),
        }
    }

    /// Appends an `f32` tensor of shape `dims`, in row-major order.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a value is not finite, or if the file cannot be written.
    ///
    /// # Panics
    /// Panics if the number of `values` does not match `dims`.
    pub fn push(&mut self, name: &str, dims: &[usize], values: &[f32]) -> Result<StoredTensor, ExportError> {
        check_finite(name, values)?;
        self.push_bytes(name, dims, DataType::Float, values.iter().map(|value| value.to_le_bytes()))
    }

    /// Appends an `i8` tensor; otherwise the same as [`WeightFile::push`].
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be written.
    pub fn push_i8(
        &mut self,
        name: &str,
        dims: &[usize],
        values: &[i8],
    ) -> Result<StoredTensor, ExportError> {
        self.push_bytes(name, dims, DataType::Int8, values.iter().map(|value| value.to_le_bytes()))
    }

    /// Appends a tensor with its values rounded to `f16`; otherwise the same as [`WeightFile::push`].
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a value is not finite or too large for `f16`, or if the file cannot be
    /// written.
    pub fn push_f16(
        &mut self,
        name: &str,
        dims: &[usize],
        values: &[f32],
    ) -> Result<StoredTensor, ExportError> {
        check_finite(name, values)?;
        if let Some(value) = values.iter().find(|value| f16::from_f32(**value).is_infinite()) {
            return Err(ExportError::TooLargeForF16 { key: name.to_owned(), value: *value });
        }
        let halves = values.iter().map(|value| f16::from_f32(*value).to_le_bytes());
        self.push_bytes(name, dims, DataType::Float16, halves)
    }

    fn push_bytes<const WIDTH: usize>(
        &mut self,
        name: &str,
        dims: &[usize],
        data_type: DataType,
        mut elements: impl ExactSizeIterator<Item = [u8; WIDTH]>,
    ) -> Result<StoredTensor, ExportError> {
        assert_eq!(dims.iter().product::<usize>(), elements.len(), "{name} is not of shape {dims:?}");
        let offset_bytes = self.written_bytes.next_multiple_of(ALIGN_BYTES);
        let length_bytes = (elements.len() * WIDTH) as u64;
        let mut write = || -> io::Result<()> {
            let padding = (offset_bytes - self.written_bytes) as usize;
            self.out.write_all(&[0; ALIGN_BYTES as usize][..padding])?;
            elements.try_for_each(|element| self.out.write_all(&element))
        };
        write().map_err(|cause| ExportError::Write { file: self.path.clone(), cause })?;
        self.written_bytes = offset_bytes + length_bytes;
        Ok(StoredTensor { name: name.to_owned(), dims: dims.to_vec(), data_type, offset_bytes, length_bytes })
    }

    /// Flushes the file and syncs it to disk.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be written.
    pub fn finish(self) -> Result<(), ExportError> {
        let path = self.path;
        let sync =
            |out: BufWriter<File>| out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all();
        sync(self.out).map_err(|cause| ExportError::Write { file: path, cause })
    }
}

/// Fails if the output folder has a file that no export wrote. Only an empty folder or an earlier export may
/// be replaced, so that `--out ~` does not delete a home folder.
fn refuse_foreign_files(target: &Path) -> Result<(), ExportError> {
    let read = || -> io::Result<Vec<String>> {
        fs::read_dir(target)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    let entries = match read() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => {
            return Err(ExportError::Read { file: target.to_owned(), cause });
        }
        Ok(entries) => entries,
    };
    let exported = exported_files(target);
    match entries.into_iter().find(|entry| !exported.contains(entry)) {
        Some(entry) => Err(ExportError::OutOccupied { dir: target.to_owned(), entry }),
        None => Ok(()),
    }
}

/// The files that the contract in `dir` lists, whatever its schema; none if there is no contract.
fn exported_files(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join(CONTRACT_FILE)).unwrap_or_default();
    let contract: toml::Table = text.parse().unwrap_or_default();
    match (contract.get("schema"), contract.get("files")) {
        (Some(toml::Value::Integer(_)), Some(toml::Value::Table(files))) => {
            files.keys().cloned().chain([CONTRACT_FILE.to_owned()]).collect()
        }
        _ => Vec::new(),
    }
}

/// `/a/b` → `/a/.b.SUFFIX`. It is on the same file system, so that a rename copies no bytes.
fn sibling(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{suffix}"))
}

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use super::*;

    /// A daemon maps the weights of its model into memory, and would crash if the mapped file became shorter.
    #[test]
    fn an_export_over_a_model_in_use_does_not_change_open_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("model");
        let publish = |values: &[f32]| {
            let staging = Staging::begin(&target).expect("a folder beside it");
            let mut weights = WeightFile::create(staging.dir().join("weights.bin")).expect("a file");
            weights.push("w", &[values.len()], values).expect("written");
            weights.finish().expect("on disk");
            staging.write(CONTRACT_FILE, b"schema = 2\n[files]\n\"weights.bin\" = \"\"\n").expect("written");
            staging.publish().expect("published");
        };
        publish(&[1.0; 5_000]);
        let mut open = File::open(target.join("weights.bin")).expect("the weights");
        publish(&[2.0; 10]);
        assert_eq!(open.metadata().expect("an open file").len(), 20_000, "the file in use is whole");
        let mut bytes = Vec::new();
        open.rewind().and_then(|()| open.read_to_end(&mut bytes)).expect("it reads");
        assert!(bytes == [1.0_f32.to_le_bytes(); 5_000].concat());
        assert_eq!(fs::metadata(target.join("weights.bin")).expect("the new one").len(), 40);
        let left: Vec<_> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|e| e.expect("an entry").file_name())
            .collect();
        assert_eq!(left, ["model"], "nothing is left beside it");
    }
}
