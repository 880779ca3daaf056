//! Tenants are isolated: neither the content of responses nor the sources of blocks tell one tenant anything
//! about another.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use thresher_core::domain::Tenant;
use thresher_registry::RegistrySettings;

use crate::keys::{Keyed, entry};
use crate::support::wait::eventually;
use crate::support::wire::{Response, ask_with};
use crate::{Gate, check_error, double, good, registry_settings, scripted, with_own_chunk};

/// Keys: `a` and `a2` of tenant `a`, `b` of tenant `b`, and `c` of the default tenant, which a daemon without
/// keys has.
fn keys() -> String {
    entry("a", "tenant = \"a\"")
        + &entry("a2", "tenant = \"a\"")
        + &entry("b", "tenant = \"b\"")
        + &entry("c", "")
}

async fn keyed(registry: &RegistrySettings) -> Keyed {
    Keyed::start(&keys(), scripted(), registry).await
}

#[track_caller]
fn json_of(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn tides() -> Value {
    json!({"chunks": [
        {"id": "a", "title": "Tides", "text": "The tide is at noon.", "metadata": {"lang": "en"}},
        {"id": "b", "text": "The moon is far. Water is wet.", "metadata": {"lang": "en"}},
    ]})
}

/// How many blocks came from memory, from another request's reading, and from the model: (memory, joined,
/// read).
fn sources(answer: &Value) -> (u64, u64, u64) {
    let count = |source: &str| answer["blocks"][source].as_u64().expect("a count");
    (count("memory"), count("joined"), count("read"))
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_one_tenant_has_cached_are_not_used_for_another() {
    let keyed = keyed(&registry_settings()).await;
    let compress = async |key: &str| sources(&json_of(&keyed.post(key, "/v1/compress", &good()).await));
    assert_eq!(compress("a").await, (0, 0, 2));
    assert_eq!(compress("a2").await, (2, 0, 0), "keys of one tenant share its blocks");
    for other in ["b", "c"] {
        assert_eq!(compress(other).await, (0, 0, 2), "{other} does not get the blocks of a");
        assert_eq!(compress(other).await, (2, 0, 0), "{other} has blocks of its own");
    }
    let attribute = json!({"answer": "The tide.", "chunks": ["Something that only b has asked about."]});
    let attributed = async |key: &str| {
        let answer = json_of(&keyed.post(key, "/v1/attribute", &attribute).await);
        sources(&answer)
    };
    assert_eq!((attributed("b").await, attributed("b").await), ((0, 0, 1), (1, 0, 0)));
    assert_eq!(attributed("a").await, (0, 0, 1));
    // Responses of different tenants differ only in their ids and timings.
    let [mut of_a, mut of_b] = [
        json_of(&keyed.post("a", "/v1/compress", &good()).await),
        json_of(&keyed.post("b", "/v1/compress", &good()).await),
    ];
    for answer in [&mut of_a, &mut of_b] {
        let fields = answer.as_object_mut().expect("fields");
        fields.remove("id");
        fields.remove("timing_ms");
    }
    assert_eq!(of_a, of_b);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_does_not_wait_for_what_the_model_reads_for_another_tenant() {
    let gate = Arc::new(Gate::default());
    let model = double({
        let gate = Arc::clone(&gate);
        move |go_on| gate.pass(go_on)
    });
    let keyed = Arc::new(Keyed::start(&keys(), model, &registry_settings()).await);
    let ask = |key: &'static str, body: Value| {
        let keyed = Arc::clone(&keyed);
        tokio::spawn(async move { keyed.post(key, "/v1/compress", &body).await })
    };
    let arrived = || gate.arrived.load(Ordering::SeqCst);
    let first = ask("a", good());
    eventually("the model reads for a", async || arrived() == 1).await;
    let other = ask("b", good());
    // If the request of b joined that of a, the model would not be called again.
    eventually("the model reads the same chunks for b", async || arrived() == 2).await;
    // The model reads the own chunk of the third request once that request has joined the reading of the
    // other chunks.
    let same = ask("a2", with_own_chunk("third"));
    eventually("the request of a2 has joined and reads its own chunk", async || arrived() == 3).await;
    gate.open.store(true, Ordering::SeqCst);
    assert_eq!(sources(&json_of(&first.await.expect("no panic"))), (0, 0, 2));
    assert_eq!(sources(&json_of(&other.await.expect("no panic"))), (0, 0, 2));
    assert_eq!(
        sources(&json_of(&same.await.expect("no panic"))),
        (0, 2, 1),
        "requests of one tenant share a reading"
    );
    assert_eq!(arrived(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_one_tenant_has_registered_do_not_exist_for_another() {
    let keyed = keyed(&registry_settings()).await;
    json_of(&keyed.post("a", "/v1/chunks", &tides()).await);
    assert_eq!(json_of(&keyed.get("a2", "/v1/chunks/a").await)["text"], "The tide is at noon.");
    for other in ["b", "c"] {
        // For other tenants, responses about an id of a are those about an unknown id, byte for byte except
        // for the id.
        let same = async |method: &str, path: &str, body: &str| {
            let ask = async |id: &str| {
                let (path, body) = (path.replace("ID", id), body.replace("ID", id));
                let response = keyed.ask(other, (method, &path), body).await;
                (
                    response.status,
                    response.body.replace(&format!("\"{id}\""), "ID").replace(&format!("\"{id}\\"), "ID"),
                )
            };
            let (of_a, unknown) = (ask("a").await, ask("z").await);
            assert_eq!(of_a, unknown, "{other}: {method} {path}");
        };
        same("GET", "/v1/chunks/ID", "").await;
        same("DELETE", "/v1/chunks/ID", "").await;
        same("POST", "/v1/compress", "{\"query\": \"tide\", \"chunk_ids\": [\"ID\"]}").await;
        same("POST", "/v1/attribute", "{\"answer\": \"tide\", \"chunk_ids\": [\"ID\"]}").await;
        same("POST", "/v1/chunks/delete", "{\"ids\": [\"ID\"]}").await;
        assert_eq!(json_of(&keyed.get(other, "/v1/chunks").await)["chunks"], json!([]));
        assert_eq!(json_of(&keyed.get(other, "/v1/registry").await)["registered"], 0);
        for rank in ["bm25", "rc"] {
            let search = json!({"query": "tide moon", "rank": rank});
            assert_eq!(json_of(&keyed.post(other, "/v1/search", &search).await)["results"], json!([]));
        }
    }
    let wrong = keyed.post("b", "/v1/compress", &json!({"query": "tide", "chunk_ids": ["a"]})).await;
    check_error("an id of another tenant", &wrong, "422 chunk_unknown chunk_ids[0]", "\"a\"");
    // Tenants may use the same ids, and a change to one tenant's chunk does not touch another's.
    let own = json!({"chunks": [{"id": "a", "text": "Of b alone."}]});
    assert_eq!(json_of(&keyed.post("b", "/v1/chunks", &own).await)["chunks"][0]["status"], "created");
    assert_eq!(
        json_of(&keyed.ask("b", ("DELETE", "/v1/chunks/a"), "").await)["chunks"][0]["status"],
        "deleted"
    );
    assert_eq!(json_of(&keyed.get("a", "/v1/registry").await)["registered"], 2);
    let found =
        json_of(&keyed.post("a", "/v1/compress", &json!({"query": "tide", "chunk_ids": ["a", "b"]})).await);
    assert_eq!(sources(&found), (0, 0, 2), "no block of a was cached before");
}

#[tokio::test(flavor = "multi_thread")]
async fn search_scores_do_not_depend_on_the_texts_of_other_tenants() {
    let keyed = keyed(&registry_settings()).await;
    json_of(&keyed.post("b", "/v1/chunks", &tides()).await);
    let search = async || {
        let search = json!({"query": "tide noon water", "rank": "bm25"});
        json_of(&keyed.post("b", "/v1/search", &search).await)["results"].clone()
    };
    let before = search().await;
    assert_eq!(before.as_array().map(Vec::len), Some(2), "{before}");
    let many: Vec<String> = (0..10).map(|n| format!("tide water {n}, and the tide again")).collect();
    json_of(&keyed.post("a", "/v1/chunks", &json!({"chunks": many})).await);
    assert_eq!(search().await, before, "scores are the same to the last digit");
    let of_a = json_of(&keyed.post("a", "/v1/search", &json!({"query": "tide", "rank": "bm25"})).await);
    assert_eq!(of_a["results"].as_array().map(Vec::len), Some(10), "a finds its own chunks");
    // The limit of 20 chunks holds for each tenant alone.
    let more: Vec<String> = (0..12).map(|n| format!("more {n}")).collect();
    let full = json_of(&keyed.post("a", "/v1/chunks", &json!({"chunks": more})).await);
    assert_eq!(full["chunks"][11]["error"]["code"], "registry_full");
    let more = json_of(&keyed.post("b", "/v1/chunks", &json!({"chunks": ["one more"]})).await);
    assert_eq!(more["chunks"][0]["status"], "created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compression_of_one_tenant_is_unknown_to_another() {
    let keyed = keyed(&registry_settings()).await;
    let id = json_of(&keyed.post("a", "/v1/compress", &good()).await)["id"].clone();
    let known = json!({"answer": "The tide is at noon.", "compress_id": id});
    let never_used = json!({"answer": "The tide is at noon.", "compress_id": "cmp_0"});
    for other in ["b", "c"] {
        let (theirs, unknown) = (
            keyed.post(other, "/v1/attribute", &known).await,
            keyed.post(other, "/v1/attribute", &never_used).await,
        );
        check_error(other, &theirs, "404 id_unknown compress_id", "this daemon did not give it");
        assert_eq!(theirs.body, unknown.body);
    }
    json_of(&keyed.post("a2", "/v1/attribute", &known).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn shortened_originals_are_returned_to_their_tenant_only() {
    let keyed = keyed(&registry_settings()).await;
    let result = "The tide is at noon. The moon is far. Water is wet. Nobody knows why. ".repeat(5);
    let conversation = json!({"model": "m", "config": {"mode": "ccr"}, "messages": [
        {"role": "user", "content": "When is the tide?"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]});
    let answer = json_of(&keyed.post("a", "/headroom/v1/compress", &conversation).await);
    let hash = answer["ccr_hashes"][0].as_str().unwrap_or_else(|| panic!("no text was shortened: {answer}"));
    let path = format!("/v1/retrieve/{hash}");
    for key in ["a", "a2"] {
        assert_eq!(json_of(&keyed.get(key, &path).await)["original_content"], result);
    }
    for other in ["b", "c"] {
        let (theirs, nobodys) =
            (keyed.get(other, &path).await, keyed.get(other, "/v1/retrieve/000000000000000000000000").await);
        check_error(other, &theirs, "404 id_unknown -", "");
        assert_eq!(theirs.body, nobodys.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_read_ahead_for_the_tenant_that_registered_them() {
    let keyed = keyed(&registry_settings()).await;
    keyed.daemon.tenants.read_ahead(keyed.daemon.service.admission.clone()).expect("threads start");
    for key in ["a", "b"] {
        json_of(&keyed.post(key, "/v1/chunks", &tides()).await);
    }
    let named = json!({"query": "tide", "chunk_ids": ["a", "b"]});
    for key in ["a", "b"] {
        eventually("all chunks are read ahead", async || {
            json_of(&keyed.get(key, "/v1/registry").await)["queued"] == 0
        })
        .await;
        assert_eq!(sources(&json_of(&keyed.post(key, "/v1/compress", &named).await)), (2, 0, 0), "{key}");
    }
    // Another tenant sends the same texts and has not registered them.
    let same = json!({"query": "tide", "chunks": tides()["chunks"].clone()});
    assert_eq!(sources(&json_of(&keyed.post("c", "/v1/compress", &same).await)), (0, 0, 2));
    keyed.daemon.tenants.stop_reading_ahead();
    keyed.daemon.tenants.close();
}

#[test]
fn each_tenant_has_its_chunks_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = RegistrySettings { dir: folder.path().join("registry"), ..registry_settings() };
    let run = |test: &dyn Fn(&tokio::runtime::Runtime, &Keyed)| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
        let keyed = runtime.block_on(keyed(&registry));
        test(&runtime, &keyed);
        // Registries close with the service. Their directories are free once all threads have ended.
        runtime.block_on(async { drop(keyed) });
        drop(runtime);
    };
    run(&|runtime, keyed| {
        runtime.block_on(async {
            json_of(&keyed.post("a", "/v1/chunks", &tides()).await);
            json_of(&keyed.post("c", "/v1/chunks", &json!({"chunks": [{"id": "c", "text": "Of c."}]})).await);
        });
    });
    assert!(registry.dir.join("tenants/a/meta.json").exists(), "tenant a has a directory of its own");
    assert!(
        registry.dir.join("meta.json").exists(),
        "the default tenant has the directory of daemons without keys"
    );
    run(&|runtime, keyed| {
        let status =
            |key: &str, id: &str| runtime.block_on(keyed.get(key, &format!("/v1/chunks/{id}"))).status;
        assert_eq!([status("a", "a"), status("a", "c")], [200, 404]);
        assert_eq!([status("b", "a"), status("b", "c")], [404, 404]);
        assert_eq!([status("c", "a"), status("c", "c")], [404, 200]);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_registry_affects_its_own_tenant_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = RegistrySettings { dir: folder.path().join("registry"), ..registry_settings() };
    let damaged = registry.dir.join("tenants/a");
    std::fs::create_dir_all(&damaged).expect("made");
    std::fs::write(damaged.join("segment.idx"), "?").expect("written");
    let keyed = keyed(&registry).await;
    for what in [("GET", "/v1/chunks/a"), ("GET", "/v1/registry")] {
        let refused = keyed.ask("a", what, "").await;
        check_error("a damaged registry", &refused, "500 storage_failed -", "the daemon's log says why");
        assert!(!refused.body.contains("tenants/a"), "{}", refused.body);
    }
    assert_eq!(sources(&json_of(&keyed.post("a", "/v1/compress", &good()).await)), (0, 0, 2));
    json_of(&keyed.post("b", "/v1/chunks", &tides()).await);
    assert!(damaged.join("segment.idx").exists(), "the damaged registry was replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_without_a_key_are_closed_to_make_space_for_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let registry = RegistrySettings { dir: folder.path().join("registry"), ..registry_settings() };
    let keyed = Keyed::start(&keys(), scripted(), &registry).await;
    json_of(&keyed.post("a", "/v1/chunks", &tides()).await);
    let tenants = &keyed.daemon.tenants;
    let tenant = |name: &str| Tenant::new(name).expect("a name");
    let named = |names: &[&str]| names.iter().map(|name| tenant(name)).collect();
    tenants.open(&named(&["b", "d"]));
    assert!(tenants.get(&tenant("a")).is_some(), "three tenants fit");
    tenants.open(&named(&["b", "d", "e"]));
    assert!(tenants.get(&tenant("a")).is_none());
    for there in ["", "b", "d", "e"] {
        assert!(tenants.get(&tenant(there)).is_some(), "{there}");
    }
    tenants.open(&named(&["a", "b"]));
    eventually("the registry of a is open again", async || {
        let tenant = tenants.get(&tenant("a")).expect("tenant a is open again");
        tenant.registry().is_ok_and(|registry| registry.progress().registered == 2)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_belong_to_one_tenant() {
    let keyed = keyed(&registry_settings()).await;
    let text =
        "Water is wet. The tide is at noon. The moon is far. Ships are slow. Gulls are loud. ".repeat(5);
    let messages =
        json!([{"role": "user", "content": "When is the tide?"}, {"role": "tool", "content": text}]);
    let body = json!({"messages": messages, "config": {"session_id": "s"}});
    let replayed = async |key: &str| {
        let answer = json_of(&keyed.post(key, "/headroom/v1/compress", &body).await);
        answer["session"]["cached_prefix_replayed"] == true
    };
    assert!(!replayed("a").await);
    assert!(replayed("a2").await, "keys of one tenant share its sessions");
    for other in ["b", "c"] {
        assert!(!replayed(other).await, "{other} has sessions of its own");
    }
}

/// Nothing of a deleted chunk is left in what the daemon can answer with, and a deleted tenant begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_chunks_and_tenants_leave_nothing_behind() {
    let keyed = keyed(&registry_settings()).await;

    let register = json!({"chunks": [
        {"id": "z", "text": "The zebra is at noon."},
        {"id": "t", "text": "The tide is at noon."},
    ]});
    for key in ["a", "b"] {
        assert_eq!(keyed.post(key, "/v1/chunks", &register).await.status, 200);
    }
    let compress = json!({"query": "When is the zebra?", "chunk_ids": ["z", "t"]});
    let compressed = async |key: &str| json_of(&keyed.post(key, "/v1/compress", &compress).await);
    let [of_a, of_b] = [compressed("a").await, compressed("b").await];
    let attribute = |answer: &Value| json!({"answer": "The zebra is at noon.", "compress_id": answer["id"]});
    assert_eq!(keyed.post("b", "/v1/attribute", &attribute(&of_b)).await.status, 200);
    let cached = |answer: &Value| answer["blocks"]["memory"].as_u64().expect("a count");
    assert_eq!(cached(&compressed("b").await), 2);
    assert_eq!(keyed.post("b", "/v1/chunks/delete", &json!({"ids": ["z"]})).await.status, 200);
    let refused = keyed.post("b", "/v1/attribute", &attribute(&of_b)).await;
    check_error("a recent compression with a deleted chunk", &refused, "404 id_unknown compress_id", "");
    let given =
        json!({"query": "When is the zebra?", "chunks": [{"id": "z", "text": "The zebra is at noon."}]});
    let answer = json_of(&keyed.post("b", "/v1/compress", &given).await);
    assert_eq!(cached(&answer), 0, "its block is gone: {}", answer["blocks"]);
    // Deleting a tenant: only on this machine, which the tests are on.
    let delete = async |name: &str| ask_with(keyed.daemon.admin, ("DELETE", name), &[], "").await;
    for header in
        ["forwarded: for=203.0.113.1", "via: 1.1 proxy", "X-Forwarded-For: ::1", "x-real-ip: 203.0.113.1"]
    {
        let sent = ask_with(keyed.daemon.admin, ("DELETE", "/admin/tenants/b"), &[header], "").await;
        assert_eq!(sent.status, 403, "{header}");
    }
    let deleted = delete("/admin/tenants/b").await.json();
    assert_eq!((&deleted["tenant"], &deleted["chunks"]), (&json!("b"), &json!(1)), "{deleted}");
    assert!(deleted["blocks"].as_u64().is_some_and(|blocks| blocks >= 2), "{deleted}");
    assert_eq!(json_of(&keyed.get("b", "/v1/chunks").await)["chunks"], json!([]));
    assert_eq!(cached(&json_of(&keyed.post("b", "/v1/compress", &given).await)), 0);
    let again = delete("/admin/tenants/b").await.json();
    assert_eq!((&again["chunks"], &again["originals"]), (&json!(0), &json!(0)));
    // The other tenant has everything.
    assert_eq!(keyed.post("a", "/v1/attribute", &attribute(&of_a)).await.status, 200);
    assert_eq!(cached(&compressed("a").await), 2);
    let invalid = delete("/admin/tenants/Team%20A").await;
    check_error("a name that no tenant has", &invalid, "422 invalid_value name", "Team A");
    let unknown = delete("/admin/tenants/nobody").await;
    check_error("a tenant without data", &unknown, "404 id_unknown name", "nobody");
}
