//! Keeps the chunks: one thread writes, commits what waits together, and lets readers see it before it answers.
//! Knows nothing of models, or of where changes come from.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use metrics::{counter, histogram};
use tantivy::{IndexReader, IndexWriter, ReloadPolicy, TantivyError};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::cache::Cache;
use super::content::{content_of, id_hash};
use super::directory::Directory;
use super::filter::Filter;
use super::schema::Fields;
use super::search::{Hit, Questions};
use super::{Page, RegistryError, RegistrySettings, open, reading};
use crate::domain::Chunk;

/// Batches that wait for the writer; one more is told to come back.
const WAITING_MAX: usize = 64;
/// Bytes of text after which no more batches join a commit.
const COMMIT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A change to what is registered.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Registers the chunk under its id, or replaces the one that is there.
    Put(Arc<Chunk>),
    /// Takes the id away.
    Delete(String),
}

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The id is new.
    Created,
    /// The id held something else.
    Updated,
    /// The id held the same.
    Unchanged,
    /// The id is gone.
    Deleted,
    /// There was no such id.
    Unknown,
    /// There are `registry.chunk_count_max` chunks already; nothing was done.
    Full,
}

/// Chunks on disk, the list of them and those in use.
pub struct Store {
    shared: Arc<Shared>,
    /// None once the store is being dropped.
    jobs: Option<mpsc::Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    count_max: usize,
}

/// What readers, the writer and the warmer share.
pub struct Shared {
    fields: Fields,
    reader: IndexReader,
    directory: Mutex<Directory>,
    cache: Mutex<Cache>,
    /// Says that the directory has changed.
    turn: watch::Sender<()>,
    /// Nobody reads ahead any more.
    gave_up: AtomicBool,
    /// Kept with every commit: how far the log that others write, too, has been applied.
    position: Mutex<Option<String>>,
}

/// Changes that are applied together or not at all.
pub struct Job {
    changes: Vec<Change>,
    /// Kept with the commit; none leaves what is there.
    position: Option<String>,
    /// Whether the commit may wait for a later job.
    held: bool,
    count_max: usize,
    reply: oneshot::Sender<Result<Vec<Outcome>, RegistryError>>,
}

impl Store {
    /// Opens the index and starts its writer.
    pub fn open(settings: &RegistrySettings) -> Result<Self, RegistryError> {
        let open::Opened { index, writer, fields } = open::open(&settings.dir)?;
        let reader: IndexReader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()?;
        let directory = open::directory(&reader.searcher(), &fields)?;
        let position = index.load_metas()?.payload;
        let shared = Arc::new(Shared {
            fields,
            reader,
            directory: Mutex::new(directory),
            cache: Mutex::new(Cache::new(settings.cache_bytes_max)),
            turn: watch::Sender::new(()),
            gave_up: AtomicBool::new(false),
            position: Mutex::new(position),
        });
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let writer =
            Writer { index: writer, shared: Arc::clone(&shared), pending: HashMap::new(), order: Vec::new() };
        let writer = std::thread::Builder::new()
            .name("registry-writer".to_owned())
            .spawn(move || writer.run(waiting))
            .map_err(|e| RegistryError::Write(e.to_string()))?;
        Ok(Self { shared, jobs: Some(jobs), writer: Some(writer), count_max: settings.chunk_count_max })
    }

    /// As [`super::Registry::write`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        let (reply, answer) = oneshot::channel();
        let job = Job { changes, position: None, held: false, count_max: self.count_max, reply };
        let jobs = self.jobs.as_ref().ok_or(RegistryError::Stopped)?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => RegistryError::Overloaded,
            TrySendError::Closed(_) => RegistryError::Stopped,
        })?;
        answer.await.unwrap_or(Err(RegistryError::Stopped))
    }

    /// Applies what came from a log, with its place; `held` leaves the commit to a later call.
    pub async fn follow(
        &self,
        changes: Vec<Change>,
        position: Option<String>,
        held: bool,
    ) -> Result<(), RegistryError> {
        let (reply, answer) = oneshot::channel();
        // All who follow the log have to come to the same: there is no limit here.
        let job = Job { changes, position, held, count_max: usize::MAX, reply };
        let jobs = self.jobs.as_ref().ok_or(RegistryError::Stopped)?;
        jobs.send(job).await.map_err(|_| RegistryError::Stopped)?;
        answer.await.unwrap_or(Err(RegistryError::Stopped)).map(drop)
    }

    /// The place in a log that the last commit kept.
    pub fn position(&self) -> Option<String> {
        lock(&self.shared.position).clone()
    }

    /// What `changes` would do to what is registered now.
    pub fn foresee(&self, changes: &[Change]) -> Vec<Outcome> {
        let directory = self.directory();
        let mut count = directory.len();
        let mut after: HashMap<&str, Option<u64>> = HashMap::new();
        let outcome = |change| {
            let id = id_of(change);
            let before = after.get(id).copied().unwrap_or_else(|| directory.content(id));
            let outcome = Outcome::of(change, before, &mut count, self.count_max);
            if outcome.is_change() {
                after.insert(id, content_after(change));
            }
            outcome
        };
        changes.iter().map(outcome).collect()
    }

    /// What the warmer and questions need.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// As [`super::Registry::get`].
    pub fn get(&self, ids: &[impl AsRef<str>]) -> Result<Vec<Option<Arc<Chunk>>>, RegistryError> {
        self.shared.get(ids, true)
    }

    /// The list of chunks.
    pub fn directory(&self) -> MutexGuard<'_, Directory> {
        self.shared.directory()
    }

    /// Says when the directory has changed.
    pub fn turns(&self) -> watch::Receiver<()> {
        self.shared.turn.subscribe()
    }

    /// As [`super::Registry::list`].
    pub fn list(
        &self,
        after: Option<&str>,
        limit: usize,
        filter: Option<&Filter>,
    ) -> Result<Page, RegistryError> {
        let searcher = self.shared.reader.searcher();
        let questions = Questions { searcher: &searcher, fields: &self.shared.fields };
        let passing = filter.map(|filter| questions.passing(filter)).transpose()?;
        let passes = |id: &&Arc<str>| passing.as_ref().is_none_or(|passing| passing.contains(&id_hash(id)));
        let mut ids: Vec<Arc<str>> =
            self.directory().after(after).filter(passes).take(limit.saturating_add(1)).cloned().collect();
        let more = ids.len() > limit;
        ids.truncate(limit);
        let next = more.then(|| ids.last().map(ToString::to_string)).flatten();
        // One that was deleted a moment ago is in neither.
        Ok(Page { chunks: self.get(&ids)?.into_iter().flatten().collect(), next })
    }

    /// As [`super::Registry::search`].
    pub fn search(
        &self,
        query: &str,
        filter: Option<&Filter>,
        limit: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        let searcher = self.shared.reader.searcher();
        Questions { searcher: &searcher, fields: &self.shared.fields }.best(query, filter, limit)
    }

    /// As [`super::Registry::prefilter`].
    pub fn prefilter(
        &self,
        query: &str,
        ids: &[impl AsRef<str>],
        keep: usize,
    ) -> Result<Vec<usize>, RegistryError> {
        let searcher = self.shared.reader.searcher();
        let scores = Questions { searcher: &searcher, fields: &self.shared.fields }.scores(query, ids)?;
        let mut places: Vec<usize> = (0..ids.len()).collect();
        // Stable: among equals the earlier ones stay.
        places.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        places.truncate(keep);
        places.sort_unstable();
        Ok(places)
    }
}

impl Drop for Store {
    /// The folder is free for another once this returns.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// The list of chunks.
    pub fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }

    /// The directory has changed.
    pub fn turn(&self) {
        self.turn.send_replace(());
    }

    /// Nothing will be read ahead any more.
    pub fn give_up(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
        self.turn();
    }

    /// Whether [`Self::give_up`] was called.
    pub fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Relaxed)
    }

    /// Chunks by id; `keep` puts those read from disk into the cache.
    pub fn get(&self, ids: &[impl AsRef<str>], keep: bool) -> Result<Vec<Option<Arc<Chunk>>>, RegistryError> {
        let (mut found, generation): (Vec<_>, u64) = {
            let mut cache = lock(&self.cache);
            (ids.iter().map(|id| cache.get(id.as_ref())).collect(), cache.generation())
        };
        let missing: Vec<usize> = {
            let directory = self.directory();
            let is_there =
                |at: &usize| found[*at].is_none() && directory.content(ids[*at].as_ref()).is_some();
            (0..ids.len()).filter(is_there).collect()
        };
        if missing.is_empty() {
            return Ok(found);
        }
        let wanted: Vec<&str> = missing.iter().map(|&at| ids[at].as_ref()).collect();
        let read = reading::chunks(&self.reader.searcher(), &self.fields, &wanted)?;
        let mut cache = lock(&self.cache);
        let current = cache.generation() == generation;
        for (at, chunk) in missing.into_iter().zip(read) {
            if let Some(chunk) = chunk.as_ref().filter(|_| keep && current) {
                cache.put(Arc::clone(chunk));
            }
            found[at] = chunk;
        }
        Ok(found)
    }
}

/// A thread that panicked left nothing half done that the next one could see.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Writer {
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
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
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

fn id_of(change: &Change) -> &str {
    match change {
        Change::Put(chunk) => &chunk.id,
        Change::Delete(id) => id,
    }
}

fn content_after(change: &Change) -> Option<u64> {
    match change {
        Change::Put(chunk) => Some(content_of(chunk)),
        Change::Delete(_) => None,
    }
}

impl Outcome {
    /// What `change` does to an id that held `before`, where there are `count` chunks of at most `count_max`.
    fn of(change: &Change, before: Option<u64>, count: &mut usize, count_max: usize) -> Self {
        match (before, content_after(change)) {
            (None, None) => Self::Unknown,
            (Some(_), None) => {
                *count -= 1;
                Self::Deleted
            }
            (None, Some(_)) if *count >= count_max => Self::Full,
            (None, Some(_)) => {
                *count += 1;
                Self::Created
            }
            (Some(before), Some(after)) if before == after => Self::Unchanged,
            (Some(_), Some(_)) => Self::Updated,
        }
    }

    /// Whether anything is different now.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Created | Self::Updated | Self::Deleted)
    }

    /// In metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::Unknown => "unknown",
            Self::Full => "full",
        }
    }
}
