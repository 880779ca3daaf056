//! Follows a log: applies its entries to the index, from the position that was committed last. If entries are
//! missing or the log is new, it first adopts the log: it makes the index equal to the state that the log
//! adds up to. Does not know where the log is stored.
//!
//! The log is authoritative: a change is written to the log first and applied when it is read back, so that
//! all registries apply the same changes in the same order. The position is stored with each commit: after a
//! crash no entry is missed, and applying an entry twice changes nothing.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use thresher_core::domain::Chunk;
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::RegistryError;
use super::change::{Change, Outcome, id_hash};
use super::log::{ChangeLog, Event, LogError, LogPosition, Position};
use super::store::{Store, run_blocking};
use super::writer::Commit;

/// The number of changes that are committed together while the registry catches up.
const CHANGES_MAX: usize = 2_000;
/// The number of batches that may wait for the log, each perhaps with megabytes; one more is refused as
/// overloaded.
const WAITING_MAX: usize = 64;
/// How long after a text was deleted its entries are removed from the log.
const TRIM_DELAY: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A session of at least this length resets the pause: the registry is not in a loop of losses and adoptions.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// The number of failures in a row after which a warning is logged. The first ones may occur at startup,
/// while the log is being connected to.
const FAILURES_LOGGED: u32 = 4;
/// The number of this registry's chunks in one entry that is written to a log that lacks them.
const ENTRY_COUNT: usize = 64;

/// A registry's participation in a log: a task applies the log to the index, and changes are written through
/// the log.
pub struct Membership {
    store: Arc<Store>,
    log: Arc<dyn ChangeLog>,
    applied: watch::Receiver<Applied>,
    /// Tells the task to start over, because the log may be another one.
    restart: Arc<Notify>,
    waiting: Semaphore,
    /// Held while the new chunks of a batch are counted, so that batches are counted one at a time.
    counting: Mutex<()>,
    /// The number of new chunks that are in the log, or about to be, but not in the index yet.
    pending_count: AtomicUsize,
    /// Where the log is about to be trimmed; `None`: it is not.
    trims_to: Arc<std::sync::Mutex<Option<Position>>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Applied {
    /// The log has not been adopted since the start, or since entries were missing.
    NotJoined,
    /// All entries up to this position are applied.
    To(LogPosition),
    /// Entries could not be written to the index, with the reason.
    Failed(String),
}

impl Membership {
    /// Starts to follow `log` into `store`. Needs a Tokio runtime.
    pub fn start(store: Arc<Store>, log: Arc<dyn ChangeLog>) -> Self {
        let (sender, applied) = watch::channel(Applied::NotJoined);
        let restart = Arc::new(Notify::new());
        let task = FollowTask {
            store: Arc::clone(&store),
            log: Arc::clone(&log),
            applied: sender,
            restart: Arc::clone(&restart),
            missing_in_log: None,
        };
        Self {
            store,
            log,
            applied,
            restart,
            waiting: Semaphore::new(WAITING_MAX),
            counting: Mutex::default(),
            pending_count: AtomicUsize::default(),
            trims_to: Arc::default(),
            task: tokio::spawn(task.run()),
        }
    }

    /// Writes changes through the log; see [`super::Registry::write`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        let _permit = self.waiting.try_acquire().map_err(|_full| RegistryError::Overloaded)?;
        // The outcomes of changes are known only after the whole log has been applied.
        let end = self.joined().await?;
        self.wait_until_applied(&end).await?;
        let (changes, outcomes, _pending) = self.preview(changes).await?;
        let changed = changes.into_iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_change());
        let changed: Vec<Change> = changed.map(|(change, _)| change).collect();
        if !changed.is_empty() {
            let position = self.log.publish(changed).await?;
            // Identities are never reused: if the log has the same identity now, it had it when the changes
            // were published.
            if self.log.identity().await? != end.log {
                return Err(log_lost().into());
            }
            if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Deleted | Outcome::Updated)) {
                self.trim_later(position);
            }
            self.wait_until_applied(&LogPosition { position, ..end }).await?;
        }
        Ok(outcomes)
    }

    /// Removes the texts that were deleted or replaced from the entries of the log, once other registries have read them.
    fn trim_later(&self, position: Position) {
        let mut trims_to = self.trims_to.lock().unwrap_or_else(PoisonError::into_inner);
        if trims_to.replace(position).is_some() {
            return;
        }
        let (log, trims_to) = (Arc::downgrade(&self.log), Arc::clone(&self.trims_to));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(TRIM_DELAY).await;
                // The registry may have been dropped.
                let Some(log) = log.upgrade() else { return };
                let position = trims_to.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(position) = position else { return };
                if let Err(error) = log.trim(position).await {
                    tracing::warn!(%error, "deleted texts cannot be removed from the change log yet");
                    trims_to.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(position);
                }
            }
        });
    }

    /// Returns the changes and the outcomes that they would have. Until the returned [`PendingChunks`] is
    /// dropped, the new chunks count towards the limit for other batches.
    async fn preview(
        &self,
        changes: Vec<Change>,
    ) -> Result<(Vec<Change>, Vec<Outcome>, PendingChunks<'_>), RegistryError> {
        let _counting = self.counting.lock().await;
        let (store, others) = (Arc::clone(&self.store), self.pending_count.load(Ordering::Relaxed));
        let (changes, outcomes) = run_blocking(move || {
            let outcomes = store.preview(&changes, others);
            (changes, outcomes)
        })
        .await?;
        let count = outcomes.iter().filter(|outcome| **outcome == Outcome::Created).count();
        self.pending_count.fetch_add(count, Ordering::Relaxed);
        Ok((changes, outcomes, PendingChunks { total: &self.pending_count, count }))
    }

    /// Waits until this registry has adopted the log with the log's current identity. Returns the end of the
    /// log.
    async fn joined(&self) -> Result<LogPosition, RegistryError> {
        let mut applied = self.applied.clone();
        loop {
            let log = self.log.identity().await?;
            let end = self.log.end().await?;
            match &*applied.borrow_and_update() {
                Applied::To(applied) if applied.log == log => {
                    return Ok(LogPosition { log, position: end.unwrap_or_default() });
                }
                // The task cannot detect that an empty log was lost, so it is told to start over.
                Applied::To(_) => self.restart.notify_one(),
                Applied::Failed(cause) => return Err(RegistryError::Write(cause.clone())),
                Applied::NotJoined => {}
            }
            applied.changed().await.map_err(|_| RegistryError::Stopped)?;
        }
    }

    /// Waits until all entries up to `target` are in the index. Fails if the log was lost meanwhile.
    async fn wait_until_applied(&self, target: &LogPosition) -> Result<(), RegistryError> {
        let mut applied = self.applied.clone();
        let is_decided = |applied: &Applied| match applied {
            Applied::To(at) => at.log != target.log || at.position >= target.position,
            Applied::Failed(_) => true,
            Applied::NotJoined => false,
        };
        match &*applied.wait_for(is_decided).await.map_err(|_| RegistryError::Stopped)? {
            Applied::To(at) if at.log == target.log => Ok(()),
            Applied::Failed(cause) => Err(RegistryError::Write(cause.clone())),
            _ => Err(log_lost().into()),
        }
    }
}

/// The new chunks of one batch that are not in the index yet. Dropping it subtracts them from the total.
struct PendingChunks<'a> {
    total: &'a AtomicUsize,
    count: usize,
}

impl Drop for PendingChunks<'_> {
    fn drop(&mut self) {
        self.total.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct FollowTask {
    store: Arc<Store>,
    log: Arc<dyn ChangeLog>,
    applied: watch::Sender<Applied>,
    /// Notified when a writer has found that the log has another identity.
    restart: Arc<Notify>,
    /// Set if entries are missing or the stored position is not in the log any more. The log is then adopted
    /// again, and this says what happens to chunks that are not in the log.
    missing_in_log: Option<MissingInLog>,
}

impl FollowTask {
    async fn run(mut self) {
        let (mut pause, mut failures) = (PAUSE_MIN, 0);
        loop {
            let started = Instant::now();
            let ended = self.session().await;
            self.applied.send_replace(match &ended {
                Err(RegistryError::Write(cause)) => Applied::Failed(cause.clone()),
                _ => Applied::NotJoined,
            });
            if started.elapsed() >= STABLE_AFTER {
                (pause, failures) = (PAUSE_MIN, 0);
            }
            match ended {
                Ok(()) => failures = 0,
                Err(cause) => {
                    failures += 1;
                    if failures == FAILURES_LOGGED {
                        tracing::warn!(%cause, "the registry cannot follow the change log; it takes no changes until it can");
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Follows the log until entries are missing or the log may be another one.
    async fn session(&mut self) -> Result<(), RegistryError> {
        // Pending changes of an adoption that was interrupted may be of another log, or of chunks that were
        // deleted since.
        self.store.apply_from_log(Vec::new(), Commit::DiscardPending).await?;
        let identity = self.log.identity().await?;
        let stored = self.store.log_position().filter(|stored| stored.log == identity);
        let mut position = match (stored, self.missing_in_log) {
            (Some(position), None) => position,
            (Some(_), Some(missing)) => adopt(&self.store, &*self.log, identity, missing).await?,
            (None, _) => adopt(&self.store, &*self.log, identity, MissingInLog::Publish).await?,
        };
        self.missing_in_log = None;
        tracing::info!(position = %position.position, "the registry follows the change log");
        self.applied.send_replace(Applied::To(position.clone()));
        let mut tail = self.log.follow(Some(position.position).filter(|at| *at != Position::default()));
        loop {
            let mut changes = Vec::new();
            let mut event = tokio::select! {
                event = tail.next() => event,
                () = self.restart.notified() => return Ok(()),
            };
            loop {
                match event {
                    Event::Entry(at, mut entry) => {
                        position.position = at;
                        changes.append(&mut entry);
                    }
                    Event::Missing => self.missing_in_log = Some(MissingInLog::Delete),
                    Event::Rewound => self.missing_in_log = Some(MissingInLog::Publish),
                }
                if self.missing_in_log.is_some() || changes.len() >= CHANGES_MAX {
                    break;
                }
                // Entries that are available already join the commit.
                match tokio::time::timeout(Duration::ZERO, tail.next()).await {
                    Ok(next) => event = next,
                    Err(_nothing_yet) => break,
                }
            }
            if !changes.is_empty() {
                self.store.apply_from_log(changes, Commit::At(position.clone())).await?;
            }
            match self.missing_in_log {
                Some(MissingInLog::Delete) => {
                    tracing::warn!("entries of the change log are missing: reading its whole state again");
                    return Ok(());
                }
                Some(MissingInLog::Publish) => {
                    tracing::warn!(
                        "the change log has lost its last entries: writing the chunks registered here to it"
                    );
                    return Ok(());
                }
                None => {}
            }
            self.applied.send_replace(Applied::To(position.clone()));
        }
    }
}

/// What happens, when a log is adopted, to the chunks of this registry that the log does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingInLog {
    /// They are deleted here: another sidecar deleted them while this one did not follow.
    Delete,
    /// They are written to the log, unless it has other chunks under their ids by then: the log is new to
    /// this registry, or has lost its content or its last entries.
    Publish,
}

/// Makes the index equal to the state that the log `identity` adds up to, in one commit. Returns the position
/// from which to follow. Chunks that are damaged in the log and intact here are written to it again.
async fn adopt(
    store: &Arc<Store>,
    log: &dyn ChangeLog,
    identity: String,
    missing_in_log: MissingInLog,
) -> Result<LogPosition, RegistryError> {
    // The end is read before the pages, so that changes made meanwhile are followed afterwards.
    let position = log.end().await?.unwrap_or_default();
    let (mut cursor, mut in_log, mut unreadable) = (None, HashSet::new(), HashSet::new());
    loop {
        let page = log.page(cursor).await?;
        unreadable.extend(page.unreadable);
        in_log.extend(page.chunks.iter().map(|chunk| id_hash(&chunk.id)));
        store.apply_from_log(page.chunks.into_iter().map(Change::Put).collect(), Commit::Later).await?;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let in_log_count = in_log.len();
    let only_here = run_blocking({
        let store = Arc::clone(store);
        move || store.ids(None).filter(|id| !in_log.contains(&id_hash(id))).collect::<Vec<_>>()
    })
    .await?;
    let is_published = |id: &Arc<str>| missing_in_log == MissingInLog::Publish || unreadable.contains(&**id);
    let (published, deleted): (Vec<_>, Vec<_>) = only_here.into_iter().partition(is_published);
    // They are published before the position is committed: after a crash in between, they are published
    // again.
    for ids in published.chunks(ENTRY_COUNT) {
        let (store, ids) = (Arc::clone(store), ids.to_vec());
        let chunks = run_blocking(move || store.get(&ids)).await??;
        // Intact chunks are only offered, because a chunk that another sidecar has registered since the pages
        // were read is newer.
        let change = |chunk: Arc<Chunk>| {
            if unreadable.contains(&chunk.id) { Change::Put(chunk) } else { Change::Offer(chunk) }
        };
        let chunks: Vec<_> = chunks.into_iter().flatten().map(change).collect();
        if !chunks.is_empty() {
            log.publish(chunks).await?;
        }
    }
    // Identities are never reused: if the log has the same identity now, everything above was read from the
    // same log.
    if log.identity().await? != identity {
        return Err(LogError { reason: "it was lost while it was being read".to_owned() }.into());
    }
    tracing::info!(
        in_log = in_log_count,
        published = published.len(),
        deleted = deleted.len(),
        "the registry has adopted the log"
    );
    let position = LogPosition { log: identity, position };
    let deleted = deleted.iter().map(|id| Change::Delete(id.to_string())).collect();
    store.apply_from_log(deleted, Commit::At(position.clone())).await?;
    Ok(position)
}

fn log_lost() -> LogError {
    let reason = "it has lost its content: the change may have been made; sending it again is harmless";
    LogError { reason: reason.to_owned() }
}

impl From<LogError> for RegistryError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}
