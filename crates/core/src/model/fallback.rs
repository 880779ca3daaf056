//! A model on a GPU with the same model on the CPU behind it. Where the GPU fails, because another program has
//! taken its memory or because it is gone, the CPU computes what is missing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics::counter;
use ndarray::{Array3, ArrayView3};

use super::contract::VerdictWeights;
use super::cross::{CrossEncoder, PairOpinion};
use super::{
    EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, RawLogits, WindowFilter, WindowSink,
};

/// Loads the model `M` on the CPU.
type Load<M> = dyn Fn() -> Result<Arc<M>, ModelError> + Send + Sync;

/// A model on a GPU, and the same model on the CPU for calls that the GPU fails: a [`ModelRuntime`] or a
/// [`CrossEncoder`].
///
/// Blocks have one name for both, so the CPU takes over only if its keys have the same fingerprint: with f32
/// weights, but not with f16 weights, which the two multiply differently. Each call tries the GPU again.
pub struct WithFallback<M: ?Sized> {
    primary: Arc<M>,
    fallback: Arc<Fallback<M>>,
    /// The handle of this flow to the model on the CPU.
    on_cpu: OnceLock<Arc<M>>,
}

/// The model on the CPU. It is loaded when it is needed for the first time, because most daemons never need it.
struct Fallback<M: ?Sized> {
    load: Box<Load<M>>,
    model: Mutex<Option<Arc<M>>>,
}

/// A model that another one of the same kind may replace.
pub trait Replaceable {
    /// Returns the hash that both models need to have.
    fn fingerprint_of(&self) -> &str;

    /// Returns the model's name for the log.
    fn name_of(&self) -> &str;

    /// Returns a handle to the model as a flow of its own, if it schedules its work.
    fn own_flow(&self) -> Option<Arc<Self>>;
}

impl Replaceable for dyn ModelRuntime {
    fn fingerprint_of(&self) -> &str {
        &self.info().fingerprint
    }

    fn name_of(&self) -> &str {
        &self.info().name
    }

    fn own_flow(&self) -> Option<Arc<Self>> {
        self.with_own_flow()
    }
}

impl Replaceable for dyn CrossEncoder {
    fn fingerprint_of(&self) -> &str {
        self.fingerprint()
    }

    fn name_of(&self) -> &str {
        self.name()
    }

    fn own_flow(&self) -> Option<Arc<Self>> {
        Some(self.with_own_flow())
    }
}

impl<M: Replaceable + ?Sized> WithFallback<M> {
    /// Creates a model that uses what `load` returns for calls that `primary` fails.
    pub fn new(
        primary: Arc<M>,
        load: impl Fn() -> Result<Arc<M>, ModelError> + Send + Sync + 'static,
    ) -> Self {
        let fallback = Arc::new(Fallback { load: Box::new(load), model: Mutex::default() });
        Self { primary, fallback, on_cpu: OnceLock::new() }
    }

    /// Returns the same models with `primary`, a flow of its own.
    fn with_flow(&self, primary: Arc<M>) -> Self {
        Self { primary, fallback: Arc::clone(&self.fallback), on_cpu: OnceLock::new() }
    }

    /// Runs a call on the first model and, if a graph fails there, on the second one.
    fn run<T>(&self, mut call: impl FnMut(&M) -> Result<T, ModelError>) -> Result<T, ModelError> {
        let error = match call(&self.primary) {
            Err(error @ ModelError::Graph { .. }) => error,
            result => return result,
        };
        let Some(on_cpu) = self.on_cpu() else { return Err(error) };
        counter!("model_fallbacks_total").increment(1);
        let model = self.primary.name_of();
        tracing::warn!(%error, model, "the GPU failed, so the CPU takes over this call");
        call(on_cpu)
    }

    fn on_cpu(&self) -> Option<&Arc<M>> {
        if self.on_cpu.get().is_none() {
            let model = self.fallback.get(self.primary.fingerprint_of())?;
            let _ = self.on_cpu.set(model.own_flow().unwrap_or(model));
        }
        self.on_cpu.get()
    }
}

impl<M: Replaceable + ?Sized> Fallback<M> {
    /// Returns the model if it has the fingerprint. A load that failed is tried again by the next call.
    fn get(&self, fingerprint: &str) -> Option<Arc<M>> {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        if model.is_none() {
            match (self.load)() {
                Ok(loaded) => *model = Some(loaded),
                Err(error) => tracing::error!(%error, "the model cannot be loaded on the CPU"),
            }
        }
        model.clone().filter(|model| model.fingerprint_of() == fingerprint)
    }
}

impl CrossEncoder for WithFallback<dyn CrossEncoder> {
    fn name(&self) -> &str {
        self.primary.name()
    }

    fn fingerprint(&self) -> &str {
        self.primary.fingerprint()
    }

    fn weights(&self) -> VerdictWeights {
        self.primary.weights()
    }

    fn judge(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<PairOpinion>, ModelError> {
        self.run(|model| model.judge(evidence, claim, go_on))
    }

    fn with_own_flow(&self) -> Arc<dyn CrossEncoder> {
        Arc::new(self.with_flow(self.primary.with_own_flow()))
    }
}

impl ModelRuntime for WithFallback<dyn ModelRuntime> {
    fn info(&self) -> &ModelInfo {
        self.primary.info()
    }

    fn with_own_flow(&self) -> Option<Arc<dyn ModelRuntime>> {
        Some(Arc::new(self.with_flow(self.primary.with_own_flow()?)))
    }

    fn read(
        &self,
        windows: &[&[u32]],
        is_needed: WindowFilter,
        on_read: WindowSink,
    ) -> Result<(), ModelError> {
        let is_read: Vec<AtomicBool> = windows.iter().map(|_| AtomicBool::new(false)).collect();
        self.run(|model| {
            let is_missing = |i: usize| !is_read[i].load(Ordering::Acquire) && is_needed(i);
            let keep = |i: usize, planes: ArrayView3<f32>| {
                on_read(i, planes);
                is_read[i].store(true, Ordering::Release);
            };
            model.read(windows, &is_missing, &keep)
        })
    }

    fn encode_question(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.run(|model| model.encode_question(question, past))
    }

    fn encode_question_on_one_thread(
        &self,
        question: &[u32],
        past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        self.run(|model| model.encode_question_on_one_thread(question, past))
    }

    fn encode_question_in_all_heads(
        &self,
        question: &[u32],
        past: &dyn Past,
    ) -> Result<EncodedQuestion, ModelError> {
        self.run(|model| model.encode_question_in_all_heads(question, past))
    }

    fn read_in_place(
        &self,
        ids: &[u32],
        positions: &[i64],
        past: &dyn Past,
    ) -> Result<Array3<f32>, ModelError> {
        self.run(|model| model.read_in_place(ids, positions, past))
    }

    fn prefix(&self) -> ArrayView3<'_, f32> {
        self.primary.prefix()
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        self.run(|model| model.logits(question, keys))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::model::scripted::ScriptedModel;

    /// A model that fails each call: reading fails after `read_max` windows.
    struct Failing {
        model: ScriptedModel,
        read_max: usize,
        error: fn() -> ModelError,
    }

    impl ModelRuntime for Failing {
        fn info(&self) -> &ModelInfo {
            self.model.info()
        }

        fn read(
            &self,
            windows: &[&[u32]],
            is_needed: WindowFilter,
            on_read: WindowSink,
        ) -> Result<(), ModelError> {
            self.model.read(&windows[..self.read_max], is_needed, on_read)?;
            Err((self.error)())
        }

        fn encode_question(&self, _: &[u32], _: &dyn Past) -> Result<EncodedQuestion, ModelError> {
            Err((self.error)())
        }

        fn logits(&self, _: &[u32], _: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
            Err((self.error)())
        }
    }

    struct NoPast;

    impl Past for NoPast {
        fn positions(&self) -> &[i64] {
            &[]
        }

        fn question_position(&self) -> i64 {
            0
        }

        fn read_plane(&self, _: usize, _: &mut [f32]) {}

        fn go_on(&self) -> bool {
            true
        }
    }

    fn out_of_memory() -> ModelError {
        ModelError::Graph { graph: "passage.onnx".to_owned(), reason: "out of memory".to_owned() }
    }

    fn failing(error: fn() -> ModelError) -> Arc<dyn ModelRuntime> {
        Arc::new(Failing { model: ScriptedModel::new(8), read_max: 2, error })
    }

    const WINDOWS: [&[u32]; 5] = [&[1, 2], &[3], &[4, 5, 6], &[7], &[8, 9]];

    #[test]
    fn what_the_device_has_not_read_is_read_once_by_the_cpu() {
        let loads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&loads);
        let model = WithFallback::new(failing(out_of_memory), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(ScriptedModel::new(8)) as Arc<dyn ModelRuntime>)
        });
        let read = |model: &dyn ModelRuntime| {
            let found = Mutex::new(Vec::new());
            let on_read = |i: usize, planes: ArrayView3<f32>| {
                found.lock().expect("no panic").push((i, planes.to_owned()))
            };
            model.read(&WINDOWS, &|i| i != 3, &on_read).expect("the CPU reads the rest");
            found.into_inner().expect("no panic")
        };
        let expect = read(&ScriptedModel::new(8));
        assert_eq!(expect.len(), 4);
        assert_eq!(read(&model), expect);
        assert_eq!(read(&model), expect);
        let alone = ScriptedModel::new(8).encode_question(&[1, 2], &NoPast).expect("it is encoded").vectors;
        assert_eq!(model.encode_question(&[1, 2], &NoPast).expect("the CPU encodes it").vectors, alone);
        assert_eq!(loads.load(Ordering::Relaxed), 1, "the model is loaded once");
    }

    #[test]
    fn the_error_of_the_device_remains_if_the_cpu_cannot_take_over() {
        let not_found = || Err(ModelError::Tokenize("no".to_owned()));
        let model = WithFallback::new(failing(out_of_memory), not_found);
        let error = model.read(&WINDOWS, &|_| true, &|_, _| {}).expect_err("nothing reads the rest");
        assert_eq!(error.to_string(), out_of_memory().to_string());
    }

    #[test]
    fn keys_with_another_name_are_not_taken_from_the_cpu() {
        let other = || Ok(Arc::new(ScriptedModel::new(9)) as Arc<dyn ModelRuntime>);
        let model = WithFallback::new(failing(out_of_memory), other);
        assert_ne!(model.info().fingerprint, ScriptedModel::new(9).info().fingerprint);
        assert!(model.encode_question(&[1], &NoPast).is_err());
    }

    /// A cross-encoder that on a GPU fails to judge one claim.
    struct Cross {
        is_on_gpu: bool,
    }

    impl CrossEncoder for Cross {
        fn name(&self) -> &'static str {
            "cross"
        }

        fn fingerprint(&self) -> &'static str {
            "same"
        }

        fn weights(&self) -> VerdictWeights {
            VerdictWeights::default()
        }

        fn judge(
            &self,
            _: &str,
            claim: &str,
            _: &dyn Fn() -> bool,
        ) -> Result<Option<PairOpinion>, ModelError> {
            let support = f32::from(u8::from(self.is_on_gpu));
            match (self.is_on_gpu, claim) {
                (true, "too long") => Err(out_of_memory()),
                _ => Ok(Some(PairOpinion { support, conflict: None, has_neutral: true, tokens: 7 })),
            }
        }

        fn with_own_flow(&self) -> Arc<dyn CrossEncoder> {
            Arc::new(Self { is_on_gpu: self.is_on_gpu })
        }
    }

    #[test]
    fn the_cpu_judges_what_the_device_fails_to_judge() {
        let cross = |is_on_gpu| Arc::new(Cross { is_on_gpu }) as Arc<dyn CrossEncoder>;
        let model = WithFallback::new(cross(true), move || Ok(cross(false))).with_own_flow();
        let log_odds = |claim: &str| {
            let opinion = model.judge("", claim, &|| true).expect("no error");
            opinion.expect("an opinion").support
        };
        assert_eq!((log_odds("short"), log_odds("too long")), (1.0, 0.0));
    }

    #[test]
    fn a_call_that_the_caller_ended_is_not_made_again() {
        let loaded =
            || -> Result<Arc<dyn ModelRuntime>, ModelError> { unreachable!("the CPU is not needed") };
        let model = WithFallback::new(failing(|| ModelError::Cancelled), loaded);
        assert!(matches!(model.encode_question(&[1], &NoPast), Err(ModelError::Cancelled)));
    }
}
