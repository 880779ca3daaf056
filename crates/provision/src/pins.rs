//! The pins: which wheel of which package, and which of its files, with their checksums.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::ProvisionError;

/// `models/pins.json`, which `models/provision.py` reads, too.
static PINS: LazyLock<BTreeMap<String, Pin>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../models/pins.json")).expect("the pins are checked by a test")
});

/// Something that is fetched as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// ONNX Runtime for the CPU.
    Runtime,
    RuntimeGpu,
    /// The Hugging Face directory of the default model.
    Model,
    ModelMultilingual,
    /// The folder of answerai-colbert-small.
    ModelColbert,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pin {
    pub package: String,
    pub version: String,
    pub folder: String,
    /// The wheels by platform; `any` holds for all.
    wheels: BTreeMap<String, Wheel>,
}

/// A wheel, and those of its files that are needed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Wheel {
    pub file: String,
    pub bytes: u64,
    /// In hexadecimal, as in [`Member`].
    pub sha256: String,
    /// Its files, by the path that each gets in the target.
    pub files: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Member {
    /// The path of the file in the wheel.
    pub member: String,
    pub sha256: String,
}

impl Pin {
    pub fn find(item: Item) -> Self {
        let name = match item {
            Item::Runtime => "runtime",
            Item::RuntimeGpu => "runtime-gpu",
            Item::Model => "model",
            Item::ModelMultilingual => "model-multilingual",
            Item::ModelColbert => "model-colbert",
        };
        PINS[name].clone()
    }

    /// Returns the SHA-256 of a file in hexadecimal; `None` if it is not pinned, or not for all platforms.
    pub fn sha256(&self, file: &str) -> Option<&str> {
        self.wheels.get("any")?.files.get(file).map(|member| &*member.sha256)
    }

    pub(crate) fn wheel_for(&self, platform: &str) -> Result<&Wheel, ProvisionError> {
        self.wheels.get(platform).or_else(|| self.wheels.get("any")).ok_or_else(|| ProvisionError::Platform {
            package: self.package.clone(),
            version: self.version.clone(),
            platform: platform.to_owned(),
            pinned: self.wheels.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}

/// Returns the name of this platform in the pins, such as `linux-x86_64`.
pub fn platform() -> String {
    match (OS, ARCH) {
        ("macos", "aarch64") => "macos-arm64".to_owned(),
        _ => format!("{OS}-{ARCH}"),
    }
}
