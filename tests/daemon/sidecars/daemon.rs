//! A daemon with the real model and directories of its own. Its process and its directories are gone when it
//! is dropped.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::redis::Server;
use crate::support::thresher;
use crate::support::wait::{WAIT_MAX, eventually};
use crate::support::wire::{Framing, Response, ask, ask_with, get, post};

/// The Redis servers of a sidecar, as its settings name them.
#[derive(Clone)]
pub struct Servers {
    urls: String,
    cluster: bool,
}

impl Servers {
    /// One server, or the nodes of a cluster.
    pub fn of(servers: &[Server]) -> Self {
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        Self { urls: urls.join(","), cluster: servers.len() > 1 }
    }
}

/// A daemon with its directories, and its process while it runs.
pub struct Sidecar {
    servers: Servers,
    folder: TempDir,
    /// The path of the file of keys. Empty if the daemon has no keys.
    keys_file: String,
    process: Option<Process>,
}

struct Process {
    child: Child,
    http: SocketAddr,
    admin: SocketAddr,
    /// The lines that it logs. They are printed if the test fails.
    log: Arc<Mutex<Vec<String>>>,
}

impl Sidecar {
    /// Starts a daemon with empty directories.
    pub async fn start(servers: &Servers) -> Self {
        Self::start_with(servers, "").await
    }

    pub async fn start_with(servers: &Servers, keys_file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let keys_file = keys_file.to_owned();
        let mut sidecar = Self { servers: servers.clone(), folder, keys_file, process: None };
        sidecar.up().await;
        sidecar
    }

    /// Starts the process and waits until it is ready.
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
            .env("THRESHER__SHARED__URLS", &self.servers.urls)
            .env("THRESHER__SHARED__CLUSTER", self.servers.cluster.to_string())
            // Wide limits: the tests are about request is found, on machines that may be busy.
            .env("THRESHER__SHARED__TIMEOUT_MS", "1000")
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
            .expect("the daemon logs its addresses");
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || lines.for_each(|line| kept.lock().expect("no panic").push(line)));
        let address = |name: &str| listening[name].as_str().and_then(|a| a.parse().ok()).expect("an address");
        self.process = Some(Process { child, http: address("http"), admin: address("admin"), log });
        eventually("the daemon is ready", async || get(self.process().admin, "/readyz").await.status == 200)
            .await;
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub async fn stop(&mut self) {
        let mut process = self.process.take().expect("a process");
        let id = process.child.id().to_string();
        let kill = std::process::Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.expect("kill runs").success());
        eventually("the daemon has exited", async || process.child.try_wait().expect("a child").is_some())
            .await;
    }

    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("a process");
        process.child.kill().expect("SIGKILL");
        process.child.wait().expect("a child");
    }

    pub fn http(&self) -> SocketAddr {
        self.process().http
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        let call = post(self.process().http, path, body.to_string());
        tokio::time::timeout(WAIT_MAX, call).await.expect("an answer")
    }

    /// Sends a request, given by its method and path, with the key `thr_KEY`.
    pub async fn ask(&self, key: &str, request: (&str, &str), body: &Value) -> Response {
        let header = format!("x-thresher-key: thr_{key}");
        ask_with(self.process().http, request, &[&header], body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Response {
        get(self.process().http, path).await
    }

    pub async fn delete(&self, path: &str) -> Response {
        ask(self.process().http, "DELETE", path, b"", Framing::ContentLength).await
    }

    /// The value of a metric; 0 if it was never recorded.
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
            self.log.lock().expect("no panic").iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
