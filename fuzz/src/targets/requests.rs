//! Requests to the public listener: a path, a line's end, and a body. Every answer must be one that a client can do something about.

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use libfuzzer_sys::Corpus;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

struct Daemon {
    runtime: Runtime,
    router: Router,
    _folder: TempDir,
}

static DAEMON: LazyLock<Daemon> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let folder = crate::service::folder().expect("a folder");
    let router = {
        let _inside = runtime.enter();
        thresher::http::router(crate::service::service(&folder))
    };
    Daemon { runtime, router, _folder: folder }
});

pub fn run(data: &[u8]) -> Corpus {
    let end = data.iter().position(|&byte| byte == b'\n').unwrap_or(data.len());
    let (path, body) = (&data[..end], data.get(end + 1..).unwrap_or_default().to_vec());
    let Ok(path) = std::str::from_utf8(path) else { return Corpus::Reject };
    let request = Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    let Ok(request) = request.body(Body::from(body)) else { return Corpus::Reject };
    let Daemon { runtime, router, .. } = &*DAEMON;
    let status = runtime.block_on(async {
        let answer = router.clone().oneshot(request).await.expect("a router never fails");
        let status = answer.status();
        let _ = answer.into_body().collect().await;
        status
    });
    // 504 is said of work that is too slow, 502 of what goes on to an upstream: it is nobody.
    let is_expected =
        !status.is_server_error() || matches!(status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT);
    assert!(is_expected, "{status}");
    Corpus::Keep
}
