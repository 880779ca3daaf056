//! The one thread that writes: applies batches, commits what waits together, and lets readers see it before it answers.
//! Knows nothing of where changes come from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use metrics::{counter, histogram};
use tantivy::{IndexWriter, TantivyError};
use tokio::sync::{mpsc, oneshot};

use super::RegistryError;
use super::change::{Change, Outcome, id_of};
use super::content::content_of;
use super::store::{Shared, lock};
use crate::domain::Chunk;

/// Bytes of text after which no more batches join a commit.
const COMMIT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Changes that are applied together or not at all.
pub struct Job {
    pub changes: Vec<Change>,
    /// Kept with the commit; none leaves what is there.
    pub position: Option<String>,
    /// Whether the commit may wait for a later job.
    pub held: bool,
    pub count_max: usize,
    pub reply: oneshot::Sender<Result<Vec<Outcome>, RegistryError>>,
}

/// Owns the index' writer.
pub struct Writer {
    index: IndexWriter,
    shared: Arc<Shared>,
    /// Not committed yet: what each id holds then.
    pending: HashMap<String, Pending>,
    /// Its ids in the order in which they came, which is that of reading ahead; some come twice.
    order: Vec<String>,
}

enum Pending {
    Gone,
    Holds { content: u64, chunk: Option<Arc<Chunk>> },
}

impl Writer {
    /// Writes into `index`, and tells who reads it.
    pub fn new(index: IndexWriter, shared: Arc<Shared>) -> Self {
        Self { index, shared, pending: HashMap::new(), order: Vec::new() }
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
                Err(cause) => {
                    tracing::error!(%cause, "a commit of the registry failed");
                    self.pending.clear();
                    self.order.clear();
                    if let Err(cause) = self.index.rollback() {
                        tracing::error!(%cause, "the registry could not go back to its last commit");
                    }
                    for job in group {
                        let _ = job.reply.send(Err(RegistryError::Write(cause.to_string())));
                    }
                }
            }
        }
        // Merges under way are finished or forgotten; either way the last commit stands.
        drop(self.index);
    }

    fn apply(&mut self, group: &[Job]) -> Result<Vec<Vec<Outcome>>, TantivyError> {
        let mut outcomes = Vec::with_capacity(group.len());
        let before = lock(&self.shared.position).clone();
        let (mut position, mut held) = (before.clone(), true);
        let mut count = self.count();
        for job in group {
            let each = |change| self.change(change, &mut count, job);
            outcomes.push(job.changes.iter().map(each).collect::<Result<Vec<_>, _>>()?);
            position = job.position.clone().or(position);
            held &= job.held;
        }
        if !held && (!self.pending.is_empty() || position != before) {
            self.commit(position)?;
        }
        for outcome in outcomes.iter().flatten() {
            counter!("registry_changes_total", "outcome" => outcome.name()).increment(1);
        }
        Ok(outcomes)
    }

    fn change(&mut self, change: &Change, count: &mut usize, job: &Job) -> Result<Outcome, TantivyError> {
        let id = id_of(change);
        let before = match self.pending.get(id) {
            Some(Pending::Gone) => None,
            Some(Pending::Holds { content, .. }) => Some(*content),
            None => self.shared.directory().content(id),
        };
        let outcome = Outcome::of(change, before, count, job.count_max);
        if !outcome.is_change() {
            return Ok(outcome);
        }
        if before.is_some() {
            self.index.delete_term(self.shared.fields.term(id));
        }
        let pending = match change {
            Change::Delete(_) => Pending::Gone,
            Change::Put(chunk) => {
                self.index.add_document(self.shared.fields.document(chunk))?;
                // A commit that waits for more can be as large as the registry: it keeps no texts in memory.
                let kept = (!job.held).then(|| Arc::clone(chunk));
                Pending::Holds { content: content_of(chunk), chunk: kept }
            }
        };
        self.pending.insert(id.to_owned(), pending);
        self.order.push(id.to_owned());
        Ok(outcome)
    }

    /// Makes what is pending durable, then visible.
    fn commit(&mut self, position: Option<String>) -> Result<(), TantivyError> {
        let started = Instant::now();
        let mut commit = self.index.prepare_commit()?;
        if let Some(position) = &position {
            commit.set_payload(position);
        }
        commit.commit()?;
        *lock(&self.shared.position) = position;
        // From here on it is there, whatever else fails.
        let reloaded = self.shared.reader.reload();
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
        reloaded
    }

    fn count(&self) -> usize {
        let directory = self.shared.directory();
        self.pending.iter().fold(directory.len(), |count, (id, pending)| {
            match (pending, directory.content(id).is_some()) {
                (Pending::Gone, true) => count - 1,
                (Pending::Holds { .. }, false) => count + 1,
                _ => count,
            }
        })
    }
}

impl Job {
    fn bytes(&self) -> usize {
        let bytes = |change: &Change| match change {
            Change::Put(chunk) => chunk.text.len(),
            Change::Delete(id) => id.len(),
        };
        self.changes.iter().map(bytes).sum()
    }
}
