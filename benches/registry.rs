//! Measures the registry without a model: registering, resolving ids, searching, prefiltering, and starting.
//!
//! Workload: 100,000 chunks of about 900 bytes from a vocabulary of 50,000 words (power law), on disk in the temporary
//! directory. Prints medians of several runs in one process.
//!
//!     cargo bench --bench registry

use std::sync::Arc;
use std::time::{Duration, Instant};

use thresher_core::domain::Chunk;
use thresher_registry::{Change, Registry, RegistrySettings};

const CHUNKS: usize = 100_000;
const BATCH: usize = 500;
const CALLERS: usize = 8;
const NAMED: usize = 10_000;

/// Xorshift generator, so that every run has the same texts.
struct Xorshift(u64);

impl Xorshift {
    /// Draws a number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn word(&mut self) -> String {
        format!("w{}", (50_000f64.powf(self.next())) as u32)
    }
}

fn chunk(n: usize) -> Arc<Chunk> {
    let mut rng = Xorshift(n as u64 * 7919 + 1);
    let text = (0..160).map(|_| rng.word()).collect::<Vec<_>>().join(" ");
    let metadata = format!("{{\"lang\":\"{}\",\"year\":{}}}", ["en", "de", "fr"][n % 3], 1990 + n % 35);
    Arc::new(Chunk {
        title: Some(format!("Title {n}")),
        metadata: Some(metadata),
        ..Chunk::new(format!("doc-{n:07}"), text)
    })
}

fn median(mut runs: Vec<Duration>) -> f64 {
    runs.sort_unstable();
    runs[runs.len() / 2].as_secs_f64() * 1e3
}

fn measure<T>(name: &str, runs: usize, mut work: impl FnMut() -> T) {
    let times = (0..runs).map(|_| {
        let started = Instant::now();
        std::hint::black_box(work());
        started.elapsed()
    });
    println!("{name:<58} {:>9.3} ms", median(times.collect()));
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = RegistrySettings { dir: folder.path().join("registry"), ..RegistrySettings::default() };
    let registry = Arc::new(Registry::open(&settings).expect("a registry"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");

    let batches: Vec<Vec<Change>> = (0..CHUNKS)
        .step_by(BATCH)
        .map(|from| (from..from + BATCH).map(|n| Change::Put(chunk(n))).collect())
        .collect();
    let bytes: usize =
        (0..CHUNKS).step_by(1000).map(|n| chunk(n).text.len()).sum::<usize>() / (CHUNKS / 1000);
    println!("{CHUNKS} chunks of {bytes} bytes");
    let started = Instant::now();
    let (batches, next) = (Arc::new(batches), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (registry, batches, next) = (Arc::clone(&registry), Arc::clone(&batches), Arc::clone(&next));
            runtime.spawn(async move {
                while let Some(batch) = batches.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    registry.write(batch.clone()).await.expect("written");
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| runtime.block_on(caller).expect("no panic"));
    let rate = CHUNKS as f64 / started.elapsed().as_secs_f64();
    println!("{:<58} {rate:>9.0} chunks/s", format!("register, batches of {BATCH}, {CALLERS} callers"));

    let mut fresh = CHUNKS;
    measure("register one more", 15, || {
        fresh += 1;
        runtime.block_on(registry.write(vec![Change::Put(chunk(fresh))])).expect("written")
    });
    measure("register 500 unchanged", 15, || {
        runtime.block_on(registry.write(batches[0].clone())).expect("written")
    });

    let named = |from: usize| -> Vec<String> {
        (0..NAMED).map(|n| format!("doc-{:07}", (from + n * 7919) % CHUNKS)).collect()
    };
    let warm = named(0);
    registry.get(&warm).expect("readable");
    measure("resolve 10,000 ids, all in memory", 15, || registry.get(&warm).expect("readable"));
    drop(registry);
    let mut registry = None;
    measure("start with 100,000 chunks", 3, || {
        registry = None;
        registry = Some(Registry::open(&settings).expect("a registry"));
    });
    let registry = registry.expect("opened");
    let mut from = 0;
    measure("resolve 10,000 ids, all on disk", 5, || {
        from += 1;
        registry.get(&named(from)).expect("readable")
    });
    let mut rng = Xorshift(42);
    let mut question = move || (0..8).map(|_| rng.word()).collect::<Vec<_>>().join(" ");
    measure("search, 8 words, 100 candidates", 25, || {
        registry.search(&question(), 100, usize::MAX).expect("an index")
    });
    let mut rng = Xorshift(42);
    let question = (0..8).map(|_| rng.word()).collect::<Vec<_>>().join(" ");
    let all: Vec<String> = (0..CHUNKS).map(|n| format!("doc-{n:07}")).collect();
    measure("prefilter 100,000 ids to 10,000", 9, || {
        registry.prefilter(&question, &all, NAMED).expect("an index")
    });
}
