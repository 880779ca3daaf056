//! The real binary with the real model and folders of its own, gone when dropped.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tempfile::TempDir;

use crate::server::Server;
use crate::support::thresher;
use crate::wire::{Framing, Response, ask, ask_with, get, post};
use crate::{WAIT_MAX, eventually};

/// Where servers are, as settings name it.
#[derive(Clone)]
pub struct Place {
    urls: String,
    cluster: bool,
}

impl Place {
    /// One server, or a cluster.
    pub fn of(servers: &[Server]) -> Self {
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        Self { urls: urls.join(","), cluster: servers.len() > 1 }
    }
}

/// A sidecar: its folders, and its process while there is one.
pub struct Sidecar {
    place: Place,
    folder: TempDir,
    /// The file of its keys; empty: it has none.
    keys_file: String,
    process: Option<Process>,
}

struct Process {
    child: Child,
    http: SocketAddr,
    admin: SocketAddr,
    /// What it logs: shown where a test fails.
    said: Arc<Mutex<Vec<String>>>,
}

impl Sidecar {
    /// Starts one with empty folders.
    pub async fn start(place: &Place) -> Self {
        Self::start_with(place, "").await
    }

    /// The same, which asks for keys of this file.
    pub async fn start_with(place: &Place, keys_file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let keys_file = keys_file.to_owned();
        let mut sidecar = Self { place: place.clone(), folder, keys_file, process: None };
        sidecar.up().await;
        sidecar
    }

    /// Starts its process and waits until it is ready.
    pub async fn up(&mut self) {
        let folder = |name: &str| self.folder.path().join(name);
        let mut child = thresher(&["serve"])
            .env("THRESHER__HTTP__LISTEN", "127.0.0.1:0")
            .env("THRESHER__ADMIN__LISTEN", "127.0.0.1:0")
            .env("THRESHER__MODEL__WORKERS", "1")
            .env("THRESHER__BLOCKS__DIR", folder("kv"))
            .env("THRESHER__REGISTRY__DIR", folder("registry"))
            .env("THRESHER__ORIGINALS__DIR", folder("originals"))
            .env("THRESHER__ACCESS__KEYS_FILE", &self.keys_file)
            .env("THRESHER__SHARED__URLS", &self.place.urls)
            .env("THRESHER__SHARED__CLUSTER", self.place.cluster.to_string())
            // The machine may be busy: what is under test is what is found, not how soon.
            .env("THRESHER__SHARED__TIMEOUT_MS", "1000")
            .env("THRESHER__SHARED__BREAKER_PROBE_MS", "100")
            .env("THRESHER__ADMISSION__DEADLINE_MS_DEFAULT", "60000")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let listening: Value = lines
            .by_ref()
            .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
            .find(|event| event["message"] == "listening")
            .expect("it listens");
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || lines.for_each(|line| kept.lock().expect("no panic").push(line)));
        let address = |name: &str| listening[name].as_str().and_then(|a| a.parse().ok()).expect("an address");
        self.process = Some(Process { child, http: address("http"), admin: address("admin"), said });
        eventually("it is ready", async || get(self.process().admin, "/readyz").await.status == 200).await;
    }

    /// Tells the process to stop and waits until it has.
    pub async fn stop(&mut self) {
        let mut process = self.process.take().expect("a process");
        let id = process.child.id().to_string();
        let kill = std::process::Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.expect("kill is there").success());
        eventually("it has stopped", async || process.child.try_wait().expect("a child").is_some()).await;
    }

    /// Ends the process at once, wherever it is.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("a process");
        process.child.kill().expect("SIGKILL");
        process.child.wait().expect("a child");
    }

    /// Its public listener.
    pub fn http(&self) -> SocketAddr {
        self.process().http
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        let call = post(self.process().http, path, body.to_string());
        tokio::time::timeout(WAIT_MAX, call).await.expect("an answer")
    }

    /// As the key `thr_KEY`.
    pub async fn ask(&self, key: &str, what: (&str, &str), body: &Value) -> Response {
        let header = format!("x-thresher-key: thr_{key}");
        ask_with(self.process().http, what, &[&header], body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Response {
        get(self.process().http, path).await
    }

    pub async fn delete(&self, path: &str) -> Response {
        ask(self.process().http, "DELETE", path, b"", Framing::ContentLength).await
    }

    /// The number behind a metric; 0 before it is counted.
    pub async fn metric(&self, name: &str) -> f64 {
        let body = get(self.process().admin, "/metrics").await.body;
        let found = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or(0.0)
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("a process")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.said.lock().expect("no panic").iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
