//! The block store's local tiers: what they keep, within which bounds, and what no fault may do to them.

mod child;
mod damage;
mod full;
mod kill;
#[path = "../support/mount.rs"]
mod mount;
mod open;
mod tiers;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::local::{Hit, LocalError, LocalSettings, LocalTiers, TierName};
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;

/// Room for all, no memory: what is found was on disk.
fn disk_only(dir: &Path) -> LocalSettings {
    settings(0, 256 * MIB, dir)
}

fn settings(memory_bytes_max: u64, disk_bytes_max: u64, dir: &Path) -> LocalSettings {
    LocalSettings { memory_bytes_max, disk_bytes_max, write_queue_bytes_max: 64 * MIB, dir: Some(dir.into()) }
}

/// A directory for a store, in a temporary one.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("kv");
    (folder, dir)
}

/// Tiers, and what they count.
fn open(settings: &LocalSettings) -> Result<(LocalTiers, PrometheusHandle), LocalError> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let tiers = metrics::with_local_recorder(&recorder, || LocalTiers::open(settings))?;
    Ok((tiers, recorder.handle()))
}

/// The value of `series`, such as `kv_bytes{tier="disk"}`; 0 if it was never recorded.
fn metric(metrics: &PrometheusHandle, series: &str) -> u64 {
    let text = metrics.render();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    value.unwrap_or(0.0) as u64
}

/// The n-th block: its bytes follow from n, 1,000 to 61,000 of them.
fn block(n: u64) -> (BlockKey, Bytes) {
    sized(n, 1_000 + (n * 7919 % 60_000) as usize)
}

fn sized(n: u64, len: usize) -> (BlockKey, Bytes) {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
    (BlockKey::from_bytes(*blake3::hash(&n.to_be_bytes()).as_bytes()), bytes.into())
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    Runtime::new().expect("a runtime").block_on(future)
}

/// How many of the blocks `numbers` are found; each that is found must be what was inserted.
fn found(tiers: &LocalTiers, numbers: impl IntoIterator<Item = u64>) -> usize {
    let (keys, blocks): (Vec<_>, Vec<_>) = numbers.into_iter().map(block).unzip();
    let hits = wait(tiers.get_many(&keys));
    assert_eq!(hits.len(), keys.len());
    let right = |(hit, block): (&Option<Hit>, &Bytes)| match hit {
        Some((bytes, _)) => {
            assert!(bytes == block, "a wrong block");
            true
        }
        None => false,
    };
    hits.iter().zip(&blocks).filter(|pair| right(*pair)).count()
}

fn tier_of(tiers: &LocalTiers, n: u64) -> Option<TierName> {
    wait(tiers.get(&block(n).0)).map(|(_, tier)| tier)
}

fn insert(tiers: &LocalTiers, numbers: impl IntoIterator<Item = u64>) {
    numbers.into_iter().map(block).for_each(|(key, bytes)| tiers.insert(key, bytes));
}

/// A store with these blocks, closed again.
fn filled(dir: &Path, numbers: impl IntoIterator<Item = u64>) {
    let (tiers, _) = open(&disk_only(dir)).expect("it opens");
    insert(&tiers, numbers);
    wait(tiers.close());
}

/// The store's block files.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("blocks")).expect("the folder of blocks");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}
