//! The device that sessions run on: it is tested once when a model is loaded, and every session is configured
//! for it. Knows nothing of what the sessions compute.

use ort::environment::Environment;
use ort::ep::CPU;
#[cfg(feature = "cuda")]
use ort::ep::{ArenaExtendStrategy, CUDA};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::SessionBuilder;

use crate::model::ModelError;
use crate::model::device::{DeviceChoice, DeviceInUse};
use crate::model::onnx;

/// A device that has been tested and can be used.
#[derive(Debug, Clone)]
pub struct Device {
    /// The number of the GPU; `None` is the CPU.
    cuda: Option<u16>,
    memory_bytes_max: Option<usize>,
    in_use: DeviceInUse,
}

impl Device {
    /// Returns the device for a user's choice. Sessions on a GPU allocate at most `memory_bytes_max` bytes; 0
    /// means no limit.
    ///
    /// # Errors
    /// Returns [`ModelError::Device`] if the user chose a GPU by number and it cannot be used.
    pub fn choose(
        environment: &Environment,
        choice: DeviceChoice,
        memory_bytes_max: u64,
    ) -> Result<Self, ModelError> {
        let cpu = |gpu_unavailable_reason| Self {
            cuda: None,
            memory_bytes_max: None,
            in_use: DeviceInUse { gpu_unavailable_reason, ..DeviceInUse::cpu() },
        };
        let cuda = |number: u16| Self {
            cuda: Some(number),
            memory_bytes_max: usize::try_from(memory_bytes_max).ok().filter(|max| *max > 0),
            in_use: DeviceInUse { name: format!("cuda:{number}"), gpu_unavailable_reason: None },
        };
        match choice {
            DeviceChoice::Cpu => Ok(cpu(None)),
            DeviceChoice::Cuda(number) => {
                let device = cuda(number);
                let refused =
                    |e: ort::Error| ModelError::Device { device: choice.to_string(), reason: reason(&e) };
                device.test(environment).map_err(refused)?;
                Ok(device)
            }
            DeviceChoice::Auto => match cuda(0).test(environment) {
                Ok(()) => Ok(cuda(0)),
                Err(e) => Ok(cpu(Some(reason(&e)))),
            },
        }
    }

    /// Returns whether the device is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.cuda.is_none()
    }

    /// Returns the description of the device for the rest of the program.
    pub fn in_use(&self) -> &DeviceInUse {
        &self.in_use
    }

    /// Returns the device with its memory limit divided by the number of sessions, because each session has
    /// its own arena.
    pub fn shared_by(&self, sessions: usize) -> Self {
        self.with_share(1, sessions)
    }

    /// Returns the device with `parts` of `all` equal parts of its memory limit.
    pub fn with_share(&self, parts: usize, all: usize) -> Self {
        let memory_bytes_max = self.memory_bytes_max.map(|max| (max / all.max(1) * parts).max(1));
        Self { memory_bytes_max, ..self.clone() }
    }

    /// Configures a session for the device.
    ///
    /// # Errors
    /// Fails if the library of ONNX Runtime does not have the CUDA execution provider.
    pub fn configure(&self, builder: SessionBuilder) -> Result<SessionBuilder, ort::Error> {
        let Some(number) = self.cuda else { return Ok(builder) };
        self.with_cuda(builder, number)
    }

    #[cfg(not(feature = "cuda"))]
    fn with_cuda(&self, _: SessionBuilder, _: u16) -> Result<SessionBuilder, ort::Error> {
        Err(ort::Error::new("this program was built without the feature `cuda`"))
    }

    #[cfg(feature = "cuda")]
    fn with_cuda(&self, builder: SessionBuilder, number: u16) -> Result<SessionBuilder, ort::Error> {
        // The arena grows by the requested size instead of doubling, so that it stays within the user's
        // limit.
        let mut cuda = CUDA::default()
            .with_device_id(i32::from(number))
            // TF32 multiplies with 10 bits of mantissa. Machines share cached blocks, so keys must have
            // single precision on all of them.
            .with_tf32(false)
            .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested);
        if let Some(max) = self.memory_bytes_max {
            cuda = cuda.with_memory_limit(max);
        }
        Ok(builder.with_execution_providers([cuda.build().error_on_failure()])?)
    }

    /// Configures a session as one of many that run one after the other: on the CPU it returns its memory
    /// after each run, because otherwise each session would keep the memory of its largest run. On a GPU
    /// sessions keep their memory, within their limit, because allocation is slow there.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn without_arena(&self, builder: SessionBuilder) -> Result<SessionBuilder, ort::Error> {
        let builder = builder.with_memory_pattern(false)?;
        if !self.is_cpu() {
            return Ok(builder);
        }
        Ok(builder.with_execution_providers([CPU::default().with_arena_allocator(false).build()])?)
    }

    /// Returns the memory in which a session leaves outputs that are inputs of the next session: the device's
    /// own.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn memory(&self) -> Result<MemoryInfo<'static>, ort::Error> {
        match self.cuda {
            None => Ok(MemoryInfo::default()),
            Some(number) => MemoryInfo::new(
                AllocationDevice::CUDA,
                i32::from(number),
                AllocatorType::Device,
                MemoryType::Default,
            ),
        }
    }

    /// Loads a minimal graph on the device, which succeeds only if libraries, driver and device are present.
    fn test(&self, environment: &Environment) -> Result<(), ort::Error> {
        let mut builder = self.configure(Session::builder(environment)?)?;
        builder.commit_from_memory(&onnx::identity().to_bytes()).map(drop)
    }
}

/// Returns the message of an error of ONNX Runtime without its source location and error number.
fn reason(error: &ort::Error) -> String {
    let message = error.to_string();
    let first_line = message.lines().next().unwrap_or_default();
    let reason = first_line
        .split_once("[ONNXRuntimeError] : ")
        .and_then(|(_, rest)| rest.splitn(3, " : ").nth(2))
        .unwrap_or(first_line);
    reason.trim().trim_end_matches('.').to_owned()
}
