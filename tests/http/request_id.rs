//! Every answer has an id, which a client may choose.

use crate::support::wire::{ask_with, get};
use crate::{daemon, scripted};

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_an_id_that_the_client_may_choose() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    for path in ["/v1/models", "/nowhere", "/openapi.json", "/v1/compress"] {
        let (first, second) = (get(daemon.http, path).await, get(daemon.http, path).await);
        let id = first.header("x-request-id").unwrap_or_else(|| panic!("no id: {path}"));
        assert!(id.starts_with("req_"), "{path}: {id}");
        assert_ne!(Some(id), second.header("x-request-id"), "{path}");
    }
    for (given, is_kept) in [("trace-1.a_b:c", true), ("what is my balance?", false)] {
        let header = format!("x-request-id: {given}");
        let answer = ask_with(daemon.http, ("POST", "/v1/compress"), &[&header], "{}").await;
        assert_eq!(answer.header("x-request-id") == Some(given), is_kept, "{given}");
    }
}
