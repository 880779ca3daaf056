//! Follows a log into the index: entry by entry from the place that was committed last, after an adoption where that does
//! not do.
//! Knows nothing of where the log is kept.
//!
//! The log is the truth: what is registered here goes into it first and comes back through it, so that all who follow it
//! apply the same changes in the same order. The place is kept with the commit: after a crash nothing is missed, and
//! what is applied twice changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::RegistryError;
use super::adopt::{Extra, adopt};
use super::change::{Change, Outcome};
use super::log::{ChangeLog, Event, LogError, Place, Position};
use super::store::{Store, blocking};
use super::writer::Commit;

/// Changes that are committed together while catching up.
const CHANGES_MAX: usize = 2_000;
/// Batches that wait for the log, each perhaps megabytes; one more is told to come back.
const WAITING_MAX: usize = 64;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Who has followed for so long is not in a loop of losses and adoptions.
const CALM: Duration = Duration::from_secs(30);
/// Failures in a row that are worth a word: a log that is being connected to at the start is none.
const FAILURES_SAID: u32 = 4;

/// How a registry takes part in a log: a task follows it, writers go through it.
pub struct Membership {
    store: Arc<Store>,
    log: Arc<dyn ChangeLog>,
    applied: watch::Receiver<Applied>,
    doubt: Arc<Notify>,
    waiting: Semaphore,
    /// One batch at a time is counted.
    counting: Mutex<()>,
    /// New chunks that are in the log, or about to be, and not registered here yet.
    coming: AtomicUsize,
    task: JoinHandle<()>,
}

/// How far the log has been applied.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Applied {
    /// It has not been met: since the start, or since entries were missing.
    Unmet,
    /// All up to here.
    To(Place),
    /// Entries could not be written here.
    Failed(String),
}

impl Membership {
    /// Starts to follow `log` into `store`; within a Tokio runtime.
    pub fn start(store: Arc<Store>, log: Arc<dyn ChangeLog>) -> Self {
        let (sender, applied) = watch::channel(Applied::Unmet);
        let doubt = Arc::new(Notify::new());
        let task = FollowTask {
            store: Arc::clone(&store),
            log: Arc::clone(&log),
            applied: sender,
            doubt: Arc::clone(&doubt),
            extra: None,
        };
        Self {
            store,
            log,
            applied,
            doubt,
            waiting: Semaphore::new(WAITING_MAX),
            counting: Mutex::default(),
            coming: AtomicUsize::default(),
            task: tokio::spawn(task.run()),
        }
    }

    /// As [`super::Registry::write`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        let _place = self.waiting.try_acquire().map_err(|_full| RegistryError::Overloaded)?;
        // Only who knows all that is in the log can say what a change would change.
        let end = self.met().await?;
        self.caught_up(&end).await?;
        let (changes, outcomes, _coming) = self.foresee(changes).await?;
        let changed = changes.into_iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_change());
        let changed: Vec<Change> = changed.map(|(change, _)| change).collect();
        if !changed.is_empty() {
            let position = self.log.publish(changed).await?;
            // Names do not come back: if it has this one still, it had it then.
            if self.log.identity().await? != end.log {
                return Err(lost().into());
            }
            self.caught_up(&Place { position, ..end }).await?;
        }
        Ok(outcomes)
    }

    /// What `changes` would do. Until the last of what is returned is dropped, the new chunks among them count for others.
    async fn foresee(
        &self,
        changes: Vec<Change>,
    ) -> Result<(Vec<Change>, Vec<Outcome>, Coming<'_>), RegistryError> {
        let _counting = self.counting.lock().await;
        let (store, others) = (Arc::clone(&self.store), self.coming.load(Ordering::Relaxed));
        let (changes, outcomes) = blocking(move || {
            let outcomes = store.foresee(&changes, others);
            (changes, outcomes)
        })
        .await?;
        let count = outcomes.iter().filter(|outcome| **outcome == Outcome::Created).count();
        self.coming.fetch_add(count, Ordering::Relaxed);
        Ok((changes, outcomes, Coming { all: &self.coming, count }))
    }

    /// Waits until this registry has met the log that is there now; where that ends.
    async fn met(&self) -> Result<Place, RegistryError> {
        let mut applied = self.applied.clone();
        loop {
            let log = self.log.identity().await?;
            let end = self.log.end().await?;
            match &*applied.borrow_and_update() {
                Applied::To(met) if met.log == log => {
                    return Ok(Place { log, position: end.unwrap_or_default() });
                }
                // Nobody who follows an empty log can tell when it is lost.
                Applied::To(_) => self.doubt.notify_one(),
                Applied::Failed(cause) => return Err(RegistryError::Write(cause.clone())),
                Applied::Unmet => {}
            }
            applied.changed().await.map_err(|_| RegistryError::Stopped)?;
        }
    }

    /// Waits until everything up to `place` is in the index, or its log is there no more.
    async fn caught_up(&self, place: &Place) -> Result<(), RegistryError> {
        let mut applied = self.applied.clone();
        let decided = |applied: &Applied| match applied {
            Applied::To(at) => at.log != place.log || at.position >= place.position,
            Applied::Failed(_) => true,
            Applied::Unmet => false,
        };
        match &*applied.wait_for(decided).await.map_err(|_| RegistryError::Stopped)? {
            Applied::To(at) if at.log == place.log => Ok(()),
            Applied::Failed(cause) => Err(RegistryError::Write(cause.clone())),
            _ => Err(lost().into()),
        }
    }
}

/// New chunks of one batch, while they are on their way.
struct Coming<'a> {
    all: &'a AtomicUsize,
    count: usize,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.count, Ordering::Relaxed);
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
    /// Somebody has seen that the log has another name.
    doubt: Arc<Notify>,
    /// Entries are missing, or the kept place is in the log no more: what happens to chunks that the log lacks.
    extra: Option<Extra>,
}

impl FollowTask {
    async fn run(mut self) {
        let (mut pause, mut failures) = (PAUSE_MIN, 0);
        loop {
            let started = Instant::now();
            let ended = self.session().await;
            self.applied.send_replace(match &ended {
                Err(RegistryError::Write(cause)) => Applied::Failed(cause.clone()),
                _ => Applied::Unmet,
            });
            if started.elapsed() >= CALM {
                (pause, failures) = (PAUSE_MIN, 0);
            }
            match ended {
                Ok(()) => failures = 0,
                Err(cause) => {
                    failures += 1;
                    if failures == FAILURES_SAID {
                        tracing::warn!(%cause, "the registry cannot follow the change log; it takes no changes until it can");
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Follows until entries are missing, or the log may be another one.
    async fn session(&mut self) -> Result<(), RegistryError> {
        // What an adoption that was cut has left may have been deleted since, or be of another log.
        self.store.follow(Vec::new(), Commit::Forget).await?;
        let identity = self.log.identity().await?;
        let kept = self.store.place().filter(|place| place.log == identity);
        let mut place = match (kept, self.extra) {
            (Some(place), None) => place,
            (Some(_), Some(extra)) => adopt(&self.store, &*self.log, identity, extra).await?,
            (None, _) => adopt(&self.store, &*self.log, identity, Extra::Publish).await?,
        };
        self.extra = None;
        tracing::info!(position = %place.position, "the registry follows the change log");
        self.applied.send_replace(Applied::To(place.clone()));
        let mut tail = self.log.follow(Some(place.position).filter(|at| *at != Position::default()));
        loop {
            let mut changes = Vec::new();
            let mut event = tokio::select! {
                event = tail.next() => event,
                () = self.doubt.notified() => return Ok(()),
            };
            loop {
                match event {
                    Event::Entry(position, mut entry) => {
                        place.position = position;
                        changes.append(&mut entry);
                    }
                    Event::Missing => self.extra = Some(Extra::Delete),
                    Event::Rewound => self.extra = Some(Extra::Publish),
                }
                if self.extra.is_some() || changes.len() >= CHANGES_MAX {
                    break;
                }
                // What has come already joins the commit.
                match tokio::time::timeout(Duration::ZERO, tail.next()).await {
                    Ok(next) => event = next,
                    Err(_nothing_yet) => break,
                }
            }
            if !changes.is_empty() {
                self.store.follow(changes, Commit::At(place.clone())).await?;
            }
            match self.extra {
                Some(Extra::Delete) => {
                    tracing::warn!("entries of the change log are missing: reading all that it adds up to");
                    return Ok(());
                }
                Some(Extra::Publish) => {
                    tracing::warn!("the change log has lost its end: it gets what is registered here");
                    return Ok(());
                }
                None => {}
            }
            self.applied.send_replace(Applied::To(place.clone()));
        }
    }
}

fn lost() -> LogError {
    let reason = "it has lost its content: the change may have been made; sending it again is harmless";
    LogError { reason: reason.to_owned() }
}

impl From<LogError> for RegistryError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}
