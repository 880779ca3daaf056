//! Which hosts and web pages may send requests to a daemon without keys, on both listeners.

use serde_json::json;
use thresher::http::OriginPolicy;
use thresher_core::kv::store::KvStore;

use crate::support::wire::{Response, ask_with, get, parse};
use crate::{Daemon, assert_good, daemon, good, pipeline_of, registry_settings, scripted, serve, service};

/// Sends a request with this `Host` and these headers to the public listener.
async fn ask(daemon: &Daemon, host: &str, what: (&str, &str), headers: &str, body: &str) -> Response {
    raw(daemon.http, host, what, headers, body).await
}

/// Sends a request with this `Host` and these headers to any listener.
async fn raw(
    address: std::net::SocketAddr,
    host: &str,
    (method, path): (&str, &str),
    headers: &str,
    body: &str,
) -> Response {
    let length = body.len();
    let message = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    send_raw(address, &message).await
}

/// Sends a message as it is and reads the response until the daemon closes the connection.
async fn send_raw(address: std::net::SocketAddr, message: &str) -> Response {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the daemon listens");
    stream.write_all(message.as_bytes()).await.expect("the daemon reads");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.expect("a response");
    parse(&String::from_utf8(response).expect("a response in UTF-8"))
}

#[track_caller]
fn assert_refused(case: &str, response: &Response, code: &str) {
    let body = response.json();
    let found = if body["error"].is_string() { &body["code"] } else { &body["error"]["code"] };
    assert_eq!(found, code, "{case}: {body}");
    let status = if code == "content_type_unsupported" { 415 } else { 403 };
    assert_eq!(response.status, status, "{case}");
    assert_eq!(response.header("access-control-allow-origin"), None, "{case}");
}

const JSON: &str = "content-type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_can_read_and_change_nothing() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let body = json!({"chunks": [{"id": "mine", "text": "The tide is at noon."}]}).to_string();
    let registered = ask(&daemon, "localhost", ("POST", "/v1/chunks"), JSON, &body).await;
    assert_eq!(registered.status, 200, "{}", registered.body);
    let foreign = json!({"chunks": [{"id": "theirs", "text": "Planted."}]}).to_string();
    let table = [
        ("DNS rebinding", "evil.example", "", "origin_not_allowed"),
        ("DNS rebinding with a port", "evil.example:8080", "", "origin_not_allowed"),
        ("the address of any interface", "0.0.0.0:8080", "", "origin_not_allowed"),
        ("a foreign origin", "localhost", "origin: http://evil.example\r\n", "origin_not_allowed"),
        ("the null origin of a sandboxed page", "localhost", "origin: null\r\n", "origin_not_allowed"),
        ("no origin, but cross-site", "localhost", "sec-fetch-site: cross-site\r\n", "origin_not_allowed"),
    ];
    let requests = [
        (("GET", "/v1/chunks"), ""),
        (("GET", "/v1/chunks/mine"), ""),
        (("POST", "/v1/chunks"), &*foreign),
        (("DELETE", "/v1/chunks/mine"), ""),
        (("POST", "/v1/chunks/delete"), "{\"ids\": [\"mine\"]}"),
        (("POST", "/v1/compress"), "{"),
        (("POST", "/v1/chat/completions"), "{}"),
        (("POST", "/mcp"), "{}"),
        (("GET", "/openapi.json"), ""),
        (("GET", "/no/such/path"), ""),
    ];
    for (case, host, headers, code) in table {
        for (what, body) in requests {
            let response = ask(&daemon, host, what, &format!("{JSON}{headers}"), body).await;
            assert_refused(&format!("{case} {what:?}"), &response, code);
        }
        for path in ["/metrics", "/readyz", "/livez"] {
            let response = raw(daemon.admin, host, ("GET", path), headers, "").await;
            assert_refused(&format!("{case} {path}"), &response, code);
        }
    }
    let page = get(daemon.http, "/v1/chunks").await.json();
    let ids: Vec<_> = page["chunks"].as_array().expect("a page").iter().map(|chunk| &chunk["id"]).collect();
    assert_eq!(ids, ["mine"]);
    for host in ["localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:8080"] {
        assert_good(host, &ask(&daemon, host, ("POST", "/v1/compress"), JSON, &good().to_string()).await);
        assert_eq!(raw(daemon.admin, host, ("GET", "/livez"), "", "").await.status, 200, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_must_have_one_host_and_at_most_one_origin() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let table = [
        ("no host", "", "origin_not_allowed"),
        ("an empty host", "host:\r\n", "origin_not_allowed"),
        ("a local host and another", "host: localhost\r\nhost: evil.example\r\n", "origin_not_allowed"),
        ("another host and a local one", "host: evil.example\r\nhost: localhost\r\n", "origin_not_allowed"),
        ("the same host twice", "host: localhost\r\nhost: localhost\r\n", "origin_not_allowed"),
        ("a port out of range", "host: localhost:99999\r\n", "origin_not_allowed"),
        ("a port in letters", "host: localhost:http\r\n", "origin_not_allowed"),
        (
            "two origins",
            "host: localhost\r\norigin: http://localhost:3000\r\norigin: http://evil.example\r\n",
            "origin_not_allowed",
        ),
        (
            "an origin twice",
            "host: localhost\r\norigin: http://localhost:3000\r\norigin: http://localhost:3000\r\n",
            "origin_not_allowed",
        ),
    ];
    let listeners = [(daemon.http, "/v1/chunks"), (daemon.admin, "/livez")];
    for (case, headers, code) in table {
        for (address, path) in listeners {
            let message = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
            assert_refused(&format!("{case} {path}"), &send_raw(address, &message).await, code);
        }
    }
    let absolute = "GET http://localhost/v1/chunks HTTP/1.1\r\nconnection: close\r\n\r\n";
    assert_refused(
        "a host only in the request line",
        &send_raw(daemon.http, absolute).await,
        "origin_not_allowed",
    );
    // Only the admin listener accepts HTTP/1.0 without a host, for probes.
    let old = send_raw(daemon.http, "GET /v1/chunks HTTP/1.0\r\n\r\n").await;
    assert_refused("no host, in HTTP/1.0", &old, "origin_not_allowed");
    assert_eq!(
        send_raw(daemon.admin, "GET /livez HTTP/1.0\r\n\r\n").await.status,
        200,
        "a probe in HTTP/1.0"
    );
    for (address, path) in listeners {
        let message = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        assert_eq!(send_raw(address, &message).await.status, 200, "{path} in HTTP/1.0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_json_content_type_is_refused() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let kinds = [
        "",
        "content-type: text/plain",
        "content-type: application/x-www-form-urlencoded",
        "content-type: multipart/form-data",
    ];
    let paths = [
        "/v1/compress",
        "/v1/attribute",
        "/v1/chunks",
        "/v1/chunks/delete",
        "/v1/search",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/mcp",
    ];
    for path in paths {
        for kind in kinds {
            let header = if kind.is_empty() { String::new() } else { format!("{kind}\r\n") };
            let response = ask(&daemon, "localhost", ("POST", path), &header, &good().to_string()).await;
            assert_refused(&format!("{path} {kind}"), &response, "content_type_unsupported");
        }
    }
    for kind in ["Application/JSON; charset=utf-8", "application/vnd.api+json"] {
        let header = format!("content-type: {kind}\r\n");
        let response =
            ask(&daemon, "localhost", ("POST", "/v1/compress"), &header, &good().to_string()).await;
        assert_good(kind, &response);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_allowed_origin_may_send_requests_and_read_responses() {
    let pipeline = pipeline_of(scripted(), KvStore::without_tiers());
    let (mut service, tenants) = service(Some(pipeline), 4, 4, &registry_settings());
    service.origins = OriginPolicy::public(&[], &["https://app.example".to_owned()], false);
    let daemon = serve((service, tenants)).await;
    let page = "origin: https://app.example\r\nsec-fetch-site: cross-site\r\n";
    let preflight = format!(
        "{page}access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n"
    );
    let response = ask(&daemon, "localhost", ("OPTIONS", "/v1/compress"), &preflight, "").await;
    let header = |name: &str| response.header(name).unwrap_or("-").to_ascii_lowercase();
    assert_eq!((response.status, &*header("access-control-allow-origin")), (200, "https://app.example"));
    assert!(header("access-control-allow-methods").contains("post"));
    assert_eq!(header("access-control-allow-headers"), "content-type");
    let answer =
        ask(&daemon, "localhost", ("POST", "/v1/compress"), &format!("{JSON}{page}"), &good().to_string())
            .await;
    assert_good("a page of the allowed origin", &answer);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    // Responses to other pages, to preflights too, have no CORS headers.
    let foreign = preflight.replace("app.example", "evil.example");
    let response = ask(&daemon, "localhost", ("OPTIONS", "/v1/compress"), &foreign, "").await;
    assert_eq!(response.header("access-control-allow-origin"), None);
    let headers = ["origin: http://localhost:3000", "sec-fetch-site: same-site"];
    let local = ask_with(daemon.http, ("POST", "/v1/compress"), &headers, good().to_string()).await;
    assert_good("a page of a local origin", &local);
    assert_eq!(local.header("access-control-allow-origin"), None);
}
