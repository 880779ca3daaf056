//! A contract's weights, once for all sessions of its graphs: the file is mapped, and what ONNX Runtime makes of it is shared.
//! Knows nothing of what the graphs compute.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use memmap2::Mmap;
use ort::AsPointer;
use ort::memory::{Allocator, MemoryInfo};
use ort::session::Session;
use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::sys::ONNXTensorElementDataType as ElementType;
use ort::value::DynValue;

use super::{graph_error, ort_error};
use crate::model::ModelError;
use crate::model::contract::Contract;
use crate::model::onnx::{DataType, TensorProto, read_graph};

/// Before it multiplies with a matrix, ONNX Runtime packs it: copies it into the order that its kernels read. Sessions that are handed
/// the same tensors and the same container find what the first of them has packed. What needs no packing they read where it lies.
pub struct SharedWeights {
    /// Name of the file, as graphs and contract give it.
    file: String,
    mapped: Arc<Mmap>,
    packed: PrepackedWeights,
}

/// A session that reads shared weights. The session goes first, then the mapping that it reads.
pub struct WeightedSession {
    session: Session,
    _mapped: Arc<Mmap>,
}

impl SharedWeights {
    /// Maps the weights of a contract in `dir`. Tensors in other files, and in the graphs, stay each session's own.
    ///
    /// # Errors
    /// [`ModelError::Graph`] when the file cannot be mapped.
    pub fn open(contract: &Contract, dir: &Path) -> Result<Self, ModelError> {
        let file = contract.graphs.weights.clone();
        let mapped = map(&dir.join(&file)).map_err(|e| graph_error(&file, e))?;
        Ok(Self { file, mapped: Arc::new(mapped), packed: PrepackedWeights::new() })
    }

    /// Loads a graph's session with these weights; `builder` holds everything else that it is told.
    ///
    /// # Errors
    /// A graph that cannot be read; what the runtime reports.
    pub fn session(&self, mut builder: SessionBuilder, path: &Path) -> Result<WeightedSession, ort::Error> {
        builder = builder.with_prepacked_weights(&self.packed)?;
        for tensor in &read_graph(path).map_err(ort_error)?.initializer {
            if let Some(value) = self.tensor(tensor)? {
                builder = builder.with_initializer(&tensor.name, value)?;
            }
        }
        Ok(WeightedSession { session: builder.commit_from_file(path)?, _mapped: Arc::clone(&self.mapped) })
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
    fn tensor(&self, tensor: &TensorProto) -> Result<Option<Arc<DynValue>>, ort::Error> {
        let entry =
            |key| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value);
        let number = |key| entry(key).and_then(|number| number.parse::<usize>().ok());
        let Some((element, size)) = element(tensor) else { return Ok(None) };
        let in_shape =
            |bytes: usize, &dim: &i64| usize::try_from(dim).ok().and_then(|dim| bytes.checked_mul(dim));
        let expected = tensor.dims.iter().try_fold(size, in_shape);
        let bytes = number("offset")
            .zip(number("length"))
            .and_then(|(offset, length)| self.mapped.get(offset..offset.checked_add(length)?))
            .filter(|bytes| Some(bytes.len()) == expected && bytes.as_ptr().align_offset(size) == 0)
            .filter(|_| entry("location") == Some(&*self.file));
        bytes.map(|bytes| in_place(bytes, &tensor.dims, element).map(Arc::new)).transpose()
    }
}

impl Deref for WeightedSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for WeightedSession {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// The type of a tensor's elements and their size in bytes, if it is one that exports store.
fn element(tensor: &TensorProto) -> Option<(ElementType, usize)> {
    match DataType::try_from(tensor.data_type) {
        Ok(DataType::Float) => Some((ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4)),
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
    // SAFETY: an export puts a new folder in the place of the old one and writes to no file that is there; the deployment guide
    // says the same of any other way in which a model comes. ONNX Runtime itself maps weights with the same condition.
    unsafe { Mmap::map(&file) }
}

/// A tensor whose elements are these bytes, where they lie. It is to be dropped before them.
#[allow(
    unsafe_code,
    reason = "ort makes tensors over borrowed bytes only for the time of a run, not of a session"
)]
fn in_place(bytes: &[u8], dims: &[i64], element: ElementType) -> Result<DynValue, ort::Error> {
    let (memory, allocator, mut made) = (MemoryInfo::default(), Allocator::default(), ptr::null_mut());
    let data = bytes.as_ptr().cast_mut().cast();
    // SAFETY: the caller has seen that `bytes` hold as many elements of this type as the shape says, aligned for it; all
    // pointers live through the call, which keeps none but that to the bytes. ONNX Runtime never writes to a session's weights.
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
