//! A BERT as an ONNX file, with the weights that ONNX Runtime's dynamic quantisation makes: read as if it were the checkpoint of a
//! Hugging Face folder. The graph is not run; it only says which weight is which.
//!
//! The quantiser replaces a weight `W` by `W_quantized`, `W_scale` and `W_zero_point`, with `W = (quantized - zero point) · scale`.
//! Scale and zero point are one number, or one for each column. The program that writes an ONNX file transposes the weights of linear
//! layers and gives them numbers for names, but biases keep their names. A weight is therefore named after the bias that is added to
//! its product.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value as Json, json};
use thresher_core::model::onnx::{DataLocation, DataType, GraphProto, NodeProto, TensorProto, decode_model};
use thresher_core::regular_files;

use super::{
    ExportError,
    weights::{ByteColumns, ByteTable, Tensor, TensorFile},
};

/// The name of the file in its folder.
pub const ONNX: &str = "model.onnx";

/// The largest file that is read. It is read as a whole; a BERT of 335 million parameters has 340 MB with int8 weights.
const BYTES_MAX: u64 = 1 << 30;

/// The number of operations between a product and the addition of its bias that are looked at. The quantiser puts three there.
const STEPS_MAX: usize = 16;

/// What a byte without a sign has more than one with a sign.
const UNSIGNED_MIDDLE: u8 = 128;

/// The endings of the names of the three tensors of a weight.
const QUANTIZED: &str = "_quantized";
const SCALE: &str = "_scale";
const ZERO_POINT: &str = "_zero_point";

/// What may stand before all names of a BERT: files of models with further layers have a prefix.
const PREFIXES: [&str; 2] = ["", "bert."];

/// The largest constant that counts as the epsilon of a normalisation.
const EPSILON_MAX: f32 = 1e-3;

/// The tensors of an ONNX file, by the names that a checkpoint has.
#[derive(Debug)]
pub struct OnnxCheckpoint {
    /// The file, then those with external tensors.
    files: Vec<PathBuf>,
    weights: BTreeMap<String, Weight>,
}

#[derive(Debug)]
struct Weight {
    /// The sizes of the axes that a checkpoint has.
    dims: Vec<usize>,
    /// Whether the file has the axes in the opposite order.
    is_transposed: bool,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Floats(Vec<f32>),
    /// Each byte, minus 128 if the file has bytes without a sign, stands for `(byte - zero) · scale`.
    Bytes {
        bytes: Vec<i8>,
        /// One number, or one for each column.
        scales: Vec<f32>,
        zeros: Vec<i32>,
    },
}

impl OnnxCheckpoint {
    /// Reads a file and the external tensors that it names. Returns the checkpoint, and what its `config.json` would contain.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file cannot be read, is no ONNX file, or is not that of a BERT.
    pub fn open(path: &Path) -> Result<(Self, Map<String, Json>), ExportError> {
        let failed = |cause| ExportError::Read { file: path.to_owned(), cause };
        let length = regular_files::open(path).and_then(|file| file.metadata()).map_err(failed)?.len();
        if length > BYTES_MAX {
            let reason = format!("has {length} bytes; at most {BYTES_MAX} are read");
            return Err(malformed(path, "the file", reason));
        }
        let bytes = regular_files::read(path).map_err(failed)?;
        let model = decode_model(&bytes).map_err(failed)?;
        drop(bytes);
        let mut reader = Reader { path, files: vec![path.to_owned()] };
        let graph = model.graph.unwrap_or_default();
        let weights = reader.weights(&graph)?;
        let checkpoint = Self { files: reader.files, weights };
        let config = Description { path, graph: &graph, checkpoint: &checkpoint }.config()?;
        Ok((checkpoint, config))
    }
}

impl TensorFile for OnnxCheckpoint {
    fn path(&self) -> &Path {
        &self.files[0]
    }

    fn files(&self) -> Vec<&Path> {
        self.files.iter().map(PathBuf::as_path).collect()
    }

    fn name(&self, key: &str) -> String {
        key.to_owned()
    }

    fn dims(&self, name: &str) -> Option<&[usize]> {
        self.weights.get(name).map(|weight| &*weight.dims)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.weights.keys().map(String::as_str))
    }

    fn read(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let missing = || ExportError::TensorMissing { file: self.path().to_owned(), key: name.to_owned() };
        let weight = self.weights.get(name).ok_or_else(missing)?;
        let values = match &weight.values {
            Values::Floats(values) => values.clone(),
            Values::Bytes { bytes, scales, zeros } => {
                let by_column = scales.iter().zip(zeros).cycle();
                let value =
                    |(byte, (scale, zero)): (&i8, (&f32, &i32))| (i32::from(*byte) - zero) as f32 * scale;
                bytes.iter().zip(by_column).map(value).collect()
            }
        };
        match weight.dims[..] {
            [outputs, inputs] if weight.is_transposed => {
                Ok(Tensor { dims: vec![inputs, outputs], values }.transposed().values)
            }
            _ => Ok(values),
        }
    }

    fn byte_table(&self, name: &str) -> Option<ByteTable> {
        let weight = self.weights.get(name).filter(|weight| !weight.is_transposed)?;
        match (&weight.values, &weight.dims[..]) {
            (Values::Bytes { bytes, scales, zeros }, &[_, columns]) if scales.len() == 1 => Some(ByteTable {
                block: columns,
                values: bytes.clone(),
                steps: scales.clone(),
                offset: -(zeros[0] as f32) * scales[0],
            }),
            _ => None,
        }
    }

    /// The bytes of a linear layer, unless zero is another byte than 0.
    fn byte_columns(&self, name: &str) -> Option<ByteColumns> {
        let weight = self.weights.get(name).filter(|weight| weight.is_transposed)?;
        match (&weight.values, &weight.dims[..]) {
            (Values::Bytes { bytes, scales, zeros }, &[outputs, _])
                if zeros.iter().all(|zero| *zero == 0) =>
            {
                let scales = scales.iter().copied().cycle().take(outputs).collect();
                Some(ByteColumns { values: bytes.clone(), scales })
            }
            _ => None,
        }
    }
}

struct Reader<'a> {
    path: &'a Path,
    files: Vec<PathBuf>,
}

impl Reader<'_> {
    fn weights(&mut self, graph: &GraphProto) -> Result<BTreeMap<String, Weight>, ExportError> {
        let tensors: HashMap<&str, &TensorProto> =
            graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let layers = linear_layers(graph, &tensors);
        let mut weights = BTreeMap::new();
        for tensor in &graph.initializer {
            let base = tensor.name.strip_suffix(QUANTIZED);
            let in_layer = layers.get(tensor.name.as_str());
            let name = in_layer.map_or(base.unwrap_or(&tensor.name), String::as_str);
            // Other constants are numbers of the program that wrote the file.
            if !name.ends_with(".weight") && !name.ends_with(".bias") {
                continue;
            }
            let mut dims = self.dims(tensor)?;
            let columns = dims.last().copied().unwrap_or(1);
            let values = match base {
                None => Values::Floats(self.floats(tensor)?),
                Some(base) => {
                    let part = |ending: &str| {
                        let name = format!("{base}{ending}");
                        let found = tensors.get(name.as_str()).copied();
                        found.ok_or_else(|| malformed(self.path, &name, "is missing".to_owned()))
                    };
                    let (scale, zero) = (part(SCALE)?, part(ZERO_POINT)?);
                    let scales = self.floats(scale)?;
                    let zeros = self.bytes(zero)?;
                    let fits = |count: usize| count == 1 || count == columns;
                    if !fits(scales.len())
                        || !fits(zeros.len())
                        || !scales.iter().all(|scale| scale.is_finite())
                    {
                        let reason = format!("is not a finite number, or one for each of {columns} columns");
                        return Err(malformed(self.path, &scale.name, reason));
                    }
                    let count = scales.len().max(zeros.len());
                    Values::Bytes {
                        bytes: self.bytes(tensor)?,
                        scales: scales.into_iter().cycle().take(count).collect(),
                        zeros: zeros.into_iter().map(i32::from).cycle().take(count).collect(),
                    }
                }
            };
            let is_transposed = in_layer.is_some();
            if is_transposed {
                dims.reverse();
            }
            weights.insert(name.to_owned(), Weight { dims, is_transposed, values });
        }
        Ok(weights)
    }

    fn dims(&self, tensor: &TensorProto) -> Result<Vec<usize>, ExportError> {
        let sizes: Option<Vec<usize>> = tensor.dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let is_small = |sizes: &Vec<usize>| {
            sizes
                .iter()
                .try_fold(1_usize, |all, size| all.checked_mul(*size))
                .is_some_and(|all| all as u64 <= BYTES_MAX)
        };
        sizes
            .filter(is_small)
            .ok_or_else(|| malformed(self.path, &tensor.name, format!("has the shape {:?}", tensor.dims)))
    }

    fn floats(&mut self, tensor: &TensorProto) -> Result<Vec<f32>, ExportError> {
        self.expect(tensor, &[DataType::Float])?;
        if !tensor.float_data.is_empty() {
            return self.counted(tensor, tensor.float_data.clone());
        }
        let raw = self.raw(tensor, size_of::<f32>())?;
        Ok(raw.as_chunks().0.iter().map(|quad| f32::from_le_bytes(*quad)).collect())
    }

    /// Reads bytes with a sign. Of bytes without one, 128 is taken.
    fn bytes(&mut self, tensor: &TensorProto) -> Result<Vec<i8>, ExportError> {
        let kind = self.expect(tensor, &[DataType::Int8, DataType::Uint8])?;
        let listed = &tensor.int32_data;
        let raw = if listed.is_empty() {
            self.raw(tensor, 1)?
        } else {
            self.counted(tensor, listed.iter().map(|value| *value as u8).collect())?
        };
        let shift = if kind == DataType::Uint8 { UNSIGNED_MIDDLE } else { 0 };
        Ok(raw.into_iter().map(|byte| byte.wrapping_sub(shift).cast_signed()).collect())
    }

    fn expect(&self, tensor: &TensorProto, kinds: &[DataType]) -> Result<DataType, ExportError> {
        kinds.iter().copied().find(|kind| i32::from(*kind) == tensor.data_type).ok_or_else(|| {
            ExportError::FileUnsupported {
                file: self.path.to_owned(),
                at: tensor.name.clone(),
                found: format!("elements of type {}", tensor.data_type),
                supported: kinds.iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(", "),
            }
        })
    }

    fn counted<T>(&self, tensor: &TensorProto, values: Vec<T>) -> Result<Vec<T>, ExportError> {
        let expected: usize = self.dims(tensor)?.iter().product();
        if values.len() == expected {
            return Ok(values);
        }
        let reason = format!("has {} elements, which are not {:?}", values.len(), tensor.dims);
        Err(malformed(self.path, &tensor.name, reason))
    }

    /// Returns the bytes of a tensor whose elements have `width` bytes.
    fn raw(&mut self, tensor: &TensorProto, width: usize) -> Result<Vec<u8>, ExportError> {
        let length = self.dims(tensor)?.iter().product::<usize>() * width;
        let raw = if tensor.data_location == i32::from(DataLocation::External) {
            self.external(tensor, length)?
        } else {
            tensor.raw_data.clone().unwrap_or_default()
        };
        if raw.len() == length {
            return Ok(raw);
        }
        let reason = format!("has {} bytes, which are not {:?}", raw.len(), tensor.dims);
        Err(malformed(self.path, &tensor.name, reason))
    }

    fn external(&mut self, tensor: &TensorProto, length: usize) -> Result<Vec<u8>, ExportError> {
        let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key);
        let location = entry("location").map_or("", |entry| entry.value.as_str());
        // The path must be that of a file in this folder: the file must not point outside it.
        if !Path::new(location).components().eq([Component::Normal(location.as_ref())]) {
            let reason = format!("is in `{location}`, which is not the name of a file in this folder");
            return Err(malformed(self.path, &tensor.name, reason));
        }
        let offset = entry("offset").map_or(Ok(0), |entry| entry.value.parse::<u64>());
        let offset =
            offset.map_err(|cause| malformed(self.path, &tensor.name, format!("offset: {cause}")))?;
        let file = self.path.with_file_name(location);
        let read = || -> io::Result<Vec<u8>> {
            let mut opened = regular_files::open(&file)?;
            opened.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            opened.take(length as u64).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|cause| ExportError::Read { file: file.clone(), cause })?;
        if bytes.len() < length {
            return Err(ExportError::FileTruncated {
                file,
                at: tensor.name.clone(),
                expected_bytes: offset.saturating_add(length as u64),
                found_bytes: offset.saturating_add(bytes.len() as u64),
            });
        }
        if !self.files.contains(&file) {
            self.files.push(file);
        }
        Ok(bytes)
    }
}

/// Returns the names that a checkpoint has for the matrices of linear layers, by their names in the graph.
fn linear_layers<'a>(
    graph: &'a GraphProto,
    tensors: &HashMap<&str, &TensorProto>,
) -> HashMap<&'a str, String> {
    let mut readers: HashMap<&str, Vec<&NodeProto>> = HashMap::new();
    for node in &graph.node {
        node.input.iter().for_each(|input| readers.entry(input).or_default().push(node));
    }
    let products = graph.node.iter().filter(|node| ["MatMulInteger", "MatMul"].contains(&&*node.op_type));
    let mut names = HashMap::new();
    for node in products {
        let Some(matrix) = node.input.get(1).filter(|input| tensors.contains_key(input.as_str())) else {
            continue;
        };
        let named = matrix.strip_suffix(QUANTIZED).filter(|base| base.ends_with(".weight"));
        let name = named.map(str::to_owned).or_else(|| {
            let bias = added_bias(node, &readers, tensors)?;
            Some(format!("{}.weight", bias.strip_suffix(".bias")?))
        });
        if let Some(name) = name {
            names.insert(matrix.as_str(), name);
        }
    }
    names
}

/// Returns the name of the bias that is added to a product, after it was converted and scaled.
fn added_bias<'a>(
    product: &NodeProto,
    readers: &HashMap<&str, Vec<&'a NodeProto>>,
    tensors: &HashMap<&str, &TensorProto>,
) -> Option<&'a str> {
    let mut values: Vec<&str> = product.output.iter().map(String::as_str).collect();
    let mut seen = 0;
    while let Some(value) = values.pop() {
        for node in readers.get(value).into_iter().flatten() {
            seen += 1;
            if seen > STEPS_MAX {
                return None;
            }
            let is_bias = |input: &&String| input.ends_with(".bias") && tensors.contains_key(input.as_str());
            match node.op_type.as_str() {
                "Add" => {
                    if let Some(bias) = node.input.iter().find(is_bias) {
                        return Some(bias);
                    }
                }
                "Cast" | "Mul" => values.extend(node.output.iter().map(String::as_str)),
                _ => {}
            }
        }
    }
    None
}

/// What a graph says about the model that it computes.
struct Description<'a> {
    path: &'a Path,
    graph: &'a GraphProto,
    checkpoint: &'a OnnxCheckpoint,
}

impl Description<'_> {
    fn config(&self) -> Result<Map<String, Json>, ExportError> {
        let words = "embeddings.word_embeddings.weight";
        let has_words = |prefix: &&str| self.checkpoint.weights.contains_key(&format!("{prefix}{words}"));
        let prefix = PREFIXES.into_iter().find(has_words).ok_or_else(|| self.not_bert(words))?;
        let size = |name: &str| {
            let dims = self.checkpoint.dims(&format!("{prefix}{name}"));
            dims.and_then(|dims| dims.first().copied()).ok_or_else(|| self.not_bert(name))
        };
        let ops: HashSet<&str> = self.graph.node.iter().map(|node| &*node.op_type).collect();
        // RoBERTa has the same names. It counts the tokens that are not padding to number them.
        if ops.contains("CumSum") {
            return Err(self.unsupported("numbering of positions", "CumSum"));
        }
        if !ops.contains("Erf") && !ops.contains("Gelu") {
            return Err(self.unsupported("activation", "not GELU"));
        }
        let hidden = size("embeddings.LayerNorm.bias")?;
        let layer = |name: &str| {
            Some(name.strip_prefix(prefix)?.strip_prefix("encoder.layer.")?.split('.').next()?.to_owned())
        };
        let layers: HashSet<String> = self.checkpoint.names().filter_map(layer).collect();
        let heads = self.heads(&format!("{prefix}encoder.layer.0.attention.self.query.bias"), hidden)?;
        let has_labels = self.checkpoint.weights.contains_key("classifier.bias");
        let architecture = if has_labels { "BertForSequenceClassification" } else { "BertModel" };
        let mut config = json!({
            "architectures": [architecture],
            "model_type": "bert",
            "hidden_act": "gelu",
            "hidden_size": hidden,
            "intermediate_size": size("encoder.layer.0.intermediate.dense.bias")?,
            "layer_norm_eps": self.epsilon()?,
            "max_position_embeddings": size("embeddings.position_embeddings.weight")?,
            "num_attention_heads": heads,
            "num_hidden_layers": layers.len(),
            "type_vocab_size": size("embeddings.token_type_embeddings.weight")?,
            "vocab_size": size(words)?,
        });
        if has_labels {
            config["num_labels"] =
                json!(self.checkpoint.dims("classifier.bias").and_then(|dims| dims.first()));
        }
        Ok(config.as_object().cloned().unwrap_or_default())
    }

    /// Returns the number of heads: the last size but one to which the graph reshapes the queries of the first layer.
    fn heads(&self, bias: &str, hidden: usize) -> Result<usize, ExportError> {
        let with_bias = self.node("Add", bias).ok_or_else(|| self.not_bert(bias))?;
        let queries = with_bias.output.first().and_then(|queries| self.node("Reshape", queries));
        let shape = queries.and_then(|reshape| reshape.input.get(1)).map(|shape| self.shape(shape));
        match shape.as_deref() {
            Some([.., heads, width])
                if *heads > 0 && heads.checked_mul(*width) == i64::try_from(hidden).ok() =>
            {
                Ok(*heads as usize)
            }
            _ => Err(self.unsupported("queries by head", "another operation")),
        }
    }

    /// Returns the numbers of a shape that are known before the graph runs.
    fn shape(&self, value: &str) -> Vec<i64> {
        if let Some(numbers) = self.constant(value) {
            return numbers;
        }
        let made = self.graph.node.iter().find(|node| node.output.iter().any(|output| output == value));
        let parts =
            made.filter(|node| node.op_type == "Concat").map(|node| &node.input[..]).unwrap_or_default();
        parts.iter().flat_map(|part| self.constant(part).unwrap_or_default()).collect()
    }

    fn constant(&self, value: &str) -> Option<Vec<i64>> {
        let tensor = self.graph.initializer.iter().find(|tensor| tensor.name == value);
        let tensor =
            tensor.or_else(|| self.constants().find(|(name, _)| *name == value).map(|(_, tensor)| tensor));
        let tensor = tensor.filter(|tensor| tensor.data_type == i32::from(DataType::Int64))?;
        let raw = tensor.raw_data.as_deref().unwrap_or_default().as_chunks().0;
        let listed = tensor.int64_data.iter().copied();
        Some(listed.chain(raw.iter().map(|bytes| i64::from_le_bytes(*bytes))).collect())
    }

    /// Returns what is added to the variance in normalisations.
    fn epsilon(&self) -> Result<f32, ExportError> {
        let attribute =
            |node: &NodeProto| node.attribute.iter().find(|at| at.name == "epsilon").and_then(|at| at.f);
        if let Some(epsilon) = self.graph.node.iter().find_map(attribute) {
            return Ok(epsilon);
        }
        let number = |tensor: &TensorProto| match (&tensor.float_data[..], tensor.raw_data.as_deref()) {
            ([number], _) => Some(*number),
            (_, Some(raw)) => raw.try_into().ok().map(f32::from_le_bytes),
            _ => None,
        };
        let float = i32::from(DataType::Float);
        let constants = self
            .constants()
            .map(|(_, tensor)| tensor)
            .chain(self.graph.initializer.iter().filter(|tensor| !tensor.name.ends_with(SCALE)));
        let numbers = constants.filter(|tensor| tensor.data_type == float).filter_map(number);
        let mut small = numbers.filter(|number| (f32::MIN_POSITIVE..EPSILON_MAX).contains(number));
        small.next().ok_or_else(|| self.unsupported("normalisation", "without an epsilon"))
    }

    /// Returns the constants that are operations, with the names of their values.
    fn constants(&self) -> impl Iterator<Item = (&str, &TensorProto)> {
        let nodes = self.graph.node.iter().filter(|node| node.op_type == "Constant");
        nodes.filter_map(|node| Some((node.output.first()?.as_str(), node.attribute.first()?.t.as_ref()?)))
    }

    /// Returns the first operation of this kind that reads a value.
    fn node(&self, kind: &str, value: &str) -> Option<&NodeProto> {
        self.graph
            .node
            .iter()
            .find(|node| node.op_type == kind && node.input.iter().any(|input| input == value))
    }

    fn not_bert(&self, name: &str) -> ExportError {
        self.unsupported("the graph", &format!("without `{name}`"))
    }

    fn unsupported(&self, at: &str, found: &str) -> ExportError {
        ExportError::FileUnsupported {
            file: self.path.to_owned(),
            at: at.to_owned(),
            found: found.to_owned(),
            supported: "the graph of a BERT; export other models from model.safetensors".to_owned(),
        }
    }
}

fn malformed(path: &Path, at: &str, reason: String) -> ExportError {
    ExportError::FileMalformed { file: path.to_owned(), at: at.to_owned(), reason }
}
