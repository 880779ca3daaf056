//! Which device sessions run on: tried once when a model is loaded, told to every session.
//! Knows nothing of what the sessions compute.

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

/// A device that works.
#[derive(Debug, Clone)]
pub struct Device {
    /// Number of the GPU.
    cuda: Option<u16>,
    memory_bytes_max: Option<usize>,
    in_use: DeviceInUse,
}

impl Device {
    /// The device that `choice` comes to, with at most so many bytes of its memory; 0: as many as it has.
    ///
    /// # Errors
    /// [`ModelError::Device`] when a GPU is asked for by number and does not work.
    pub fn choose(
        environment: &Environment,
        choice: DeviceChoice,
        memory_bytes_max: u64,
    ) -> Result<Self, ModelError> {
        let cpu = |instead_of_gpu| Self {
            cuda: None,
            memory_bytes_max: None,
            in_use: DeviceInUse { instead_of_gpu, ..DeviceInUse::cpu() },
        };
        let cuda = |number: u16| Self {
            cuda: Some(number),
            memory_bytes_max: usize::try_from(memory_bytes_max).ok().filter(|max| *max > 0),
            in_use: DeviceInUse { name: format!("cuda:{number}"), instead_of_gpu: None },
        };
        match choice {
            DeviceChoice::Cpu => Ok(cpu(None)),
            DeviceChoice::Cuda(number) => {
                let device = cuda(number);
                let refused =
                    |e: ort::Error| ModelError::Device { device: choice.to_string(), reason: reason(&e) };
                device.try_out(environment).map_err(refused)?;
                Ok(device)
            }
            DeviceChoice::Auto => match cuda(0).try_out(environment) {
                Ok(()) => Ok(cuda(0)),
                Err(e) => Ok(cpu(Some(reason(&e)))),
            },
        }
    }

    /// Whether it is the processor.
    pub fn is_cpu(&self) -> bool {
        self.cuda.is_none()
    }

    /// What the rest of the program may know of it.
    pub fn in_use(&self) -> &DeviceInUse {
        &self.in_use
    }

    /// The same, with its memory divided among so many sessions: each has an arena of its own.
    pub fn shared_by(&self, sessions: usize) -> Self {
        let memory_bytes_max = self.memory_bytes_max.map(|max| (max / sessions.max(1)).max(1));
        Self { memory_bytes_max, ..self.clone() }
    }

    /// Tells a session about it.
    ///
    /// # Errors
    /// A provider that is not there.
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
        // What a user allows is a bound, so memory is taken as it is needed, not doubled.
        let mut cuda = CUDA::default()
            .with_device_id(i32::from(number))
            // Ten bits of a product are not single precision, by which blocks are one and the same for a fleet.
            .with_tf32(false)
            .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested);
        if let Some(max) = self.memory_bytes_max {
            cuda = cuda.with_memory_limit(max);
        }
        Ok(builder.with_execution_providers([cuda.build().error_on_failure()])?)
    }

    /// Tells a session on the processor that it is one of many which run in turn: each would keep the memory of its largest run. On a
    /// GPU, where memory is slow to come by, they do, within their bound.
    ///
    /// # Errors
    /// What the runtime reports.
    pub fn without_arena(&self, builder: SessionBuilder) -> Result<SessionBuilder, ort::Error> {
        let builder = builder.with_memory_pattern(false)?;
        if !self.is_cpu() {
            return Ok(builder);
        }
        Ok(builder.with_execution_providers([CPU::default().with_arena_allocator(false).build()])?)
    }

    /// Where what goes from one session to the next stays.
    ///
    /// # Errors
    /// What the runtime reports.
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

    /// Loads the smallest graph there is on it: libraries, driver and device are then all there.
    fn try_out(&self, environment: &Environment) -> Result<(), ort::Error> {
        let mut builder = self.configure(Session::builder(environment)?)?;
        builder.commit_from_memory(&onnx::identity().to_bytes()).map(drop)
    }
}

/// The runtime's own words, without the position in its source and the number of its error.
fn reason(error: &ort::Error) -> String {
    let said = error.to_string();
    let said = said.lines().next().unwrap_or_default();
    let said = said
        .split_once("[ONNXRuntimeError] : ")
        .and_then(|(_, said)| said.splitn(3, " : ").nth(2))
        .unwrap_or(said);
    said.trim().trim_end_matches('.').to_owned()
}
