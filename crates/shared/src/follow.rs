//! Following a journal: its entries as they come, through lost connections, until it can no longer be said that none is
//! missing.
//! Knows nothing of what a change is about.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value, cmd};
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
    Damaged,
    /// Entries are missing here: the journal was trimmed past this place. The last event of a follower: read the hash anew
    /// and follow from there.
    Trimmed,
    /// This place is there no more: the journal was emptied, or a server that came back, or took over, has lost its end.
    /// The last event of a follower.
    Rewound,
}

impl Event {
    fn is_last(&self) -> bool {
        matches!(self, Self::Trimmed | Self::Rewound)
    }
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

    /// The next event, however long it takes; `None` after the last one.
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
    /// Entries of the next read: fewer when they did not come in time, and would not the next time.
    count: usize,
}

impl Reader {
    fn new(journal: Journal, from: Option<EntryId>) -> Self {
        let patience = Patience { connect: journal.core().write_timeout, answer: Self::patience(&journal) };
        let link = Link::new(journal.core().target.clone(), patience, Arc::new(Notify::new()));
        Self { journal, link, at: from.unwrap_or_default(), count: READ_ENTRIES }
    }

    fn patience(journal: &Journal) -> Duration {
        BLOCK + journal.core().write_timeout
    }

    async fn run(&mut self, events: &mpsc::Sender<Event>) {
        let (mut pause, mut told) = (Duration::ZERO, false);
        loop {
            match self.read().await {
                Ok(read) => {
                    self.count = (2 * self.count).min(READ_ENTRIES);
                    if std::mem::take(&mut told) {
                        tracing::info!(journal = self.journal.stream, "following the journal again");
                    }
                    pause = Duration::ZERO;
                    for event in read {
                        let last = event.is_last();
                        if last {
                            observe::count("journal", "lost", 1);
                            tracing::warn!(journal = self.journal.stream, at = %self.at, ?event, "entries of the journal are missing");
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

    /// The entries behind `at`, none after a while; the last event when it cannot be said that they are all.
    async fn read(&mut self) -> Result<Vec<Event>, Failure> {
        if !self.link.is_up() {
            self.link.connect().await?;
            // Not only behind a read: what a first read finds may already be beyond a gap, and a read may wait long.
            if let Some(last) = self.last().await? {
                return Ok(vec![last]);
            }
        }
        let mut command = cmd("XREAD");
        command.arg("COUNT").arg(self.count).arg("BLOCK").arg(BLOCK.as_millis() as u64);
        command.arg("STREAMS").arg(&self.journal.stream).arg(self.at.to_string());
        let patience = Self::patience(&self.journal);
        let answer = self.link.send(&command, Instant::now() + patience).await?;
        // If the entry at this place is there now, nothing behind it was gone when it was read.
        if let Some(last) = self.last().await? {
            return Ok(vec![last]);
        }
        let raw = entries(answer).ok_or(Failure::Strange)?;
        let raw = raw.into_iter().map(parted).collect::<Option<Vec<_>>>().ok_or(Failure::Strange)?;
        self.at = raw.last().map_or(self.at, |(id, _)| *id);
        let event = |(id, fields)| match self.journal.read_fields(fields) {
            Some(fields) => Event::Entry(Entry { id, fields }),
            None => Event::Damaged,
        };
        Ok(raw.into_iter().map(event).collect())
    }

    /// The last event, if it is time for it. Nothing is missing behind `at` while the entry there is; or, at the beginning,
    /// while nothing ever was trimmed: a stream is trimmed to [`Journal::entries_max`] or more.
    async fn last(&self) -> Result<Option<Event>, Failure> {
        if self.at == EntryId::default() {
            let mut command = cmd("XLEN");
            command.arg(&self.journal.stream);
            return match self.ask(command).await? {
                Value::Int(length) if (length as u64) < self.journal.entries_max as u64 => Ok(None),
                Value::Int(_) => Ok(Some(Event::Trimmed)),
                _ => Err(Failure::Strange),
            };
        }
        let at = self.at.to_string();
        if self.first(&at, &at).await?.is_some() {
            return Ok(None);
        }
        // What is trimmed goes from the beginning: if something from before this place is left, it is the end that went.
        match self.first("-", "+").await? {
            Some(first) if first > self.at => Ok(Some(Event::Trimmed)),
            _ => Ok(Some(Event::Rewound)),
        }
    }

    async fn first(&self, from: &str, to: &str) -> Result<Option<EntryId>, Failure> {
        let mut command = cmd("XRANGE");
        command.arg(&self.journal.stream).arg(from).arg(to).arg("COUNT").arg(1);
        let Value::Array(mut found) = self.ask(command).await? else { return Err(Failure::Strange) };
        match found.pop() {
            None => Ok(None),
            Some(entry) => parted(entry).map(|(id, _)| Some(id)).ok_or(Failure::Strange),
        }
    }

    async fn ask(&self, command: Cmd) -> Result<Value, Failure> {
        self.link.send(&command, Instant::now() + self.journal.core().write_timeout).await
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
