//! Blocks in the shared tier: hits, misses, damage, expiry and size limits.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use thresher_shared::{BLOCK_BYTES_MAX, Shared, SharedLimits, SharedSettings};

use super::{connected, connected_within, counted, get, key, limits, metrics, settings, store, value};
use crate::support::redis::{Server, available};
use crate::support::wait::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_found_in_the_order_of_the_keys() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let shared = connected(&settings(&server.url())).await;
    store(&shared, 0..200).await;
    let numbers: Vec<u8> = vec![7, 3, 250, 7, 199, 251, 0];
    let found = shared.get_many(&numbers.iter().map(|n| key(*n)).collect::<Vec<_>>()).await;
    let expect: Vec<_> = numbers.iter().map(|n| (*n < 200).then(|| value(*n))).collect();
    assert_eq!(found, expect);
    let nothing: [thresher_core::kv::key::BlockKey; 0] = [];
    assert_eq!(shared.get_many(&nothing).await, [] as [Option<Bytes>; 0]);
    let name = format!("thresher:b:{}", key(7));
    assert!((600_000..=604_800).contains(&server.cli(&["TTL", &name]).parse::<i64>().expect("seconds")));
    let another = connected(&settings(&server.url())).await;
    assert_eq!(get(&another, 3).await, Some(value(3)), "another sidecar finds the block");
    let apart = connected(&SharedSettings { prefix: "other:".to_owned(), ..settings(&server.url()) }).await;
    assert_eq!(get(&apart, 3).await, None, "a sidecar with another prefix does not");
    assert!(counted("get", "hit") > 0 && counted("get", "miss") > 0 && counted("put", "written") > 0);
    // All tests of this process share these metrics, so their values are not tested.
    for name in ["shared_breaker_open ", "shared_queue_bytes ", "shared_seconds_count{op=\"get\"} "] {
        assert!(metrics().contains(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_foreign_value_is_a_miss_until_the_block_is_put_again() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let shared = connected(&settings(&server.url())).await;
    let name = format!("thresher:b:{}", key(1));
    let other = format!("thresher:b:{}", key(2));
    let before = counted("get", "damaged");
    let table: &[(&str, &[&[&str]])] = &[
        ("a flipped byte of the value", &[&["SETRANGE", &name, "500", "x"]]),
        ("a flipped byte of the hash", &[&["SETRANGE", &name, "5", "x"]]),
        ("another version", &[&["SETRANGE", &name, "0", "x"]]),
        ("a byte more", &[&["APPEND", &name, "x"]]),
        ("another program's value", &[&["SET", &name, "hello"]]),
        ("another key's value", &[&["COPY", &other, &name, "REPLACE"]]),
        ("a list", &[&["DEL", &name], &["RPUSH", &name, "x"]]),
        ("a hash", &[&["DEL", &name], &["HSET", &name, "x", "y"]]),
    ];
    for (case, commands) in table {
        store(&shared, [1, 2]).await;
        assert_eq!(get(&shared, 1).await, Some(value(1)), "{case}: before");
        for command in *commands {
            server.cli(command);
        }
        assert_eq!(get(&shared, 1).await, None, "{case}");
        assert_eq!(get(&shared, 2).await, Some(value(2)), "{case}: the others");
    }
    assert!(counted("get", "damaged") >= before + table.len() as u64);
    store(&shared, [1]).await;
    assert_eq!(get(&shared, 1).await, Some(value(1)), "put again");
    assert!(shared.is_well(), "damage does not count as a failure of the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_in_use_does_not_expire_and_is_written_again_after_a_loss() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let shared = connected_within(&settings(&server.url()), SharedLimits { ttl_s: 4, ..limits() }).await;
    store(&shared, [1, 2]).await;
    let renewed = counted("put", "renewed");
    // Blocks are renewed for one and a half times as long as they live.
    let (started, mut calls) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(6) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        shared.renew(&key(1), &value(1));
        calls += 1;
    }
    shared.flush().await;
    let seconds = started.elapsed().as_secs();
    assert_eq!((get(&shared, 1).await, get(&shared, 2).await), (Some(value(1)), None));
    // A block is renewed at most once a second. Other tests of this process renew three blocks.
    let renewed = counted("put", "renewed") - renewed;
    assert!(
        (2..=seconds + 5).contains(&renewed),
        "{calls} calls renewed the block {renewed} times in {seconds} s"
    );
    server.cli(&["FLUSHALL"]);
    eventually("the block is written again", async || {
        shared.renew(&key(1), &value(1));
        shared.flush().await;
        get(&shared, 1).await == Some(value(1))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_and_the_write_queue_have_size_limits() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let patient = SharedSettings { timeout_ms: 2000, ..settings(&server.url()) };
    let shared =
        connected_within(&patient, SharedLimits { write_queue_bytes_max: 12 << 20, ..limits() }).await;
    let largest = Bytes::from(vec![1; BLOCK_BYTES_MAX]);
    shared.put(&key(1), largest.clone());
    shared.put(&key(2), largest.clone());
    shared.put(&key(3), Bytes::from(vec![1; BLOCK_BYTES_MAX + 1]));
    shared.put(&key(4), Bytes::new());
    shared.flush().await;
    let found = shared.get_many(&[key(1), key(2), key(3), key(4)]).await;
    assert_eq!(found, [Some(largest), None, None, Some(Bytes::new())]);
    assert!(counted("put", "dropped") > 0, "the queue has room for one of the two largest blocks");
    assert!(counted("put", "too_large") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_were_sealed_with_another_secret_are_misses() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let with = |name: &str, secret: &str| SharedSettings {
        secret_file: server.file(name, secret),
        ..settings(&server.url())
    };
    let (open, ours, theirs) = (
        connected(&settings(&server.url())).await,
        connected(&with("ours", "secret\n")).await,
        connected(&with("theirs", "another")).await,
    );
    for (writer, number) in [(&open, 1), (&ours, 2), (&theirs, 3)] {
        store(writer, [number]).await;
        for reader in [&open, &ours, &theirs] {
            let same = std::ptr::eq(reader, writer);
            assert_eq!(get(reader, number).await.is_some(), same, "value {number}");
        }
    }
    // A value without the secret's seal, copied to a key of `ours`, is damage.
    let names = server.cli(&["KEYS", "thresher:b:*"]);
    let of = |number: u8| {
        let hash = key(number).to_string();
        names.lines().find(|name| name.ends_with(&hash)).expect("a key").to_owned()
    };
    server.cli(&["COPY", &of(1), &of(2), "REPLACE"]);
    assert_eq!(get(&ours, 2).await, None);
}

#[test]
fn invalid_settings_are_refused_without_quoting_secrets() {
    let check = |case: &str, change: &dyn Fn(&mut SharedSettings), expect: &str| {
        let mut settings = settings("redis://user:hunter2@127.0.0.1:1");
        change(&mut settings);
        let message = Shared::connect(&settings).err().expect(case).to_string();
        assert!(message.contains(expect), "{case}: {message}");
        assert!(!message.contains("hunter2"), "{case}: {message}");
        assert!(!format!("{settings:?}").contains("hunter2"), "{case}");
    };
    let urls = |urls: &'static [&str]| move |s: &mut SharedSettings| s.urls = urls.iter().copied().collect();
    check("no server", &urls(&[]), "shared.urls is empty");
    check("two servers", &urls(&["redis://a", "redis://b"]), "set shared.cluster");
    check("no URL", &urls(&["user:hunter2@host"]), "shared.urls[0] is refused: it must begin with");
    check("another scheme", &urls(&["http://user:hunter2@host"]), "it must begin with");
    check("a bad port", &urls(&["redis://user:hunter2@host:99999999"]), "%-escapes");
    check("no check of certificates", &urls(&["rediss://user:hunter2@host/#insecure"]), "shared.ca_file");
    let second = |s: &mut SharedSettings| {
        s.cluster = true;
        s.urls = ["redis://a", "redis://u:hunter2@b/3"].into_iter().collect();
    };
    check("a database of a cluster", &second, "shared.urls[1] is refused: a cluster has no database");
    check("no file", &|s| s.ca_file = "no/such.pem".into(), "cannot read no/such.pem (shared.ca_file)");
    check("no PEM", &|s| s.ca_file = "Cargo.toml".into(), "Cargo.toml (shared.ca_file) holds no PEM");
    check("no password", &|s| s.password_file = "no/such".into(), "(shared.password_file)");
    check(
        "an empty secret",
        &|s| s.secret_file = "/dev/null".into(),
        "/dev/null (shared.secret_file) holds no text",
    );
    assert!(Path::new("Cargo.toml").exists());
}
