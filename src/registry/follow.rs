//! Follows a log into the index: entry by entry from the place that was committed last; from all that the log adds
//! up to when entries are missing.
//! Knows nothing of where the log is kept.
//!
//! The log is the truth: what is registered here goes into it first and comes back through it, so that all who follow it
//! apply the same changes in the same order. The place is kept with the commit: after a crash nothing is missed, and
//! what is applied twice changes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::RegistryError;
use super::change::Change;
use super::content::id_hash;
use super::log::{ChangeLog, Event, LogError, Position};
use super::store::Store;

/// Changes that are committed together while catching up.
const CHANGES_MAX: usize = 2_000;
/// Chunks of this registry that go into one entry of a log that lacks them.
const ENTRY_COUNT: usize = 64;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Failures in a row that are worth a word: a log that is being connected to at the start is none.
const FAILURES_SAID: u32 = 4;

/// A log, and how far it has been followed.
pub struct Followed {
    pub log: Arc<dyn ChangeLog>,
    applied: watch::Receiver<Applied>,
    task: JoinHandle<()>,
}

/// How far; none before the log has been reached for the first time since the start.
type Applied = Option<Position>;

/// What is kept with a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    log: String,
    position: String,
}

impl Followed {
    /// Starts to follow `log` into `store`; within a Tokio runtime.
    pub fn start(store: Arc<Store>, log: Arc<dyn ChangeLog>) -> Self {
        let (sender, applied) = watch::channel(None);
        let follower = Follower { store, log: Arc::clone(&log), applied: sender };
        Self { log, applied, task: tokio::spawn(follower.run()) }
    }

    /// Waits until everything up to `position` is in the index.
    pub async fn caught_up(&self, position: Position) -> Result<(), RegistryError> {
        let mut applied = self.applied.clone();
        let there = applied.wait_for(|applied| applied.is_some_and(|applied| applied >= position)).await;
        there.map(drop).map_err(|_| RegistryError::Stopped)
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Follower {
    store: Arc<Store>,
    log: Arc<dyn ChangeLog>,
    applied: watch::Sender<Applied>,
}

/// What happens to chunks that this registry has and the log lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    /// They were deleted while nobody looked.
    Delete,
    /// The log is new to this registry, or has lost its content: it gets them.
    Publish,
}

impl Follower {
    async fn run(self) {
        let (mut pause, mut failures) = (PAUSE_MIN, 0);
        loop {
            let before = *self.applied.borrow();
            let Err(cause) = self.session().await else { continue };
            if *self.applied.borrow() != before {
                (pause, failures) = (PAUSE_MIN, 0);
            }
            failures += 1;
            if failures == FAILURES_SAID {
                tracing::warn!(%cause, "the registry cannot follow the change log; it takes no changes until it can");
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Follows until entries are missing.
    async fn session(&self) -> Result<(), RegistryError> {
        let identity = self.log.identity().await?;
        let place: Option<Place> = self.store.position().and_then(|kept| serde_json::from_str(&kept).ok());
        let mut position = match place.filter(|place| place.log == identity) {
            Some(place) => place.position.parse().ok().filter(|at| *at != Position::default()),
            None => self.adopt(&identity, Extra::Publish).await?,
        };
        tracing::info!(position = %position.unwrap_or_default(), "the registry follows the change log");
        self.applied.send_replace(Some(position.unwrap_or_default()));
        let mut following = self.log.follow(position);
        loop {
            let (mut changes, mut lost) = (Vec::new(), false);
            let mut event = following.next().await;
            loop {
                match event {
                    Event::Entry(at, mut entry) => {
                        position = Some(at);
                        changes.append(&mut entry);
                    }
                    Event::Lost => lost = true,
                }
                if lost || changes.len() >= CHANGES_MAX {
                    break;
                }
                // What has come already joins the commit.
                match tokio::time::timeout(Duration::ZERO, following.next()).await {
                    Ok(next) => event = next,
                    Err(_nothing_yet) => break,
                }
            }
            if let Some(position) = position {
                if !changes.is_empty() {
                    self.store.follow(changes, Some(kept(&identity, position)), false).await?;
                }
                self.applied.send_replace(Some(position));
            }
            if lost {
                // A log that has lost its content has another name, and is met as a new one by the next session.
                if self.log.identity().await? == identity {
                    tracing::warn!("entries of the change log are missing: reading all that it adds up to");
                    let position = self.adopt(&identity, Extra::Delete).await?;
                    self.applied.send_replace(Some(position.unwrap_or_default()));
                }
                return Ok(());
            }
        }
    }

    /// Makes the index what the log adds up to, in one commit; where to follow from then.
    async fn adopt(&self, identity: &str, extra: Extra) -> Result<Option<Position>, RegistryError> {
        // Taken before the pages: what changes meanwhile comes again.
        let position = self.log.end().await?;
        let (mut cursor, mut theirs) = (None, HashSet::new());
        loop {
            let page = self.log.page(cursor).await?;
            theirs.extend(page.chunks.iter().map(|chunk| id_hash(&chunk.id)));
            self.store.follow(page.chunks.into_iter().map(Change::Put).collect(), None, true).await?;
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let ours: Vec<String> = {
            let directory = self.store.directory();
            let extra = directory.after(None).filter(|id| !theirs.contains(&id_hash(id)));
            extra.map(ToString::to_string).collect()
        };
        let deleted = match extra {
            Extra::Delete => ours.iter().cloned().map(Change::Delete).collect(),
            Extra::Publish => Vec::new(),
        };
        let place = kept(identity, position.unwrap_or_default());
        if extra == Extra::Publish {
            // Before the place is committed: after a crash in between they are still known to be ours.
            for ids in ours.chunks(ENTRY_COUNT) {
                let chunks: Vec<_> = self.store.get(ids)?.into_iter().flatten().map(Change::Put).collect();
                if !chunks.is_empty() {
                    self.log.publish(chunks).await?;
                }
            }
        }
        tracing::info!(
            theirs = theirs.len(),
            ours = ours.len(),
            ?extra,
            "the registry has met the change log"
        );
        self.store.follow(deleted, Some(place), false).await?;
        Ok(position)
    }
}

fn kept(log: &str, position: Position) -> String {
    let place = Place { log: log.to_owned(), position: position.to_string() };
    serde_json::to_string(&place).expect("two texts are JSON")
}

impl From<LogError> for RegistryError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}
