//! What an export refuses, with the message that a user reads, and what it leaves behind: a table of broken sources.
//! No ONNX Runtime is needed.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;
use thresher::{
    export::{ExportError, ExportOptions, export},
    model::contract::{CONTRACT_FILE, Contract, Weights},
};

const SINGLE: &str = "bert-gelu";
const SHARDED: &str = "bert-tanh-masked-lm";

/// A copy of a tiny model, to be broken.
fn source(name: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny").join(name);
    for entry in fs::read_dir(fixture).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn run(source: &Path, out: &Path) -> Result<Contract, ExportError> {
    export(source, out, &ExportOptions { weights: Weights::F32, name: "tiny".into() })
}

/// Breaks a copy of `model` and expects an error that says each of `expect`, and nothing written.
fn check(model: &str, break_it: impl FnOnce(&Path), expect: &[&str]) {
    let (source, parent) = (source(model), TempDir::new().unwrap());
    break_it(source.path());
    let message = run(source.path(), &parent.path().join("out")).unwrap_err().to_string();
    for part in expect {
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
    assert_eq!(names(parent.path()), [""; 0], "an export that failed left something: {message}");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Edits a JSON file in place.
fn edit(file: &str, change: impl FnOnce(&mut Value)) -> impl FnOnce(&Path) {
    move |dir| {
        let path = dir.join(file);
        let mut json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, json.to_string()).unwrap();
    }
}

fn set(file: &str, pointer: &str, value: Value) -> impl FnOnce(&Path) {
    edit(file, move |json| *json.pointer_mut(pointer).unwrap() = value)
}

/// Renames a tensor in the header of `model.safetensors` to a key of the same length.
fn rename_tensor(from: &str, to: &str) -> impl FnOnce(&Path) {
    assert_eq!(from.len(), to.len());
    move |dir| {
        let path = dir.join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(path, bytes).unwrap();
    }
}

fn cut(file: &'static str, bytes: u64) -> impl FnOnce(&Path) {
    move |dir| fs::File::options().write(true).open(dir.join(file)).unwrap().set_len(bytes).unwrap()
}

fn remove(file: &'static str) -> impl FnOnce(&Path) {
    move |dir| fs::remove_file(dir.join(file)).unwrap()
}

fn write(file: &'static str, text: &'static str) -> impl FnOnce(&Path) {
    move |dir| fs::write(dir.join(file), text).unwrap()
}

#[test]
fn missing_and_malformed_files_are_named() {
    check(SINGLE, remove("config.json"), &["config.json", "cannot read"]);
    check(SINGLE, remove("tokenizer.json"), &["tokenizer.json", "cannot read"]);
    check(SINGLE, remove("model.safetensors"), &["model.safetensors", "cannot read"]);
    check(SINGLE, write("config.json", "{\"architectures\": [\n"), &["config.json", "line 2"]);
    check(SINGLE, write("tokenizer.json", "{"), &["tokenizer.json", "line 1"]);
    check(SINGLE, write("sentence_bert_config.json", "[]"), &["sentence_bert_config.json"]);
    check(
        SINGLE,
        edit("config.json", |c| drop(c.as_object_mut().unwrap().remove("hidden_size"))),
        &["`hidden_size`"],
    );
    check(SINGLE, set("config.json", "/hidden_size", json!("32")), &["config.json", "\"32\""]);
}

#[test]
fn unsupported_configurations_say_what_is_supported() {
    let config = |key: &'static str, value: Value| set("config.json", key, value);
    check(
        SINGLE,
        config("/architectures", json!(["LlamaForCausalLM"])),
        &["config.json", "architectures", "`LlamaForCausalLM`", "BertModel"],
    );
    check(SINGLE, config("/hidden_act", json!("silu")), &["config.json", "hidden_act is `silu`", "gelu_new"]);
    check(
        SINGLE,
        config("/position_embedding_type", json!("relative_key")),
        &["position_embedding_type is `relative_key`", "absolute"],
    );
    check(SINGLE, config("/num_attention_heads", json!(5)), &["num_attention_heads is `5`", "32"]);
    check(SINGLE, config("/num_attention_heads", json!(0)), &["num_attention_heads is `0`"]);
    let decoder = edit("config.json", |c| c["is_decoder"] = json!(true));
    check(SINGLE, decoder, &["is_decoder is `true`"]);
}

#[test]
fn broken_checkpoints_are_named() {
    check(SINGLE, cut("model.safetensors", 5), &["model.safetensors", "5 bytes", "cut short"]);
    check(SINGLE, cut("model.safetensors", 100), &["model.safetensors", "100 bytes", "cut short"]);
    check(SINGLE, cut("model.safetensors", 90_000), &["model.safetensors", "90000 bytes", "cut short"]);
    check(
        SINGLE,
        write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        &["model.safetensors", "not a safetensors"],
    );
    check(
        SHARDED,
        remove("model-00002-of-00002.safetensors"),
        &["model.safetensors.index.json", "model-00002-of-00002.safetensors"],
    );
    check(
        SHARDED,
        cut("model-00001-of-00002.safetensors", 20_000),
        &["model-00001-of-00002.safetensors", "cut short"],
    );
    check(
        SHARDED,
        write("model.safetensors.index.json", "{}"),
        &["model.safetensors.index.json", "weight_map"],
    );
    let unlisted = edit("model.safetensors.index.json", |index| {
        index["weight_map"]["bert.pooler.dense.bias"] = json!("../model.safetensors");
    });
    check(SHARDED, unlisted, &["model.safetensors.index.json", "../model.safetensors"]);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let lost = rename_tensor("encoder.layer.1.output.dense.bias", "encoder.layer.1.output.dense.biaz");
    check(SINGLE, lost, &["model.safetensors", "`encoder.layer.1.output.dense.bias`"]);
    let index = edit("model.safetensors.index.json", |index| {
        drop(index["weight_map"].as_object_mut().unwrap().remove("bert.embeddings.LayerNorm.bias"))
    });
    check(SHARDED, index, &["model.safetensors.index.json", "`bert.embeddings.LayerNorm.bias`"]);
    let wider = set("config.json", "/intermediate_size", json!(65));
    check(
        SINGLE,
        wider,
        &["model.safetensors", "`encoder.layer.0.intermediate.dense.weight`", "[64, 32]", "[65, 32]"],
    );
    let longer = set("config.json", "/max_position_embeddings", json!(41));
    check(SINGLE, longer, &["`embeddings.position_embeddings.weight`", "[40, 32]", "[41, 32]"]);
    // The same bytes, called integers.
    check(SINGLE, rename_tensor("\"F32\"", "\"I32\""), &["model.safetensors", "I32", "BF16"]);
}

#[test]
fn tokenizers_that_do_not_fit_are_named() {
    let more = set("config.json", "/vocab_size", json!(20));
    check(SINGLE, more, &["tokenizer.json", "model.vocab", "embeds 20 tokens"]);
    let bare = set("tokenizer.json", "/post_processor", Value::Null);
    check(SINGLE, bare, &["tokenizer.json", "post_processor", "expected a token on each side"]);
    let one_sided =
        edit("tokenizer.json", |t| drop(t["post_processor"]["single"].as_array_mut().unwrap().pop()));
    check(SINGLE, one_sided, &["tokenizer.json", "post_processor", "[2]", "[]"]);
    let unknown = set("tokenizer.json", "/post_processor/special_tokens/[SEP]/ids", json!([4000]));
    check(SINGLE, unknown, &["tokenizer.json", "post_processor", "4000"]);
    check(SINGLE, set("tokenizer.json", "/model/type", json!("Riddle")), &["tokenizer.json", "model"]);
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    for model in [SINGLE, SHARDED] {
        let (source, outs) = (source(model), TempDir::new().unwrap());
        let [a, b] = ["a", "b"].map(|name| outs.path().join(name));
        assert_eq!(run(source.path(), &a).unwrap(), run(source.path(), &b).unwrap());
        assert_eq!(
            names(&a),
            ["contract.toml", "passage.onnx", "query.onnx", "tokenizer.json", "weights.bin"]
        );
        for name in names(&a) {
            assert!(
                fs::read(a.join(&name)).unwrap() == fs::read(b.join(&name)).unwrap(),
                "{model}: {name} differs"
            );
        }
    }
}

#[test]
fn the_window_is_the_shorter_of_what_the_model_and_its_publisher_allow() {
    for (model, tokens_max) in [(SINGLE, 40), (SHARDED, 24), ("bert-relu-half", 32)] {
        let (source, out) = (source(model), TempDir::new().unwrap());
        assert_eq!(run(source.path(), out.path()).unwrap().window.tokens_max, tokens_max, "{model}");
    }
}

#[test]
fn the_stored_tokenizer_neither_cuts_nor_pads() {
    let (source, out) = (source(SINGLE), TempDir::new().unwrap());
    run(source.path(), out.path()).unwrap();
    let limits = |dir: &Path| {
        let json: Value = serde_json::from_slice(&fs::read(dir.join("tokenizer.json")).unwrap()).unwrap();
        [json["truncation"].clone(), json["padding"].clone()]
    };
    assert_ne!(limits(source.path())[0], Value::Null, "the fixture must have a limit to take out");
    assert_eq!(limits(out.path()), [Value::Null, Value::Null]);
}

#[test]
fn an_earlier_export_is_replaced_and_nothing_else() {
    let (source, parent) = (source(SINGLE), TempDir::new().unwrap());
    let out = parent.path().join("out");
    run(source.path(), &out).unwrap();
    fs::write(
        out.join(CONTRACT_FILE),
        fs::read_to_string(out.join(CONTRACT_FILE)).unwrap().replace("tiny", "old"),
    )
    .unwrap();
    // What a killed export leaves is taken over.
    fs::create_dir(parent.path().join(".out.partial")).unwrap();
    run(source.path(), &out).unwrap();
    assert_eq!(Contract::load(&out).unwrap().name, "tiny");
    assert_eq!(names(parent.path()), ["out"]);

    fs::write(out.join("notes.txt"), "mine").unwrap();
    let message = run(source.path(), &out).unwrap_err().to_string();
    assert!(message.contains("notes.txt"), "{message}");
    assert_eq!(fs::read_to_string(out.join("notes.txt")).unwrap(), "mine");

    let message = run(source.path(), source.path()).unwrap_err().to_string();
    assert!(message.contains("not part of an exported model"), "{message}");
    let file = parent.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(matches!(run(source.path(), &file), Err(ExportError::Read { .. })));
}

#[test]
fn a_failed_export_leaves_the_earlier_one() {
    let (source, parent) = (source(SINGLE), TempDir::new().unwrap());
    let out = parent.path().join("out");
    let contract = run(source.path(), &out).unwrap();
    rename_tensor("encoder.layer.1.output.dense.bias", "encoder.layer.1.output.dense.biaz")(source.path());
    run(source.path(), &out).unwrap_err();
    assert_eq!(Contract::load(&out).unwrap(), contract);
    contract.verify_files(&out).unwrap();
    assert_eq!(names(parent.path()), ["out"]);
}
