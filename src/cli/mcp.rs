//! `thresher mcp`: the tools of `/mcp` over standard input and output, without a daemon.

use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::watch;

use crate::admission::{Admission, Bounds};
use crate::api::{BodyLimits, ErrorBody};
use crate::config::Config;
use crate::mcp::{self, Local};
use crate::receipt::SigningKey;
use crate::{app, process, telemetry};

pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    process::keep_files_private();
    // Standard output belongs to the protocol; the log goes to standard error.
    let traces = telemetry::install_tracing(&config.telemetry)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(config));
    // The thread that reads standard input may stand there for good.
    runtime.shutdown_background();
    served?;
    drop(traces);
    process::leave(0)
}

/// A host waits for the first answer before it shows anything: it comes while the model is being loaded.
async fn serve(config: Config) -> anyhow::Result<()> {
    let (loaded, loading) = watch::channel(None);
    let admission = Admission::new(Bounds {
        concurrency_max: config.admission.concurrency_max(),
        queue_max: config.admission.queue_max,
        stream_count_max: 0,
    });
    let key_file = config.receipts.key_file.clone();
    let sign = move || {
        SigningKey::at(&key_file).map_err(|error| ErrorBody {
            code: "receipt_failed",
            message: format!("the receipt cannot be signed (receipts.key_file): {error}"),
            param: None,
        })
    };
    let limits = BodyLimits::new(&config.limits, config.registry.batch_count_max);
    let wait = Duration::from_millis(config.admission.deadline_ms_default);
    let serving = mcp::serve_stdio(Local::new(loading, admission, (wait, limits), sign));
    let load = async {
        // The cache of keys lives in memory only: a daemon may have the disk's directory open.
        let memory_bytes_max = config.blocks.memory_bytes_max;
        let build = move || app::engine(&config).cache_memory_bytes_max(memory_bytes_max).build();
        let engine = tokio::task::spawn_blocking(build).await??;
        loaded.send_replace(Some(engine.into_pipeline()));
        // There is nothing more to do but to answer.
        std::future::pending::<anyhow::Result<()>>().await
    };
    tokio::select! {
        served = serving => Ok(served?),
        failed = load => failed,
    }
}
