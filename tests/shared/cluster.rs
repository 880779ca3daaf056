//! A cluster: keys on all nodes, a node that dies, slots that move.

use thresher_shared::{FieldChange, Shared, SharedSettings};

use crate::login::LEAST;
use crate::server::{Server, available, cluster};
use crate::{bounded, eventually, get, key, settings, store, value, well};

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
async fn a_node_that_dies_takes_only_its_keys_with_it() {
    if !available() {
        return;
    }
    let mut servers = cluster(3, 0);
    let shared = well(&settings_of(&servers[..2])).await;
    store(&shared, 0..100).await;
    assert_eq!(hits(&shared).await, 100);
    for server in &servers {
        assert_ne!(server.cli(&["DBSIZE"]), "0", "every node has some");
    }
    let dead = servers[2].cli(&["DBSIZE"]).parse::<usize>().expect("a count");
    servers[2].kill();
    eventually("its breaker opens", async || {
        hits(&shared).await;
        !shared.is_well()
    })
    .await;
    eventually("the others' keys are hits", async || hits(&shared).await == 100 - dead).await;
    servers[2].up();
    eventually("it is found again", async || shared.is_well()).await;
    eventually("it is written to again", async || {
        store(&shared, 0..100).await;
        hits(&shared).await == 100
    })
    .await;

    servers[1].signal("-STOP");
    eventually("its breaker opens", async || {
        hits(&shared).await;
        !shared.is_well()
    })
    .await;
    eventually("the others' keys are hits", async || hits(&shared).await > 0).await;
    servers[1].signal("-CONT");
    eventually("all are back", async || hits(&shared).await == 100).await;

    servers.iter_mut().for_each(Server::kill);
    eventually("all breakers open", async || hits(&shared).await == 0).await;
    servers.iter_mut().for_each(Server::up);
    eventually("all heal", async || {
        store(&shared, 0..100).await;
        hits(&shared).await == 100
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over() {
    if !available() {
        return;
    }
    let mut servers = cluster(3, 1);
    let shared = well(&settings_of(&servers)).await;
    store(&shared, 0..100).await;
    let journal = shared.journal("chunks", 1000).expect("a name");
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"a", b"1")]).await.expect("a change");
    eventually("replicas have all", async || {
        let sizes = servers.iter().map(|server| server.cli(&["DBSIZE"]).parse::<usize>().expect("a count"));
        sizes.sum::<usize>() == 2 * 102
    })
    .await;
    servers[0].kill();
    eventually("all keys are hits again", async || hits(&shared).await == 100).await;
    eventually("the journal goes on", async || journal.change(&[], &[(b"b", b"2")]).await.is_ok()).await;
    assert_eq!(journal.scan_fields(None).await.expect("a page").fields.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_may_move() {
    if !available() {
        return;
    }
    let servers = cluster(3, 0);
    let mut rights = vec!["ACL", "SETUSER", "thresher", "on", ">secret"];
    rights.extend(LEAST.split_whitespace());
    servers.iter().for_each(|server| assert_eq!(server.cli(&rights), "OK"));
    let login = servers[0].file("password", "secret");
    let user = SharedSettings {
        username: "thresher".to_owned(),
        password_file: login,
        ..settings_of(&servers[..1])
    };
    let shared = well(&user).await;
    store(&shared, 0..100).await;
    let ids: Vec<String> = servers.iter().map(|server| server.cli(&["CLUSTER", "MYID"])).collect();
    let place = format!("127.0.0.1:{}", servers[0].port);
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
        let arguments = ["--cluster", "reshard", &place, "--cluster-from", &ids[0], "--cluster-to", &ids[1]];
        let all = ["--cluster-slots", "1000", "--cluster-yes", "--cluster-pipeline", "100"];
        let said = servers[0].cli(&[arguments.as_slice(), &all].concat());
        (servers, said)
    });
    let (servers, said) = moved.await.expect("it runs");
    reader.await.expect("no call fails");
    eventually(&said, async || hits(&shared).await == 100).await;
    let journal = shared.journal("chunks", 1000).expect("a name");
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"a", b"1")]).await.expect("a change");
    drop(servers);
}
