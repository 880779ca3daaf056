//! TLS of the public listener: a certificate from two files, which is read again when they change.
//! Knows nothing of what is spoken over it, but which HTTP was agreed on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use metrics::counter;
use thiserror::Error as ThisError;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::access::Watched;

/// HTTP/2, as it is called when the two sides agree on it.
const H2: &[u8] = b"h2";

/// What connections are begun with. Clones have the same certificate.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
}

/// Why a certificate cannot be used.
#[derive(Debug, ThisError)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {} and {} (http.tls_cert_file, http.tls_key_file): {cause}", cert.display(), key.display())]
    Read {
        /// The first file.
        cert: PathBuf,
        /// The second.
        key: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} ({setting}): {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Which setting names it.
        setting: &'static str,
        /// What is wrong; it quotes nothing of a key.
        reason: String,
    },
}

/// The certificate that holds now.
#[derive(Debug)]
struct Current {
    cert_file: PathBuf,
    key_file: PathBuf,
    key: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Tls {
    /// With the certificate in these files, and what to look at for changes of them.
    ///
    /// # Errors
    /// Which file is wrong, and how.
    pub fn open(cert_file: &Path, key_file: &Path) -> Result<(Self, Watched), TlsError> {
        let mut watched = Watched::new([cert_file.to_owned(), key_file.to_owned()]);
        let files = Files { cert: cert_file, key: key_file };
        let provider = Arc::new(default_provider());
        let key = files.certified(watched.read(), &provider)?;
        let current = Arc::new(Current {
            cert_file: cert_file.to_owned(),
            key_file: key_file.to_owned(),
            key: RwLock::new(Arc::new(key)),
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows the versions that are safe")
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Current>::clone(&current));
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok((Self { acceptor: TlsAcceptor::from(Arc::new(config)), current }, watched))
    }

    /// Takes in what `watched` finds changed: connections that begin from now on see it. Files that cannot be used change
    /// nothing; of two that are replaced one after the other the first alone does not fit, and the next look finds both.
    pub fn refresh(&self, watched: &mut Watched) {
        let Some(found) = watched.changed() else { return };
        let Current { cert_file, key_file, key } = &*self.current;
        let files = Files { cert: cert_file, key: key_file };
        let outcome = match files.certified(found, &default_provider()) {
            Ok(new) => {
                tracing::info!(path = %cert_file.display(), "certificate read again");
                *key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                "ok"
            }
            Err(error) => {
                tracing::error!(%error, "the changed certificate cannot be used; the one before it holds");
                "failed"
            }
        };
        counter!("tls_reloads_total", "outcome" => outcome).increment(1);
    }

    /// Shakes hands and waits for the first byte, that nobody holds a connection by saying nothing; with whether HTTP/2 was
    /// agreed on. None: the client speaks no TLS that we do, or has gone.
    pub(super) async fn begin(&self, stream: TcpStream) -> Option<(TlsStream<TcpStream>, bool)> {
        let shaken = self.acceptor.accept(stream).await;
        let outcome = if shaken.is_ok() { "ok" } else { "failed" };
        counter!("tls_handshakes_total", "outcome" => outcome).increment(1);
        let mut stream = shaken.inspect_err(|cause| tracing::debug!(%cause, "no handshake")).ok()?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        let began = stream.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty());
        began.then_some((stream, is_h2))
    }
}

/// Where a certificate and its key are.
struct Files<'a> {
    cert: &'a Path,
    key: &'a Path,
}

impl Files<'_> {
    /// What was read of the two, put together.
    fn certified(
        &self,
        read: io::Result<Vec<Vec<u8>>>,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        let failed = |cause| TlsError::Read { cert: self.cert.into(), key: self.key.into(), cause };
        let read = read.map_err(failed)?;
        let chain = CertificateDer::pem_slice_iter(&read[0]).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|e| self.in_cert(format!("not PEM: {e}")))?;
        if chain.is_empty() {
            return Err(self.in_cert("it holds no certificate in PEM".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&read[1])
            .map_err(|e| self.in_key(format!("it holds no private key in PEM: {e}")))?;
        CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                self.in_key(format!("it is not the key of the certificate in {}", self.cert.display()))
            }
            Error::InvalidCertificate(error) => {
                self.in_cert(format!("it holds no certificate that can be used: {error:?}"))
            }
            other => self.in_key(other.to_string()),
        })
    }

    fn in_cert(&self, reason: String) -> TlsError {
        TlsError::Content { path: self.cert.into(), setting: "http.tls_cert_file", reason }
    }

    fn in_key(&self, reason: String) -> TlsError {
        TlsError::Content { path: self.key.into(), setting: "http.tls_key_file", reason }
    }
}
