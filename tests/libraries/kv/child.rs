//! Child processes of these tests, which may be killed or restricted.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::child::child_process;

use super::{MIB, insert, open, settings, sized, wait};

const ROLE: &str = "THRESHER_KV_ROLE";
const DIR: &str = "THRESHER_KV_DIR";

/// A command that plays `role` on the store in `dir`. See [`play`] for the roles.
pub fn command(role: &str, dir: &Path) -> Command {
    let mut command = child_process(module_path!(), "play");
    command.env(ROLE, role).env(DIR, dir).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Runs `command` in a shell that limits the size of files to `kilobytes`, or to half of that, since shells
/// differ in the unit. The signal that would kill a process at the limit is ignored.
pub fn limited(command: &Command, kilobytes: u64) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("trap '' 25; ulimit -S -f {kilobytes}; exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.envs(set);
    shell.stdin(Stdio::null()).stdout(Stdio::piped());
    shell
}

#[test]
#[ignore = "a child process that other tests start"]
fn play() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else { return };
    let dir = Path::new(&dir);
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("write", from) => write(dir, from.parse().expect("a number"), 256 * MIB),
        ("write-tight", from) => write(dir, from.parse().expect("a number"), 2 * MIB),
        ("open", _) => match open(&settings(0, MIB, dir)) {
            Ok(_) => println!("opened"),
            Err(error) => println!("refused: {error}"),
        },
        ("resident", _) => resident(),
        ("short", _) => short(dir),
        _ => panic!("{role:?} is not a role"),
    }
}

/// Writes blocks until it is killed. After every few blocks it waits until they are on disk and prints the
/// end of their numbers.
fn write(dir: &Path, from: u64, disk_bytes_max: u64) {
    let (tiers, _) = open(&settings(MIB, disk_bytes_max, dir)).expect("it opens");
    for n in (from..).step_by(4) {
        insert(&tiers, n..n + 4);
        if n % 16 == 0 {
            wait(tiers.flush());
            println!("acked {}", n + 4);
            std::io::stdout().flush().expect("a reader");
        }
    }
}

/// Several threads insert many times more blocks than the memory tier may hold, each thread once more than
/// the others. Prints by how many bytes the process grew.
fn resident() {
    let none = super::LocalSettings { dir: None, ..settings(64 * MIB, 0, Path::new("")) };
    let (tiers, _) = open(&none).expect("it opens");
    let (before, most) = (resident_bytes(), AtomicU64::new(0));
    for turn in 0..4 {
        let (tiers, most) = (&tiers, &most);
        let work = move |thread: u64| {
            for n in 0..if thread == turn { 1_000 } else { 400 } {
                let n = (turn << 32) + (thread << 16) + n;
                let (key, bytes) = sized(n, 1_000 + (n * 7919 % 140_000) as usize);
                tiers.insert(key, bytes);
                most.fetch_max(resident_bytes(), Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    }
    println!("grew {}", most.into_inner() - before);
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    4096 * statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages")
}

/// Writes large blocks, which fail since files may not grow, and then a small one, which succeeds.
fn short(dir: &Path) {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stdout).init();
    let (tiers, metrics) = open(&settings(64 * MIB, 64 * MIB, dir)).expect("it opens");
    let large = |n| sized(n, 200_000);
    (0..20).map(large).for_each(|(key, bytes)| tiers.insert(key, bytes));
    wait(tiers.flush());
    let resident = (0..20).filter(|n| tiers.get_resident(&large(*n).0).is_some()).count();
    println!("resident {resident} on disk {}", tiers.stats().disk.entries);
    println!("failing {}", super::metric(&metrics, "kv_failing{tier=\"disk\"}"));
    println!("failed {}", super::metric(&metrics, "kv_writes_total{tier=\"disk\",outcome=\"failed\"}"));
    let (key, bytes) = sized(100, 1_000);
    tiers.insert(key, bytes);
    wait(tiers.flush());
    println!("then on disk {}", tiers.stats().disk.entries);
    println!("then failing {}", super::metric(&metrics, "kv_failing{tier=\"disk\"}"));
}
