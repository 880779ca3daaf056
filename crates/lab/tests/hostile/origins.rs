//! The row about requests that a page of another web site makes a browser send: DNS rebinding, cross-site
//! requests, and bodies that need no CORS preflight.

use hyper::{Method, StatusCode};
use serde_json::json;

use crate::Finding;
use crate::clients::HttpRequest;
use crate::process::{DaemonProcess, Setup};
use thresher_lab::client::Caller;
use thresher_lab::upstream::{Script, Upstream};

/// Ids of a chunk that must exist at the end, and of one that must not.
const KEPT_ID: &str = "kept";
const PLANTED_ID: &str = "planted";

const CHAT: &str = "/v1/chat/completions";

/// Runs the row `hosts`.
pub async fn hosts(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let upstream = Upstream::start(Script::ShortAnswer).await?;
    let mut sandbox = setup.sandbox()?;
    sandbox.set("middleware.upstreams", upstream.setting());
    let daemon = sandbox.start().await?;
    let (public, admin) = (daemon.caller(), Caller::new(daemon.admin()));
    let registered = json!({"chunks": [{"id": KEPT_ID, "text": "The tide is at noon."}]}).to_string();
    let response = HttpRequest::post("/v1/chunks", registered).send(&public).await?;
    anyhow::ensure!(
        response.status.is_success(),
        "registering a chunk was answered with {}",
        response.status
    );

    let origin = format!("http://{}", daemon.http());
    let foreign: [(&str, &[(&str, &str)]); 4] = [
        ("Host: evil.example", &[("host", "evil.example")]),
        ("Origin: http://evil.example", &[("origin", "http://evil.example")]),
        ("Origin: null", &[("origin", "null")]),
        ("Sec-Fetch-Site: cross-site", &[("sec-fetch-site", "cross-site")]),
    ];
    let mut findings = Vec::new();
    for (name, headers) in foreign {
        let unrefused = unrefused_requests(&public, &requests(true), headers).await;
        findings.push(refused(name, "public", requests(true).len(), &unrefused));
    }
    // A content type that an HTML form can send without a CORS preflight.
    let plain = [("content-type", "text/plain")];
    let bodies = requests(false);
    findings.push(refused(
        "text/plain",
        "public",
        bodies.len(),
        &unrefused_requests(&public, &bodies, &plain).await,
    ));
    let admin_requests = ["/metrics", "/readyz"].map(|path| (path.to_owned(), HttpRequest::get(path)));
    for (name, headers) in foreign {
        let unrefused = unrefused_requests(&admin, &admin_requests, headers).await;
        findings.push(refused(name, "admin", admin_requests.len(), &unrefused));
    }
    findings.push(Finding::at_most(
        "requests that reached the upstream",
        upstream.take_requests().len() as f64,
        0.0,
    ));
    findings.push(Finding::at_most(
        "registered chunks that were changed",
        changed_chunks(&public).await? as f64,
        0.0,
    ));
    findings.push(loopback_and_own_origin(&daemon, &public, &admin, &origin).await);
    Ok(findings)
}

/// Returns requests that read, compute, change data and call an upstream: all of them, or only those with a
/// body.
fn requests(include_bodiless: bool) -> Vec<(String, HttpRequest<'static>)> {
    let compress = json!({"query": "When is the tide?", "chunks": ["The tide is at noon."]});
    let planted = json!({"chunks": [{"id": PLANTED_ID, "text": "The tide is at midnight."}]});
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "When is the tide?"}]});
    let posts = [
        ("/v1/compress", compress),
        ("/v1/chunks", planted),
        ("/v1/chunks/delete", json!({"ids": [KEPT_ID]})),
        (CHAT, chat),
    ];
    let mut requests: Vec<_> =
        posts.map(|(path, body)| (format!("POST {path}"), HttpRequest::post(path, body.to_string()))).into();
    if include_bodiless {
        requests.push(("GET /v1/chunks".to_owned(), HttpRequest::get("/v1/chunks")));
        let delete = HttpRequest { method: Method::DELETE, ..HttpRequest::get("/v1/chunks/kept") };
        requests.push(("DELETE /v1/chunks/kept".to_owned(), delete));
    }
    requests
}

/// Returns the requests that are not refused as they should be, with their status.
async fn unrefused_requests(
    caller: &Caller,
    requests: &[(String, HttpRequest<'static>)],
    headers: &[(&str, &str)],
) -> Vec<String> {
    let mut unrefused = Vec::new();
    for (name, request) in requests {
        let HttpRequest { method, path, body, .. } = request.clone();
        let status = match (HttpRequest { method, path, headers, body }).send(caller).await {
            Ok(response) => response.status,
            Err(error) => {
                unrefused.push(format!("{name}: {error:#}"));
                continue;
            }
        };
        let refusals =
            [StatusCode::FORBIDDEN, StatusCode::UNSUPPORTED_MEDIA_TYPE, StatusCode::MISDIRECTED_REQUEST];
        if !refusals.contains(&status) {
            unrefused.push(format!("{name}: {}", status.as_u16()));
        }
    }
    unrefused
}

fn refused(name: &str, listener: &str, count: usize, unrefused: &[String]) -> Finding {
    let aim = format!("{name} at the {listener} listener: refused with 403, 415 or 421");
    Finding::at_least(aim, (count - unrefused.len()) as f64, count as f64).note(unrefused.join(", "))
}

/// Returns how many of the two chunks are not in the expected state.
async fn changed_chunks(caller: &Caller) -> anyhow::Result<usize> {
    let status = async |id: &str| {
        let path = format!("/v1/chunks/{id}");
        anyhow::Ok(HttpRequest::get(&path).send(caller).await?.status)
    };
    let is_lost = status(KEPT_ID).await? != StatusCode::OK;
    let is_planted = status(PLANTED_ID).await? != StatusCode::NOT_FOUND;
    Ok(usize::from(is_lost) + usize::from(is_planted))
}

/// Checks that loopback host names and the daemon's own origin are accepted.
async fn loopback_and_own_origin(
    daemon: &DaemonProcess,
    public: &Caller,
    admin: &Caller,
    origin: &str,
) -> Finding {
    let mut refused = Vec::new();
    let mut count = 0;
    for (caller, port, path) in
        [(public, daemon.http().port(), "/v1/models"), (admin, daemon.admin().port(), "/livez")]
    {
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let host = format!("{host}:{port}");
            count += 1;
            match HttpRequest::get(path).with(&[("host", &*host)]).send(caller).await {
                Ok(response) if response.status == StatusCode::OK => {}
                Ok(response) => refused.push(format!("{host}{path}: {}", response.status.as_u16())),
                Err(error) => refused.push(format!("{host}{path}: {error:#}")),
            }
        }
    }
    count += 1;
    match HttpRequest::get("/v1/models")
        .with(&[("origin", origin), ("sec-fetch-site", "same-origin")])
        .send(public)
        .await
    {
        Ok(response) if response.status == StatusCode::OK => {}
        Ok(response) => refused.push(format!("the daemon's own origin: {}", response.status.as_u16())),
        Err(error) => refused.push(format!("the daemon's own origin: {error:#}")),
    }
    let accepted = (count - refused.len()) as f64;
    Finding::at_least("loopback names that are accepted", accepted, f64::from(count as u32))
        .note(refused.join(", "))
}
