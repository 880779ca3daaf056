//! Where a model runs: what a user may ask for, and what became of it.
//! Knows nothing of how a runtime is told.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where the user wants the model to run; in text `cpu`, `cuda:0`, `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// The GPU of this number, or an error.
    Cuda(u16),
    /// The first GPU where there is one that works, else the processor.
    Auto,
}

/// Where a model runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInUse {
    /// `cpu` or `cuda:0`.
    pub name: String,
    /// Why it is not the GPU that `auto` looked for first.
    pub instead_of_gpu: Option<String>,
}

/// The text names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {0:?} is not cpu, auto, or cuda and a number, such as cuda:0")]
pub struct UnknownDevice(String);

impl DeviceInUse {
    /// The processor, as asked for.
    pub fn cpu() -> Self {
        Self { name: "cpu".to_owned(), instead_of_gpu: None }
    }
}

impl fmt::Display for DeviceInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.instead_of_gpu.as_ref().map_or(Ok(()), |why| write!(f, " (no GPU: {why})"))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Self::Cuda).ok_or_else(|| UnknownDevice(text.to_owned()))
            }
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = UnknownDevice;

    fn try_from(text: String) -> Result<Self, UnknownDevice> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> Self {
        choice.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_others_are_refused() {
        for choice in [DeviceChoice::Cpu, DeviceChoice::Cuda(0), DeviceChoice::Cuda(3), DeviceChoice::Auto] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "CPU"] {
            let said = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(said.contains(&format!("{text:?}")) && said.contains("cuda:0"), "{said}");
        }
    }
}
