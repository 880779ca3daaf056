//! Real servers on loopback, each with a folder of its own, gone when dropped.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take to start, or a cluster to agree.
const START_MAX: Duration = Duration::from_secs(20);

/// Whether there is a server to test with; a missing one is a failure unless THRESHER_TEST_REDIS=skip says otherwise.
pub fn available() -> bool {
    if std::env::var("THRESHER_TEST_REDIS").is_ok_and(|value| value == "skip") {
        eprintln!("skipped: THRESHER_TEST_REDIS=skip");
        return false;
    }
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok();
    assert!(
        found,
        "redis-server is not installed: run scripts/redis.sh, or apt-get install redis-server, or set \
         THRESHER_TEST_REDIS=skip to go without these tests"
    );
    true
}

/// A `redis-server`.
pub struct Server {
    child: Option<Child>,
    pub port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    /// What `redis-cli` needs besides the port.
    cli: Vec<String>,
}

impl Server {
    /// Starts one without passwords.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Starts one that `redis-cli` reaches with `cli`.
    pub fn start_with(arguments: &[&str], cli: &[&str]) -> Self {
        let mut server = Self::prepare(arguments, cli);
        server.up();
        server
    }

    /// A port and a folder, no process yet.
    pub fn prepare(arguments: &[&str], cli: &[&str]) -> Self {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        let folder = tempfile::tempdir().expect("a folder");
        Self { child: None, port: free_port(), folder, arguments: owned(arguments), cli: owned(cli) }
    }

    /// Starts the process and waits until it answers.
    pub fn up(&mut self) {
        let mut command = Command::new("redis-server");
        command.current_dir(self.folder.path()).args([
            "--save",
            "",
            "--bind",
            "127.0.0.1",
            "--loglevel",
            "warning",
        ]);
        command.args(["--enable-debug-command", "yes"]);
        if !self.arguments.iter().any(|argument| argument == "--tls-port") {
            command.args(["--port", &self.port.to_string()]);
        }
        command.args(self.arguments.iter().map(|argument| argument.replace("$PORT", &self.port.to_string())));
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log");
        command.stdout(log.try_clone().expect("a handle")).stderr(log).stdin(Stdio::null());
        self.child = Some(command.spawn().expect("redis-server starts"));
        let port = self.port;
        until(&format!("redis-server on {port} answers"), || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() && !self.cli(&["PING"]).is_empty()
        });
    }

    /// Kills the process, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops or continues the process: it keeps its connections and answers nothing.
    pub fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("a process").id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }

    /// What `redis-cli` prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "--no-auth-warning"]).args(&self.cli);
        let output = command.args(arguments).stdin(Stdio::null()).output().expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Its address for settings.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Writes a file into its folder.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster: `primaries`, each with `replicas`.
pub fn cluster(primaries: usize, replicas: usize) -> Vec<Server> {
    let bus: Vec<String> = (0..primaries * (1 + replicas)).map(|_| free_port().to_string()).collect();
    let start = |bus: &String| {
        let on = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
        let fast =
            ["--cluster-node-timeout", "1000", "--repl-ping-replica-period", "1", "--cluster-port", bus];
        Server::start(&[on.as_slice(), &fast, &["--repl-diskless-sync-delay", "0"]].concat())
    };
    let servers: Vec<Server> = bus.iter().map(start).collect();
    let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
    create.extend(servers.iter().map(|server| format!("127.0.0.1:{}", server.port)));
    create.extend(["--cluster-yes", "--cluster-replicas"].map(str::to_owned));
    create.push(replicas.to_string());
    let output =
        Command::new("redis-cli").args(&create).stdin(Stdio::null()).output().expect("redis-cli runs");
    assert!(output.status.success(), "no cluster: {}", String::from_utf8_lossy(&output.stdout));
    until("the cluster agrees", || {
        servers.iter().all(|s| s.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
    });
    servers
}

/// Waits, with a bound.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < START_MAX, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}
