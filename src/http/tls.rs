//! TLS of the public listener: a certificate from two files, which is read again when they change. Knows of HTTP only the version that the
//! handshake agreed on.

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

/// The name of HTTP/2 in the handshake (ALPN).
const H2: &[u8] = b"h2";

/// Accepts TLS connections. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<CurrentCertificate>,
}

#[derive(Debug, ThisError)]
pub enum TlsError {
    #[error("cannot read {} and {} (http.tls_cert_file, http.tls_key_file): {cause}", cert.display(), key.display())]
    Read { cert: PathBuf, key: PathBuf, cause: io::Error },
    #[error("{} ({setting}): {reason}", path.display())]
    Content {
        path: PathBuf,
        /// The setting that names the file.
        setting: &'static str,
        /// What is wrong, without any part of the key.
        reason: String,
    },
}

#[derive(Debug)]
struct CurrentCertificate {
    cert_file: PathBuf,
    key_file: PathBuf,
    key: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Tls {
    /// Reads the certificate of these files, and returns what is watched for changes of them.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn open(cert_file: &Path, key_file: &Path) -> Result<(Self, Watched), TlsError> {
        let mut watched = Watched::new([cert_file.to_owned(), key_file.to_owned()]);
        let files = CertificateFiles { cert: cert_file, key: key_file };
        let provider = Arc::new(default_provider());
        let key = files.certified(watched.read(), &provider)?;
        let current = Arc::new(CurrentCertificate {
            cert_file: cert_file.to_owned(),
            key_file: key_file.to_owned(),
            key: RwLock::new(Arc::new(key)),
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring supports the safe versions of TLS")
            .with_no_client_auth()
            .with_cert_resolver(Arc::<CurrentCertificate>::clone(&current));
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok((Self { acceptor: TlsAcceptor::from(Arc::new(config)), current }, watched))
    }

    /// Uses a changed certificate for new connections. Files that cannot be used change nothing: when two files are replaced one after the
    /// other, the first alone does not fit, and the next check finds both.
    pub fn refresh(&self, watched: &mut Watched) {
        let Some(found) = watched.changed() else { return };
        let CurrentCertificate { cert_file, key_file, key } = &*self.current;
        let files = CertificateFiles { cert: cert_file, key: key_file };
        let outcome = match files.certified(found, &default_provider()) {
            Ok(new) => {
                tracing::info!(path = %cert_file.display(), "the changed certificate is in use");
                *key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                "ok"
            }
            Err(error) => {
                tracing::error!(%error, "the changed certificate cannot be used; the previous one stays in use");
                "failed"
            }
        };
        counter!("tls_reloads_total", "outcome" => outcome).increment(1);
    }

    /// Does the handshake and waits for the first byte, so that no client occupies a connection by sending nothing. True: HTTP/2 was agreed
    /// on. None: the handshake failed, or the client has gone.
    pub(super) async fn accept(&self, stream: TcpStream) -> Option<(TlsStream<TcpStream>, bool)> {
        let handshake = self.acceptor.accept(stream).await;
        let outcome = if handshake.is_ok() { "ok" } else { "failed" };
        counter!("tls_handshakes_total", "outcome" => outcome).increment(1);
        let mut stream =
            handshake.inspect_err(|cause| tracing::debug!(%cause, "a TLS handshake failed")).ok()?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        let has_sent_bytes = stream.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty());
        has_sent_bytes.then_some((stream, is_h2))
    }
}

struct CertificateFiles<'a> {
    cert: &'a Path,
    key: &'a Path,
}

impl CertificateFiles<'_> {
    /// The certificate and its key, from the contents of the two files.
    fn certified(
        &self,
        read: io::Result<Vec<Vec<u8>>>,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        let failed = |cause| TlsError::Read { cert: self.cert.into(), key: self.key.into(), cause };
        let read = read.map_err(failed)?;
        let chain = CertificateDer::pem_slice_iter(&read[0]).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|e| self.cert_error(format!("not PEM: {e}")))?;
        if chain.is_empty() {
            return Err(self.cert_error("it holds no certificate in PEM".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&read[1])
            .map_err(|e| self.key_error(format!("it holds no private key in PEM: {e}")))?;
        CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                self.key_error(format!("it is not the key of the certificate in {}", self.cert.display()))
            }
            Error::InvalidCertificate(error) => {
                self.cert_error(format!("it holds no certificate that can be used: {error:?}"))
            }
            other => self.key_error(other.to_string()),
        })
    }

    fn cert_error(&self, reason: String) -> TlsError {
        TlsError::Content { path: self.cert.into(), setting: "http.tls_cert_file", reason }
    }

    fn key_error(&self, reason: String) -> TlsError {
        TlsError::Content { path: self.key.into(), setting: "http.tls_key_file", reason }
    }
}
