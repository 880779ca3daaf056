//! Special tokens around windows.

use ndarray::Array2;

use crate::model::contract::Contract;

/// Special tokens around a window.
#[derive(Debug, Clone)]
pub struct Frame {
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
}

impl Frame {
    pub fn of(contract: &Contract) -> Self {
        Self { prefix: contract.tokenizer.prefix.clone(), suffix: contract.tokenizer.suffix.clone() }
    }

    /// Ids of windows of one length with the special tokens around each, `[window, t]`.
    pub fn around(&self, windows: &[&[u32]]) -> Array2<i64> {
        let framed = windows.iter().flat_map(|ids| self.prefix.iter().chain(*ids).chain(&self.suffix));
        let tokens = self.prefix.len() + windows[0].len() + self.suffix.len();
        Array2::from_shape_vec((windows.len(), tokens), framed.map(|&id| i64::from(id)).collect())
            .expect("a run's windows have one length")
    }
}
