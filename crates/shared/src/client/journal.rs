//! A journal: a Redis stream of changes and a Redis hash of the state that they add up to, changed together.
//! Does not know what a change is about.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{Cmd, Pipeline, Value, cmd, pipe};

use super::outcome::{self, Failure};
use super::{Core, Inner, SharedError};

/// The number of fields that one page of a scan asks for; a field may hold about a megabyte. The server
/// returns a small hash whole.
const PAGE_FIELDS: usize = 32;

/// The timeout of a page, the only reply that can have many megabytes. In a cluster the timeout of the
/// cluster's client, that of a write, is shorter and ends the call first.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);

/// The only field of a mark, the stream entry that is appended after each entry. A follower's position is a
/// mark, because checking that a mark is still in the stream transfers a few bytes, whereas an entry may have
/// megabytes.
const MARK: &str = "mark";

/// Field names and values of an entry.
pub type Fields<'a> = &'a [(&'a [u8], &'a [u8])];

/// A Redis stream of changes and a Redis hash of their result, under one name and in one slot of a cluster.
/// Its keys do not expire. Clones refer to the same journal.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
    pub(super) stream: String,
    pub(super) hash: String,
    /// The number of stream entries to keep, marks included.
    pub(super) entries_max: usize,
}

/// The ID of an entry in the stream. IDs only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// The server's clock, in milliseconds since the Unix epoch, when the entry was appended.
    pub ms: u64,
    /// The sequence number among the entries of one millisecond.
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    /// The names and values of the fields, in the order in which they were appended. Empty for the mark that
    /// follows an entry.
    pub fields: Vec<(Bytes, Bytes)>,
}

#[derive(Debug, Clone, Copy)]
pub enum FieldChange<'a> {
    Put(&'a [u8], &'a [u8]),
    /// Sets the field (name, value) if it does not exist.
    Offer(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
}

/// The position at which a scan of the hash continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(String);

impl From<String> for Cursor {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.0
    }
}

/// One page of a scan of the hash.
#[derive(Debug, Clone)]
pub struct Page {
    /// Field names and values. A field can be on two pages. A field that exists during the whole scan is on
    /// at least one.
    pub fields: Vec<(Bytes, Bytes)>,
    /// The names of fields whose values are damaged.
    pub damaged: Vec<Bytes>,
    /// The cursor of the next page; `None` after the last.
    pub next: Option<Cursor>,
}

impl Journal {
    pub(super) fn new(inner: Arc<Inner>, name: &str, entries_max: usize) -> Result<Self, SharedError> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err(SharedError::Name(name.to_owned()));
        }
        let base = match inner.core.sealer.secret_id() {
            Some(secret) => format!("{}{{j:{secret}:{name}}}", inner.core.prefix),
            None => format!("{}{{j:{name}}}", inner.core.prefix),
        };
        let (stream, hash) = (format!("{base}:log"), format!("{base}:now"));
        Ok(Self { inner, stream, hash, entries_max: 2 * entries_max.max(1) })
    }

    /// Changes the hash, then appends `entry` and a mark, in one transaction: either all of it happens or
    /// nothing, and readers see all of it at once. Returns the ID of the mark.
    ///
    /// # Errors
    /// Returns [`SharedError::Down`] or [`SharedError::Refused`] if nothing was changed, and
    /// [`SharedError::Unconfirmed`] if the change may have been made. Changes should therefore be idempotent,
    /// so that the caller can make them again.
    pub async fn change(
        &self,
        changes: &[FieldChange<'_>],
        entry: Fields<'_>,
    ) -> Result<EntryId, SharedError> {
        let mut commands = pipe();
        commands.atomic();
        changes.iter().for_each(|change| {
            commands.add_command(self.change_command(change)).ignore();
        });
        commands.add_command(self.append_command(entry)).ignore();
        let mut mark = self.append();
        mark.arg(MARK).arg("");
        commands.add_command(mark);
        let reply = self.send_all(&commands).await?;
        let id = |value: &Value| text(value)?.parse().ok();
        match &reply {
            Value::Array(values) => values.last().and_then(id),
            _ => None,
        }
        .ok_or_else(unexpected_reply)
    }

    /// Returns the value of a field of the hash. If the field does not exist or is damaged, sets it to
    /// `value` first. Concurrent callers get the same result. If the field exists, a server that refuses
    /// writes can answer, too.
    ///
    /// # Errors
    /// Returns the errors of [`Journal::change`].
    pub async fn field_or_put(&self, field: &[u8], value: &[u8]) -> Result<Bytes, SharedError> {
        let mut get = cmd("HGET");
        get.arg(&self.hash).arg(field);
        if let Value::BulkString(found) = self.send(get).await?
            && let Some(found) = self.open(&self.hash, field, Bytes::from(found))
        {
            return Ok(found);
        }
        // HSETNX keeps a field that another caller has set meanwhile; a damaged field stays, and HSET
        // replaces it.
        for name in ["HSETNX", "HSET"] {
            let (mut set, mut get) = (cmd(name), cmd("HGET"));
            set.arg(&self.hash).arg(field).arg(self.seal_field(field, value));
            get.arg(&self.hash).arg(field);
            let mut commands = pipe();
            commands.atomic().add_command(set).ignore().add_command(get);
            let Value::Array(mut replies) = self.send_all(&commands).await? else { break };
            let Some(Value::BulkString(found)) = replies.pop() else { break };
            if let Some(found) = self.open(&self.hash, field, Bytes::from(found)) {
                return Ok(found);
            }
        }
        Err(unexpected_reply())
    }

    /// Returns one page of the hash, from the start or from the cursor of the page before. Damaged values are
    /// counted in the metrics.
    ///
    /// # Errors
    /// Returns the errors of [`Journal::change`].
    pub async fn scan_fields(&self, from: Option<Cursor>) -> Result<Page, SharedError> {
        let mut command = cmd("HSCAN");
        command.arg(&self.hash).arg(from.map_or_else(|| "0".to_owned(), |cursor| cursor.0));
        command.arg("COUNT").arg(PAGE_FIELDS);
        let timeout = self.core().write_timeout.max(PAGE_TIMEOUT);
        let reply = self.send_within(command, timeout).await?;
        let Value::Array(parts) = reply else { return Err(unexpected_reply()) };
        let Ok([cursor, Value::Array(flat)]) = <[Value; 2]>::try_from(parts) else {
            return Err(unexpected_reply());
        };
        let cursor = text(&cursor).ok_or_else(unexpected_reply)?;
        let fields = pairs(flat).ok_or_else(unexpected_reply)?;
        let next = (cursor != "0").then(|| Cursor(cursor.to_owned()));
        let mut page = Page { fields: Vec::with_capacity(fields.len()), damaged: Vec::new(), next };
        for (field, value) in fields {
            match self.open(&self.hash, &field, value) {
                Some(value) => page.fields.push((field, value)),
                None => page.damaged.push(field),
            }
        }
        Ok(page)
    }

    /// Returns the ID of the last entry of the stream, which is a mark, or `None` if the stream is empty. To
    /// read the whole state and then follow, call this before the scan: changes made during the scan are then
    /// read again.
    ///
    /// # Errors
    /// Returns the errors of [`Journal::change`].
    pub async fn last_id(&self) -> Result<Option<EntryId>, SharedError> {
        let mut command = cmd("XREVRANGE");
        command.arg(&self.stream).arg("+").arg("-").arg("COUNT").arg(1);
        match self.send(command).await? {
            Value::Array(entries) => match entries.first() {
                None => Ok(None),
                Some(Value::Array(entry)) => {
                    let id = entry.first().and_then(text).and_then(|id| id.parse().ok());
                    id.map(Some).ok_or_else(unexpected_reply)
                }
                Some(_) => Err(unexpected_reply()),
            },
            _ => Err(unexpected_reply()),
        }
    }

    /// Removes the entries before `first`. A follower that has not read them reads the whole state again.
    ///
    /// # Errors
    /// Returns the errors of [`Journal::change`].
    pub async fn trim(&self, first: EntryId) -> Result<(), SharedError> {
        let mut command = cmd("XTRIM");
        command.arg(&self.stream).arg("MINID").arg(format!("{}-{}", first.ms, first.seq));
        self.send(command).await.map(drop)
    }

    pub(super) fn core(&self) -> &Core {
        &self.inner.core
    }

    /// Verifies the fields of an entry of the stream. Returns `None` if the entry is damaged, which is
    /// counted.
    pub(super) fn read_fields(&self, value: Value) -> Option<Vec<(Bytes, Bytes)>> {
        let Value::Array(flat) = value else { return None };
        let open = |(field, value): (Bytes, Bytes)| {
            let value = self.open(&self.stream, &field, value)?;
            Some((field, value))
        };
        let pairs = pairs(flat)?;
        if matches!(&pairs[..], [(field, _)] if field == MARK) {
            return Some(Vec::new());
        }
        pairs.into_iter().map(open).collect()
    }

    fn open(&self, key: &str, field: &[u8], value: Bytes) -> Option<Bytes> {
        let opened = self.core().sealer.open(&[key.as_bytes(), field], value);
        outcome::count("journal", "damaged", usize::from(opened.is_none()));
        opened
    }

    fn change_command(&self, change: &FieldChange) -> Cmd {
        match change {
            FieldChange::Put(field, value) => {
                let mut command = cmd("HSET");
                command.arg(&self.hash).arg(*field).arg(self.seal_field(field, value));
                command
            }
            FieldChange::Offer(field, value) => {
                let mut command = cmd("HSETNX");
                command.arg(&self.hash).arg(*field).arg(self.seal_field(field, value));
                command
            }
            FieldChange::Delete(field) => {
                let mut command = cmd("HDEL");
                command.arg(&self.hash).arg(*field);
                command
            }
        }
    }

    fn seal_field(&self, field: &[u8], value: &[u8]) -> Vec<u8> {
        self.core().sealer.seal(&[self.hash.as_bytes(), field], value)
    }

    fn append(&self) -> Cmd {
        let mut command = cmd("XADD");
        command.arg(&self.stream).arg("MAXLEN").arg("~").arg(self.entries_max).arg("*");
        command
    }

    fn append_command(&self, entry: Fields) -> Cmd {
        let mut command = self.append();
        for (field, value) in entry {
            let sealed = self.core().sealer.seal(&[self.stream.as_bytes(), field], value);
            command.arg(*field).arg(sealed);
        }
        command
    }

    async fn send(&self, command: Cmd) -> Result<Value, SharedError> {
        self.send_within(command, self.core().write_timeout).await
    }

    async fn send_within(&self, command: Cmd, timeout: Duration) -> Result<Value, SharedError> {
        let started = Instant::now();
        let reply = self.core().writes.send(&command, (started + timeout).into()).await;
        self.finish(started, reply)
    }

    async fn send_all(&self, commands: &Pipeline) -> Result<Value, SharedError> {
        let started = Instant::now();
        let core = self.core();
        self.finish(started, core.writes.send_all(commands, core.write_timeout).await)
    }

    /// Records the metrics of a command and converts its failure into an error.
    fn finish(&self, started: Instant, reply: Result<Value, Failure>) -> Result<Value, SharedError> {
        outcome::record_seconds("journal", started.elapsed());
        outcome::count("journal", reply.as_ref().err().map_or("ok", Failure::label), 1);
        reply.map_err(|failure| match failure {
            Failure::NoConnection => SharedError::Down,
            Failure::Lost(_) | Failure::Timeout | Failure::UnexpectedReply => unconfirmed(&failure),
            Failure::WrongType => {
                let reason = format!("{} or {} is another program's", self.stream, self.hash);
                SharedError::Refused { reason }
            }
            Failure::Full | Failure::ReadOnly | Failure::Refused(_) => {
                SharedError::Refused { reason: failure.to_string() }
            }
        })
    }
}

fn unexpected_reply() -> SharedError {
    unconfirmed(&Failure::UnexpectedReply)
}

fn unconfirmed(failure: &Failure) -> SharedError {
    SharedError::Unconfirmed { reason: failure.to_string() }
}

/// Returns the text of a string reply, or `None` for other replies.
pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Splits `[field, value, field, value, …]` into pairs. Returns `None` if a value is missing or is not a
/// string.
fn pairs(flat: Vec<Value>) -> Option<Vec<(Bytes, Bytes)>> {
    let mut bytes = flat.into_iter().map(|value| match value {
        Value::BulkString(bytes) => Some(Bytes::from(bytes)),
        _ => None,
    });
    let mut pairs = Vec::with_capacity(bytes.len() / 2);
    while let Some(field) = bytes.next() {
        pairs.push((field?, bytes.next()??));
    }
    Some(pairs)
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for EntryId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ms, seq) = text.split_once('-').unwrap_or((text, "0"));
        Ok(Self { ms: ms.parse()?, seq: seq.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_and_ordered() {
        let id = |text: &str| text.parse::<EntryId>().expect("an id");
        assert_eq!(id("12-3"), EntryId { ms: 12, seq: 3 });
        assert_eq!(id("12-3").to_string(), "12-3");
        assert!(id("9-10") > id("9-9") && id("10-0") > id("9-10"));
        assert!("12-x".parse::<EntryId>().is_err());
    }

    #[test]
    fn a_flat_list_is_split_into_pairs() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let read = |flat| pairs(flat).map(|pairs| pairs.len());
        assert_eq!(read(vec![bulk("a"), bulk("b")]), Some(1));
        assert_eq!(read(vec![]), Some(0));
        assert_eq!(read(vec![bulk("a")]), None);
        assert_eq!(read(vec![bulk("a"), Value::Int(1)]), None);
    }
}
