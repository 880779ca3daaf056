//! Sources that an export refuses, the messages that its users read, and the files that it leaves behind.
//! These tests need no ONNX Runtime.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;
use thresher_core::model::contract::{self, CONTRACT_FILE, Contract, Weights};
use thresher_core::model::onnx::{self, DataLocation, GraphProto, StringStringEntryProto, TensorProto};
use thresher_export::{ExportError, ExportOptions, Prefixes, export};

const SINGLE: &str = "bert-gelu";
const SHARDED: &str = "bert-tanh-masked-lm";

/// A copy of a tiny model that a test may break.
fn source(name: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny").join(name);
    copy(&fixture, dir.path());
    dir
}

/// Copies the files of a folder and of its folders.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn run(source: &Path, out: &Path) -> Result<Contract, ExportError> {
    export(source, out, &ExportOptions { name: "tiny".into(), ..ExportOptions::default() }, &|_, _| {})
}

/// Breaks a copy of `model` and expects that its export writes nothing and fails with a message that contains
/// each of `expect`.
fn check(model: &str, break_it: impl FnOnce(&Path), expect: &[&str]) {
    let (source, parent) = (source(model), TempDir::new().unwrap());
    break_it(source.path());
    let message = run(source.path(), &parent.path().join("out")).unwrap_err().to_string();
    for part in expect {
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
    assert_eq!(names(parent.path()), [""; 0], "a failed export left files: {message}");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

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

/// Replaces a name in the header of `model.safetensors` with another one of the same length.
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
        &["config.json", "hidden_size is `missing`"],
    );
    check(
        SINGLE,
        |dir| {
            remove("model.safetensors")(dir);
            write("pytorch_model.bin", "")(dir);
        },
        &["`pytorch_model.bin` but no `model.safetensors`", "AutoModel.save_pretrained"],
    );
    check(
        SINGLE,
        |dir| {
            remove("tokenizer.json")(dir);
            write("sentencepiece.bpe.model", "")(dir);
        },
        &["`sentencepiece.bpe.model` but no `tokenizer.json`", "AutoTokenizer.save_pretrained"],
    );
    check(SINGLE, set("config.json", "/hidden_size", json!("32")), &["config.json", "\"32\""]);
}

/// Breaks a copy of a tiny decoder by setting a key of its configuration.
fn check_decoder(model: &str, key: &'static str, value: Value, expect: &[&str]) {
    check(model, edit("config.json", |config| config[key] = value), expect);
}

#[test]
fn unsupported_decoder_settings_are_refused_by_name() {
    let check = check_decoder;
    let yarn = json!({"rope_type": "yarn", "factor": 2.0});
    check(
        "llama",
        "rope_scaling",
        yarn,
        &["config.json", "rope_scaling is `yarn`", "default, linear, llama3"],
    );
    let cut = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    check("llama", "rope_scaling", cut, &["original_max_position_embeddings is `missing`"]);
    let newer = json!({"rope_type": "dynamic", "rope_theta": 1e4});
    check("llama", "rope_parameters", newer, &["rope_scaling is `dynamic`"]);
    check("llama", "hidden_act", json!("mish"), &["hidden_act is `mish`", "silu"]);
    check("llama", "num_key_value_heads", json!(3), &["num_key_value_heads is `3`", "divisors of 4"]);
    check("llama", "partial_rotary_factor", json!(0.5), &["partial_rotary_factor is `0.5`", "supported: 1"]);
    check("gpt-neox", "rotary_pct", json!(0.07), &["rotary_pct is `0.07`", "even part of 16"]);
    check("llama", "quantization_config", json!({"bits": 4}), &["quantization_config", "null"]);
    check("llama", "attn_logit_softcapping", json!(50.0), &["attn_logit_softcapping is `50.0`"]);
    check("llama", "logits_scaling", json!(8.0), &["logits_scaling is `8.0`", "null, 1"]);
    check("llama", "hidden_size", json!(null), &["hidden_size is `missing`"]);
    check("llama", "num_hidden_layers", json!("2"), &["num_hidden_layers", "string"]);
    check("llama", "num_hidden_layers", json!(0), &["num_hidden_layers is `0`", "1 to"]);
    check("llama", "num_hidden_layers", json!(1_u64 << 62), &["num_hidden_layers is `4611686018427387904`"]);
    check(
        "llama",
        "num_attention_heads",
        json!(1_u64 << 62),
        &["num_attention_heads is `4611686018427387904`"],
    );
    check("llama", "num_key_value_heads", json!(0), &["num_key_value_heads is `0`"]);
    check("llama", "rope_theta", json!(0.0), &["rope_theta is `0", "above 0"]);
    check(
        "mistral-linear",
        "rope_scaling",
        json!({"type": "linear", "factor": 0.0}),
        &["a frequency of inf"],
    );
    check("llama", "max_position_embeddings", json!(1), &["max_position_embeddings is `1`"]);
    check("mistral-sliding", "sliding_window", json!(0), &["sliding_window is `0`"]);
    check(
        "qwen2",
        "layer_types",
        json!(["full_attention"]),
        &["layer_types is `1 types`", "3, one for each layer"],
    );
    let chunked = json!(["full_attention", "chunked_attention", "full_attention"]);
    check("qwen2", "layer_types", chunked, &["layer_types is `chunked_attention`"]);
    check("qwen2", "use_sliding_window", json!(false), &["sliding_window is `off`", "sliding_attention"]);
    check(
        "gpt2",
        "scale_attn_by_inverse_layer_idx",
        json!(true),
        &["scale_attn_by_inverse_layer_idx is `true`"],
    );
    check("gpt2", "n_head", json!(3), &["n_head is `3`", "divisors of the hidden size 20"]);
}

#[test]
fn unsupported_settings_of_gemma3_are_refused_by_name() {
    let check = |key: &'static str, value: Value, expect: &[&str]| {
        check_decoder("gemma3", key, value, expect);
    };
    check(
        "architectures",
        json!(["Gemma3ForConditionalGeneration"]),
        &["architectures is `Gemma3ForConditionalGeneration`", "Gemma3ForCausalLM; save the text model"],
    );
    check("attn_logit_softcapping", json!(50.0), &["attn_logit_softcapping is `50.0`", "null"]);
    check("final_logit_softcapping", json!(30.0), &["final_logit_softcapping is `30.0`", "null"]);
    check("use_bidirectional_attention", json!(true), &["use_bidirectional_attention is `true`", "false"]);
    check("query_pre_attn_scalar", json!(0), &["query_pre_attn_scalar is `0`", "above 0"]);
    check("head_dim", json!(null), &["head_dim is `missing`"]);
    check("sliding_window", json!(null), &["sliding_window is `off`", "sliding_attention"]);
    check("sliding_window_pattern", json!(0), &["sliding_window_pattern is `0`"]);
    check("hidden_activation", json!("mish"), &["hidden_activation is `mish`"]);
    let dynamic = json!({"rope_type": "dynamic", "factor": 2.0});
    check("rope_scaling", dynamic, &["rope_scaling is `dynamic`"]);
    check("rope_local_base_freq", json!(0.0), &["rope_local_base_freq is `0"]);
    check(
        "rope_parameters",
        json!({"rope_theta": 1e4}),
        &["rope_parameters", "the key rope_theta", "full_attention"],
    );
    let yarn = json!({"sliding_attention": {"rope_type": "yarn"}});
    check("rope_parameters", yarn, &["rope_scaling is `yarn`"]);
    // A bias that the checkpoint does not have.
    check("attention_bias", json!(true), &["no tensor `model.layers.0.self_attn."]);
    // The query scale is a setting of Gemma only.
    check_decoder("llama", "query_pre_attn_scalar", json!(256), &["query_pre_attn_scalar is `256`"]);
}

/// Newer versions of `transformers` write other keys for the same layers and rotary frequencies.
#[test]
fn older_and_newer_configurations_of_gemma3_give_the_same_export() {
    type Change = fn(&mut serde_json::Map<String, Value>);
    let check = |name: &str, model: &str, change: Change| {
        let (older, newer, outs) = (source(model), source(model), TempDir::new().unwrap());
        let older = run(older.path(), &outs.path().join("older")).unwrap();
        edit("config.json", |config| change(config.as_object_mut().unwrap()))(newer.path());
        assert_eq!(run(newer.path(), &outs.path().join("newer")).unwrap(), older, "{name}");
    };
    check("one object for each kind of layers", "gemma3", |config| {
        config.remove("rope_theta").unwrap();
        config.remove("rope_local_base_freq").unwrap();
        let parameters = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        });
        config.insert("rope_parameters".to_owned(), parameters);
    });
    check("scaling inside the object", "gemma3-linear", |config| {
        for key in ["rope_theta", "rope_local_base_freq", "rope_scaling"] {
            config.remove(key).unwrap();
        }
        let parameters = json!({
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        });
        config.insert("rope_parameters".to_owned(), parameters);
    });
    check("the bases are left to their defaults", "gemma3", |config| {
        config.remove("rope_theta").unwrap();
        config.remove("rope_local_base_freq").unwrap();
    });
    check("a list of layers", "gemma3", |config| {
        config.remove("sliding_window_pattern").unwrap();
        config["layer_types"] = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    });
}

/// The contract of `model` after a change of its configuration.
fn decoder_contract(model: &str, change: impl FnOnce(&mut Value)) -> contract::Decoder {
    let (source, out) = (source(model), TempDir::new().unwrap());
    edit("config.json", change)(source.path());
    match run(source.path(), &out.path().join("out")).unwrap().family {
        contract::Family::Decoder(decoder) => decoder,
        contract::Family::Late(_) | contract::Family::Cross(_) => panic!("{model} is a decoder"),
    }
}

#[test]
fn the_contract_declares_the_windows_and_frequencies_of_each_layer() {
    let check =
        |model: &str, change: fn(&mut Value), windows: &[usize], second_frequencies: [Option<f32>; 2]| {
            let decoder = decoder_contract(model, change);
            let second =
                |rotary: &Option<contract::Rotary>| rotary.as_ref().map(|rotary| rotary.frequencies[1]);
            let found = [second(&decoder.rotary), second(&decoder.rotary_local)];
            assert_eq!((&decoder.sliding_windows[..], found), (windows, second_frequencies), "{model}");
        };
    let [global, local] = [1e6, 1e4].map(|theta: f64| Some(theta.powf(-1.0 / 6.0) as f32));
    let unchanged: fn(&mut Value) = |_| {};
    check("gemma3", unchanged, &[5, 5, 0], [global, local]);
    check("gemma3", |c| c["rope_local_base_freq"] = json!(1e6), &[5, 5, 0], [global, None]);
    check("gemma3", |c| c["sliding_window_pattern"] = json!(1), &[], [global, None]);
    check("gemma3", |c| c["sliding_window_pattern"] = json!(6), &[5, 5, 5], [local, None]);
    check("mistral-sliding", unchanged, &[4, 4], [local, None]);
    check("qwen2", unchanged, &[0, 5, 5], [Some(1e6_f64.powf(-1.0 / 4.0) as f32), None]);
    check("qwen2-full", unchanged, &[], [Some(0.1), None]);
    check("gpt2", unchanged, &[], [None, None]);
}

#[test]
fn decoders_whose_files_contradict_their_config_are_refused() {
    // Llama's code would leave the norms of queries and keys out, and the biases.
    let llama = |c: &mut Value| c["architectures"] = json!(["LlamaForCausalLM"]);
    check("qwen3", edit("config.json", llama), &["k_norm.weight", "LlamaForCausalLM does not use"]);
    check(
        "qwen2-full",
        edit("config.json", llama),
        &["self_attn.k_proj.bias", "LlamaForCausalLM does not use"],
    );
    let longer = |c: &mut Value| c["num_hidden_layers"] = json!(3);
    check("llama", edit("config.json", longer), &["no tensor `model.layers.2."]);
    let shorter = |c: &mut Value| c["num_hidden_layers"] = json!(1);
    check("llama", edit("config.json", shorter), &["model.layers.1.", "does not use"]);
    check("llama", remove("tokenizer.json"), &["tokenizer.json", "cannot read"]);
}

#[test]
fn a_weight_type_that_the_family_does_not_support_is_refused() {
    let check = |model: &str, weights: Weights, expect: &[&str]| {
        let (source, parent) = (source(model), TempDir::new().unwrap());
        let options = ExportOptions { weights, name: "tiny".into(), ..ExportOptions::default() };
        let refused =
            export(source.path(), &parent.path().join("out"), &options, &|_, _| {}).unwrap_err().to_string();
        expect.iter().for_each(|part| assert!(refused.contains(part), "`{refused}` does not say `{part}`"));
        assert_eq!(names(parent.path()), [""; 0]);
    };
    check("llama", Weights::Int8, &["--weights int8", "LlamaForCausalLM", "f32, f16"]);
}

#[test]
fn unsupported_configurations_say_what_is_supported() {
    let config = |key: &'static str, value: Value| set("config.json", key, value);
    check(
        SINGLE,
        config("/architectures", json!(["T5ForConditionalGeneration"])),
        &["config.json", "architectures", "`T5ForConditionalGeneration`", "BertModel", "LlamaForCausalLM"],
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
fn unsupported_settings_of_encoders_are_refused_by_name() {
    let check = check_decoder;
    for (model, class) in [
        ("xlm-roberta", "XLMRobertaForTokenClassification"),
        ("distilbert", "DistilBertForQuestionAnswering"),
        ("mpnet", "MPNetForTokenClassification"),
        ("modernbert", "ModernBertForSequenceClassification"),
        ("xlm-roberta", "DebertaV2Model"),
    ] {
        let found = format!("architectures is `{class}`");
        check(
            model,
            "architectures",
            json!([class]),
            &["config.json", &found, "XLMRobertaModel", "HF_ColBERT"],
        );
    }
    check("xlm-roberta", "position_embedding_type", json!("relative_key"), &["relative_key", "absolute"]);
    check("xlm-roberta", "hidden_act", json!("mish"), &["hidden_act is `mish`", "gelu_new"]);
    check(
        "xlm-roberta",
        "max_position_embeddings",
        json!(2),
        &["max_position_embeddings is `2`", "more than 2"],
    );
    check("distilbert", "n_heads", json!(3), &["n_heads is `3`", "divisors of the hidden size 20"]);
    check("distilbert", "activation", json!("silu"), &["activation is `silu`", "gelu"]);
    check("distilbert", "quantization_config", json!({"bits": 4}), &["quantization_config", "null"]);
    check(
        "mpnet",
        "relative_attention_num_buckets",
        json!(64),
        &["relative_attention_num_buckets is `64`", "supported: 32"],
    );
    check("modernbert", "hidden_activation", json!("silu"), &["hidden_activation is `silu`"]);
    check(
        "modernbert",
        "layer_types",
        json!(["full_attention"]),
        &["layer_types is `1 types`", "4, one for each"],
    );
    let chunked = json!(["chunked_attention", "full_attention", "full_attention", "full_attention"]);
    check("modernbert", "layer_types", chunked, &["layer_types is `chunked_attention`", "sliding_attention"]);
    let yarn = json!({"full_attention": {"rope_type": "yarn", "factor": 4.0}});
    check("modernbert", "rope_parameters", yarn, &["rope_scaling is `yarn`"]);
    check("modernbert-biases", "attention_bias", json!(false), &["layers.0.attn.Wo.bias", "does not use"]);
    check("modernbert", "mlp_bias", json!(true), &["no tensor `model.layers.0.mlp.Wi.bias`"]);
    for (key, value) in [
        ("prenorm", json!(true)),
        ("causal", json!(true)),
        ("qkv_proj_bias", json!(true)),
        ("rotary_emb_interleaved", json!(true)),
        ("rotary_emb_fraction", json!(0.5)),
        ("num_experts", json!(8)),
        ("activation_function", json!("mish")),
    ] {
        check("nomic-bert", key, value.clone(), &["config.json", key, value.to_string().trim_matches('"')]);
    }
}

#[test]
fn encoders_whose_files_contradict_their_config_are_refused() {
    let layers = |count: usize| edit("config.json", move |c| c["num_hidden_layers"] = json!(count));
    check("xlm-roberta", layers(1), &["roberta.encoder.layer.1.", "XLMRobertaForMaskedLM does not use"]);
    check("mpnet", layers(3), &["no tensor `encoder.layer.2."]);
    check(SINGLE, layers(1), &["encoder.layer.1.", "BertModel does not use"]);
}

#[test]
fn unsupported_settings_of_colbert_are_refused_by_name() {
    let stanford = |key: &'static str, value: Value| edit("artifact.metadata", move |json| json[key] = value);
    check(
        "colbert",
        stanford("similarity", json!("l2")),
        &["artifact.metadata", "similarity is `l2`", "cosine"],
    );
    check(
        "colbert",
        stanford("query_token_id", json!("[gone]")),
        &["artifact.metadata", "query_token_id is `[gone]`", "tokens of tokenizer.json"],
    );
    check("colbert", stanford("query_maxlen", json!(41)), &["tokens_min", "41", "40"]);
    check("colbert", rename_tensor("linear.weight", "linear.waight"), &["no tensor `linear.weight`"]);

    let model = "colbert-pylate";
    check(model, remove("config_sentence_transformers.json"), &["config_sentence_transformers.json"]);
    check(
        model,
        edit("config_sentence_transformers.json", |c| c["document_prefix"] = json!("[P] ")),
        &["config_sentence_transformers.json", "document_prefix is `[P] `"],
    );
    let dense = |key: &'static str, value: Value| edit("1_Dense/config.json", move |json| json[key] = value);
    check(
        model,
        dense("activation_function", json!("torch.nn.Tanh")),
        &["activation_function is `torch.nn.Tanh`"],
    );
    check(model, dense("use_residual", json!(true)), &["use_residual is `true`"]);
    check(
        model,
        edit("modules.json", |c| c[1]["path"] = json!("../other")),
        &["modules.json", "path is `../other`"],
    );
    let second = |c: &mut Value| {
        let dense = c[1].clone();
        c.as_array_mut().unwrap().push(dense);
    };
    check(model, edit("modules.json", second), &["modules.json", "several modules Dense"]);
    check(model, remove("1_Dense/model.safetensors"), &["1_Dense/model.safetensors", "cannot read"]);
}

/// A projection of pooled vectors is no part of the vectors of tokens.
#[test]
fn a_projection_after_pooling_is_left_out() {
    let (source, out) = (source("colbert-pylate"), TempDir::new().unwrap());
    let pooled = |c: &mut Value| {
        let pooling = json!({"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"});
        c.as_array_mut().unwrap().insert(1, pooling);
    };
    edit("modules.json", pooled)(source.path());
    let contract = run(source.path(), out.path()).unwrap();
    let contract::Family::Late(late) = contract.family else { panic!("an encoder") };
    assert_eq!((late.head_dim, contract.tokenizer.question), (16, None));
}

#[test]
fn prefixes_of_a_decoder_are_refused() {
    let (source, parent) = (source("llama"), TempDir::new().unwrap());
    let prefixes = Prefixes { question: Some("query: ".into()), passage: None };
    let options = ExportOptions { name: "tiny".into(), prefixes, ..ExportOptions::default() };
    let refused = export(source.path(), &parent.path().join("out"), &options, &|_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("LlamaForCausalLM is a decoder"), "{refused}");
    assert_eq!(names(parent.path()), [""; 0]);
}

#[test]
fn unsound_cross_encoders_are_refused_by_name() {
    let labels = |labels: Value| edit("config.json", move |c| c["id2label"] = labels);
    let unclear = ["id2label is `yes, no`", "begins with entail or support", "--support-label"];
    check("cross-bert", labels(json!({"0": "yes", "1": "no"})), &unclear);
    let two = json!({"0": "entailment", "1": "supported"});
    check("cross-bert", labels(two), &["id2label is `entailment, supported`", "one label"]);
    check("cross-bert", labels(json!({"1": "entailment", "2": "no"})), &["id2label is `1, 2`", "from 0 on"]);
    let four = json!({"0": "entailment", "1": "a", "2": "b", "3": "c"});
    check("cross-bert", labels(four), &["classifier.weight", "[3, 20]", "[4, 20]"]);
    let no_pair = |tokenizer: &mut Value| {
        tokenizer["post_processor"]["pair"] =
            json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]);
    };
    check("cross-bert", edit("tokenizer.json", no_pair), &["tokenizer.json", "post_processor", "two texts"]);
    check("cross-mpnet", cut("model.safetensors", 100), &["cut short"]);
    for (model, named, expect) in [
        ("cross-bert", "no", "a label of this name for --support-label no"),
        (SINGLE, "entailment", "MPNetForSequenceClassification, with --support-label"),
    ] {
        let (source, parent) = (source(model), TempDir::new().unwrap());
        let options = ExportOptions { support_label: Some(named.into()), ..ExportOptions::default() };
        let refused = export(source.path(), &parent.path().join("out"), &options, &|_, _| {}).unwrap_err();
        assert!(refused.to_string().contains(expect), "{refused}");
    }
    let (source, parent) = (source("cross-mpnet"), TempDir::new().unwrap());
    let prefixes = Prefixes { question: Some("query: ".into()), passage: None };
    let options = ExportOptions { prefixes, ..ExportOptions::default() };
    let refused = export(source.path(), &parent.path().join("out"), &options, &|_, _| {}).unwrap_err();
    assert!(refused.to_string().contains("MPNetForSequenceClassification is a cross-encoder"), "{refused}");
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
    // The same bytes, declared as integers.
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
    let nameless = edit("tokenizer.json", |t| {
        drop(t["post_processor"]["special_tokens"].as_object_mut().unwrap().remove("[SEP]"));
    });
    check(SINGLE, nameless, &["tokenizer.json", "post_processor", "\"[SEP]\""]);
    let two =
        set("tokenizer.json", "/post_processor/single/0", json!({"Sequence": {"id": "B", "type_id": 0}}));
    check(SINGLE, two, &["tokenizer.json", "post_processor", "second"]);
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
fn the_window_is_the_smaller_of_the_models_and_the_publishers_limit() {
    for (model, tokens_max) in [(SINGLE, 40), (SHARDED, 24), ("bert-relu-half", 32)] {
        let (source, out) = (source(model), TempDir::new().unwrap());
        assert_eq!(run(source.path(), out.path()).unwrap().window.tokens_max, tokens_max, "{model}");
    }
}

#[test]
fn the_exported_tokenizer_neither_truncates_nor_pads() {
    let (source, out) = (source(SINGLE), TempDir::new().unwrap());
    run(source.path(), out.path()).unwrap();
    let limits = |dir: &Path| {
        let json: Value = serde_json::from_slice(&fs::read(dir.join("tokenizer.json")).unwrap()).unwrap();
        [json["truncation"].clone(), json["padding"].clone()]
    };
    assert_ne!(limits(source.path())[0], Value::Null, "the fixture must have a truncation to remove");
    assert_eq!(limits(out.path()), [Value::Null, Value::Null]);
}

#[test]
fn an_export_replaces_an_earlier_export_and_no_other_files() {
    let (source, parent) = (source(SINGLE), TempDir::new().unwrap());
    let out = parent.path().join("out");
    run(source.path(), &out).unwrap();
    fs::write(
        out.join(CONTRACT_FILE),
        fs::read_to_string(out.join(CONTRACT_FILE)).unwrap().replace("tiny", "old"),
    )
    .unwrap();
    // A killed export leaves such a directory.
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
fn a_failed_export_keeps_the_earlier_one() {
    let (source, parent) = (source(SINGLE), TempDir::new().unwrap());
    let out = parent.path().join("out");
    let contract = run(source.path(), &out).unwrap();
    rename_tensor("encoder.layer.1.output.dense.bias", "encoder.layer.1.output.dense.biaz")(source.path());
    run(source.path(), &out).unwrap_err();
    assert_eq!(Contract::load(&out).unwrap(), contract);
    contract.verify_files(&out).unwrap();
    assert_eq!(names(parent.path()), ["out"]);
}

fn graph(change: impl FnOnce(&mut GraphProto)) -> impl FnOnce(&Path) {
    move |dir| {
        let path = dir.join("model.onnx");
        let mut model = onnx::read_model(&path).unwrap();
        change(model.graph.as_mut().unwrap());
        fs::write(path, model.to_bytes()).unwrap();
    }
}

fn tensor(name: &'static str, change: impl FnOnce(&mut TensorProto)) -> impl FnOnce(&Path) {
    graph(move |graph| change(graph.initializer.iter_mut().find(|tensor| tensor.name == name).unwrap()))
}

#[test]
fn onnx_files_that_are_damaged_or_of_other_models_are_refused_with_the_place() {
    let model = "bert-onnx";
    let words = "embeddings.word_embeddings.weight_quantized";
    let cut = |length: usize| {
        move |dir: &Path| {
            let file = fs::OpenOptions::new().write(true).open(dir.join("model.onnx")).unwrap();
            file.set_len(length as u64).unwrap();
        }
    };
    check(model, cut(20_000), &["model.onnx", "not an ONNX file"]);
    check(model, cut(0), &["model.onnx", "the graph", "without `embeddings.word_embeddings.weight`"]);
    check(
        model,
        |dir| fs::write(dir.join("model.onnx"), "text").unwrap(),
        &["model.onnx", "not an ONNX file"],
    );
    check(model, |dir| fs::remove_file(dir.join("tokenizer.json")).unwrap(), &["tokenizer.json"]);
    check(
        model,
        tensor(words, |words| words.name = "wte".into()),
        &["the graph of a BERT", "model.safetensors"],
    );
    check(model, tensor(words, |words| words.dims = vec![-1, 32]), &[words, "shape [-1, 32]"]);
    check(model, tensor(words, |words| words.dims = vec![i64::MAX, 32]), &[words, "shape"]);
    check(model, tensor(words, |words| words.dims = vec![91, 32]), &[words, "2880 bytes", "[91, 32]"]);
    check(model, tensor(words, |words| words.data_type = 10), &[words, "elements of type 10", "Int8, Uint8"]);
    let scale = "embeddings.word_embeddings.weight_scale";
    check(model, tensor(scale, |scale| scale.name = "scale".into()), &[scale, "is missing"]);
    check(model, tensor(scale, |scale| scale.float_data = vec![f32::NAN]), &[scale, "not a finite number"]);
    check(model, tensor(scale, |scale| scale.float_data = vec![1.0; 2]), &[scale, "2 elements"]);
    let bias = "encoder.layer.1.output.dense.bias";
    check(
        model,
        tensor(bias, |bias| bias.name = "onnx::Add_7".into()),
        &["no tensor `encoder.layer.1.output.dense.weight`"],
    );
    let outside = |words: &mut TensorProto| {
        words.data_location = DataLocation::External.into();
        words.external_data =
            vec![StringStringEntryProto { key: "location".into(), value: "../model.onnx".into() }];
    };
    check(
        model,
        tensor(words, outside),
        &[words, "`../model.onnx`", "not the name of a file in this folder"],
    );
    let short = |words: &mut TensorProto| {
        words.data_location = DataLocation::External.into();
        words.external_data =
            vec![StringStringEntryProto { key: "location".into(), value: "tokenizer.json".into() }];
        words.dims = vec![900, 32];
    };
    check(model, tensor(words, short), &["tokenizer.json", "cut short", words, "28800"]);
    let roberta = |graph: &mut GraphProto| graph.node[0].op_type = "CumSum".into();
    check(model, graph(roberta), &["numbering of positions", "CumSum", "BERT"]);
    let erf = |graph: &mut GraphProto| {
        graph
            .node
            .iter_mut()
            .filter(|node| node.op_type == "Erf")
            .for_each(|node| node.op_type = "Tanh".into());
    };
    check(model, graph(erf), &["activation", "not GELU"]);
    let config = |dir: &Path| {
        let config = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama"});
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
    };
    check(model, config, &["config.json", "model_type is `llama`"]);
}
