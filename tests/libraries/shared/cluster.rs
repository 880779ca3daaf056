//! A cluster: keys on all nodes, a node that dies, a replica that takes over, and slots that move.

use thresher_shared::{FieldChange, Shared, SharedSettings};

use super::login::LEAST;
use super::{bounded, connected, get, key, settings, store, value};
use crate::support::redis::{Server, available, cluster};
use crate::support::wait::eventually;

fn settings_of(servers: &[Server]) -> SharedSettings {
    let urls = servers.iter().map(Server::url).collect();
    SharedSettings { urls, cluster: true, ..settings("") }
}

async fn hits(shared: &Shared) -> usize {
    let keys: Vec<_> = (0..100).map(key).collect();
    let found = bounded(shared.get_many(&keys)).await;
    for (number, found) in (0..100).zip(&found) {
        assert!(found.as_ref().is_none_or(|found| *found == value(number)));
    }
    found.iter().flatten().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_node_dies_only_its_keys_are_misses() {
    if !available() {
        return;
    }
    let mut servers = cluster(3, 0);
    let shared = connected(&settings_of(&servers[..2])).await;
    store(&shared, 0..100).await;
    assert_eq!(hits(&shared).await, 100);
    for server in &servers {
        assert_ne!(server.cli(&["DBSIZE"]), "0", "every node has some keys");
    }
    let dead = servers[2].cli(&["DBSIZE"]).parse::<usize>().expect("a count");
    servers[2].kill();
    eventually("the breaker of the node opens", async || {
        hits(&shared).await;
        !shared.is_well()
    })
    .await;
    eventually("keys of the other nodes are hits", async || hits(&shared).await == 100 - dead).await;
    servers[2].up();
    eventually("the tier is connected to the node again", async || shared.is_well()).await;
    eventually("all keys are written and hits again", async || {
        store(&shared, 0..100).await;
        hits(&shared).await == 100
    })
    .await;

    servers[1].pause();
    eventually("the breaker of the node opens", async || {
        hits(&shared).await;
        !shared.is_well()
    })
    .await;
    eventually("keys of the other nodes are hits", async || hits(&shared).await > 0).await;
    servers[1].resume();
    eventually("all keys are hits again", async || hits(&shared).await == 100).await;

    servers.iter_mut().for_each(Server::kill);
    eventually("the breakers of all nodes open", async || hits(&shared).await == 0).await;
    servers.iter_mut().for_each(Server::up);
    eventually("all keys are written and hits after the restart", async || {
        store(&shared, 0..100).await;
        hits(&shared).await == 100
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_when_its_primary_dies() {
    if !available() {
        return;
    }
    let mut servers = cluster(3, 1);
    let shared = connected(&settings_of(&servers)).await;
    store(&shared, 0..100).await;
    let journal = shared.journal("chunks", 1000).expect("a name");
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"a", b"1")]).await.expect("a change");
    eventually("the replicas have all keys", async || {
        let sizes = servers.iter().map(|server| server.cli(&["DBSIZE"]).parse::<usize>().expect("a count"));
        sizes.sum::<usize>() == 2 * 102
    })
    .await;
    servers[0].kill();
    eventually("all keys are hits again", async || hits(&shared).await == 100).await;
    eventually("the journal accepts changes again", async || {
        journal.change(&[], &[(b"b", b"2")]).await.is_ok()
    })
    .await;
    assert_eq!(journal.scan_fields(None).await.expect("a page").fields.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_succeed_while_slots_move_between_nodes() {
    if !available() {
        return;
    }
    let servers = cluster(3, 0);
    let mut rights = vec!["ACL", "SETUSER", "thresher", "on", ">secret"];
    rights.extend(LEAST.split_whitespace());
    servers.iter().for_each(|server| assert_eq!(server.cli(&rights), "OK"));
    let login = servers[0].file("password", "secret");
    let user = SharedSettings {
        password_file: login,
        urls: [servers[0].url().replace("redis://", "redis://thresher@")].into_iter().collect(),
        ..settings_of(&servers[..1])
    };
    let shared = connected(&user).await;
    store(&shared, 0..100).await;
    let ids: Vec<String> = servers.iter().map(|server| server.cli(&["CLUSTER", "MYID"])).collect();
    let address = format!("127.0.0.1:{}", servers[0].port);
    let reader = tokio::spawn({
        let shared = shared.clone();
        async move {
            for _ in 0..100 {
                assert!(get(&shared, 1).await.is_none_or(|found| found == value(1)));
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
    });
    let moved = tokio::task::spawn_blocking(move || {
        let arguments =
            ["--cluster", "reshard", &address, "--cluster-from", &ids[0], "--cluster-to", &ids[1]];
        let all = ["--cluster-slots", "1000", "--cluster-yes", "--cluster-pipeline", "100"];
        let printed = servers[0].cli(&[arguments.as_slice(), &all].concat());
        (servers, printed)
    });
    let (servers, printed) = moved.await.expect("redis-cli runs");
    reader.await.expect("no call fails");
    eventually(&format!("all keys are hits after redis-cli printed {printed}"), async || {
        hits(&shared).await == 100
    })
    .await;
    let journal = shared.journal("chunks", 1000).expect("a name");
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"a", b"1")]).await.expect("a change");
    drop(servers);
}
