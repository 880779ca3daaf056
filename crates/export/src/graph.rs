//! Builds an ONNX graph one operation at a time, and encodes it as protobuf messages.
//! Does not know about architectures: an encoder and a decoder are built from the same operations (`ops`).
//!
//! A [`Value`] is the name of a tensor in the graph. Operations are numbered in the order of the calls, so
//! the same calls produce the same bytes. Only operators of the standard opset are used, so that the graphs
//! run on every execution provider; the exception is [`GraphBuilder::fused_attention`].

mod ops;

use prost::Message;
use thresher_core::model::onnx::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, DimensionValue, GraphProto, IR_VERSION,
    ModelProto, NodeProto, OPSET, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};

/// The name of a tensor in the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(String);

/// A tensor in the external file of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    pub name: String,
    pub dims: Vec<usize>,
    pub data_type: DataType,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// The size of an axis of an input or output.
#[derive(Debug, Clone, Copy)]
pub enum Axis {
    Fixed(usize),
    /// The same size as every other axis with this name.
    Named(&'static str),
}

/// The activation function between two linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x·Φ(x), without the approximation by tanh.
    Gelu,
    GeluTanh,
    Relu,
    /// x·σ(x): the value times its own sigmoid.
    Silu,
}

impl Activation {
    /// Returns a number below which the function has no value, near its lowest value.
    pub fn lowest(self) -> f32 {
        match self {
            // The lowest values are -0.16997 and, approximated, -0.17004.
            Self::Gelu | Self::GeluTanh => -0.1701,
            Self::Relu => 0.0,
            // The lowest value is -0.27846.
            Self::Silu => -0.2785,
        }
    }
}

/// A graph that is being built. A clone continues from the same operations and shares the weights on disk.
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    graph: GraphProto,
    weights_file: String,
    values: usize,
}

/// The operators that ONNX Runtime adds to those of ONNX, and their version.
const RUNTIME_DOMAIN: &str = "com.microsoft";
const RUNTIME_OPSET: i64 = 1;

impl GraphBuilder {
    /// Creates an empty graph whose weights are in `weights_file`, in the same folder as the graph.
    pub fn new(weights_file: impl Into<String>) -> Self {
        Self { weights_file: weights_file.into(), ..Self::default() }
    }

    pub fn input_i64(&mut self, name: &str, axes: &[Axis]) -> Value {
        self.graph.input.push(value_info(name, DataType::Int64, axes));
        Value(name.to_owned())
    }

    pub fn input_f32(&mut self, name: &str, axes: &[Axis]) -> Value {
        self.graph.input.push(value_info(name, DataType::Float, axes));
        Value(name.to_owned())
    }

    pub fn output_f32(&mut self, name: &str, axes: &[Axis], value: &Value) {
        self.push("Identity", &[value], vec![], vec![name.to_owned()]);
        self.graph.output.push(value_info(name, DataType::Float, axes));
    }

    /// Gives `value` a stable name inside the graph, at which the graph can be cut.
    pub fn named(&mut self, name: &str, value: &Value) -> Value {
        self.push("Identity", &[value], vec![], vec![name.to_owned()]);
        Value(name.to_owned())
    }

    /// Adds a weight from the external file. A weight that is used twice is added once.
    pub fn weight(&mut self, stored: &StoredTensor) -> Value {
        if self.graph.initializer.iter().any(|tensor| tensor.name == stored.name) {
            return Value(stored.name.clone());
        }
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
        self.graph.initializer.push(TensorProto {
            dims: stored.dims.iter().map(|&dim| dim as i64).collect(),
            data_type: stored.data_type.into(),
            name: stored.name.clone(),
            external_data: vec![
                entry("location", self.weights_file.clone()),
                entry("offset", stored.offset_bytes.to_string()),
                entry("length", stored.length_bytes.to_string()),
            ],
            data_location: DataLocation::External.into(),
            ..TensorProto::default()
        });
        Value(stored.name.clone())
    }

    /// Adds a small `i64` vector inside the graph. Shapes and axes have to be inside, because they must be
    /// known when the graph is loaded.
    pub fn const_i64(&mut self, values: &[i64]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(DataType::Int64, vec![values.len() as i64], bytes)
    }

    pub fn const_f32(&mut self, value: f32) -> Value {
        self.constant(DataType::Float, vec![], value.to_le_bytes().to_vec())
    }

    /// Adds a small `f32` vector.
    pub fn const_f32s(&mut self, values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(DataType::Float, vec![values.len() as i64], bytes)
    }

    fn const_u8(&mut self, value: u8) -> Value {
        self.constant(DataType::Uint8, vec![], vec![value])
    }

    /// Encodes the graph as an ONNX file.
    pub fn finish(mut self, name: &str, doc: &str) -> Vec<u8> {
        self.graph.name = name.to_owned();
        let mut opset_import = vec![OperatorSetIdProto { domain: String::new(), version: OPSET }];
        if self.graph.node.iter().any(|node| node.domain == RUNTIME_DOMAIN) {
            opset_import
                .push(OperatorSetIdProto { domain: RUNTIME_DOMAIN.to_owned(), version: RUNTIME_OPSET });
        }
        let model = ModelProto {
            ir_version: IR_VERSION,
            opset_import,
            producer_name: "thresher".to_owned(),
            doc_string: doc.to_owned(),
            graph: Some(self.graph),
        };
        model.encode_to_vec()
    }

    fn node(&mut self, op: &str, inputs: &[&Value], attribute: Vec<AttributeProto>) -> Value {
        self.node_of("", op, inputs, attribute)
    }

    /// Adds an operation of the operator set `domain`; that of ONNX has no name.
    fn node_of(
        &mut self,
        domain: &str,
        op: &str,
        inputs: &[&Value],
        attribute: Vec<AttributeProto>,
    ) -> Value {
        let output = self.next_value(op);
        self.push_of(domain, op, inputs, attribute, vec![output.0.clone()]);
        output
    }

    fn push(&mut self, op: &str, inputs: &[&Value], attribute: Vec<AttributeProto>, output: Vec<String>) {
        self.push_of("", op, inputs, attribute, output);
    }

    fn push_of(
        &mut self,
        domain: &str,
        op: &str,
        inputs: &[&Value],
        attribute: Vec<AttributeProto>,
        output: Vec<String>,
    ) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|value| value.0.clone()).collect(),
            name: output[0].clone(),
            output,
            op_type: op.to_owned(),
            attribute,
            domain: domain.to_owned(),
        });
    }

    fn constant(&mut self, data_type: DataType, dims: Vec<i64>, raw_data: Vec<u8>) -> Value {
        let is_same = |t: &&TensorProto| {
            t.data_type == i32::from(data_type) && t.dims == dims && t.raw_data.as_ref() == Some(&raw_data)
        };
        if let Some(tensor) = self.graph.initializer.iter().find(is_same) {
            return Value(tensor.name.clone());
        }
        let value = self.next_value("Constant");
        self.graph.initializer.push(TensorProto {
            dims,
            data_type: data_type.into(),
            name: value.0.clone(),
            raw_data: Some(raw_data),
            ..TensorProto::default()
        });
        value
    }

    fn next_value(&mut self, op: &str) -> Value {
        self.values += 1;
        Value(format!("{op}_{}", self.values))
    }
}

fn value_info(name: &str, elem_type: DataType, axes: &[Axis]) -> ValueInfoProto {
    let dim = |axis: &Axis| match *axis {
        Axis::Fixed(size) => DimensionValue::Value(size as i64),
        Axis::Named(name) => DimensionValue::Param(name.to_owned()),
    };
    let dim = axes.iter().map(|axis| Dimension { value: Some(dim(axis)) }).collect();
    let tensor_type = TensorTypeProto { elem_type: elem_type.into(), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}

fn attribute(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: r#type.into(), ..AttributeProto::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().to_vec()), ..attribute(name, AttributeType::String) }
}
