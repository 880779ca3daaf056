//! A contract's weights, once for all sessions of its graphs: the file is mapped, and what ONNX Runtime makes of it is shared.
//! Knows nothing of what the graphs compute.

use std::fs::File;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use memmap2::Mmap;
use ort::AsPointer;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::session::{Session, SessionInputs, SessionOutputs};
use ort::sys::ONNXTensorElementDataType as ElementType;
use ort::value::{DynValue, Outlet};

use super::device::Device;
use super::{graph_error, ort_error};
use crate::model::ModelError;
use crate::model::contract::Contract;
use crate::model::onnx::{DataType, GraphProto, ModelProto, TensorProto, read_graph};

/// Where ONNX Runtime looks for the weights of a graph that is in no file.
const WEIGHTS_FOLDER: &str = "session.model_external_initializers_file_folder_path";

/// Before it multiplies with a matrix, ONNX Runtime packs it: copies it into the order that its kernels read. Sessions that are handed
/// the same tensors and the same container find what the first of them has packed. What needs no packing they read where it lies.
pub struct SharedWeights {
    /// Name of the file, as graphs and contract give it.
    file: String,
    mapped: Arc<Mmap>,
    packed: PrepackedWeights,
    /// Sessions on a GPU have weights in its memory.
    shared: bool,
}

/// A session that reads shared weights. The session goes first, then the mapping that it reads; nothing here hands it out alone.
pub struct WeightedSession {
    session: Session,
    _mapped: Arc<Mmap>,
}

impl SharedWeights {
    /// Maps the weights of a contract in `dir`. Tensors in other files, and in the graphs, stay each session's own.
    ///
    /// # Errors
    /// [`ModelError::Graph`] when the file cannot be mapped.
    pub fn open(contract: &Contract, dir: &Path, device: &Device) -> Result<Self, ModelError> {
        let file = contract.weights.file.clone();
        let mapped = map(&dir.join(&file)).map_err(|e| graph_error(&file, e))?;
        Ok(Self { file, mapped: Arc::new(mapped), packed: PrepackedWeights::new(), shared: device.is_cpu() })
    }

    /// Loads a graph's session with these weights; `builder` holds everything else that it is told.
    ///
    /// # Errors
    /// A graph that cannot be read; what the runtime reports.
    pub fn session(&self, builder: SessionBuilder, path: &Path) -> Result<WeightedSession, ort::Error> {
        let graph = read_graph(path).map_err(ort_error)?;
        self.commit(builder, &graph, |mut builder| builder.commit_from_file(path))
    }

    /// The same for a graph that is in no file, but has its weights in this one, in `dir`.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn session_of(
        &self,
        builder: SessionBuilder,
        model: &ModelProto,
        dir: &Path,
    ) -> Result<WeightedSession, ort::Error> {
        let builder = builder.with_config_entry(WEIGHTS_FOLDER, dir.to_string_lossy())?;
        let graph = model.graph.as_ref().ok_or_else(|| ort_error("it holds no graph"))?;
        self.commit(builder, graph, |mut builder| builder.commit_from_memory(&model.to_bytes()))
    }

    fn commit(
        &self,
        mut builder: SessionBuilder,
        graph: &GraphProto,
        commit: impl FnOnce(SessionBuilder) -> Result<Session, ort::Error>,
    ) -> Result<WeightedSession, ort::Error> {
        if self.shared {
            builder = builder.with_prepacked_weights(&self.packed)?;
            for tensor in &graph.initializer {
                if let Some(value) = self.tensor(tensor)? {
                    builder = builder.with_initializer(&tensor.name, value)?;
                }
            }
        }
        Ok(WeightedSession { session: commit(builder)?, _mapped: Arc::clone(&self.mapped) })
    }

    /// Lets the system take back what the mapping has in memory: once all sessions are loaded, most of it is not read again.
    /// What is read again comes back from the file.
    pub fn drop_pages(&self) {
        #[cfg(unix)]
        #[allow(unsafe_code, reason = "advice to the system")]
        // SAFETY: the mapping is shared and never written, so its pages hold what the file holds, before and after. A refusal
        // costs memory and nothing else.
        let _refused = unsafe { self.mapped.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }

    /// The tensor over the mapped bytes; none if ONNX Runtime has to find its bytes itself, or what is wrong with them.
    #[allow(unsafe_code, reason = "a tensor over borrowed bytes")]
    fn tensor(&self, tensor: &TensorProto) -> Result<Option<Arc<DynValue>>, ort::Error> {
        let Some((bytes, element)) = position(tensor, &self.file, &self.mapped) else { return Ok(None) };
        // SAFETY: `position` has found as many aligned elements as `dims` say; the session that gets the tensor holds the mapping,
        // and lets go of it last.
        unsafe { in_place(bytes, &tensor.dims, element) }.map(|value| Some(Arc::new(value)))
    }
}

impl WeightedSession {
    /// Runs the graph.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn run<'s, 'i, 'v: 'i, const N: usize>(
        &'s mut self,
        inputs: impl Into<SessionInputs<'i, 'v, N>>,
    ) -> Result<SessionOutputs<'s>, ort::Error> {
        self.session.run(inputs)
    }

    /// Runs the graph on values that lie where they are: takes each input from `value_of`, and gives each of `outputs` at its position.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn run_in_place<'v>(
        &mut self,
        value_of: impl Fn(&str) -> Option<&'v DynValue>,
        outputs: &[(&str, &MemoryInfo)],
    ) -> Result<Vec<DynValue>, ort::Error> {
        let mut binding = self.session.create_binding()?;
        for input in self.session.inputs() {
            let name = input.name();
            let value = value_of(name).ok_or_else(|| ort_error(format_args!("nobody gives `{name}`")))?;
            binding.bind_input(name, value)?;
        }
        for (name, memory) in outputs {
            binding.bind_output_to_device(*name, memory)?;
        }
        let mut found = self.session.run_binding(&binding)?;
        let take = |(name, _): &(&str, &MemoryInfo)| {
            found.remove(name).ok_or_else(|| ort_error(format_args!("no `{name}` came of it")))
        };
        outputs.iter().map(take).collect()
    }

    /// What the graph takes.
    pub fn inputs(&self) -> &[Outlet] {
        self.session.inputs()
    }

    /// What it gives.
    pub fn outputs(&self) -> &[Outlet] {
        self.session.outputs()
    }
}

/// Where the tensor's bytes lie in `mapped`, the bytes of `file`: as many as its shape says, aligned for its elements.
fn position<'a>(tensor: &TensorProto, file: &str, mapped: &'a [u8]) -> Option<(&'a [u8], ElementType)> {
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

/// The type of a tensor's elements and their size in bytes, if it is one that exports store.
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

#[allow(
    unsafe_code,
    reason = "a file is mapped, so that its bytes are in memory once and only as long as they are read"
)]
fn map(path: &Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: an export puts a new folder in the position of the old one and writes to no file that is there; the deployment guide
    // says the same of any other way in which a model comes. ONNX Runtime itself maps weights with the same condition.
    unsafe { Mmap::map(&file) }
}

/// A tensor whose elements are these bytes, where they lie: ort itself makes such tensors for the time of a run only, not of a
/// session.
///
/// # Safety
/// `bytes` hold as many elements as `dims` say, aligned for them, and outlive the tensor and every session that it is given to.
#[allow(unsafe_code, reason = "a call into the C library")]
unsafe fn in_place(bytes: &[u8], dims: &[i64], element: ElementType) -> Result<DynValue, ort::Error> {
    let (memory, allocator, mut made) = (MemoryInfo::default(), Allocator::default(), ptr::null_mut());
    let data = bytes.as_ptr().cast_mut().cast();
    // SAFETY: all pointers live through the call, which keeps none but that to the bytes. ONNX Runtime never writes to a
    // session's weights.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            data,
            bytes.len(),
            dims.as_ptr(),
            dims.len(),
            element,
            &mut made,
        )
    };
    // SAFETY: the status comes from the call above and is looked at once.
    unsafe { ort::Error::result_from_status(status) }?;
    let made = ptr::NonNull::new(made).ok_or_else(|| ort_error("no tensor was made"))?;
    // SAFETY: the value is new and nobody else's. The allocator is not asked to free the bytes, which are not its own.
    Ok(unsafe { DynValue::from_ptr(made, Some(&allocator)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::onnx::StringStringEntryProto;

    #[test]
    fn only_what_lies_in_the_file_as_its_shape_says_is_taken() {
        /// Sixteen floats, aligned as a mapping is.
        #[repr(align(64))]
        struct File([u8; 64]);
        let file = File([0; 64]);
        let mapped = &file.0;
        let taken = |dims: &[i64], data_type: DataType, entries: [(&str, &str); 3]| {
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
            position(&tensor, "weights.bin", mapped).map(|(bytes, _)| bytes.len())
        };
        let at = |offset, length| [("location", "weights.bin"), ("offset", offset), ("length", length)];
        let check =
            |name: &str, found: Option<usize>, expect: Option<usize>| assert_eq!(found, expect, "{name}");
        let float = DataType::Float;
        check("a matrix", taken(&[2, 4], float, at("0", "32")), Some(32));
        check("to the last byte", taken(&[4], float, at("48", "16")), Some(16));
        check("a scalar", taken(&[], float, at("4", "4")), Some(4));
        check("bytes", taken(&[3], DataType::Int8, at("5", "3")), Some(3));
        check("nothing", taken(&[0], float, at("64", "0")), Some(0));
        check("beyond the end", taken(&[4], float, at("52", "16")), None);
        check("so far that it wraps", taken(&[4], float, at("18446744073709551612", "16")), None);
        check("more than the shape", taken(&[3], float, at("0", "16")), None);
        check("less than the shape", taken(&[5], float, at("0", "16")), None);
        check("a shape without end", taken(&[i64::MAX, i64::MAX], float, at("0", "16")), None);
        check("a negative shape", taken(&[-4], float, at("0", "16")), None);
        check("between elements", taken(&[4], float, at("2", "16")), None);
        check("another type", taken(&[4], DataType::Undefined, at("0", "16")), None);
        check("no number", taken(&[4], float, at("0", "0x10")), None);
        let elsewhere = [("location", "other.bin"), ("offset", "0"), ("length", "16")];
        check("another file", taken(&[4], float, elsewhere), None);
        check(
            "no offset",
            taken(&[4], float, [("location", "weights.bin"), ("x", "0"), ("length", "16")]),
            None,
        );
    }
}
