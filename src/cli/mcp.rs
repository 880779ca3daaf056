//! `thresher mcp`: the tools of `/mcp` over standard input and output, without a daemon.

use std::process::ExitCode;
use std::time::Duration;

use thresher_core::Engine;

use crate::api::{AttributeAnswer, CompressAnswer, OriginalAnswer, SearchAnswer};
use crate::config::Config;
use crate::error::{ApiError, ErrorCode};
use crate::local::Local;
use crate::mcp::{self, Tools};
use crate::{app, process, telemetry};

/// Serves the MCP tools until the client closes the standard input.
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    process::keep_files_private();
    // Standard output belongs to the protocol; the log goes to standard error.
    let traces = telemetry::install_tracing(&config.telemetry)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve_tools(config));
    // The thread that reads standard input may never return from its read.
    runtime.shutdown_background();
    served?;
    drop(traces);
    process::leave(0)
}

/// Serves while the model is being loaded: MCP hosts show nothing before they have the first answer, which needs no model.
async fn serve_tools(config: Config) -> anyhow::Result<()> {
    let local = app::local(&config, Duration::from_millis(config.admission.deadline_ms_default));
    // Blocks are cached in memory only: a daemon may have the cache directory open.
    let memory_bytes_max = config.memory_shares(1).blocks;
    let load = move || app::engine(&config).cache_memory_bytes_max(memory_bytes_max).build();
    let serving = mcp::serve_stdio(local.clone());
    local.with_model(move || load().map(Engine::into_pipeline), serving).await??;
    Ok(())
}

impl Tools for Local {
    const HAS_REGISTRY: bool = false;

    async fn compress(&self, body: Vec<u8>) -> Result<CompressAnswer, ApiError> {
        Self::compress(self, &body).await
    }

    async fn attribute(&self, body: Vec<u8>) -> Result<AttributeAnswer, ApiError> {
        Self::attribute(self, &body).await
    }

    async fn retrieve(&self, _: Vec<u8>) -> Result<OriginalAnswer, ApiError> {
        Err(only_with_a_daemon())
    }

    async fn search(&self, _: Vec<u8>) -> Result<SearchAnswer, ApiError> {
        Err(only_with_a_daemon())
    }
}

fn only_with_a_daemon() -> ApiError {
    ApiError::new(ErrorCode::Unavailable, "only a daemon stores texts; call its tools at /mcp")
}
