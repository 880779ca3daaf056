//! `thresher doctor`: finds runtime, model and versions, tries them, and says what to do about what is missing.

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use thresher_core::kv::local::{LocalError, LocalTiers};
use thresher_core::model::contract::Contract;
use thresher_core::model::ort::runtime_version;
use thresher_core::private_files::{self, Exposed};
use thresher_registry::{Registry, RegistryError, RegistrySettings};

use crate::access::Access;
use crate::app;
use crate::config::{Config, ConfigError};

/// One line per check; the first failure ends the checks that build on it.
pub fn run(config: Result<Config, ConfigError>) -> anyhow::Result<ExitCode> {
    super::print(format_args!(
        "thresher {} on {}-{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    ));
    let healthy = check(config);
    super::print(if healthy { "all is well" } else { "not ready; see above" });
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(config: Result<Config, ConfigError>) -> bool {
    let Some(config) = report("settings", config, |_| "read and consistent".to_owned()) else {
        return false;
    };
    let lib = config.model.runtime_lib();
    let runtime =
        report("runtime", runtime_version(&lib), |version| format!("{version} from {}", lib.display()));
    let dir = &config.model.dir;
    let contract = Contract::load(dir).and_then(|contract| contract.verify_files(dir).map(|()| contract));
    let model =
        report("model", contract, |c| format!("{} in {}, every file as exported", c.name, dir.display()));
    let (kv, registry) = (&config.kv, &config.registry.dir);
    let is_used = |error: &LocalError| matches!(error, LocalError::InUse { .. });
    let blocks = directory(&kv.dir, !kv.disk(), LocalTiers::inspect, is_used);
    let is_used = |error: &RegistryError| matches!(error, RegistryError::InUse { .. });
    let chunks = directory(registry, registry.as_os_str().is_empty(), Registry::inspect, is_used);
    let access = Access::open(&config.access).map(|(access, _)| access);
    let chunks = chunks.and_then(|said| tenants(access.as_ref().ok(), &config.registry).map(|()| said));
    let kept = [
        report("keys", access.map(|access| keys(&access)), String::clone),
        report("tls", tls(&config), String::clone),
        report("http.listen", listener(config.http.listen), String::clone),
        report("admin.listen", listener(config.admin.listen), String::clone),
        report("kv.dir", blocks, String::clone),
        report("registry.dir", chunks, String::clone),
        report("shared tier", shared(&config), String::clone),
        report("file modes", Ok::<_, anyhow::Error>(modes(&config)), String::clone),
        report("upstreams", app::check_upstreams(&config).map(|()| upstreams(&config)), String::clone),
    ];
    if runtime.is_none() || model.is_none() {
        return false;
    }
    let Some(pipeline) =
        report("device", app::pipeline(&config), |pipeline| pipeline.model().device.to_string())
    else {
        return false;
    };
    let answered = report("answer", app::warm_up(&pipeline), |took| {
        format!("a request took {:.1} ms, cold", took.as_secs_f64() * 1e3)
    });
    answered.is_some() && kept.iter().all(Option::is_some)
}

/// What `serve` would find in a directory, and whether files can be made there. Changes nothing: a daemon may have it.
fn directory<E: std::error::Error + Send + Sync + 'static>(
    dir: &Path,
    in_memory: bool,
    inspect: impl Fn(&Path) -> Result<(), E>,
    is_in_use: impl Fn(&E) -> bool,
) -> anyhow::Result<String> {
    if in_memory {
        return Ok("in memory only".to_owned());
    }
    match inspect(dir) {
        Err(error) if is_in_use(&error) => {
            return Ok(format!("{} is in use; a daemon is running", dir.display()));
        }
        inspected => inspected?,
    }
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot write in {}", there.display());
    // Without a name, gone when it is closed.
    let mut file = tempfile::tempfile_in(there).with_context(cannot)?;
    file.write_all(&[0; 4096]).and_then(|()| file.sync_all()).with_context(cannot)?;
    let note = if there == dir { "" } else { ", which is not there yet" };
    Ok(format!("{}{note}", dir.display()))
}

/// Which of the daemon's own directories and files other users of this machine can use. That is no failure: the daemon takes their rights
/// away when it starts, where it may.
fn modes(config: &Config) -> String {
    let paths = [&config.kv.dir, &config.registry.dir, &config.originals.dir, &config.receipts.key_file];
    let is_file = |path: &Path| *path == *config.receipts.key_file;
    let paths = paths.into_iter().filter(|path| !path.as_os_str().is_empty());
    let exposed: Vec<String> = paths
        .filter_map(|path| private_files::exposed(path))
        .map(|Exposed { path, mode, is_ours }| {
            let wanted = if is_file(&path) { "0600" } else { "0700" };
            let remedy = match is_ours {
                true => format!("serve sets it to {wanted}"),
                false => format!("its owner has to set it to {wanted}"),
            };
            format!("{} has {mode:04o}, {remedy}", path.display())
        })
        .collect();
    match exposed.is_empty() {
        true => "other users of this machine can use no file of the daemon".to_owned(),
        false => format!("other users of this machine may use files of the daemon: {}", exposed.join("; ")),
    }
}

fn keys(access: &Access) -> String {
    match access.is_keyed() {
        true => format!("read, of {} tenants", access.tenants().len()),
        false => "none (access.keys_file): whoever reaches http.listen may ask".to_owned(),
    }
}

fn tls(config: &Config) -> anyhow::Result<String> {
    Ok(match app::tls(config)? {
        Some(_) => format!("{} and its key", config.http.tls_cert_file.display()),
        None => "none (http.tls_cert_file)".to_owned(),
    })
}

/// What is wrong with the folders of tenants; those of the default one are looked at with the directory.
fn tenants(access: Option<&Access>, registry: &RegistrySettings) -> anyhow::Result<()> {
    for tenant in access.map(Access::tenants).unwrap_or_default().iter().filter(|t| !t.is_default()) {
        match Registry::inspect(&registry.of_tenant(tenant).dir) {
            Ok(()) | Err(RegistryError::InUse { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn listener(address: SocketAddr) -> anyhow::Result<String> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Ok(format!("{address} is taken; by a daemon that runs, or by another program"))
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

/// What each upstream of the middleware is asked with, a line for each.
fn upstreams(config: &Config) -> String {
    let mut said = String::new();
    for upstream in &config.middleware.upstreams {
        let exposure = upstream.exposure().map(|why| format!("; WARNING: {why}")).unwrap_or_default();
        said += &format!("\n            {} is {}{exposure}", upstream.url, upstream.credential_in_words());
    }
    if said.is_empty() { "none (middleware.upstreams)".to_owned() } else { said }
}

/// The daemon would go on without it; who names one wants to know.
fn shared(config: &Config) -> anyhow::Result<String> {
    if !config.shared.enabled() {
        return Ok("none (shared.urls)".to_owned());
    }
    app::probe_shared(config)?;
    Ok(format!("{} answers", config.shared.urls))
}

fn report<T, E: Into<anyhow::Error>>(
    what: &str,
    outcome: Result<T, E>,
    say: impl Fn(&T) -> String,
) -> Option<T> {
    match outcome {
        Ok(value) => {
            super::print(format_args!("  ok      {what}: {}", say(&value)));
            Some(value)
        }
        Err(error) => {
            super::print(format_args!("  FAILED  {what}: {}", super::in_one_line(&error.into())));
            None
        }
    }
}
