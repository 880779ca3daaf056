//! Downloads a wheel from a package index (the JSON API of PEP 691).

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};
use url::Url;

use crate::error::ProvisionError;
use crate::pins::{Pin, Wheel};

/// The media type of a list of files in JSON.
const LIST_TYPE: &str = "application/vnd.pypi.simple.v1+json";

/// The longest list of files that is read. Large packages have lists of a few megabytes.
const LIST_BYTES_MAX: u64 = 64 << 20;

const CONNECT_MAX: Duration = Duration::from_secs(15);

/// For a list and the head of an answer; a wheel gets [`DOWNLOAD_MAX`].
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A slow line of 1 Mbit/s takes 35 minutes for the largest wheel.
const DOWNLOAD_MAX: Duration = Duration::from_secs(3600);

const BUFFER_BYTES: usize = 1 << 16;

#[derive(Deserialize)]
struct FileList {
    files: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    filename: String,
    url: String,
}

/// Writes the wheel to `path`. The caller checks it: only its length is bounded here.
pub fn download(
    index: &str,
    pin: &Pin,
    wheel: &Wheel,
    path: &Path,
    progress: &dyn Fn(u64, u64),
) -> Result<(), ProvisionError> {
    let list = format!("{}/{}/", index.trim_end_matches('/'), pin.package);
    let unreachable =
        |url: &str, reason: String| ProvisionError::Network { url: without_password(url), reason };
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https");
    let base = Url::parse(&list).ok().filter(is_http);
    let base = base.ok_or_else(|| ProvisionError::NotUrl { index: without_password(index) })?;
    let agent = agent();
    let answer = agent.get(&list).header("accept", LIST_TYPE).call();
    let text = answer
        .and_then(|mut answer| answer.body_mut().with_config().limit(LIST_BYTES_MAX).read_to_vec())
        .map_err(|error| unreachable(&list, error.to_string()))?;
    let files: FileList = serde_json::from_slice(&text)
        .map_err(|_| unreachable(&list, "the answer is not a list of files as JSON (PEP 691)".to_owned()))?;
    let entry = files.files.into_iter().find(|entry| entry.filename == wheel.file);
    let entry = entry.ok_or_else(|| ProvisionError::NotOnIndex {
        index: without_password(index),
        file: wheel.file.clone(),
    })?;
    let mut url = base.join(&entry.url).map_err(|error| unreachable(&entry.url, error.to_string()))?;
    if url.origin() == base.origin() && url.username().is_empty() {
        // A URL that can have a host can have both.
        let _cannot = url.set_username(base.username());
        let _cannot = url.set_password(base.password());
    }

    let failed = |reason: String| unreachable(url.as_str(), reason);
    let request = agent.get(url.as_str()).config().timeout_recv_body(Some(DOWNLOAD_MAX)).build();
    let answer = request.call().map_err(|error| failed(error.to_string()))?;
    // A longer file is not the pinned one. One byte more is read, so that its checksum differs.
    let mut body = answer.into_body().into_reader().take(wheel.bytes + 1);
    let mut file = File::create_new(path).map_err(|source| ProvisionError::file(path, source))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut done = 0;
    loop {
        let read = body.read(&mut buffer).map_err(|error| failed(error.to_string()))?;
        if read == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..read]).map_err(|source| ProvisionError::file(path, source))?;
        done += read as u64;
        progress(done.min(wheel.bytes), wheel.bytes);
    }
}

/// Returns a URL without the name and the password that it may hold. A text that is no URL is returned as it is.
fn without_password(url: &str) -> String {
    let Ok(mut shown) = Url::parse(url) else { return url.to_owned() };
    let _cannot = shown.set_username("");
    let _cannot = shown.set_password(None);
    shown.to_string()
}

/// Returns a client that trusts the system's certificate authorities, since a company's proxy has one of its own there, and uses the proxy
/// of `HTTPS_PROXY`.
fn agent() -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    Agent::config_builder()
        .tls_config(tls)
        .timeout_connect(Some(CONNECT_MAX))
        .timeout_recv_response(Some(ANSWER_MAX))
        .timeout_recv_body(Some(ANSWER_MAX))
        .user_agent(concat!("thresher/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}
