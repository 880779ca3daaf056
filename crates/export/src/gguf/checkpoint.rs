//! The tensors of a GGUF file under the names and in the form of a Hugging Face checkpoint.

use std::path::Path;

use super::architecture::{Architecture, ROPE_FACTORS};
use super::container::GgufFile;
use crate::ExportError;
use crate::weights::TensorFile;

#[derive(Debug)]
pub struct GgufCheckpoint {
    file: GgufFile,
    architecture: &'static Architecture,
    /// The number of query heads of a layer.
    heads: usize,
    kv_heads: usize,
}

impl GgufCheckpoint {
    /// Wraps a file of this architecture, whose layers have `heads` query heads and `kv_heads` key heads.
    pub fn new(file: GgufFile, architecture: &'static Architecture, heads: usize, kv_heads: usize) -> Self {
        Self { file, architecture, heads, kv_heads }
    }
}

impl TensorFile for GgufCheckpoint {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn name(&self, key: &str) -> String {
        self.architecture.tensor_name(key).unwrap_or_else(|| key.to_owned())
    }

    fn dims(&self, name: &str) -> Option<&[usize]> {
        self.file.dims(name)
    }

    /// The factors of rotary frequencies are part of a checkpoint's configuration, and no tensor.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.file.tensor_names().filter(|name| *name != ROPE_FACTORS))
    }

    /// Undoes the changes that were made when the file was written.
    fn read(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let mut values = self.file.read(name)?;
        let part = name.strip_prefix("blk.").and_then(|rest| rest.split('.').nth(1));
        if self.architecture.neighbours_rotate {
            match part {
                Some("attn_q") => values = halves_from_neighbours(&values, self.dims(name), self.heads),
                Some("attn_k") => values = halves_from_neighbours(&values, self.dims(name), self.kv_heads),
                _ => {}
            }
        }
        if self.architecture.norms_have_one_added && name.ends_with("_norm.weight") {
            values.iter_mut().for_each(|scale| *scale -= 1.0);
        }
        Ok(values)
    }
}

/// Reorders the rows of each head: rows 0, 2, 4, … become the first half, rows 1, 3, 5, … the second half. A
/// tensor whose rows are not whole heads of an even size is returned as it is; its shape is wrong and will be
/// refused.
fn halves_from_neighbours(values: &[f32], dims: Option<&[usize]>, heads: usize) -> Vec<f32> {
    let rows = dims.and_then(|dims| dims.first()).copied().unwrap_or_default();
    if rows == 0 || heads == 0 || !rows.is_multiple_of(2 * heads) {
        return values.to_vec();
    }
    let row_size = values.len() / rows;
    let head_rows = rows / heads;
    let mut reordered = Vec::with_capacity(values.len());
    for head in 0..heads {
        for parity in 0..2 {
            for row in (parity..head_rows).step_by(2) {
                reordered.extend_from_slice(&values[(head * head_rows + row) * row_size..][..row_size]);
            }
        }
    }
    reordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_each_head_are_reordered() {
        let rows =
            |values: &[f32], heads| halves_from_neighbours(values, Some(&[values.len() / 2, 2]), heads);
        let all: Vec<f32> = (0..16).map(|value| value as f32).collect();
        let two_heads = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15].map(|value| value as f32);
        assert_eq!(rows(&all, 2), two_heads);
        assert_eq!(rows(&all, 3), all, "rows that are not whole heads");
        assert_eq!(rows(&[], 1), [0.0; 0]);
    }
}
