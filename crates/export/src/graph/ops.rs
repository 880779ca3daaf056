//! Operations of the standard opset, one function each.
//! Knows nothing of files or weights.

use thresher_core::model::onnx::DataType;

use super::{Activation, GraphBuilder, Value, float, int, ints, string};

impl GraphBuilder {
    /// Rows of `table [n, d]` by `ids [..]` → `[.., d]`.
    pub fn gather(&mut self, table: &Value, ids: &Value) -> Value {
        self.node("Gather", &[table, ids], vec![])
    }

    /// The size of axis `axis` of `x`, as an `i64` vector of one.
    pub fn size_of_axis(&mut self, x: &Value, axis: i64) -> Value {
        self.node("Shape", &[x], vec![int("start", axis), int("end", axis + 1)])
    }

    /// The first `count` rows of `x [n, ..]`.
    pub fn first_rows(&mut self, x: &Value, count: &Value) -> Value {
        let zero = self.const_i64(&[0]);
        self.node("Slice", &[x, &zero, count, &zero], vec![])
    }

    /// Matrix product over the last two axes, the others broadcast.
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        self.node("MatMul", &[a, b], vec![])
    }

    /// Matrix product of bytes, of which `zero` stands for 0 on the left, with signed bytes → `i32`.
    pub fn matmul_integer(&mut self, a: &Value, b: &Value, zero: u8) -> Value {
        let zero = self.const_u8(zero);
        self.node("MatMulInteger", &[a, b, &zero], vec![])
    }

    /// To the nearest integer, plus `zero`, as a byte; what lies outside saturates.
    pub fn round_to_u8(&mut self, x: &Value, zero: u8) -> Value {
        let (one, zero) = (self.const_f32(1.0), self.const_u8(zero));
        self.node("QuantizeLinear", &[x, &one, &zero], vec![])
    }

    /// Sum, broadcast.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Add", &[a, b], vec![])
    }

    /// Difference, broadcast.
    pub fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Sub", &[a, b], vec![])
    }

    /// Product, broadcast.
    pub fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Mul", &[a, b], vec![])
    }

    /// Quotient, broadcast.
    pub fn div(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Div", &[a, b], vec![])
    }

    /// `x` as `f32`.
    pub fn cast_f32(&mut self, x: &Value) -> Value {
        self.node("Cast", &[x], vec![int("to", DataType::Float as i64)])
    }

    /// `x` as a 16-bit float.
    pub fn cast_f16(&mut self, x: &Value) -> Value {
        self.node("Cast", &[x], vec![int("to", DataType::Float16 as i64)])
    }

    /// Layer normalisation over the last axis.
    pub fn layer_norm(&mut self, x: &Value, scale: &Value, bias: &Value, epsilon: f32) -> Value {
        self.node("LayerNormalization", &[x, scale, bias], vec![int("axis", -1), float("epsilon", epsilon)])
    }

    /// The activation, element by element.
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

    /// x divided by its root mean square over the last axis, times `scale`.
    pub fn rms_norm(&mut self, x: &Value, scale: &Value, epsilon: f32) -> Value {
        let (two, last, epsilon) = (self.const_f32(2.0), self.const_i64(&[-1]), self.const_f32(epsilon));
        // In the form that ONNX Runtime knows as one operation.
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

    /// Euclidean norm over the last axis, which stays with size 1.
    pub fn norm(&mut self, x: &Value) -> Value {
        let last = self.const_i64(&[-1]);
        self.node("ReduceL2", &[x, &last], vec![int("keepdims", 1)])
    }

    /// Magnitude, element by element.
    pub fn abs(&mut self, x: &Value) -> Value {
        self.node("Abs", &[x], vec![])
    }

    /// The largest element over the last axis, which stays with size 1.
    pub fn max_of_row(&mut self, x: &Value) -> Value {
        let last = self.const_i64(&[-1]);
        self.node("ReduceMax", &[x, &last], vec![int("keepdims", 1)])
    }

    /// The larger of the two, element by element.
    pub fn max(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Max", &[a, b], vec![])
    }

    /// The last axis in equal parts.
    pub fn split<const PARTS: usize>(&mut self, x: &Value) -> [Value; PARTS] {
        let outputs = std::array::from_fn(|_| self.fresh("Split"));
        let names = outputs.iter().map(|value: &Value| value.0.clone()).collect();
        self.push("Split", &[x], vec![int("axis", -1), int("num_outputs", PARTS as i64)], names);
        outputs
    }

    /// The last axis in parts of these sizes.
    pub fn split_sizes<const PARTS: usize>(&mut self, x: &Value, sizes: [usize; PARTS]) -> [Value; PARTS] {
        let sizes = self.const_i64(&sizes.map(|size| size as i64));
        let outputs = std::array::from_fn(|_| self.fresh("Split"));
        let names = outputs.iter().map(|value: &Value| value.0.clone()).collect();
        self.push("Split", &[x, &sizes], vec![int("axis", -1)], names);
        outputs
    }

    /// One behind the other on `axis`.
    pub fn concat(&mut self, parts: &[&Value], axis: i64) -> Value {
        self.node("Concat", parts, vec![int("axis", axis)])
    }

    /// Cosine, element by element.
    pub fn cos(&mut self, x: &Value) -> Value {
        self.node("Cos", &[x], vec![])
    }

    /// Sine, element by element.
    pub fn sin(&mut self, x: &Value) -> Value {
        self.node("Sin", &[x], vec![])
    }

    /// Where `a` is at most `b`, broadcast.
    pub fn at_most(&mut self, a: &Value, b: &Value) -> Value {
        self.node("LessOrEqual", &[a, b], vec![])
    }

    /// Where `a` is less than `b`, broadcast.
    pub fn less(&mut self, a: &Value, b: &Value) -> Value {
        self.node("Less", &[a, b], vec![])
    }

    /// Where both hold, broadcast.
    pub fn and(&mut self, a: &Value, b: &Value) -> Value {
        self.node("And", &[a, b], vec![])
    }

    /// `yes` where `condition` holds and `no` elsewhere, broadcast.
    pub fn choose(&mut self, condition: &Value, yes: &Value, no: &Value) -> Value {
        self.node("Where", &[condition, yes, no], vec![])
    }

    /// `x [n, in] · weight [out, in]`, transposed → `[n, out]`.
    pub fn product_with_rows(&mut self, x: &Value, weight: &Value) -> Value {
        self.node("Gemm", &[x, weight], vec![int("transB", 1)])
    }

    /// The sizes of all axes of `x`.
    pub fn shape(&mut self, x: &Value) -> Value {
        self.node("Shape", &[x], vec![])
    }

    /// The same elements in a shape that is known when the graph runs.
    pub fn reshape_to(&mut self, x: &Value, shape: &Value) -> Value {
        self.node("Reshape", &[x, shape], vec![])
    }

    /// Axes in another order: axis `i` of the result is axis `order[i]` of `x`.
    pub fn transpose(&mut self, x: &Value, order: &[i64]) -> Value {
        self.node("Transpose", &[x], vec![ints("perm", order)])
    }

    /// The same elements in another shape; 0 keeps an axis, -1 takes what is left.
    pub fn reshape(&mut self, x: &Value, shape: &[i64]) -> Value {
        let shape = self.const_i64(shape);
        self.node("Reshape", &[x, &shape], vec![])
    }

    /// New axes of size 1 at these places of the result.
    pub fn unsqueeze(&mut self, x: &Value, axes: &[i64]) -> Value {
        let axes = self.const_i64(axes);
        self.node("Unsqueeze", &[x, &axes], vec![])
    }
}
