//! `thresher serve`.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::{app, telemetry};

pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    let traces = telemetry::install_tracing(&config.telemetry)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = async move {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        };
        app::serve(config, stop).await
    })?;
    drop(traces);
    leave()
}

/// Ends the process at once: work that outlived the drain, or a model that is still being loaded, is not waited for. The
/// handlers of an ordinary exit would free what ONNX Runtime's threads still use.
#[allow(unsafe_code, reason = "a call into the C library")]
fn leave() -> ! {
    // SAFETY: takes a number and does not return: nothing can see what it leaves behind.
    unsafe { libc::_exit(0) }
}
