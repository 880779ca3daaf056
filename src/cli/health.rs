//! `thresher health`: asks the daemon of these settings whether it is ready. Containers use it as their health check.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::config::Config;

/// How long the daemon may take to answer. It answers at once unless its machine is overloaded.
const ANSWER_MAX: Duration = Duration::from_secs(5);

pub fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let mut answer = send(config, "GET", "/readyz", ANSWER_MAX)?;
    let text = answer.body_mut().read_to_string()?;
    if answer.status().is_success() {
        super::success(text.trim_end())
    } else {
        bail!("the daemon is not ready: {}", text.trim_end())
    }
}

/// Whether a daemon of these settings runs, ready or not.
pub fn is_alive(config: &Config) -> bool {
    let text = send(config, "GET", "/livez", ANSWER_MAX)
        .ok()
        .and_then(|mut answer| answer.body_mut().read_to_string().ok());
    text.is_some_and(|text| text == "ok\n")
}

/// The address of the daemon's admin listener, as seen from this machine.
fn address(config: &Config) -> SocketAddr {
    let mut address = config.admin.listen;
    if address.ip().is_unspecified() {
        let loopback =
            if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address
}

/// Sends a request to the admin listener of the daemon of these settings.
pub fn send(
    config: &Config,
    method: &str,
    path: &str,
    answer_max: Duration,
) -> anyhow::Result<ureq::http::Response<ureq::Body>> {
    let address = address(config);
    let request =
        ureq::http::Request::builder().method(method).uri(format!("http://{address}{path}")).body(())?;
    let agent: ureq::Agent = ureq::config::Config::builder()
        .proxy(None)
        .timeout_global(Some(answer_max))
        .http_status_as_error(false)
        .build()
        .into();
    agent.run(request).with_context(|| {
        format!("no daemon answers at {address} (admin.listen); start it with `thresher serve` and the same settings")
    })
}
