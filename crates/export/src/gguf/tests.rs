//! Files that llama.cpp's converter would write for the tiny models, values of quantised blocks, splits of
//! texts, and files that are refused. These tests need no ONNX Runtime.

mod writer;

use std::fs;
use std::path::Path;

use serde_json::Value as Json;
use tempfile::TempDir;
use thresher_core::model::contract::{Chat, Contract, Family};
use tokenizers::Tokenizer;

use super::GgufModel;
use super::container::GgufFile;
use super::quant::ENCODINGS;
use crate::weights::TensorFile as _;
use crate::{ExportError, ExportOptions, export};
use writer::{Writer, float, floats, list, number, numbers, of_tiny, read_json, text, texts, tiny};

fn run(source: &Path, out: &Path) -> Result<Contract, ExportError> {
    export(source, out, &ExportOptions { name: "tiny".into(), ..ExportOptions::default() }, &|_, _| {})
}

/// Writes `bytes` to a file in a new folder.
fn file(bytes: &[u8]) -> (TempDir, std::path::PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

#[test]
fn blocks_have_the_bits_of_the_reference_implementation() {
    let rows = read_json(&tiny("gguf/quants.json"));
    for row in rows.as_array().unwrap() {
        let [name, bytes, values] = ["type", "bytes", "values"].map(|key| row[key].as_str().unwrap());
        let encoding = ENCODINGS.iter().find(|encoding| encoding.name == name).unwrap();
        let found: Vec<u8> =
            encoding.decode(&hex::decode(bytes).unwrap()).into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(hex::encode(found), values, "{name}");
    }
    assert_eq!(rows.as_array().unwrap().len(), ENCODINGS.len());
}

#[test]
fn a_file_and_the_folder_that_it_was_made_from_give_the_same_model() {
    for (name, architecture) in
        [("llama", "llama"), ("llama3-tied", "llama"), ("qwen2-full", "qwen2"), ("qwen3", "qwen3")]
    {
        let (outs, mut writer) = (TempDir::new().unwrap(), of_tiny(name, architecture));
        let folder = run(&tiny(name), &outs.path().join("folder")).unwrap();
        let Family::Decoder(of_folder) = &folder.family else { panic!("{name} is a decoder") };
        if name == "llama3-tied" {
            // The factors by which the frequencies of this model are divided.
            let rotary = of_folder.rotary.as_ref().unwrap();
            let unscaled = (0..8).map(|pair| 500_000_f32.powf(-f32::from(pair as u8) / 8.0));
            let factors: Vec<f32> =
                unscaled.zip(&rotary.frequencies).map(|(unscaled, scaled)| unscaled / scaled).collect();
            writer.push_f32("rope_freqs.weight", &[8], &factors);
        }
        let (_dir, path) = file(&writer.bytes());
        let contract = run(&path, &outs.path().join("file")).unwrap();
        let Family::Decoder(of_file) = &contract.family else { panic!("{name} is a decoder") };

        let same = |file: &str| {
            let read = |out: &str| fs::read(outs.path().join(out).join(file)).unwrap();
            read("file") == read("folder")
        };
        assert!(same("weights.bin"), "{name}: the weights differ");
        let frequencies = |decoder: &thresher_core::model::contract::Decoder| {
            decoder.rotary.as_ref().unwrap().frequencies.clone()
        };
        for (a, b) in frequencies(of_file).into_iter().zip(frequencies(of_folder)) {
            assert!((a - b).abs() <= 1e-6 * b, "{name}: a frequency is {a}, expected {b}");
        }
        if name != "llama3-tied" {
            assert!(same("decoder.onnx"), "{name}: the graphs differ");
            assert_eq!(of_file, of_folder, "{name}");
        }
        assert_eq!(contract.window, folder.window, "{name}");
        assert_eq!(contract.tokenizer, folder.tokenizer, "{name}");
        let tokenizer =
            |out: &str| Tokenizer::from_file(outs.path().join(out).join("tokenizer.json")).unwrap();
        let (a, b) = (tokenizer("file"), tokenizer("folder"));
        for text in ["the rain in the sea", "<s>here? 3.14", "  two  spaces ", "unknown: ü", ""] {
            let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, true).unwrap().get_ids().to_vec();
            let limited = ids(&b);
            assert_eq!(&ids(&a)[..], &limited[..], "{name}: {text}");
        }
    }
}

/// The file was written by the Python package `gguf`; its tensors have eight types.
#[test]
fn a_file_of_another_writer_is_exported() {
    let out = TempDir::new().unwrap();
    let contract = run(&tiny("gguf/tiny.gguf"), out.path()).unwrap();
    let chat = Chat {
        template: "chat_template.jinja".into(),
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
    };
    assert_eq!(contract.tokenizer.chat, Some(chat));
    assert_eq!(contract.tokenizer.prefix, [1]);
    assert!(contract.files.contains_key("chat_template.jinja"));
    assert_eq!(contract.source.licence.as_deref(), Some("apache-2.0"));
    assert_eq!(Contract::load(out.path()).unwrap(), contract);
    contract.verify_files(out.path()).unwrap();
    let template = fs::read_to_string(out.path().join("chat_template.jinja")).unwrap();
    assert!(template.starts_with("{{ bos_token }}"), "{template}");
}

#[test]
fn a_chat_template_is_exported_and_changes_no_fingerprint() {
    let exported = |template: Option<&str>| {
        let (mut writer, out) = (of_tiny("llama", "llama"), TempDir::new().unwrap());
        template.into_iter().for_each(|template| writer.set("tokenizer.chat_template", text(template)));
        let (_dir, path) = file(&writer.bytes());
        run(&path, out.path()).unwrap()
    };
    let (without, with) = (exported(None), exported(Some("{{ messages }}")));
    assert_eq!(without.tokenizer.chat, None);
    assert_eq!(with.tokenizer.chat.as_ref().unwrap().bos_token.as_deref(), Some("<s>"));
    assert_eq!(without.fingerprint(), with.fingerprint());
    assert!(!without.files.contains_key("chat_template.jinja"));
}

#[test]
fn tokens_of_the_user_are_special_if_the_chat_template_has_them() {
    let is_special = |template: &str| {
        let mut writer = byte_level("gpt-2");
        writer.set("tokenizer.chat_template", text(template));
        let (_dir, path) = file(&writer.bytes());
        let tokenizer: serde_json::Value =
            serde_json::from_slice(&GgufModel::open(&path).unwrap().tokenizer).unwrap();
        let added = tokenizer["added_tokens"].as_array().unwrap().clone();
        added.iter().find(|token| token["content"] == "<t>").unwrap()["special"] == true
    };
    assert!(is_special("<t>{{ messages }}"));
    assert!(!is_special("{{ messages }}"));
}

/// A byte-level vocabulary: the characters of the bytes of `TEXT`, some merges, and a token of the user, `<t>`.
fn byte_level(pre: &str) -> Writer {
    let mut writer = of_tiny("llama", "llama");
    let merges = ["1 2", "12 3", "Ġ Ġ", "Ġ a", "Ġ 1", "a b"];
    let mut tokens: Vec<String> = "<s>|1|2|3|4|a|b|e|Ġ|Ċ|Ì|ģ|Ã|©|'|A".split('|').map(str::to_owned).collect();
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    tokens.extend(["12ab", "<t>"].map(str::to_owned));
    let kind = |token: &String| match &**token {
        "<s>" => 3,
        "<t>" => 4,
        _ => 1,
    };
    let kinds: Vec<i32> = tokens.iter().map(kind).collect();
    for key in ["scores", "add_bos_token"] {
        writer.remove(&format!("tokenizer.ggml.{key}"));
    }
    writer.set("tokenizer.ggml.bos_token_id", number(0));
    writer.set("tokenizer.ggml.model", text("gpt2"));
    writer.set("tokenizer.ggml.pre", text(pre));
    writer.set("tokenizer.ggml.tokens", texts(&tokens));
    writer.set("tokenizer.ggml.token_type", numbers(&kinds));
    writer.set("tokenizer.ggml.merges", texts(&merges));
    writer
}

#[test]
fn texts_are_split_as_the_file_says() {
    let check = |pre: &str, text: &str, expect: &str| {
        let (_dir, path) = file(&byte_level(pre).bytes());
        let tokenizer = Tokenizer::from_bytes(GgufModel::open(&path).unwrap().tokenizer).unwrap();
        let found = tokenizer.encode(text, true).unwrap().get_tokens().join(" ");
        assert_eq!(found, expect, "{pre}: {text:?}");
    };
    check("gpt-2", "1234 ab", "123 4 Ġa b");
    check("default", "  1", "Ġ Ġ1");
    check("smollm", "1234 ab", "1 2 3 4 Ġa b");
    check("smollm", "  1", "ĠĠ 1");
    check("llama-bpe", "1231", "<s> 123 1");
    check("llama-bpe", "  1", "<s> Ġ Ġ 1");
    check("qwen2", "1231", "1 2 3 1");
    // NFC makes one character of the letter and the accent.
    check("qwen2", "e\u{301}", "Ã ©");
    check("gpt-2", "e\u{301}", "e Ì ģ");
    check("gpt-2", "a<s>b", "a <s> b");
}

/// Changes a sound file and expects a refusal with a message that contains each of `expect`.
fn check(name: &str, change: impl FnOnce(&mut Writer), expect: &[&str]) {
    let mut writer = of_tiny("llama", "llama");
    change(&mut writer);
    check_bytes(name, writer.bytes(), expect);
}

fn check_bytes(name: &str, bytes: Vec<u8>, expect: &[&str]) {
    let (dir, path) = file(&bytes);
    let message = run(&path, &dir.path().join("out")).expect_err(name).to_string();
    for part in ["model.gguf"].iter().chain(expect) {
        assert!(message.contains(part), "{name}: `{message}` does not say `{part}`");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}: a failed export left files");
}

#[test]
fn malformed_files_are_refused() {
    let sound = of_tiny("llama", "llama").bytes();
    let patched = |at: usize, patch: &[u8]| {
        let mut bytes = sound.clone();
        bytes[at..at + patch.len()].copy_from_slice(patch);
        bytes
    };
    check_bytes("empty", Vec::new(), &["cut short", "0 bytes", "at least 4"]);
    check_bytes("magic", patched(0, b"GGML"), &["the header", "begins with `GGML`"]);
    check_bytes("version 1", patched(4, &1_u32.to_le_bytes()), &["version is `1`", "2, 3"]);
    check_bytes("big-endian", patched(4, &3_u32.to_be_bytes()), &["`big-endian`", "little-endian"]);
    check_bytes("tensor count", patched(8, &u64::MAX.to_le_bytes()), &["number of tensors", "65536"]);
    check_bytes("key count", patched(16, &u64::MAX.to_le_bytes()), &["number of metadata keys", "65536"]);
    check_bytes("one key more", patched(16, &60_000_u64.to_le_bytes()), &["model.gguf"]);
    check_bytes("key length", patched(24, &u64::MAX.to_le_bytes()), &["metadata key 0", "cut short"]);
    check_bytes("key is not UTF-8", patched(32, &[0xff]), &["metadata key 0", "not UTF-8"]);
    for bytes in [5, 20, 60, 300, 900] {
        check_bytes("cut in the header", sound[..bytes].to_vec(), &["cut short", &format!("{bytes} bytes")]);
    }
    check_bytes("cut in the data", sound[..sound.len() - 4].to_vec(), &["cut short at tensor `"]);
    check_bytes("header only", sound[..5_000].to_vec(), &["cut short at tensor `"]);

    let long = list(4, &[], u64::MAX);
    check("a list longer than the file", |w| w.set("x", long), &["cut short at x"]);
    let long = list(8, &[], u64::MAX);
    check("texts longer than the file", |w| w.set("x", long), &["model.gguf"]);
    let nested = list(9, &list(4, &[], 0), 1);
    check("a list of lists", |w| w.set("x", nested), &["x is `a list of lists`"]);
    check("an unknown type", |w| w.set("x", vec![77, 0, 0, 0, 0]), &["x: type 77 does not exist"]);
    check("a key twice", |w| w.keys.push(w.keys[0].clone()), &["general.architecture: appears twice"]);
    check(
        "alignment",
        |w| w.set("general.alignment", number(24)),
        &["general.alignment: 24", "power of two"],
    );
    check("alignment 0", |w| w.set("general.alignment", number(0)), &["general.alignment: 0"]);

    let name = "blk.0.attn_k.weight";
    let tensor = |change: fn(&mut writer::Stored)| move |w: &mut Writer| change(w.tensor(name));
    check("no axes", tensor(|t| t.sizes.clear()), &[name, "0 axes"]);
    check("five axes", tensor(|t| t.sizes = vec![1; 5]), &[name, "5 axes, expected 1 to 4"]);
    check("sizes overflow", tensor(|t| t.sizes = vec![1 << 40; 4]), &[name, "are too large"]);
    check("sizes too large", tensor(|t| t.sizes = vec![1 << 30, 1 << 31]), &[name, "are too large"]);
    check("larger than the file", tensor(|t| t.sizes = vec![32, 1 << 24]), &[name, "cut short"]);
    check("offset", tensor(|t| t.offset = Some(u64::MAX - 31)), &[name, "offset", "too large"]);
    check("outside", tensor(|t| t.offset = Some(1 << 40)), &[name, "cut short"]);
    check("not aligned", tensor(|t| t.offset = Some(33)), &[name, "offset 33 is not a multiple of 32"]);
    // The tensors have no fixed order, so any but the first one lies elsewhere.
    let overlap = |w: &mut Writer| w.tensors.last_mut().expect("tensors").offset = Some(0);
    check("overlap", overlap, &["overlaps tensor"]);
    check("not whole blocks", tensor(|t| (t.kind, t.sizes) = (2, vec![16, 64])), &[name, "16 elements"]);
    let twice = |w: &mut Writer| w.tensors[1].name = w.tensors[0].name.clone();
    check("a tensor twice", twice, &["appears twice"]);
}

#[test]
fn unsupported_files_say_what_is_supported() {
    check("architecture", |w| w.set("general.architecture", text("mamba")), &["`mamba`", "llama, qwen2"]);
    check("no architecture", |w| w.remove("general.architecture"), &["general.architecture is `missing`"]);
    let kind = |kind: u32| move |w: &mut Writer| w.tensor("output.weight").kind = kind;
    check("IQ2_XS", kind(17), &["tensor `output.weight` is `IQ2_XS`", "Q4_K"]);
    check("a new type", kind(99), &["tensor `output.weight` is `type 99`"]);
    check("a split file", |w| w.set("split.count", number(3)), &["split.count is `3`", "--merge"]);
    check("experts", |w| w.set("llama.expert_count", number(8)), &["llama.expert_count is `8`"]);
    check("yarn", |w| w.set("llama.rope.scaling.type", text("yarn")), &["`yarn`", "none, linear"]);
    check("partial", |w| w.set("llama.rope.dimension_count", number(4)), &["dimension_count is `4`", "8,"]);
    check("no layers", |w| w.remove("llama.block_count"), &["llama.block_count is `missing`"]);
    let many = |w: &mut Writer| w.set("llama.attention.head_count", numbers(&[4, 2]));
    check("heads by layer", many, &["head_count is `a list of 2 numbers`", "one number"]);
    check("a text", |w| w.set("llama.block_count", text("2")), &["llama.block_count is `2`", "one number"]);
    check("epsilon", |w| w.set("llama.rope.freq_base", float(f32::NAN)), &["freq_base is `NaN`"]);
    let large = |w: &mut Writer| w.push_f32("rope_freqs.weight", &[4097], &[1.0; 4097]);
    check("many rotary factors", large, &["rope_freqs.weight", "[4097]", "at most 4096"]);
    check("rotary factors", |w| w.push_f32("rope_freqs.weight", &[3], &[1.0; 3]), &["3 factors", "4, one"]);

    check("a layer more", |w| w.set("llama.block_count", number(3)), &["no tensor `blk.2."]);
    check("a layer less", |w| w.set("llama.block_count", number(1)), &["`blk.1.", "does not use"]);
    let wide = |w: &mut Writer| w.set("llama.feed_forward_length", number(24));
    check("shape", wide, &["tensor `blk.0.ffn_", "[20, 32]", "[24, 32]"]);
    let unknown = |w: &mut Writer| w.push_f32("blk.0.ssm_a", &[1], &[1.0]);
    check("an unknown tensor", unknown, &["`blk.0.ssm_a`", "LlamaForCausalLM does not use"]);
}

#[test]
fn tokenizers_that_cannot_be_rebuilt_are_refused() {
    let of = |key: &str, value: Vec<u8>| {
        let key = format!("tokenizer.ggml.{key}");
        move |w: &mut Writer| w.set(&key, value)
    };
    check("kind", of("model", text("t5")), &["tokenizer.ggml.model is `t5`", "gpt2, llama"]);
    check("no kind", |w| w.remove("tokenizer.ggml.model"), &["tokenizer.ggml.model is `missing`"]);
    check("no tokens", |w| w.remove("tokenizer.ggml.tokens"), &["tokenizer.ggml.tokens is `missing`"]);
    check("no scores", |w| w.remove("tokenizer.ggml.scores"), &["tokenizer.ggml.scores is `missing`"]);
    check("scores", of("scores", floats(&[1.0])), &["scores is `a list of 1 numbers`", "40 numbers"]);
    check("kinds", of("token_type", numbers(&[1])), &["token_type is `a list of 1 numbers`"]);
    check("token twice", of("tokens", texts(&["a"; 40])), &["token `a` has the ids 0 and 1"]);
    check("first token", of("bos_token_id", number(40)), &["bos_token_id is `40`", "below 40"]);
    check("no first token", |w| w.remove("tokenizer.ggml.bos_token_id"), &["bos_token_id is `missing`"]);
    check("flag", of("add_bos_token", number(1)), &["add_bos_token is `1`", "true, false"]);
    let mut long = vec![String::from("a"); 40];
    long[7] = "a".repeat(1025);
    check("a long token", of("tokens", texts(&long)), &["a token of 1025 bytes", "at most 1024 bytes"]);
    check("merge", of("merges", texts(&["ab"])), &["merges: entry 0, `ab`, is not a pair"]);
    check("merge of no tokens", of("merges", texts(&["ä ö"])), &["model.gguf: model"]);
    check("split", |w| *w = byte_level("deepseek-llm"), &["pre is `deepseek-llm`", "smollm, llama-bpe"]);
    let many: Vec<String> = (0..42).map(|id| format!("t{id}")).collect();
    let more = |w: &mut Writer| {
        w.set("tokenizer.ggml.tokens", texts(&many));
        w.set("tokenizer.ggml.scores", floats(&[0.0; 42]));
        w.set("tokenizer.ggml.token_type", numbers(&[1; 42]));
    };
    check("more tokens than rows", more, &["model.vocab", "embeds 41 tokens"]);
}

#[test]
fn a_gemma_3_file_is_described_as_its_folder_is() {
    let mut writer = of_tiny("llama", "llama");
    for (key, _) in &mut writer.keys {
        *key = key.replace("llama.", "gemma3.");
    }
    writer.set("general.architecture", text("gemma3"));
    writer.set("gemma3.attention.sliding_window", number(512));
    writer.set("gemma3.block_count", number(7));
    writer.remove("gemma3.rope.freq_base");
    writer.tensors.retain(|tensor| tensor.name != "output.weight");
    let (_dir, path) = file(&writer.bytes());
    let model = GgufModel::open(&path).unwrap();
    let expect: [(&str, Json); 9] = [
        ("architectures", ["Gemma3ForCausalLM"][..].into()),
        ("model_type", "gemma3_text".into()),
        ("tie_word_embeddings", true.into()),
        ("query_pre_attn_scalar", 8.into()),
        ("sliding_window", 512.into()),
        ("rope_theta", 1e6.into()),
        ("rope_local_base_freq", 1e4.into()),
        ("hidden_activation", "gelu_pytorch_tanh".into()),
        ("head_dim", 8.into()),
    ];
    for (key, value) in expect {
        assert_eq!(model.config[key], value, "{key}");
    }
    let kinds = model.config["layer_types"].as_array().unwrap();
    let full: Vec<_> = kinds.iter().enumerate().filter(|(_, kind)| *kind == "full_attention").collect();
    assert_eq!((kinds.len(), full.len(), full[0].0), (7, 1, 5));

    let stored = GgufFile::open(&path).unwrap().read("output_norm.weight").unwrap();
    let found = model.checkpoint.read("output_norm.weight").unwrap();
    assert!(stored.iter().zip(&found).all(|(stored, found)| stored - 1.0 == *found));
    for (checkpoint, name) in [
        ("model.layers.3.post_attention_layernorm.weight", "blk.3.post_attention_norm.weight"),
        ("model.layers.3.pre_feedforward_layernorm.weight", "blk.3.ffn_norm.weight"),
        ("model.layers.3.post_feedforward_layernorm.weight", "blk.3.post_ffw_norm.weight"),
        ("model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"),
        ("model.embed_tokens.weight", "token_embd.weight"),
    ] {
        assert_eq!(model.checkpoint.name(checkpoint), name);
    }
}
