//! Downloads a wheel from a package index (the JSON API of PEP 691).

use std::fs::File;
use std::path::Path;

use serde::Deserialize;
use url::Url;

use crate::error::{ProvisionError, without_password};
use crate::http;
use crate::pins::{Pin, Wheel};

const LIST_TYPE: &str = "application/vnd.pypi.simple.v1+json";

/// The longest list of files that is read. Large packages have lists of a few megabytes.
const LIST_BYTES_MAX: u64 = 64 << 20;

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
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https");
    let base = Url::parse(&list).ok().filter(is_http);
    let base = base.ok_or_else(|| ProvisionError::NotUrl { index: without_password(index) })?;
    let agent = http::agent();
    let answer = agent.get(&list).header("accept", LIST_TYPE).call();
    let text = answer
        .and_then(|mut answer| answer.body_mut().with_config().limit(LIST_BYTES_MAX).read_to_vec())
        .map_err(|error| ProvisionError::network(&list, &error))?;
    let files: FileList = serde_json::from_slice(&text).map_err(|_| {
        ProvisionError::network(&list, &"the answer is not a list of files as JSON (PEP 691)")
    })?;
    let entry = files.files.into_iter().find(|entry| entry.filename == wheel.file);
    let entry = entry.ok_or_else(|| ProvisionError::NotOnIndex {
        index: without_password(index),
        file: wheel.file.clone(),
    })?;
    let mut url = base.join(&entry.url).map_err(|error| ProvisionError::network(&entry.url, &error))?;
    if url.origin() == base.origin() && url.username().is_empty() {
        // A URL that can have a host can have both.
        let _cannot = url.set_username(base.username());
        let _cannot = url.set_password(base.password());
    }

    let request = agent.get(url.as_str()).config().timeout_recv_body(Some(http::DOWNLOAD_MAX)).build();
    let answer = request.call().map_err(|error| ProvisionError::network(url.as_str(), &error))?;
    let file = File::create_new(path).map_err(|source| ProvisionError::file(path, source))?;
    // A longer file is not the pinned one. One byte more is read, so that its checksum differs.
    let from = (url.as_str(), wheel.bytes + 1);
    http::write(answer.into_body(), from, (path, file), &|done| progress(done.min(wheel.bytes), wheel.bytes))
}
