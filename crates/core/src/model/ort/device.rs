//! The device that sessions run on: it is tested once when a model is loaded, and every session is configured
//! for it. Knows nothing of what the sessions compute.

use ort::environment::Environment;
use ort::ep::CPU;
#[cfg(feature = "cuda")]
use ort::ep::{ArenaExtendStrategy, CUDA, cuda::AttentionBackend};
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::value::Tensor;

use super::{OrtSettings, cpu_kernels, without_places};
use crate::model::ModelError;
use crate::model::device::{DeviceChoice, DeviceInUse};
use crate::model::onnx;

/// A device that has been tested and can be used.
#[derive(Debug, Clone)]
pub struct Device {
    /// The number of the GPU; `None` is the CPU.
    cuda: Option<u16>,
    /// Whether the provider of the GPU allocates memory of the host that it copies from and to at full speed.
    pins_memory: bool,
    memory_bytes_max: Option<usize>,
    in_use: DeviceInUse,
}

impl Device {
    /// Returns the device that the user chose in `settings`, with its limit of memory and its arithmetic.
    ///
    /// # Errors
    /// Returns [`ModelError::Device`] if the user chose a GPU by number and it cannot be used.
    pub fn choose(environment: &Environment, settings: &OrtSettings) -> Result<Self, ModelError> {
        let choice = settings.device;
        let cpu = |gpu_unavailable_reason| Self {
            cuda: None,
            pins_memory: false,
            memory_bytes_max: None,
            in_use: DeviceInUse { gpu_unavailable_reason, ..DeviceInUse::cpu() },
        };
        let cuda = |number: u16| Self {
            cuda: Some(number),
            pins_memory: false,
            memory_bytes_max: usize::try_from(settings.device_memory_bytes_max).ok().filter(|max| *max > 0),
            in_use: DeviceInUse { name: format!("cuda:{number}"), gpu_unavailable_reason: None },
        };
        match choice {
            DeviceChoice::Cpu => Ok(cpu(None)),
            DeviceChoice::Cuda(number) => {
                let refused =
                    |e: ort::Error| ModelError::Device { device: choice.to_string(), reason: reason(&e) };
                cuda(number).tested(environment).map_err(refused)
            }
            DeviceChoice::Auto => Ok(cuda(0).tested(environment).unwrap_or_else(|e| cpu(Some(reason(&e))))),
        }
    }

    pub fn is_cpu(&self) -> bool {
        self.cuda.is_none()
    }

    /// Returns the name of how the device multiplies where results depend on it (see [`Weights::is_exact`](crate::model::contract::Weights::is_exact)).
    pub fn arithmetic(&self) -> &'static str {
        if self.is_cpu() { cpu_kernels() } else { "cuda" }
    }

    /// Returns the largest number of bytes that sessions on a GPU allocate; `None` means no limit.
    pub fn memory_bytes_max(&self) -> Option<usize> {
        self.memory_bytes_max
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

    /// Divides the memory limit between two sessions, the first of which has `weights` bytes of weights and needs little
    /// else.
    pub fn divided_after(&self, weights: usize) -> [Self; 2] {
        let of_first = |max: usize| (weights.saturating_add(max / 8)).min(max - 1).max(1);
        let with = |memory_bytes_max| Self { memory_bytes_max, ..self.clone() };
        [
            with(self.memory_bytes_max.map(of_first)),
            with(self.memory_bytes_max.map(|max| max - of_first(max))),
        ]
    }

    /// Returns the device with the memory limit of one of many sessions that run one after the other and keep only
    /// their weights in between: `own` of all `weights`, in bytes. The limit is what the weights of the others leave.
    pub fn beside_weights(&self, weights: usize, own: usize) -> Self {
        let others = weights.saturating_sub(own);
        let memory_bytes_max = self.memory_bytes_max.map(|max| max.saturating_sub(others).max(1));
        Self { memory_bytes_max, ..self.clone() }
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
        // Without this, ONNX Runtime takes cuDNN's attention on a Hopper GPU, which compiles a kernel for each new length of a question and
        // each new shape of a batch, for 50 ms.
        let attention = AttentionBackend::FLASH_ATTENTION | AttentionBackend::EFFICIENT_ATTENTION;
        // The arena grows by the requested size instead of doubling, so that it stays within the user's
        // limit.
        let mut cuda = CUDA::default()
            .with_device_id(i32::from(number))
            .with_tf32(false)
            .with_attention_backend(attention)
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

    /// Returns the name of the arena of a GPU in the options of a run; `None` for the CPU.
    pub fn arena(&self) -> Option<String> {
        self.cuda.map(|number| format!("gpu:{number}"))
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

    /// Returns the memory of the host that inputs are copied from and outputs are copied to. On a GPU it is pinned:
    /// the system does not move it, so the GPU reads and writes it directly instead of through a buffer of the driver.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn host_memory(&self) -> Result<MemoryInfo<'static>, ort::Error> {
        match self.cuda {
            Some(number) if self.pins_memory => MemoryInfo::new(
                AllocationDevice::CUDA_PINNED,
                i32::from(number),
                AllocatorType::Device,
                MemoryType::CPUOutput,
            ),
            _ => Ok(MemoryInfo::default()),
        }
    }

    /// Returns an allocator of [`Self::host_memory`]. Pinned memory belongs to a session.
    ///
    /// # Errors
    /// Returns an error of the runtime.
    pub fn host_allocator(&self, session: &Session) -> Result<Allocator, ort::Error> {
        if self.pins_memory { Allocator::new(session, self.host_memory()?) } else { Ok(Allocator::default()) }
    }

    /// Runs a minimal graph on the device, which succeeds only if libraries, driver and device are present. Without
    /// pinned memory, the device can be used all the same.
    fn tested(self, environment: &Environment) -> Result<Self, ort::Error> {
        let mut builder = self.configure(Session::builder(environment)?)?;
        let mut session = builder.commit_from_memory(&onnx::identity().to_bytes())?;
        self.run_minimal(&mut session)?;
        let pinned = Self { pins_memory: true, ..self.clone() };
        match pinned.run_minimal(&mut session) {
            Ok(()) => Ok(pinned),
            Err(error) => {
                tracing::warn!(device = %self.in_use, %error, "the device cannot pin memory, so copies are slower");
                Ok(self)
            }
        }
    }

    /// Sends a number from the memory of the host through the device and back.
    fn run_minimal(&self, session: &mut Session) -> Result<(), ort::Error> {
        let mut number = Tensor::<f32>::new(&self.host_allocator(session)?, [1_usize])?;
        number.try_extract_tensor_mut::<f32>()?.1.fill(1.5);
        let mut binding = session.create_binding()?;
        binding.bind_input("x", &number)?;
        binding.bind_output_to_device("y", &self.host_memory()?)?;
        let outputs = session.run_binding(&binding)?;
        match outputs["y"].try_extract_tensor::<f32>()?.1 {
            [1.5] => Ok(()),
            other => Err(ort::Error::new(format!("sent 1.5 through the device and got {other:?}"))),
        }
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
    without_places(reason).trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_together_stay_within_the_limit() {
        let with = |memory_bytes_max| {
            let in_use = DeviceInUse { name: "cuda:0".to_owned(), ..DeviceInUse::cpu() };
            Device { cuda: Some(0), pins_memory: false, memory_bytes_max, in_use }
        };
        let limited = with(Some(800));
        let limits = |devices: [Device; 2]| devices.map(|device| device.memory_bytes_max());
        assert_eq!(limits(limited.divided_after(150)), [Some(250), Some(550)]);
        assert_eq!(limits(limited.divided_after(5_000)), [Some(799), Some(1)]);
        assert_eq!(limits(with(None).divided_after(150)), [None, None]);
        // A session has what the weights of all others leave.
        assert_eq!(limited.beside_weights(500, 100).memory_bytes_max(), Some(400));
        assert_eq!(limited.beside_weights(5_000, 100).memory_bytes_max(), Some(1));
        assert_eq!(with(None).beside_weights(500, 100).memory_bytes_max(), None);
        assert_eq!(limited.with_share(3, 8).memory_bytes_max(), Some(300));
    }
}
