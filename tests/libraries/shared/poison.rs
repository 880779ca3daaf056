//! Data that another program has put in place of the daemon's: blocks with a correct checksum and wrong
//! content, on disk and in a real server, values of other types, and foreign journal entries. Responses are
//! the same as without that data, and the data is replaced.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use thresher::api::CompressAnswer;
use thresher::shared_tier;
use thresher_core::domain::{Chunk, CompressRequest, Granularity, Tenant, TokenSpan};
use thresher_core::kv::block::{Block, Parts, Sentence};
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_core::kv::store::KvStore;
use thresher_core::kv::tiers::AllTiers;
use thresher_core::model::scripted::ScriptedModel;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_core::text::offsets::OffsetUnit;
use thresher_registry::log::journal::JournalLog;
use thresher_registry::{Change, Outcome, Registry, RegistrySettings};
use thresher_shared::{Shared, SharedSettings};
use tokio::runtime::Handle;

use super::{connected, counted, metrics, settings};
use crate::support::redis::{Server, available};
use crate::support::wait::eventually;

/// Two sentences, with characters of one, two and three bytes.
const TEXT: &str = "The tide \u{e9}bbs at noon. \u{6f6e} rises again at night.";
const OTHER: &str = "Nothing of that here. The moon is full.";

fn local(dir: Option<&Path>) -> LocalTiers {
    let mib = 1 << 20;
    let settings = LocalSettings {
        memory_bytes_max: 64 * mib,
        disk_bytes_max: 64 * mib,
        write_queue_bytes_max: 64 * mib,
        dir: dir.map(Into::into),
    };
    LocalTiers::open(&settings).expect("it opens")
}

/// Sends requests that read blocks in every way to a new pipeline over these tiers, as a restarted daemon
/// would. Returns the parts of the responses that depend neither on time nor on the tiers in which blocks
/// were found.
async fn responses(local: LocalTiers, shared: Option<Shared>) -> Vec<Value> {
    let tiers =
        AllTiers::new(local, shared.clone().map(|shared| shared_tier::blocks(shared, Handle::current())));
    let (model, store) = (Arc::new(ScriptedModel::new(16)), KvStore::new(Arc::new(tiers.clone())));
    let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide", "noon", "moon"]));
    let pipeline = Pipeline::new(model, tokenizer, Arc::new(store), Settings::default());
    let work = move || {
        let chunk =
            |(id, text): (&str, &str)| Chunk { title: Some("On tides".to_owned()), ..Chunk::new(id, text) };
        let chunks: Vec<Chunk> = [("a", TEXT), ("b", OTHER)].map(chunk).into();
        let answer = |granularity| {
            let request = CompressRequest {
                granularity,
                explain: true,
                ..CompressRequest::new("When does the tide ebb?", chunks.clone())
            };
            let compressed = pipeline.compress(&request, &Cancel::default()).expect("an answer");
            let answer = CompressAnswer::new(&request, compressed, OffsetUnit::Codepoint, Some(&pipeline));
            let answer = serde_json::to_value(answer).expect("JSON");
            json!([answer["context"], answer["citations"], answer["explain"], answer["chunks"]])
        };
        [Granularity::Sentence, Granularity::Word, Granularity::Chunk].map(answer).to_vec()
    };
    let answers = tokio::task::spawn_blocking(work).await.expect("no panic");
    if let Some(shared) = &shared {
        shared.flush().await;
    }
    tiers.local().close().await;
    answers
}

fn keys_in(dir: &Path) -> Vec<BlockKey> {
    let names = std::fs::read_dir(dir.join("blocks"))
        .expect("blocks")
        .map(|entry| entry.expect("an entry").file_name());
    let key = |name: std::ffi::OsString| {
        let name = name.to_string_lossy().into_owned();
        let hash = blake3::Hash::from_hex(name.split('-').nth(1).expect("a hash")).expect("a hash");
        BlockKey::from_bytes(*hash.as_bytes())
    };
    names.map(key).collect()
}

/// Named values that somebody could put in place of a block.
fn poisons(sound: &Bytes, other: &Bytes) -> Vec<(&'static str, Bytes)> {
    let block = Block::parse(sound.clone()).expect("a block");
    let (keys, offsets) = (block.keys(), block.offsets());
    let sentences: Vec<Sentence> = block.sentences().collect();
    type Change<'a> =
        &'a dyn Fn(&mut ndarray::Array3<f32>, &mut Vec<thresher_core::domain::ByteRange>, &mut Vec<Sentence>);
    let made = |change: Change| {
        let (mut keys, mut offsets, mut sentences) = (keys.clone(), offsets.clone(), sentences.clone());
        change(&mut keys, &mut offsets, &mut sentences);
        let parts = Parts {
            keys: keys.view(),
            title_tokens: block.title_tokens(),
            offsets: &offsets,
            sentences: &sentences,
            lang: block.lang(),
        };
        Block::encode(parts, block.codec()).bytes().clone()
    };
    let wild = |at: usize, start: usize, end: usize| {
        made(&move |_, offsets, _| offsets[at] = thresher_core::domain::ByteRange { start, end })
    };
    let last = offsets.len() - 1;
    let random: Vec<u8> = (0..sound.len()).map(|at| (at * 7919 % 251) as u8).collect();
    let header = |at: usize, number: u32| {
        let mut bytes = sound.to_vec();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        bytes.into()
    };
    vec![
        ("a token far beyond the text", wild(last, 4_000_000_000, 4_000_000_007)),
        ("a token one byte beyond the text", wild(last, TEXT.len(), TEXT.len() + 1)),
        ("a token inside a character", wild(0, 10, 11)),
        (
            "all tokens at the end",
            made(&|_, offsets, _| {
                offsets.iter_mut().for_each(|offset| *offset = (TEXT.len() - 1..TEXT.len()).into());
            }),
        ),
        (
            "a sentence with the tokens of the other sentence",
            made(&|_, _, sentences| sentences[1].tokens = sentences[0].tokens),
        ),
        (
            "a sentence with all tokens",
            made(&|_, _, sentences| {
                sentences[0].tokens = TokenSpan::new(0, keys.dim().1);
            }),
        ),
        ("a sentence inside a character", made(&|_, _, sentences| sentences[0].bytes.end = 10)),
        ("infinite keys", made(&|keys, _, _| keys.fill(f32::INFINITY))),
        ("huge keys", made(&|keys, _, _| keys.fill(f32::MAX))),
        ("another chunk's block", other.clone()),
        ("no header", header(8, 0)),
        ("a huge header", header(12, u32::MAX)),
        ("more tokens than bytes", header(16, u32::MAX)),
        ("random bytes", random.into()),
        ("half a block", sound.slice(..sound.len() / 2)),
        ("a byte more", [sound, &b"x"[..]].concat().into()),
        ("nothing", Bytes::new()),
        ("megabytes of zeros", vec![0; thresher_shared::BLOCK_BYTES_MAX].into()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_with_poisoned_blocks_on_disk_are_read_again() {
    metrics();
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("kv");
    let expect = responses(local(Some(&dir)), None).await;
    let keys = keys_in(&dir);
    let tiers = local(Some(&dir));
    let sound: Vec<Bytes> =
        tiers.get_many(&keys).await.into_iter().map(|hit| hit.expect("on disk").0).collect();
    drop(tiers);
    let of_text =
        sound.iter().position(|bytes| Block::parse(bytes.clone()).expect("a block").check(TEXT).is_ok());
    let of_text = of_text.expect("the text's block");
    for (name, poison) in poisons(&sound[of_text], &sound[1 - of_text]) {
        let before = damaged("disk");
        let tiers = local(Some(&dir));
        tiers.remove(&keys[of_text]);
        tiers.insert(keys[of_text], poison.clone());
        tiers.close().await;
        drop(tiers);
        assert_eq!(responses(local(Some(&dir)), None).await, expect, "{name}");
        assert_eq!(damaged("disk"), before + 1, "{name}: it is counted once");
        let tiers = local(Some(&dir));
        let found = tiers.get(&keys[of_text]).await.expect("the block is written again").0;
        assert!(found == sound[of_text], "{name}: the right block is on disk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_with_poisoned_blocks_in_a_server_are_read_again_and_the_blocks_replaced() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let shared = connected(&settings(&server.url())).await;
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("kv");
    let expect = responses(local(Some(&dir)), Some(shared.clone())).await;
    let keys = keys_in(&dir);
    let sound: Vec<Bytes> =
        shared.get_many(&keys).await.into_iter().map(|hit| hit.expect("in the server")).collect();
    let of_text =
        sound.iter().position(|bytes| Block::parse(bytes.clone()).expect("a block").check(TEXT).is_ok());
    let of_text = of_text.expect("the text's block");
    let name_of = |at: usize| format!("thresher:b:{}", keys[at]);
    for (name, poison) in poisons(&sound[of_text], &sound[1 - of_text]) {
        let before = damaged("shared");
        // The value has a valid seal: this server has no secret, so anybody can make one.
        let other = connected(&settings(&server.url())).await;
        other.put(&keys[of_text], poison.clone());
        other.flush().await;
        assert!(
            other.get_many(&[keys[of_text]]).await == [Some(poison)],
            "{name}: the value is in the server"
        );
        assert_eq!(
            responses(local(None), Some(connected(&settings(&server.url())).await)).await,
            expect,
            "{name}"
        );
        assert_eq!(damaged("shared"), before + 1, "{name}: it is counted once");
        let found = shared.get_many(&keys).await;
        assert!(found[of_text].as_ref() == Some(&sound[of_text]), "{name}: the right block is in the server");
    }
    // Values without a seal, and values of other types.
    let commands: &[(&str, &[&[&str]])] = &[
        ("a text", &[&["SET", &name_of(of_text), "hello"]]),
        ("another chunk's value", &[&["COPY", &name_of(1 - of_text), &name_of(of_text), "REPLACE"]]),
        ("512 megabytes", &[&["DEL", &name_of(of_text)], &["SETRANGE", &name_of(of_text), "536870911", "x"]]),
        ("a list", &[&["DEL", &name_of(of_text)], &["RPUSH", &name_of(of_text), "x"]]),
        ("a hash", &[&["DEL", &name_of(of_text)], &["HSET", &name_of(of_text), "x", "y"]]),
        ("a stream", &[&["DEL", &name_of(of_text)], &["XADD", &name_of(of_text), "*", "x", "y"]]),
    ];
    for (name, commands) in commands {
        let before = counted("get", "damaged");
        for command in *commands {
            server.cli(command);
        }
        let wide = SharedSettings { timeout_ms: 20_000, ..settings(&server.url()) };
        assert_eq!(responses(local(None), Some(connected(&wide).await)).await, expect, "{name}");
        assert!(counted("get", "damaged") > before, "{name}");
        let found = shared.get_many(&keys).await;
        assert!(found[of_text].as_ref() == Some(&sound[of_text]), "{name}: the right block is in the server");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_registry_log_changes_nothing_and_later_changes_arrive() {
    if !available() {
        return;
    }
    metrics();
    let server = Server::start(&[]);
    let join = async || {
        let shared = connected(&settings(&server.url())).await;
        let settings = RegistrySettings { dir: "".into(), ..RegistrySettings::default() };
        let registry = Registry::open(&settings).expect("in memory");
        registry.follow(Arc::new(JournalLog::new(&shared, &Tenant::default())));
        (registry, shared)
    };
    let (first, _first_shared) = join().await;
    let (second, _second_shared) = join().await;
    let put = |id: &str, text: &str| vec![Change::Put(Arc::new(Chunk::new(id, text)))];
    assert_eq!(first.write(put("a", "one")).await.expect("written"), [Outcome::Created]);
    let (stream, hash) = ("thresher:{j:chunks}:log", "thresher:{j:chunks}:now");
    let has = |registry: &Registry, id: &str, text: &str| {
        registry.get(&[id]).expect("readable")[0].as_ref().is_some_and(|chunk| chunk.text == text)
    };
    eventually("the second registry has the chunk", async || has(&second, "a", "one")).await;
    let megabytes = "x".repeat(100_000);
    let poisons: &[(&str, &[&str])] = &[
        ("an entry without a seal", &["XADD", stream, "*", "changes", "[{\"delete\":\"a\"}]"]),
        ("an entry of another program", &["XADD", stream, "*", "x", "y"]),
        ("an entry with a mark's name", &["XADD", stream, "*", "mark", "z"]),
        ("an entry with many fields", &["XADD", stream, "*", "a", "1", "b", "2", "changes", "3"]),
        ("a large entry", &["XADD", stream, "*", "changes", &megabytes]),
        ("a chunk without a seal", &["HSET", hash, "c:poison", "{\"id\":\"poison\",\"text\":\"x\"}"]),
        ("a large chunk", &["HSET", hash, "c:large", &megabytes]),
        ("an identity of another program", &["HSET", hash, "other", "x"]),
    ];
    for (round, (name, command)) in poisons.iter().enumerate() {
        server.cli(command);
        let text = format!("round {round}");
        let written = first.write(put("b", &text)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(written[0].is_change(), "{name}");
        eventually("the second registry has the change", async || has(&second, "b", &text)).await;
        assert!(has(&first, "a", "one") && has(&second, "a", "one"), "{name}: nothing was deleted");
        assert!(!has(&second, "poison", "x"), "{name}");
    }
    // A registry that joins later reads the hash with the poisoned fields.
    let (third, _third_shared) = join().await;
    let last = format!("round {}", poisons.len() - 1);
    eventually("the third registry has all chunks", async || {
        has(&third, "a", "one") && has(&third, "b", &last)
    })
    .await;
    assert!(!has(&third, "poison", "x"));
    // A log of another type is an error, not a panic.
    server.cli(&["DEL", stream]);
    server.cli(&["SET", stream, "x"]);
    eventually("the error says that the key is another program's", async || {
        first.write(put("c", "x")).await.is_err_and(|error| error.to_string().contains("another program's"))
    })
    .await;
    server.cli(&["DEL", stream]);
    eventually("a change succeeds again", async || first.write(put("c", "x")).await.is_ok()).await;
    eventually("the second registry has the chunk", async || has(&second, "c", "x")).await;
}

/// The counter of damaged blocks of a tier. All tests of this process count together.
fn damaged(tier: &str) -> u64 {
    let line = format!("kv_damaged_total{{tier=\"{tier}\"}} ");
    let found =
        metrics().lines().find_map(|l| l.strip_prefix(&line).map(|count| count.parse().expect("a count")));
    found.unwrap_or(0)
}
