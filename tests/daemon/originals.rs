//! The store of originals on a disk that fills up, and in a process that is killed. That process is a child
//! process of the test.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use thresher::originals::{OriginalSettings, Originals};

use crate::support::child::child_process;
use crate::support::mount::Mount;
use crate::support::wait::eventually_blocking;

/// Gives the child process its directory. Without it the child's test does nothing.
const DIR: &str = "THRESHER_TEST_ORIGINALS_DIR";
const KILLS: usize = 24;

fn store(dir: &Path) -> Originals {
    Originals::at(&OriginalSettings { dir: dir.into(), bytes_max: 64 << 20, ..OriginalSettings::default() })
}

fn recorder() -> (PrometheusRecorder, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    (recorder, handle)
}

/// The value of the metric `series`; 0 if it was never recorded.
fn metric(metrics: &PrometheusHandle, series: &str) -> u64 {
    let text = metrics.render();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    value.unwrap_or(0.0) as u64
}

/// A value of 20,000 bytes that is computed from `number`.
fn value(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 20_000];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn a_store_whose_disk_was_full_writes_again_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("disk");
    let Some(_mount) = Mount::new(&at, "size=8m") else { return };
    let (dir, filler) = (at.join("originals"), at.join("filler"));
    let (recorder, metrics) = recorder();
    metrics::with_local_recorder(&recorder, || {
        let store = store(&dir);
        let tenant = store.tenant("a");
        let put = |number: u64| tenant.put(&[(&number.to_le_bytes(), &value(number))]);
        let get = |number: u64| tenant.get(&number.to_le_bytes());
        (0..20).for_each(|number| put(number).expect("the disk has space"));
        // Another file fills the disk.
        let _ = std::fs::write(&filler, vec![0; 8 << 20]);
        let written =
            (20..1_000).take_while(|&number| put(number).is_ok()).last().map_or(20, |last| last + 1);
        assert!(written < 1_000, "the disk is full");
        let failures = || metric(&metrics, "originals_failures_total{operation=\"put\"}");
        assert_eq!(failures(), 1);
        put(written).expect_err("the store does not try a second write at once");
        // Everything that was committed can be read on the full disk.
        for number in 0..written {
            let found = eventually_blocking("the store is opened again", || get(number).ok());
            assert!(found == Some(value(number)), "{number} of {written}");
        }
        assert!(metric(&metrics, "originals_reopened_total") > 0);
        let failed_before = failures();
        eventually_blocking("a write is tried on the full disk", || {
            assert!(put(written).is_err());
            (failures() > failed_before).then_some(())
        });

        std::fs::remove_file(&filler).expect("the filler");
        eventually_blocking("a write succeeds", || put(written).ok());
        put(written + 1).expect("a second write succeeds");
        for number in 0..written + 2 {
            assert!(get(number).expect("it reads") == Some(value(number)), "{number}");
        }
    });
    // Refused writes have not damaged the file: it opens, and the committed values are there.
    let reopened = store(&dir);
    assert!(reopened.tenant("a").get(&0_u64.to_le_bytes()).expect("it reads") == Some(value(0)));
}

/// Writes values one after the other, and prints the number of each value that was acknowledged.
#[test]
#[ignore = "a child process that another test starts"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let tenant = store(Path::new(&dir)).tenant("a");
    let first = (0_u64..).find(|number| tenant.get(&number.to_le_bytes()).expect("it reads").is_none());
    for number in first.expect("a number").. {
        let (key, value) = (number.to_le_bytes(), value(number));
        // One write of two values: both are written or neither is.
        tenant.put(&[(&key, &value), (&[&key[..], b"twin"].concat(), &value)]).expect("the write succeeds");
        println!("acknowledged {number}");
    }
}

#[test]
fn acknowledged_values_survive_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("originals");
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        let mut child = child_process(module_path!(), "child")
            .env(DIR, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut numbers = lines.filter_map(|line| line.rsplit_once("acknowledged ")?.1.parse::<u64>().ok());
        // The child is at work. The kill then hits the middle of a write.
        let first = numbers.by_ref().take(1 + kill % 5).last().expect("the child writes a value");
        child.kill().expect("SIGKILL");
        acknowledged = acknowledged.max(numbers.last().unwrap_or(first) + 1);
        child.wait().expect("a child");

        let tenant = store(&dir).tenant("a");
        let get = |key: &[u8]| tenant.get(key).unwrap_or_else(|error| panic!("after kill {kill}: {error}"));
        let mut number = 0_u64;
        while let Some(found) = get(&number.to_le_bytes()) {
            let twin = get(&[&number.to_le_bytes()[..], b"twin"].concat());
            assert!(found == value(number) && twin == Some(found), "{number} after kill {kill}");
            number += 1;
        }
        assert!(number >= acknowledged, "{acknowledged} values were acknowledged, {number} are there");
    }
}
