//! An answer that arrives piece by piece: what each of its sentences takes, from the piece that makes its end sure to its event.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use thresher_core::text::Arriving;

/// Characters of a piece, as those who write answers send them.
const PIECE_CHARACTERS: usize = 4;

/// A daemon that says nothing for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Milliseconds of each moment in which one or more sentences became sure.
///
/// # Errors
/// A connection that breaks; an answer that is refused.
pub fn sentences_ms(daemon: SocketAddr, chunks: &[Value], answer: &str) -> anyhow::Result<Vec<f64>> {
    let mut stream = Stream::open(daemon)?;
    stream.send(&json!({"chunks": chunks}))?;
    let (mut arriving, mut found) = (Arriving::default(), Vec::new());
    let characters: Vec<char> = answer.chars().collect();
    for piece in characters.chunks(PIECE_CHARACTERS) {
        let piece = String::from_iter(piece);
        let sure = arriving.push(&piece).len();
        let started = Instant::now();
        stream.send(&json!({"delta": piece}))?;
        (0..sure).try_for_each(|_| stream.wait_for("part"))?;
        if sure > 0 {
            found.push(started.elapsed().as_secs_f64() * 1e3 / sure as f64);
        }
    }
    stream.end()?;
    arriving.finish().iter().try_for_each(|_| stream.wait_for("part"))?;
    stream.wait_for("done")?;
    Ok(found)
}

/// A request whose body is still being written while its answer is read.
struct Stream {
    to: TcpStream,
    from: BufReader<TcpStream>,
}

impl Stream {
    fn open(daemon: SocketAddr) -> anyhow::Result<Self> {
        let to = TcpStream::connect(daemon)?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(SILENCE_MAX))?;
        let from = BufReader::new(to.try_clone()?);
        let mut stream = Self { to, from };
        let head = format!(
            "POST /v1/attribute/stream HTTP/1.1\r\nhost: {daemon}\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        stream.to.write_all(head.as_bytes())?;
        Ok(stream)
    }

    fn send(&mut self, data: &Value) -> anyhow::Result<()> {
        let event = format!("data: {data}\n\n");
        Ok(self.to.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(self.to.write_all(b"0\r\n\r\n")?)
    }

    /// Reads on until an event of this name has begun; its data come in the same piece.
    fn wait_for(&mut self, name: &str) -> anyhow::Result<()> {
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(
                self.from.read_line(&mut line)? > 0,
                "the daemon ended the stream before an event {name:?}"
            );
            match line.trim_end().strip_prefix("event: ") {
                Some(found) if found == name => return Ok(()),
                Some(found) => bail!("the daemon sent an event {found:?} instead of {name:?}"),
                None => {}
            }
        }
    }
}
