//! Tables of invalid contracts, and of graphs that do not conform to a contract.

use std::fs;

use super::*;
use crate::rc::{OverQuestion, Reference};

pub(crate) fn contract() -> Contract {
    let files = ["passage.onnx", "query.onnx", "weights.bin", "tokenizer.json"];
    Contract {
        schema: SCHEMA,
        name: "tiny".into(),
        architecture: "BertModel".into(),
        source: CheckpointInfo { licence: Some("apache-2.0".into()), ..CheckpointInfo::default() },
        tokenizer: Tokenizer {
            file: files[3].into(),
            prefix: vec![2],
            suffix: vec![3],
            vocab_size: 90,
            prefix_text: None,
            chat: None,
            question: None,
        },
        window: Window { tokens_max: 40 },
        weights: StoredWeights { file: files[2].into(), dtype: Weights::F32 },
        family: Family::Late(Late {
            passage: files[0].into(),
            query: files[1].into(),
            heads: 1,
            head_dim: 32,
            scale: 1.0,
            key_layout: KEY_LAYOUT.into(),
            key_dtype: "f32".into(),
        }),
        files: files.map(|name| (name.to_owned(), hex::encode(Sha256::digest(name)))).into(),
    }
}

fn late(contract: &mut Contract) -> &mut Late {
    let Family::Late(late) = &mut contract.family else {
        panic!("the contract of these tests is of a late-interaction model")
    };
    late
}

fn decoder() -> Contract {
    let mut contract = contract();
    contract.files.remove("passage.onnx");
    contract.tokenizer.suffix.clear();
    contract.family = Family::Decoder(Decoder {
        graph: "query.onnx".into(),
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        scale: 0.125,
        context_tokens_max: 64,
        kv_dtype: "f32".into(),
        sliding_windows: Vec::new(),
        rotary: Some(Rotary { dim: 4, frequencies: vec![1.0, 0.01] }),
        rotary_local: None,
        qk_norm: false,
        chosen: Some(ChosenHeads {
            heads: vec![(0, 3), (1, 0)],
            question_tokens: QuestionTokens::Last,
            by: HeadChoice::ExpectedRc,
            held_out: 0.5,
            held_out_all: 0.25,
            questions: 60,
            data: hex::encode([1; 32]),
        }),
        eviction: Some(Box::new(CalibratedEviction {
            questions: 40,
            data: hex::encode([2; 32]),
            ratios: vec![4, 16],
            held_out_kl: vec![0.25, 1.0],
            form: EvictionForm {
                reference: Reference::SelfLogits,
                over_question: OverQuestion::Peak,
                neighbours: 3,
                scale: KeyScale::Mean,
                budget: BudgetScope::Head,
                floor: 0.0,
            },
        })),
        probe: None,
    });
    contract
}

/// A decoder whose first two layers have a sliding window and rotary frequencies of their own.
fn decoder_with_local_layers() -> Contract {
    let mut contract = decoder();
    let Family::Decoder(inner) = &mut contract.family else { panic!("a decoder") };
    inner.sliding_windows = vec![5, 5, 0];
    inner.rotary_local = Some(Rotary { dim: 4, frequencies: vec![1.0, 0.5] });
    contract
}

/// Creates a folder with the contract and its files. The content of each file is its name.
fn model(contract: &Contract) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    contract.files.keys().for_each(|name| fs::write(dir.path().join(name), name).unwrap());
    contract.save(dir.path()).unwrap();
    dir
}

fn chat() -> Contract {
    let mut contract = decoder();
    let template = "chat_template.jinja";
    contract.tokenizer.chat =
        Some(Chat { template: template.into(), bos_token: Some("<s>".into()), eos_token: None });
    contract.files.insert(template.into(), hex::encode(Sha256::digest(template)));
    contract
}

#[test]
fn a_chat_template_changes_no_fingerprint_and_needs_a_hash() {
    assert_eq!(chat().fingerprint(), decoder().fingerprint());
    let other = ("template = \"chat_template.jinja\"", "template = \"other\"");
    check_load(&chat(), other.0, other.1, &["tokenizer.chat.template", "`other` has no hash"]);
}

/// An encoder with a marker before questions, a prefix before passages, and padding.
fn asymmetric() -> Contract {
    let mut contract = contract();
    contract.tokenizer.prefix_text = Some("passage: ".into());
    contract.tokenizer.question = Some(Question {
        prefix: vec![2, 7],
        suffix: vec![3],
        prefix_text: None,
        padding: Some(QuestionPadding { token: 5, tokens_min: 32, attended: true }),
    });
    contract
}

#[test]
fn what_stands_around_a_question_is_checked_and_part_of_the_fingerprint() {
    let check = |from: &str, to: &str, expect: &[&str]| check_load(&asymmetric(), from, to, expect);
    check("token = 5", "token = 90", &["special token id 90", "vocab_size 90"]);
    check("tokens_min = 32", "tokens_min = 41", &["tokenizer.question.padding.tokens_min", "41", "40"]);
    check("tokens_max = 40", "tokens_max = 3", &["window.tokens_max", "3 special tokens"]);
    let mut of_decoder = decoder();
    of_decoder.tokenizer.question = asymmetric().tokenizer.question;
    check_message(of_decoder.save(tempfile::tempdir().unwrap().path()), &["tokenizer.question"]);

    assert_ne!(asymmetric().fingerprint(), contract().fingerprint());
    let mut other = asymmetric();
    other.tokenizer.question.as_mut().expect("has one").prefix = vec![2, 8];
    assert_ne!(other.fingerprint(), asymmetric().fingerprint());
    let mut described = contract();
    described.tokenizer.prefix_text = Some("passage: ".into());
    assert_eq!(described.fingerprint(), contract().fingerprint());
}

#[test]
fn a_saved_contract_loads_unchanged() {
    for contract in [contract(), asymmetric(), decoder(), decoder_with_local_layers(), chat()] {
        let dir = model(&contract);
        assert_eq!(Contract::load(dir.path()).unwrap(), contract);
        contract.verify_files(dir.path()).unwrap();
    }
}

/// Replaces `from` by `to` in a valid contract, and expects an error whose message contains each of `expect`.
fn check_load(good: &Contract, from: &str, to: &str, expect: &[&str]) {
    let dir = model(good);
    let path = dir.path().join(CONTRACT_FILE);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "the contract has no `{from}`");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
    check_message(Contract::load(dir.path()), expect);
}

fn check_message<T: std::fmt::Debug>(result: Result<T, ContractError>, expect: &[&str]) {
    let message = result.unwrap_err().to_string();
    for part in expect {
        assert!(message.contains(part), "`{message}` does not contain `{part}`");
    }
}

#[test]
fn an_error_names_the_file_and_the_invalid_key() {
    let check = |from: &str, to: &str, expect: &[&str]| check_load(&contract(), from, to, expect);
    check("schema = 2", "schema = 1", &["contract.toml", "schema is 1", "reads 2", "export the model again"]);
    check("schema = 2", "schema = 3\ncolour = 3", &["schema is 3"]);
    check("schema = 2", "", &["contract.toml", "schema"]);
    check("schema = 2", "schema = 2\ncolour = 3", &["contract.toml", "colour"]);
    check("head_dim = 32", "head_dim = 32\ncolour = 3", &["colour"]);
    check("name = \"tiny\"", "", &["contract.toml", "name"]);
    check("[late]", "[early]", &["early", "late", "decoder"]);
    check("heads = 1", "heads = -1", &["heads", "-1"]);
    check("heads = 1", "heads = 0", &["late", "heads is 0"]);
    check("scale = 1.0", "scale = nan", &["late.scale", "NaN"]);
    check("scale = 1.0", "scale = -1.0", &["late.scale", "-1"]);
    check("head,token,dim", "token,head,dim", &["late.key_layout", "token,head,dim"]);
    check("key_dtype = \"f32\"", "key_dtype = \"f64\"", &["late.key_dtype", "f64"]);
    check("tokens_max = 40", "tokens_max = 2", &["window.tokens_max", "2 special"]);
    check("prefix = [2]", "prefix = [90]", &["tokenizer", "90"]);
    check("passage = \"passage.onnx\"", "passage = \"other.onnx\"", &["late.passage", "other.onnx"]);
    check("\"query.onnx\" = \"", "\"query.onnx\" = \"x", &["files", "query.onnx", "hexadecimal"]);
    check("[files]", "[files]\n\"../x\" = \"\"", &["files", "`../x`"]);
    check(
        "[files]",
        "[files]\n\"gone.bin\" = \"0000000000000000000000000000000000000000000000000000000000000000\"",
        &["gone.bin", "does not exist"],
    );
}

#[test]
fn an_error_of_a_decoder_names_the_file_and_the_invalid_key() {
    let check = |from: &str, to: &str, expect: &[&str]| check_load(&decoder(), from, to, expect);
    check("suffix = []", "suffix = [3]", &["tokenizer.suffix", "must be empty"]);
    check("layers = 3", "layers = 0", &["decoder", "0 layers"]);
    check("layers = 3", "layers = 9999999999999", &["decoder", "9999999999999", "the limit is 4096"]);
    check("kv_heads = 2", "kv_heads = 3", &["decoder.kv_heads", "3 does not divide 4"]);
    check("scale = 0.125", "scale = inf", &["decoder.scale", "inf"]);
    check("kv_dtype = \"f32\"", "kv_dtype = \"f16\"", &["decoder.kv_dtype", "f16"]);
    check("context_tokens_max = 64", "context_tokens_max = 39", &["window.tokens_max", "40", "39"]);
    check("dim = 4", "dim = 6", &["decoder.rotary", "dim is 6", "2 frequencies", "head_dim 8"]);
    check("0.01", "nan", &["decoder.rotary.frequencies", "NaN"]);
    check("[0, 3]", "[0, 4]", &["decoder.chosen.heads", "head 4 of layer 0", "3 layers of 4 heads"]);
    check("by = \"expected_rc\"", "by = \"luck\"", &["luck", "expected_rc", "accuracy"]);
    let mut unsorted = decoder();
    chosen(&mut unsorted).heads.reverse();
    check_message(unsorted.save(tempfile::tempdir().unwrap().path()), &["decoder.chosen.heads", "ascending"]);
    chosen(&mut unsorted).heads.clear();
    check_message(unsorted.save(tempfile::tempdir().unwrap().path()), &["decoder.chosen.heads", "empty"]);
}

#[test]
fn an_error_of_a_layers_positions_names_the_key() {
    let check = |from: &str, to: &str, expect: &[&str]| {
        check_load(&decoder_with_local_layers(), from, to, expect);
    };
    let windows = "sliding_windows = [5, 5, 0]";
    check(windows, "sliding_windows = [5, 0]", &["decoder.sliding_windows", "2 entries", "3 layers"]);
    check(windows, "", &["decoder.rotary_local", "a layer with a sliding window"]);
    check(windows, "sliding_windows = [0, 0, 0]", &["decoder.rotary_local", "a layer with a sliding window"]);
    check("0.5", "inf", &["decoder.rotary_local.frequencies", "inf"]);
    check("[decoder.rotary]", "[decoder.turns]", &["turns"]);
    check("rotary_local]\ndim = 4", "rotary_local]\ndim = 2", &["decoder.rotary_local", "dim is 2"]);
}

#[test]
fn each_layer_has_a_window_and_an_encoding() {
    let contract = decoder_with_local_layers();
    let Family::Decoder(local) = &contract.family else { panic!("a decoder") };
    let of = |decoder: &Decoder, layer| {
        let encoding = decoder.rotary_of_layer(layer).map(|rotary| rotary.frequencies[1]);
        (decoder.sliding_window(layer), encoding)
    };
    let found: Vec<_> = (0..3).map(|layer| of(local, layer)).collect();
    assert_eq!(found, [(Some(5), Some(0.5)), (Some(5), Some(0.5)), (None, Some(0.01))]);
    let one = Decoder { rotary_local: None, ..local.clone() };
    assert_eq!(of(&one, 0), (Some(5), Some(0.01)));
    let undeclared = Decoder { sliding_windows: Vec::new(), ..one };
    assert_eq!(of(&undeclared, 0), (None, Some(0.01)));
    assert_eq!(of(&Decoder { rotary: None, ..undeclared }, 0), (None, None));
}

/// The hash was computed before the contract had keys for single layers. A model keeps it, so that its cached
/// blocks stay valid.
#[test]
fn keys_that_a_contract_does_not_have_leave_its_fingerprint_unchanged() {
    assert_eq!(
        hex::encode(decoder().fingerprint()),
        "2e8acbe5310cfe7b05b1a7d02c1e071842e4492f8d34225db8ed5fb8517632fb"
    );
    let mut with_windows = decoder();
    let Family::Decoder(inner) = &mut with_windows.family else { panic!("a decoder") };
    inner.sliding_windows = vec![5, 5, 0];
    assert_eq!(with_windows.fingerprint(), decoder().fingerprint(), "the graph has the windows, too");
    assert_ne!(decoder_with_local_layers().fingerprint(), decoder().fingerprint());
}

fn chosen(contract: &mut Contract) -> &mut ChosenHeads {
    let Family::Decoder(Decoder { chosen: Some(chosen), .. }) = &mut contract.family else {
        panic!("the contract has chosen heads")
    };
    chosen
}

#[test]
fn a_decoders_fingerprint_depends_on_the_depth_but_not_on_the_chosen_heads() {
    let with = |heads: &[(usize, usize)]| {
        let mut contract = decoder();
        chosen(&mut contract).heads = heads.to_vec();
        contract.fingerprint()
    };
    assert_eq!(with(&[(1, 0)]), with(&[(0, 1), (1, 3)]));
    assert_ne!(with(&[(1, 0)]), with(&[(2, 0)]));
    let mut all = decoder();
    let Family::Decoder(inner) = &mut all.family else { panic!("a decoder") };
    inner.chosen = None;
    assert_eq!((inner.depth(), inner.readout().len()), (3, 12));
    assert_eq!(all.fingerprint(), with(&[(2, 0)]));
}

/// The decoder with a probe over the heads of two of its three layers.
fn with_probe() -> Contract {
    let mut contract = decoder();
    let weights = contract.files[&contract.weights.file].clone();
    let Family::Decoder(inner) = &mut contract.family else { panic!("a decoder") };
    inner.probe = Some(Box::new(Probe {
        features: ProbeFeatures::AttentionMass,
        template: TEMPLATE_DEFAULT.to_owned(),
        layers: 2,
        bias: -2.5,
        mean: vec![0.25; 8],
        last: vec![-0.125; 8],
        held_out: 0.75,
        questions: 60,
        data: hex::encode([1; 32]),
        weights,
    }));
    contract
}

#[test]
fn a_probe_is_read_as_it_was_written_and_changes_the_fingerprint_only_by_its_layers() {
    let contract = with_probe();
    let dir = model(&contract);
    assert_eq!(Contract::load(dir.path()).unwrap(), contract);
    assert_eq!(contract.fingerprint(), decoder().fingerprint(), "the chosen heads need two layers, too");
    let mut deeper = with_probe();
    let Family::Decoder(Decoder { probe: Some(probe), .. }) = &mut deeper.family else { panic!("a probe") };
    (probe.layers, probe.mean, probe.last) = (3, vec![0.0; 12], vec![0.0; 12]);
    assert_ne!(deeper.fingerprint(), decoder().fingerprint());
}

#[test]
fn a_probe_that_does_not_fit_the_model_is_refused() {
    let check = |change: &dyn Fn(&mut Probe), parts: &[&str]| {
        let mut contract = with_probe();
        let Family::Decoder(Decoder { probe: Some(probe), .. }) = &mut contract.family else {
            panic!("a probe")
        };
        change(probe);
        check_message(contract.save(tempfile::tempdir().unwrap().path()), parts);
    };
    check(&|probe| probe.layers = 4, &["decoder.probe.layers", "is 4", "from 1 to 3"]);
    check(&|probe| probe.layers = 0, &["decoder.probe.layers", "is 0"]);
    check(&|probe| probe.mean.truncate(7), &["decoder.probe.mean", "has 7 weights; 8 are needed"]);
    check(&|probe| probe.last.push(0.0), &["decoder.probe.last", "has 9 weights"]);
    check(&|probe| probe.bias = f32::NAN, &["decoder.probe", "NaN is not finite"]);
    check(&|probe| probe.template = "Question:".into(), &["decoder.probe.template", "{question} once"]);
    let found = decoder().files[&decoder().weights.file].clone();
    check(
        &|probe| probe.weights = hex::encode([9; 32]),
        &["decoder.probe.weights", &hex::encode([9; 32]), &found, "thresher calibrate --probe"],
    );
}

#[test]
fn an_error_names_the_missing_or_changed_file() {
    let dir = model(&contract());
    fs::write(dir.path().join("weights.bin"), "other").unwrap();
    Contract::load(dir.path()).unwrap();
    let hash = &contract().files["weights.bin"];
    check_message(
        contract().verify_files(dir.path()),
        &["weights.bin", "declares", hash, "file has d9298a10"],
    );
    fs::remove_file(dir.path().join("query.onnx")).unwrap();
    check_message(Contract::load(dir.path()), &["contract.toml", "query.onnx", "does not exist"]);
    fs::remove_file(dir.path().join(CONTRACT_FILE)).unwrap();
    check_message(Contract::load(dir.path()), &["no contract.toml in", "`thresher init`"]);
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    check_message(Contract::load(dir.path()), &["Hugging Face folder", "thresher export"]);
    fs::remove_file(dir.path().join("config.json")).unwrap();
}

#[test]
fn the_fingerprint_changes_with_everything_that_keys_depend_on() {
    let changed = |change: fn(&mut Contract)| {
        let mut other = contract();
        change(&mut other);
        other.fingerprint() != contract().fingerprint()
    };
    for name in contract().files.into_keys() {
        let mut other = contract();
        other.files.insert(name.clone(), hex::encode([7; 32]));
        assert_ne!(other.fingerprint(), contract().fingerprint(), "{name}");
    }
    assert!(changed(|c| late(c).scale = 2.0));
    assert!(changed(|c| late(c).heads = 2));
    assert!(changed(|c| c.tokenizer.prefix = vec![4]));
    assert!(changed(|c| c.window.tokens_max = 39));
    assert!(!changed(|c| c.name = "other".into()));
    assert!(!changed(|c| c.source.licence = None));
}

/// Changes the inputs and outputs of the query graph, and expects an error whose message contains each of
/// `expect`.
fn check_query(change: fn(&mut Vec<IoTensor>), expect: &[&str]) {
    let mut found = contract().io(Graph::Query);
    change(&mut found);
    check_message(check_io(&contract(), Graph::Query, &found), expect);
}

#[test]
fn an_error_shows_the_declared_and_the_found_tensor() {
    let declared = "declares input `key` f32 [1, *, 32]";
    check_query(
        |f| f[1].dims[2] = Dim::Fixed(384),
        &["query.onnx", declared, "graph has input `key` f32 [1, *, 384]"],
    );
    check_query(|f| f[1].dims[1] = Dim::Fixed(128), &[declared, "[1, 128, 32]"]);
    check_query(|f| f[1].dims.push(Dim::Free), &[declared, "[1, *, 32, *]"]);
    check_query(|f| f[1].dtype = "f16".into(), &[declared, "f16"]);
    check_query(|f| f[1].name = "keys".into(), &[declared, "input `keys`"]);
    check_query(|f| f[1].side = Side::Output, &[declared, "output `key`"]);
    check_query(|f| drop(f.remove(3)), &["declares output `self_logits`", "graph has input `input_ids`"]);
    let extra = |f: &mut Vec<IoTensor>| f.push(IoTensor::new(Side::Input, "token_type_ids", "i64", &[1, -1]));
    check_query(extra, &["graph has also input `token_type_ids` i64 [1, *]"]);
}

#[test]
fn inputs_and_outputs_may_be_in_any_order() {
    for graph in [Graph::Passage, Graph::Query] {
        let mut found = contract().io(graph);
        found.reverse();
        // Shape inference does not reach the axes of all outputs.
        found[0].dims.fill(Dim::Free);
        check_io(&contract(), graph, &found).unwrap();
    }
}
