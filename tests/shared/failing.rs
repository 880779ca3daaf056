//! Servers that die, stall, fill up or turn into replicas: no call fails or waits, and all heals by itself.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use thresher_core::kv::key::BlockKey;
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_core::kv::store::Tiers;
use thresher_core::kv::tiers::AllTiers;
use thresher_shared::{FieldChange, Shared, SharedSettings};

use crate::server::{Server, available};
use crate::{bounded, counted, eventually, get, key, metrics, settings, store, value, well};

/// All that was logged in this process, at any level.
pub fn log() -> impl Fn() -> String {
    static LINES: OnceLock<Lines> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let lines = Lines::default();
        let writer = lines.clone();
        // As the daemon does, but for the level.
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        subscriber.with_env_filter("trace,redis=off").init();
        lines
    });
    || lines.text()
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("a lock")).into_owned()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_late_is_used_when_it_comes() {
    if !available() {
        return;
    }
    let mut server = Server::prepare(&[], &[]);
    let shared = Shared::connect(&settings(&server.url())).expect("a server that is down is no error");
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, None);
    server.up();
    eventually("it is found", async || shared.is_well()).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_is_left_alone_and_found_again() {
    if !available() {
        return;
    }
    metrics();
    let mut server = Server::start(&[]);
    let shared = well(&settings(&server.url())).await;
    let (stop, calls, hits) =
        (Arc::new(AtomicBool::new(false)), Arc::default(), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..16_u8)
        .map(|task| {
            let (shared, stop, hits) = (shared.clone(), Arc::clone(&stop), Arc::clone(&hits));
            let calls: Arc<AtomicUsize> = Arc::clone(&calls);
            tokio::spawn(async move {
                let numbers: Vec<u8> = (task..task + 10).collect();
                let keys: Vec<_> = numbers.iter().map(|n| key(*n)).collect();
                while !stop.load(Ordering::Relaxed) {
                    let found = bounded(shared.get_many(&keys)).await;
                    for (number, found) in numbers.iter().zip(found) {
                        match found {
                            Some(found) => {
                                assert_eq!(found, value(*number), "a wrong value is worse than none");
                                hits.fetch_add(1, Ordering::Relaxed);
                            }
                            None => shared.put(&key(*number), value(*number)),
                        }
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        })
        .collect();
    let hit_again = async |what: &str| {
        let before = hits.load(Ordering::Relaxed);
        eventually(what, async || hits.load(Ordering::Relaxed) > before + 100).await;
    };
    hit_again("hits before").await;
    for _ in 0..2 {
        server.kill();
        eventually("the breaker opens", async || !shared.is_well()).await;
        let before = calls.load(Ordering::Relaxed);
        eventually("calls go on", async || calls.load(Ordering::Relaxed) > before + 100).await;
        server.up();
        hit_again("hits after").await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no call fails");
    }
    bounded(shared.flush()).await;
    assert!(counted("get", "skipped") > 0 && metrics().contains("shared_breaker_open"));
}

/// A way to a server that can stall: connections stay, nothing passes.
struct Gate {
    port: u16,
    stalled: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl Gate {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let gate = Self {
            port: listener.local_addr().expect("an address").port(),
            stalled: Arc::default(),
            connections: Arc::default(),
        };
        let (stalled, connections) = (Arc::clone(&gate.stalled), Arc::clone(&gate.connections));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let far = TcpStream::connect(("127.0.0.1", port)).await.expect("a server");
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_in, far_out, Arc::clone(&stalled)));
                tokio::spawn(pass(far_in, near_out, Arc::clone(&stalled)));
            }
        });
        gate
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    stalled: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 65536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        while stalled.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// After some calls the breaker is open, and calls no longer wait.
async fn is_left_alone(shared: &Shared) {
    eventually("the breaker opens", async || {
        get(shared, 1).await;
        !shared.is_well()
    })
    .await;
    let skipped = counted("get", "skipped");
    for _ in 0..50 {
        assert_eq!(get(shared, 1).await, None);
    }
    assert!(counted("get", "skipped") >= skipped + 50, "skipped, not waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_is_left_alone_and_found_again() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let gate = Gate::to(server.port).await;
    let through = format!("redis://127.0.0.1:{}", gate.port);
    let shared = well(&SharedSettings { timeout_ms: 150, ..settings(&through) }).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));

    gate.stalled.store(true, Ordering::Relaxed);
    is_left_alone(&shared).await;
    let before = gate.connections.load(Ordering::Relaxed);
    eventually("it connects anew", async || gate.connections.load(Ordering::Relaxed) > before).await;
    gate.stalled.store(false, Ordering::Relaxed);
    eventually("hits are back", async || get(&shared, 1).await.is_some()).await;

    server.signal("-STOP");
    is_left_alone(&shared).await;
    server.signal("-CONT");
    eventually("hits are back", async || get(&shared, 1).await.is_some()).await;

    server.cli(&["CLIENT", "PAUSE", "1500", "ALL"]);
    is_left_alone(&shared).await;
    eventually("hits are back", async || get(&shared, 1).await.is_some()).await;
    assert!(counted("get", "timeout") > 0);
}

#[tokio::test]
async fn a_full_server_is_read_from() {
    if !available() {
        return;
    }
    let (_own, log) = own_log();
    metrics();
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let shared = well(&settings(&server.url())).await;
    store(&shared, [1]).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    store(&shared, [2]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    assert_eq!(get(&shared, 2).await, None);
    assert!(shared.is_well() && counted("put", "full") > 0);
    // It takes new times to expire: that does not make it less full.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    shared.renew(&key(1), &value(1));
    shared.flush().await;
    store(&shared, [2]).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("it is written to again", async || {
        store(&shared, [2]).await;
        get(&shared, 2).await.is_some()
    })
    .await;
    let text = log();
    for once in ["the shared tier takes no writes", "the shared tier takes writes again"] {
        assert_eq!(text.matches(once).count(), 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_server_evicts_and_goes_on() {
    if !available() {
        return;
    }
    let server = Server::start(&["--maxmemory-policy", "volatile-lru", "--maxmemory", "3mb"]);
    let shared = well(&settings(&server.url())).await;
    let journal = shared.journal("kept", 100).expect("a name");
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"a", b"1")]).await.expect("a change");
    for round in 0..40_u8 {
        for number in 0..100_u8 {
            let mut bytes = [number; 32];
            bytes[0] = round;
            shared.put(&thresher_core::kv::key::BlockKey::from_bytes(bytes), value(number));
        }
        shared.flush().await;
    }
    let evicted = server.cli(&["INFO", "stats"]);
    assert!(!evicted.contains("evicted_keys:0\r"), "blocks were evicted");
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    assert_eq!(journal.scan_fields(None).await.expect("a page").fields.len(), 1, "journals do not expire");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_read_from() {
    if !available() {
        return;
    }
    metrics();
    let primary = Server::start(&[]);
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let shared = well(&settings(&server.url())).await;
    store(&well(&settings(&primary.url())).await, [1]).await;
    server.cli(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    eventually("it has what the primary has", async || get(&shared, 1).await.is_some()).await;
    eventually("writes are refused", async || {
        store(&shared, [2]).await;
        counted("put", "read_only") > 0
    })
    .await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    eventually("it is written to again", async || {
        store(&shared, [2]).await;
        get(&shared, 2).await.is_some()
    })
    .await;
}

/// Answers every command with one refusal.
async fn refusing(answer: &'static str, refuses: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let refuses = Arc::clone(&refuses);
            tokio::spawn(async move {
                let mut buffer = vec![0; 65536];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let asked = String::from_utf8_lossy(&buffer[..read]).matches('*').count();
                    let answer = if refuses.load(Ordering::Relaxed) { answer } else { "$0\r\n\r\n" };
                    if stream.write_all(answer.repeat(asked).as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_refuses_is_left_alone() {
    if !available() {
        return;
    }
    metrics();
    let answers = [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
        "-NOPERM this user has no permissions\r\n",
        "-NOAUTH Authentication required.\r\n",
        "-ERR max number of clients reached\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    for answer in answers {
        let refuses = Arc::new(AtomicBool::new(false));
        let port = refusing(answer, Arc::clone(&refuses)).await;
        let shared = well(&settings(&format!("redis://127.0.0.1:{port}"))).await;
        refuses.store(true, Ordering::Relaxed);
        is_left_alone(&shared).await;
        refuses.store(false, Ordering::Relaxed);
        eventually(answer, async || shared.is_well()).await;
    }
}

/// What this thread logs from now on, which is all of a test that has no other.
fn own_log() -> (tracing::subscriber::DefaultGuard, impl Fn() -> String) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    (tracing::subscriber::set_default(subscriber), move || lines.text())
}

#[tokio::test]
async fn states_are_logged_once() {
    if !available() {
        return;
    }
    let (_own, log) = own_log();
    let mut server = Server::start(&[]);
    let prefix = format!("redis://127.0.0.1:{}", server.port);
    let shared = well(&settings(&prefix)).await;
    server.kill();
    eventually("the breaker opens", async || {
        get(&shared, 1).await;
        !shared.is_well()
    })
    .await;
    for _ in 0..200 {
        get(&shared, 1).await;
    }
    server.up();
    eventually("it heals", async || shared.is_well()).await;
    let text = log();
    assert_eq!(text.matches("the shared tier does not answer").count(), 1, "{text}");
    assert_eq!(text.matches("the shared tier answers").count(), 2, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_waits_once_however_many_blocks_it_asks_for() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let gate = Gate::to(server.port).await;
    let url = format!("redis://127.0.0.1:{}", gate.port);
    let shared = well(&SharedSettings { breaker_failures: 1000, ..settings(&url) }).await;
    let none = LocalSettings { memory_bytes_max: 0, disk_bytes_max: 0, write_queue_bytes_max: 0, dir: None };
    let tiers = AllTiers::new(LocalTiers::open(&none).expect("it opens"), Some(shared), Handle::current());
    let key = |n: u32| BlockKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
    let keys: Vec<_> = (0..4096).map(key).collect();
    gate.stalled.store(true, Ordering::Relaxed);
    let found = tokio::task::spawn_blocking(move || tiers.fetch(&keys)).await.expect("no panic");
    assert!(found.iter().all(Option::is_none));
    // What was asked for arrives now: the commands that were under way, none of those behind them.
    gate.stalled.store(false, Ordering::Relaxed);
    let asked = || {
        let said = server.cli(&["INFO", "commandstats"]);
        let calls = said.lines().find_map(|line| line.strip_prefix("cmdstat_getrange:calls="));
        calls.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    eventually("it arrives", async || asked() > 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(asked() <= 128 + 8, "{} commands", asked());
}
