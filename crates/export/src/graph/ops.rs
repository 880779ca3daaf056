//! The operations of the standard opset that the graphs use, one function for each. "Broadcast" means by
//! ONNX's rules. Does not know about files or weights.

use thresher_core::model::onnx::DataType;

use super::{Activation, GraphBuilder, RUNTIME_DOMAIN, Value, float, int, ints, string};

impl GraphBuilder {
    /// Selects rows of `table [n, d]` by `ids [..]` → `[.., d]`.
    pub fn gather(&mut self, table: &Value, ids: &Value) -> Value {
        self.node("Gather", &[table, ids], vec![])
    }

    /// Selects entries of `x` along `axis` by `indices`.
    pub fn gather_along(&mut self, x: &Value, indices: &Value, axis: i64) -> Value {
        self.node("Gather", &[x, indices], vec![int("axis", axis)])
    }

    pub fn tanh(&mut self, x: &Value) -> Value {
        self.node("Tanh", &[x], vec![])
    }

    /// The size of axis `axis` of `x`, as an `i64` vector of one element.
    pub fn size_of_axis(&mut self, x: &Value, axis: i64) -> Value {
        self.node("Shape", &[x], vec![int("start", axis), int("end", axis + 1)])
    }

    /// The first `count` rows of `x [n, ..]`.
    pub fn first_rows(&mut self, x: &Value, count: &Value) -> Value {
        let zero = self.const_i64(&[0]);
        self.node("Slice", &[x, &zero, count, &zero], vec![])
    }

    /// The matrix product over the last two axes; the other axes are broadcast.
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        self.node("MatMul", &[a, b], vec![])
    }

    /// The matrix product of unsigned bytes `a`, where the byte `zero` represents 0, and signed bytes `b` →
    /// `i32`.
    pub fn matmul_integer(&mut self, a: &Value, b: &Value, zero: u8) -> Value {
        let zero = self.const_u8(zero);
        self.node("MatMulInteger", &[a, b, &zero], vec![])
    }

    /// Rounds each element to the nearest integer and adds `zero`, as a byte. Results outside the range of a
    /// byte saturate.
    pub fn round_to_u8(&mut self, x: &Value, zero: u8) -> Value {
        let (one, zero) = (self.const_f32(1.0), self.const_u8(zero));
        self.node("QuantizeLinear", &[x, &one, &zero], vec![])
    }

    /// The sum, with shapes that are broadcast.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Add", &[a, b], vec![])
    }

    /// The difference, broadcast.
    pub fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Sub", &[a, b], vec![])
    }

    /// The element-wise product, broadcast.
    pub fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Mul", &[a, b], vec![])
    }

    /// The quotient, broadcast.
    pub fn div(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Div", &[a, b], vec![])
    }

    pub fn cast_f32(&mut self, x: &Value) -> Value {
        self.node("Cast", &[x], vec![int("to", DataType::Float as i64)])
    }

    /// `x` as `i64`; fractions are cut off.
    pub fn cast_i64(&mut self, x: &Value) -> Value {
        self.node("Cast", &[x], vec![int("to", DataType::Int64 as i64)])
    }

    pub fn cast_f16(&mut self, x: &Value) -> Value {
        self.node("Cast", &[x], vec![int("to", DataType::Float16 as i64)])
    }

    /// Layer normalisation over the last axis.
    pub fn layer_norm(&mut self, x: &Value, scale: &Value, bias: &Value, epsilon: f32) -> Value {
        self.node("LayerNormalization", &[x, scale, bias], vec![int("axis", -1), float("epsilon", epsilon)])
    }

    pub fn activate(&mut self, x: &Value, activation: Activation) -> Value {
        match activation {
            Activation::Gelu => self.node("Gelu", &[x], vec![]),
            Activation::GeluTanh => self.node("Gelu", &[x], vec![string("approximate", "tanh")]),
            Activation::Relu => self.node("Relu", &[x], vec![]),
            Activation::Silu => {
                let gate = self.node("Sigmoid", &[x], vec![]);
                self.mul(x, &gate)
            }
        }
    }

    /// RMS normalisation: x divided by its root mean square over the last axis, times `scale`.
    pub fn rms_norm(&mut self, x: &Value, scale: &Value, epsilon: f32) -> Value {
        let (two, last, epsilon) = (self.const_f32(2.0), self.const_i64(&[-1]), self.const_f32(epsilon));
        // ONNX Runtime fuses this form into one operation.
        let squares = self.node("Pow", &[x, &two], vec![]);
        let mean = self.node("ReduceMean", &[&squares, &last], vec![int("keepdims", 1)]);
        let sum = self.add(&mean, &epsilon);
        let root = self.node("Sqrt", &[&sum], vec![]);
        let unit = self.div(x, &root);
        self.mul(&unit, scale)
    }

    /// Softmax over the last axis.
    pub fn softmax(&mut self, x: &Value) -> Value {
        self.node("Softmax", &[x], vec![int("axis", -1)])
    }

    /// Attention in `heads` heads, as one operator of ONNX Runtime: `query`, `key` and `value [b, t, d]`, and the `bias`
    /// that is added to the logits, `[b or 1, heads or 1, t, t]` → `[b, t, d]`. The logits are not scaled.
    pub fn fused_attention(
        &mut self,
        [query, key, value]: [&Value; 3],
        bias: Option<&Value>,
        heads: usize,
    ) -> Value {
        let absent = Value(String::new());
        let with_bias = bias.map(|bias| [&absent, &absent, bias]);
        let inputs: Vec<&Value> =
            [query, key, value].into_iter().chain(with_bias.into_iter().flatten()).collect();
        let attributes = vec![int("num_heads", heads as i64), float("scale", 1.0)];
        self.node_of(RUNTIME_DOMAIN, "MultiHeadAttention", &inputs, attributes)
    }

    /// Repeats `x` along its axes of size 1, up to a shape that is computed when the graph runs.
    pub fn expand(&mut self, x: &Value, shape: &Value) -> Value {
        self.node("Expand", &[x, shape], vec![])
    }

    /// The Euclidean norm over the last axis, which is kept with size 1.
    pub fn norm(&mut self, x: &Value) -> Value {
        let last = self.const_i64(&[-1]);
        self.node("ReduceL2", &[x, &last], vec![int("keepdims", 1)])
    }

    pub fn abs(&mut self, x: &Value) -> Value {
        self.node("Abs", &[x], vec![])
    }

    /// The largest element over the last axis, which is kept with size 1.
    pub fn max_of_row(&mut self, x: &Value) -> Value {
        let last = self.const_i64(&[-1]);
        self.node("ReduceMax", &[x, &last], vec![int("keepdims", 1)])
    }

    /// The larger of each pair of elements.
    pub fn max(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Max", &[a, b], vec![])
    }

    /// Splits the last axis into equal parts.
    pub fn split<const PARTS: usize>(&mut self, x: &Value) -> [Value; PARTS] {
        let outputs = std::array::from_fn(|_| self.next_value("Split"));
        let names = outputs.iter().map(|value: &Value| value.0.clone()).collect();
        self.push("Split", &[x], vec![int("axis", -1), int("num_outputs", PARTS as i64)], names);
        outputs
    }

    /// Splits the last axis into parts of the given sizes.
    pub fn split_sizes<const PARTS: usize>(&mut self, x: &Value, sizes: [usize; PARTS]) -> [Value; PARTS] {
        let sizes = self.const_i64(&sizes.map(|size| size as i64));
        let outputs = std::array::from_fn(|_| self.next_value("Split"));
        let names = outputs.iter().map(|value: &Value| value.0.clone()).collect();
        self.push("Split", &[x, &sizes], vec![int("axis", -1)], names);
        outputs
    }

    pub fn concat(&mut self, parts: &[&Value], axis: i64) -> Value {
        self.node("Concat", parts, vec![int("axis", axis)])
    }

    pub fn cos(&mut self, x: &Value) -> Value {
        self.node("Cos", &[x], vec![])
    }

    pub fn sin(&mut self, x: &Value) -> Value {
        self.node("Sin", &[x], vec![])
    }

    /// Whether `a` and `b` are equal, broadcast.
    pub fn equal(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Equal", &[a, b], vec![])
    }

    /// Whether `a` is at most `b`, broadcast.
    pub fn less_or_equal(&mut self, a: &Value, b: &Value) -> Value {
        self.node("LessOrEqual", &[a, b], vec![])
    }

    /// Whether `a` is less than `b`, broadcast.
    pub fn less(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Less", &[a, b], vec![])
    }

    /// Whether `a` and `b` are both true, broadcast.
    pub fn and(&mut self, a: &Value, b: &Value) -> Value {
        self.node("And", &[a, b], vec![])
    }

    /// `if_true` where `condition` holds and `if_false` elsewhere, broadcast.
    pub fn select(&mut self, condition: &Value, if_true: &Value, if_false: &Value) -> Value {
        self.node("Where", &[condition, if_true, if_false], vec![])
    }

    /// The product of `x [n, in]` with the transpose of `weight [out, in]` → `[n, out]`.
    pub fn matmul_transposed(&mut self, x: &Value, weight: &Value) -> Value {
        self.node("Gemm", &[x, weight], vec![int("transB", 1)])
    }

    pub fn shape(&mut self, x: &Value) -> Value {
        self.node("Shape", &[x], vec![])
    }

    /// The same elements in a shape that is computed when the graph runs.
    pub fn reshape_to(&mut self, x: &Value, shape: &Value) -> Value {
        self.node("Reshape", &[x, shape], vec![])
    }

    /// Reorders the axes: axis `i` of the result is axis `order[i]` of `x`.
    pub fn transpose(&mut self, x: &Value, order: &[i64]) -> Value {
        self.node("Transpose", &[x], vec![ints("perm", order)])
    }

    /// The same elements in another shape. A size of 0 keeps the size of the axis, and -1 is computed from
    /// the other sizes.
    pub fn reshape(&mut self, x: &Value, shape: &[i64]) -> Value {
        let shape = self.const_i64(shape);
        self.node("Reshape", &[x, &shape], vec![])
    }

    /// Inserts axes of size 1, so that they have the given indexes in the result.
    pub fn unsqueeze(&mut self, x: &Value, axes: &[i64]) -> Value {
        let axes = self.const_i64(axes);
        self.node("Unsqueeze", &[x, &axes], vec![])
    }
}
