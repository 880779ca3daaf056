//! What a contract declares of a decoder's layers (sliding windows, rotary frequencies) against its graph: what
//! the runtime reports of a model, and the contracts that it refuses. The models are exported from `models/tiny`.

use crate::support::{in_checkout, ort_settings};
use tempfile::TempDir;
use thresher_core::model::contract::{Contract, Decoder, Family};
use thresher_core::model::ort::DecoderRuntime;
use thresher_core::model::{ModelError, ModelInfo, ModelRuntime};
use thresher_export::{ExportOptions, export};

/// Exports a tiny model, changes its contract and loads it.
fn load(model: &str, change: impl FnOnce(&mut Decoder)) -> Result<ModelInfo, ModelError> {
    let out = TempDir::new().unwrap();
    let options = ExportOptions { name: model.into(), ..ExportOptions::default() };
    let source = in_checkout("models/tiny").join(model);
    let mut contract: Contract = export(&source, out.path(), &options, &|_, _| {}).unwrap();
    let Family::Decoder(decoder) = &mut contract.family else { panic!("{model} is a decoder") };
    change(decoder);
    contract.save(out.path()).unwrap();
    DecoderRuntime::load(&ort_settings(out.path(), 1)).map(|runtime| runtime.info().clone())
}

#[test]
fn a_model_reports_the_window_of_each_layer() {
    let check = |model: &str, change: fn(&mut Decoder), expect: &[Option<usize>]| {
        let decoder = load(model, change).unwrap().decoder.unwrap();
        assert_eq!(decoder.sliding_windows, expect, "{model}");
        for (layer, window) in expect.iter().enumerate() {
            assert_eq!(decoder.has_full_attention(layer), window.is_none(), "{model}, layer {layer}");
        }
    };
    let unchanged: fn(&mut Decoder) = |_| {};
    check("gemma3", unchanged, &[Some(5), Some(5), None]);
    check("gemma3-linear", unchanged, &[None, Some(4)]);
    check("qwen2", unchanged, &[None, Some(5), Some(5)]);
    check("mistral-sliding", unchanged, &[Some(4), Some(4)]);
    check("llama", unchanged, &[None, None]);
    // Older contracts do not declare windows.
    check("mistral-sliding", |decoder| decoder.sliding_windows.clear(), &[None, None]);
}

#[test]
fn a_contract_without_windows_has_the_fingerprint_of_the_same_model_with_them() {
    let fingerprint = |change: fn(&mut Decoder)| load("mistral-sliding", change).unwrap().fingerprint;
    assert_eq!(fingerprint(|decoder| decoder.sliding_windows.clear()), fingerprint(|_| {}));
}

#[test]
fn a_contract_that_declares_other_layers_than_the_graph_is_refused() {
    let check = |name: &str, change: fn(&mut Decoder), expect: &[&str]| {
        let message = load("gemma3", change).unwrap_err().to_string();
        for part in expect {
            assert!(message.contains(part), "{name}: `{message}` does not say `{part}`");
        }
    };
    check(
        "one encoding for all layers",
        |decoder| decoder.rotary_local = None,
        &["decoder.onnx", "these decoder.rotary.frequencies in layer 0", "other rotary frequencies"],
    );
    check(
        "the encodings are swapped",
        |decoder| std::mem::swap(&mut decoder.rotary, &mut decoder.rotary_local),
        &["these decoder.rotary_local.frequencies in layer 0", "other rotary frequencies"],
    );
    check(
        "other frequencies in layers with full attention",
        |decoder| decoder.rotary.as_mut().unwrap().frequencies[0] = 7.0,
        &["these decoder.rotary.frequencies in layer 2", "other rotary frequencies"],
    );
    check(
        "learned positions",
        |decoder| (decoder.rotary, decoder.rotary_local) = (None, None),
        &["no decoder.rotary in layer 0", "other rotary frequencies"],
    );
    check(
        "another window",
        |decoder| decoder.sliding_windows = vec![6, 6, 0],
        &["the attention mask `seen.6` in layer 0", "`seen.5`"],
    );
    check(
        "a layer without its window",
        |decoder| decoder.sliding_windows = vec![5, 0, 0],
        &["these decoder.rotary.frequencies in layer 1", "other rotary frequencies"],
    );
    check(
        "a window in the last layer",
        |decoder| decoder.sliding_windows = vec![5, 5, 5],
        &["these decoder.rotary_local.frequencies in layer 2", "other rotary frequencies"],
    );
}
