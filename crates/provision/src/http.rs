//! The client of package indexes and model hubs.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::error::ProvisionError;

const CONNECT_MAX: Duration = Duration::from_secs(15);

/// For a list and the head of an answer; a file gets [`DOWNLOAD_MAX`].
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A slow line of 1 Mbit/s takes 35 minutes for the largest wheel.
pub const DOWNLOAD_MAX: Duration = Duration::from_secs(3600);

const BUFFER_BYTES: usize = 1 << 16;

/// Returns a client that trusts the system's certificate authorities, since a company's proxy has one of its own there, and uses the proxy
/// of `HTTPS_PROXY`. It shows a token to no host that it is redirected to.
pub fn agent() -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    Agent::config_builder()
        .tls_config(tls)
        .redirect_auth_headers(RedirectAuthHeaders::Never)
        .timeout_connect(Some(CONNECT_MAX))
        .timeout_recv_response(Some(ANSWER_MAX))
        .timeout_recv_body(Some(ANSWER_MAX))
        .user_agent(concat!("thresher/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}

/// Appends at most `bytes` bytes of the body that `url` gave to a file. `progress` is called with what has arrived of them.
pub fn write(
    body: Body,
    (url, bytes): (&str, u64),
    (path, mut file): (&Path, File),
    progress: &dyn Fn(u64),
) -> Result<(), ProvisionError> {
    let mut body = body.into_reader().take(bytes);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut done = 0;
    loop {
        let read = body.read(&mut buffer).map_err(|error| ProvisionError::network(url, &error))?;
        if read == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..read]).map_err(|source| ProvisionError::file(path, source))?;
        done += read as u64;
        progress(done);
    }
}
