//! The file of known responses of a reader, so that a run that was stopped goes on, and a repeated one costs nothing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::Exchange;

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
pub fn key(url: &str, request: &Value) -> String {
    blake3::hash(format!("{url}\n{request}").as_bytes()).to_hex().to_string()
}

impl Answers {
    /// Opens a file of responses, which is created if there is none. Only its owner may read it, because answers say what the chunks say.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if it has other lines.
    pub fn open(path: &Path) -> Result<Self> {
        let place = || format!("the file of answers {}", path.display());
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).with_context(place)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(place)?;
        // A run that was killed can leave a part of a line at the end.
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut known = HashMap::new();
        for (index, line) in bytes[..complete].split(|byte| *byte == b'\n').enumerate() {
            if !line.is_empty() {
                let found: Line = serde_json::from_slice(line).with_context(|| {
                    format!(
                        "{}, line {}, is no answer of a reader; name another file with --answers",
                        place(),
                        index + 1
                    )
                })?;
                known.insert(found.key, found.exchange);
            }
        }
        if complete == 0 && !bytes.is_empty() {
            bail!("{} has other content; name another file with --answers", place());
        }
        file.set_len(complete as u64).with_context(place)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_line_at_the_end_is_removed() {
        let folder = std::env::temp_dir().join(format!("thresher-answers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("answers.jsonl");
        let exchange = |text: &str| Exchange {
            text: text.to_owned(),
            tokens_in: Some(1),
            tokens_out: None,
            seconds: 0.5,
        };
        Answers::open(&path)
            .and_then(|mut answers| answers.add("a".into(), &exchange("one")))
            .expect("written");
        let whole = std::fs::read(&path).expect("a file");
        std::fs::write(&path, [&whole[..], "{\"key\": \"b\", \"text\": \"\u{e4}".as_bytes()].concat())
            .expect("written");
        let mut answers = Answers::open(&path).expect("the first line is complete");
        assert_eq!((answers.get("a"), answers.get("b")), (Some(exchange("one")), None));
        answers.add("c".into(), &exchange("two")).expect("written");
        let answers = Answers::open(&path).expect("all lines are complete");
        assert_eq!((answers.get("a"), answers.get("c")), (Some(exchange("one")), Some(exchange("two"))));
        std::fs::write(&path, "a row of somebody").expect("written");
        let refused = Answers::open(&path).err().expect("no answers").to_string();
        assert!(refused.contains("other content"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "a row of somebody");
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
