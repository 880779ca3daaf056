//! The client of the shared tier, and the only code that uses `redis`. It does not know what values hold or what a change is about.

mod blocks;
mod connection;
mod follow;
mod health_check;
mod journal;
mod nodes;
mod outcome;
mod seal;
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

pub use self::follow::{Event, Follower};
pub use self::journal::{Cursor, Entry, EntryId, FieldChange, Journal, Page};

use self::connection::{Link, Target, Timeouts};
use self::health_check::HealthReply;
use self::nodes::Nodes;
use self::seal::Sealer;
use self::writer::{QueueCapacity, QueuedWrite, RenewalFilter, WriteKind};
use crate::settings::SharedSettings;

/// The largest value, in bytes (8 MiB): larger values are not written, and reads of values return no more
/// than this.
pub const BLOCK_BYTES_MAX: usize = 8 * 1024 * 1024;

/// `GETRANGE` commands in flight, over all callers.
const GETS_MAX: usize = 512;

/// The shortest timeout of a background write or a change of a journal.
const WRITE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The shortest timeout of one health check. An answer that arrives within it but later than
/// `shared.timeout_ms` still counts as unhealthy.
const HEALTH_CHECK_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// Why the shared tier cannot be used, or why a change was not made. No message holds a secret.
#[derive(Debug, Error)]
pub enum SharedError {
    #[error("shared.urls is empty: there is no shared tier; set it to the URL of a Redis or Valkey server")]
    Disabled,
    #[error(
        "shared.urls lists several servers, which only a cluster has: set shared.cluster to true, or list one server"
    )]
    SeveralServers,
    #[error("shared.urls[{index}] is refused: {reason}")]
    Url {
        /// The index in `shared.urls`, from 0.
        index: usize,
        reason: &'static str,
    },
    #[error("cannot read {path} ({setting}): {source}")]
    Read {
        /// The setting that names the file, such as `shared.ca_file`.
        setting: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} ({setting}) holds no {expected}")]
    FileContent {
        /// The setting that names the file, such as `shared.ca_file`.
        setting: &'static str,
        path: PathBuf,
        /// What the file has to hold: `PEM` or `text`.
        expected: &'static str,
    },
    #[error("{0:?} is not a valid journal name: use one or more letters, digits, '-', '_' and '.'")]
    Name(String),
    #[error(
        "shared.urls names a user without a password: set shared.password_file to the file that holds it"
    )]
    PasswordMissing,
    #[error("{server} does not answer: {reason}")]
    Unreachable {
        /// The server's address, without user and password.
        server: String,
        /// Why the server's answer is missing, in words that are safe to log.
        reason: String,
    },
    #[error("the shared tier has no connection: nothing was changed")]
    Down,
    /// The connection was lost or the answer came too late: the change may or may not have been made.
    #[error(
        "the shared tier did not confirm a command ({reason}): the change may have been made; make it again"
    )]
    Unconfirmed {
        /// Why the confirmation is missing, in words that are safe to log.
        reason: String,
    },
    #[error("the shared tier refused a command ({reason}): nothing was changed")]
    Refused {
        /// The server's reason, in words that are safe to log.
        reason: String,
    },
    #[error("shared.urls and the certificate files cannot be used together: {reason}")]
    Unusable {
        /// The category of the client library's error.
        reason: String,
    },
}

/// A connection to the shared tier. Clones share it; its connections and background tasks end when the last
/// clone is dropped.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
    write_queue: UnboundedSender<QueuedWrite>,
    /// The health check and the writer; dropping the set aborts them.
    _tasks: JoinSet<()>,
}

/// What bounds the tier apart from its settings. The defaults fit every server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLimits {
    /// How long a block that no sidecar uses is kept, in seconds. Default: 604,800 (7 days), so that a corpus that
    /// is asked about once a week stays encoded.
    pub ttl_s: u64,
    /// The limit on bytes of blocks that wait to be written; blocks over it are dropped and counted. Default:
    /// 32 MiB, which a server takes within a second.
    pub write_queue_bytes_max: usize,
    /// The number of consecutive failures that open a server's circuit breaker. No requests are sent to a
    /// server whose breaker is open. Default: 5, so that one lost packet opens none.
    pub failures_max: u32,
    /// The pause between two health checks of a server that does not answer; it doubles up to eightfold while
    /// the server stays down. Default: half a second.
    pub probe_pause: Duration,
}

impl Default for SharedLimits {
    fn default() -> Self {
        Self {
            ttl_s: 7 * 24 * 3600,
            write_queue_bytes_max: 32 * 1024 * 1024,
            failures_max: 5,
            probe_pause: Duration::from_millis(500),
        }
    }
}

/// The state that callers, the writer and the health check share.
struct Core {
    /// Reads and writes have a connection each, so that a read does not wait behind blocks that are being
    /// written.
    reads: Link,
    writes: Link,
    nodes: Nodes,
    sealer: Sealer,
    target: Target,
    prefix: String,
    cluster: bool,
    timeout: Duration,
    write_timeout: Duration,
    health_check_timeout: Duration,
    limits: SharedLimits,
    gets: Semaphore,
    queue_capacity: QueueCapacity,
    renewals: RenewalFilter,
    started: Instant,
    /// While writes are paused: the metric label of the failure that paused them, and when they resume.
    write_pause: Mutex<Option<(&'static str, Instant)>>,
    health_reply: Mutex<HealthReply>,
    /// Starts the next health check at once.
    wake: Arc<Notify>,
}

impl Shared {
    /// Checks the settings and starts to connect in the background. A server that is down is not an error:
    /// reads are misses until the server answers.
    ///
    /// # Errors
    /// Returns a [`SharedError`] that names the setting at fault.
    ///
    /// # Panics
    /// Panics outside a Tokio runtime.
    pub fn connect(settings: &SharedSettings) -> Result<Self, SharedError> {
        Self::connect_within(settings, SharedLimits::default())
    }

    /// Connects as [`Self::connect`] does, with other limits.
    ///
    /// # Errors
    /// Returns the errors of [`Self::connect`].
    ///
    /// # Panics
    /// Panics outside a Tokio runtime.
    pub fn connect_within(settings: &SharedSettings, limits: SharedLimits) -> Result<Self, SharedError> {
        if !settings.enabled() {
            return Err(SharedError::Disabled);
        }
        let core = Arc::new(Core::new(settings, limits)?);
        let (write_queue, queued) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(health_check::health_check(Arc::clone(&core)));
        tasks.spawn(writer::write(Arc::clone(&core), queued));
        Ok(Self(Arc::new(Inner { core, write_queue, _tasks: tasks })))
    }

    /// Checks once whether every server answers, and starts no background task.
    ///
    /// # Errors
    /// Returns a [`SharedError`] that names the setting at fault, or the server that does not answer and why.
    pub async fn probe(settings: &SharedSettings) -> Result<(), SharedError> {
        if !settings.enabled() {
            return Err(SharedError::Disabled);
        }
        match Core::new(settings, SharedLimits::default())?.check_servers(0).await {
            None => Ok(()),
            Some((server, failure)) => Err(SharedError::Unreachable { server, reason: failure.to_string() }),
        }
    }

    /// Returns the values stored under `keys`, in the order of `keys`. A value that is missing, damaged, or
    /// not received within `shared.timeout_ms` is `None`.
    pub async fn get_many<K: AsRef<[u8; 32]>>(&self, keys: &[K]) -> Vec<Option<Bytes>> {
        let names: Vec<String> = keys.iter().map(|key| self.0.core.server_key(key.as_ref())).collect();
        self.0.core.get_many(&names, self.0.core.timeout).await
    }

    /// Queues `value` to be written in the background, replacing any value under `key`. Returns at once. A
    /// value is dropped, and counted in `shared_requests_total`, when the queue is full, when it is larger
    /// than [`BLOCK_BYTES_MAX`], or when its server is down.
    pub fn put<K: AsRef<[u8; 32]>>(&self, key: &K, value: Bytes) {
        let core = &self.0.core;
        let name = core.server_key(key.as_ref());
        if let Err(outcome) = core.enqueue(&self.0.write_queue, name, value, WriteKind::Put) {
            outcome::count("put", outcome, 1);
        }
    }

    /// Records that `value` is in use, so that it does not expire. In the background, and at most once per
    /// renewal round for a key, the server restarts the value's time to live, or the value is written again
    /// if the server has lost it. Cheap enough for every use; skipped while less than half of the write queue
    /// is free, so that `put` goes first.
    pub fn renew<K: AsRef<[u8; 32]>>(&self, key: &K, value: &Bytes) {
        let (core, key) = (&self.0.core, key.as_ref());
        let age = core.started.elapsed();
        if !core.renewals.is_due(key, age) || !core.queue_capacity.is_half_free() {
            return;
        }
        // A renewal that is not queued is tried again at the next use of the value.
        let name = core.server_key(key);
        if core.enqueue(&self.0.write_queue, name, value.clone(), WriteKind::Renew).is_ok() {
            core.renewals.mark(key, age);
        }
    }

    /// Queues the value under `key` to be removed in the background. Returns at once. If its server is down, or the
    /// queue is full, the value stays until it expires.
    pub fn remove<K: AsRef<[u8; 32]>>(&self, key: &K) {
        let core = &self.0.core;
        let name = core.server_key(key.as_ref());
        if let Err(outcome) = core.enqueue(&self.0.write_queue, name, Bytes::new(), WriteKind::Remove) {
            outcome::count("put", outcome, 1);
        }
    }

    /// Waits until every queued value is written or dropped. Meant for a clean shutdown.
    pub async fn flush(&self) {
        self.0.core.queue_capacity.drained().await;
    }

    /// Returns the journal `name`, which all sidecars with the same prefix share. The journal keeps at least
    /// its last `entries_max` entries.
    ///
    /// # Errors
    /// Returns [`SharedError::Name`] if `name` is empty or has characters other than letters, digits, `-`,
    /// `_` and `.`.
    pub fn journal(&self, name: &str, entries_max: usize) -> Result<Journal, SharedError> {
        Journal::new(Arc::clone(&self.0), name, entries_max)
    }

    pub fn is_well(&self) -> bool {
        self.0.core.nodes.table().open_share() == 0.0
    }
}

impl Core {
    fn new(settings: &SharedSettings, limits: SharedLimits) -> Result<Self, SharedError> {
        let target = Target::new(settings)?;
        let secret = connection::read_secret("shared.secret_file", &settings.secret_file)?;
        let timeout = Duration::from_millis(settings.timeout_ms);
        let write_timeout = (SharedSettings::WRITE_TIMEOUT_FACTOR * timeout).max(WRITE_TIMEOUT_MIN);
        let health_check_timeout = (2 * timeout).max(HEALTH_CHECK_TIMEOUT_MIN);
        let wake = Arc::new(Notify::new());
        let link = |response| {
            Link::new(target.clone(), Timeouts { connect: write_timeout, response }, Arc::clone(&wake))
        };
        Ok(Self {
            reads: link(health_check_timeout / 2),
            writes: link(write_timeout),
            nodes: Nodes::new(
                &settings.prefix,
                if settings.cluster { String::new() } else { target.addresses() },
            ),
            sealer: Sealer::new(secret.as_deref().map(str::as_bytes)),
            target,
            prefix: settings.prefix.clone(),
            cluster: settings.cluster,
            timeout,
            write_timeout,
            health_check_timeout,
            limits,
            gets: Semaphore::new(GETS_MAX),
            queue_capacity: QueueCapacity::new(limits.write_queue_bytes_max),
            renewals: RenewalFilter::new(Duration::from_secs(limits.ttl_s)),
            started: Instant::now(),
            write_pause: Mutex::new(None),
            health_reply: Mutex::new(HealthReply::None),
            wake,
        })
    }

    /// The key on the server: `{prefix}b:[{secret id}:]{hash}`.
    fn server_key(&self, key: &[u8; 32]) -> String {
        let hash = blake3::Hash::from_bytes(*key).to_hex();
        match self.sealer.secret_id() {
            Some(secret) => format!("{}b:{secret}:{hash}", self.prefix),
            None => format!("{}b:{hash}", self.prefix),
        }
    }
}
