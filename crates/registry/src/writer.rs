//! The one thread that writes: applies batches, commits what waits together, and lets readers see it before it answers.
//! Knows nothing of where changes come from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use metrics::{counter, histogram};
use tantivy::directory::error::{LockError, OpenReadError, OpenWriteError};
use tantivy::{Index, IndexWriter, TantivyError};
use thresher_core::domain::Chunk;
use tokio::sync::{mpsc, oneshot};

use super::change::{Change, Outcome, content_after, content_brought, id_of};
use super::log::Place;
use super::store::{Shared, lock};
use super::{RegistryError, open};

/// Bytes of text after which no more batches join a commit.
const COMMIT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Changes that are applied together or not at all.
pub struct Job {
    pub changes: Vec<Change>,
    pub commit: Commit,
    pub count_max: usize,
    pub reply: oneshot::Sender<Result<Vec<Outcome>, RegistryError>>,
}

/// When changes become durable, and what is kept with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// Now. They came from no log: if they change anything, this registry is at no place of one any more.
    Local,
    /// Now; they came from a log and lead to this place.
    At(Place),
    /// With a later job.
    Later,
    /// As [`Commit::Later`], once what waits for a later job has been forgotten.
    Forget,
}

/// Owns the index' writer.
pub struct Writer {
    index: Index,
    /// None after it could not go back to its last commit: it is then of no more use.
    writer: Option<IndexWriter>,
    shared: Arc<Shared>,
    /// Not committed yet: what each id holds then.
    pending: HashMap<String, Pending>,
    /// Its ids in the order in which they came, which is that of reading ahead; some come twice.
    order: Vec<String>,
    /// Chunks, what is pending included.
    count: usize,
    /// Whether readers have not seen the last commit.
    unseen: bool,
}

enum Pending {
    Gone,
    Holds { content: u64, chunk: Option<Arc<Chunk>> },
}

impl Writer {
    /// Writes into `index`, and tells who reads it.
    pub fn new(writer: IndexWriter, shared: Arc<Shared>) -> Self {
        let (index, count) = (writer.index().clone(), shared.directory().len());
        Self {
            index,
            writer: Some(writer),
            shared,
            pending: HashMap::new(),
            order: Vec::new(),
            count,
            unseen: false,
        }
    }

    /// Applies jobs until nobody can send any more.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = jobs.blocking_recv() {
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
                    tracing::error!(%cause, "a commit of the registry cannot be seen");
                    for job in group {
                        let _ = job.reply.send(Err(RegistryError::Read(cause.clone())));
                    }
                }
                Err(failure) => {
                    let cause = match failure {
                        RegistryError::Write(cause) => cause,
                        other => other.to_string(),
                    };
                    if let Err(cause) = self.forget() {
                        tracing::error!(%cause, "the registry could not go back to its last commit");
                    }
                    for job in group {
                        let _ = job.reply.send(Err(RegistryError::Write(cause.clone())));
                    }
                }
            }
        }
        // Merges under way are finished or forgotten; either way the last commit stands.
        drop(self.writer);
    }

    fn apply(&mut self, group: &[Job]) -> Result<Vec<Vec<Outcome>>, RegistryError> {
        if self.unseen {
            self.show()?;
        }
        if self.writer.is_none() {
            self.writer = Some(open::writer(&self.index).map_err(write_failed)?);
        }
        let mut outcomes = Vec::with_capacity(group.len());
        // Who follows waits for every job: what is pending before a group was left by earlier ones.
        if group.iter().any(|job| job.commit == Commit::Forget) && !self.pending.is_empty() {
            self.forget().map_err(write_failed)?;
        }
        let before = lock(&self.shared.place).clone();
        let (mut place, mut now) = (before.clone(), false);
        for job in group {
            let each = |change| self.change(change, job);
            let done = job.changes.iter().map(each).collect::<Result<Vec<_>, _>>().map_err(write_failed)?;
            match &job.commit {
                Commit::Local if done.iter().any(|outcome| outcome.is_change()) => {
                    (place, now) = (None, true)
                }
                Commit::At(at) => (place, now) = (Some(at.clone()), true),
                Commit::Local | Commit::Later | Commit::Forget => {}
            }
            outcomes.push(done);
        }
        if now && (!self.pending.is_empty() || place != before) {
            self.commit(place)?;
        }
        for outcome in outcomes.iter().flatten() {
            counter!("registry_changes_total", "outcome" => outcome.name()).increment(1);
        }
        Ok(outcomes)
    }

    fn change(&mut self, change: &Change, job: &Job) -> Result<Outcome, TantivyError> {
        let id = id_of(change);
        let before = match self.pending.get(id) {
            Some(Pending::Gone) => None,
            Some(Pending::Holds { content, .. }) => Some(*content),
            None => self.shared.directory().content(id),
        };
        let after = content_after(change, before, content_brought(change));
        let outcome = Outcome::of(before, after, &mut self.count, job.count_max);
        if !outcome.is_change() {
            return Ok(outcome);
        }
        let writer = self.writer.as_mut().expect("opened before any change");
        if before.is_some() {
            writer.delete_term(self.shared.fields.term(id));
        }
        let pending = match (change, after) {
            (Change::Put(chunk) | Change::Offer(chunk), Some(content)) => {
                writer.add_document(self.shared.fields.document(chunk))?;
                // A commit that waits for more can be as large as the registry: it keeps no texts in memory.
                let now = matches!(job.commit, Commit::Local | Commit::At(_));
                Pending::Holds { content, chunk: now.then(|| Arc::clone(chunk)) }
            }
            _ => Pending::Gone,
        };
        self.pending.insert(id.to_owned(), pending);
        self.order.push(id.to_owned());
        Ok(outcome)
    }

    /// Makes what is pending durable, then visible. [`RegistryError::Read`]: it is durable.
    fn commit(&mut self, place: Option<Place>) -> Result<(), RegistryError> {
        let started = Instant::now();
        let writer = self.writer.as_mut().expect("opened before any change");
        let mut commit = writer.prepare_commit().map_err(write_failed)?;
        if let Some(place) = &place {
            commit.set_payload(&serde_json::to_string(place).expect("two texts are JSON"));
        }
        commit.commit().map_err(write_failed)?;
        *lock(&self.shared.place) = place;
        // From here on it is there, whatever else fails.
        self.unseen = true;
        let shown = self.show();
        let mut directory = self.shared.directory();
        let mut cache = lock(&self.shared.cache);
        cache.advance();
        for id in self.order.drain(..) {
            let Some(pending) = self.pending.remove(&id) else { continue };
            match pending {
                Pending::Gone => {
                    directory.remove(&id);
                    cache.remove(&id);
                }
                Pending::Holds { content, chunk } => {
                    directory.put(&id, content);
                    match chunk {
                        Some(chunk) => cache.put(chunk),
                        None => cache.remove(&id),
                    }
                }
            }
        }
        drop((directory, cache));
        self.shared.turn();
        histogram!("registry_commit_seconds").record(started.elapsed());
        shown
    }

    fn show(&mut self) -> Result<(), RegistryError> {
        self.shared.reader.reload()?;
        self.unseen = false;
        Ok(())
    }

    /// Goes back to the last commit.
    fn forget(&mut self) -> Result<(), TantivyError> {
        self.pending.clear();
        self.order.clear();
        self.count = self.shared.directory().len();
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.rollback()?;
        self.writer = Some(writer);
        Ok(())
    }
}

/// The whole of it is for the log; a caller has no use for the library's words, nor for paths of this machine.
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
