//! The settings of the shared tier and their validation. Server URLs are displayed without users and
//! passwords. Does not know about connections.

use std::fmt;
use std::path::PathBuf;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// The longest allowed prefix. It is bounded because the prefix is sent with every key.
const PREFIX_BYTES_MAX: usize = 128;

/// The settings section `[shared]`: the servers of the shared tier, how to log in to them, and how long a
/// request waits for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharedSettings {
    /// Server URLs with the scheme `redis://`, `rediss://` (TLS), `valkey://` or `valkeys://` (TLS): one
    /// server, or some nodes of one cluster. Empty (the default): there is no shared tier.
    pub urls: ServerUrls,
    /// Whether the servers form a cluster. Default: false.
    pub cluster: bool,
    /// The PEM file with the only certificate authorities to trust. Empty (the default): the public ones.
    pub ca_file: PathBuf,
    /// The PEM file with this client's certificate, for servers that require one. Empty (the default): no
    /// client certificate.
    pub client_cert_file: PathBuf,
    /// The PEM file with the private key of `client_cert_file`. Set both or neither.
    pub client_key_file: PathBuf,
    /// The file with the password, read again at every connect. Empty (the default): the password in the URL.
    pub password_file: PathBuf,
    /// The file with a secret that all sidecars share. With it, values are authenticated: a value made
    /// without the secret is a miss. Empty (the default): values have only a checksum.
    pub secret_file: PathBuf,
    /// The prefix of every key, at most 128 bytes. Default: `thresher:`.
    pub prefix: String,
    /// How long a request waits for a call that reads blocks, 64 at a time, in milliseconds. Default: 50. A
    /// change of a journal and a background write may take [`SharedSettings::WRITE_TIMEOUT_FACTOR`] times as
    /// long, and at least one second.
    pub timeout_ms: u64,
}

impl Default for SharedSettings {
    fn default() -> Self {
        Self {
            urls: ServerUrls::default(),
            cluster: false,
            ca_file: PathBuf::new(),
            client_cert_file: PathBuf::new(),
            client_key_file: PathBuf::new(),
            password_file: PathBuf::new(),
            secret_file: PathBuf::new(),
            prefix: "thresher:".to_owned(),
            timeout_ms: 50,
        }
    }
}

impl SharedSettings {
    /// The timeout of a write as a multiple of `timeout_ms`.
    pub const WRITE_TIMEOUT_FACTOR: u32 = 4;

    /// Returns whether `urls` lists a server, that is, whether there is a shared tier.
    pub fn enabled(&self) -> bool {
        !self.urls.0.is_empty()
    }

    /// Checks that every setting is in its range and that the settings do not contradict each other.
    ///
    /// # Errors
    /// Returns the first rule that is broken; its message names the setting.
    pub fn validate(&self) -> Result<(), SharedSettingsError> {
        use SharedSettingsError as E;
        let is_set = |file: &PathBuf| !file.as_os_str().is_empty();
        let prefix_bytes = self.prefix.len();
        let rules = [
            (self.timeout_ms == 0, E::TimeoutZero),
            (prefix_bytes > PREFIX_BYTES_MAX, E::PrefixTooLong { prefix_bytes }),
            (is_set(&self.client_cert_file) != is_set(&self.client_key_file), E::ClientCertIncomplete),
        ];
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

/// A setting of `[shared]` that is out of range, or two that contradict each other. The message names the
/// setting.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SharedSettingsError {
    #[error("shared.timeout_ms is 0, so no answer could arrive in time; set it to at least 1")]
    TimeoutZero,
    #[error("shared.prefix has {prefix_bytes} bytes; the limit is {PREFIX_BYTES_MAX}")]
    PrefixTooLong { prefix_bytes: usize },
    #[error(
        "one of shared.client_cert_file and shared.client_key_file is set without the other; set both or neither"
    )]
    ClientCertIncomplete,
}

/// The URLs of the servers. Deserialized from an array of strings, or from one string with commas between the
/// URLs, the form that an environment variable has. `Debug`, `Display` and `Serialize` omit users and
/// passwords, and no error quotes a URL.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ServerUrls(Vec<String>);

impl ServerUrls {
    /// Returns the URLs with their users and passwords. Use it only to connect.
    pub fn reveal(&self) -> &[String] {
        &self.0
    }

    fn redacted(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|url| redacted(url))
    }
}

impl<T: Into<String>> FromIterator<T> for ServerUrls {
    fn from_iter<I: IntoIterator<Item = T>>(urls: I) -> Self {
        Self(urls.into_iter().map(Into::into).collect())
    }
}

/// Keeps the scheme, host, port and database of a URL. A password may contain `@` and `/` unescaped, so
/// everything between the scheme and the last `@` is removed.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = match rest.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => rest.to_owned(),
    };
    // The query of a URL may hold secrets, too.
    let host = host.split_once('?').map_or(host.as_str(), |(host, _)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

impl fmt::Display for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.redacted().collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_list().entries(self.redacted()).finish()
    }
}

impl Serialize for ServerUrls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.redacted())
    }
}

impl<'de> Deserialize<'de> for ServerUrls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UrlsVisitor)
    }
}

struct UrlsVisitor;

impl<'de> Visitor<'de> for UrlsVisitor {
    type Value = ServerUrls;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of URLs, or a string of URLs with commas between them")
    }

    fn visit_str<E>(self, text: &str) -> Result<ServerUrls, E> {
        Ok(text.split(',').map(str::trim).filter(|url| !url.is_empty()).collect())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ServerUrls, A::Error> {
        let mut urls = Vec::new();
        while let Some(url) = items.next_element::<String>()? {
            urls.push(url);
        }
        Ok(ServerUrls(urls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_urls_hold_no_secret() {
        let check = |url: &str, expect: &str| assert_eq!(redacted(url), expect);
        check("redis://h:1/2", "redis://h:1/2");
        check("rediss://user:pass@h:1/2", "rediss://***@h:1/2");
        check("valkey://:p@ss/word@h", "valkey://***@h");
        check("unix:///s?pass=secret", "unix:///s");
        check("user:secret@h", "***@h");
        let settings =
            SharedSettings { urls: ["redis://u:hunter2@h"].into_iter().collect(), ..Default::default() };
        assert!(!format!("{settings:?}").contains("hunter2"));
        assert!(!toml::to_string(&settings).expect("TOML").contains("hunter2"));
    }

    #[test]
    fn urls_are_read_from_an_array_or_from_one_string() {
        let read = |text: &str| toml::from_str::<SharedSettings>(text).map(|s| s.urls.0);
        assert_eq!(
            read("urls = [\"redis://a\", \"redis://b\"]").expect("an array"),
            ["redis://a", "redis://b"]
        );
        assert_eq!(read("urls = \"redis://a, redis://b\"").expect("text"), ["redis://a", "redis://b"]);
        assert_eq!(read("urls = \"\"").expect("nothing"), [""; 0]);
        assert!(read("urls = 1").is_err());
    }
}
