//! Keeps the chunks: the index on disk, the list of all, those in use; and hands changes to the writer.
//! Knows nothing of models, or of where changes come from.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use tantivy::{IndexReader, ReloadPolicy, Warmer};
use thresher_core::domain::Chunk;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::cache::Cache;
use super::change::{Change, Outcome, content_after, content_brought, id_of};
use super::content::id_hash;
use super::directory::Directory;
use super::filter::Filter;
use super::log::Place;
use super::schema::Fields;
use super::search::{Hit, Questions};
use super::writer::{Commit, Job, Writer};
use super::{Page, RegistryError, RegistrySettings, open, reading};

/// Batches that wait for the writer; one more is told to come back.
const WAITING_MAX: usize = 64;

/// Ids that are taken from the directory at a time.
const PIECE_COUNT: usize = 1_024;

/// Chunks that a page reads at a time.
const LIST_COUNT: usize = 8;

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
    pub fields: Fields,
    pub reader: IndexReader,
    directory: Mutex<Directory>,
    pub cache: Mutex<Cache>,
    /// Says that the directory has changed.
    turn: watch::Sender<()>,
    /// Nobody reads ahead any more.
    gave_up: AtomicBool,
    /// Kept with every commit: how far the log that others write, too, has been applied.
    pub place: Mutex<Option<Place>>,
}

impl Store {
    /// Opens the index and starts its writer.
    pub fn open(settings: &RegistrySettings) -> Result<Self, RegistryError> {
        Self::with(settings, Vec::new())
    }

    /// With `warmers`, which are asked before a commit can be seen.
    fn with(settings: &RegistrySettings, warmers: Vec<Weak<dyn Warmer>>) -> Result<Self, RegistryError> {
        let open::Opened { index, writer, fields } = open::open(&settings.dir)?;
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).warmers(warmers);
        let reader: IndexReader = reader.try_into()?;
        let directory = open::directory(&reader.searcher(), &fields)?;
        let place = index.load_metas()?.payload.and_then(|kept| serde_json::from_str(&kept).ok());
        let shared = Arc::new(Shared {
            fields,
            reader,
            directory: Mutex::new(directory),
            cache: Mutex::new(Cache::new(settings.cache_bytes_max)),
            turn: watch::Sender::new(()),
            gave_up: AtomicBool::new(false),
            place: Mutex::new(place),
        });
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let writer = Writer::new(writer, Arc::clone(&shared));
        let writer = std::thread::Builder::new()
            .name("registry-writer".to_owned())
            .spawn(move || writer.run(waiting))
            .map_err(|e| RegistryError::Write(e.to_string()))?;
        Ok(Self { shared, jobs: Some(jobs), writer: Some(writer), count_max: settings.chunk_count_max })
    }

    /// As [`super::Registry::write`].
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

    /// Applies what came from a log.
    pub async fn follow(&self, changes: Vec<Change>, commit: Commit) -> Result<(), RegistryError> {
        let (reply, answer) = oneshot::channel();
        // All who follow the log have to come to the same: there is no limit here.
        let job = Job { changes, commit, count_max: usize::MAX, reply };
        let jobs = self.jobs.as_ref().ok_or(RegistryError::Stopped)?;
        jobs.send(job).await.map_err(|_| RegistryError::Stopped)?;
        answer.await.unwrap_or(Err(RegistryError::Stopped)).map(drop)
    }

    /// The place in a log that the last commit kept.
    pub fn place(&self) -> Option<Place> {
        lock(&self.shared.place).clone()
    }

    /// What `changes` would do to what is registered now, where `coming` more chunks are on their way.
    pub fn foresee(&self, changes: &[Change], coming: usize) -> Vec<Outcome> {
        // Hashed before anybody is kept from the directory.
        let contents: Vec<Option<u64>> = changes.iter().map(content_brought).collect();
        let directory = self.directory();
        let mut count = directory.len() + coming;
        let mut changed: HashMap<&str, Option<u64>> = HashMap::new();
        let outcome = |(change, brought)| {
            let id = id_of(change);
            let before = changed.get(id).copied().unwrap_or_else(|| directory.content(id));
            let after = content_after(change, before, brought);
            let outcome = Outcome::of(before, after, &mut count, self.count_max);
            if outcome.is_change() {
                changed.insert(id, after);
            }
            outcome
        };
        changes.iter().zip(contents).map(outcome).collect()
    }

    /// Ids after `after`, in their order. The directory is not kept from others meanwhile: one that comes or goes in
    /// between may be among them or not.
    pub fn ids(&self, after: Option<&str>) -> impl Iterator<Item = Arc<str>> {
        let mut last: Option<Arc<str>> = after.map(Arc::from);
        let piece = move || {
            let piece: Vec<_> = self.directory().after(last.as_deref()).take(PIECE_COUNT).cloned().collect();
            last = piece.last().cloned();
            (!piece.is_empty()).then_some(piece)
        };
        std::iter::from_fn(piece).fuse().flatten()
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
        bytes_max: usize,
        filter: Option<&Filter>,
    ) -> Result<Page, RegistryError> {
        let searcher = self.shared.reader.searcher();
        let questions = Questions { searcher: &searcher, fields: &self.shared.fields };
        let passing = filter.map(|filter| questions.passing(filter)).transpose()?;
        let passes = |id: &Arc<str>| passing.as_ref().is_none_or(|passing| passing.contains(&id_hash(id)));
        let mut ids: Vec<Arc<str>> = self.ids(after).filter(passes).take(limit.saturating_add(1)).collect();
        let more = ids.len() > limit;
        ids.truncate(limit);
        let (mut chunks, mut listed, mut bytes) = (Vec::new(), 0, 0);
        while listed < ids.len() && bytes < bytes_max {
            let piece = &ids[listed..ids.len().min(listed + LIST_COUNT)];
            for chunk in self.get(piece)? {
                if bytes >= bytes_max {
                    break;
                }
                listed += 1;
                // One that was deleted a moment ago is in neither.
                bytes += chunk.as_ref().map_or(0, |chunk| json_bytes(chunk));
                chunks.extend(chunk);
            }
        }
        let more = more || listed < ids.len();
        let next = more.then(|| ids[..listed].last().map(ToString::to_string)).flatten();
        Ok(Page { chunks, next })
    }

    /// As [`super::Registry::search`].
    pub fn search(
        &self,
        query: &str,
        filter: Option<&Filter>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        let searcher = self.shared.reader.searcher();
        Questions { searcher: &searcher, fields: &self.shared.fields }.best(query, filter, limit, bytes_max)
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

/// Does `work` where it keeps no other task from going on; within a Tokio runtime.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RegistryError> {
    tokio::task::spawn_blocking(work).await.map_err(|_panicked_or_stopping| RegistryError::Stopped)
}

/// A thread that panicked left nothing half done that the next one could see.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a chunk as JSON: a control character takes six.
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
    use tantivy::{Searcher, SearcherGeneration, TantivyError};

    use super::*;

    /// Keeps commits from being seen.
    struct Refuses(AtomicBool);

    impl Warmer for Refuses {
        fn warm(&self, _: &Searcher) -> tantivy::Result<()> {
            match self.0.load(Ordering::SeqCst) {
                true => Err(TantivyError::InternalError("refused".to_owned())),
                false => Ok(()),
            }
        }

        fn garbage_collect(&self, _: &[&SearcherGeneration]) {}
    }

    #[tokio::test]
    async fn a_commit_that_cannot_be_seen_is_said_so_and_seen_before_the_next() {
        let refuses = Arc::new(Refuses(AtomicBool::new(false)));
        let warmer: Arc<dyn Warmer> = Arc::<Refuses>::clone(&refuses);
        let settings = RegistrySettings { dir: "".into(), cache_bytes_max: 0, ..RegistrySettings::default() };
        let store = Store::with(&settings, vec![Arc::downgrade(&warmer)]).expect("in memory");
        let chunk = Chunk { id: "a".to_owned(), title: None, text: "tide".to_owned(), metadata: None };
        let put = || vec![Change::Put(Arc::new(chunk.clone()))];
        let found = || store.search("tide", None, 9, 999).expect("an index").len();
        refuses.0.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let error = store.write(put()).await.expect_err("it cannot be seen");
            assert!(matches!(error, RegistryError::Read(_)), "{error}");
        }
        refuses.0.store(false, Ordering::SeqCst);
        assert_eq!(found(), 0);
        assert_eq!(store.write(put()).await.expect("it can be seen"), [Outcome::Unchanged], "it was there");
        assert_eq!(found(), 1);
    }
}
