//! The part of ONNX's protobuf that an export writes and a session's weights are found by, declared by hand with the tags of
//! `onnx.proto`.
//! Knows nothing of architectures; readers skip what they do not know, so the messages hold only the fields that are used.
//!
//! `onnx.proto` is proto2 with every field optional; proto3 fields encode the same except that a zero is left out,
//! which a reader takes for the default, zero. Where an explicit zero matters the field is an `Option`.

mod cut;

use std::io;
use std::path::Path;

use prost::{Enumeration, Message, Oneof};

pub use self::cut::cut;

/// Operator set of every graph: the first with `Gelu`.
pub const OPSET: i64 = 20;

/// The IR that belongs to opset 20: ONNX Runtime reads it from 1.17 on.
pub const IR_VERSION: i64 = 9;

impl ModelProto {
    /// The bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

/// The smallest graph: `y` is `x`, a number.
pub fn identity() -> ModelProto {
    let number = |name: &str| {
        let shape = TensorShapeProto { dim: vec![Dimension { value: Some(DimensionValue::Value(1)) }] };
        let tensor_type = TensorTypeProto { elem_type: DataType::Float.into(), shape: Some(shape) };
        ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
    };
    let node = NodeProto {
        input: vec!["x".to_owned()],
        output: vec!["y".to_owned()],
        name: "y".to_owned(),
        op_type: "Identity".to_owned(),
        ..NodeProto::default()
    };
    ModelProto {
        ir_version: IR_VERSION,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        graph: Some(GraphProto {
            node: vec![node],
            name: "identity".to_owned(),
            input: vec![number("x")],
            output: vec![number("y")],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

/// A file's whole message.
///
/// # Errors
/// A file that cannot be read; `InvalidData` for one that is not ONNX.
pub fn read_model(path: &Path) -> io::Result<ModelProto> {
    ModelProto::decode(&*std::fs::read(path)?)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("it is not ONNX: {e}")))
}

/// The graph in a file.
///
/// # Errors
/// As [`read_model`], and `InvalidData` for one without a graph.
pub fn read_graph(path: &Path) -> io::Result<GraphProto> {
    let graph = read_model(path)?.graph;
    graph.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it holds no graph"))
}

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(string, tag = "6")]
    pub doc_string: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
}

/// Which version of which operator set the nodes mean.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// Nodes in topological order, with their constants, inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// One operation.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// A constant argument of an operation; `r#type` says which of the value fields holds.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    // Unpacked, as proto2 declares it: protobuf libraries read both, the file stays as `onnx` would write it.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(enumeration = "AttributeType", tag = "20")]
    pub r#type: i32,
}

/// Which field of an [`AttributeProto`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Ints = 7,
}

/// A constant tensor: its bytes are here (`raw_data`) or in another file (`external_data`).
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(enumeration = "DataType", tag = "2")]
    pub data_type: i32,
    #[prost(string, tag = "8")]
    pub name: String,
    /// Little-endian elements, rows first.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    /// Keys `location`, `offset`, `length`.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    #[prost(enumeration = "DataLocation", tag = "14")]
    pub data_location: i32,
}

/// Where a tensor's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataLocation {
    Default = 0,
    External = 1,
}

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataType {
    Undefined = 0,
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Int64 = 7,
    Float16 = 10,
}

/// A key with its value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// An input or output with its type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; tensors only.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Element type and shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(enumeration = "DataType", tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// An axis.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// A number, or the name of one that is known when the graph runs.
#[derive(Clone, PartialEq, Oneof)]
pub enum DimensionValue {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Param(String),
}
