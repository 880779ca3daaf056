//! A daemon in a process of its own: the real binary with default settings, in a folder that goes with it, and its memory and processor
//! time as the system counts them. Knows nothing of what is done to it.

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
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::bench::client::Caller;
use crate::bench::memory::{self, Resident};

/// How long the daemon may take to load its model; a busy machine takes longer than an idle one.
const LOAD_MAX: Duration = Duration::from_secs(180);

/// How long the daemon may take to end after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(40);

/// How often a condition is checked that nothing announces.
const LOOK: Duration = Duration::from_millis(50);

/// How often a [`Guard`] reads resident memory.
const SAMPLE: Duration = Duration::from_millis(10);

/// Last lines of the daemon's log that an error quotes.
const LOG_LINES: usize = 5;

/// Linux counts processor time in hundredths of a second wherever a program can see it.
const TICKS_PER_S: f64 = 100.0;

/// What every daemon of a run is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The program to run.
    pub binary: PathBuf,
    /// The model's folder, absolute.
    pub model_dir: PathBuf,
    /// ONNX Runtime, absolute.
    pub runtime_lib: PathBuf,
    /// Threads of the model; none: the daemon's default.
    pub workers: Option<usize>,
    /// All settings with their defaults, as JSON.
    pub defaults: Value,
}

/// A folder with a settings file and whatever daemons leave behind; it is removed when dropped. Paths of settings are relative to it.
pub struct Sandbox {
    binary: PathBuf,
    folder: TempDir,
    settings: toml::Table,
    descriptors_max: Option<u32>,
}

/// A running daemon. It is killed when dropped.
pub struct Daemon {
    child: Arc<Mutex<Child>>,
    process: u32,
    log: Arc<Mutex<VecDeque<String>>>,
    http: SocketAddr,
    admin: SocketAddr,
}

/// Watches a daemon's resident memory from a thread of its own, and kills the daemon before it takes the machine's.
pub struct Guard {
    stop: Arc<AtomicBool>,
    killed: Arc<AtomicBool>,
    peak: JoinHandle<f64>,
}

/// What a [`Guard`] has seen.
#[derive(Debug, Clone, Copy)]
pub struct Guarded {
    /// Most that was resident, in MB of a million bytes.
    pub peak_mb: f64,
    /// Whether the daemon was killed for it.
    pub killed: bool,
}

impl Setup {
    /// A number among the default settings, such as `/http/body_bytes_max`; none where there is no such setting.
    pub fn number(&self, pointer: &str) -> Option<u64> {
        self.defaults.pointer(pointer)?.as_u64()
    }

    /// A number among the default settings, in milliseconds.
    pub fn time(&self, pointer: &str) -> anyhow::Result<Duration> {
        let ms = self.number(pointer).with_context(|| format!("there is no setting {pointer}"))?;
        Ok(Duration::from_millis(ms))
    }

    /// The first setting of a section whose name contains one of `parts` and ends in `_ms_max` or `_ms`, with its default.
    pub fn find_time(&self, section: &str, parts: &[&str]) -> Option<(String, Duration)> {
        let settings = self.defaults.get(section)?.as_object()?;
        let is_it = |name: &str| {
            parts.iter().any(|part| name.contains(part))
                && (name.ends_with("_ms_max") || name.ends_with("_ms"))
        };
        let (name, ms) = settings.iter().find(|(name, _)| is_it(name))?;
        Some((format!("{section}.{name}"), Duration::from_millis(ms.as_u64()?)))
    }

    /// A folder for a daemon with default settings.
    ///
    /// # Errors
    /// When the system gives no folder.
    pub fn sandbox(&self) -> anyhow::Result<Sandbox> {
        let folder = tempfile::Builder::new()
            .prefix("thresher-hostile-")
            .tempdir()
            .context("no temporary directory")?;
        let binary = self.binary.clone();
        let mut sandbox = Sandbox { binary, folder, settings: toml::Table::new(), descriptors_max: None };
        sandbox.set("http.listen", "127.0.0.1:0");
        sandbox.set("admin.listen", "127.0.0.1:0");
        sandbox.set("model.dir", text(&self.model_dir)?);
        sandbox.set("model.runtime_lib", text(&self.runtime_lib)?);
        if let Some(workers) = self.workers {
            sandbox.set("model.workers", i64::try_from(workers)?);
        }
        Ok(sandbox)
    }
}

impl Sandbox {
    /// Changes a setting, such as `http.listen`, for daemons that start from now on.
    pub fn set(&mut self, name: &str, value: impl Into<toml::Value>) {
        let (section, name) = name.split_once('.').expect("settings are named section.name");
        let section = self.settings.entry(section).or_insert_with(|| toml::Table::new().into());
        section.as_table_mut().expect("sections are tables").insert(name.to_owned(), value.into());
    }

    /// Lets daemons have so many file descriptors, as `ulimit -n` does.
    pub fn limit_descriptors(&mut self, count: u32) {
        self.descriptors_max = Some(count);
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs another command of the program in the folder; what it prints.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.binary);
        let done = self.confined(&mut command).args(arguments).output().context("cannot run the program")?;
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
    /// When it ends early or is not ready in time; the end of its log is quoted.
    pub async fn start(&self) -> anyhow::Result<Daemon> {
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
        self.confined(&mut command).args(["serve", "--config"]).arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the daemon")?;
        let (process, stderr) = (child.id(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let log = Arc::default();
        let (found, addresses) = oneshot::channel();
        read_log(stderr.context("the daemon has no standard error")?, Arc::clone(&log), found);
        // From here on it is killed when dropped.
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut daemon = Daemon { child, process, log, http: unknown, admin: unknown };
        let addresses = timeout(LOAD_MAX, addresses).await.context("the daemon does not listen")?;
        (daemon.http, daemon.admin) = addresses
            .with_context(|| format!("the daemon ended before it listened: {}", daemon.end_of_log()))?;
        daemon.wait_until_ready().await?;
        Ok(daemon)
    }

    /// Default settings hold, whatever the environment of this process says.
    fn confined<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("THRESHER_")) {
                command.env_remove(name);
            }
        }
        command.current_dir(self.path())
    }
}

impl Daemon {
    /// The public listener's address.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The address of the operators' listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A client of the public listener, with connections of its own.
    pub fn caller(&self) -> Caller {
        Caller::new(self.http)
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Resident memory.
    ///
    /// # Errors
    /// When the daemon has ended, or the system does not say.
    pub fn resident(&self) -> anyhow::Result<Resident> {
        match memory::resident_of(self.process) {
            Some(resident) => Ok(resident),
            None if self.is_alive() => bail!("this system does not say what a process has in memory"),
            None => bail!("the daemon has ended: {}", self.end_of_log()),
        }
    }

    /// Processor time that the process has had, in seconds; all its threads together.
    ///
    /// # Errors
    /// As [`Self::resident`].
    pub fn processor_s(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process))
            .with_context(|| format!("the daemon has ended: {}", self.end_of_log()))?;
        processor_s(&stat).context("this system does not say what time a process has had")
    }

    /// Waits until the process uses less than a tenth of a core, at most for `max`; the processor time that it has had by then.
    ///
    /// # Errors
    /// As [`Self::resident`].
    pub async fn settled(&self, max: Duration) -> anyhow::Result<f64> {
        let until = Instant::now() + max;
        let mut before = self.processor_s()?;
        loop {
            sleep(Duration::from_secs(1)).await;
            let now = self.processor_s()?;
            if now - before < 0.1 || Instant::now() >= until {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Waits until no more than `mb` are resident, at most for `max`; what is resident then.
    ///
    /// # Errors
    /// As [`Self::resident`].
    pub async fn given_back(&self, mb: f64, max: Duration) -> anyhow::Result<f64> {
        let until = Instant::now() + max;
        loop {
            let now = self.resident()?.now_mb;
            if now <= mb || Instant::now() >= until {
                return Ok(now);
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Kills the daemon once more than `mb` are resident; until then, remembers the most.
    pub fn guard(&self, mb: f64) -> Guard {
        memory::forget_peak_of(self.process);
        let (stop, killed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (process, child) = (self.process, Arc::clone(&self.child));
        let (stopped, kill) = (Arc::clone(&stop), Arc::clone(&killed));
        let peak = std::thread::spawn(move || {
            let mut peak: f64 = 0.0;
            while let Some(resident) = memory::resident_of(process) {
                peak = peak.max(resident.now_mb).max(resident.peak_mb);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if resident.now_mb > mb {
                    kill.store(true, Ordering::Relaxed);
                    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(SAMPLE);
            }
            peak
        });
        Guard { stop, killed, peak }
    }

    /// Ends the process as `kill -9` does.
    pub fn kill(self) {
        drop(self);
    }

    /// Ends the process with SIGTERM and waits until it has drained.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(self) -> anyhow::Result<ExitStatus> {
        let kill = Command::new("kill").args(["-TERM", &self.process.to_string()]).status();
        ensure!(kill.context("cannot run kill")?.success(), "kill failed");
        let until = Instant::now() + STOP_MAX;
        while Instant::now() < until {
            if let Some(status) = self.child().try_wait()? {
                return Ok(status);
            }
            sleep(LOOK).await;
        }
        bail!("the daemon did not end within {} s of SIGTERM", STOP_MAX.as_secs())
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let (admin, until) = (Caller::new(self.admin), Instant::now() + LOAD_MAX);
        while Instant::now() < until {
            ensure!(self.is_alive(), "the daemon ended while it was loading: {}", self.end_of_log());
            let request = Request::get(format!("http://{}/readyz", self.admin)).body(Default::default())?;
            match timeout(Duration::from_secs(5), admin.send(request)).await {
                Ok(Ok(answer)) if answer.status == StatusCode::OK => return Ok(()),
                _ => sleep(LOOK).await,
            }
        }
        bail!("the daemon was not ready within {} s: {}", LOAD_MAX.as_secs(), self.end_of_log())
    }

    fn end_of_log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from_iter(log.iter().map(String::as_str)).join(" | ")
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Guard {
    /// Ends watching.
    pub fn finish(self) -> Guarded {
        self.stop.store(true, Ordering::Relaxed);
        let peak_mb = self.peak.join().unwrap_or(f64::NAN);
        Guarded { peak_mb, killed: self.killed.load(Ordering::Relaxed) }
    }

    /// Whether the daemon was killed.
    pub fn has_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }
}

/// Keeps the end of a log and sends the addresses that it names.
fn read_log(
    stderr: ChildStderr,
    log: Arc<Mutex<VecDeque<String>>>,
    found: oneshot::Sender<(SocketAddr, SocketAddr)>,
) {
    let mut found = Some(found);
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if found.is_some()
                && let Some(addresses) = listening(&line)
                && let Some(found) = found.take()
            {
                let _ = found.send(addresses);
            }
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() == LOG_LINES {
                log.pop_front();
            }
            log.push_back(line);
        }
    });
}

/// The public and the operators' address, if the line of the log names them.
fn listening(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let event: Value = serde_json::from_str(line).ok()?;
    let address = |name: &str| event[name].as_str()?.parse().ok();
    (event["message"] == "listening").then_some(())?;
    Some((address("http")?, address("admin")?))
}

/// User and system time from a line of `/proc/PID/stat`; the process's name, in parentheses, may hold anything.
fn processor_s(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 100 1000 10";
        assert_eq!(processor_s(stat), Some(3.0));
        assert_eq!(processor_s("7 (a"), None);
    }

    #[test]
    fn addresses_are_found_in_the_log() {
        let line = r#"{"message":"listening","http":"127.0.0.1:8080","admin":"127.0.0.1:8081"}"#;
        let expect = ("127.0.0.1:8080".parse().expect("one"), "127.0.0.1:8081".parse().expect("one"));
        assert_eq!(listening(line), Some(expect));
        assert_eq!(listening(r#"{"message":"ready"}"#), None);
        assert_eq!(listening("no JSON"), None);
    }
}
