//! Row about requests that a page of another web site makes a browser send: DNS rebinding, cross-site requests, bodies that need no
//! permission to be sent.

use hyper::{Method, StatusCode};
use serde_json::json;

use super::Finding;
use super::daemon::{Daemon, Setup};
use super::upstream::{Script, Upstream};
use super::wire::Ask;
use crate::bench::client::Caller;

/// A chunk that has to be there at the end, and one that must not.
const KEPT: &str = "kept";
const PLANTED: &str = "planted";

const CHAT: &str = "/v1/chat/completions";

/// Row `hosts`.
pub async fn hosts(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let upstream = Upstream::start(Script::Answer).await?;
    let mut sandbox = setup.sandbox()?;
    sandbox.set("middleware.upstreams", upstream.setting());
    let daemon = sandbox.start().await?;
    let (public, admin) = (daemon.caller(), Caller::new(daemon.admin()));
    let registered = json!({"chunks": [{"id": KEPT, "text": "The tide is at noon."}]}).to_string();
    let answer = Ask::post("/v1/chunks", registered).send(&public).await?;
    anyhow::ensure!(answer.status.is_success(), "no chunk can be registered: {}", answer.status);

    let origin = format!("http://{}", daemon.http());
    let foreign: [(&str, &[(&str, &str)]); 4] = [
        ("Host: evil.example", &[("host", "evil.example")]),
        ("Origin: http://evil.example", &[("origin", "http://evil.example")]),
        ("Origin: null", &[("origin", "null")]),
        ("Sec-Fetch-Site: cross-site", &[("sec-fetch-site", "cross-site")]),
    ];
    let mut findings = Vec::new();
    for (name, headers) in foreign {
        let let_in = let_in(&public, &requests(true), headers).await;
        findings.push(refused(name, "public", requests(true).len(), &let_in));
    }
    // What a form may send without asking first.
    let plain = [("content-type", "text/plain")];
    let bodies = requests(false);
    findings.push(refused("text/plain", "public", bodies.len(), &let_in(&public, &bodies, &plain).await));
    let operators = ["/metrics", "/readyz"].map(|path| (path.to_owned(), Ask::get(path)));
    for (name, headers) in foreign {
        let let_in = let_in(&admin, &operators, headers).await;
        findings.push(refused(name, "operators'", operators.len(), &let_in));
    }
    findings.push(Finding::at_most("requests that reached the upstream", upstream.take().len() as f64, 0.0));
    findings.push(Finding::at_most("chunks that were changed", changed(&public).await? as f64, 0.0));
    findings.push(own(&daemon, &public, &admin, &origin).await);
    Ok(findings)
}

/// Requests that read, work, change and spend; all of them, or those with a body alone.
fn requests(all: bool) -> Vec<(String, Ask<'static>)> {
    let compress = json!({"query": "When is the tide?", "chunks": ["The tide is at noon."]});
    let planted = json!({"chunks": [{"id": PLANTED, "text": "The tide is at midnight."}]});
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "When is the tide?"}]});
    let posts = [
        ("/v1/compress", compress),
        ("/v1/chunks", planted),
        ("/v1/chunks/delete", json!({"ids": [KEPT]})),
        (CHAT, chat),
    ];
    let mut requests: Vec<_> =
        posts.map(|(path, body)| (format!("POST {path}"), Ask::post(path, body.to_string()))).into();
    if all {
        requests.push(("GET /v1/chunks".to_owned(), Ask::get("/v1/chunks")));
        let delete = Ask { method: Method::DELETE, ..Ask::get("/v1/chunks/kept") };
        requests.push(("DELETE /v1/chunks/kept".to_owned(), delete));
    }
    requests
}

/// The requests that are not refused as they should be, with their status.
async fn let_in(
    caller: &Caller,
    requests: &[(String, Ask<'static>)],
    headers: &[(&str, &str)],
) -> Vec<String> {
    let mut let_in = Vec::new();
    for (name, ask) in requests {
        let Ask { method, path, body, .. } = ask.clone();
        let status = match (Ask { method, path, headers, body }).send(caller).await {
            Ok(answer) => answer.status,
            Err(error) => {
                let_in.push(format!("{name}: {error:#}"));
                continue;
            }
        };
        let refusals =
            [StatusCode::FORBIDDEN, StatusCode::UNSUPPORTED_MEDIA_TYPE, StatusCode::MISDIRECTED_REQUEST];
        if !refusals.contains(&status) {
            let_in.push(format!("{name}: {}", status.as_u16()));
        }
    }
    let_in
}

fn refused(name: &str, listener: &str, all: usize, let_in: &[String]) -> Finding {
    let what = format!("{name} at the {listener} listener: refused with 403, 415 or 421");
    Finding::at_least(what, (all - let_in.len()) as f64, all as f64).note(let_in.join(", "))
}

/// How many of the two chunks are not as they were; the one that should be there is put back.
async fn changed(caller: &Caller) -> anyhow::Result<usize> {
    let status = async |id: &str| {
        let path = format!("/v1/chunks/{id}");
        anyhow::Ok(Ask::get(&path).send(caller).await?.status)
    };
    let is_lost = status(KEPT).await? != StatusCode::OK;
    let is_planted = status(PLANTED).await? != StatusCode::NOT_FOUND;
    Ok(usize::from(is_lost) + usize::from(is_planted))
}

/// Names of this machine are let in, and so is a page of the daemon's own origin.
async fn own(daemon: &Daemon, public: &Caller, admin: &Caller, origin: &str) -> Finding {
    let mut refused = Vec::new();
    let mut all = 0;
    for (caller, port, path) in
        [(public, daemon.http().port(), "/v1/models"), (admin, daemon.admin().port(), "/livez")]
    {
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let host = format!("{host}:{port}");
            all += 1;
            match Ask::get(path).with(&[("host", &*host)]).send(caller).await {
                Ok(answer) if answer.status == StatusCode::OK => {}
                Ok(answer) => refused.push(format!("{host}{path}: {}", answer.status.as_u16())),
                Err(error) => refused.push(format!("{host}{path}: {error:#}")),
            }
        }
    }
    all += 1;
    match Ask::get("/v1/models")
        .with(&[("origin", origin), ("sec-fetch-site", "same-origin")])
        .send(public)
        .await
    {
        Ok(answer) if answer.status == StatusCode::OK => {}
        Ok(answer) => refused.push(format!("the daemon's own origin: {}", answer.status.as_u16())),
        Err(error) => refused.push(format!("the daemon's own origin: {error:#}")),
    }
    let let_in = (all - refused.len()) as f64;
    Finding::at_least("loopback names that are let in", let_in, f64::from(all as u32))
        .note(refused.join(", "))
}
