//! Follows a journal: delivers its entries as they are appended, across lost connections, until entries may
//! be missing. Does not know what a change is about.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::connection::{Link, Timeouts};
use super::health_check::jittered;
use super::journal::{Entry, EntryId, Journal, text};
use super::outcome::{self, Failure};

/// The largest number of entries of one read, all of which are in memory at once.
const READ_ENTRIES_MAX: usize = 64;

/// The number of events that may wait for the caller; the follower stops reading at this number.
const EVENTS_MAX: usize = 64;

/// How long the server blocks a read while there is no new entry. The follower then checks that the journal
/// is still the same.
const READ_BLOCK: Duration = Duration::from_secs(2);

const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Entry(Entry),
    /// The next entry is damaged, or was written without the secret.
    Damaged,
    /// Entries are missing after the follower's position, because the journal was trimmed past it. This is
    /// the follower's last event: read the hash again, and follow from the end of the journal before that
    /// scan.
    Trimmed,
    /// The follower's position is not in the journal any more: the journal was emptied, or a server that
    /// restarted or took over has lost its last entries. This is the follower's last event.
    Rewound,
}

impl Event {
    fn is_last(&self) -> bool {
        matches!(self, Self::Trimmed | Self::Rewound)
    }
}

/// Follows a journal in the background until it is dropped.
pub struct Follower {
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Journal {
    /// Starts to read the entries after `from` in the background, or all entries if it is `None`, until the
    /// follower is dropped.
    ///
    /// # Panics
    /// Panics outside a Tokio runtime.
    pub fn follow(&self, from: Option<EntryId>) -> Follower {
        Follower::start(self.clone(), from)
    }
}

impl Follower {
    fn start(journal: Journal, from: Option<EntryId>) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let task = tokio::spawn(async move { Reader::new(journal, from).run(&sender).await });
        Self { events, task }
    }

    /// Waits for the next event, without a timeout. Returns `None` after the last event.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Reader {
    journal: Journal,
    /// A connection of its own, so that a read that blocks on the server delays no other command.
    link: Link,
    /// The ID of the last entry that was read, or the ID from which the caller follows.
    position: EntryId,
    /// The number of entries of the next read. It is halved after a timeout, since the same number would time
    /// out again.
    count: usize,
}

impl Reader {
    fn new(journal: Journal, from: Option<EntryId>) -> Self {
        let timeouts =
            Timeouts { connect: journal.core().write_timeout, response: Self::read_timeout(&journal) };
        let link = Link::new(journal.core().target.clone(), timeouts, Arc::new(Notify::new()));
        Self { journal, link, position: from.unwrap_or_default(), count: READ_ENTRIES_MAX }
    }

    fn read_timeout(journal: &Journal) -> Duration {
        READ_BLOCK + journal.core().write_timeout
    }

    async fn run(&mut self, events: &mpsc::Sender<Event>) {
        let (mut pause, mut failure_logged) = (Duration::ZERO, false);
        loop {
            match self.read().await {
                Ok(read) => {
                    self.count = (2 * self.count).min(READ_ENTRIES_MAX);
                    if std::mem::take(&mut failure_logged) {
                        tracing::info!(journal = self.journal.stream, "following the journal again");
                    }
                    pause = Duration::ZERO;
                    for event in read {
                        let last = event.is_last();
                        if last {
                            outcome::count("journal", "lost", 1);
                            tracing::warn!(journal = self.journal.stream, at = %self.position, ?event, "entries of the journal are missing");
                        }
                        if events.send(event).await.is_err() || last {
                            return;
                        }
                    }
                }
                Err(failure) => {
                    if failure == Failure::Timeout {
                        self.count = (self.count / 2).max(1);
                    }
                    outcome::count("journal", failure.label(), 1);
                    if !std::mem::replace(&mut failure_logged, true) {
                        tracing::warn!(journal = self.journal.stream, reason = %failure, "cannot follow the journal");
                    }
                    self.link.disconnect();
                    pause = (2 * pause).clamp(self.journal.core().limits.probe_pause, PAUSE_MAX);
                    tokio::time::sleep(jittered(pause)).await;
                }
            }
        }
    }

    /// Reads the entries after `position`; none if there is no new entry for [`READ_BLOCK`]. Returns only the
    /// last event if entries may be missing.
    async fn read(&mut self) -> Result<Vec<Event>, Failure> {
        if !self.link.is_connected() {
            self.link.connect().await?;
            // The check after a read is not enough: a first read may return entries from beyond a gap, or
            // block for long.
            if let Some(last) = self.last_event().await? {
                return Ok(vec![last]);
            }
        }
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(self.count).arg("BLOCK").arg(READ_BLOCK.as_millis() as u64);
        command.arg("STREAMS").arg(&self.journal.stream).arg(self.position.to_string());
        let deadline = Instant::now() + Self::read_timeout(&self.journal);
        let reply = self.link.send(&command, deadline).await?;
        // If the entry at this position still exists, no entry after it was missing at the time of the read.
        if let Some(last) = self.last_event().await? {
            return Ok(vec![last]);
        }
        let raw = stream_entries(reply).ok_or(Failure::UnexpectedReply)?;
        let raw = raw.into_iter().map(id_and_fields).collect::<Option<Vec<_>>>();
        let raw = raw.ok_or(Failure::UnexpectedReply)?;
        self.position = raw.last().map_or(self.position, |(id, _)| *id);
        let event = |(id, fields)| match self.journal.read_fields(fields) {
            Some(fields) => Event::Entry(Entry { id, fields }),
            None => Event::Damaged,
        };
        Ok(raw.into_iter().map(event).collect())
    }

    /// Returns the last event if entries may be missing after `position`. None is missing while the entry at
    /// `position` exists. At the start of the stream, none is missing while the stream is shorter than
    /// [`Journal::entries_max`], because a stream is never trimmed below that.
    async fn last_event(&self) -> Result<Option<Event>, Failure> {
        if self.position == EntryId::default() {
            let mut command = cmd("XLEN");
            command.arg(&self.journal.stream);
            return match self.send(command).await? {
                Value::Int(length) if (length as u64) < self.journal.entries_max as u64 => Ok(None),
                Value::Int(_) => Ok(Some(Event::Trimmed)),
                _ => Err(Failure::UnexpectedReply),
            };
        }
        let position = self.position.to_string();
        if self.first_id(&position, &position).await?.is_some() {
            return Ok(None);
        }
        // Trimming removes entries from the start. If an entry before this position is left, the stream has
        // lost its end.
        match self.first_id("-", "+").await? {
            Some(first) if first > self.position => Ok(Some(Event::Trimmed)),
            _ => Ok(Some(Event::Rewound)),
        }
    }

    async fn first_id(&self, from: &str, to: &str) -> Result<Option<EntryId>, Failure> {
        let mut command = cmd("XRANGE");
        command.arg(&self.journal.stream).arg(from).arg(to).arg("COUNT").arg(1);
        let Value::Array(mut found) = self.send(command).await? else {
            return Err(Failure::UnexpectedReply);
        };
        match found.pop() {
            None => Ok(None),
            Some(entry) => id_and_fields(entry).map(|(id, _)| Some(id)).ok_or(Failure::UnexpectedReply),
        }
    }

    async fn send(&self, command: Cmd) -> Result<Value, Failure> {
        self.link.send(&command, Instant::now() + self.journal.core().write_timeout).await
    }
}

/// Returns the entries of the reply `[[stream, [entry, …]]]`, none if the read ended without a new entry, and
/// `None` for a reply of another shape.
fn stream_entries(reply: Value) -> Option<Vec<Value>> {
    match reply {
        Value::Nil => Some(Vec::new()),
        Value::Array(mut streams) => match streams.pop() {
            None => Some(Vec::new()),
            Some(Value::Array(mut stream)) => match stream.pop()? {
                Value::Array(entries) => Some(entries),
                _ => None,
            },
            Some(_) => None,
        },
        // The shape of the reply in RESP3.
        Value::Map(mut streams) => match streams.pop()?.1 {
            Value::Array(entries) => Some(entries),
            _ => None,
        },
        _ => None,
    }
}

/// Splits an entry `[id, fields]`.
fn id_and_fields(entry: Value) -> Option<(EntryId, Value)> {
    let Value::Array(parts) = entry else { return None };
    let [id, fields] = <[Value; 2]>::try_from(parts).ok()?;
    Some((text(&id)?.parse().ok()?, fields))
}
