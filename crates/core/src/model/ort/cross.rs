//! Cross-encoders: loads the graph of a contract, checks it and runs it on pairs of texts. Knows nothing of verdicts.

use std::path::Path;
use std::sync::Arc;

use ndarray::Array2;
use ort::value::TensorRef;
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use super::device::Device;
use super::scheduling::{Flow, Pool};
use super::weights::{SharedWeights, WeightedSession};
use super::{OrtSettings, environment, graph_error, io_of_session, ort_error, session_builder};
use crate::model::ModelError;
use crate::model::contract::{Contract, Cross, Family, Graph, Tokenizer, VerdictWeights, check_io};
use crate::model::cross::{CrossEncoder, PairOpinion, log_odds};
use crate::model::tokenizer::ModelTokenizer;

/// A loaded cross-encoder. Clones share its sessions. Each pair is read by itself on one thread, so that its logits do
/// not depend on other pairs.
#[derive(Clone)]
pub struct CrossRuntime {
    name: String,
    fingerprint: String,
    cross: Cross,
    special_tokens: Tokenizer,
    tokens_max: usize,
    tokenizer: Arc<ModelTokenizer>,
    sessions: Arc<Pool<WeightedSession>>,
    has_substitute: bool,
    /// The flow of this handle's work on the sessions.
    flow: Flow,
}

impl CrossRuntime {
    /// Compares the files in `dir` with their contract and loads the model. `settings` are those of the model that
    /// scores chunks, except for its folder.
    ///
    /// # Errors
    /// Fails if a file is missing or does not match the contract, if the contract is that of another family, or if the
    /// library or the device cannot be used.
    pub fn load(dir: &Path, settings: &OrtSettings) -> Result<Self, ModelError> {
        let environment = environment(&settings.runtime_lib)?;
        let contract = Contract::load(dir)?;
        contract.verify_files(dir)?;
        let Family::Cross(cross) = &contract.family else {
            return Err(ModelError::WrongFamily { name: contract.name, expected: "cross-encoder" });
        };
        let device = Device::choose(&environment, settings)?;
        let weights = SharedWeights::open(&contract, dir, &device)?;
        let count = if device.is_cpu() { settings.workers.max(1) } else { 1 };
        let path = dir.join(&cross.graph);
        let load = |_| weights.session_from_file(session_builder(&environment, &device, 1)?, &path);
        let sessions = (0..count).into_par_iter().map(load).collect::<Result<Vec<_>, _>>();
        let sessions = sessions.map_err(|error| graph_error(&cross.graph, error))?;
        check_io(&contract, Graph::Pair, &io_of_session(&sessions[0]))?;
        weights.drop_pages();
        Ok(Self {
            name: contract.name.clone(),
            fingerprint: fingerprint(&contract, cross, &device),
            cross: cross.clone(),
            tokens_max: contract.window.tokens_max,
            tokenizer: Arc::new(ModelTokenizer::from_file(&dir.join(&contract.tokenizer.file))?),
            special_tokens: contract.tokenizer,
            sessions: Arc::new(Pool::new(sessions)),
            has_substitute: device.in_use().has_substitute(contract.weights.dtype),
            flow: Flow::DEFAULT,
        })
    }

    /// Returns whether the CPU may take over from the device that the model runs on.
    pub fn has_substitute(&self) -> bool {
        self.has_substitute
    }

    /// Returns the ids of a pair, and the types of its tokens, `[1, t]` each.
    fn input(&self, evidence: &str, claim: &str) -> Result<[Array2<i64>; 2], ModelError> {
        let (mut evidence, mut claim) =
            (self.tokenizer.encode(evidence)?.ids, self.tokenizer.encode(claim)?.ids);
        let (Tokenizer { prefix, suffix, .. }, between) = (&self.special_tokens, &self.cross.between);
        let room = self.tokens_max - prefix.len() - between.len() - suffix.len();
        claim.truncate(room / 2);
        evidence.truncate(room - claim.len());
        let second = prefix.len() + evidence.len() + between.len();
        let ids = prefix.iter().chain(&evidence).chain(between).chain(&claim).chain(suffix);
        let ids: Vec<i64> = ids.map(|&id| i64::from(id)).collect();
        let tokens = ids.len();
        let types = (0..tokens).map(|at| i64::from(at >= second)).collect();
        Ok([ids, types].map(|row| Array2::from_shape_vec((1, tokens), row).expect("one row of all tokens")))
    }

    /// Runs the graph on a pair and returns the logits of the labels.
    ///
    /// # Errors
    /// As [`CrossEncoder::support`].
    pub fn logits(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(Vec<f32>, usize), ModelError> {
        if !go_on() {
            return Err(ModelError::Cancelled);
        }
        let [ids, types] = self.input(evidence, claim)?;
        let run = |session: &mut WeightedSession| -> Result<Vec<f32>, ort::Error> {
            let ids = TensorRef::from_array_view(ids.view())?;
            let outputs = if self.cross.token_types {
                session.run(ort::inputs![
                    "input_ids" => ids,
                    "token_type_ids" => TensorRef::from_array_view(types.view())?,
                ])?
            } else {
                session.run(ort::inputs!["input_ids" => ids])?
            };
            let logits: Vec<f32> = outputs["logits"].try_extract_array::<f32>()?.iter().copied().collect();
            if logits.iter().all(|logit| logit.is_finite()) {
                Ok(logits)
            } else {
                Err(ort_error("the output logits contains a value that is not finite"))
            }
        };
        let logits = self.sessions.with_while(self.flow, go_on, run).ok_or(ModelError::Cancelled)?;
        Ok((logits.map_err(|error| graph_error(&self.cross.graph, error))?, ids.len()))
    }
}

/// Returns the hash of the contract, the weights of the opinions and, where opinions depend on it, the arithmetic.
fn fingerprint(contract: &Contract, cross: &Cross, device: &Device) -> String {
    let of_contract = Sha256::new().chain_update(contract.fingerprint());
    let of_contract = if contract.weights.dtype.is_exact() {
        of_contract
    } else {
        of_contract.chain_update(device.arithmetic()).chain_update(ort::info())
    };
    let VerdictWeights { bias, own, model } = cross.verdicts.unwrap_or_default();
    let hash = [bias, own, model]
        .into_iter()
        .fold(of_contract, |hash, weight| hash.chain_update(weight.to_le_bytes()));
    hex::encode(&hash.finalize()[..16])
}

impl CrossEncoder for CrossRuntime {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn weights(&self) -> VerdictWeights {
        self.cross.verdicts.unwrap_or_default()
    }

    fn support(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<PairOpinion, ModelError> {
        let (logits, tokens) = self.logits(evidence, claim, go_on)?;
        Ok(PairOpinion { log_odds: log_odds(&logits, self.cross.support), tokens })
    }

    fn with_own_flow(&self) -> Arc<dyn CrossEncoder> {
        Arc::new(Self { flow: Flow::new(), ..self.clone() })
    }
}
