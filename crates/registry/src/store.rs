//! Stores the chunks: the index on disk, the list of all chunks, and a cache of the chunks in use. Passes
//! changes to the writer. Does not know about models, or where changes come from.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::thread::JoinHandle;

use tantivy::{IndexReader, ReloadPolicy, Warmer};
use thresher_core::domain::Chunk;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::cache::Cache;
use super::change::{Change, Outcome, content_after, content_in, id_of};
use super::directory::Directory;
use super::log::LogPosition;
use super::search::{Hit, IndexSearch};
use super::shared::{Shared, lock, read};
use super::writer::{Commit, Job, Writer};
use super::{Page, RegistryError, RegistryLimits, RegistrySettings, open};

/// The number of batches that may wait for the writer; one more is refused as overloaded.
const WAITING_MAX: usize = 64;

/// The number of ids that are copied from the directory under one lock.
const ID_BATCH_COUNT: usize = 1_024;

/// The constant k of reciprocal rank fusion: a rank r counts 1 / (k + r). 60 is that of Cormack et al., SIGIR 2009.
const FUSION_RANKS: f32 = 60.0;

/// The number of chunks that a page reads at a time.
const PAGE_READ_COUNT: usize = 8;

/// The index, the list of all chunks, the cache, and the writer thread.
pub struct Store {
    shared: Arc<Shared>,
    /// `None` once the store is being dropped.
    jobs: Option<mpsc::Sender<Job>>,
    writer: Option<JoinHandle<()>>,
    count_max: usize,
}

impl Store {
    /// Opens the index and starts its writer.
    pub fn open(settings: &RegistrySettings, limits: RegistryLimits) -> Result<Self, RegistryError> {
        Self::open_with(settings, limits, Vec::new())
    }

    /// Opens the index with `warmers`, which `tantivy` calls before a commit becomes visible.
    fn open_with(
        settings: &RegistrySettings,
        limits: RegistryLimits,
        warmers: Vec<Weak<dyn Warmer>>,
    ) -> Result<Self, RegistryError> {
        let open::OpenedIndex { index, writer, fields } = open::open(&settings.dir)?;
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).warmers(warmers);
        let reader: IndexReader = reader.try_into()?;
        let directory = open::read_directory(&reader.searcher(), &fields)?;
        let log_position =
            index.load_metas()?.payload.and_then(|payload| serde_json::from_str(&payload).ok());
        let shared = Arc::new(Shared {
            fields,
            reader,
            directory: Mutex::new(directory),
            cache: Mutex::new(Cache::new(limits.cache_bytes_max)),
            vectors: RwLock::default(),
            updates: watch::Sender::new(()),
            warmer_stopped: AtomicBool::new(false),
            log_position: Mutex::new(log_position),
        });
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let writer = Writer::new(writer, Arc::clone(&shared), limits.purge_delay);
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let timer = timer.map_err(|e| RegistryError::Write(e.to_string()))?;
        let writer = std::thread::Builder::new()
            .name("registry-writer".to_owned())
            .spawn(move || writer.run(waiting, &timer))
            .map_err(|e| RegistryError::Write(e.to_string()))?;
        Ok(Self { shared, jobs: Some(jobs), writer: Some(writer), count_max: settings.chunk_count_max })
    }

    /// Applies changes that came from no log; see [`super::Registry::write`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        let (reply, answer) = oneshot::channel();
        let job = Job { changes, commit: Commit::Local, count_max: self.count_max, reply };
        let jobs = self.jobs.as_ref().ok_or(RegistryError::Stopped)?;
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => RegistryError::Overloaded,
            TrySendError::Closed(_) => RegistryError::Stopped,
        })?;
        answer.await.unwrap_or(Err(RegistryError::Stopped))
    }

    pub async fn apply_from_log(&self, changes: Vec<Change>, commit: Commit) -> Result<(), RegistryError> {
        let (reply, answer) = oneshot::channel();
        // No limit on the number of chunks here, because all registries that follow the log have to reach the
        // same state.
        let job = Job { changes, commit, count_max: usize::MAX, reply };
        let jobs = self.jobs.as_ref().ok_or(RegistryError::Stopped)?;
        jobs.send(job).await.map_err(|_| RegistryError::Stopped)?;
        answer.await.unwrap_or(Err(RegistryError::Stopped)).map(drop)
    }

    /// The position in a log that was stored with the last commit.
    pub fn log_position(&self) -> Option<LogPosition> {
        lock(&self.shared.log_position).clone()
    }

    /// Computes the outcomes that `changes` would have now, without making them. `pending_count` is the
    /// number of new chunks that are in the log but not in the index yet; they count towards the limit.
    pub fn preview(&self, changes: &[Change], pending_count: usize) -> Vec<Outcome> {
        // Hashing happens before the directory is locked.
        let contents: Vec<Option<u64>> = changes.iter().map(content_in).collect();
        let directory = self.directory();
        let mut count = directory.len() + pending_count;
        let mut changed: HashMap<&str, Option<u64>> = HashMap::new();
        let outcome = |(change, content)| {
            let id = id_of(change);
            let before = changed.get(id).copied().unwrap_or_else(|| directory.content(id));
            let after = content_after(change, before, content);
            let outcome = Outcome::between(before, after, &mut count, self.count_max);
            if outcome.is_change() {
                changed.insert(id, after);
            }
            outcome
        };
        changes.iter().zip(contents).map(outcome).collect()
    }

    /// Iterates over the ids after `after`, in their order. The directory is not locked in between, so an id
    /// that is added or removed meanwhile may be returned or not.
    pub fn ids(&self, after: Option<&str>) -> impl Iterator<Item = Arc<str>> {
        let mut last: Option<Arc<str>> = after.map(Arc::from);
        let next_batch = move || {
            let directory = self.directory();
            let batch: Vec<_> = directory.after(last.as_deref()).take(ID_BATCH_COUNT).cloned().collect();
            drop(directory);
            last = batch.last().cloned();
            (!batch.is_empty()).then_some(batch)
        };
        std::iter::from_fn(next_batch).fuse().flatten()
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn get(&self, ids: &[impl AsRef<str>]) -> Result<Vec<Option<Arc<Chunk>>>, RegistryError> {
        self.shared.get(ids, true)
    }

    pub fn directory(&self) -> MutexGuard<'_, Directory> {
        self.shared.directory()
    }

    /// A receiver that is notified when the directory changes.
    pub fn updates(&self) -> watch::Receiver<()> {
        self.shared.updates.subscribe()
    }

    pub fn list(&self, after: Option<&str>, limit: usize, bytes_max: usize) -> Result<Page, RegistryError> {
        let mut ids: Vec<Arc<str>> = self.ids(after).take(limit.saturating_add(1)).collect();
        let more = ids.len() > limit;
        ids.truncate(limit);
        let (mut chunks, mut listed, mut bytes) = (Vec::new(), 0, 0);
        while listed < ids.len() && bytes < bytes_max {
            let batch = &ids[listed..ids.len().min(listed + PAGE_READ_COUNT)];
            for chunk in self.get(batch)? {
                if bytes >= bytes_max {
                    break;
                }
                listed += 1;
                // A chunk that was deleted a moment ago counts as listed but is not on the page.
                bytes += chunk.as_ref().map_or(0, |chunk| json_bytes(chunk));
                chunks.extend(chunk);
            }
        }
        let more = more || listed < ids.len();
        let next = more.then(|| ids[..listed].last().map(ToString::to_string)).flatten();
        Ok(Page { chunks, next })
    }

    /// See [`super::Registry::search`].
    pub fn search(&self, query: &str, limit: usize, bytes_max: usize) -> Result<Vec<Hit>, RegistryError> {
        let searcher = self.shared.reader.searcher();
        IndexSearch { searcher: &searcher, fields: &self.shared.fields }.best(query, limit, bytes_max)
    }

    /// Adds the chunks that are nearest to a vector to hits, and orders all by both ranks together. See [`super::Registry::search`].
    pub fn with_nearest(
        &self,
        hits: Vec<Hit>,
        vector: &[f32],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        let nearest = read(&self.shared.vectors).nearest(vector, limit);
        let mut scores: HashMap<Arc<str>, f32> = HashMap::new();
        let by_words = hits.iter().map(|hit| Arc::from(&*hit.chunk.id)).enumerate();
        for (rank, id) in by_words.chain(nearest.into_iter().enumerate()) {
            *scores.entry(id).or_default() += 1.0 / (FUSION_RANKS + rank as f32);
        }
        let mut best: Vec<(Arc<str>, f32)> = scores.into_iter().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        best.truncate(limit);
        let mut by_id: HashMap<String, Hit> =
            hits.into_iter().map(|hit| (hit.chunk.id.clone(), hit)).collect();
        // What was found by words was within the limit, and comes first if not everything is.
        let in_best = |id: &Arc<str>| by_id.get(&**id).map_or(0, |hit| hit.chunk.text.len());
        let mut bytes: usize = best.iter().map(|(id, _)| in_best(id)).sum();
        let others: Vec<&Arc<str>> =
            best.iter().map(|(id, _)| id).filter(|id| !by_id.contains_key(&***id)).collect();
        'read: for ids in others.chunks(PAGE_READ_COUNT) {
            // One that was deleted meanwhile is not found any more.
            for chunk in self.get(ids)?.into_iter().flatten() {
                bytes += chunk.text.len();
                if bytes > bytes_max {
                    break 'read;
                }
                by_id.insert(chunk.id.clone(), Hit { chunk, bm25: 0.0 });
            }
        }
        Ok(best.iter().filter_map(|(id, _)| by_id.remove(&**id)).collect())
    }

    /// See [`super::Registry::prefilter`].
    pub fn prefilter(
        &self,
        query: &str,
        ids: &[impl AsRef<str>],
        keep: usize,
    ) -> Result<Vec<usize>, RegistryError> {
        let searcher = self.shared.reader.searcher();
        let scores = IndexSearch { searcher: &searcher, fields: &self.shared.fields }.scores(query, ids)?;
        let mut indexes: Vec<usize> = (0..ids.len()).collect();
        // The sort is stable, so that among equal scores the earlier ids come first.
        indexes.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        indexes.truncate(keep);
        indexes.sort_unstable();
        Ok(indexes)
    }
}

impl Drop for Store {
    /// Waits for the writer, so that another process can open the folder once the store is dropped.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Runs blocking work on a thread where it delays no other task. Needs a Tokio runtime.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RegistryError> {
    tokio::task::spawn_blocking(work).await.map_err(|_panicked_or_stopping| RegistryError::Stopped)
}

/// The size of a chunk as JSON, in bytes. A control character takes six bytes.
fn json_bytes(chunk: &Chunk) -> usize {
    let escaped = |text: &String| {
        let more = |byte: u8| match byte {
            b'"' | b'\\' => 1,
            0..0x20 => 5,
            _ => 0,
        };
        text.bytes().map(more).sum::<usize>()
    };
    let texts = [Some(&chunk.id), chunk.title.as_ref(), Some(&chunk.text)];
    chunk.bytes() + texts.into_iter().flatten().map(escaped).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tantivy::{Searcher, SearcherGeneration, TantivyError};

    use super::*;

    /// Keeps commits from becoming visible while the flag is set.
    struct FailingWarmer(AtomicBool);

    impl Warmer for FailingWarmer {
        fn warm(&self, _: &Searcher) -> tantivy::Result<()> {
            if self.0.load(Ordering::SeqCst) {
                Err(TantivyError::InternalError("refused".to_owned()))
            } else {
                Ok(())
            }
        }

        fn garbage_collect(&self, _: &[&SearcherGeneration]) {}
    }

    #[tokio::test]
    async fn a_commit_that_cannot_become_visible_is_an_error_and_is_visible_before_the_next() {
        let failing = Arc::new(FailingWarmer(AtomicBool::new(false)));
        let warmer: Arc<dyn Warmer> = Arc::<FailingWarmer>::clone(&failing);
        let settings = RegistrySettings { dir: "".into(), ..RegistrySettings::default() };
        let limits = RegistryLimits { cache_bytes_max: 0, ..RegistryLimits::default() };
        let store = Store::open_with(&settings, limits, vec![Arc::downgrade(&warmer)]).expect("in memory");
        let chunk = Chunk::new("a", "tide");
        let put = || vec![Change::Put(Arc::new(chunk.clone()))];
        let found = || store.search("tide", 9, 999).expect("an index").len();
        failing.0.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let error = store.write(put()).await.expect_err("it cannot become visible");
            assert!(matches!(error, RegistryError::Read(_)), "{error}");
        }
        failing.0.store(false, Ordering::SeqCst);
        assert_eq!(found(), 0);
        assert_eq!(
            store.write(put()).await.expect("it can become visible"),
            [Outcome::Unchanged],
            "it was durable"
        );
        assert_eq!(found(), 1);
    }
}
