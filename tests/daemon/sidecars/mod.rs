//! Two daemons with the real model that share a real Redis server: each uses the blocks and registered chunks
//! of the other, and no request fails when the server does.

mod daemon;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::daemon::{Servers, Sidecar};
use crate::support::redis::{Server, available, cluster};
use crate::support::wait::eventually;
use crate::support::wire;

const HITS: &str = "shared_requests_total{op=\"get\",outcome=\"hit\"}";
const WRITTEN: &str = "shared_requests_total{op=\"put\",outcome=\"written\"}";

/// A request with chunks that no daemon has read before, if no other test uses this `topic`.
fn request(topic: &str) -> Value {
    let chunks: Vec<Value> = (0..6)
        .map(|n| {
            json!({"id": format!("{topic}{n}"), "title": topic, "text": format!(
                "The {topic} number {n} rises with the moon, twice a day. A bridge was closed in year {n}. \
                 Nobody saw it fall, and the report of the {topic} says so."
            )})
        })
        .collect();
    json!({"query": format!("When does the {topic} rise?"), "chunks": chunks, "budget": {"tokens": 60}})
}

/// Sends a request to `/v1/compress` and returns the response.
async fn compress(sidecar: &Sidecar, request: &Value) -> Value {
    let answer = sidecar.post("/v1/compress", request.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// Whether the blocks of one sidecar reach the other one: the first reads chunks and writes their blocks to
/// the server, the second finds them. False if the connection of either is not ready yet.
async fn shares(one: &Sidecar, two: &Sidecar, topic: &str) -> bool {
    let (request, written) = (request(topic), one.metric(WRITTEN).await);
    let read = compress(one, &request).await["blocks"]["read"].as_f64().expect("a count");
    let deadline = Instant::now() + Duration::from_secs(2);
    while one.metric(WRITTEN).await < written + read && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    compress(two, &request).await["blocks"]["shared"] == 6
}

async fn register(sidecar: &Sidecar, id: &str, text: &str) {
    let answer = sidecar.post("/v1/chunks", json!({"chunks": [{"id": id, "text": text}]})).await;
    assert_eq!((answer.status, &answer.json()["chunks"][0]["status"]), (200, &json!("created")), "{id}");
}

async fn knows(sidecar: &Sidecar, id: &str) -> bool {
    sidecar.get(&format!("/v1/chunks/{id}")).await.status == 200
}

async fn listed(sidecar: &Sidecar) -> Vec<String> {
    let page = sidecar.get("/v1/chunks?limit=1000").await.json();
    assert_eq!(page["next"], Value::Null, "one page");
    let chunks = page["chunks"].as_array().expect("a page").clone();
    chunks.iter().map(|chunk| chunk["id"].as_str().expect("an id").to_owned()).collect()
}

async fn search(sidecar: &Sidecar, words: &str) -> Vec<String> {
    let answer = sidecar.post("/v1/search", json!({"query": words, "rank": "bm25"})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.json()["results"].as_array().expect("results").clone();
    results.iter().map(|result| result["id"].as_str().expect("an id").to_owned()).collect()
}

// ---- with one server and with a cluster ----

async fn check_blocks(one: &Sidecar, two: &Sidecar) {
    eventually("both sidecars are connected", async || shares(one, two, "harbour").await).await;
    eventually("the write queue is empty", async || one.metric("shared_queue_bytes").await == 0.0).await;
    let (request, written) = (request("tide"), one.metric(WRITTEN).await);
    let (first, hits) = (compress(one, &request).await, two.metric(HITS).await);
    assert_eq!((&first["blocks"]["read"], &first["blocks"]["shared"]), (&json!(6), &json!(0)), "{first}");
    eventually("the blocks are written", async || one.metric(WRITTEN).await >= written + 6.0).await;
    let second = compress(two, &request).await;
    assert_eq!((&second["blocks"]["read"], &second["blocks"]["shared"]), (&json!(0), &json!(6)), "{second}");
    for part in ["context", "chunks", "citations", "usage", "rc"] {
        assert_eq!(first[part], second[part], "{part}");
    }
    assert!(two.metric(HITS).await >= hits + 6.0);
    assert_eq!(
        compress(two, &request).await["blocks"]["memory"],
        6,
        "the second sidecar keeps the blocks in memory"
    );
}

async fn check_registry(one: &mut Sidecar, two: &mut Sidecar) {
    register(one, "tides", "The tide rises twice a day, pulled by the moon.").await;
    eventually("the other sidecar has the chunk", async || knows(two, "tides").await).await;
    let named = json!({"query": "What pulls the tide?", "chunk_ids": ["tides"]});
    let answer = compress(two, &named).await;
    assert!(answer["context"].as_str().is_some_and(|context| context.contains("pulled by the moon")));
    assert_eq!(answer["context"], compress(one, &named).await["context"]);
    assert_eq!(search(two, "moon").await, ["tides"]);
    assert_eq!(two.delete("/v1/chunks/tides").await.status, 200);
    eventually("the chunk is deleted everywhere", async || !knows(one, "tides").await).await;
    assert!(search(one, "moon").await.is_empty());

    register(two, "ferry", "The ferry leaves at noon.").await;
    register(two, "train", "The train leaves at nine.").await;
    two.stop().await;
    register(one, "bus", "The bus leaves at ten.").await;
    assert_eq!(one.delete("/v1/chunks/ferry").await.status, 200);
    // More text than fits into one entry of the log.
    let long = "A timetable of the railway, and of nothing else. ".repeat(2_000);
    let many: Vec<Value> =
        (0..8).map(|n| json!({"id": format!("long{n}"), "text": format!("{n} {long}")})).collect();
    assert_eq!(one.post("/v1/chunks", json!({"chunks": many})).await.status, 200);
    assert_eq!(
        one.post("/v1/chunks/delete", json!({"ids": (0..7).map(|n| format!("long{n}")).collect::<Vec<_>>()}))
            .await
            .status,
        200
    );
    two.up().await;
    eventually("the restarted sidecar has all changes", async || {
        listed(two).await == ["bus", "long7", "train"]
    })
    .await;
    assert_eq!(search(two, "leaves ten").await[0], "bus");
    assert_eq!(one.delete("/v1/chunks/long7").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_share_blocks_and_chunks_over_one_server_and_survive_its_failures() {
    if !available() {
        return;
    }
    let mut servers = [Server::start(&[])];
    let place = Servers::of(&servers);
    let (mut one, mut two) = tokio::join!(Sidecar::start(&place), Sidecar::start(&place));
    check_blocks(&one, &two).await;
    check_registry(&mut one, &mut two).await;
    check_damaged_chunk(&servers[0], &one, &two).await;
    check_killed_server(&mut servers[0], &one, &two).await;
    check_start_without_server(&mut servers[0], &one, &mut two).await;
    check_lost_blocks(&servers[0], &mut one, &Sidecar::start(&place).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_share_nothing_between_tenants() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys.toml");
    let entry = |(name, tenant): (&str, &str)| {
        let sha256 = hex::encode(Sha256::digest(format!("thr_{name}")));
        format!("[[key]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{sha256}\"\n")
    };
    std::fs::write(&keys, [("a", "a"), ("b", "b"), ("c", "")].map(entry).concat()).expect("written");
    let place = Servers::of(std::slice::from_ref(&server));
    let keys = keys.to_str().expect("UTF-8");
    let (one, two) = (Sidecar::start_with(&place, keys).await, Sidecar::start_with(&place, keys).await);
    let chunk = json!({"chunks": [{"id": "x", "text": "The tide of a."}]});
    eventually("the change is accepted", async || {
        one.ask("a", ("POST", "/v1/chunks"), &chunk).await.status == 200
    })
    .await;
    let status = async |sidecar: &Sidecar, key: &str| {
        sidecar.ask(key, ("GET", "/v1/chunks/x"), &json!({})).await.status
    };
    eventually("tenant a has the chunk on both sidecars", async || status(&two, "a").await == 200).await;
    // Each log is read in order. If b or c got the chunk of a, they would have it before the later chunk of
    // their own.
    for key in ["b", "c"] {
        let own = json!({"chunks": [{"id": "y", "text": "Another."}]});
        eventually("the change is accepted", async || {
            one.ask(key, ("POST", "/v1/chunks"), &own).await.status == 200
        })
        .await;
        eventually("the tenant has its own chunk", async || {
            two.ask(key, ("GET", "/v1/chunks/y"), &json!({})).await.status == 200
        })
        .await;
        assert_eq!((status(&one, key).await, status(&two, key).await), (404, 404), "{key}");
    }
    let written = one.metric(WRITTEN).await;
    let ask = async |sidecar: &Sidecar, key: &str| {
        let answer = sidecar.ask(key, ("POST", "/v1/compress"), &request("ebb")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["blocks"].clone()
    };
    assert_eq!(ask(&one, "a").await["read"], 6);
    eventually("the blocks are written", async || one.metric(WRITTEN).await >= written + 6.0).await;
    assert_eq!(ask(&two, "a").await["shared"], 6, "tenant a finds its own blocks");
    for key in ["b", "c"] {
        assert_eq!(ask(&two, key).await["read"], 6, "{key} finds no blocks of a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_is_killed_while_it_follows_the_log_misses_no_change() {
    const KILLS: usize = 10;
    if !available() {
        return;
    }
    let servers = [Server::start(&[])];
    let place = Servers::of(&servers);
    let (mut one, two) = tokio::join!(Sidecar::start(&place), Sidecar::start(&place));
    // Chunks whose registration was acknowledged, and those whose registration was interrupted by a kill.
    let (mut acknowledged, mut interrupted) = (BTreeSet::new(), BTreeSet::new());
    for kill in 0..KILLS {
        let killed = tokio::spawn({
            let http = one.http();
            async move {
                let mut ids = Vec::new();
                for n in 0.. {
                    let id = format!("one{kill}-{n}");
                    let body =
                        json!({"chunks": [{"id": id, "text": "Of the one that is killed."}]}).to_string();
                    match tokio::spawn(wire::post(http, "/v1/chunks", body)).await {
                        Ok(answer) if answer.status == 200 => ids.push(id),
                        _ => return (ids, id),
                    }
                }
                unreachable!("the sidecar is killed")
            }
        });
        for n in 0..4 {
            register(&two, &format!("two{kill}-{n}"), "It stays.").await;
            acknowledged.insert(format!("two{kill}-{n}"));
        }
        for gone in (kill > 0).then(|| format!("two{}-0", kill - 1)).into_iter() {
            assert_eq!(two.delete(&format!("/v1/chunks/{gone}")).await.status, 200);
            acknowledged.remove(&gone);
        }
        // Each kill comes at another moment.
        tokio::time::sleep(Duration::from_millis(13 * kill as u64)).await;
        one.kill();
        let (ids, last) = killed.await.expect("no panic");
        acknowledged.extend(ids);
        interrupted.insert(last);
        one.up().await;
    }
    eventually("both have the same chunks", async || listed(&one).await == listed(&two).await).await;
    let all: BTreeSet<String> = listed(&one).await.into_iter().collect();
    assert!(acknowledged.is_subset(&all), "lost: {:?}", acknowledged.difference(&all));
    let unexpected: Vec<_> = all.difference(&acknowledged).filter(|id| !interrupted.contains(*id)).collect();
    assert!(unexpected.is_empty(), "deleted chunks are back: {unexpected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_share_blocks_and_chunks_over_a_cluster() {
    if !available() {
        return;
    }
    let servers = tokio::task::spawn_blocking(|| cluster(3, 0)).await.expect("a cluster");
    let place = Servers::of(&servers);
    let (mut one, mut two) = tokio::join!(Sidecar::start(&place), Sidecar::start(&place));
    check_blocks(&one, &two).await;
    check_registry(&mut one, &mut two).await;
}

/// The log loses all entries, and the server's copy of one chunk is damaged: the sidecars repair it.
async fn check_damaged_chunk(server: &Server, one: &Sidecar, two: &Sidecar) {
    let now = "thresher:{j:chunks}:now";
    server.cli(&["HSET", now, "c:bus", "damaged"]);
    server.cli(&["XTRIM", "thresher:{j:chunks}:log", "MAXLEN", "0"]);
    for (here, there, id) in [(one, two, "ship"), (two, one, "boat")] {
        register(here, id, "It leaves at noon.").await;
        eventually("both sidecars have read the server's chunks again", async || knows(there, id).await)
            .await;
        assert_eq!(there.delete(&format!("/v1/chunks/{id}")).await.status, 200);
        assert!(
            knows(one, "bus").await && knows(two, "bus").await,
            "both sidecars keep the chunk, which was valid in both"
        );
    }
    eventually("the server's copy is valid again", async || server.cli(&["HGET", now, "c:bus"]) != "damaged")
        .await;
}

// ---- when the server fails ----

async fn check_killed_server(server: &mut Server, one: &Sidecar, two: &Sidecar) {
    let (stop, sent) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let clients = async |name: &str, sidecar: &Sidecar, sent: &AtomicUsize| {
        while !stop.load(Ordering::Relaxed) {
            let count = sent.fetch_add(1, Ordering::Relaxed);
            // Some chunks are new, and some were read by the other sidecar.
            let topic = format!("{}{}", if count.is_multiple_of(3) { "both" } else { name }, count / 3);
            compress(sidecar, &request(&topic)).await;
        }
    };
    let fails = async {
        let more = async |count: usize| {
            let before = sent.each_ref().map(|sent| sent.load(Ordering::Relaxed));
            eventually("both sidecars answer requests", async || {
                (0..2).all(|at| sent[at].load(Ordering::Relaxed) >= before[at] + count)
            })
            .await;
        };
        more(2).await;
        server.kill();
        more(5).await;
        let refused = one.post("/v1/chunks", json!({"chunks": [{"id": "new", "text": "New."}]})).await;
        let code = refused.json()["error"]["code"].clone();
        assert_eq!((refused.status, code), (503, json!("change_log_unavailable")), "{}", refused.body);
        assert!(!knows(one, "new").await);
        server.up();
        more(5).await;
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(clients("one", one, &sent[0]), clients("two", two, &sent[1]), fails);

    let mut round = 0;
    eventually("blocks are shared again", async || {
        round += 1;
        shares(one, two, &format!("again{round}")).await && shares(two, one, &format!("back{round}")).await
    })
    .await;
    // The server has lost the log and everything else. The sidecars write it again.
    let chunk = json!({"chunks": [{"id": "new", "text": "New."}]});
    eventually("changes are accepted again", async || {
        one.post("/v1/chunks", chunk.clone()).await.status == 200
    })
    .await;
    eventually("the other sidecar has the chunk", async || knows(two, "new").await).await;
    eventually("the server has all chunks", async || server.cli(&["HLEN", "thresher:{j:chunks}:now"]) == "4")
        .await;
    assert!(knows(two, "bus").await && knows(one, "train").await);
}

async fn check_start_without_server(server: &mut Server, one: &Sidecar, two: &mut Sidecar) {
    two.stop().await;
    server.kill();
    two.up().await;
    assert!(knows(two, "bus").await);
    assert_eq!(search(two, "bus").await, ["bus"]);
    compress(two, &request("start")).await;
    let chunk = json!({"chunks": [{"id": "late", "text": "Late."}]});
    let refused = two.post("/v1/chunks", chunk.clone()).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    server.up();
    eventually("changes are accepted", async || two.post("/v1/chunks", chunk.clone()).await.status == 200)
        .await;
    eventually("the other sidecar has the chunk", async || knows(one, "late").await).await;
}

/// The server loses all blocks and keeps the log. A sidecar that uses a block writes it again.
async fn check_lost_blocks(server: &Server, one: &mut Sidecar, new: &Sidecar) {
    let request = request("ebb");
    compress(one, &request).await;
    eventually("the write queue is empty", async || one.metric("shared_queue_bytes").await == 0.0).await;
    let script = "for _, key in ipairs(redis.call('KEYS', 'thresher:b:*')) do redis.call('DEL', key) end";
    server.cli(&["EVAL", script, "0"]);
    // A restarted sidecar does not know which blocks the server has.
    one.stop().await;
    one.up().await;
    eventually("the sidecar is connected", async || one.metric("shared_breaker_open").await == 0.0).await;
    assert_eq!(compress(one, &request).await["blocks"]["disk"], 6);
    eventually("the blocks are written again", async || {
        // If the sidecar was not connected yet, the next use writes them.
        compress(one, &request).await;
        one.metric(WRITTEN).await >= 6.0
    })
    .await;
    assert_eq!(compress(new, &request).await["blocks"]["shared"], 6);
}
