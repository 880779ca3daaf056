//! Tests of the store over tiers of maps: which source blocks come from, which requests read them, and what
//! `read` is called with.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray::Array3;

use super::*;
use crate::kv::block::Parts;
use crate::kv::codec::Codec;

/// The number of keys that a request fetches at a time.
const BATCH: usize = 64;

/// Memory without a limit, and the blocks that the test puts on disk and in the shared tier.
#[derive(Default)]
struct Map {
    memory: Mutex<HashMap<BlockKey, Bytes>>,
    disk: Mutex<HashMap<BlockKey, Bytes>>,
    shared: Mutex<HashMap<BlockKey, Bytes>>,
    accepted: Mutex<Vec<(BlockKey, BlockOrigin)>>,
}

impl Tiers for Map {
    fn resident(&self, key: &BlockKey) -> Option<Bytes> {
        self.memory.lock().expect("no panic").get(key).cloned()
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, BlockOrigin)>> {
        let of = |map: &Mutex<HashMap<_, Bytes>>, key| map.lock().expect("no panic").get(key).cloned();
        let disk = |key| Some((of(&self.disk, key)?, BlockOrigin::Disk));
        let shared = |key| Some((of(&self.shared, key)?, BlockOrigin::Shared));
        keys.iter().map(|key| disk(key).or_else(|| shared(key))).collect()
    }

    fn accept(&self, key: BlockKey, bytes: Bytes, source: BlockOrigin) {
        self.memory.lock().expect("no panic").insert(key, bytes);
        self.accepted.lock().expect("no panic").push((key, source));
    }

    fn has_locally(&self, key: &BlockKey) -> bool {
        self.disk.lock().expect("no panic").contains_key(key)
    }

    fn keep(&self, key: BlockKey, bytes: Bytes) {
        self.memory.lock().expect("no panic").insert(key, bytes);
    }

    fn remove(&self, key: &BlockKey) {
        self.memory.lock().expect("no panic").remove(key);
        self.disk.lock().expect("no panic").remove(key);
    }
}

fn key(n: u8) -> BlockKey {
    BlockKey::from_bytes([n; 32])
}

/// Returns a block of `n` tokens. Blocks are told apart by their number of tokens.
fn block(n: u8) -> Block {
    let keys = Array3::zeros((1, usize::from(n), 4));
    let offsets = vec![(0..1).into(); usize::from(n)];
    Block::encode(
        Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[], lang: None },
        Codec::F32,
    )
}

fn always() -> CallerWaits {
    Arc::new(|| true)
}

/// Gets `keys` from the store. Returns the token counts of their blocks and how many came from each source.
fn get(store: &KvStore, keys: &[u8], reads: &AtomicUsize) -> (Vec<usize>, BlockOrigins) {
    let all: Vec<BlockKey> = keys.iter().map(|&n| key(n)).collect();
    let read = |Unread { pending, .. }: Unread| {
        for chunk in pending {
            reads.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
            chunk.complete(block(keys[chunk.index()]));
        }
        Ok::<_, Infallible>(())
    };
    let Ok((found, sources)) = store.get(&all, BATCH, always(), |_, _, _| Ok(()), read);
    (found.into_iter().map(|block| block.expect("the caller waits").tokens()).collect(), sources)
}

#[test]
fn blocks_come_from_the_first_tier_that_has_them() {
    let tiers = Arc::new(Map::default());
    tiers.disk.lock().expect("no panic").insert(key(2), block(2).bytes().clone());
    tiers.disk.lock().expect("no panic").insert(key(3), Bytes::from_static(b"no block"));
    let store = KvStore::new(tiers);
    let reads = AtomicUsize::new(0);
    let check = |name: &str, keys: &[u8], expect: BlockOrigins| {
        let (tokens, sources) = get(&store, keys, &reads);
        assert_eq!(tokens, keys.iter().map(|&n| usize::from(n)).collect::<Vec<_>>(), "{name}");
        assert_eq!(sources, expect, "{name}");
    };
    check("no keys", &[], BlockOrigins::default());
    check("read once, though it occurs twice", &[1, 1], BlockOrigins { read: 2, ..BlockOrigins::default() });
    check("then from memory", &[1, 1, 1], BlockOrigins { memory: 3, ..BlockOrigins::default() });
    check(
        "from disk beside one to read",
        &[2, 4, 1],
        BlockOrigins { memory: 1, disk: 1, read: 1, ..BlockOrigins::default() },
    );
    check("an invalid block is read again", &[3], BlockOrigins { read: 1, ..BlockOrigins::default() });
    assert_eq!(reads.into_inner(), 3);
}

#[test]
fn blocks_that_fail_the_check_are_read_again() {
    let tiers = Arc::new(Map::default());
    tiers.memory.lock().expect("no panic").insert(key(1), block(9).bytes().clone());
    tiers.disk.lock().expect("no panic").insert(key(2), block(9).bytes().clone());
    let store = KvStore::new(tiers);
    let read = |Unread { pending, .. }: Unread| {
        pending.iter().for_each(|chunk| chunk.complete(block(chunk.index() as u8 + 1)));
        Ok::<_, Infallible>(())
    };
    let fits = |index: usize, block: &Block, _: BlockOrigin| {
        if block.tokens() == index + 1 { Ok(()) } else { Err(BadBlock("it is of another chunk")) }
    };
    let Ok((_, sources)) = store.get(&[key(1), key(2)], BATCH, always(), fits, read);
    assert_eq!(sources, BlockOrigins { read: 2, ..BlockOrigins::default() });
    let Ok((_, sources)) = store.get(&[key(1), key(2)], BATCH, always(), fits, read);
    assert_eq!(
        sources,
        BlockOrigins { memory: 2, ..BlockOrigins::default() },
        "the invalid blocks are replaced"
    );
}

#[test]
fn a_block_from_outside_is_kept_in_memory_only_after_it_is_checked() {
    let tiers = Arc::new(Map::default());
    let put = |map: &Mutex<HashMap<BlockKey, Bytes>>, n: u8, tokens: u8| {
        map.lock().expect("no panic").insert(key(n), block(tokens).bytes().clone());
    };
    put(&tiers.disk, 1, 1);
    put(&tiers.disk, 2, 9);
    put(&tiers.shared, 3, 3);
    put(&tiers.shared, 4, 9);
    let store = KvStore::new(Arc::<Map>::clone(&tiers));
    let checked = Mutex::new(Vec::new());
    let check = |index: usize, block: &Block, source: BlockOrigin| {
        checked.lock().expect("no panic").push((index + 1, source));
        if block.tokens() == index + 1 { Ok(()) } else { Err(BadBlock("it is of another chunk")) }
    };
    let keys = [1, 2, 3, 4].map(key);
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let read = |Unread { pending, .. }: Unread| {
        let memory = tiers.memory.lock().expect("no panic").clone();
        assert!(
            pending.iter().all(|chunk| !memory.contains_key(&keys[chunk.index()])),
            "no invalid block is in memory"
        );
        pending.iter().for_each(|chunk| chunk.complete(block(chunk.index() as u8 + 1)));
        Ok::<_, Infallible>(())
    };
    let get = || metrics::with_local_recorder(&recorder, || store.get(&keys, BATCH, always(), check, read));
    let Ok((_, sources)) = get();
    assert_eq!(sources, BlockOrigins { disk: 1, shared: 1, read: 2, ..BlockOrigins::default() });
    use BlockOrigin::{Disk, Memory, Shared};
    assert_eq!(*tiers.accepted.lock().expect("no panic"), [(key(1), Disk), (key(3), Shared)]);
    let found = std::mem::take(&mut *checked.lock().expect("no panic"));
    assert_eq!(found, [(1, Disk), (2, Disk), (3, Shared), (4, Shared)]);
    let text = recorder.handle().render();
    for tier in ["disk", "shared"] {
        assert!(text.contains(&format!("kv_damaged_total{{tier=\"{tier}\"}} 1")), "{text}");
    }
    let Ok((_, sources)) = get();
    assert_eq!(sources, BlockOrigins { memory: 4, ..BlockOrigins::default() });
    let found = std::mem::take(&mut *checked.lock().expect("no panic"));
    assert_eq!(found, [1, 2, 3, 4].map(|n| (n, Memory)), "check is called with the source memory");
    assert_eq!(tiers.accepted.lock().expect("no panic").len(), 2);
}

#[test]
fn concurrent_requests_read_a_chunk_once() {
    let store = KvStore::new(Arc::new(Map::default()));
    let reads = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for i in 0..8_u8 {
            let (store, reads) = (&store, &reads);
            scope.spawn(move || {
                let keys: Vec<u8> = (0..40).map(|n| (n + 5 * i) % 40).collect();
                let (tokens, _) = get(store, &keys, reads);
                assert_eq!(tokens, keys.iter().map(|&n| usize::from(n)).collect::<Vec<_>>());
            });
        }
    });
    assert_eq!(reads.into_inner(), 40);
}

#[test]
fn a_large_request_fetches_one_batch_at_a_time() {
    let store = KvStore::new(Arc::new(Map::default()));
    let keys: Vec<u8> = (0..=200).collect();
    let all: Vec<BlockKey> = keys.iter().map(|&n| key(n)).collect();
    let calls = Mutex::new(Vec::new());
    let read = |Unread { pending, later, known_tokens }: Unread| {
        assert!(pending.len() <= BATCH);
        calls.lock().expect("no panic").push((known_tokens, pending.len(), later.len()));
        // Another request for a chunk of a later batch reads it and does not wait.
        let last = &keys[200..];
        if pending.first().is_some_and(|chunk| chunk.index() == 0) {
            assert_eq!(get(&store, last, &AtomicUsize::new(0)).1.read, 1);
        }
        pending.iter().for_each(|chunk| chunk.complete(block(keys[chunk.index()])));
        Ok::<_, Infallible>(())
    };
    let Ok((_, sources)) = store.get(&all, BATCH, always(), |_, _, _| Ok(()), read);
    assert_eq!((sources.read, sources.memory), (200, 1));
    let sum = |n: usize| (0..n).sum::<usize>();
    assert_eq!(
        calls.into_inner().expect("no panic"),
        [(0, 64, 137), (sum(64), 64, 73), (sum(128), 64, 9), (sum(192) + 200, 8, 0)]
    );
}

#[test]
fn later_chunks_that_will_probably_be_read_are_estimated() {
    let tiers = Arc::new(Map::default());
    let stored = |n: u8| (key(n), block(n).bytes().clone());
    // The second batch has blocks in memory, on disk, in both, blocks that are being read, and 16 that nobody
    // has.
    let (first_batch, second_batch): (Vec<u8>, Vec<u8>) = ((0..64).collect(), (64..128).collect());
    tiers.memory.lock().expect("no panic").extend(second_batch[..20].iter().map(|&n| stored(n)));
    tiers.disk.lock().expect("no panic").extend(second_batch[16..40].iter().map(|&n| stored(n)));
    let store = KvStore::new(Arc::clone(&tiers) as Arc<dyn Tiers>);
    let keys: Vec<BlockKey> = first_batch.iter().chain(&second_batch).map(|&n| key(n)).collect();
    let check = |name: &str, expect: std::ops::Range<usize>| {
        let seen = Mutex::new(None);
        let stopped = store.get(
            &keys,
            BATCH,
            always(),
            |_, _, _| Ok(()),
            |Unread { later, .. }| {
                *seen.lock().expect("no panic") = Some(later.to_vec());
                Err(())
            },
        );
        assert!(stopped.is_err(), "{name}");
        let seen = seen.into_inner().expect("no panic").expect("read was called");
        assert_eq!(seen, expect.collect::<Vec<_>>(), "{name}");
    };
    check("chunks that neither memory nor disk has", 104..128);
    let reading: Vec<_> = (120..128).map(|n| store.flights.join(key(n), &always())).collect();
    check("and that no other request reads", 104..120);
    drop(reading);
    let shared: Vec<_> = first_batch[..48].iter().map(|&n| stored(n)).collect();
    tiers.shared.lock().expect("no panic").extend(shared);
    check("in the same proportion as in the first batch", 104..110);
}

#[test]
fn a_request_over_its_limit_is_refused_before_all_blocks_are_found() {
    let tiers = Arc::new(Map::default());
    for n in 0..=255 {
        tiers.disk.lock().expect("no panic").insert(key(n), block(n).bytes().clone());
    }
    let keys: Vec<BlockKey> = (0..=255).map(key).collect();
    let calls = AtomicUsize::new(0);
    let refused = KvStore::new(tiers).get(
        &keys,
        BATCH,
        always(),
        |_, _, _| Ok(()),
        |Unread { pending, known_tokens, .. }| {
            calls.fetch_add(1, Ordering::Relaxed);
            assert!(pending.is_empty());
            if known_tokens > 5_000 { Err(known_tokens) } else { Ok(()) }
        },
    );
    assert_eq!((refused.map(drop), calls.into_inner()), (Err((0..128).sum()), 2));
}

#[test]
fn an_error_is_returned_to_its_own_caller_and_the_next_request_reads() {
    let store = KvStore::new(Arc::new(Map::default()));
    let failed = store.get(
        &[key(1)],
        BATCH,
        always(),
        |_, _, _| Ok(()),
        |Unread { pending, .. }| if pending.is_empty() { Ok(()) } else { Err("model") },
    );
    assert_eq!(failed.map(|_| ()), Err("model"));
    assert_eq!(get(&store, &[1], &AtomicUsize::new(0)).1.read, 1);
}

#[test]
fn a_caller_that_stops_waiting_gets_no_blocks() {
    let store = KvStore::new(Arc::new(NoTiers));
    let (found, _) = store
        .get(&[key(1)], BATCH, Arc::new(|| false), |_, _, _| Ok(()), |_| Ok::<_, Infallible>(()))
        .expect("no failure");
    assert!(found[0].is_none());
}
