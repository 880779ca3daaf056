//! The export of keys and values over HTTP: the content of the file, its access by tenants, and refused
//! requests.

use std::path::Path;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use thresher_core::Engine;
use thresher_core::domain::Chunk;
use thresher_core::kv::codec::Codec;
use thresher_core::kv::store::KvStore;
use thresher_core::model::ModelRuntime;
use thresher_core::model::contract::{ChosenHeads, Contract, Family, HeadChoice, QuestionTokens};
use thresher_core::model::ort::{DecoderRuntime, OrtSettings};
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_export::{ExportOptions, export};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::keys::{Keyed, entry};
use crate::support::wire::{Response, get, post};
use crate::support::{in_checkout, ort_settings, runtime_lib};
use crate::{Daemon, check_error, daemon, daemon_of, pipeline_of, registry_settings, scripted};

/// An exported small decoder. Its directory is removed when this is dropped.
struct Model {
    dir: tempfile::TempDir,
}

impl Model {
    fn new() -> Self {
        Self::of("models/facts", "small")
    }

    fn of(folder: &str, name: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let options = ExportOptions { name: name.into(), ..ExportOptions::default() };
        export(&in_checkout(folder), dir.path(), &options, &|_, _| {}).expect("it exports");
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn contract(&self) -> Contract {
        Contract::load(self.path()).expect("a contract")
    }

    fn fingerprint(&self) -> String {
        self.contract().source.weights.expect("a fingerprint of the weights")
    }

    fn tokenizer(&self) -> ModelTokenizer {
        ModelTokenizer::from_file(&self.path().join("tokenizer.json")).expect("a tokenizer")
    }

    fn pipeline(&self, settings: &OrtSettings) -> Pipeline {
        self.pipeline_with(settings, RequestLimits::default())
    }

    fn pipeline_with(&self, settings: &OrtSettings, limits: RequestLimits) -> Pipeline {
        let runtime = DecoderRuntime::load(settings).expect("the model loads");
        let settings = Settings { codec: Codec::F32, limits, ..Settings::default() };
        let store = Arc::new(KvStore::without_tiers());
        Pipeline::new(Arc::new(runtime) as Arc<dyn ModelRuntime>, Arc::new(self.tokenizer()), store, settings)
    }

    async fn daemon(&self) -> Daemon {
        daemon_of(Some(self.pipeline(&ort_settings(self.path(), 1))), 2, 2).await
    }
}

const TEXTS: [&str; 3] = [
    "the colour of Kanir is amber .",
    "",
    "Tobel is the owner of Kanir . many people came to the market today .",
];

fn request(more: Value) -> Value {
    let mut body = json!({
        "query": "what is the colour of Kanir ?",
        "chunks": [{"id": "a", "text": TEXTS[0]}, TEXTS[1], {"id": "c", "title": "Kanir", "text": TEXTS[2]}],
        "budget": {"ratio": 1},
        "include": ["kv"],
    });
    body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
    body
}

async fn compress(daemon: &Daemon, body: &Value) -> Response {
    post(daemon.http, "/v1/compress", body.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_an_export_is_there_if_a_prompt_with_it_has_the_same_tokens() {
    let model = Model::new();
    let daemon = model.daemon().await;
    let [first, _, last] = TEXTS.map(|text| format!(" {text}"));
    let check = async |name: &str, chunks: Value, before: Value, expect: Option<String>| {
        let body = request(json!({"chunks": chunks, "kv": {"before": before, "recompute": 0}}));
        let kv = compress(&daemon, &body).await.json()["kv"].clone();
        assert_eq!(kv.get("text"), expect.map(Value::from).as_ref(), "{name}: {kv}");
    };
    let both = format!("{first}{last}");
    check("texts that begin with a blank", json!([first, last]), Value::Null, Some(both.clone())).await;
    check("with a beginning", json!([first, last]), json!("many people :"), Some(both)).await;
    check("a special token in a chunk", json!([format!("{first} <s>")]), Value::Null, None).await;
    check("texts that begin without a blank", json!([TEXTS[0], TEXTS[2]]), Value::Null, None).await;
}

/// Fetches a path whose response is binary, and returns its body.
async fn fetch(daemon: &Daemon, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(daemon.http).await.expect("the daemon listens");
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("the daemon reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("a response");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a header") + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let body = answer.split_off(end);
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
    body
}

fn integers(file: &SafeTensors, name: &str) -> Vec<i32> {
    let tensor = file.tensor(name).expect("the tensor");
    assert_eq!(tensor.dtype(), Dtype::I32, "{name}");
    tensor
        .data()
        .chunks_exact(4)
        .map(|four| i32::from_le_bytes(four.try_into().expect("four bytes")))
        .collect()
}

fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).expect("the tensor");
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    tensor
        .data()
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().expect("four bytes")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_chunks_are_exported_in_the_order_of_the_context() {
    let model = Model::new();
    let daemon = model.daemon().await;
    let answer = compress(&daemon, &request(json!({}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let kv = answer.json()["kv"].clone();
    let tokenizer = model.tokenizer();
    let ids = |text: &str| tokenizer.encode(text).expect("tokens").ids;
    let (title, first, last) = (ids("Kanir. "), ids(TEXTS[0]), ids(TEXTS[2]));
    let expect: Vec<i32> = [&[0][..], &first, &title, &last].concat().iter().map(|&id| id as i32).collect();
    assert_eq!((&kv["policy"], &kv["share"]), (&json!("chunks"), &json!(1.0)));
    assert_eq!((&kv["tokens"], &kv["fingerprint"]), (&json!(expect.len()), &json!(model.fingerprint())));

    let path =
        format!("/v1/kv/{}?fingerprint={}", kv["handle"].as_str().expect("a handle"), model.fingerprint());
    let bytes = fetch(&daemon, &path).await;
    assert_eq!(json!(bytes.len()), kv["bytes"]);
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
    let about = metadata.metadata().clone().expect("the metadata of the file");
    assert_eq!((&*about["format"], &*about["chunk_ids"]), ("thresher-kv/1", r#"["a","c"]"#));
    assert_eq!(about["next_position"], expect.len().to_string());
    assert_eq!(integers(&file, "token_ids"), expect);
    assert_eq!(integers(&file, "positions"), (0..expect.len() as i32).collect::<Vec<_>>());
    let in_chunks = |special: i32, of: [i32; 2]| {
        let [a, b] = [first.len(), title.len() + last.len()];
        [vec![special], vec![of[0]; a], vec![of[1]; b]].concat()
    };
    assert_eq!(integers(&file, "chunks"), in_chunks(-1, [0, 1]));
    assert_eq!(integers(&file, "windows"), in_chunks(-1, [0, 1]));
    // The text of a token is the text of its chunk at the token's offsets.
    let vocabulary =
        tokenizers::Tokenizer::from_file(model.path().join("tokenizer.json")).expect("a tokenizer");
    let offsets = integers(&file, "offsets");
    for (at, (&id, range)) in expect.iter().zip(offsets.chunks_exact(2)).enumerate() {
        let of_title = at > first.len() && at <= first.len() + title.len();
        if at == 0 || of_title {
            assert_eq!(range, [-1, -1], "token {at}");
        } else {
            let text = if at <= first.len() { TEXTS[0] } else { TEXTS[2] };
            let decoded = vocabulary.decode(&[id as u32], false).expect("a token");
            assert_eq!(decoded.trim(), text[range[0] as usize..range[1] as usize].trim(), "token {at}");
        }
    }
    // Together, the texts have other tokens: this tokenizer begins every text with a blank.
    assert_eq!(kv.get("text"), None);

    let Family::Decoder(decoder) = model.contract().family else { panic!("a decoder") };
    for layer in 0..decoder.layers {
        for part in ["key", "value"] {
            let values = floats(&file, &format!("layers.{layer}.{part}"));
            assert_eq!(values.len(), decoder.kv_heads * expect.len() * decoder.head_dim);
            assert!(values.iter().all(|value| value.is_finite()) && values.iter().any(|value| *value != 0.0));
        }
    }
    // A second fetch returns the same file.
    assert_eq!(fetch(&daemon, &path).await, bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heads_policy_exports_rows_of_the_whole_chunks() {
    let model = Model::new();
    let daemon = model.daemon().await;
    let whole = compress(&daemon, &request(json!({}))).await.json();
    let whole =
        fetch(&daemon, &format!("/v1/kv/{}", whole["kv"]["handle"].as_str().expect("a handle"))).await;
    let whole = SafeTensors::deserialize(&whole).expect("a file");
    let Family::Decoder(decoder) = model.contract().family else { panic!("a decoder") };
    let dim = decoder.head_dim;
    for (wanted, share_max) in [
        (json!({"policy": "heads", "ratio": 0.5}), 0.5),
        (json!({"policy": "heads", "ratio": 0.3, "sinks": 1, "recent": 0}), 0.3),
        (json!({"policy": "heads", "mass": 0.8, "sinks": 2}), 1.0),
        (json!({"policy": "heads", "ratio": 1}), 1.0),
    ] {
        let answer = compress(&daemon, &request(json!({"kv": wanted}))).await;
        assert_eq!(answer.status, 200, "{wanted}: {}", answer.body);
        let kv = answer.json()["kv"].clone();
        let share = kv["share"].as_f64().expect("a share");
        assert!(share > 0.0 && share <= share_max, "{wanted}: {share}");
        let bytes = fetch(&daemon, &format!("/v1/kv/{}", kv["handle"].as_str().expect("a handle"))).await;
        assert_eq!(json!(bytes.len()), kv["bytes"]);
        let file = SafeTensors::deserialize(&bytes).expect("a file");
        let tokens = integers(&file, "token_ids").len();
        let mut kept = 0;
        for layer in 0..decoder.layers {
            let counts = integers(&file, &format!("layers.{layer}.counts"));
            let rows = integers(&file, &format!("layers.{layer}.tokens"));
            assert_eq!(counts.iter().sum::<i32>() as usize, rows.len());
            for part in ["key", "value"] {
                let name = format!("layers.{layer}.{part}");
                let (some, all) = (floats(&file, &name), floats(&whole, &name));
                let heads = counts.iter().enumerate().flat_map(|(head, &count)| vec![head; count as usize]);
                for (at, (head, &token)) in heads.zip(&rows).enumerate() {
                    let from = (head * tokens + token as usize) * dim;
                    assert_eq!(some[at * dim..(at + 1) * dim], all[from..from + dim], "{name}, row {at}");
                }
            }
            let mut rest = &rows[..];
            for &count in &counts {
                let (of_head, behind) = rest.split_at(count as usize);
                rest = behind;
                assert!(of_head.is_sorted_by(|a, b| a < b) && of_head.first() == Some(&0), "{of_head:?}");
                kept += of_head.len() - 1;
            }
        }
        let all = decoder.layers * decoder.kv_heads * (tokens - 1);
        assert!(
            (kept as f64 / all as f64 - share).abs() < 1e-9,
            "{wanted}: {kept} of {all} rows, the response says {share}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_export_is_refused_by_name() {
    let model = Model::new();
    let daemon = model.daemon().await;
    for (more, error, message) in [
        (
            json!({"kv": {"policy": "heads", "ratio": 0.1, "sinks": 4, "recent": 4}}),
            "422 budget_impossible kv.ratio",
            "the first 3 and the last 4",
        ),
        (
            json!({"kv": {"policy": "heads", "ratio": 0.5, "sinks": u64::MAX, "recent": u64::MAX}}),
            "422 budget_impossible kv.ratio",
            "and the last 0",
        ),
        (json!({"kv": {"policy": "heads", "ratio": 0}}), "422 out_of_range kv.ratio", "greater than 0"),
        (json!({"kv": {"policy": "heads", "mass": 1.5}}), "422 out_of_range kv.mass", "1.5"),
        (json!({"kv": {"policy": "heads", "mass": 0.5, "ratio": 0.5}}), "422 fields_conflict kv", "not both"),
        (json!({"kv": {"ratio": 0.5}}), "422 fields_conflict kv", "heads"),
        (json!({"kv": {"policy": "heads", "before": "why ?"}}), "422 fields_conflict kv", "before"),
        (json!({"kv": {"prompt": ""}}), "422 field_empty kv.prompt", "leave it out"),
        (json!({"kv": {"before": ""}}), "422 field_empty kv.before", "leave it out"),
        (json!({"kv": {"before": "why ".repeat(513)}}), "422 too_long kv.before", "the limit is"),
        (json!({"kv": {"recompute": 1.5}}), "422 out_of_range kv.recompute", "1.5"),
        (json!({"kv": {"recompute": -0.1}}), "422 out_of_range kv.recompute", "from 0 to 1"),
        (json!({"kv": {"dtype": "int8"}}), "400 unknown_value kv.dtype", "bf16"),
        (
            json!({"kv": {"policy": "heads", "prompt": "why ".repeat(513)}}),
            "422 too_long kv.prompt",
            "the limit is",
        ),
        (json!({"kv": {"policy": "layers"}}), "400 unknown_value kv.policy", "layers"),
        (json!({"include": ["keys"]}), "400 unknown_value include[0]", "keys"),
    ] {
        check_error(&more.to_string(), &compress(&daemon, &request(more.clone())).await, error, message);
    }
    // The model reads the question only for its RC.
    let long = |recompute: f64| json!({"query": "why ".repeat(300), "kv": {"recompute": recompute}});
    let refused = compress(&daemon, &request(long(0.15))).await;
    check_error("a long question", &refused, "422 too_long query", "the limit is");
    let made = compress(&daemon, &request(long(0.0))).await;
    assert_eq!((made.status, &made.json()["kv"]["recomputed"]), (200, &json!(0)), "{}", made.json());
    let unknown = get(daemon.http, "/v1/kv/kv_0").await;
    check_error("an unknown handle", &unknown, "404 id_unknown handle", "they expired");
    let kv = compress(&daemon, &request(json!({}))).await.json()["kv"].clone();
    let handle = kv["handle"].as_str().expect("a handle");
    let other = get(daemon.http, &format!("/v1/kv/{handle}?fingerprint=0123")).await;
    check_error("another model", &other, "409 model_mismatch fingerprint", "0123");
    check_error("another model", &other, "409 model_mismatch fingerprint", &model.fingerprint());
    let odd = get(daemon.http, &format!("/v1/kv/{handle}?model=x")).await;
    check_error("an unknown parameter", &odd, "400 wrong_type model", "fingerprint");

    let refused = compress(&daemon_of_encoder().await, &request(json!({}))).await;
    check_error("an encoder", &refused, "422 unavailable include", "scripted is an encoder");
}

async fn daemon_of_encoder() -> Daemon {
    daemon(Some(scripted()), 1, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_chosen_heads_exports_all_layers_only_with_model_layers_all() {
    let model = Model::new();
    let mut contract = model.contract();
    let Family::Decoder(decoder) = &mut contract.family else { panic!("a decoder") };
    decoder.chosen = Some(ChosenHeads {
        heads: vec![(0, 1)],
        question_tokens: QuestionTokens::All,
        by: HeadChoice::ExpectedRc,
        held_out: 1.0,
        held_out_all: 1.0,
        questions: 2,
        data: "none".into(),
    });
    contract.save(model.path()).expect("saved");
    let refused = compress(&model.daemon().await, &request(json!({}))).await;
    check_error("only one layer is loaded", &refused, "422 unavailable include", "model.kv_dir");
    let settings = OrtSettings { all_layers: true, ..ort_settings(model.path(), 1) };
    let daemon = daemon_of(Some(model.pipeline(&settings)), 2, 2).await;
    let answer = compress(&daemon, &request(json!({"kv": {"policy": "heads", "ratio": 0.5}}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_is_valid_for_its_tenant_only() {
    let model = Model::new();
    let keys = entry("a", "tenant = \"a\"") + &entry("b", "tenant = \"b\"");
    let pipeline = model.pipeline(&ort_settings(model.path(), 1));
    let keyed = Keyed::start_with(&keys, pipeline, &registry_settings()).await;
    let answer = keyed.post("a", "/v1/compress", &request(json!({}))).await.json();
    let path = format!("/v1/kv/{}", answer["kv"]["handle"].as_str().expect("a handle"));
    check_error(
        "a handle of another tenant",
        &keyed.get("b", &path).await,
        "404 id_unknown handle",
        "another tenant's",
    );
    assert_eq!(keyed.ask("a", ("HEAD", &path), "").await.status, 200);
}

/// The rows that each head keeps, in all layers.
fn kept_rows(file: &[u8]) -> Vec<Vec<i32>> {
    let file = SafeTensors::deserialize(file).expect("a file");
    let names = file.names();
    let layers = names.iter().filter(|name| name.ends_with(".tokens")).count();
    (0..layers).map(|layer| integers(&file, &format!("layers.{layer}.tokens"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_chosen_for_the_prompt_of_the_request() {
    let model = Model::new();
    let daemon = model.daemon().await;
    let kept = async |prompt: Option<&str>| {
        let mut kv = json!({"policy": "heads", "ratio": 0.3});
        if let Some(prompt) = prompt {
            kv["prompt"] = json!(prompt);
        }
        let answer = compress(&daemon, &request(json!({"kv": kv}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let handle = answer.json()["kv"]["handle"].as_str().expect("a handle").to_owned();
        kept_rows(&fetch(&daemon, &format!("/v1/kv/{handle}")).await)
    };
    let of_query = kept(None).await;
    assert_eq!(kept(Some("what is the colour of Kanir ?")).await, of_query, "the query is the default");
    assert_ne!(kept(Some("who is the owner of Kanir ?")).await, of_query);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_of_a_chunk_is_never_a_special_token() {
    let model = Model::new();
    let daemon = model.daemon().await;
    let body = request(json!({"chunks": ["the colour <s> of Kanir is amber ."]}));
    let answer = compress(&daemon, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let handle = answer.json()["kv"]["handle"].as_str().expect("a handle").to_owned();
    let bytes = fetch(&daemon, &format!("/v1/kv/{handle}")).await;
    let ids = integers(&SafeTensors::deserialize(&bytes).expect("a file"), "token_ids");
    let special: Vec<usize> = (0..ids.len()).filter(|&at| ids[at] == 0).collect();
    assert_eq!(special, [0], "only the token at the beginning is special: {ids:?}");
    // A prompt is the operator's own text.
    let of_prompt = model.tokenizer().encode_prompt("the colour <s> of").expect("tokens").ids;
    assert!(of_prompt.contains(&0), "{of_prompt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_selects_while_a_decoder_exports() {
    let model = Model::new();
    let settings = OrtSettings { all_layers: true, ..ort_settings(model.path(), 1) };
    let both = || {
        let decoder = model.pipeline(&settings);
        pipeline_of(scripted(), KvStore::without_tiers()).with_exporter(Arc::new(decoder))
    };
    let daemon = daemon_of(Some(both()), 2, 2).await;
    let body = request(json!({"kv": {"policy": "heads", "ratio": 0.5}}));
    let answer = compress(&daemon, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let (rc, kv) = (&answer.json()["rc"], &answer.json()["kv"]);
    assert_eq!((&rc["model"], &kv["fingerprint"]), (&json!("scripted"), &json!(model.fingerprint())));
    let path =
        format!("/v1/kv/{}?fingerprint={}", kv["handle"].as_str().expect("a handle"), model.fingerprint());
    let alone = compress(&model.daemon().await, &body).await.json();
    assert_eq!(kv["tokens"], alone["kv"]["tokens"], "the decoder's tokens, not the encoder's");
    assert_eq!(fetch(&daemon, &path).await.len(), kv["bytes"].as_u64().expect("bytes") as usize);

    let models = get(daemon.http, "/v1/models").await.json();
    let described: Vec<_> = models["data"].as_array().expect("models").iter().collect();
    assert_eq!(described.len(), 2, "{models}");
    for (described, (name, exports)) in described.iter().zip([("scripted", false), ("small", true)]) {
        assert_eq!((&described["id"], &described["exports_kv"]), (&json!(name), &json!(exports)), "{models}");
    }
    // The decoder's tokenizer may find more tokens in a query than the encoder's, so it has the same limit.
    let limits = RequestLimits { query_tokens_max: 3, ..RequestLimits::default() };
    let strict = Arc::new(model.pipeline_with(&settings, limits));
    let strict = pipeline_of(scripted(), KvStore::without_tiers()).with_exporter(strict);
    let strict = daemon_of(Some(strict), 2, 2).await;
    let answer = compress(&strict, &body).await;
    check_error("long for the decoder", &answer, "422 too_long query", "tokens");

    // Other tenants have the same two models.
    let keyed = Keyed::start_with(&entry("a", "tenant = \"a\""), both(), &registry_settings()).await;
    let of_tenant = keyed.post("a", "/v1/compress", &body).await.json();
    assert_eq!(of_tenant["kv"]["fingerprint"], json!(model.fingerprint()), "{of_tenant}");
}

#[test]
fn an_engine_loads_both_models() {
    let (encoder, decoder) = (Model::of("models/tiny/bert-gelu", "encoder"), Model::new());
    let engine = Engine::builder(encoder.path(), runtime_lib()).kv_model_dir(decoder.path()).build();
    let pipeline = engine.expect("both models load").into_pipeline();
    let exporter = pipeline.exporter().expect("another model exports");
    assert_eq!((&*pipeline.model().name, &*exporter.model().name), ("encoder", "small"));
    let (chunks, cancel) = ([Arc::new(Chunk::new("a", "the colour of Kanir is amber ."))], Cancel::default());
    assert_eq!(pipeline.warm(&chunks, &cancel).expect("it reads"), 1);
    let read = exporter.warm(&chunks, &cancel).expect("it reads");
    assert_eq!(read, 1, "only the model that scores reads ahead of requests");
}
