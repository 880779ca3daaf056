//! Minutes of everything at once: requests of all sizes about chunks that come again or do not, registering, searching, clients
//! that leave, deadlines that nobody can keep, bodies that are none. Asserts no time: only that memory stays within its bounds and that what
//! should be answered is. Knows nothing of how the daemon does that.

mod chunks;
mod mix;
mod report;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::chunks::Chunks;
use self::mix::{Ask, Kind, Mix};
use self::report::Tally;
use super::client::{Caller, Client};
use super::workload::Random;
use super::{Progress, Subject, memory};

pub use self::report::{Report, table};

/// What resident memory may be beside the configured bounds, in bytes.
pub const SLACK_BYTES: u64 = 300_000_000;

/// How often resident memory is looked at.
const SAMPLE: Duration = Duration::from_secs(1);

/// What requests get that are still on their way at the end.
const END: Duration = Duration::from_secs(10);

/// What to send for how long, and what memory is held to.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long.
    pub time: Duration,
    /// Clients at the same time.
    pub clients: usize,
    /// Bound of the memory tier.
    pub memory_bytes_max: u64,
    /// Bound of what waits to be written to disk.
    pub write_queue_bytes_max: u64,
    /// Bound of the registered chunks in memory.
    pub registry_bytes_max: u64,
    /// Of what requests were about, remembered.
    pub handle_bytes_max: u64,
    /// Bound of the disk tier: there are several times as many chunks as it holds.
    pub disk_bytes_max: u64,
}

/// What was seen.
struct Seen {
    settings: Settings,
    /// Resident, after the model was loaded and the chunks were written.
    base_mb: f64,
    /// Resident, every second.
    samples_mb: Vec<f64>,
    peak_mb: f64,
    chunks: usize,
    tally: Tally,
}

/// What all clients share.
struct Shared {
    caller: Caller,
    address: std::net::SocketAddr,
    mix: Mix,
    until: Instant,
    tally: Mutex<Tally>,
}

/// Sends for as long as `settings` say.
///
/// # Errors
/// Where the system does not say what a process has in memory.
pub fn run(subject: &Subject, settings: Settings, progress: Progress) -> anyhow::Result<Report> {
    let client = Client::new(subject.daemon.address())?;
    let chunks = Chunks::for_disk(settings.disk_bytes_max);
    let mix = Mix::new(chunks, subject.daemon.deadline_ms_max());
    for registration in mix.registrations() {
        client.register(registration)?;
    }
    memory::forget_peak();
    let base = memory::resident().context("this system does not say what a process has in memory")?;
    let count = mix.chunks().len();
    let started = Instant::now();
    let shared = Arc::new(Shared {
        caller: client.caller(),
        address: subject.daemon.address(),
        mix,
        until: started + settings.time,
        tally: Mutex::default(),
    });
    let samples_mb = client.block_on(send_and_watch(&shared, settings, started, progress))?;
    let peak_mb = memory::resident().map_or(f64::NAN, |resident| resident.peak_mb);
    let tally = std::mem::take(&mut *shared.tally.lock().expect("counting does not panic"));
    let seen = Seen { settings, base_mb: base.now_mb, samples_mb, peak_mb, chunks: count, tally };
    Ok(Report::new(subject, &seen))
}

/// Resident memory, every second, while clients send.
async fn send_and_watch(
    shared: &Arc<Shared>,
    settings: Settings,
    started: Instant,
    progress: Progress<'_>,
) -> anyhow::Result<Vec<f64>> {
    let mut clients = JoinSet::new();
    for number in 0..settings.clients {
        clients.spawn(client(Arc::clone(shared), Random::new(number as u64, "soak")));
    }
    let mut samples = Vec::new();
    let mut ticks = tokio::time::interval(SAMPLE);
    let (seconds, end) = (settings.time.as_secs() as usize, shared.until + END);
    while Instant::now() < end {
        tokio::select! {
            _ = ticks.tick() => {
                samples.extend(memory::resident().map(|resident| resident.now_mb));
                progress("soak", (started.elapsed().as_secs() as usize).min(seconds), seconds);
            }
            done = clients.join_next() => match done {
                None => break,
                Some(done) => done?,
            },
        }
    }
    // What is still on its way hangs up.
    shared.tally.lock().expect("counting does not panic").cut_off = clients.len();
    ensure!(!samples.is_empty(), "this system does not say what a process has in memory");
    Ok(samples)
}

/// One client: a request after the other.
async fn client(shared: Arc<Shared>, mut random: Random) {
    while Instant::now() < shared.until {
        let ask = shared.mix.draw(&mut random);
        let seen = send(&shared, &ask).await;
        shared.tally.lock().expect("counting does not panic").count(&ask, seen);
    }
}

/// What came back; nothing from a request that was left.
async fn send(shared: &Shared, ask: &Ask) -> anyhow::Result<Option<(u16, Bytes)>> {
    let answer = match ask.kind {
        Kind::LeaveWhileSending => {
            hang_up(shared, &ask.body).await?;
            return Ok(None);
        }
        Kind::LeaveWhileWaiting(after) => {
            match timeout(after, shared.caller.post(ask.path, ask.body.clone())).await {
                Err(_left) => return Ok(None),
                Ok(answer) => answer?,
            }
        }
        _ => shared.caller.post(ask.path, ask.body.clone()).await?,
    };
    Ok(Some((answer.status.as_u16(), answer.body)))
}

/// Sends half of a body and closes the connection.
async fn hang_up(shared: &Shared, body: &[u8]) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(shared.address).await?;
    let head = format!(
        "POST /v1/compress HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        shared.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body[..body.len() / 2]).await?;
    Ok(())
}
