//! The block store's local tiers, memory and disk: what they keep, their limits, and what they do when files,
//! disks or processes fail.

mod child;
mod damage;
mod full;
mod kill;
mod open;
mod tiers;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::local::{Hit, LocalError, LocalSettings, LocalTiers, TierName};
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;

/// A disk tier with space for everything and no memory tier, so that a block that is found was on disk.
fn disk_only(dir: &Path) -> LocalSettings {
    settings(0, 256 * MIB, dir)
}

fn settings(memory_bytes_max: u64, disk_bytes_max: u64, dir: &Path) -> LocalSettings {
    LocalSettings { memory_bytes_max, disk_bytes_max, write_queue_bytes_max: 64 * MIB, dir: Some(dir.into()) }
}

/// A directory for a store, inside a temporary one.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("kv");
    (folder, dir)
}

/// Opens tiers, with metrics of their own.
fn open(settings: &LocalSettings) -> Result<(LocalTiers, PrometheusHandle), LocalError> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let tiers = metrics::with_local_recorder(&recorder, || LocalTiers::open(settings))?;
    Ok((tiers, recorder.handle()))
}

/// The value of the metric `series`, such as `kv_bytes{tier="disk"}`; 0 if it was never recorded.
fn metric(metrics: &PrometheusHandle, series: &str) -> u64 {
    let text = metrics.render();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<f64>().ok());
    value.unwrap_or(0.0) as u64
}

/// Key and bytes of the n-th block. It has 1,000 to 61,000 bytes, which are computed from `n`.
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

/// How many of the blocks `numbers` are found. Panics if one of them has other bytes than were inserted.
fn found(tiers: &LocalTiers, numbers: impl IntoIterator<Item = u64>) -> usize {
    let (keys, blocks): (Vec<_>, Vec<_>) = numbers.into_iter().map(block).unzip();
    let hits = wait(tiers.get_many(&keys));
    assert_eq!(hits.len(), keys.len());
    let right = |(hit, block): (&Option<Hit>, &Bytes)| match hit {
        Some((bytes, _)) => {
            assert!(bytes == block, "the store returned a wrong block");
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

/// Makes a store with these blocks and closes it.
fn filled(dir: &Path, numbers: impl IntoIterator<Item = u64>) {
    let (tiers, _) = open(&disk_only(dir)).expect("it opens");
    insert(&tiers, numbers);
    wait(tiers.close());
}

/// The files of the store's blocks, sorted.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("blocks")).expect("the folder of blocks");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}
