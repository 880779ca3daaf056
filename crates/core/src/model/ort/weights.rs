//! The weights of a model, in memory once for all sessions of its graphs: the file is mapped, and the
//! sessions share the packed copies that ONNX Runtime makes of it. Knows nothing of what the graphs compute.

use std::fs::File;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use memmap2::Mmap;
use ndarray::Array2;
use ort::AsPointer;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::session::{RunOptions, Session, SessionInputs, SessionOutputs};
use ort::sys::ONNXTensorElementDataType as ElementType;
use ort::value::{DynValue, Outlet, Tensor};

use super::device::Device;
use super::{graph_error, ort_error};
use crate::model::ModelError;
use crate::model::contract::Contract;
use crate::model::onnx::{DataType, GraphProto, ModelProto, TensorProto, read_graph};

/// The option with the folder in which ONNX Runtime looks for the weights of a graph that is not in a file.
const WEIGHTS_FOLDER: &str = "session.model_external_initializers_file_folder_path";

/// The option of a run with the arenas that return their unused memory after it.
const SHRINK_ARENA: &str = "memory.enable_memory_arena_shrinkage";

/// The weights that all sessions of a model share.
///
/// Before ONNX Runtime multiplies with a matrix, it packs the matrix: it copies it into the order in which
/// its kernels read. Sessions that get the same tensors and the same container of packed weights use the copy
/// that the first session made. Weights that need no packing are read from the mapped file.
pub struct SharedWeights {
    /// The name of the file in the graphs and in the contract.
    file: String,
    mapped: Arc<Mmap>,
    packed: PrepackedWeights,
    /// Whether sessions share weights. Sessions on a GPU copy them to its memory instead.
    is_shared: bool,
}

/// A session that may read shared weights. It owns the session and the mapping of the weights. Fields are
/// dropped in this order, and no method returns the session alone, so the mapping always outlives the
/// session.
pub struct WeightedSession {
    session: Session,
    options: RunOptions,
    _mapped: Arc<Mmap>,
}

impl SharedWeights {
    /// Maps the weights of a contract in `dir`. Tensors that are in other files or in the graphs are not
    /// shared.
    ///
    /// # Errors
    /// Returns [`ModelError::Graph`] if the file cannot be mapped.
    pub fn open(contract: &Contract, dir: &Path, device: &Device) -> Result<Self, ModelError> {
        let file = contract.weights.file.clone();
        let mapped = map(&dir.join(&file)).map_err(|e| graph_error(&file, e))?;
        Ok(Self {
            file,
            mapped: Arc::new(mapped),
            packed: PrepackedWeights::new(),
            is_shared: device.is_cpu(),
        })
    }

    /// Loads the graph in the file `path` as a session with these weights. `builder` has all other settings.
    ///
    /// # Errors
    /// Fails if the file cannot be read or the runtime cannot load the graph.
    pub fn session_from_file(
        &self,
        builder: SessionBuilder,
        path: &Path,
    ) -> Result<WeightedSession, ort::Error> {
        let graph = read_graph(path).map_err(ort_error)?;
        self.commit(builder, &graph, |mut builder| builder.commit_from_file(path))
    }

    /// Loads a graph that is in memory as a session with these weights, whose file is in `dir`.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn session_from_model(
        &self,
        builder: SessionBuilder,
        model: &ModelProto,
        dir: &Path,
    ) -> Result<WeightedSession, ort::Error> {
        let builder = builder.with_config_entry(WEIGHTS_FOLDER, dir.to_string_lossy())?;
        let graph = model.graph.as_ref().ok_or_else(|| ort_error("the model contains no graph"))?;
        self.commit(builder, graph, |mut builder| builder.commit_from_memory(&model.to_bytes()))
    }

    fn commit(
        &self,
        mut builder: SessionBuilder,
        graph: &GraphProto,
        commit: impl FnOnce(SessionBuilder) -> Result<Session, ort::Error>,
    ) -> Result<WeightedSession, ort::Error> {
        if self.is_shared {
            builder = builder.with_prepacked_weights(&self.packed)?;
            for tensor in &graph.initializer {
                if let Some(value) = self.shared_tensor(tensor)? {
                    builder = builder.with_initializer(&tensor.name, value)?;
                }
            }
        }
        let (session, options) = (commit(builder)?, RunOptions::new()?);
        Ok(WeightedSession { session, options, _mapped: Arc::clone(&self.mapped) })
    }

    /// Allows the operating system to free the memory pages of the mapping. Sessions read most of it only
    /// while they are loaded, so this is called after all sessions are loaded. Pages that are read again come
    /// from the file.
    pub fn drop_pages(&self) {
        #[cfg(unix)]
        #[allow(unsafe_code, reason = "advice to the operating system")]
        // SAFETY: the mapping is shared and never written, so its pages equal the file before and after. If
        // the system refuses the advice, the pages stay in memory, which is harmless.
        let _refused = unsafe { self.mapped.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }

    /// Returns a tensor over the mapped bytes. Returns `None` if the bytes are not in the mapped file as the
    /// tensor's shape requires; ONNX Runtime then finds them itself or reports what is wrong with them.
    #[allow(unsafe_code, reason = "a tensor over borrowed bytes")]
    fn shared_tensor(&self, tensor: &TensorProto) -> Result<Option<Arc<DynValue>>, ort::Error> {
        let Some((bytes, element)) = mapped_bytes(tensor, &self.file, &self.mapped) else { return Ok(None) };
        // SAFETY: `mapped_bytes` returns as many aligned elements as `dims` say. The session that gets the
        // tensor is part of a `WeightedSession`, which drops the mapping after the session.
        unsafe { tensor_over(bytes, &tensor.dims, element) }.map(|value| Some(Arc::new(value)))
    }
}

impl WeightedSession {
    /// Loads the graph in the file `path`, which has its weights in it or in files beside it, and does not share them.
    ///
    /// # Errors
    /// Fails if the file cannot be read or the runtime cannot load the graph.
    pub fn of_whole_graph(mut builder: SessionBuilder, path: &Path) -> Result<Self, ort::Error> {
        let mapped = Arc::new(map(path).map_err(ort_error)?);
        Ok(Self { session: builder.commit_from_file(path)?, options: RunOptions::new()?, _mapped: mapped })
    }

    /// Runs the graph on `inputs` and returns its outputs.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn run<'s, 'i, 'v: 'i, const N: usize>(
        &'s mut self,
        inputs: impl Into<SessionInputs<'i, 'v, N>>,
    ) -> Result<SessionOutputs<'s>, ort::Error> {
        self.session.run(inputs)
    }

    /// Returns the session as one that gives unused memory back to `device` after each run with a binding.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn returning_memory(mut self, device: &Device) -> Result<Self, ort::Error> {
        if let Some(arena) = device.arena() {
            self.options.set(SHRINK_ARENA, arena)?;
        }
        Ok(self)
    }

    /// Runs the graph without copying inputs or outputs between devices. `value_of` returns the value of an
    /// input by its name, and `outputs` are the names of the outputs to compute with the memory in which each
    /// is allocated. Returns the outputs in this order.
    ///
    /// # Errors
    /// Fails if `value_of` returns `None` for an input, and returns errors of the runtime.
    pub fn run_with_binding<'v>(
        &mut self,
        value_of: impl Fn(&str) -> Option<&'v DynValue>,
        outputs: &[(&str, &MemoryInfo)],
    ) -> Result<Vec<DynValue>, ort::Error> {
        let mut binding = self.session.create_binding()?;
        for input in self.session.inputs() {
            let name = input.name();
            let value =
                value_of(name).ok_or_else(|| ort_error(format_args!("the input `{name}` has no value")))?;
            binding.bind_input(name, value)?;
        }
        for (name, memory) in outputs {
            binding.bind_output_to_device(*name, memory)?;
        }
        // The run waits for its own stream, also for the copies of outputs.
        let mut computed = self.session.run_binding_with_options(&binding, &self.options)?;
        let take = |(name, _): &(&str, &MemoryInfo)| {
            computed
                .remove(name)
                .ok_or_else(|| ort_error(format_args!("the output `{name}` was not computed")))
        };
        outputs.iter().map(take).collect()
    }

    /// Returns an allocator of the memory of the host that inputs are copied from to `device`.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn host_allocator(&self, device: &Device) -> Result<Allocator, ort::Error> {
        device.host_allocator(&self.session)
    }

    pub fn inputs(&self) -> &[Outlet] {
        self.session.inputs()
    }

    pub fn outputs(&self) -> &[Outlet] {
        self.session.outputs()
    }
}

/// Converts arrays of integers into named tensors.
///
/// # Errors
/// Returns an error of the runtime.
pub fn integer_inputs<'a>(
    inputs: &[(&'a str, &Array2<i64>)],
) -> Result<Vec<(&'a str, DynValue)>, ort::Error> {
    let tensor = |&(name, rows): &(&'a str, &Array2<i64>)| {
        let values: Vec<i64> = rows.iter().copied().collect();
        Ok((name, Tensor::from_array(([rows.nrows(), rows.ncols()], values))?.into_dyn()))
    };
    inputs.iter().map(tensor).collect()
}

pub fn value_named<'a>(name: &str, values: &'a [(&str, DynValue)]) -> Option<&'a DynValue> {
    values.iter().find(|(input, _)| *input == name).map(|(_, value)| value)
}

/// Returns the number of bytes of a graph's weights in other files.
pub fn stored_bytes(model: &ModelProto) -> usize {
    let tensors = model.graph.iter().flat_map(|graph| &graph.initializer);
    let lengths = tensors.flat_map(|tensor| &tensor.external_data).filter(|entry| entry.key == "length");
    lengths.filter_map(|entry| entry.value.parse::<usize>().ok()).fold(0, usize::saturating_add)
}

/// Returns the bytes of the tensor in `mapped`, the content of the file `file`, and the type of its elements.
/// Returns `None` if the bytes are not in this file, if their number is not that of the tensor's shape, or if
/// they are not aligned for the elements.
fn mapped_bytes<'a>(tensor: &TensorProto, file: &str, mapped: &'a [u8]) -> Option<(&'a [u8], ElementType)> {
    let entry = |key| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value);
    let number = |key| entry(key).and_then(|number| number.parse::<usize>().ok());
    let (element, size) = element(tensor)?;
    let in_shape =
        |bytes: usize, &dim: &i64| usize::try_from(dim).ok().and_then(|dim| bytes.checked_mul(dim));
    let expected = tensor.dims.iter().try_fold(size, in_shape)?;
    let (offset, length) = (number("offset")?, number("length")?);
    let bytes = mapped.get(offset..offset.checked_add(length)?)?;
    let fits = entry("location") == Some(file) && length == expected;
    (fits && bytes.as_ptr().align_offset(size) == 0).then_some((bytes, element))
}

/// Returns the type of a tensor's elements and their size in bytes, or `None` if exported models have no such
/// elements.
fn element(tensor: &TensorProto) -> Option<(ElementType, usize)> {
    match DataType::try_from(tensor.data_type) {
        Ok(DataType::Float) => Some((ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4)),
        Ok(DataType::Float16) => Some((ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2)),
        Ok(DataType::Uint8) => Some((ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1)),
        Ok(DataType::Int8) => Some((ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1)),
        Ok(DataType::Int64) => Some((ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8)),
        Ok(DataType::Undefined) | Err(_) => None,
    }
}

#[allow(unsafe_code, reason = "mapping a file keeps its bytes in memory once, and only while they are read")]
fn map(path: &Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the file must not change while it is mapped. An export replaces the whole folder and never
    // writes to an existing file, and the deployment guide demands the same of other ways to install a model.
    // ONNX Runtime itself maps weights under the same condition.
    unsafe { Mmap::map(&file) }
}

/// Returns a tensor whose elements are `bytes`, without a copy. The `ort` crate offers such tensors only for
/// the time of a run, not for that of a session.
///
/// # Safety
/// `bytes` must contain as many elements as `dims` say, must be aligned for them, and must outlive the tensor
/// and every session that gets it.
#[allow(unsafe_code, reason = "a call into the C library")]
unsafe fn tensor_over(bytes: &[u8], dims: &[i64], element: ElementType) -> Result<DynValue, ort::Error> {
    let (memory, allocator, mut tensor) = (MemoryInfo::default(), Allocator::default(), ptr::null_mut());
    let data = bytes.as_ptr().cast_mut().cast();
    // SAFETY: all pointers are valid during the call, and the call keeps only the pointer to the bytes. ONNX
    // Runtime never writes to a session's weights.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            data,
            bytes.len(),
            dims.as_ptr(),
            dims.len(),
            element,
            &mut tensor,
        )
    };
    // SAFETY: the status is the result of the call above and is converted once.
    unsafe { ort::Error::result_from_status(status) }?;
    let tensor = ptr::NonNull::new(tensor).ok_or_else(|| ort_error("ONNX Runtime returned no tensor"))?;
    // SAFETY: the value is new and has no other owner. The allocator does not free the bytes, which it has
    // not allocated.
    Ok(unsafe { DynValue::from_ptr(tensor, Some(&allocator)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::onnx::StringStringEntryProto;

    #[test]
    fn only_bytes_that_match_the_shape_are_shared() {
        /// Sixteen floats with the alignment of a mapping.
        #[repr(align(64))]
        struct File([u8; 64]);
        let file = File([0; 64]);
        let mapped = &file.0;
        let length = |dims: &[i64], data_type: DataType, entries: [(&str, &str); 3]| {
            let entry = |(key, value): (&str, &str)| StringStringEntryProto {
                key: key.to_owned(),
                value: value.to_owned(),
            };
            let tensor = TensorProto {
                dims: dims.to_vec(),
                data_type: data_type.into(),
                external_data: entries.map(entry).into(),
                ..TensorProto::default()
            };
            mapped_bytes(&tensor, "weights.bin", mapped).map(|(bytes, _)| bytes.len())
        };
        let at = |offset, bytes| [("location", "weights.bin"), ("offset", offset), ("length", bytes)];
        let check =
            |name: &str, found: Option<usize>, expect: Option<usize>| assert_eq!(found, expect, "{name}");
        let float = DataType::Float;
        check("a matrix", length(&[2, 4], float, at("0", "32")), Some(32));
        check("to the last byte", length(&[4], float, at("48", "16")), Some(16));
        check("a scalar", length(&[], float, at("4", "4")), Some(4));
        check("bytes", length(&[3], DataType::Int8, at("5", "3")), Some(3));
        check("nothing", length(&[0], float, at("64", "0")), Some(0));
        check("beyond the end", length(&[4], float, at("52", "16")), None);
        check("an offset that overflows", length(&[4], float, at("18446744073709551612", "16")), None);
        check("more than the shape", length(&[3], float, at("0", "16")), None);
        check("less than the shape", length(&[5], float, at("0", "16")), None);
        check("a shape whose size overflows", length(&[i64::MAX, i64::MAX], float, at("0", "16")), None);
        check("a negative shape", length(&[-4], float, at("0", "16")), None);
        check("not aligned", length(&[4], float, at("2", "16")), None);
        check("another type", length(&[4], DataType::Undefined, at("0", "16")), None);
        check("a length that is not a decimal number", length(&[4], float, at("0", "0x10")), None);
        let elsewhere = [("location", "other.bin"), ("offset", "0"), ("length", "16")];
        check("another file", length(&[4], float, elsewhere), None);
        check(
            "no offset",
            length(&[4], float, [("location", "weights.bin"), ("x", "0"), ("length", "16")]),
            None,
        );
    }
}
