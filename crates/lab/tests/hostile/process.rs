//! A daemon in a process of its own: the real binary with default settings in a temporary directory, with its
//! resident memory and processor time as the operating system reports them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hyper::{Request, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use thresher::app::Limits;
use thresher::config::Config;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use thresher_lab::client::Caller;
use thresher_lab::rss::{self, Rss};

/// How long the daemon may take to load its model. A busy machine takes longer than an idle one.
const LOAD_MAX: Duration = Duration::from_secs(180);

/// How long the daemon may take to exit after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(40);

/// Interval of polling for conditions without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval at which a [`MemoryGuard`] reads resident memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// Number of last log lines that an error quotes.
const LOG_LINES: usize = 5;

/// Clock ticks per second in `/proc`; Linux reports processor time in hundredths of a second.
const TICKS_PER_S: f64 = 100.0;

/// What every daemon of a run has in common.
#[derive(Debug, Clone)]
pub struct Setup {
    pub binary: PathBuf,
    /// Absolute path of the model's directory.
    pub model_dir: PathBuf,
    /// Absolute path of the ONNX Runtime library.
    pub runtime_lib: PathBuf,
    /// All settings with their default values.
    pub defaults: Config,
    /// The limits of a daemon with these settings.
    pub limits: Limits,
}

/// A temporary directory with a settings file and everything that daemons leave behind; removed when dropped.
/// Paths in settings are relative to it.
pub struct Sandbox {
    binary: PathBuf,
    folder: TempDir,
    settings: toml::Table,
    descriptors_max: Option<u32>,
}

/// A running daemon process; killed when dropped.
pub struct DaemonProcess {
    child: Arc<Mutex<Child>>,
    pid: u32,
    log: Arc<Mutex<VecDeque<String>>>,
    http: SocketAddr,
    admin: SocketAddr,
}

/// Watches a daemon's resident memory from a thread, and kills the daemon before it takes the machine's
/// memory.
pub struct MemoryGuard {
    stop: Arc<AtomicBool>,
    killed: Arc<AtomicBool>,
    peak: JoinHandle<f64>,
}

/// What a [`MemoryGuard`] has measured.
#[derive(Debug, Clone, Copy)]
pub struct MemoryUse {
    /// Largest resident memory, in millions of bytes.
    pub peak_mb: f64,
    /// Whether the guard killed the daemon.
    pub killed: bool,
}

impl Setup {
    /// Returns the program beside this test, or that of `THRESHER_BINARY`, with the model and the runtime that the settings name.
    ///
    /// # Errors
    /// Fails if the settings have an error or a path cannot be made absolute.
    pub fn from_environment() -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let binary = match std::env::var_os("THRESHER_BINARY") {
            Some(binary) => std::path::absolute(binary)?,
            // target/PROFILE/deps/hostile-HASH
            None => std::env::current_exe()?
                .parent()
                .and_then(Path::parent)
                .context("no folder")?
                .join("thresher"),
        };
        let config = Config::load(None, std::env::vars())?;
        Ok(Self {
            binary,
            model_dir: root.join(&config.model.dir),
            runtime_lib: root.join(config.model.runtime_lib()),
            defaults: Config::default(),
            limits: Limits::new(&Config::default(), 1),
        })
    }

    /// Creates a directory for daemons with default settings.
    ///
    /// # Errors
    /// Fails if the system cannot create a directory.
    pub fn sandbox(&self) -> anyhow::Result<Sandbox> {
        let folder = tempfile::Builder::new()
            .prefix("thresher-hostile-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        let binary = self.binary.clone();
        let mut sandbox = Sandbox { binary, folder, settings: toml::Table::new(), descriptors_max: None };
        sandbox.set("http.listen", "127.0.0.1:0");
        sandbox.set("admin.listen", "127.0.0.1:0");
        sandbox.set("model.dir", utf8(&self.model_dir)?);
        sandbox.set("model.runtime_lib", utf8(&self.runtime_lib)?);
        Ok(sandbox)
    }
}

impl Sandbox {
    /// Changes a setting, such as `http.listen`, for daemons that are started afterwards.
    pub fn set(&mut self, name: &str, value: impl Into<toml::Value>) {
        let (section, name) = name.split_once('.').expect("settings are named section.name");
        let section = self.settings.entry(section).or_insert_with(|| toml::Table::new().into());
        section.as_table_mut().expect("sections are tables").insert(name.to_owned(), value.into());
    }

    /// Limits the file descriptors of daemons, as `ulimit -n` does.
    pub fn limit_descriptors(&mut self, count: u32) {
        self.descriptors_max = Some(count);
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs another command of the binary in the directory and returns its standard output.
    ///
    /// # Errors
    /// Fails if the command fails.
    pub fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.binary);
        let done = self.isolate(&mut command).args(arguments).output().context("cannot run the program")?;
        ensure!(
            done.status.success(),
            "{arguments:?} failed: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }

    /// Starts a daemon and waits until its model is loaded.
    ///
    /// # Errors
    /// Fails if the daemon exits early or is not ready in time; the error quotes the end of its log.
    pub async fn start(&self) -> anyhow::Result<DaemonProcess> {
        let file = self.path().join("thresher.toml");
        std::fs::write(&file, toml::to_string(&self.settings)?).context("cannot write the settings")?;
        let mut command = match self.descriptors_max {
            None => Command::new(&self.binary),
            Some(count) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(format!("ulimit -n {count} && exec \"$0\" \"$@\"")).arg(&self.binary);
                command
            }
        };
        self.isolate(&mut command).args(["serve", "--config"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the daemon")?;
        let (pid, stderr) = (child.id(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let log = Arc::default();
        let (sender, addresses) = oneshot::channel();
        read_log(stderr.context("the daemon has no standard error")?, Arc::clone(&log), sender);
        // From here on, dropping `daemon` kills the process.
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut daemon = DaemonProcess { child, pid, log, http: unknown, admin: unknown };
        let addresses =
            timeout(LOAD_MAX, addresses).await.context("the daemon does not listen after 180 s")?;
        (daemon.http, daemon.admin) = addresses.with_context(|| {
            format!("the daemon exited before it listened; end of its log: {}", daemon.log_tail())
        })?;
        daemon.wait_until_ready().await?;
        Ok(daemon)
    }

    /// Removes settings in environment variables, so that the default settings apply.
    fn isolate<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("THRESHER_")) {
                command.env_remove(name);
            }
        }
        command.current_dir(self.path())
    }
}

impl DaemonProcess {
    /// Returns the address of the public listener.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Returns the address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns a client of the public listener, with connections of its own.
    pub fn caller(&self) -> Caller {
        Caller::new(self.http)
    }

    /// Returns whether the process is running.
    pub fn is_alive(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Returns the process's resident memory.
    ///
    /// # Errors
    /// Fails if the daemon has exited or the system does not report memory.
    pub fn resident(&self) -> anyhow::Result<Rss> {
        match rss::of_process(self.pid) {
            Some(rss) => Ok(rss),
            None if self.is_alive() => {
                bail!("cannot read resident memory: /proc/{}/status has another format", self.pid)
            }
            None => bail!("the daemon has exited; end of its log: {}", self.log_tail()),
        }
    }

    /// Returns the processor time of all threads of the process, in seconds.
    ///
    /// # Errors
    /// Fails as [`Self::resident`] does.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .with_context(|| format!("the daemon has exited; end of its log: {}", self.log_tail()))?;
        cpu_seconds(&stat).context("cannot read processor time: /proc/PID/stat has another format")
    }

    /// Waits, at most for `max`, until the process uses less than a tenth of a core; returns its processor
    /// time so far, in seconds.
    ///
    /// # Errors
    /// Fails as [`Self::resident`] does.
    pub async fn wait_until_idle(&self, max: Duration) -> anyhow::Result<f64> {
        let until = Instant::now() + max;
        let mut before = self.cpu_seconds()?;
        loop {
            sleep(Duration::from_secs(1)).await;
            let now = self.cpu_seconds()?;
            if now - before < 0.1 || Instant::now() >= until {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Waits, at most for `max`, until no more than `mb` MB are resident; returns the resident memory in MB.
    ///
    /// # Errors
    /// Fails as [`Self::resident`] does.
    pub async fn wait_until_below(&self, mb: f64, max: Duration) -> anyhow::Result<f64> {
        let until = Instant::now() + max;
        loop {
            let now = self.resident()?.now_mb;
            if now <= mb || Instant::now() >= until {
                return Ok(now);
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Starts a guard that records the largest resident memory and kills the daemon above `mb` MB.
    pub fn guard(&self, mb: f64) -> MemoryGuard {
        rss::reset_peak_of_process(self.pid);
        let (stop, killed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (pid, child) = (self.pid, Arc::clone(&self.child));
        let (stopped, kill) = (Arc::clone(&stop), Arc::clone(&killed));
        let peak = std::thread::spawn(move || {
            let mut peak: f64 = 0.0;
            while let Some(rss) = rss::of_process(pid) {
                peak = peak.max(rss.now_mb).max(rss.peak_mb);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if rss.now_mb > mb {
                    kill.store(true, Ordering::Relaxed);
                    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            peak
        });
        MemoryGuard { stop, killed, peak }
    }

    /// Kills the process as `kill -9` does.
    pub fn kill(self) {
        drop(self);
    }

    /// Sends SIGTERM and waits until the daemon has drained and exited.
    ///
    /// # Errors
    /// Fails if the daemon does not exit in time.
    pub async fn stop(self) -> anyhow::Result<ExitStatus> {
        let kill = Command::new("kill").args(["-TERM", &self.pid.to_string()]).status();
        ensure!(kill.context("cannot run kill")?.success(), "kill failed");
        let until = Instant::now() + STOP_MAX;
        while Instant::now() < until {
            if let Some(status) = self.child().try_wait()? {
                return Ok(status);
            }
            sleep(POLL_INTERVAL).await;
        }
        bail!("the daemon did not exit within {} s of SIGTERM", STOP_MAX.as_secs())
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let (admin, until) = (Caller::new(self.admin), Instant::now() + LOAD_MAX);
        while Instant::now() < until {
            ensure!(
                self.is_alive(),
                "the daemon exited while it loaded the model; end of its log: {}",
                self.log_tail()
            );
            let request = Request::get(format!("http://{}/readyz", self.admin)).body(Default::default())?;
            match timeout(Duration::from_secs(5), admin.send(request)).await {
                Ok(Ok(response)) if response.status == StatusCode::OK => return Ok(()),
                _ => sleep(POLL_INTERVAL).await,
            }
        }
        bail!("the daemon was not ready within {} s; end of its log: {}", LOAD_MAX.as_secs(), self.log_tail())
    }

    fn log_tail(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from_iter(log.iter().map(String::as_str)).join(" | ")
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl MemoryGuard {
    /// Stops the guard and returns what it measured.
    pub fn finish(self) -> MemoryUse {
        self.stop.store(true, Ordering::Relaxed);
        let peak_mb = self.peak.join().unwrap_or(f64::NAN);
        MemoryUse { peak_mb, killed: self.killed.load(Ordering::Relaxed) }
    }

    /// Returns whether the guard killed the daemon.
    pub fn has_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }
}

/// Keeps the last lines of a log and sends the addresses that it reports.
fn read_log(
    stderr: ChildStderr,
    log: Arc<Mutex<VecDeque<String>>>,
    sender: oneshot::Sender<(SocketAddr, SocketAddr)>,
) {
    let mut sender = Some(sender);
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.is_some()
                && let Some(addresses) = parse_listening(&line)
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(addresses);
            }
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() == LOG_LINES {
                log.pop_front();
            }
            log.push_back(line);
        }
    });
}

/// Parses the public and the admin address from the log line that reports them.
fn parse_listening(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let event: Value = serde_json::from_str(line).ok()?;
    let address = |name: &str| event[name].as_str()?.parse().ok();
    (event["message"] == "listening").then_some(())?;
    Some((address("http")?, address("admin")?))
}

/// Parses user plus system time from a line of `/proc/PID/stat`. The process's name, in parentheses, may
/// contain anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

fn utf8(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_for_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 100 1000 10";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (a"), None);
    }

    #[test]
    fn addresses_are_read_from_the_log() {
        let line = r#"{"message":"listening","http":"127.0.0.1:8080","admin":"127.0.0.1:8081"}"#;
        let expect = ("127.0.0.1:8080".parse().expect("one"), "127.0.0.1:8081".parse().expect("one"));
        assert_eq!(parse_listening(line), Some(expect));
        assert_eq!(parse_listening(r#"{"message":"ready"}"#), None);
        assert_eq!(parse_listening("no JSON"), None);
    }
}
