//! `thresher serve`: the daemon.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use thresher_core::model::contract::Contract;

use crate::config::Config;
use crate::{app, http, process, telemetry};

/// Threads for blocking work that needs no permit: parsing, files and lookups of host names.
const THREADS_WITHOUT_PERMIT: usize = 256;

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    process::keep_files_private();
    // Before the folders of the data are created: without a model, the daemon cannot start.
    Contract::load(&config.model.dir)?;
    let traces = telemetry::install_tracing(&config.telemetry)?;
    if traces.is_exporting() {
        http::traces::start();
    }
    // Work with a permit occupies a thread while it waits for the model.
    let threads = config.admission.concurrency_max() + THREADS_WITHOUT_PERMIT;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(threads).build()?;
    runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = async move {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        };
        app::serve(config, stop).await
    })?;
    drop(traces);
    process::leave(0)
}
