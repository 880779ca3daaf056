//! Following a journal: its entries as they come, through lost connections, until it can no longer be said that none is
//! missing.
//! Knows nothing of what a change is about.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::failure::Failure;
use super::journal::{Entry, EntryId, Journal, text};
use super::link::Link;
use super::mend::jittered;
use super::observe;
use super::target::Patience;

/// Entries of one read, which stands in memory whole.
const READ_ENTRIES: usize = 64;

/// Events that wait for the caller; reading stops there.
const EVENTS_MAX: usize = 64;

/// How long a server holds a read when nothing is new; then the follower looks whether the journal is still the same.
const BLOCK: Duration = Duration::from_secs(2);

/// The longest pause after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a follower has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The next entry.
    Entry(Entry),
    /// An entry stands here that is damaged, or that somebody wrote who does not know the secret.
    Damaged(EntryId),
    /// Entries may be missing here: the journal was trimmed past this place, emptied, or a failover lost its end. The
    /// last event of a follower: read the hash anew and follow from there.
    Lost,
}

/// Follows in the background; ends when dropped.
pub struct Follower {
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Follower {
    pub(super) fn start(journal: Journal, from: Option<EntryId>) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let task = tokio::spawn(async move { Reader::new(journal, from).run(&sender).await });
        Self { events, task }
    }

    /// The next event, however long it takes; `None` after [`Event::Lost`].
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
    /// Its own: a read that waits on the server must not hold up others.
    link: Link,
    /// The last entry that was read, or where the caller began.
    at: EntryId,
}

impl Reader {
    fn new(journal: Journal, from: Option<EntryId>) -> Self {
        let patience = Patience { connect: journal.core().write_timeout, answer: Self::patience(&journal) };
        let link = Link::new(journal.core().target.clone(), patience, Arc::new(Notify::new()));
        Self { journal, link, at: from.unwrap_or_default() }
    }

    fn patience(journal: &Journal) -> Duration {
        BLOCK + journal.core().write_timeout
    }

    async fn run(&mut self, events: &mpsc::Sender<Event>) {
        let (mut pause, mut told) = (Duration::ZERO, false);
        loop {
            match self.read().await {
                Ok(Some(read)) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(journal = self.journal.stream, "following the journal again");
                    }
                    pause = Duration::ZERO;
                    for event in read {
                        if events.send(event).await.is_err() {
                            return;
                        }
                    }
                }
                Ok(None) => {
                    observe::count("journal", "lost", 1);
                    tracing::warn!(journal = self.journal.stream, at = %self.at, "entries of the journal may be missing");
                    let _ = events.send(Event::Lost).await;
                    return;
                }
                Err(failure) => {
                    observe::count("journal", failure.label(), 1);
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(journal = self.journal.stream, reason = %failure, "cannot follow the journal");
                    }
                    self.link.lose();
                    pause = (2 * pause).clamp(self.journal.core().probe_pause, PAUSE_MAX);
                    tokio::time::sleep(jittered(pause)).await;
                }
            }
        }
    }

    /// The entries behind `at`, none after a while; `None` when it cannot be said that they are all.
    async fn read(&mut self) -> Result<Option<Vec<Event>>, Failure> {
        if !self.link.is_up() {
            self.link.connect().await?;
            // Not only behind a read: what a first read finds may already be beyond a gap, and a read may wait long.
            if !self.is_whole().await? {
                return Ok(None);
            }
        }
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(READ_ENTRIES).arg("BLOCK").arg(BLOCK.as_millis() as u64);
        command.arg("STREAMS").arg(&self.journal.stream).arg(self.at.to_string());
        let patience = Self::patience(&self.journal);
        let answer = self.link.send(&command, Instant::now() + patience).await?;
        // If the entry at this place is there now, nothing behind it was gone when it was read.
        if !self.is_whole().await? {
            return Ok(None);
        }
        let raw = entries(answer).ok_or(Failure::Strange)?;
        let raw = raw.into_iter().map(parted).collect::<Option<Vec<_>>>().ok_or(Failure::Strange)?;
        self.at = raw.last().map_or(self.at, |(id, _)| *id);
        let event = |(id, fields)| match self.journal.read_fields(fields) {
            Some(fields) => Event::Entry(Entry { id, fields }),
            None => Event::Damaged(id),
        };
        Ok(Some(raw.into_iter().map(event).collect()))
    }

    /// Whether nothing can be missing behind `at`: the entry there has not been trimmed; or, at the beginning, nothing ever
    /// was, since a stream is only trimmed to [`Journal::entries_max`] or more.
    async fn is_whole(&self) -> Result<bool, Failure> {
        let deadline = Instant::now() + self.journal.core().write_timeout;
        let stream = &self.journal.stream;
        if self.at == EntryId::default() {
            let mut command = cmd("XLEN");
            command.arg(stream);
            let length = self.link.send(&command, deadline).await?;
            return match length {
                Value::Int(length) => Ok((length as u64) < self.journal.entries_max as u64),
                _ => Err(Failure::Strange),
            };
        }
        let mut command = cmd("XRANGE");
        command.arg(stream).arg(self.at.to_string()).arg(self.at.to_string());
        match self.link.send(&command, deadline).await? {
            Value::Array(found) => Ok(!found.is_empty()),
            _ => Err(Failure::Strange),
        }
    }
}

/// `[[stream, [entry, …]]]`, or nothing after a while → the entries.
fn entries(answer: Value) -> Option<Vec<Value>> {
    match answer {
        Value::Nil => Some(Vec::new()),
        Value::Array(mut streams) => match streams.pop() {
            None => Some(Vec::new()),
            Some(Value::Array(mut stream)) => match stream.pop()? {
                Value::Array(entries) => Some(entries),
                _ => None,
            },
            Some(_) => None,
        },
        // RESP3.
        Value::Map(mut streams) => match streams.pop()?.1 {
            Value::Array(entries) => Some(entries),
            _ => None,
        },
        _ => None,
    }
}

/// `[id, fields]`, apart.
fn parted(entry: Value) -> Option<(EntryId, Value)> {
    let Value::Array(parts) = entry else { return None };
    let [id, fields] = <[Value; 2]>::try_from(parts).ok()?;
    Some((text(&id)?.parse().ok()?, fields))
}
