//! From settings to a connection: addresses, passwords, certificates.
//! Knows nothing of what is asked over it.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, RedisResult, TlsCertificates, Value, io::tcp::TcpSettings,
};

use super::SharedError;
use super::failure::Failure;
use super::settings::SharedSettings;

/// How long one node may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// To connect, TLS and password included.
    pub connect: Duration,
    /// To answer one command.
    pub answer: Duration,
}

/// Where to connect. Holds no password longer than a connect takes.
#[derive(Clone)]
pub struct Target(SharedSettings);

/// A connection to one server or to a cluster; clones share it.
#[derive(Clone)]
pub enum Connection {
    /// To one server.
    Single(MultiplexedConnection),
    /// To all nodes of a cluster.
    Cluster(ClusterConnection),
}

enum Clients {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Target").field(&self.0.urls).finish()
    }
}

impl Target {
    /// Checks all that can be checked without a server.
    ///
    /// # Errors
    /// [`SharedError`] names the setting, and never a secret.
    pub fn new(settings: &SharedSettings) -> Result<Self, SharedError> {
        // Some dependency may bring a second provider; then rustls would not know which to take. An error says that one
        // is chosen already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let target = Self(settings.clone());
        if !settings.cluster && settings.urls.reveal().len() > 1 {
            return Err(SharedError::Several);
        }
        target.clients(Patience { connect: Duration::from_secs(1), answer: Duration::from_secs(1) })?;
        Ok(target)
    }

    /// The addresses, without user and password.
    pub fn place(&self) -> String {
        self.0.urls.to_string()
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Failure`], after [`Patience::connect`] at the latest.
    pub async fn connect(&self, patience: Patience) -> Result<Connection, Failure> {
        let clients = self.clients(patience).map_err(|error| Failure::Lost(error.to_string()))?;
        let connecting = async {
            Ok(match clients {
                Clients::Single(client) => {
                    // Whoever asks sets a time limit of its own.
                    let config = AsyncConnectionConfig::new()
                        .set_connection_timeout(Some(patience.connect))
                        .set_response_timeout(None);
                    Connection::Single(client.get_multiplexed_async_connection_with_config(&config).await?)
                }
                Clients::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
            })
        };
        // A cluster's client may try one node after another.
        match tokio::time::timeout(2 * patience.connect, connecting).await {
            Ok(connected) => connected.map_err(|error| Failure::from_redis(&error)),
            Err(_elapsed) => Err(Failure::Timeout),
        }
    }

    fn clients(&self, patience: Patience) -> Result<Clients, SharedError> {
        let settings = &self.0;
        let password = secret("shared.password_file", &settings.password_file)?;
        let addresses = settings.urls.reveal().iter().enumerate();
        let addresses = addresses.map(|(index, url)| address(settings, index, url, password.as_deref()));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let certificates = certificates(settings)?;
        let unusable =
            |error: redis::RedisError| SharedError::Unusable { reason: error.category().to_owned() };
        if settings.cluster {
            let mut builder = ClusterClient::builder(addresses)
                .connection_timeout(patience.connect)
                .response_timeout(patience.answer)
                // Its callers have limits of their own; those of background work are longer than one answer's.
                .overall_response_timeout(None)
                .tcp_settings(at_once())
                .retries(3)
                .min_retry_wait(5)
                .max_retry_wait(100);
            if let Some(certificates) = certificates {
                builder = builder.certs(certificates);
            }
            return Ok(Clients::Cluster(Box::new(builder.build().map_err(unusable)?)));
        }
        let address = addresses.into_iter().next().ok_or(SharedError::Disabled)?;
        let client = match certificates.filter(|_| matches!(address.addr(), ConnectionAddr::TcpTls { .. })) {
            Some(certificates) => Client::build_with_tls(address, certificates),
            None => Client::open(address),
        };
        Ok(Clients::Single(Box::new(client.map_err(unusable)?)))
    }
}

impl Connection {
    /// Sends one command.
    ///
    /// # Errors
    /// The library's; a server's refusal is one.
    pub async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }

    /// Sends several commands for one slot, one after another.
    ///
    /// # Errors
    /// As [`Connection::send`]; the first refusal stands for all.
    pub async fn send_all(&mut self, commands: &Pipeline) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => commands.query_async(connection).await,
            Self::Cluster(connection) => commands.query_async(connection).await,
        }
    }
}

fn address(
    settings: &SharedSettings,
    index: usize,
    url: &str,
    password: Option<&str>,
) -> Result<ConnectionInfo, SharedError> {
    let refuse = |reason| Err(SharedError::Url { index, reason });
    if !["redis://", "rediss://", "valkey://", "valkeys://"].iter().any(|scheme| url.starts_with(scheme)) {
        return refuse("it must begin with redis://, rediss://, valkey:// or valkeys://");
    }
    // The library's message may quote the address.
    let Ok(address) = url.into_connection_info() else {
        return refuse(
            "write it as redis://user:password@host:port/database, with %-escapes in user and password",
        );
    };
    if let ConnectionAddr::TcpTls { insecure: true, .. } = address.addr() {
        return refuse("#insecure is not supported: name the authority in shared.ca_file");
    }
    if settings.cluster && address.redis_settings().db() != 0 {
        return refuse("a cluster has no database but 0");
    }
    let mut login = address.redis_settings().clone().set_skip_set_lib_name();
    if !settings.username.is_empty() {
        login = login.set_username(&settings.username);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    if login.username().is_some() && login.password().is_none() {
        return Err(SharedError::Login);
    }
    Ok(address.set_redis_settings(login).set_tcp_settings(at_once()))
}

/// A command is sent when it is written, not when the one before it was acknowledged.
fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn certificates(settings: &SharedSettings) -> Result<Option<TlsCertificates>, SharedError> {
    let root_cert = pem("shared.ca_file", &settings.ca_file, "-----BEGIN CERTIFICATE-----")?;
    let client_cert =
        pem("shared.client_cert_file", &settings.client_cert_file, "-----BEGIN CERTIFICATE-----")?;
    let client_key = pem("shared.client_key_file", &settings.client_key_file, "PRIVATE KEY-----")?;
    let client_tls = client_cert
        .zip(client_key)
        .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    if root_cert.is_none() && client_tls.is_none() {
        return Ok(None);
    }
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}

fn pem(setting: &'static str, path: &Path, mark: &str) -> Result<Option<Vec<u8>>, SharedError> {
    let Some(text) = read(setting, path)? else { return Ok(None) };
    let found = text.windows(mark.len()).any(|window| window == mark.as_bytes());
    if !found {
        return Err(SharedError::Content { setting, path: path.into(), expected: "PEM" });
    }
    Ok(Some(text))
}

/// What a file of a secret holds, without the line break that editors add.
pub fn secret(setting: &'static str, path: &Path) -> Result<Option<String>, SharedError> {
    let Some(text) = read(setting, path)? else { return Ok(None) };
    let text = String::from_utf8(text).ok().map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    match text.filter(|text| !text.is_empty()) {
        Some(text) => Ok(Some(text)),
        None => Err(SharedError::Content { setting, path: path.into(), expected: "text" }),
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Option<Vec<u8>>, SharedError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = std::fs::read(path);
    text.map(Some).map_err(|source| SharedError::Read { setting, path: path.into(), source })
}
