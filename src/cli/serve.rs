//! `thresher serve`.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::{app, process, telemetry};

/// Threads for work that blocks and needs no permit.
const THREADS_BESIDE: usize = 256;

pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    process::keep_files_private();
    let traces = telemetry::install_tracing(&config.telemetry)?;
    config.warnings.iter().for_each(|text| tracing::warn!("{text}"));
    // A permit holds a thread while it waits for the model. The others are for parsing, files and names of hosts.
    let threads = config.admission.concurrency_max() + THREADS_BESIDE;
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
