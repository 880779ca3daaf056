//! Why files cannot be provided, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why the files of an item cannot be provided. Every message says what to do.
#[derive(Debug, Error)]
pub enum ProvisionError {
    #[error(
        "there is no {package} {version} for {platform}, only for {pinned}; build or install it yourself and set model.runtime_lib to \
         its shared library"
    )]
    Platform { package: String, version: String, platform: String, pinned: String },
    #[error(
        "cannot fetch {url}: {reason}; check the connection (and HTTPS_PROXY behind a proxy), name a mirror with --index (for a hub, HF_ENDPOINT), \
         or copy the files to this machine and give their folder with --from"
    )]
    Network { url: String, reason: String },
    #[error(
        "--index (PIP_INDEX_URL) is {index:?}, which is not an http or https URL such as {}",
        crate::PUBLIC_INDEX
    )]
    NotUrl { index: String },
    #[error(
        "{index} has no {file}; name another index with --index, or give a folder that has it with --from"
    )]
    NotOnIndex { index: String, file: String },
    #[error(
        "found neither {} nor the files of {}; on a machine of the same kind with a network, `thresher init --download-to` fetches them into one folder (with --gpu, if it is given here)",
        archive.display(), unpacked.display()
    )]
    NotInFolder { archive: PathBuf, unpacked: PathBuf },
    #[error(
        "{name} is not the file that it should be: its checksum is {found} and not {expected}; nothing of it was kept. Fetch it again; if it \
         differs again, the server, a proxy or the disk changes it: use another one"
    )]
    Checksum { name: String, expected: String, found: String },
    #[error("{0:?} names no model of a hub; write hf:ORGANIZATION/NAME, or hf:ORGANIZATION/NAME@REVISION")]
    NotModel(String),
    #[error("HF_ENDPOINT is {url:?}, which is not an http or https URL such as {}", crate::PUBLIC_HUB)]
    NotHub { url: String },
    #[error("HF_TOKEN would be sent to {url} in clear; give HF_ENDPOINT an https URL")]
    TokenInClear { url: String },
    #[error(
        "{hub} gives no model {model} (HTTP status {status}); check the name and the revision. For a private model, or one whose terms you \
         have accepted there, set HF_TOKEN"
    )]
    NotOnHub { hub: String, model: String, status: u16 },
    #[error(
        "{model} has no {missing}, which an export needs; choose another model, or convert it with transformers \
         (save_pretrained) and use `thresher export`"
    )]
    NotExportable { model: String, missing: &'static str },
    #[error("{model} has no {missing}; choose a classifier whose repository has an ONNX graph")]
    NotClassifier { model: String, missing: &'static str },
    #[error(
        "{model} has several graphs, and none is model.onnx: {names}. Fetch one to a folder, and name that with --verdict-from"
    )]
    SeveralGraphs { model: String, names: String },
    #[error(
        "found no files of {model} in {}; on a machine with a network, `thresher init --model hf:{model} --download-to` fetches them",
        folder.display()
    )]
    ModelNotInFolder { model: String, folder: PathBuf },
    #[error("cannot unpack {}: {reason}", path.display())]
    Archive { path: PathBuf, reason: String },
    #[error("cannot read or write {}: {source}{}", path.display(), advice(source))]
    File { path: PathBuf, source: io::Error },
}

impl ProvisionError {
    pub(crate) fn network(url: &str, reason: &dyn std::fmt::Display) -> Self {
        Self::Network { url: without_password(url), reason: reason.to_string() }
    }

    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free 400 MB (1.3 GB with --gpu) and run again: partial files were removed"
        }
        io::ErrorKind::PermissionDenied => {
            "; make it writable for this user, or choose another folder with --root"
        }
        _ => "",
    }
}

/// Returns a URL without the name and the password that it may hold. A text that is no URL is returned as it is.
pub fn without_password(url: &str) -> String {
    let Ok(mut shown) = url::Url::parse(url) else { return url.to_owned() };
    let _cannot = shown.set_username("");
    let _cannot = shown.set_password(None);
    shown.to_string()
}
