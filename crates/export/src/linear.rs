//! A linear layer, `x [.., in] · weight [in, out] + bias [out]`: how its weights are stored, and its
//! operations in the graph. Does not know about architectures.
//!
//! With f16 weights, `x` is rounded to f16 for the product, and the product is converted back to `f32`. GPUs
//! multiply f16 many times faster, and the sums over the layers keep `f32` precision. Where a layer's result is only
//! the input of other products, it stays f16 ([`Linear::apply_f16`]), which moves half the bytes.
//!
//! With int8 weights, a weight is a signed byte times the scale of its column. Each row of `x`, a token, is
//! quantised to unsigned bytes, scaled by its component of the largest magnitude. After an activation whose
//! lowest value is known, such as GELU, the bytes span the range from that value to the largest component:
//! all of them are used, and not only those above zero. The product of integers is exact, so the result
//! depends neither on the other rows of the batch nor on threads. On x86 without VNNI, ONNX Runtime's fast
//! kernels saturate; a runtime has to select the precise kernels there (`session.x64quantprecision`), with
//! which int8 is hardly faster than `f32`.

use thresher_core::model::contract::Weights;
use thresher_core::model::onnx::DataType;

use super::{
    ExportError,
    graph::{GraphBuilder, StoredTensor, Value},
    weights::{ByteColumns, Tensor},
    write::WeightFile,
};

/// The largest magnitude of a quantised weight or component.
const QUANTISED_MAX: f32 = 127.0;

/// The byte that represents zero in a quantised row whose lowest value is not known.
const ZERO_POINT: u8 = 128;

/// The largest byte, which represents the largest component of a row whose lowest value is known.
const BYTE_MAX: f32 = 255.0;

/// The smallest value by which a row is divided. A row whose largest component is not above it counts as
/// zero.
const ROW_MIN: f32 = 1e-12;

#[derive(Debug)]
pub struct Linear {
    /// `[in, out]`, as `f32`, `f16` or `i8`.
    weight: StoredTensor,
    /// `[out]`: the scale of each column of an `i8` weight.
    scale: Option<StoredTensor>,
    /// `[out]`; none if the layer has no bias.
    bias: Option<StoredTensor>,
    /// The lowest value of `x`, if the rows of `x` are quantised from it on.
    input_min: Option<f32>,
}

impl Linear {
    /// Writes the layer `name` to `out`: `weight [in, out]` and, if it has one, `bias [out]`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be written, or if a weight is too large for f16.
    pub fn store(
        out: &mut WeightFile,
        name: &str,
        tensors: (&Tensor, Option<&Tensor>),
        weights: Weights,
    ) -> Result<Self, ExportError> {
        Self::store_bounded(out, name, tensors.0, tensors.1, weights, None)
    }

    /// Does the same for a layer whose input has no component below `input_min`.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub fn store_bounded(
        out: &mut WeightFile,
        name: &str,
        weight: &Tensor,
        bias: Option<&Tensor>,
        weights: Weights,
        input_min: Option<f32>,
    ) -> Result<Self, ExportError> {
        let weight_name = format!("{name}.weight");
        let stored = match weights {
            Weights::F32 => out.push(&weight_name, &weight.dims, &weight.values)?,
            Weights::F16 => out.push_f16(&weight_name, &weight.dims, &weight.values)?,
            Weights::Int8 => return Self::store_bytes(out, name, &quantise(weight), bias, input_min),
        };
        let bias = bias.map(|bias| store_bias(out, name, bias)).transpose()?;
        Ok(Self { weight: stored, scale: None, bias, input_min: None })
    }

    /// Does the same as [`Self::store_bounded`] with int8 weights, for a layer whose weights are bytes already.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub fn store_bytes(
        out: &mut WeightFile,
        name: &str,
        columns: &ByteColumns,
        bias: Option<&Tensor>,
        input_min: Option<f32>,
    ) -> Result<Self, ExportError> {
        let ByteColumns { values, scales } = columns;
        let outputs = scales.len();
        let weight = out.push_i8(&format!("{name}.weight"), &[values.len() / outputs, outputs], values)?;
        let scale = Some(out.push(&format!("{name}.step"), &[outputs], scales)?);
        // The graph multiplies `x - input_min`; what is missing from the product is the same for every row.
        let shifted = input_min.map(|min| shifted_bias(bias, values, scales, min));
        let bias = shifted.as_ref().or(bias).map(|bias| store_bias(out, name, bias)).transpose()?;
        Ok(Self { weight, scale, bias, input_min })
    }

    pub fn is_f16(&self) -> bool {
        self.weight.data_type == DataType::Float16
    }

    /// Adds the layer with f16 weights to the graph, without conversions: `x [.., in]` → `[.., out]`, both f16.
    pub fn apply_f16(&self, g: &mut GraphBuilder, x: &Value) -> Value {
        let weight = g.weight(&self.weight);
        let product = g.matmul(x, &weight);
        match &self.bias {
            None => product,
            Some(bias) => {
                let bias = g.weight(bias);
                let bias = g.cast_f16(&bias);
                g.add(&product, &bias)
            }
        }
    }

    /// Adds the layer to the graph: `x [.., in]` → `[.., out]`.
    pub fn apply(&self, g: &mut GraphBuilder, x: &Value) -> Value {
        let weight = g.weight(&self.weight);
        let product = match &self.scale {
            None if self.is_f16() => {
                let halves = g.cast_f16(x);
                let product = g.matmul(&halves, &weight);
                g.cast_f32(&product)
            }
            None => g.matmul(x, &weight),
            Some(scale) => {
                let scale = g.weight(scale);
                quantised_product(g, x, self.input_min, &weight, &scale)
            }
        };
        match &self.bias {
            None => product,
            Some(bias) => {
                let bias = g.weight(bias);
                g.add(&product, &bias)
            }
        }
    }
}

fn store_bias(out: &mut WeightFile, name: &str, bias: &Tensor) -> Result<StoredTensor, ExportError> {
    out.push(&format!("{name}.bias"), &bias.dims, &bias.values)
}

fn quantised_product(
    g: &mut GraphBuilder,
    x: &Value,
    input_min: Option<f32>,
    weight: &Value,
    scale: &Value,
) -> Value {
    let (from, largest, steps, zero) = match input_min {
        None => {
            let magnitude = g.abs(x);
            (x.clone(), g.max_of_row(&magnitude), QUANTISED_MAX, ZERO_POINT)
        }
        Some(min) => {
            let min = g.const_f32(min);
            let from = g.sub(x, &min);
            let largest = g.max_of_row(&from);
            (from, largest, BYTE_MAX, 0)
        }
    };
    let least = g.const_f32(ROW_MIN);
    let largest = g.max(&largest, &least);
    let reciprocal = g.const_f32(1.0 / steps);
    let row_scale = g.mul(&largest, &reciprocal);
    let scaled = g.div(&from, &row_scale);
    let bytes = g.round_to_u8(&scaled, zero);
    let integers = g.matmul_integer(&bytes, weight, zero);
    let product = g.cast_f32(&integers);
    let product = g.mul(&product, &row_scale);
    g.mul(&product, scale)
}

/// Returns `bias [out]`, or zeros, plus the product of a row in which every component is `min`, with the quantised
/// weights `values [in, out]` and their scales `[out]`.
fn shifted_bias(bias: Option<&Tensor>, values: &[i8], scales: &[f32], min: f32) -> Tensor {
    let columns = scales.len();
    let mut sums = vec![0_i64; columns];
    for row in values.chunks(columns) {
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += i64::from(value));
    }
    let bias = bias.map_or_else(|| vec![0.0; columns], |bias| bias.values.clone());
    let shift = sums.iter().zip(scales).map(|(&sum, scale)| sum as f32 * scale * min);
    Tensor { dims: vec![columns], values: bias.iter().zip(shift).map(|(bias, shift)| bias + shift).collect() }
}

/// Quantises `weight [in, out]` to signed bytes.
fn quantise(weight: &Tensor) -> ByteColumns {
    let columns = weight.dims[1];
    let mut scales = vec![0f32; columns];
    for row in weight.values.chunks(columns) {
        scales.iter_mut().zip(row).for_each(|(scale, value)| *scale = scale.max(value.abs() / QUANTISED_MAX));
    }
    // A column of zeros is divided by this smallest scale instead of 0.
    scales.iter_mut().for_each(|scale| *scale = scale.max(f32::MIN_POSITIVE));
    let by_column = weight.values.iter().zip(scales.iter().cycle());
    let quantised =
        |(value, scale): (&f32, &f32)| (value / scale).round().clamp(-QUANTISED_MAX, QUANTISED_MAX) as i8;
    ByteColumns { values: by_column.map(quantised).collect(), scales }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_has_what_the_shift_of_the_input_takes_from_the_product() {
        let values: [i8; 6] = [127, -127, 0, -63, 64, 1];
        let scales = [1.0, 0.5, 2.0];
        let expect = [-0.25 * 64.0, -0.25 * -31.5, -0.25 * 2.0];
        assert_eq!(shifted_bias(None, &values, &scales, -0.25).values, expect);
        let bias = Tensor { dims: vec![3], values: vec![1.0; 3] };
        assert_eq!(
            shifted_bias(Some(&bias), &values, &scales, -0.25).values,
            expect.map(|shift| shift + 1.0)
        );
    }

    #[test]
    fn each_column_uses_the_full_range() {
        let weight = Tensor { dims: vec![2, 3], values: vec![127.0, -0.5, 0.0, -63.4, 0.25, 0.0] };
        let ByteColumns { values, scales } = quantise(&weight);
        assert_eq!(values, [127, -127, 0, -63, 64, 0]);
        assert_eq!(scales, [1.0, 0.5 / 127.0, f32::MIN_POSITIVE]);
    }
}
