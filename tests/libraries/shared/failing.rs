//! Servers that die, stall, fill up or become replicas: no call fails or waits, and the tier recovers by
//! itself.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use thresher::shared_tier;
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_core::kv::store::Tiers;
use thresher_core::kv::tiers::AllTiers;
use thresher_shared::{FieldChange, Shared, SharedLimits, SharedSettings};

use super::{
    bounded, connected, connected_within, counted, get, key, limits, metrics, settings, store, value,
};
use crate::support::redis::{Server, available};
use crate::support::wait::eventually;

/// Collects what this thread logs, as far as `filter` lets it through, until the guard is dropped. A test
/// whose runtime has no other thread sees all of its own log and nothing of other tests.
pub fn own_log(filter: &str) -> (tracing::subscriber::DefaultGuard, impl Fn() -> String) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let subscriber = subscriber.with_env_filter(filter).finish();
    (tracing::subscriber::set_default(subscriber), move || lines.text())
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
async fn a_server_that_starts_after_the_tier_is_used_from_then_on() {
    if !available() {
        return;
    }
    let mut server = Server::prepare(&[], &[]);
    let shared = Shared::connect_within(&settings(&server.url()), limits())
        .expect("a server that is down is not an error");
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, None);
    server.up();
    eventually("the tier is connected", async || shared.is_well()).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_is_skipped_and_used_again_after_its_restart() {
    if !available() {
        return;
    }
    metrics();
    let mut server = Server::start(&[]);
    let shared = connected(&settings(&server.url())).await;
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
                                assert_eq!(found, value(*number), "the tier returned a wrong value");
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
    let hit_again = async |name: &str| {
        let before = hits.load(Ordering::Relaxed);
        eventually(name, async || hits.load(Ordering::Relaxed) > before + 100).await;
    };
    hit_again("there are hits before the kill").await;
    for _ in 0..2 {
        server.kill();
        eventually("the breaker opens", async || !shared.is_well()).await;
        let before = calls.load(Ordering::Relaxed);
        eventually("calls return while the server is down", async || {
            calls.load(Ordering::Relaxed) > before + 100
        })
        .await;
        server.up();
        hit_again("there are hits after the restart").await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no call fails");
    }
    bounded(shared.flush()).await;
    assert!(counted("get", "skipped") > 0 && metrics().contains("shared_breaker_open"));
}

/// A TCP proxy to a server that can stall: its connections stay open, and nothing passes.
struct Gate {
    port: u16,
    stalled: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl Gate {
    async fn in_front_of(port: u16) -> Self {
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

/// Asserts that the breaker opens after some calls, and that calls then skip the server without waiting for
/// it.
async fn assert_skipped(shared: &Shared) {
    eventually("the breaker opens", async || {
        get(shared, 1).await;
        !shared.is_well()
    })
    .await;
    let skipped = counted("get", "skipped");
    for _ in 0..50 {
        assert_eq!(get(shared, 1).await, None);
    }
    assert!(counted("get", "skipped") >= skipped + 50, "calls wait for the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_is_skipped_and_used_again_when_it_answers() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let gate = Gate::in_front_of(server.port).await;
    let through = format!("redis://127.0.0.1:{}", gate.port);
    let shared = connected(&SharedSettings { timeout_ms: 150, ..settings(&through) }).await;
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));

    gate.stalled.store(true, Ordering::Relaxed);
    assert_skipped(&shared).await;
    let before = gate.connections.load(Ordering::Relaxed);
    eventually("the tier connects again", async || gate.connections.load(Ordering::Relaxed) > before).await;
    gate.stalled.store(false, Ordering::Relaxed);
    eventually("there are hits again", async || get(&shared, 1).await.is_some()).await;

    server.pause();
    assert_skipped(&shared).await;
    server.resume();
    eventually("there are hits again", async || get(&shared, 1).await.is_some()).await;

    server.cli(&["CLIENT", "PAUSE", "1500", "ALL"]);
    assert_skipped(&shared).await;
    eventually("there are hits again", async || get(&shared, 1).await.is_some()).await;
    assert!(counted("get", "timeout") > 0);
}

#[tokio::test]
async fn a_full_server_is_read_and_not_written() {
    if !available() {
        return;
    }
    let (_subscriber, log) = own_log("info");
    metrics();
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let shared = connected(&settings(&server.url())).await;
    store(&shared, [1]).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    store(&shared, [2]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    assert_eq!(get(&shared, 2).await, None);
    assert!(shared.is_well() && counted("put", "full") > 0);
    // A full server accepts new times of expiry, at most one a second for each key. This does not mean that
    // it accepts writes again.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    shared.renew(&key(1), &value(1));
    shared.flush().await;
    store(&shared, [2]).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("the server accepts writes again", async || {
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
async fn a_server_with_a_memory_limit_evicts_blocks_and_keeps_journals() {
    if !available() {
        return;
    }
    let server = Server::start(&["--maxmemory-policy", "volatile-lru", "--maxmemory", "3mb"]);
    let shared = connected(&settings(&server.url())).await;
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
    assert!(!evicted.contains("evicted_keys:0\r"), "the server has evicted no blocks");
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    assert_eq!(journal.scan_fields(None).await.expect("a page").fields.len(), 1, "the journal was evicted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_read_and_not_written() {
    if !available() {
        return;
    }
    metrics();
    let primary = Server::start(&[]);
    let server = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let shared = connected(&settings(&server.url())).await;
    store(&connected(&settings(&primary.url())).await, [1]).await;
    server.cli(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    eventually("the replica has the data of its primary", async || get(&shared, 1).await.is_some()).await;
    eventually("writes are refused", async || {
        store(&shared, [2]).await;
        counted("put", "read_only") > 0
    })
    .await;
    assert_eq!(get(&shared, 1).await, Some(value(1)));
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    eventually("the server accepts writes again", async || {
        store(&shared, [2]).await;
        get(&shared, 2).await.is_some()
    })
    .await;
}

/// A server that answers every command with `answer` while `refuses` is true, and with an empty value
/// otherwise. Returns its port.
async fn refusing(answer: &'static str, refuses: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let refuses = Arc::clone(&refuses);
            tokio::spawn(async move {
                let mut buffer = vec![0; 65536];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let commands = String::from_utf8_lossy(&buffer[..read]).matches('*').count();
                    let answer = if refuses.load(Ordering::Relaxed) { answer } else { "$0\r\n\r\n" };
                    if stream.write_all(answer.repeat(commands).as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_every_command_is_skipped_until_it_accepts_them() {
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
        let shared = connected(&settings(&format!("redis://127.0.0.1:{port}"))).await;
        refuses.store(true, Ordering::Relaxed);
        assert_skipped(&shared).await;
        refuses.store(false, Ordering::Relaxed);
        eventually(answer, async || shared.is_well()).await;
    }
}

#[tokio::test]
async fn each_change_of_state_is_logged_once() {
    if !available() {
        return;
    }
    let (_subscriber, log) = own_log("info");
    let mut server = Server::start(&[]);
    let prefix = format!("redis://127.0.0.1:{}", server.port);
    let shared = connected(&settings(&prefix)).await;
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
    eventually("the tier is connected again", async || shared.is_well()).await;
    let text = log();
    assert_eq!(text.matches("the shared tier does not answer").count(), 1, "{text}");
    assert_eq!(text.matches("the shared tier answers").count(), 2, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_waits_once_for_any_number_of_blocks() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let gate = Gate::in_front_of(server.port).await;
    let url = format!("redis://127.0.0.1:{}", gate.port);
    let shared = connected_within(&settings(&url), SharedLimits { failures_max: 1000, ..limits() }).await;
    let none = LocalSettings { memory_bytes_max: 0, disk_bytes_max: 0, write_queue_bytes_max: 0, dir: None };
    let tiers = AllTiers::new(
        LocalTiers::open(&none).expect("it opens"),
        Some(shared_tier::blocks(shared, Handle::current())),
    );
    let key = |n: u32| BlockKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
    let keys: Vec<_> = (0..4096).map(key).collect();
    gate.stalled.store(true, Ordering::Relaxed);
    let found = tokio::task::spawn_blocking(move || tiers.fetch(&keys)).await.expect("no panic");
    assert!(found.iter().all(Option::is_none));
    // The commands that were on their way reach the server now. Those behind them must not have been sent.
    gate.stalled.store(false, Ordering::Relaxed);
    let received = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_getrange:calls="));
        calls.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    eventually("the server receives commands", async || received() > 0).await;
    // Time in which commands that should not have been sent would arrive. A slow machine cannot make this
    // fail.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(received() <= 128 + 8, "{} commands", received());
}
