//! The store of originals on a disk that fills up, and in a process that is killed.
//! The child is this test binary, told by its environment what to do.

#[path = "../support/mount.rs"]
mod mount;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use thresher::originals::{OriginalSettings, Originals};

use self::mount::Mount;

/// Names the directory for the child; without it the child's test does nothing.
const DIR: &str = "THRESHER_TEST_ORIGINALS_DIR";
const KILLS: usize = 24;
/// How long anything may take that happens at most once a second.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn store(dir: &Path) -> Originals {
    Originals::at(&OriginalSettings { dir: dir.into(), bytes_max: 64 << 20 })
}

fn recorder() -> (PrometheusRecorder, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    (recorder, handle)
}

/// The value of `series`; 0 if it was never recorded.
fn metric(metrics: &PrometheusHandle, series: &str) -> u64 {
    let text = metrics.render();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    value.unwrap_or(0.0) as u64
}

#[track_caller]
fn until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = so() {
            return found;
        }
        assert!(started.elapsed() < WAIT_MAX, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A value that follows from its number: 20,000 bytes.
fn value(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 20_000];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn a_disk_that_was_full_is_written_again_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=8m") else { return };
    let (dir, filler) = (at.join("originals"), at.join("filler"));
    let (recorder, metrics) = recorder();
    metrics::with_local_recorder(&recorder, || {
        let store = store(&dir);
        let tenant = store.of("a");
        let put = |number: u64| tenant.put(&[(&number.to_le_bytes(), &value(number))]);
        let get = |number: u64| tenant.get(&number.to_le_bytes());
        (0..20).for_each(|number| put(number).expect("there is room"));
        // What others write to the disk, until it is full.
        let _ = std::fs::write(&filler, vec![0; 8 << 20]);
        let written =
            (20..1_000).take_while(|&number| put(number).is_ok()).last().map_or(20, |last| last + 1);
        assert!(written < 1_000, "the disk is full");
        let failures = || metric(&metrics, "originals_failures_total{operation=\"put\"}");
        assert_eq!(failures(), 1);
        put(written).expect_err("a second write is not tried at once");
        // On the full disk: everything that was committed is read.
        for number in 0..written {
            let found = until("the store is opened again", || get(number).ok());
            assert!(found == Some(value(number)), "{number} of {written}");
        }
        assert!(metric(&metrics, "originals_reopened_total") > 0);
        let failed_before = failures();
        until("a write is tried on the full disk", || {
            assert!(put(written).is_err());
            (failures() > failed_before).then_some(())
        });

        std::fs::remove_file(&filler).expect("the filler");
        until("it is written", || put(written).ok());
        put(written + 1).expect("and written again");
        for number in 0..written + 2 {
            assert!(get(number).expect("it reads") == Some(value(number)), "{number}");
        }
    });
    // What was refused left nothing: the file opens, and all is there.
    let reopened = store(&dir);
    assert!(reopened.of("a").get(&0_u64.to_le_bytes()).expect("it reads") == Some(value(0)));
}

/// Keeps values, and says after each that it is kept.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let tenant = store(Path::new(&dir)).of("a");
    let first = (0_u64..).find(|number| tenant.get(&number.to_le_bytes()).expect("it reads").is_none());
    for number in first.expect("a number").. {
        let (key, value) = (number.to_le_bytes(), value(number));
        // Two at once: both or none.
        tenant.put(&[(&key, &value), (&[&key[..], b"twin"].concat(), &value)]).expect("it is kept");
        println!("kept {number}");
    }
}

#[test]
fn what_was_kept_outlives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("originals");
    let mut kept = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
            .env(DIR, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut numbers = lines.filter_map(|line| line.rsplit_once("kept ")?.1.parse::<u64>().ok());
        // Into its work, and then in the middle of a write.
        let first = numbers.by_ref().take(1 + kill % 5).last().expect("it keeps something");
        child.kill().expect("SIGKILL");
        kept = kept.max(numbers.last().unwrap_or(first) + 1);
        child.wait().expect("a child");

        let tenant = store(&dir).of("a");
        let get = |key: &[u8]| tenant.get(key).unwrap_or_else(|error| panic!("after kill {kill}: {error}"));
        let mut number = 0_u64;
        while let Some(found) = get(&number.to_le_bytes()) {
            let twin = get(&[&number.to_le_bytes()[..], b"twin"].concat());
            assert!(found == value(number) && twin == Some(found), "{number} after kill {kill}");
            number += 1;
        }
        assert!(number >= kept, "{kept} were kept, {number} are there");
    }
}
