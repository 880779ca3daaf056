//! Downloads a model from a hub with the paths of huggingface.co: a list of the files of a revision, and the files, which may be redirected
//! to another host. A download that was stopped goes on where it ended.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use url::{Host, Url};

use crate::error::{self, ProvisionError};
use crate::{http, wheel};

const MAIN: &str = "main";

const LIST_BYTES_MAX: u64 = 16 << 20;

/// The largest file that is fetched. No model that can be exported has a larger one.
const FILE_BYTES_MAX: u64 = 64 << 30;

/// The weights in one file, and the list of their parts otherwise.
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// The list of the files in a folder, with their checksums.
const SNAPSHOT_FILE: &str = "hub.json";

/// The graph of a classifier on a hub.
const GRAPH: &str = "model.onnx";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The files that an export reads.
    Checkpoint,
    /// One ONNX graph, which is used as it is, and the files that describe it.
    Classifier,
}

/// The files that an export reads besides the weights.
const DESCRIPTIONS: [&str; 8] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "chat_template.jinja",
    "README.md",
    WEIGHTS_INDEX,
];

/// A model on a hub: `ORGANIZATION/NAME`, and its branch, tag or commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    repo: String,
    revision: String,
}

impl FromStr for HubModel {
    type Err = ProvisionError;

    /// Reads `ORGANIZATION/NAME` or `ORGANIZATION/NAME@REVISION`.
    fn from_str(text: &str) -> Result<Self, ProvisionError> {
        let (repo, revision) = text.split_once('@').unwrap_or((text, MAIN));
        // They become parts of a URL and of a path.
        let is_part = |part: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && part.len() <= 96 && !part.starts_with('.') && part.chars().all(is_plain)
        };
        match repo.split_once('/') {
            Some((organization, name))
                if is_part(organization) && is_part(name) && revision.split('/').all(is_part) =>
            {
                Ok(Self { repo: repo.to_owned(), revision: revision.to_owned() })
            }
            _ => Err(ProvisionError::NotModel(text.to_owned())),
        }
    }
}

impl std::fmt::Display for HubModel {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.repo)?;
        if self.revision == MAIN { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

impl HubModel {
    /// Its name without that of the organization.
    pub fn name(&self) -> &str {
        self.repo.rsplit('/').next().unwrap_or(&self.repo)
    }

    /// The model on the hub, as `ORGANIZATION/NAME`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// Its commit, if that is what was asked for.
    pub fn commit(&self) -> Option<&str> {
        let is_commit =
            self.revision.len() == 40 && self.revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_commit.then_some(&*self.revision)
    }

    pub fn folder(&self) -> String {
        self.repo.replace('/', "--")
    }
}

#[derive(Debug, Clone)]
pub enum HubSource<'a> {
    Hub(&'a Hub),
    /// A folder that [`Snapshot::fetch`] has filled.
    Folder(&'a Path),
}

#[derive(Clone)]
pub struct Hub {
    url: String,
    token: Option<String>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Hub").field("url", &error::without_password(&self.url)).finish_non_exhaustive()
    }
}

impl Hub {
    /// # Errors
    /// Fails if the text is no http or https URL, or if the token would be sent without encryption.
    pub fn new(url: &str, token: Option<String>) -> Result<Self, ProvisionError> {
        let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed else {
            return Err(ProvisionError::NotHub { url: error::without_password(url) });
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let is_local = match parsed.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if token.is_some() && parsed.scheme() == "http" && !is_local {
            return Err(ProvisionError::TokenInClear { url: error::without_password(url) });
        }
        Ok(Self { url: url.trim_end_matches('/').to_owned(), token })
    }

    /// Returns the error of a request: the hub says no to it, or does not answer.
    fn refusal(&self, repo: &str, revision: &str, url: &str, error: ureq::Error) -> ProvisionError {
        match error {
            ureq::Error::StatusCode(status @ (401 | 403 | 404)) => ProvisionError::NotOnHub {
                hub: error::without_password(&self.url),
                model: format!("{repo}@{revision}"),
                status,
            },
            other => ProvisionError::network(url, &other),
        }
    }

    fn get(&self, url: &str) -> ureq::RequestBuilder<ureq::typestate::WithoutBody> {
        let request = http::agent().get(url);
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }
}

/// The files of a commit that an export needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The model on the hub, as `ORGANIZATION/NAME`.
    pub repo: String,
    pub revision: String,
    /// The branch, tag or commit that was asked for.
    requested: String,
    files: Vec<ListedFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ListedFile {
    name: String,
    bytes: u64,
    checksum: Checksum,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Checksum {
    /// In hexadecimal, of the file.
    Sha256(String),
    /// In hexadecimal, of a Git object. The hub has no SHA-256 of small files.
    GitSha1(String),
}

/// What the hub says of a revision.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

impl Snapshot {
    /// Asks the hub which files a revision has, or reads it in a folder.
    ///
    /// # Errors
    /// Fails if the hub cannot be reached or has no such model, if the folder has none, or if a file is missing without which nothing can be
    /// exported.
    pub fn find(model: &HubModel, wanted: Wanted, source: &HubSource) -> Result<Self, ProvisionError> {
        match source {
            HubSource::Hub(hub) => Self::list(model, wanted, hub),
            HubSource::Folder(folder) => {
                let missing = || ProvisionError::ModelNotInFolder {
                    model: model.repo.clone(),
                    folder: (*folder).to_owned(),
                };
                let list = wheel::open(&folder.join(SNAPSHOT_FILE)).map_err(|_| missing())?;
                let found: Self =
                    serde_json::from_reader(list.take(LIST_BYTES_MAX)).map_err(|_| missing())?;
                let is_wanted = [&found.revision, &found.requested].contains(&&model.revision);
                let are_files = found.files.iter().all(|file| wanted.is_needed(&file.name));
                if found.repo == model.repo && is_wanted && are_files { Ok(found) } else { Err(missing()) }
            }
        }
    }

    fn list(model: &HubModel, wanted: Wanted, hub: &Hub) -> Result<Self, ProvisionError> {
        let HubModel { repo, revision } = model;
        let url =
            format!("{}/api/models/{repo}/revision/{}?blobs=true", hub.url, revision.replace('/', "%2F"));
        let mut answer = hub.get(&url).call().map_err(|error| hub.refusal(repo, revision, &url, error))?;
        let text = answer.body_mut().with_config().limit(LIST_BYTES_MAX).read_to_vec();
        let text = text.map_err(|error| ProvisionError::network(&url, &error))?;
        let malformed = || ProvisionError::network(&url, &"the answer is not what a hub says of a model");
        let answer: Answer = serde_json::from_slice(&text).map_err(|_| malformed())?;
        if answer.sha.is_empty() || !answer.sha.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let file = |sibling: Sibling| {
            let checksum = match (sibling.lfs, sibling.blob_id) {
                (Some(lfs), _) => Checksum::Sha256(lfs.sha256),
                (None, Some(blob)) => Checksum::GitSha1(blob),
                (None, None) => return None,
            };
            Some(ListedFile { name: sibling.rfilename, bytes: sibling.size?, checksum })
        };
        let siblings = answer.siblings.into_iter().filter(|sibling| wanted.is_needed(&sibling.rfilename));
        let files: Option<Vec<ListedFile>> = siblings.map(file).collect();
        let mut files = files.ok_or_else(malformed)?;
        // Some repositories have the weights twice: whole, and in parts.
        if files.iter().any(|file| file.name == WEIGHTS) {
            files.retain(|file| !is_weights(&file.name) || file.name == WEIGHTS);
            files.retain(|file| file.name != WEIGHTS_INDEX);
        }
        let is_main = |file: &ListedFile| is_graph(&file.name) && file.name.ends_with(GRAPH);
        if files.iter().any(is_main) {
            files.retain(|file| !is_graph(&file.name) || is_main(file));
        }
        if files.iter().filter(|file| is_graph(&file.name)).count() > 1 {
            let names: Vec<&str> =
                files.iter().map(|file| &*file.name).filter(|name| is_graph(name)).collect();
            return Err(ProvisionError::SeveralGraphs { model: model.to_string(), names: names.join(", ") });
        }
        if files.iter().any(|file| file.bytes > FILE_BYTES_MAX) {
            return Err(malformed());
        }
        let found = Self { repo: repo.clone(), revision: answer.sha, requested: revision.clone(), files };
        let has = |is_it: &dyn Fn(&str) -> bool| found.files.iter().any(|file| is_it(&file.name));
        let model_file = match wanted {
            Wanted::Checkpoint => (WEIGHTS, has(&is_weights)),
            Wanted::Classifier => ("onnx/model.onnx", has(&is_graph)),
        };
        let missing = [
            ("config.json", has(&|name| name == "config.json")),
            ("tokenizer.json", has(&|name| name == "tokenizer.json")),
            model_file,
        ];
        match missing.into_iter().find(|(_, is_there)| !is_there) {
            Some((missing, _)) => {
                let model = format!("{repo}@{revision}");
                Err(match wanted {
                    Wanted::Checkpoint => ProvisionError::NotExportable { model, missing },
                    Wanted::Classifier => ProvisionError::NotClassifier { model, missing },
                })
            }
            None => Ok(found),
        }
    }

    /// Makes the files in a folder complete. What an earlier run has fetched of them is kept. `progress` is called with the bytes that are
    /// there, and with the bytes of all files.
    ///
    /// # Errors
    /// Fails if a file cannot be fetched, read or written, or has another checksum.
    pub fn fetch(
        &self,
        source: &HubSource,
        target: &Path,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ProvisionError> {
        fs::create_dir_all(target).map_err(|source| ProvisionError::file(target, source))?;
        let all = self.files.iter().map(|file| file.bytes).sum();
        let mut done = 0;
        for file in &self.files {
            let path = target.join(&file.name);
            let folder = path.parent().unwrap_or(target);
            fs::create_dir_all(folder).map_err(|source| ProvisionError::file(folder, source))?;
            if !file.is_complete(&path)? {
                match source {
                    HubSource::Hub(hub) => {
                        self.download(file, hub, target, &|of_file| {
                            progress((done + of_file).min(all), all)
                        })?;
                    }
                    HubSource::Folder(folder) => {
                        let from = folder.join(&file.name);
                        file.check(&from)?;
                        fs::copy(&from, &path).map_err(|source| ProvisionError::file(&from, source))?;
                    }
                }
            }
            done += file.bytes;
            progress(done, all);
        }
        let path = target.join(SNAPSHOT_FILE);
        let text = serde_json::to_vec_pretty(self).expect("a list of files serialises");
        fs::write(&path, text).map_err(|source| ProvisionError::file(&path, source))
    }

    fn download(
        &self,
        file: &ListedFile,
        hub: &Hub,
        target: &Path,
        progress: &dyn Fn(u64),
    ) -> Result<(), ProvisionError> {
        let url = format!("{}/{}/resolve/{}/{}", hub.url, self.repo, self.revision, file.name);
        let partial = target.join(format!("{}.partial", file.name));
        let cannot = |source| ProvisionError::file(&partial, source);
        let length = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        if file.is_complete(&partial)? {
            return fs::rename(&partial, target.join(&file.name)).map_err(cannot);
        }
        // A longer one has another content.
        let begun = Some(length(&partial)).filter(|&begun| begun < file.bytes).unwrap_or_default();
        let request = hub.get(&url).config().timeout_recv_body(Some(http::DOWNLOAD_MAX)).build();
        let request = if begun > 0 { request.header("range", format!("bytes={begun}-")) } else { request };
        let answer = request.call().map_err(|error| hub.refusal(&self.repo, &self.requested, &url, error))?;
        let goes_on = begun > 0 && answer.status() == 206;
        let begun = if goes_on { begun } else { 0 };
        let mut options = File::options();
        let options = options.create(true);
        let opened = if goes_on { options.append(true) } else { options.write(true).truncate(true) };
        let opened = opened.open(&partial).map_err(cannot)?;
        // One byte more than there should be is read, so that the checksum differs.
        let from = (url.as_str(), file.bytes - begun + 1);
        http::write(answer.into_body(), from, (&partial, opened), &|done| progress(begun + done))?;
        let found = length(&partial);
        if found < file.bytes {
            let reason = format!("it ended after {found} of {} bytes; run again to go on", file.bytes);
            return Err(ProvisionError::network(&url, &reason));
        }
        if let Err(error) = file.check(&partial) {
            fs::remove_file(&partial).map_err(cannot)?;
            return Err(error);
        }
        fs::rename(&partial, target.join(&file.name)).map_err(cannot)
    }
}

impl Wanted {
    /// Whether a file of this name is fetched. No name leads out of the folder.
    fn is_needed(self, name: &str) -> bool {
        match self {
            Self::Checkpoint => DESCRIPTIONS.contains(&name) || is_weights(name),
            Self::Classifier => DESCRIPTIONS[..3].contains(&name) || is_graph(name),
        }
    }
}

/// Whether a name is that of an ONNX graph, at the top or in the folder `onnx`.
fn is_graph(name: &str) -> bool {
    let stem = name.strip_prefix("onnx/").unwrap_or(name).strip_suffix(".onnx").unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !stem.is_empty() && !stem.starts_with('.') && stem.chars().all(is_plain)
}

/// Whether a name is that of the weights, or of one of their parts (`model-00001-of-00002.safetensors`).
fn is_weights(name: &str) -> bool {
    let Some(stem) = name.strip_prefix("model").and_then(|rest| rest.strip_suffix(".safetensors")) else {
        return false;
    };
    let is_number = |part: &str| part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    stem.is_empty()
        || stem
            .strip_prefix('-')
            .and_then(|rest| rest.split_once("-of-"))
            .is_some_and(|(part, parts)| is_number(part) && is_number(parts))
}

impl ListedFile {
    fn is_complete(&self, path: &Path) -> Result<bool, ProvisionError> {
        match self.check(path) {
            Ok(()) => Ok(true),
            Err(ProvisionError::Checksum { .. }) => Ok(false),
            Err(ProvisionError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn check(&self, path: &Path) -> Result<(), ProvisionError> {
        let cannot = |source| ProvisionError::file(path, source);
        let mut file = wheel::open(path).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        let (found, expected) = match &self.checksum {
            Checksum::Sha256(expected) => (hash(Sha256::new(), &mut file).map_err(cannot)?, expected),
            Checksum::GitSha1(expected) => {
                let object = Sha1::new_with_prefix(format!("blob {length}\0"));
                (hash(object, &mut file).map_err(cannot)?, expected)
            }
        };
        if found == *expected {
            return Ok(());
        }
        Err(ProvisionError::Checksum { name: self.name.clone(), expected: expected.clone(), found })
    }
}

fn hash(mut hash: impl Digest, file: &mut File) -> io::Result<String> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&buffer[..read]);
    }
}

#[cfg(test)]
#[path = "hub/tests.rs"]
mod tests;
