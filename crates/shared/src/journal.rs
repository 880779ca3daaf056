//! A journal: a stream of changes and a hash of what they add up to, changed together.
//! Knows nothing of what a change is about.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{Cmd, Pipeline, Value, cmd, pipe};

use super::failure::Failure;
use super::follow::Follower;
use super::{Core, Inner, SharedError, observe};

/// Fields that one page of a scan asks for, each perhaps a megabyte; small hashes come whole.
const PAGE_FIELDS: usize = 32;

/// How long a page may take: it is the only answer that can be many megabytes. In a cluster the limit of its client, that
/// of writes, is reached first.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);

/// The one field of the marks that stand behind entries. Who follows stands on one: looking whether it is still there costs
/// a few bytes, where an entry may be megabytes.
const MARK: &str = "mark";

/// Field names and values of an entry.
pub type Fields<'a> = &'a [(&'a [u8], &'a [u8])];

/// A stream and a hash under one name, in one slot of a cluster. Its keys do not expire. Clones are the same journal.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
    pub(super) stream: String,
    pub(super) hash: String,
    /// In the stream, marks included.
    pub(super) entries_max: usize,
}

/// Where an entry stands in the stream; they only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// The server's clock in milliseconds.
    pub ms: u64,
    /// Tells entries of one millisecond apart.
    pub seq: u64,
}

/// An entry as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub id: EntryId,
    /// Its fields, in their order; none: the mark behind an entry.
    pub fields: Vec<(Bytes, Bytes)>,
}

/// A change of the hash.
#[derive(Debug, Clone, Copy)]
pub enum FieldChange<'a> {
    /// Sets a field.
    Put(&'a [u8], &'a [u8]),
    /// Sets a field that is not there.
    Offer(&'a [u8], &'a [u8]),
    /// Takes a field away.
    Delete(&'a [u8]),
}

/// Where a scan goes on.
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

/// Part of a hash.
#[derive(Debug, Clone)]
pub struct Page {
    /// Fields and values. One can come on two pages; one that was there all the time comes at least once.
    pub fields: Vec<(Bytes, Bytes)>,
    /// Fields whose values are damaged.
    pub damaged: Vec<Bytes>,
    /// Where the next page begins; `None`: that was the last.
    pub next: Option<Cursor>,
}

impl Journal {
    pub(super) fn new(inner: Arc<Inner>, name: &str, entries_max: usize) -> Result<Self, SharedError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(SharedError::Name(name.to_owned()));
        }
        let base = match inner.core.seal.name() {
            Some(secret) => format!("{}{{j:{secret}:{name}}}", inner.core.prefix),
            None => format!("{}{{j:{name}}}", inner.core.prefix),
        };
        let (stream, hash) = (format!("{base}:log"), format!("{base}:now"));
        Ok(Self { inner, stream, hash, entries_max: 2 * entries_max.max(1) })
    }

    /// Changes the hash and appends `entry` and a mark, all or nothing, and at one moment for all readers; the mark's place.
    ///
    /// # Errors
    /// [`SharedError::Down`] and [`SharedError::Refused`]: nothing was changed. [`SharedError::Unconfirmed`]: it may have
    /// been; changes should therefore be such that making them twice does no harm.
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
        let answer = self.send(&commands).await?;
        let id = |value: &Value| text(value)?.parse().ok();
        match &answer {
            Value::Array(values) => values.last().and_then(id),
            _ => None,
        }
        .ok_or_else(|| unconfirmed(&Failure::Strange))
    }

    /// What a field of the hash holds, `value` if nothing or something damaged: all who ask at once get the same answer.
    /// A server that takes no writes is enough where there is something.
    ///
    /// # Errors
    /// As [`Journal::change`].
    pub async fn field_or_put(&self, field: &[u8], value: &[u8]) -> Result<Bytes, SharedError> {
        let mut get = cmd("HGET");
        get.arg(&self.hash).arg(field);
        if let Value::BulkString(found) = self.one(get).await?
            && let Some(found) = self.open(&self.hash, field, Bytes::from(found))
        {
            return Ok(found);
        }
        // What is damaged is there for the first and is replaced by the second.
        for name in ["HSETNX", "HSET"] {
            let (mut set, mut get) = (cmd(name), cmd("HGET"));
            set.arg(&self.hash).arg(field).arg(self.seal_field(field, value));
            get.arg(&self.hash).arg(field);
            let mut commands = pipe();
            commands.atomic().add_command(set).ignore().add_command(get);
            let Value::Array(mut answer) = self.send(&commands).await? else { break };
            let Some(Value::BulkString(found)) = answer.pop() else { break };
            if let Some(found) = self.open(&self.hash, field, Bytes::from(found)) {
                return Ok(found);
            }
        }
        Err(unconfirmed(&Failure::Strange))
    }

    /// A part of the hash, from the beginning or where a page before ended. Damaged values are counted.
    ///
    /// # Errors
    /// As [`Journal::change`].
    pub async fn scan_fields(&self, from: Option<Cursor>) -> Result<Page, SharedError> {
        let mut command = cmd("HSCAN");
        command.arg(&self.hash).arg(from.map_or_else(|| "0".to_owned(), |cursor| cursor.0));
        command.arg("COUNT").arg(PAGE_FIELDS);
        let timeout = self.core().write_timeout.max(PAGE_TIMEOUT);
        let answer = self.one_within(command, timeout).await?;
        let strange = || unconfirmed(&Failure::Strange);
        let Value::Array(parts) = answer else { return Err(strange()) };
        let Ok([cursor, Value::Array(flat)]) = <[Value; 2]>::try_from(parts) else { return Err(strange()) };
        let cursor = text(&cursor).ok_or_else(strange)?;
        let fields = pairs(flat).ok_or_else(strange)?;
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

    /// Where the stream ends, on a mark; `None`: it is empty. Take it before a scan, then follow from it: whatever changes during the
    /// scan is read again.
    ///
    /// # Errors
    /// As [`Journal::change`].
    pub async fn last_id(&self) -> Result<Option<EntryId>, SharedError> {
        let mut command = cmd("XREVRANGE");
        command.arg(&self.stream).arg("+").arg("-").arg("COUNT").arg(1);
        match self.one(command).await? {
            Value::Array(entries) => match entries.first() {
                None => Ok(None),
                Some(Value::Array(entry)) => {
                    let id = entry.first().and_then(text).and_then(|id| id.parse().ok());
                    id.map(Some).ok_or_else(|| unconfirmed(&Failure::Strange))
                }
                Some(_) => Err(unconfirmed(&Failure::Strange)),
            },
            _ => Err(unconfirmed(&Failure::Strange)),
        }
    }

    /// Reads on behind `from` in the background, for as long as the follower lives; to be called within a Tokio runtime.
    pub fn follow(&self, from: Option<EntryId>) -> Follower {
        Follower::start(self.clone(), from)
    }

    pub(super) fn core(&self) -> &Core {
        &self.inner.core
    }

    /// The fields of an entry as they come over the wire; `None`: damaged, and counted.
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
        let opened = self.core().seal.open(&[key.as_bytes(), field], value);
        observe::count("journal", "damaged", usize::from(opened.is_none()));
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
        self.core().seal.close(&[self.hash.as_bytes(), field], value)
    }

    fn append(&self) -> Cmd {
        let mut command = cmd("XADD");
        command.arg(&self.stream).arg("MAXLEN").arg("~").arg(self.entries_max).arg("*");
        command
    }

    fn append_command(&self, entry: Fields) -> Cmd {
        let mut command = self.append();
        for (field, value) in entry {
            let sealed = self.core().seal.close(&[self.stream.as_bytes(), field], value);
            command.arg(*field).arg(sealed);
        }
        command
    }

    async fn one(&self, command: Cmd) -> Result<Value, SharedError> {
        self.one_within(command, self.core().write_timeout).await
    }

    async fn one_within(&self, command: Cmd, timeout: Duration) -> Result<Value, SharedError> {
        let started = Instant::now();
        let answer = self.core().writes.send(&command, (started + timeout).into()).await;
        self.done(started, answer)
    }

    async fn send(&self, commands: &Pipeline) -> Result<Value, SharedError> {
        let started = Instant::now();
        let core = self.core();
        self.done(started, core.writes.send_all(commands, core.write_timeout).await)
    }

    fn done(&self, started: Instant, answer: Result<Value, Failure>) -> Result<Value, SharedError> {
        observe::time("journal", started.elapsed());
        observe::count("journal", answer.as_ref().err().map_or("ok", Failure::label), 1);
        answer.map_err(|failure| match failure {
            Failure::NoConnection => SharedError::Down,
            Failure::Lost(_) | Failure::Timeout | Failure::Strange => unconfirmed(&failure),
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

fn unconfirmed(failure: &Failure) -> SharedError {
    SharedError::Unconfirmed { reason: failure.to_string() }
}

/// Text of an answer.
pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// `[field, value, field, value, …]` → pairs.
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
    fn ids_read_and_order() {
        let id = |text: &str| text.parse::<EntryId>().expect("an id");
        assert_eq!(id("12-3"), EntryId { ms: 12, seq: 3 });
        assert_eq!(id("12-3").to_string(), "12-3");
        assert!(id("9-10") > id("9-9") && id("10-0") > id("9-10"));
        assert!("12-x".parse::<EntryId>().is_err());
    }

    #[test]
    fn a_flat_list_is_pairs() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let read = |flat| pairs(flat).map(|pairs| pairs.len());
        assert_eq!(read(vec![bulk("a"), bulk("b")]), Some(1));
        assert_eq!(read(vec![]), Some(0));
        assert_eq!(read(vec![bulk("a")]), None);
        assert_eq!(read(vec![bulk("a"), Value::Int(1)]), None);
    }
}
