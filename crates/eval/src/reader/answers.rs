//! The file of known responses of a reader, so that a run that was stopped goes on, and a repeated one costs nothing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use super::client::Exchange;

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    #[serde(flatten)]
    exchange: Exchange,
}

/// Responses by the hash of their request.
pub struct Answers {
    file: File,
    known: HashMap<String, Exchange>,
}

/// Returns the key of a request to a server: a hash of both.
pub fn key(url: &Url, request: &Value) -> String {
    blake3::hash(format!("{url}\n{request}").as_bytes()).to_hex().to_string()
}

impl Answers {
    /// Opens a file of responses, which is created if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if it has other lines.
    pub fn open(path: &Path) -> Result<Self> {
        let place = || format!("the file of answers {}", path.display());
        let file = OpenOptions::new().create(true).append(true).read(true).open(path).with_context(place)?;
        let mut known = HashMap::new();
        let mut lines = BufReader::new(&file).lines().enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let line = line.with_context(place)?;
            match serde_json::from_str::<Line>(&line) {
                Ok(line) => drop(known.insert(line.key, line.exchange)),
                // A run that was killed can leave a part of a line at the end.
                Err(_) if lines.peek().is_none() => {}
                Err(error) => {
                    bail!("{}, line {}: {error}; name another file with --answers", place(), index + 1)
                }
            }
        }
        Ok(Self { file, known })
    }

    pub fn get(&self, key: &str) -> Option<Exchange> {
        self.known.get(key).cloned()
    }

    /// Adds a response, at once also to the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn add(&mut self, key: String, exchange: &Exchange) -> Result<()> {
        let line = serde_json::to_string(&Line { key: key.clone(), exchange: exchange.clone() })? + "\n";
        self.file.write_all(line.as_bytes()).context("cannot write the file of answers")?;
        self.known.insert(key, exchange.clone());
        Ok(())
    }
}
