//! The ONNX file format: protobuf messages with the fields that Thresher reads and writes, and the extraction
//! of subgraphs. Knows nothing of model architectures.
//!
//! The messages are declared by hand with the tags of `onnx.proto`. They declare only the fields that are
//! used: a protobuf reader skips fields that it does not know. `onnx.proto` is proto2, and all its fields are
//! optional. Proto3 fields have the same encoding, except that a zero is not written, and a reader then
//! assumes the default, which is zero. A field for which an explicit zero matters is an `Option`.

mod subgraph;

use std::io;
use std::path::Path;

use prost::{Enumeration, Message, Oneof};

pub use self::subgraph::{MissingValue, extract_subgraph};

/// The version of the operator set that exported graphs use: the first with the operator `Gelu`.
pub const OPSET: i64 = 20;

/// The version of the ONNX format that belongs to operator set 20. ONNX Runtime 1.17 and later reads it.
pub const IR_VERSION: i64 = 9;

impl ModelProto {
    /// Encodes the message as the bytes of an ONNX file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

/// Returns a minimal model: its output `y` `[1]` is its input `x` `[1]`.
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

/// Reads the model from an ONNX file.
///
/// # Errors
/// Returns the error of reading the file, or `InvalidData` if it is not an ONNX file.
pub fn read_model(path: &Path) -> io::Result<ModelProto> {
    decode_model(&std::fs::read(path)?)
}

/// Reads the model from the bytes of an ONNX file.
///
/// # Errors
/// Returns `InvalidData` if they are not those of an ONNX file.
pub fn decode_model(bytes: &[u8]) -> io::Result<ModelProto> {
    ModelProto::decode(bytes)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("not an ONNX file: {e}")))
}

/// Reads the graph from an ONNX file.
///
/// # Errors
/// As [`read_model`]; also returns `InvalidData` if the file contains no graph.
pub fn read_graph(path: &Path) -> io::Result<GraphProto> {
    let graph = read_model(path)?.graph;
    graph.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the ONNX file contains no graph"))
}

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

/// An operator set and its version, which define the operators of the nodes.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A graph: nodes in topological order, constants (`initializer`), inputs and outputs.
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

/// An operation: an operator with the names of its inputs and outputs.
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
    /// The operator set; empty for that of ONNX.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// A constant argument of an operation. `r#type` says which of the value fields is set.
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
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    // Not packed, as in proto2: protobuf libraries read both forms, and the `onnx` library writes this one.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(enumeration = "AttributeType", tag = "20")]
    pub r#type: i32,
}

/// The value field of an [`AttributeProto`] that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AttributeType {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Ints = 7,
}

/// A constant tensor. Its elements are in `raw_data`, in another file, which `external_data` names, or, in files that other
/// programs wrote, in the list for their type.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(enumeration = "DataType", tag = "2")]
    pub data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of integers with at most 32 bits.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    /// The elements in little-endian order, in row-major layout.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    /// The keys `location` (file name), `offset` and `length` (both in bytes) with their values.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    #[prost(enumeration = "DataLocation", tag = "14")]
    pub data_location: i32,
}

/// Whether a tensor's bytes are in the message or in another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataLocation {
    Default = 0,
    External = 1,
}

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

#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// An input, an output or a value inside a graph, with its type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// The type of a value. Only tensor types are declared.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(enumeration = "DataType", tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// The shape of a tensor, slowest axis first.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// A fixed size, or the name of a size that is known only when the graph runs.
#[derive(Clone, PartialEq, Oneof)]
pub enum DimensionValue {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Param(String),
}
