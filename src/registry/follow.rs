//! Follows a log into the index: entry by entry from the place that was committed last, after an adoption where that does
//! not do.
//! Knows nothing of where the log is kept.
//!
//! The log is the truth: what is registered here goes into it first and comes back through it, so that all who follow it
//! apply the same changes in the same order. The place is kept with the commit: after a crash nothing is missed, and
//! what is applied twice changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
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
    task: JoinHandle<()>,
}

/// How far which log has been applied; none while it has not been met: since the start, or since entries were missing.
type Applied = Option<Place>;

impl Membership {
    /// Starts to follow `log` into `store`; within a Tokio runtime.
    pub fn start(store: Arc<Store>, log: Arc<dyn ChangeLog>) -> Self {
        let (sender, applied) = watch::channel(None);
        let doubt = Arc::new(Notify::new());
        let task = FollowTask {
            store: Arc::clone(&store),
            log: Arc::clone(&log),
            applied: sender,
            doubt: Arc::clone(&doubt),
            missing: false,
            met: None,
        };
        Self {
            store,
            log,
            applied,
            doubt,
            waiting: Semaphore::new(WAITING_MAX),
            task: tokio::spawn(task.run()),
        }
    }

    /// As [`super::Registry::write`].
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        let _place = self.waiting.try_acquire().map_err(|_full| RegistryError::Overloaded)?;
        // Only who knows all that is in the log can say what a change would change.
        let end = self.met().await?;
        self.caught_up(&end).await?;
        let store = Arc::clone(&self.store);
        let (changes, outcomes) = blocking(move || {
            let outcomes = store.foresee(&changes);
            (changes, outcomes)
        })
        .await?;
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

    /// Waits until this registry has met the log that is there now; where that ends.
    async fn met(&self) -> Result<Place, RegistryError> {
        let mut applied = self.applied.clone();
        loop {
            let log = self.log.identity().await?;
            let end = self.log.end().await?;
            match applied.borrow_and_update().as_ref() {
                Some(met) if met.log == log => {
                    return Ok(Place { log, position: end.unwrap_or_default() });
                }
                // Nobody who follows an empty log can tell when it is lost.
                Some(_) => self.doubt.notify_one(),
                None => {}
            }
            applied.changed().await.map_err(|_| RegistryError::Stopped)?;
        }
    }

    /// Waits until everything up to `place` is in the index, or its log is there no more.
    async fn caught_up(&self, place: &Place) -> Result<(), RegistryError> {
        let mut applied = self.applied.clone();
        let there = |applied: &Applied| {
            let other_or_there = |at: &Place| at.log != place.log || at.position >= place.position;
            applied.as_ref().is_some_and(other_or_there)
        };
        let applied = applied.wait_for(there).await.map_err(|_| RegistryError::Stopped)?;
        match applied.as_ref().is_some_and(|at| at.log == place.log) {
            true => Ok(()),
            false => Err(lost().into()),
        }
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
    /// Whether entries behind the kept place are.
    missing: bool,
    /// When this session met the log.
    met: Option<Instant>,
}

impl FollowTask {
    async fn run(mut self) {
        let (mut pause, mut failures) = (PAUSE_MIN, 0);
        loop {
            let ended = self.session().await;
            self.applied.send_replace(None);
            let met = self.met.take();
            if met.is_some_and(|met| met.elapsed() >= CALM) {
                pause = PAUSE_MIN;
            }
            failures = if met.is_some() { 0 } else { failures };
            if let Err(cause) = ended {
                failures += 1;
                if failures == FAILURES_SAID {
                    tracing::warn!(%cause, "the registry cannot follow the change log; it takes no changes until it can");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Follows until entries are missing, or the log may be another one.
    async fn session(&mut self) -> Result<(), RegistryError> {
        let identity = self.log.identity().await?;
        let kept = self.store.place().filter(|place| place.log == identity);
        let mut place = match kept {
            Some(place) if !self.missing => place,
            Some(_) => adopt(&self.store, &*self.log, identity, Extra::Delete).await?,
            None => adopt(&self.store, &*self.log, identity, Extra::Publish).await?,
        };
        self.missing = false;
        tracing::info!(position = %place.position, "the registry follows the change log");
        self.met = Some(Instant::now());
        self.applied.send_replace(Some(place.clone()));
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
                    Event::Lost => self.missing = true,
                }
                if self.missing || changes.len() >= CHANGES_MAX {
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
            if self.missing {
                tracing::warn!("entries of the change log are missing: reading all that it adds up to");
                return Ok(());
            }
            self.applied.send_replace(Some(place.clone()));
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
