//! A log on a journal of the shared tier: the journal's stream holds the entries, and its hash holds the
//! state that they add up to. Does not know about servers, or about the index that follows the log.

use std::hash::{BuildHasher, RandomState};

use thresher_core::domain::Tenant;
use thresher_shared::{Cursor, EntryId, FieldChange, Follower, Journal, Shared, SharedError};

use super::{
    ChangeLog, Event, Later, LogError, LogPage, Position, Tail, decode_changes, decode_chunk, encode_changes,
    encode_chunk,
};
use crate::change::{Change, id_of};

/// The name of the default tenant's journal, and the prefix of the names for other tenants.
const NAME: &str = "chunks";
/// The number of entries that the journal keeps. A sidecar that missed more reads the whole state again.
const ENTRIES_MAX: usize = 4_096;
/// The limit on the text of one entry, in bytes; a single chunk may have more. The server and all followers
/// hold several entries in memory at once.
const ENTRY_BYTES_MAX: usize = 256 * 1024;
/// The field of the hash that holds the log's identity. All other fields start with [`CHUNK`].
const IDENTITY: &[u8] = b"identity";
/// The prefix of a field that holds a chunk; the chunk's id follows.
const CHUNK: &[u8] = b"c:";
/// The only field of an entry.
const CHANGES: &[u8] = b"changes";

/// The log of one tenant, which all sidecars of one shared tier share.
pub struct JournalLog {
    journal: Journal,
}

impl JournalLog {
    /// Creates the log of a tenant on `shared`. Sends nothing to the server yet.
    pub fn new(shared: &Shared, tenant: &Tenant) -> Self {
        let journal = shared.journal(&journal_name(tenant), ENTRIES_MAX);
        Self { journal: journal.expect("every valid tenant name is a valid journal name") }
    }

    async fn publish_entry(&self, entry: &EntryBytes) -> Result<Position, SharedError> {
        let fields: Vec<_> = entry
            .fields
            .iter()
            .map(|(field, value)| match value {
                FieldBytes::Put(value) => FieldChange::Put(field, value),
                FieldBytes::Offer(value) => FieldChange::Offer(field, value),
                FieldBytes::Delete => FieldChange::Delete(field),
            })
            .collect();
        let id = self.journal.change(&fields, &[(CHANGES, &entry.changes)]).await?;
        Ok(position(id))
    }
}

/// The name of a tenant's journal. The default tenant's has no suffix, as in versions that had only one
/// tenant.
fn journal_name(tenant: &Tenant) -> String {
    if tenant.is_default() { NAME.to_owned() } else { format!("{NAME}.{}", tenant.name()) }
}

impl ChangeLog for JournalLog {
    fn identity(&self) -> Later<'_, Result<String, LogError>> {
        Box::pin(async {
            let found = self.journal.field_or_put(IDENTITY, new_identity().as_bytes()).await;
            Ok(String::from_utf8_lossy(&found.map_err(|error| read_error(&error))?).into_owned())
        })
    }

    fn publish(&self, changes: Vec<Change>) -> Later<'_, Result<Position, LogError>> {
        Box::pin(async move {
            let mut end = Position::default();
            let encode =
                move || split_into_entries(&changes).into_iter().map(EntryBytes::new).collect::<Vec<_>>();
            for (index, entry) in run_blocking(encode).await?.iter().enumerate() {
                end = self.publish_entry(entry).await.map_err(|error| write_error(&error, index > 0))?;
            }
            Ok(end)
        })
    }

    fn end(&self) -> Later<'_, Result<Option<Position>, LogError>> {
        Box::pin(async {
            let id = self.journal.last_id().await.map_err(|error| read_error(&error))?;
            Ok(id.map(position))
        })
    }

    fn trim(&self, Position { ms, seq }: Position) -> Later<'_, Result<(), LogError>> {
        Box::pin(async move {
            let trimmed = self.journal.trim(EntryId { ms, seq }).await;
            trimmed.map_err(|error| write_error(&error, false))
        })
    }

    fn follow(&self, from: Option<Position>) -> Box<dyn Tail> {
        let from = from.map(|Position { ms, seq }| EntryId { ms, seq });
        Box::new(JournalTail(self.journal.follow(from)))
    }

    fn page(&self, cursor: Option<String>) -> Later<'_, Result<LogPage, LogError>> {
        Box::pin(async {
            let page = self.journal.scan_fields(cursor.map(Cursor::from)).await;
            let page = page.map_err(|error| read_error(&error))?;
            run_blocking(move || log_page(page)).await
        })
    }
}

struct EntryBytes {
    /// The changes of the hash, by field name.
    fields: Vec<(Vec<u8>, FieldBytes)>,
    changes: Vec<u8>,
}

enum FieldBytes {
    Put(Vec<u8>),
    Offer(Vec<u8>),
    Delete,
}

impl EntryBytes {
    fn new(changes: &[Change]) -> Self {
        Self { fields: changes.iter().map(field_change).collect(), changes: encode_changes(changes) }
    }
}

/// Runs `work` on a thread for blocking work, because encoding and decoding megabytes of JSON would delay
/// other tasks.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, LogError> {
    let stopped = |_| LogError { reason: "the daemon is stopping: nothing was changed".to_owned() };
    tokio::task::spawn_blocking(work).await.map_err(stopped)
}

fn log_page(page: thresher_shared::Page) -> LogPage {
    let mut found = LogPage { chunks: Vec::new(), unreadable: Vec::new(), next: page.next.map(String::from) };
    let decoded = page.fields.into_iter().map(|(field, value)| (field, decode_chunk(&value)));
    for (field, chunk) in decoded.chain(page.damaged.into_iter().map(|field| (field, None))) {
        let Some(id) = field.strip_prefix(CHUNK) else { continue };
        match chunk {
            Some(chunk) => found.chunks.push(chunk),
            None => found.unreadable.push(String::from_utf8_lossy(id).into_owned()),
        }
    }
    found
}

struct JournalTail(Follower);

impl Tail for JournalTail {
    fn next(&mut self) -> Later<'_, Event> {
        Box::pin(async {
            let entry = match self.0.next().await {
                Some(thresher_shared::Event::Entry(entry)) => entry,
                Some(thresher_shared::Event::Rewound) => return Event::Rewound,
                // A damaged entry may have held changes, so it counts as missing.
                Some(thresher_shared::Event::Damaged | thresher_shared::Event::Trimmed) | None => {
                    return Event::Missing;
                }
            };
            if entry.fields.is_empty() {
                return Event::Entry(position(entry.id), Vec::new());
            }
            let changes = entry.fields.iter().find(|(field, _)| field == CHANGES);
            match changes.and_then(|(_, value)| decode_changes(value)) {
                Some(changes) => Event::Entry(position(entry.id), changes),
                None => Event::Missing,
            }
        })
    }
}

/// Splits a batch into entries of at most [`ENTRY_BYTES_MAX`], in its order.
fn split_into_entries(changes: &[Change]) -> Vec<&[Change]> {
    let (mut entries, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, change) in changes.iter().enumerate() {
        let change_bytes = bytes_of(change);
        if bytes + change_bytes > ENTRY_BYTES_MAX && index > start {
            entries.push(&changes[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += change_bytes;
    }
    entries.push(&changes[start..]);
    entries
}

fn bytes_of(change: &Change) -> usize {
    match change {
        Change::Put(chunk) | Change::Offer(chunk) => chunk.bytes(),
        Change::Delete(id) => id.len(),
    }
}

/// The change of the hash for one change of the registry.
fn field_change(change: &Change) -> (Vec<u8>, FieldBytes) {
    let field = [CHUNK, id_of(change).as_bytes()].concat();
    let bytes = match change {
        Change::Put(chunk) => FieldBytes::Put(encode_chunk(chunk)),
        Change::Offer(chunk) => FieldBytes::Offer(encode_chunk(chunk)),
        Change::Delete(_) => FieldBytes::Delete,
    };
    (field, bytes)
}

/// An identity that no other log has. It is random, because a log that was lost starts again under the same
/// key.
fn new_identity() -> String {
    let random = || RandomState::new().hash_one(std::time::SystemTime::now());
    format!("{:016x}{:016x}", random(), random())
}

fn position(EntryId { ms, seq }: EntryId) -> Position {
    Position { ms, seq }
}

/// The error of a command that only reads.
fn read_error(error: &SharedError) -> LogError {
    let reason = match error {
        SharedError::Unconfirmed { reason } => format!("{reason}: nothing was changed"),
        other => other.to_string(),
    };
    LogError { reason }
}

/// The error of a command that changes the log. `partly_written`: earlier entries of the same batch were
/// written.
fn write_error(error: &SharedError, partly_written: bool) -> LogError {
    let reason = match error {
        SharedError::Unconfirmed { reason } => {
            format!("{reason}: the change may have been made; sending it again is harmless")
        }
        // The error's own message is about one entry and would say that nothing was changed.
        SharedError::Refused { reason } if partly_written => partly_written_reason(reason),
        _ if partly_written => partly_written_reason("no connection"),
        other => other.to_string(),
    };
    LogError { reason }
}

fn partly_written_reason(reason: &str) -> String {
    format!("{reason}: a part of the changes was made; sending all again is harmless")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use thresher_core::domain::Chunk;

    #[test]
    fn a_batch_is_split_where_an_entry_would_be_too_large() {
        let change = |bytes: usize| {
            let text = "x".repeat(bytes);
            Change::Put(Arc::new(Chunk::new(String::new(), text)))
        };
        let check = |bytes: &[usize], expect: &[usize]| {
            let changes: Vec<Change> = bytes.iter().map(|&bytes| change(bytes)).collect();
            let entries = split_into_entries(&changes);
            assert_eq!(entries.iter().map(|entry| entry.len()).collect::<Vec<_>>(), expect, "{bytes:?}");
            assert!(entries.concat() == changes, "{bytes:?}: the order");
        };
        let max = ENTRY_BYTES_MAX;
        check(&[1, 2, 3], &[3]);
        check(&[max], &[1]);
        check(&[max - 1, 1, 1], &[2, 1]);
        check(&[3 * max], &[1]);
        check(&[1, 3 * max, 1], &[1, 1, 1]);
        check(&[max / 2 + 1; 3], &[1, 1, 1]);
    }

    #[test]
    fn errors_say_whether_anything_was_changed() {
        let unconfirmed = || SharedError::Unconfirmed { reason: "late".to_owned() };
        let check = |error: LogError, expect: &str| assert!(error.to_string().ends_with(expect), "{error}");
        check(read_error(&unconfirmed()), "late: nothing was changed");
        check(read_error(&SharedError::Down), "no connection: nothing was changed");
        check(write_error(&SharedError::Down, false), "no connection: nothing was changed");
        check(
            write_error(&SharedError::Down, true),
            "a part of the changes was made; sending all again is harmless",
        );
        check(write_error(&unconfirmed(), true), "may have been made; sending it again is harmless");
    }

    #[test]
    fn damaged_chunks_are_listed_and_other_fields_are_ignored() {
        let chunk = Chunk::new("a", "1");
        let field = |name: &'static str| Bytes::from_static(name.as_bytes());
        let page = log_page(thresher_shared::Page {
            fields: vec![
                (field("identity"), field("x")),
                (field("c:a"), encode_chunk(&chunk).into()),
                (field("c:b"), field("no JSON")),
            ],
            damaged: vec![field("c:c"), field("identity")],
            next: None,
        });
        assert_eq!(
            (page.chunks, page.unreadable),
            (vec![Arc::new(chunk)], vec!["b".to_owned(), "c".to_owned()])
        );
    }

    #[test]
    fn every_tenant_has_a_journal_of_its_own() {
        let name = |tenant: &str| journal_name(&Tenant::new(tenant).expect("a name"));
        assert_eq!([name(""), name("a"), name("a.b-c_1")], ["chunks", "chunks.a", "chunks.a.b-c_1"]);
    }

    #[test]
    fn identities_differ() {
        assert_ne!(new_identity(), new_identity());
    }
}
