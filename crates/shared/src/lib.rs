//! The tier that all sidecars share, on Redis or Valkey, one server or a cluster: values under content-addressed keys, and
//! journals of changes. The only user of `redis`.
//! Knows nothing of what values hold, nor of what a change is about.
//!
//! A read never fails and never waits longer than `shared.timeout_ms`: what is not there in time is not there. A server
//! that does not answer is left alone until it does; `mend` looks after it. Values carry a hash over themselves and their
//! key, so that damage is a miss.

mod blocks;
mod failure;
mod follow;
mod journal;
mod link;
mod mend;
mod nodes;
mod observe;
mod renew;
mod seal;
mod settings;
mod target;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use follow::{Event, Follower};
pub use journal::{Cursor, Entry, EntryId, FieldChange, Journal, Page};
pub use settings::{ServerUrls, SharedSettings};

use link::Link;
use mend::Said;
use nodes::Nodes;
use renew::Renewals;
use seal::Seal;
use target::{Patience, Target};
use writer::{Queued, Room, Write};

/// Bytes of one value: larger ones are not written, and no more than this is read.
pub const BLOCK_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Commands of all calls that are under way at once.
const GETS_MAX: usize = 512;

/// The least that a write or a change of a journal gets.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The least that a look at a server waits for an answer, however late it is.
const LOOK_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// What is wrong with settings, or why a change was not made. Never holds a secret.
#[derive(Debug, Error)]
pub enum SharedError {
    /// No server is named.
    #[error("shared.urls is empty: there is no shared tier")]
    Disabled,
    /// More than one server without a cluster.
    #[error("shared.urls names several servers, which only a cluster has: set shared.cluster or name one")]
    Several,
    /// An address is none.
    #[error("shared.urls[{index}] is refused: {reason}")]
    Url {
        /// Which one, from 0.
        index: usize,
        /// What to do.
        reason: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {path} ({setting}): {source}")]
    Read {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error("{path} ({setting}) holds no {expected}")]
    Content {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What should stand there.
        expected: &'static str,
    },
    /// A name of a journal that keys cannot hold.
    #[error("{0:?} is no name of a journal: letters, digits, '-', '_' and '.' make one")]
    Name(String),
    /// A user without a password: the server would be asked as its default user.
    #[error("shared.username is set without a password: name its file in shared.password_file")]
    Login,
    /// A server does not answer.
    #[error("{place} does not answer: {reason}")]
    Silent {
        /// Which one, without user and password.
        place: String,
        /// What happened.
        reason: String,
    },
    /// There is no connection: nothing was changed.
    #[error("the shared tier has no connection: nothing was changed")]
    Down,
    /// The connection broke or the answer was late: the change may or may not have been made.
    #[error("the shared tier did not confirm ({reason}): the change may have been made; make it again")]
    Unconfirmed {
        /// What happened.
        reason: String,
    },
    /// The server refused: nothing was changed.
    #[error("the shared tier refused ({reason}): nothing was changed")]
    Refused {
        /// Its code in words.
        reason: String,
    },
    /// Addresses and certificates do not fit together.
    #[error("shared.urls and the files beside it cannot be used together: {reason}")]
    Unusable {
        /// What the library said of it.
        reason: String,
    },
}

/// The tier. Clones are the same one; with the last, its connections end.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
    entries: UnboundedSender<Queued>,
    /// Ended when dropped.
    _tasks: JoinSet<()>,
}

/// What requests, the writer and the mender share.
struct Core {
    /// Two connections: a read does not wait behind blocks being written.
    reads: Link,
    writes: Link,
    nodes: Nodes,
    seal: Seal,
    target: Target,
    prefix: String,
    cluster: bool,
    timeout: Duration,
    write_timeout: Duration,
    look_timeout: Duration,
    probe_pause: Duration,
    failures_max: u32,
    ttl_s: u64,
    gets: Semaphore,
    room: Room,
    renewals: Renewals,
    started: Instant,
    /// Why and until when nothing is written.
    refusal: Mutex<Option<(&'static str, Instant)>>,
    said: Mutex<Said>,
    wake: Arc<Notify>,
}

impl Shared {
    /// Checks the settings and begins to connect in the background; to be called within a Tokio runtime. A server that is
    /// down is no error: requests go on without it until it answers.
    ///
    /// # Errors
    /// [`SharedError`] names the setting.
    pub fn connect(settings: &SharedSettings) -> Result<Self, SharedError> {
        if !settings.enabled() {
            return Err(SharedError::Disabled);
        }
        let core = Arc::new(Core::new(settings)?);
        let (entries, queued) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(mend::mend(Arc::clone(&core)));
        tasks.spawn(writer::write(Arc::clone(&core), queued));
        Ok(Self(Arc::new(Inner { core, entries, _tasks: tasks })))
    }

    /// Looks once whether every server answers, without beginning anything.
    ///
    /// # Errors
    /// [`SharedError`] names the setting, or the server and what happened.
    pub async fn probe(settings: &SharedSettings) -> Result<(), SharedError> {
        if !settings.enabled() {
            return Err(SharedError::Disabled);
        }
        match Core::new(settings)?.look(0).await {
            None => Ok(()),
            Some((place, failure)) => Err(SharedError::Silent { place, reason: failure.to_string() }),
        }
    }

    /// The values under `keys`, in their order. What is missing, damaged or not there within `shared.timeout_ms` is `None`.
    pub async fn get_many<K: AsRef<[u8; 32]>>(&self, keys: &[K]) -> Vec<Option<Bytes>> {
        let names: Vec<String> = keys.iter().map(|key| self.0.core.name(key.as_ref())).collect();
        self.0.core.get_many(&names, self.0.core.timeout).await
    }

    /// Writes `value` in the background, over whatever stands there. Returns at once; a full queue, a value over
    /// [`BLOCK_BYTES_MAX`] or a server that is down drops it, counted.
    pub fn put<K: AsRef<[u8; 32]>>(&self, key: &K, value: Bytes) {
        let core = &self.0.core;
        if let Err(outcome) = core.queue(&self.0.entries, core.name(key.as_ref()), value, Write::Put) {
            observe::count("put", outcome, 1);
        }
    }

    /// Tells that `value` is in use: in the background, and seldom for one key, its time to expire begins anew, or it is
    /// written again if the server has lost it. Costs next to nothing; gives way to what is put.
    pub fn renew<K: AsRef<[u8; 32]>>(&self, key: &K, value: &Bytes) {
        let (core, key) = (&self.0.core, key.as_ref());
        let age = core.started.elapsed();
        if !core.renewals.is_due(key, age) || !core.room.is_wide() {
            return;
        }
        // What is not queued is tried again when it is used again.
        if core.queue(&self.0.entries, core.name(key), value.clone(), Write::Renew).is_ok() {
            core.renewals.done(key, age);
        }
    }

    /// Waits until all that was put is written or given up; for a clean end.
    pub async fn flush(&self) {
        self.0.core.room.emptied().await;
    }

    /// The journal `name`, which all sidecars share. It keeps about `entries_max` entries, at least as many.
    ///
    /// # Errors
    /// [`SharedError::Name`].
    pub fn journal(&self, name: &str, entries_max: usize) -> Result<Journal, SharedError> {
        Journal::new(Arc::clone(&self.0), name, entries_max)
    }

    /// Whether every server answers.
    pub fn is_well(&self) -> bool {
        self.0.core.nodes.table().open_share() == 0.0
    }
}

impl Core {
    fn new(settings: &SharedSettings) -> Result<Self, SharedError> {
        let target = Target::new(settings)?;
        let secret = target::secret("shared.secret_file", &settings.secret_file)?;
        let timeout = Duration::from_millis(settings.timeout_ms);
        let write_timeout = (SharedSettings::PATIENCE_FACTOR * timeout).max(WRITE_TIMEOUT_MIN);
        let look_timeout = (2 * timeout).max(LOOK_TIMEOUT_MIN);
        let wake = Arc::new(Notify::new());
        let link = |answer| {
            Link::new(target.clone(), Patience { connect: write_timeout, answer }, Arc::clone(&wake))
        };
        Ok(Self {
            reads: link(look_timeout / 2),
            writes: link(write_timeout),
            nodes: Nodes::new(
                &settings.prefix,
                if settings.cluster { String::new() } else { target.place() },
            ),
            seal: Seal::new(secret.as_deref().map(str::as_bytes)),
            target,
            prefix: settings.prefix.clone(),
            cluster: settings.cluster,
            timeout,
            write_timeout,
            look_timeout,
            probe_pause: Duration::from_millis(settings.breaker_probe_ms),
            failures_max: settings.breaker_failures,
            ttl_s: settings.ttl_s,
            gets: Semaphore::new(GETS_MAX),
            room: Room::new(settings.write_queue_bytes_max),
            renewals: Renewals::new(Duration::from_secs(settings.ttl_s)),
            started: Instant::now(),
            refusal: Mutex::new(None),
            said: Mutex::new(Said::Nothing),
            wake,
        })
    }

    /// `prefix b:[secret:]hash`.
    fn name(&self, key: &[u8; 32]) -> String {
        let hash = blake3::Hash::from_bytes(*key).to_hex();
        match self.seal.name() {
            Some(secret) => format!("{}b:{secret}:{hash}", self.prefix),
            None => format!("{}b:{hash}", self.prefix),
        }
    }
}
