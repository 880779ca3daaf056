//! Another program that reads the same texts, kept running so that its rounds alternate with ours.
//! Speaks JSON lines: texts go in, tokens and seconds come out (`benches/peers/` has the other end).

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("../../../../benches/peers/sentence_transformers_onnx.py");

/// How to start it.
#[derive(Debug, Clone)]
pub struct PeerSettings {
    /// A Python with sentence-transformers and optimum-onnx.
    pub python: PathBuf,
    /// The Hugging Face folder that our model was exported from.
    pub model: PathBuf,
    /// Threads of its runtime.
    pub threads: usize,
    /// Texts of a batch.
    pub batch: usize,
}

/// A running peer.
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
    /// Starts it and waits until its model is loaded.
    ///
    /// # Errors
    /// When it cannot be started or ends early; what it wrote to standard error is on ours.
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

    /// Lets it read `texts`, which we read as `tokens` tokens, and gives the time it took for that by its own clock.
    ///
    /// # Errors
    /// When it ends, or counts other tokens: the comparison would not be one.
    pub fn encode(&mut self, texts: &[&str], tokens: usize) -> anyhow::Result<Duration> {
        writeln!(self.input, "{}", serde_json::to_string(texts)?).context("the peer ended")?;
        let encoded: Encoded = self.answer()?;
        ensure!(
            encoded.tokens == tokens,
            "the peer read {} tokens where we read {tokens}: it has another tokenizer",
            encoded.tokens
        );
        Ok(Duration::from_secs_f64(encoded.seconds))
    }

    /// Stops it and says what it was.
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
            Some(line) => serde_json::from_str(&line?).context("the peer answered something else"),
            None => bail!("the peer ended without an answer; its own error stands above"),
        }
    }
}
