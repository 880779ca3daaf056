//! Two real daemons with the real model and a real server between them: what one has read or registered the other has, and
//! a server that goes takes no request with it.

mod daemon;
#[allow(dead_code, reason = "another test uses the rest")]
#[path = "../shared/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "another test uses the rest")]
#[path = "../http/wire.rs"]
mod wire;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::daemon::{Place, Sidecar};
use self::server::{Server, available, cluster};

/// How long anything may take on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(40);

const HITS: &str = "shared_requests_total{op=\"get\",outcome=\"hit\"}";
const WRITTEN: &str = "shared_requests_total{op=\"put\",outcome=\"written\"}";

/// Waits until `so`, with a bound.
#[track_caller]
fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        while !so().await {
            assert!(started.elapsed() < WAIT_MAX, "waited in vain: {what} ({place})");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A question and chunks that nobody has read, different for each `topic`.
fn question(topic: &str) -> Value {
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

async fn compressed(sidecar: &Sidecar, question: &Value) -> Value {
    let answer = sidecar.post("/v1/compress", question.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// Whether blocks of other sidecars are found: the one that has read them has shared them, the other one asks for them.
async fn shares(one: &Sidecar, two: &Sidecar, topic: &str) -> bool {
    let (question, written) = (question(topic), one.metric(WRITTEN).await);
    let read = compressed(one, &question).await["blocks"]["read"].as_f64().expect("a count");
    let deadline = Instant::now() + Duration::from_secs(2);
    while one.metric(WRITTEN).await < written + read && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    compressed(two, &question).await["blocks"]["shared"] == 6
}

async fn register(sidecar: &Sidecar, id: &str, text: &str) {
    let answer = sidecar.post("/v1/chunks", json!({"chunks": [{"id": id, "text": text}]})).await;
    assert_eq!((answer.status, &answer.json()["chunks"][0]["status"]), (200, &json!("created")), "{id}");
}

async fn knows(sidecar: &Sidecar, id: &str) -> bool {
    sidecar.get(&format!("/v1/chunks/{id}")).await.status == 200
}

/// All ids.
async fn listed(sidecar: &Sidecar) -> Vec<String> {
    let page = sidecar.get("/v1/chunks?limit=1000").await.json();
    assert_eq!(page["next"], Value::Null, "one page");
    let chunks = page["chunks"].as_array().expect("a page").clone();
    chunks.iter().map(|chunk| chunk["id"].as_str().expect("an id").to_owned()).collect()
}

async fn found(sidecar: &Sidecar, words: &str) -> Vec<String> {
    let answer = sidecar.post("/v1/search", json!({"query": words})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.json()["results"].as_array().expect("results").clone();
    results.iter().map(|result| result["id"].as_str().expect("an id").to_owned()).collect()
}

// ---- what holds, whatever stands between the two ----

async fn the_second_is_warm_from_the_first(one: &Sidecar, two: &Sidecar) {
    eventually("both have a connection", async || shares(one, two, "harbour").await).await;
    eventually("all is written", async || one.metric("shared_queue_bytes").await == 0.0).await;
    let (question, written) = (question("tide"), one.metric(WRITTEN).await);
    let (first, hits) = (compressed(one, &question).await, two.metric(HITS).await);
    assert_eq!((&first["blocks"]["read"], &first["blocks"]["shared"]), (&json!(6), &json!(0)), "{first}");
    eventually("they are written", async || one.metric(WRITTEN).await >= written + 6.0).await;
    let second = compressed(two, &question).await;
    assert_eq!((&second["blocks"]["read"], &second["blocks"]["shared"]), (&json!(0), &json!(6)), "{second}");
    for part in ["context", "chunks", "citations", "usage", "rc"] {
        assert_eq!(first[part], second[part], "{part}");
    }
    assert!(two.metric(HITS).await >= hits + 6.0);
    assert_eq!(compressed(two, &question).await["blocks"]["memory"], 6, "and then in its own memory");
}

async fn what_one_registers_the_other_has(one: &mut Sidecar, two: &mut Sidecar) {
    register(one, "tides", "The tide rises twice a day, pulled by the moon.").await;
    eventually("it is known", async || knows(two, "tides").await).await;
    let asked = json!({"query": "What pulls the tide?", "chunk_ids": ["tides"]});
    let answer = compressed(two, &asked).await;
    assert!(answer["context"].as_str().is_some_and(|context| context.contains("pulled by the moon")));
    assert_eq!(answer["context"], compressed(one, &asked).await["context"]);
    assert_eq!(found(two, "moon").await, ["tides"]);
    assert_eq!(two.delete("/v1/chunks/tides").await.status, 200);
    eventually("it is gone", async || !knows(one, "tides").await).await;
    assert!(found(one, "moon").await.is_empty());

    register(two, "ferry", "The ferry leaves at noon.").await;
    register(two, "train", "The train leaves at nine.").await;
    two.stop().await;
    register(one, "bus", "The bus leaves at ten.").await;
    assert_eq!(one.delete("/v1/chunks/ferry").await.status, 200);
    // More text than one entry of the log holds.
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
    eventually("it has caught up", async || listed(two).await == ["bus", "long7", "train"]).await;
    assert_eq!(found(two, "leaves ten").await[0], "bus");
    assert_eq!(one.delete("/v1/chunks/long7").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_one_server() {
    if !available() {
        return;
    }
    let mut servers = [Server::start(&[])];
    let place = Place::of(&servers);
    let (mut one, mut two) = tokio::join!(Sidecar::start(&place), Sidecar::start(&place));
    the_second_is_warm_from_the_first(&one, &two).await;
    what_one_registers_the_other_has(&mut one, &mut two).await;
    a_chunk_that_is_damaged_on_the_server_is_given_again(&servers[0], &one, &two).await;
    a_server_that_goes_takes_no_request_with_it(&mut servers[0], &one, &two).await;
    a_server_that_is_not_there_at_start_is_waited_for_by_writers_only(&mut servers[0], &one, &mut two).await;
    what_a_server_lost_comes_from_who_uses_it(&servers[0], &mut one, &Sidecar::start(&place).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_with_themselves_alone() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys.toml");
    let entry = |(name, tenant): (&str, &str)| {
        let sha256: String =
            Sha256::digest(format!("thr_{name}")).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[[key]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{sha256}\"\n")
    };
    std::fs::write(&keys, [("a", "a"), ("b", "b"), ("c", "")].map(entry).concat()).expect("written");
    let place = Place::of(std::slice::from_ref(&server));
    let keys = keys.to_str().expect("UTF-8");
    let (one, two) = (Sidecar::start_with(&place, keys).await, Sidecar::start_with(&place, keys).await);
    let chunk = json!({"chunks": [{"id": "x", "text": "The tide of a."}]});
    eventually("the log is met", async || one.ask("a", ("POST", "/v1/chunks"), &chunk).await.status == 200)
        .await;
    let status = async |sidecar: &Sidecar, key: &str| {
        sidecar.ask(key, ("GET", "/v1/chunks/x"), &json!({})).await.status
    };
    eventually("a has it everywhere", async || status(&two, "a").await == 200).await;
    // What goes through the log of one comes after what went before: were b or c to get it, it would be there by now.
    for key in ["b", "c"] {
        let own = json!({"chunks": [{"id": "y", "text": "Another."}]});
        eventually("the log is met", async || one.ask(key, ("POST", "/v1/chunks"), &own).await.status == 200)
            .await;
        eventually("it is there", async || {
            two.ask(key, ("GET", "/v1/chunks/y"), &json!({})).await.status == 200
        })
        .await;
        assert_eq!((status(&one, key).await, status(&two, key).await), (404, 404), "{key}");
    }
    let written = one.metric(WRITTEN).await;
    let ask = async |sidecar: &Sidecar, key: &str| {
        let answer = sidecar.ask(key, ("POST", "/v1/compress"), &question("ebb")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["blocks"].clone()
    };
    assert_eq!(ask(&one, "a").await["read"], 6);
    eventually("they are shared", async || one.metric(WRITTEN).await >= written + 6.0).await;
    assert_eq!(ask(&two, "a").await["shared"], 6, "a finds its own");
    for key in ["b", "c"] {
        assert_eq!(ask(&two, key).await["read"], 6, "{key} finds nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_killed_while_it_follows_misses_nothing() {
    const KILLS: usize = 10;
    if !available() {
        return;
    }
    let servers = [Server::start(&[])];
    let place = Place::of(&servers);
    let (mut one, two) = tokio::join!(Sidecar::start(&place), Sidecar::start(&place));
    // Chunks that were answered for, and of the other sidecar whatever it had begun.
    let (mut there, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
    for kill in 0..KILLS {
        let killed = tokio::spawn({
            let http = one.http();
            async move {
                let mut told = Vec::new();
                for n in 0.. {
                    let id = format!("one{kill}-{n}");
                    let body =
                        json!({"chunks": [{"id": id, "text": "Of the one that is killed."}]}).to_string();
                    match tokio::spawn(wire::post(http, "/v1/chunks", body)).await {
                        Ok(answer) if answer.status == 200 => told.push(id),
                        _ => return (told, id),
                    }
                }
                unreachable!("it is killed")
            }
        });
        for n in 0..4 {
            register(&two, &format!("two{kill}-{n}"), "It stays.").await;
            there.insert(format!("two{kill}-{n}"));
        }
        for gone in (kill > 0).then(|| format!("two{}-0", kill - 1)).into_iter() {
            assert_eq!(two.delete(&format!("/v1/chunks/{gone}")).await.status, 200);
            there.remove(&gone);
        }
        tokio::time::sleep(Duration::from_millis(13 * kill as u64)).await;
        one.kill();
        let (told, begun) = killed.await.expect("no panic");
        there.extend(told);
        perhaps.insert(begun);
        one.up().await;
    }
    eventually("both have the same", async || listed(&one).await == listed(&two).await).await;
    let all: BTreeSet<String> = listed(&one).await.into_iter().collect();
    assert!(there.is_subset(&all), "lost: {:?}", there.difference(&all));
    assert!(all.difference(&there).all(|id| perhaps.contains(id)), "came back: {:?}", all.difference(&there));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_cluster() {
    if !available() {
        return;
    }
    let servers = tokio::task::spawn_blocking(|| cluster(3, 0)).await.expect("a cluster");
    let place = Place::of(&servers);
    let (mut one, mut two) = tokio::join!(Sidecar::start(&place), Sidecar::start(&place));
    the_second_is_warm_from_the_first(&one, &two).await;
    what_one_registers_the_other_has(&mut one, &mut two).await;
}

/// The log loses all entries, and one chunk of what they added up to is damaged.
async fn a_chunk_that_is_damaged_on_the_server_is_given_again(server: &Server, one: &Sidecar, two: &Sidecar) {
    let now = "thresher:{j:chunks}:now";
    server.cli(&["HSET", now, "c:bus", "damaged"]);
    server.cli(&["XTRIM", "thresher:{j:chunks}:log", "MAXLEN", "0"]);
    for (here, there, id) in [(one, two, "ship"), (two, one, "boat")] {
        register(here, id, "It leaves at noon.").await;
        eventually("both have read all anew", async || knows(there, id).await).await;
        assert_eq!(there.delete(&format!("/v1/chunks/{id}")).await.status, 200);
        assert!(knows(one, "bus").await && knows(two, "bus").await, "it was sound in both");
    }
    eventually("it is sound", async || server.cli(&["HGET", now, "c:bus"]) != "damaged").await;
}

// ---- when the server goes ----

async fn a_server_that_goes_takes_no_request_with_it(server: &mut Server, one: &Sidecar, two: &Sidecar) {
    let (stop, asked) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let clients = async |name: &str, sidecar: &Sidecar, asked: &AtomicUsize| {
        while !stop.load(Ordering::Relaxed) {
            let count = asked.fetch_add(1, Ordering::Relaxed);
            // Some that nobody has read, some that the other one has.
            let topic = format!("{}{}", if count.is_multiple_of(3) { "both" } else { name }, count / 3);
            compressed(sidecar, &question(&topic)).await;
        }
    };
    let fails = async {
        let more = async |count: usize| {
            let before = asked.each_ref().map(|asked| asked.load(Ordering::Relaxed));
            eventually("both answer", async || {
                (0..2).all(|at| asked[at].load(Ordering::Relaxed) >= before[at] + count)
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
    tokio::join!(clients("one", one, &asked[0]), clients("two", two, &asked[1]), fails);

    let mut round = 0;
    eventually("blocks are shared again", async || {
        round += 1;
        shares(one, two, &format!("again{round}")).await && shares(two, one, &format!("back{round}")).await
    })
    .await;
    // The server has lost the log with everything else: it gets back what the sidecars have.
    let chunk = json!({"chunks": [{"id": "new", "text": "New."}]});
    eventually("changes are taken again", async || one.post("/v1/chunks", chunk.clone()).await.status == 200)
        .await;
    eventually("the other knows", async || knows(two, "new").await).await;
    eventually("the log has all", async || server.cli(&["HLEN", "thresher:{j:chunks}:now"]) == "4").await;
    assert!(knows(two, "bus").await && knows(one, "train").await);
}

async fn a_server_that_is_not_there_at_start_is_waited_for_by_writers_only(
    server: &mut Server,
    one: &Sidecar,
    two: &mut Sidecar,
) {
    two.stop().await;
    server.kill();
    two.up().await;
    assert!(knows(two, "bus").await);
    assert_eq!(found(two, "bus").await, ["bus"]);
    compressed(two, &question("start")).await;
    let chunk = json!({"chunks": [{"id": "late", "text": "Late."}]});
    let refused = two.post("/v1/chunks", chunk.clone()).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    server.up();
    eventually("changes are taken", async || two.post("/v1/chunks", chunk.clone()).await.status == 200).await;
    eventually("the other knows", async || knows(one, "late").await).await;
}

/// Blocks alone: the log of registered chunks stays.
async fn what_a_server_lost_comes_from_who_uses_it(server: &Server, one: &mut Sidecar, new: &Sidecar) {
    let question = question("ebb");
    compressed(one, &question).await;
    eventually("all is written", async || one.metric("shared_queue_bytes").await == 0.0).await;
    let script = "for _, key in ipairs(redis.call('KEYS', 'thresher:b:*')) do redis.call('DEL', key) end";
    server.cli(&["EVAL", script, "0"]);
    // Who starts anew does not know what the server has.
    one.stop().await;
    one.up().await;
    eventually("it is connected", async || one.metric("shared_breaker_open").await == 0.0).await;
    assert_eq!(compressed(one, &question).await["blocks"]["disk"], 6);
    eventually("they are written again", async || {
        // When the connection was not there yet, the next use tells the server.
        compressed(one, &question).await;
        one.metric(WRITTEN).await >= 6.0
    })
    .await;
    assert_eq!(compressed(new, &question).await["blocks"]["shared"], 6);
}
