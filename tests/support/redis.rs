//! Real Redis servers on loopback. Each has a directory of its own, and both are gone when the server is
//! dropped.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::wait::eventually_blocking;

/// How often a server is started anew when another process has taken the port that was free a moment before.
const START_ATTEMPTS_MAX: usize = 5;

/// Whether tests that need Redis can run. If `redis-server` is missing they fail, unless
/// `THRESHER_TEST_REDIS=skip` is set.
pub fn available() -> bool {
    if std::env::var("THRESHER_TEST_REDIS").is_ok_and(|value| value == "skip") {
        eprintln!("skipped: THRESHER_TEST_REDIS=skip");
        return false;
    }
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok();
    assert!(
        found,
        "redis-server is not installed: run scripts/redis.sh, or apt-get install redis-server, or set \
         THRESHER_TEST_REDIS=skip to run without these tests"
    );
    true
}

/// A `redis-server` process, or the place of one that is not running.
pub struct Server {
    child: Option<Child>,
    /// The TCP port on 127.0.0.1.
    pub port: u16,
    /// The port that nodes of a cluster use among themselves.
    bus_port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    /// Arguments that `redis-cli` needs besides the port.
    cli: Vec<String>,
}

impl Server {
    /// Starts a server without a password. `$PORT` and `$BUS_PORT` in `arguments` stand for its ports.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// Starts a server to which `redis-cli` connects with the arguments `cli`.
    pub fn start_with(arguments: &[&str], cli: &[&str]) -> Self {
        for _ in 0..START_ATTEMPTS_MAX {
            let mut server = Self::prepare(arguments, cli);
            if server.try_start() {
                return server;
            }
        }
        panic!("redis-server {arguments:?} ended {START_ATTEMPTS_MAX} times before it answered");
    }

    /// Chooses ports and makes a directory, but starts no process.
    pub fn prepare(arguments: &[&str], cli: &[&str]) -> Self {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (port, bus_port) = free_ports();
        Self { child: None, port, bus_port, folder, arguments: owned(arguments), cli: owned(cli) }
    }

    /// Starts the process and waits until it answers.
    pub fn up(&mut self) {
        assert!(self.try_start(), "redis-server on port {} ended before it answered", self.port);
    }

    /// Starts the process and waits until it answers. False if it ends before that.
    fn try_start(&mut self) -> bool {
        let mut command = Command::new("redis-server");
        command.current_dir(self.folder.path());
        command.args(["--save", "", "--bind", "127.0.0.1", "--loglevel", "warning"]);
        command.args(["--enable-debug-command", "yes"]);
        let (port, bus_port) = (self.port.to_string(), self.bus_port.to_string());
        if !self.arguments.iter().any(|argument| argument == "--tls-port") {
            command.args(["--port", &port]);
        }
        let with_ports = |argument: &String| argument.replace("$PORT", &port).replace("$BUS_PORT", &bus_port);
        command.args(self.arguments.iter().map(with_ports));
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log file");
        command.stdout(log.try_clone().expect("a second handle")).stderr(log).stdin(Stdio::null());
        self.child = Some(command.spawn().expect("redis-server starts"));
        eventually_blocking(&format!("redis-server on port {port} answers"), || {
            let child = self.child.as_mut().expect("a started process");
            if child.try_wait().expect("a child process").is_some() {
                return Some(false);
            }
            let connects = std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            (connects && !self.cli(&["PING"]).is_empty()).then_some(true)
        })
    }

    /// Kills the process, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process and waits until it is stopped: it keeps its connections and answers nothing until
    /// [`Self::resume`].
    pub fn pause(&self) {
        self.signal("-STOP");
        let id = self.id();
        // A signal takes effect a little later than it is sent.
        eventually_blocking("the server is stopped", || is_stopped(&id).then_some(()));
    }

    /// Continues a process that [`Self::pause`] has stopped.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.id()]).status().expect("kill runs").success());
    }

    fn id(&self) -> String {
        self.child.as_ref().expect("a running server").id().to_string()
    }

    /// Runs `redis-cli` and returns its standard output.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "--no-auth-warning"]).args(&self.cli);
        let output = command.args(arguments).stdin(Stdio::null()).output().expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

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

/// A cluster of `primaries`, each with `replicas`.
pub fn cluster(primaries: usize, replicas: usize) -> Vec<Server> {
    let cluster = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    let timing = ["--cluster-node-timeout", "1000", "--repl-ping-replica-period", "1"];
    let more = ["--cluster-port", "$BUS_PORT", "--repl-diskless-sync-delay", "0"];
    let arguments = [&cluster[..], &timing, &more].concat();
    let servers: Vec<Server> = (0..primaries * (1 + replicas)).map(|_| Server::start(&arguments)).collect();
    let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
    create.extend(servers.iter().map(|server| format!("127.0.0.1:{}", server.port)));
    create.extend(["--cluster-yes", "--cluster-replicas"].map(str::to_owned));
    create.push(replicas.to_string());
    let output =
        Command::new("redis-cli").args(&create).stdin(Stdio::null()).output().expect("redis-cli runs");
    assert!(output.status.success(), "no cluster: {}", String::from_utf8_lossy(&output.stdout));
    eventually_blocking("all nodes see the whole cluster", || {
        let is_ok = |server: &Server| server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        servers.iter().all(is_ok).then_some(())
    });
    servers
}

/// Two different ports that are free at this moment.
fn free_ports() -> (u16, u16) {
    // Both are held until both are known.
    let [one, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let port = |listener: &TcpListener| listener.local_addr().expect("a bound listener").port();
    (port(&one), port(&other))
}

fn is_stopped(id: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{id}/stat")) {
        // The state is the letter behind the program's name, which stands in parentheses.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')),
        // Systems without /proc have ps.
        Err(_) => {
            let output = Command::new("ps").args(["-o", "state=", "-p", id]).output().expect("ps runs");
            output.stdout.starts_with(b"T")
        }
    }
}
