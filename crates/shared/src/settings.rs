//! Settings of the shared tier, and addresses whose passwords are never shown.
//! Knows nothing of connections.

use std::fmt;
use std::path::PathBuf;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest prefix: it is sent with every key.
const PREFIX_BYTES_MAX: usize = 128;

/// Where the shared tier is and how long it may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharedSettings {
    /// Servers: `redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` (TLS). Empty: no shared tier. One server, or some
    /// nodes of one cluster.
    pub urls: ServerUrls,
    /// Whether the servers are a cluster.
    pub cluster: bool,
    /// PEM file of the certificate authorities to trust, and no others; empty: the public ones.
    pub ca_file: PathBuf,
    /// PEM file of this client's certificate, for servers that ask for one; empty: none.
    pub client_cert_file: PathBuf,
    /// PEM file of its private key.
    pub client_key_file: PathBuf,
    /// ACL user; empty: the one of the URL, else the server's `default`.
    pub username: String,
    /// File with the password, read again at every connect; empty: the one of the URL.
    pub password_file: PathBuf,
    /// File with a secret that all sidecars share: values are then authenticated, not only checked; empty: only checked.
    pub secret_file: PathBuf,
    /// What every key begins with.
    pub prefix: String,
    /// Milliseconds that a request waits for blocks, 64 at a time. A change of a journal and a background write get
    /// [`SharedSettings::PATIENCE_FACTOR`] times as long, a second at least.
    pub timeout_ms: u64,
    /// Seconds until a block that no sidecar uses expires.
    pub ttl_s: u64,
    /// Bytes of blocks that wait to be written; more are dropped and counted.
    pub write_queue_bytes_max: usize,
    /// Failures in a row after which a server is left alone.
    pub breaker_failures: u32,
    /// Milliseconds between two looks whether it is well again; grows eightfold while it is not.
    pub breaker_probe_ms: u64,
}

impl Default for SharedSettings {
    fn default() -> Self {
        Self {
            urls: ServerUrls::default(),
            cluster: false,
            ca_file: PathBuf::new(),
            client_cert_file: PathBuf::new(),
            client_key_file: PathBuf::new(),
            username: String::new(),
            password_file: PathBuf::new(),
            secret_file: PathBuf::new(),
            prefix: "thresher:".to_owned(),
            timeout_ms: 50,
            ttl_s: 7 * 24 * 3600,
            write_queue_bytes_max: 32 * 1024 * 1024,
            breaker_failures: 5,
            breaker_probe_ms: 500,
        }
    }
}

impl SharedSettings {
    /// How many times longer than a read a write may take.
    pub const PATIENCE_FACTOR: u32 = 4;

    /// Whether there is a shared tier.
    pub fn enabled(&self) -> bool {
        !self.urls.0.is_empty()
    }

    /// What is out of range or contradicts itself, in words that name the setting.
    pub fn nonsense(&self) -> Option<&'static str> {
        let rules = [
            (self.timeout_ms == 0, "shared.timeout_ms is 0: no answer could arrive"),
            (self.ttl_s == 0, "shared.ttl_s is 0: every block would expire at once"),
            (self.ttl_s > u64::from(u32::MAX), "shared.ttl_s is more than a server can count"),
            (
                self.write_queue_bytes_max > u32::MAX as usize,
                "shared.write_queue_bytes_max is more than 4 GiB: blocks that wait are held in memory",
            ),
            (self.breaker_failures == 0, "shared.breaker_failures is 0: no server would ever be asked"),
            (
                self.breaker_probe_ms == 0,
                "shared.breaker_probe_ms is 0: a server that is down would be flooded",
            ),
            (self.prefix.len() > PREFIX_BYTES_MAX, "shared.prefix is longer than 128 bytes"),
            (
                self.client_cert_file.as_os_str().is_empty() != self.client_key_file.as_os_str().is_empty(),
                "shared.client_cert_file and shared.client_key_file: one is set without the other",
            ),
        ];
        rules.into_iter().find_map(|(broken, message)| broken.then_some(message))
    }
}

/// Addresses of servers. Reads from an array, or from text with commas between them, as environments have it. Shows
/// neither user nor password, and no error quotes it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ServerUrls(Vec<String>);

impl ServerUrls {
    /// The addresses, secrets included: for connecting only.
    pub fn reveal(&self) -> &[String] {
        &self.0
    }

    fn shown(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|url| shown(url))
    }
}

impl<T: Into<String>> FromIterator<T> for ServerUrls {
    fn from_iter<I: IntoIterator<Item = T>>(urls: I) -> Self {
        Self(urls.into_iter().map(Into::into).collect())
    }
}

/// Scheme, host, port and database. A password may hold `@` and `/` unescaped, so everything up to the last `@` goes.
fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let place = match rest.rsplit_once('@') {
        Some((_, place)) => format!("***@{place}"),
        None => rest.to_owned(),
    };
    // What follows `?` may hold secrets too.
    let place = place.split_once('?').map_or(place.as_str(), |(place, _)| place);
    if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
}

impl fmt::Display for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.shown().collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_list().entries(self.shown()).finish()
    }
}

impl Serialize for ServerUrls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.shown())
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
        f.write_str("an array of URLs")
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
    fn what_is_shown_holds_no_secret() {
        let check = |url: &str, expect: &str| assert_eq!(shown(url), expect);
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
    fn urls_come_as_an_array_or_as_text() {
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
