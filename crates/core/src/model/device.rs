//! The device that a model runs on: the user's choice and the device in use. Knows nothing of how a runtime
//! is configured.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The device that the user chooses. Its text form is `cpu`, `cuda:N` or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The CPU. This is the default.
    #[default]
    Cpu,
    /// The NVIDIA GPU with this number. Loading the model fails if the GPU cannot be used.
    Cuda(u16),
    /// The first GPU (`cuda:0`) if it can be used, otherwise the CPU.
    Auto,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInUse {
    /// The name of the device: `cpu`, `cuda:0`, ...
    pub name: String,
    /// Why the GPU cannot be used, if [`DeviceChoice::Auto`] fell back to the CPU.
    pub gpu_unavailable_reason: Option<String>,
}

/// The error for a text that is not the text form of a [`DeviceChoice`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {0:?} is not cpu, auto, or cuda and a number, such as cuda:0")]
pub struct UnknownDevice(String);

impl DeviceInUse {
    /// Returns the CPU as the user's choice, without a reason why no GPU is used.
    pub fn cpu() -> Self {
        Self { name: "cpu".to_owned(), gpu_unavailable_reason: None }
    }

    pub fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }
}

impl fmt::Display for DeviceInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.gpu_unavailable_reason.as_ref().map_or(Ok(()), |why| write!(f, " (no GPU: {why})"))
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
    fn text_forms_parse_back_and_other_texts_are_refused() {
        for choice in [DeviceChoice::Cpu, DeviceChoice::Cuda(0), DeviceChoice::Cuda(3), DeviceChoice::Auto] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "CPU"] {
            let message = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(message.contains(&format!("{text:?}")) && message.contains("cuda:0"), "{message}");
        }
    }
}
