//! A peer program (sentence-transformers) that encodes the same texts for comparison. It keeps running, so
//! that its rounds alternate with Thresher's.
//!
//! The protocol is JSON Lines: texts go in; token counts and seconds come out. The other end is in
//! `peers/` of this crate.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("../../peers/sentence_transformers_onnx.py");

/// Settings of the peer process.
#[derive(Debug, Clone)]
pub struct PeerSettings {
    /// Python interpreter with sentence-transformers and optimum-onnx.
    pub python: PathBuf,
    /// Hugging Face folder that Thresher's model was exported from.
    pub model: PathBuf,
    /// Number of threads of the peer's runtime.
    pub threads: usize,
    /// Number of texts in a batch.
    pub batch: usize,
}

/// A running peer process.
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
            .args(["--batch-size", &settings.batch.to_string(), "--model"])
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
        json!({
            "name": "sentence-transformers, ONNX Runtime",
            "versions": self.versions,
            "threads": self.settings.threads,
            "batch_size": self.settings.batch,
        })
    }

    fn answer<T: serde::de::DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        match self.output.next() {
            Some(line) => serde_json::from_str(&line?).context("the peer sent an unexpected line"),
            None => bail!("the peer exited without a reply; its own error message is above"),
        }
    }
}
