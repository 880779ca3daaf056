//! The page at `/`: its files on both listeners, without a key and after a link on another site.

use std::sync::Arc;

use thresher_core::kv::store::KvStore;

use crate::keys::{Keyed, entry};
use crate::support::wire::{ask_with, get};
use crate::{daemon, pipeline_of, registry_settings, scripted, serve, service};

#[tokio::test(flavor = "multi_thread")]
async fn both_listeners_serve_the_page_without_a_key() {
    let keyed = Keyed::start(&entry("good", ""), scripted(), &registry_settings()).await;
    for listener in [keyed.daemon.http, keyed.daemon.admin] {
        let page = get(listener, "/").await;
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        assert!(page.body.starts_with("<!doctype html>"), "{}", page.body);
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        // Every file that the document names is served; the policy allows no others.
        let named: Vec<&str> = page
            .body
            .split(['"', '\''])
            .filter(|name| name.contains("app.") || name.contains("favicon"))
            .collect();
        assert_eq!(named.len(), 3, "{named:?}");
        for name in named {
            let path = format!("/{}", name.trim_start_matches("./"));
            assert_eq!(get(listener, &path).await.status, 200, "{path}");
        }
    }
    assert_eq!(get(keyed.daemon.http, "/v1/models").await.status, 401);
    let posted = ask_with(keyed.daemon.http, ("POST", "/"), &[], "{}").await;
    assert_eq!((posted.status, posted.json()["error"]["code"].as_str()), (405, Some("method_not_allowed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_without_the_page_serves_none_of_its_files() {
    let (mut service, tenants) =
        service(Some(pipeline_of(scripted(), KvStore::without_tiers())), 4, 4, &registry_settings());
    Arc::make_mut(&mut service.settings).page = false;
    let daemon = serve((service, tenants)).await;
    for listener in [daemon.http, daemon.admin] {
        for path in ["/", "/app.js", "/app.css", "/favicon.svg"] {
            assert_eq!(get(listener, path).await.status, 404, "{path}");
        }
    }
    assert_eq!(get(daemon.http, "/v1/models").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let tag = get(daemon.http, "/app.js").await.header("etag").expect("a tag").to_owned();
    let check = async |header: &str, status: u16| {
        let answer = ask_with(daemon.http, ("GET", "/app.js"), &[header], "").await;
        assert_eq!((answer.status, answer.body.is_empty()), (status, status == 304), "{header}");
        assert_eq!(answer.header("etag"), Some(&*tag));
    };
    check(&format!("if-none-match: {tag}"), 304).await;
    check(&format!("if-none-match: \"other\", W/{tag}"), 304).await;
    check("if-none-match: \"other\"", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_on_another_site_leads_to_the_page_and_to_nothing_else() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let link = ["sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: document"];
    let frame = ["sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: iframe"];
    let fetch = ["sec-fetch-site: cross-site", "sec-fetch-mode: cors", "sec-fetch-dest: empty"];
    let form = [&link[..], &["origin: http://evil.example"]].concat();
    let table: [(&str, &str, &[&str], u16); 6] = [
        ("a link", "/", &link, 200),
        ("a link to data", "/v1/chunks", &link, 403),
        ("a frame", "/", &frame, 403),
        ("a script", "/", &fetch, 403),
        ("a form", "/", &form, 403),
        ("a script file", "/app.js", &["sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"], 403),
    ];
    for (case, path, headers, status) in table {
        for listener in [daemon.http, daemon.admin] {
            assert_eq!(ask_with(listener, ("GET", path), headers, "").await.status, status, "{case}");
        }
    }
    let rebound = [&link[..], &["host: evil.example"]].concat();
    assert_eq!(ask_with(daemon.http, ("GET", "/"), &rebound, "").await.status, 403, "several hosts");
}
