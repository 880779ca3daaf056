//! Connections to the servers: made from the settings (addresses, passwords, certificates), and held by a
//! [`Link`] that drops a broken connection, so that no caller waits for a new one. Does not know which
//! commands are sent, or when a connection is made again.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, RedisError, RedisResult, TlsCertificates, Value, io::tcp::TcpSettings,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::SharedError;
use super::outcome::Failure;
use crate::settings::SharedSettings;

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// The timeout to connect, TLS handshake and login included.
    pub connect: Duration,
    pub response: Duration,
}

/// The servers to connect to. Files with passwords are read at each connect and not kept.
#[derive(Clone)]
pub struct Target(SharedSettings);

/// A connection to one server or to all nodes of a cluster. Clones share it.
#[derive(Clone)]
pub enum Connection {
    Single(MultiplexedConnection),
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
    /// Checks everything in the settings that can be checked without a server.
    ///
    /// # Errors
    /// Returns a [`SharedError`] that names the setting at fault and holds no secret.
    pub fn new(settings: &SharedSettings) -> Result<Self, SharedError> {
        // A dependency may bring a second cryptography provider, and rustls does not choose between two. The
        // call fails if a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let target = Self(settings.clone());
        if !settings.cluster && settings.urls.reveal().len() > 1 {
            return Err(SharedError::SeveralServers);
        }
        target.clients(Timeouts { connect: Duration::from_secs(1), response: Duration::from_secs(1) })?;
        Ok(target)
    }

    /// The servers' URLs, without users and passwords.
    pub fn addresses(&self) -> String {
        self.0.urls.to_string()
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// Returns a [`Failure`], at the latest after twice [`Timeouts::connect`].
    pub async fn connect(&self, timeouts: Timeouts) -> Result<Connection, Failure> {
        let clients = self.clients(timeouts).map_err(|error| Failure::Lost(error.to_string()))?;
        let connecting = async {
            Ok(match clients {
                Clients::Single(client) => {
                    // Each caller sets a timeout for its response.
                    let config = AsyncConnectionConfig::new()
                        .set_connection_timeout(Some(timeouts.connect))
                        .set_response_timeout(None);
                    Connection::Single(client.get_multiplexed_async_connection_with_config(&config).await?)
                }
                Clients::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
            })
        };
        // The client of a cluster may try one node after another.
        match tokio::time::timeout(2 * timeouts.connect, connecting).await {
            Ok(connected) => connected.map_err(|error| Failure::from_redis(&error)),
            Err(_elapsed) => Err(Failure::Timeout),
        }
    }

    fn clients(&self, timeouts: Timeouts) -> Result<Clients, SharedError> {
        let settings = &self.0;
        let password = read_secret("shared.password_file", &settings.password_file)?;
        let addresses = settings.urls.reveal().iter().enumerate();
        let addresses = addresses.map(|(index, url)| address(settings, index, url, password.as_deref()));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let certificates = certificates(settings)?;
        let unusable =
            |error: redis::RedisError| SharedError::Unusable { reason: error.category().to_owned() };
        if settings.cluster {
            let mut builder = ClusterClient::builder(addresses)
                .connection_timeout(timeouts.connect)
                .response_timeout(timeouts.response)
                // Each caller sets a timeout for its call; in the background it is longer than that of one
                // response.
                .overall_response_timeout(None)
                .tcp_settings(no_delay())
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
    /// Returns the library's error, also when the server refuses the command.
    pub async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }

    /// Sends several commands for one slot, in their order.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::send`], for the first command that is refused.
    pub async fn send_all(&mut self, commands: &Pipeline) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => commands.query_async(connection).await,
            Self::Cluster(connection) => commands.query_async(connection).await,
        }
    }
}

/// Holds the current connection to the target, if there is one.
pub struct Link {
    target: Target,
    timeouts: Timeouts,
    current: RwLock<Option<NumberedConnection>>,
    connect_count: AtomicU64,
    lost: Arc<Notify>,
}

/// A connection and its serial number, so that a late error of an old connection does not drop a newer one.
#[derive(Clone)]
struct NumberedConnection {
    number: u64,
    connection: Connection,
}

impl Link {
    /// Makes a link without a connection.
    pub fn new(target: Target, timeouts: Timeouts, lost: Arc<Notify>) -> Self {
        Self { target, timeouts, current: RwLock::default(), connect_count: AtomicU64::default(), lost }
    }

    /// Whether there is a connection. It may be broken without an error having shown it yet.
    pub fn is_connected(&self) -> bool {
        self.current().is_some()
    }

    /// Makes a connection, which replaces any old one.
    ///
    /// # Errors
    /// Returns a [`Failure`] if no connection could be made; the link then keeps the old one.
    pub async fn connect(&self) -> Result<(), Failure> {
        let connection = self.target.connect(self.timeouts).await?;
        let number = self.connect_count.fetch_add(1, Ordering::Relaxed);
        let connected = Some(NumberedConnection { number, connection });
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = connected;
        Ok(())
    }

    pub fn disconnect(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.lost.notify_one();
    }

    /// Sends one command.
    ///
    /// # Errors
    /// Returns a [`Failure`], at `deadline` at the latest.
    pub async fn send(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        let mut current = self.current().ok_or(Failure::NoConnection)?;
        let reply = tokio::time::timeout_at(deadline, current.connection.send(command)).await;
        self.classify(current.number, reply)
    }

    /// Sends several commands for one slot.
    ///
    /// # Errors
    /// Returns a [`Failure`], at the latest after `timeout`.
    pub async fn send_all(&self, commands: &Pipeline, timeout: Duration) -> Result<Value, Failure> {
        let mut current = self.current().ok_or(Failure::NoConnection)?;
        let reply = tokio::time::timeout(timeout, current.connection.send_all(commands)).await;
        self.classify(current.number, reply)
    }

    fn classify<E>(&self, number: u64, reply: Result<RedisResult<Value>, E>) -> Result<Value, Failure> {
        match reply {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                self.drop_if_broken(number, &error);
                Err(Failure::from_redis(&error))
            }
            Err(_elapsed) => Err(Failure::Timeout),
        }
    }

    /// Drops a broken connection to a single server. The connection to a cluster reconnects by itself, node
    /// by node.
    fn drop_if_broken(&self, number: u64, error: &RedisError) {
        if !error.is_unrecoverable_error() {
            return;
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_broken = |now: &NumberedConnection| {
            matches!(now.connection, Connection::Single(_)) && now.number == number
        };
        if current.as_ref().is_some_and(is_broken) {
            *current = None;
            self.lost.notify_one();
        }
    }

    fn current(&self) -> Option<NumberedConnection> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
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
    // The library's error is not shown, because its message may quote the URL.
    let Ok(address) = url.into_connection_info() else {
        return refuse(
            "write it as redis://user:password@host:port/database, with %-escapes in user and password",
        );
    };
    if let ConnectionAddr::TcpTls { insecure: true, .. } = address.addr() {
        return refuse("#insecure is not supported: set shared.ca_file to the certificate authority");
    }
    if settings.cluster && address.redis_settings().db() != 0 {
        return refuse("a cluster has no database other than 0");
    }
    let mut login = address.redis_settings().clone().set_skip_set_lib_name();
    if let Some(password) = password {
        login = login.set_password(password);
    }
    if login.username().is_some() && login.password().is_none() {
        return Err(SharedError::PasswordMissing);
    }
    Ok(address.set_redis_settings(login).set_tcp_settings(no_delay()))
}

/// Disables Nagle's algorithm, so that a command does not wait for the acknowledgement of the one before it.
fn no_delay() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn certificates(settings: &SharedSettings) -> Result<Option<TlsCertificates>, SharedError> {
    let root_cert = read_pem("shared.ca_file", &settings.ca_file, "-----BEGIN CERTIFICATE-----")?;
    let client_cert =
        read_pem("shared.client_cert_file", &settings.client_cert_file, "-----BEGIN CERTIFICATE-----")?;
    let client_key = read_pem("shared.client_key_file", &settings.client_key_file, "PRIVATE KEY-----")?;
    let client_tls = client_cert
        .zip(client_key)
        .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    if root_cert.is_none() && client_tls.is_none() {
        return Ok(None);
    }
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}

fn read_pem(setting: &'static str, path: &Path, mark: &str) -> Result<Option<Vec<u8>>, SharedError> {
    let Some(text) = read_file(setting, path)? else { return Ok(None) };
    let found = text.windows(mark.len()).any(|window| window == mark.as_bytes());
    if !found {
        return Err(SharedError::FileContent { setting, path: path.into(), expected: "PEM" });
    }
    Ok(Some(text))
}

/// Reads a password or secret from a file, without the line break that editors add. Returns `None` if the
/// path is empty.
pub fn read_secret(setting: &'static str, path: &Path) -> Result<Option<String>, SharedError> {
    let Some(text) = read_file(setting, path)? else { return Ok(None) };
    let text = String::from_utf8(text).ok().map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    match text.filter(|text| !text.is_empty()) {
        Some(text) => Ok(Some(text)),
        None => Err(SharedError::FileContent { setting, path: path.into(), expected: "text" }),
    }
}

fn read_file(setting: &'static str, path: &Path) -> Result<Option<Vec<u8>>, SharedError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = std::fs::read(path);
    text.map(Some).map_err(|source| SharedError::Read { setting, path: path.into(), source })
}
