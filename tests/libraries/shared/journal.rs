//! Journals: a change is applied as a whole, and a follower gets every entry or an event that says why not.

use std::collections::BTreeMap;

use bytes::Bytes;
use thresher_shared::{Event, FieldChange, Follower, Journal, SharedError, SharedSettings};

use super::{connected, counted, metrics, settings};
use crate::support::redis::{Server, available, cluster};
use crate::support::wait::{WAIT_MAX, eventually};

/// The next event that is not a mark.
async fn next(follower: &mut Follower) -> Option<Event> {
    loop {
        let event = tokio::time::timeout(WAIT_MAX, follower.next()).await.expect("an event");
        if !matches!(&event, Some(Event::Entry(entry)) if entry.fields.is_empty()) {
            return event;
        }
    }
}

/// The values of the field `n` of the next `count` entries.
async fn numbers(follower: &mut Follower, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let Some(Event::Entry(entry)) = next(follower).await else { panic!("no entry after {found:?}") };
        assert_eq!(entry.fields[0].0, "n");
        found.push(String::from_utf8(entry.fields[0].1.to_vec()).expect("text"));
    }
    found
}

async fn append(journal: &Journal, number: usize) {
    let text = number.to_string();
    journal.change(&[], &[(b"n", text.as_bytes())]).await.expect("appended");
}

async fn scan(journal: &Journal) -> BTreeMap<Bytes, Bytes> {
    let (mut fields, mut cursor) = (BTreeMap::new(), None);
    loop {
        let page = journal.scan_fields(cursor).await.expect("a page");
        fields.extend(page.fields);
        match page.next {
            Some(next) => cursor = Some(next),
            None => return fields,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_and_its_entry_are_written_together() {
    if !available() {
        return;
    }
    metrics();
    let (server, nodes) = (Server::start(&[]), cluster(3, 0));
    let urls = nodes.iter().map(Server::url).collect();
    let tiers = [settings(&server.url()), SharedSettings { urls, cluster: true, ..settings("") }];
    for tier in tiers {
        let shared = connected(&tier).await;
        let journal = shared.journal("chunks", 10_000).expect("a name");
        assert_eq!(journal.last_id().await.expect("an answer"), None);
        let mut follower = journal.follow(None);
        let binary: &[u8] = b"\0\r\n\xff*3";
        let changes =
            [FieldChange::Put(b"a", b"1"), FieldChange::Put(binary, binary), FieldChange::Delete(b"c")];
        let first = journal.change(&changes, &[(b"n", b"1"), (binary, b"")]).await.expect("a change");
        let second = journal.change(&[FieldChange::Delete(b"a")], &[(b"n", b"2")]).await.expect("a change");
        assert!(second > first);
        assert_eq!(journal.last_id().await.expect("an answer"), Some(second));
        let Some(Event::Entry(entry)) = next(&mut follower).await else {
            panic!("the first entry is missing")
        };
        let expect =
            vec![(Bytes::from("n"), Bytes::from("1")), (Bytes::copy_from_slice(binary), Bytes::new())];
        assert_eq!(
            (entry.id < first, entry.fields),
            (true, expect),
            "the id of a change is that of the mark behind its entry"
        );
        assert_eq!(numbers(&mut follower, 1).await, ["2"]);
        assert_eq!(scan(&journal).await, BTreeMap::from([(Bytes::from(binary), Bytes::from(binary))]));

        let names: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let puts: Vec<_> = names.iter().map(|name| FieldChange::Put(name.as_bytes(), b"x")).collect();
        journal.change(&puts, &[]).await.expect_err("an entry needs fields");
        journal.change(&puts, &[(b"n", b"3")]).await.expect("a change");
        let offers =
            [FieldChange::Delete(b"7"), FieldChange::Offer(b"8", b"y"), FieldChange::Offer(b"b", b"y")];
        journal.change(&offers, &[(b"n", b"4")]).await.expect("a change");
        let fields = scan(&journal).await;
        assert_eq!((&*fields[b"8".as_slice()], &*fields[b"b".as_slice()]), (&b"x"[..], &b"y"[..]));
        assert_eq!(fields.len(), 1001);
        let mut late = journal.follow(Some(first));
        assert_eq!(numbers(&mut late, 1).await, ["2"], "only entries behind the given id");
        let other = shared.journal("other", 10_000).expect("a name");
        assert_eq!(scan(&other).await.len(), 0);
    }
    let shared = connected(&settings(&server.url())).await;
    for name in ["", "a b", "a}", "ä"] {
        assert!(matches!(shared.journal(name, 1), Err(SharedError::Name(_))), "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_continues_after_the_server_restarts() {
    if !available() {
        return;
    }
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let shared = connected(&settings(&server.url())).await;
    let journal = shared.journal("chunks", 10_000).expect("a name");
    let mut follower = journal.follow(None);
    for number in 0..300 {
        append(&journal, number).await;
    }
    let expect = |range: std::ops::Range<usize>| range.map(|n| n.to_string()).collect::<Vec<_>>();
    assert_eq!(numbers(&mut follower, 300).await, expect(0..300));
    server.kill();
    eventually("a change fails because the server is down", async || {
        let error = journal.change(&[], &[(b"n", b"never")]).await.expect_err("no server");
        matches!(error, SharedError::Down)
    })
    .await;
    server.up();
    eventually("the tier is connected again", async || shared.is_well()).await;
    for number in 300..600 {
        append(&journal, number).await;
    }
    assert_eq!(numbers(&mut follower, 300).await, expect(300..600));
    let mut another = journal.follow(None);
    assert_eq!(numbers(&mut another, 600).await, expect(0..600));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_reports_missing_entries() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let shared = connected(&settings(&server.url())).await;
    let ends = async |mut follower: Follower, expect: Event| {
        let mut event = next(&mut follower).await;
        while let Some(Event::Entry(_)) = event {
            event = next(&mut follower).await;
        }
        assert_eq!(event, Some(expect));
        assert_eq!(next(&mut follower).await, None, "it is the last event");
    };

    let trimmed = shared.journal("trimmed", 100).expect("a name");
    append(&trimmed, 0).await;
    let first = trimmed.last_id().await.expect("an answer");
    for number in 1..1000 {
        append(&trimmed, number).await;
    }
    ends(trimmed.follow(first), Event::Trimmed).await;
    ends(trimmed.follow(None), Event::Trimmed).await;
    let mut follower = trimmed.follow(trimmed.last_id().await.expect("an answer"));
    append(&trimmed, 1000).await;
    assert_eq!(numbers(&mut follower, 1).await, ["1000"], "a follower that has read everything continues");

    server.cli(&["FLUSHALL"]);
    ends(follower, Event::Rewound).await;

    // The log as it is after a failover to a replica that did not have the last change, without and with a
    // newer change.
    for has_newer in [false, true] {
        let name = format!("rewound{has_newer}");
        let rewound = shared.journal(&name, 100).expect("a name");
        append(&rewound, 0).await;
        append(&rewound, 1).await;
        let mut follower = rewound.follow(None);
        assert_eq!(numbers(&mut follower, 2).await, ["0", "1"]);
        let mark = rewound.last_id().await.expect("an answer").expect("a mark").to_string();
        let script = "redis.call('XDEL', KEYS[1], ARGV[1]) \
                      if ARGV[2] == 'true' then redis.call('XADD', KEYS[1], '*', 'mark', '') end";
        let key = format!("thresher:{{j:{name}}}:log");
        server.cli(&["EVAL", script, "1", &key, &mark, &has_newer.to_string()]);
        ends(follower, Event::Rewound).await;
    }
    assert!(counted("journal", "lost") >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_reports_entries_of_other_programs_as_damaged() {
    if !available() {
        return;
    }
    let server = Server::start(&[]);
    let secret = server.file("secret", "secret");
    let shared = connected(&SharedSettings { secret_file: secret, ..settings(&server.url()) }).await;
    let journal = shared.journal("chunks", 100).expect("a name");
    let mut follower = journal.follow(None);
    journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"n", b"1")]).await.expect("a change");
    let keys = server.cli(&["KEYS", "*"]);
    let key = |end: &str| keys.lines().find(|key| key.ends_with(end)).expect("a key").to_owned();
    server.cli(&["XADD", &key("log"), "*", "n", "forged"]);
    server.cli(&["HSET", &key("now"), "b", "forged"]);
    assert_eq!(numbers(&mut follower, 1).await, ["1"]);
    assert_eq!(next(&mut follower).await, Some(Event::Damaged));
    append(&journal, 2).await;
    assert_eq!(numbers(&mut follower, 1).await, ["2"]);
    assert_eq!(scan(&journal).await, BTreeMap::from([(Bytes::from("a"), Bytes::from("1"))]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_value_that_is_put_for_a_field_wins() {
    if !available() {
        return;
    }
    let (server, nodes) = (Server::start(&[]), cluster(3, 0));
    let urls = nodes.iter().map(Server::url).collect();
    for tier in [settings(&server.url()), SharedSettings { urls, cluster: true, ..settings("") }] {
        let tiers = [connected(&tier).await, connected(&tier).await];
        let journals = [0, 1].map(|at| tiers[at].journal("chunks", 100).expect("a name"));
        let (one, two) =
            tokio::join!(journals[0].field_or_put(b"a", b"1"), journals[1].field_or_put(b"a", b"2"));
        let (one, two) = (one.expect("an answer"), two.expect("an answer"));
        assert_eq!(one, two);
        assert_eq!(journals[0].field_or_put(b"a", b"3").await.expect("an answer"), one);
        assert_eq!(scan(&journals[0]).await, BTreeMap::from([(Bytes::from("a"), one)]));
    }
    let shared = connected(&settings(&server.url())).await;
    let journal = shared.journal("chunks", 100).expect("a name");
    server.cli(&["HSET", "thresher:{j:chunks}:now", "a", "damaged"]);
    assert_eq!(journal.field_or_put(b"a", b"3").await.expect("an answer"), "3");
    assert_eq!(journal.field_or_put(b"a", b"4").await.expect("an answer"), "3");
    server.cli(&["FLUSHALL"]);
    assert_eq!(journal.field_or_put(b"a", b"4").await.expect("an answer"), "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_not_made_or_not_confirmed_is_an_error() {
    if !available() {
        return;
    }
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let shared = connected(&settings(&server.url())).await;
    let journal = shared.journal("chunks", 100).expect("a name");
    append(&journal, 0).await;
    let change = async || journal.change(&[FieldChange::Put(b"a", b"1")], &[(b"n", b"1")]).await;
    let refused = |error: SharedError, expect: &str| match error {
        SharedError::Refused { reason } => assert!(reason.contains(expect), "{reason}"),
        other => panic!("{other}"),
    };
    server.cli(&["CONFIG", "SET", "maxmemory", "1mb"]);
    refused(change().await.expect_err("the server is full"), "memory is full");
    assert_eq!(
        server.cli(&["EXISTS", "thresher:{j:chunks}:now"]),
        "0",
        "neither the change nor its entry was written"
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["SET", "thresher:{j:wrong}:log", "text"]);
    let wrong = shared.journal("wrong", 100).expect("a name");
    let expect = "thresher:{j:wrong}:log or thresher:{j:wrong}:now is another program's";
    refused(wrong.change(&[], &[(b"n", b"1")]).await.expect_err("the key holds a string"), expect);
    server.pause();
    let error = change().await.expect_err("the server is stopped");
    assert!(matches!(error, SharedError::Unconfirmed { .. }), "{error}");
    server.resume();
    eventually("changes succeed again", async || change().await.is_ok()).await;
}
