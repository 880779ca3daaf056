//! A peer program (sentence-transformers) that encodes the same texts for comparison. It keeps running, so
//! that its rounds alternate with Thresher's.
//!
//! The protocol is JSON Lines: texts go in; token counts and seconds come out. The other end is in
//! `peers/` of this crate.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("../peers/encode_texts.py");

/// What runs the peer's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// ONNX Runtime, on the CPU.
    Onnx,
    /// PyTorch, on the CPU or on a GPU.
    Torch,
}

impl Backend {
    /// Returns the backend that suits a device: ONNX Runtime is the faster one on a CPU, PyTorch on a GPU.
    pub fn of_device(device: &str) -> Self {
        if device == "cpu" { Self::Onnx } else { Self::Torch }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Torch => "torch",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Onnx => "ONNX Runtime",
            Self::Torch => "PyTorch",
        }
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Onnx, Self::Torch];
        let found = all.into_iter().find(|backend| backend.as_str() == text);
        found.ok_or_else(|| "must be onnx or torch".to_owned())
    }
}

#[derive(Debug, Clone)]
pub struct PeerSettings {
    /// Python interpreter with sentence-transformers, and optimum-onnx for [`Backend::Onnx`].
    pub python: PathBuf,
    /// Hugging Face folder that Thresher's model was exported from.
    pub model: PathBuf,
    pub backend: Backend,
    /// The device: `cpu`, `cuda:0`, ...
    pub device: String,
    /// The precision of weights and activations: `f32` or `f16`.
    pub precision: &'static str,
    pub threads: usize,
    pub batch: usize,
}

impl PeerSettings {
    /// Returns the settings of the peers that are compared on the device of `self`: f32, and on a GPU also f16.
    pub fn in_each_precision(self) -> Vec<Self> {
        let precisions: &[&str] = if self.device == "cpu" { &["f32"] } else { &["f32", "f16"] };
        precisions.iter().map(|&precision| Self { precision, ..self.clone() }).collect()
    }
}

pub struct Peer {
    settings: PeerSettings,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    versions: Value,
}

#[derive(Deserialize)]
struct Ready {
    versions: Value,
}

#[derive(Deserialize)]
struct Encoded {
    tokens: usize,
    seconds: f64,
}

impl Peer {
    /// Starts the peer and waits until its model is loaded.
    ///
    /// # Errors
    /// Fails if the peer cannot be started or exits early. Its standard error goes to this process's standard
    /// error.
    pub fn start(settings: PeerSettings) -> anyhow::Result<Self> {
        let mut child = Command::new(&settings.python)
            .args(["-c", SCRIPT, "--threads", &settings.threads.to_string()])
            .args(["--batch-size", &settings.batch.to_string(), "--backend", settings.backend.as_str()])
            .args(["--device", &settings.device, "--precision", settings.precision, "--model"])
            .arg(&settings.model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", settings.python.display()))?;
        let input = child.stdin.take().context("the peer has no standard input")?;
        let output = child.stdout.take().context("the peer has no standard output")?;
        let output = BufReader::new(output).lines();
        let mut peer = Self { settings, child, input, output, versions: Value::Null };
        peer.versions = peer.answer::<Ready>()?.versions;
        Ok(peer)
    }

    /// Lets the peer encode `texts` and returns the time that it measured itself. `tokens` is the number of
    /// tokens that Thresher counts in the texts.
    ///
    /// # Errors
    /// Fails if the peer exits, or if it counts another number of tokens, because the times would not be
    /// comparable.
    pub fn encode(&mut self, texts: &[&str], tokens: usize) -> anyhow::Result<Duration> {
        writeln!(self.input, "{}", serde_json::to_string(texts)?).context("the peer exited")?;
        let encoded: Encoded = self.answer()?;
        ensure!(
            encoded.tokens == tokens,
            "the peer counted {} tokens where Thresher counts {tokens}; use a model with the same tokenizer (--peer-model)",
            encoded.tokens
        );
        Ok(Duration::from_secs_f64(encoded.seconds))
    }

    /// Stops the peer and returns its name, versions and settings as JSON.
    pub fn finish(mut self) -> Value {
        drop(self.input);
        let _ = self.child.wait();
        let PeerSettings { backend, device, precision, threads, batch, .. } = self.settings;
        json!({
            "name": format!("sentence-transformers, {}, {precision}", backend.name()),
            "versions": self.versions,
            "device": device,
            "precision": precision,
            "threads": threads,
            "batch_size": batch,
        })
    }

    fn answer<T: serde::de::DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        match self.output.next() {
            Some(line) => serde_json::from_str(&line?).context("the peer sent an unexpected line"),
            None => bail!("the peer exited without a reply; its own error message is above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_follow_the_device() {
        let check = |device: &str, expect: (Backend, &[&str])| {
            let backend = Backend::of_device(device);
            let device = device.to_owned();
            let (python, model) = (PathBuf::new(), PathBuf::new());
            let settings =
                PeerSettings { python, model, backend, device, precision: "f32", threads: 1, batch: 1 };
            let peers = settings.in_each_precision();
            let precisions: Vec<&str> = peers.iter().map(|peer| peer.precision).collect();
            assert_eq!((backend, &precisions[..]), expect);
        };
        check("cpu", (Backend::Onnx, &["f32"]));
        check("cuda:0", (Backend::Torch, &["f32", "f16"]));
        assert_eq!("torch".parse(), Ok(Backend::Torch));
        assert!("cuda".parse::<Backend>().is_err());
    }
}
