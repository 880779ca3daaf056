//! The writer thread, the only one that changes the index: it applies batches, commits the batches that wait
//! together, and makes a commit visible to readers before it replies. Does not know where changes come from.

use std::collections::HashMap;
use std::future::{Future, IntoFuture as _, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{counter, histogram};
use tantivy::directory::error::{LockError, OpenReadError, OpenWriteError};
use tantivy::index::SegmentId;
use tantivy::{Index, IndexWriter, SegmentMeta, TantivyError};
use thresher_core::domain::Chunk;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::change::{Change, Outcome, content_after, content_in, id_of};
use super::log::LogPosition;
use super::shared::{Shared, lock};
use super::{RegistryError, open};

/// Once a commit has this many bytes of text, no more batches join it.
const COMMIT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The pause between two times in which deleted texts are removed from the files is at least so many times as long as the last one took.
const PURGE_PAUSE_FACTOR: u32 = 20;

/// Changes that are applied together or not at all, and where to send their outcomes.
pub struct Job {
    pub changes: Vec<Change>,
    pub commit: Commit,
    pub count_max: usize,
    pub reply: oneshot::Sender<Result<Vec<Outcome>, RegistryError>>,
}

/// When the changes of a job are committed, and which log position is stored with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// Commits now. The changes came from no log; if they have an effect, the stored log position is removed,
    /// because the registry does not match any position of the log then.
    Local,
    /// Commits now. The changes came from a log and lead to this position.
    At(LogPosition),
    /// Commits with a later job.
    Later,
    /// Discards all uncommitted changes of earlier jobs, then does the same as [`Commit::Later`].
    DiscardPending,
}

pub struct Writer {
    index: Index,
    /// `None` after a rollback failed, which makes the writer unusable.
    writer: Option<IndexWriter>,
    shared: Arc<Shared>,
    /// The uncommitted state of each changed id.
    pending: HashMap<String, Pending>,
    /// The changed ids in the order of their changes, which is the order in which they will be read ahead. An
    /// id may occur twice.
    order: Vec<String>,
    /// The number of chunks, with uncommitted changes applied.
    count: usize,
    /// Whether the last commit is not visible to readers yet.
    unseen: bool,
    /// When the texts that were deleted or replaced are removed from the files of the index.
    purge_at: Option<Instant>,
    purge_delay: Duration,
    /// While segments with deleted texts are written anew.
    merge: Option<Merge>,
}

struct Merge {
    future: Pin<Box<dyn Future<Output = Result<Option<SegmentMeta>, TantivyError>> + Send>>,
    started: Instant,
}

/// What the writer has waited for.
enum Woken {
    Job(Option<Job>),
    PurgeDue,
    Merged(Result<(), TantivyError>),
}

enum Pending {
    Deleted,
    Present { content: u64, chunk: Option<Arc<Chunk>> },
}

impl Writer {
    /// Creates the writer. Deleted texts are removed from the files `purge_delay` after the first of them was deleted.
    pub fn new(writer: IndexWriter, shared: Arc<Shared>, purge_delay: Duration) -> Self {
        let (index, count) = (writer.index().clone(), shared.directory().len());
        Self {
            // Texts may have been deleted just before the last stop.
            purge_at: Some(Instant::now() + purge_delay),
            purge_delay,
            merge: None,
            index,
            writer: Some(writer),
            shared,
            pending: HashMap::new(),
            order: Vec::new(),
            count,
            unseen: false,
        }
    }

    /// Applies jobs until the sender of the queue is dropped. `timer` waits for them.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>, timer: &Runtime) {
        loop {
            // Also while jobs keep coming.
            if self.merge.is_none() && self.purge_at.is_some_and(|at| Instant::now() >= at) {
                self.purge();
            }
            let (purge_at, merge) = (self.purge_at.filter(|_| self.merge.is_none()), &mut self.merge);
            let woken = timer.block_on(async {
                let due = async {
                    match purge_at {
                        Some(at) => tokio::time::sleep_until(at.into()).await,
                        None => pending().await,
                    }
                };
                let merged = async {
                    match merge {
                        Some(merge) => merge.future.as_mut().await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    received = jobs.recv() => Woken::Job(received),
                    () = due => Woken::PurgeDue,
                    merged = merged => Woken::Merged(merged.map(drop)),
                }
            });
            let received = match woken {
                Woken::Job(received) => received,
                Woken::PurgeDue => continue,
                Woken::Merged(merged) => {
                    self.merged(merged);
                    continue;
                }
            };
            let Some(first) = received else { break };
            let mut group = vec![first];
            let mut bytes = group[0].bytes();
            while bytes < COMMIT_BYTES_MAX
                && let Ok(job) = jobs.try_recv()
            {
                bytes += job.bytes();
                group.push(job);
            }
            match self.apply(&group) {
                Ok(outcomes) => {
                    for (job, outcomes) in group.into_iter().zip(outcomes) {
                        let _ = job.reply.send(Ok(outcomes));
                    }
                }
                Err(RegistryError::Read(cause)) => {
                    tracing::error!(%cause, "a commit of the registry cannot be made visible");
                    for job in group {
                        let _ = job.reply.send(Err(RegistryError::Read(cause.clone())));
                    }
                }
                Err(failure) => {
                    let cause = match failure {
                        RegistryError::Write(cause) => cause,
                        other => other.to_string(),
                    };
                    if let Err(cause) = self.rollback() {
                        tracing::error!(%cause, "the registry could not roll back to its last commit");
                    }
                    for job in group {
                        let _ = job.reply.send(Err(RegistryError::Write(cause.clone())));
                    }
                }
            }
        }
        // Segment merges that are running finish or are discarded; either way the last commit stays.
        drop(self.writer);
    }

    /// Begins to write the segments anew that have deleted texts. Jobs go on in the meantime.
    fn purge(&mut self) {
        let started = Instant::now();
        match self.segments_with_deletes() {
            Ok(segments) if segments.is_empty() || self.writer.is_none() => self.merged(Ok(())),
            Ok(segments) => {
                let writer = self.writer.as_mut().expect("just checked");
                self.merge = Some(Merge { future: Box::pin(writer.merge(&segments).into_future()), started });
            }
            Err(cause) => self.merged(Err(cause)),
        }
    }

    fn segments_with_deletes(&self) -> Result<Vec<SegmentId>, TantivyError> {
        let metas = self.index.searchable_segment_metas()?;
        Ok(metas.iter().filter(|meta| meta.has_deletes()).map(SegmentMeta::id).collect())
    }

    /// Deletes the files of segments that were written anew. What is left, or has failed, is tried again later.
    fn merged(&mut self, merged: Result<(), TantivyError>) {
        let took = self.merge.take().map_or(Duration::ZERO, |merge| merge.started.elapsed());
        let is_clean = merged.and_then(|()| {
            // Readers that have ended let go of the files that they used.
            self.shared.reader.reload()?;
            let kept = match &self.writer {
                Some(writer) => writer.garbage_collect_files().wait()?.failed_to_delete_files.len(),
                None => 1,
            };
            Ok(kept == 0 && self.pending.is_empty() && self.segments_with_deletes()?.is_empty())
        });
        if let Err(cause) = &is_clean {
            tracing::warn!(%cause, "deleted texts cannot be removed from the files of the registry yet");
        }
        // Of a large registry, much is written anew, so that the next time is put off.
        let again = !matches!(is_clean, Ok(true));
        let pause = self.purge_delay.max(PURGE_PAUSE_FACTOR * took);
        self.purge_at = again.then(|| Instant::now() + pause);
    }

    fn apply(&mut self, group: &[Job]) -> Result<Vec<Vec<Outcome>>, RegistryError> {
        if self.unseen {
            self.make_visible()?;
        }
        if self.writer.is_none() {
            self.writer = Some(open::writer(&self.index).map_err(write_failed)?);
        }
        let mut outcomes = Vec::with_capacity(group.len());
        // The follower waits for the reply to each job before it sends the next, so pending changes are of
        // earlier groups.
        if group.iter().any(|job| job.commit == Commit::DiscardPending) && !self.pending.is_empty() {
            self.rollback().map_err(write_failed)?;
        }
        let before = lock(&self.shared.log_position).clone();
        let (mut position, mut commits_now) = (before.clone(), false);
        for job in group {
            let each = |change| self.change(change, job);
            let done = job.changes.iter().map(each).collect::<Result<Vec<_>, _>>().map_err(write_failed)?;
            match &job.commit {
                Commit::Local if done.iter().any(|outcome| outcome.is_change()) => {
                    (position, commits_now) = (None, true)
                }
                Commit::At(at) => (position, commits_now) = (Some(at.clone()), true),
                Commit::Local | Commit::Later | Commit::DiscardPending => {}
            }
            outcomes.push(done);
        }
        if commits_now && (!self.pending.is_empty() || position != before) {
            self.commit(position)?;
        }
        for outcome in outcomes.iter().flatten() {
            counter!("registry_changes_total", "outcome" => outcome.name()).increment(1);
        }
        Ok(outcomes)
    }

    fn change(&mut self, change: &Change, job: &Job) -> Result<Outcome, TantivyError> {
        let id = id_of(change);
        let before = match self.pending.get(id) {
            Some(Pending::Deleted) => None,
            Some(Pending::Present { content, .. }) => Some(*content),
            None => self.shared.directory().content(id),
        };
        let after = content_after(change, before, content_in(change));
        let outcome = Outcome::between(before, after, &mut self.count, job.count_max);
        if !outcome.is_change() {
            return Ok(outcome);
        }
        let writer = self.writer.as_mut().expect("opened before any change");
        if before.is_some() {
            self.purge_at.get_or_insert_with(|| Instant::now() + self.purge_delay);
            writer.delete_term(self.shared.fields.term(id));
        }
        let pending = match (change, after) {
            (Change::Put(chunk) | Change::Offer(chunk), Some(content)) => {
                writer.add_document(self.shared.fields.document(chunk))?;
                // A commit that waits for later jobs can be as large as the registry, so it keeps no texts in
                // memory.
                let commits_now = matches!(job.commit, Commit::Local | Commit::At(_));
                Pending::Present { content, chunk: commits_now.then(|| Arc::clone(chunk)) }
            }
            _ => Pending::Deleted,
        };
        self.pending.insert(id.to_owned(), pending);
        self.order.push(id.to_owned());
        Ok(outcome)
    }

    /// Makes the pending changes durable, then visible. After [`RegistryError::Read`] they are durable but
    /// not visible.
    fn commit(&mut self, position: Option<LogPosition>) -> Result<(), RegistryError> {
        let started = Instant::now();
        let writer = self.writer.as_mut().expect("opened before any change");
        let mut commit = writer.prepare_commit().map_err(write_failed)?;
        if let Some(position) = &position {
            commit.set_payload(&serde_json::to_string(position).expect("two strings are valid JSON"));
        }
        commit.commit().map_err(write_failed)?;
        *lock(&self.shared.log_position) = position;
        // From here on the changes are durable, whatever fails next.
        self.unseen = true;
        let visible = self.make_visible();
        let mut directory = self.shared.directory();
        let mut cache = lock(&self.shared.cache);
        let mut vectors = self.shared.vectors_mut();
        cache.advance();
        for id in self.order.drain(..) {
            let Some(pending) = self.pending.remove(&id) else { continue };
            vectors.remove(&id);
            match pending {
                Pending::Deleted => {
                    directory.remove(&id);
                    cache.remove(&id);
                }
                Pending::Present { content, chunk } => {
                    directory.put(&id, content);
                    match chunk {
                        Some(chunk) => cache.put(chunk),
                        None => cache.remove(&id),
                    }
                }
            }
        }
        drop((directory, cache, vectors));
        self.shared.notify_update();
        histogram!("registry_commit_seconds").record(started.elapsed());
        visible
    }

    fn make_visible(&mut self) -> Result<(), RegistryError> {
        self.shared.reader.reload()?;
        self.unseen = false;
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), TantivyError> {
        self.pending.clear();
        self.order.clear();
        self.count = self.shared.directory().len();
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.rollback()?;
        self.writer = Some(writer);
        Ok(())
    }
}

/// Logs the whole cause. The error for the caller has only the kind of an I/O error, since the library's
/// message may hold paths of this machine.
fn write_failed(cause: TantivyError) -> RegistryError {
    tracing::error!(%cause, "a commit of the registry failed");
    let system = match &cause {
        TantivyError::IoError(system) => Some(system),
        TantivyError::OpenWriteError(OpenWriteError::IoError { io_error, .. }) => Some(io_error),
        TantivyError::OpenReadError(OpenReadError::IoError { io_error, .. }) => Some(io_error),
        TantivyError::LockFailure(LockError::IoError(system), _) => Some(system),
        _ => None,
    };
    RegistryError::Write(system.map_or("its index failed".to_owned(), |system| system.kind().to_string()))
}

impl Job {
    fn bytes(&self) -> usize {
        let bytes = |change: &Change| match change {
            Change::Put(chunk) | Change::Offer(chunk) => chunk.text.len(),
            Change::Delete(id) => id.len(),
        };
        self.changes.iter().map(bytes).sum()
    }
}
