//! Rules that the values of settings must satisfy: ranges, and relations between settings. Each message names the settings, the values
//! that were found, and what to change.

use std::path::PathBuf;

use axum::http::uri::Authority;

use tokio::sync::Semaphore;

use super::{Admission, Config, ConfigError};

/// The smallest disk cache, in bytes (16 MiB). A smaller value is most likely a mistake in the unit.
const DISK_BYTES_MIN: u64 = 16 << 20;

/// The most workers: far more than any machine has cores.
const WORKERS_MAX: usize = 1024;

/// The least `memory_bytes_max` (128 MiB). A smaller value is most likely a mistake in the unit.
const MEMORY_BYTES_MIN: u64 = 128 << 20;

impl Config {
    /// Checks every setting and the relations between settings.
    ///
    /// # Errors
    /// Returns the first rule that is broken as [`ConfigError::Relation`].
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let shared = || self.shared.validate().err().map(|error| error.to_string());
        let middleware = || self.middleware.validate().err();
        let savings = || self.savings.validate().err();
        let broken = self
            .check_keys()
            .or_else(|| self.check_log())
            .or_else(|| self.http.hosts_allowed.iter().find_map(|host| check_host(host)))
            .or_else(|| self.http.origins_allowed.iter().find_map(|origin| check_origin(origin)))
            .or_else(|| self.check_zeros())
            .or_else(|| self.check_ranges())
            .or_else(|| self.check_folders())
            .or_else(shared)
            .or_else(middleware)
            .or_else(|| self.check_upstreams())
            .or_else(savings);
        match broken {
            Some(message) => Err(ConfigError::Relation(message)),
            None => Ok(()),
        }
    }

    /// A daemon without keys listens on loopback only; certificate and key go together.
    fn check_keys(&self) -> Option<String> {
        let Self { http, access, .. } = self;
        if self.receipts.key_file.as_os_str().is_empty() {
            return Some(
                "receipts.key_file is empty; name a file, which is created when the first receipt is signed"
                    .to_owned(),
            );
        }
        let is_reachable = !http.listen.ip().to_canonical().is_loopback();
        if is_reachable && access.keys_file.as_os_str().is_empty() {
            return Some(format!(
                "http.listen is {}, which is not a loopback address, and access.keys_file is empty, so everybody who reaches the \
                 port could send requests; create a key with `thresher key new` and set access.keys_file, or listen on 127.0.0.1",
                http.listen
            ));
        }
        if http.listen == self.admin.listen && http.listen.port() != 0 {
            return Some(format!(
                "http.listen and admin.listen are both {}; give each its own port",
                http.listen
            ));
        }
        let files = [("http.tls_cert_file", &http.tls_cert_file), ("http.tls_key_file", &http.tls_key_file)];
        let (empty, set): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|(_, file)| file.as_os_str().is_empty());
        match (&empty[..], &set[..]) {
            ([(empty, _)], [(set, file)]) => {
                let file = file.display();
                Some(format!("{set} is {file:?}, but {empty} is empty; set both, or neither for no TLS"))
            }
            _ => None,
        }
    }

    /// An upstream is another program: a request to the daemon itself would come back until it is refused.
    fn check_upstreams(&self) -> Option<String> {
        let listen = self.http.listen;
        let upstream = self.middleware.upstreams.iter().find(|upstream| upstream.is_at(listen))?;
        Some(format!(
            "middleware.upstreams: {} is this daemon (http.listen is {listen}); name the server that has the models",
            upstream.url
        ))
    }

    fn check_log(&self) -> Option<String> {
        let word = self.telemetry.log.split(',').map(str::trim).find(|word| !is_log_directive(word));
        if let Some(word) = word {
            return Some(format!(
                "telemetry.log contains {word:?}; write a level (off, error, warn, info, debug, trace) or target=level"
            ));
        }
        let endpoint = &self.telemetry.otlp_endpoint;
        let is_http = endpoint.is_empty() || endpoint.starts_with("http://");
        (!is_http).then(|| {
            format!(
                "telemetry.otlp_endpoint is {endpoint:?}; it must start with http://, or be empty for no traces"
            )
        })
    }

    /// Settings that must be at least 1, with what 0 would mean.
    fn check_zeros(&self) -> Option<String> {
        let Self { registry, admission, .. } = self;
        let zeros = [
            (registry.chunk_count_max == 0, "registry.chunk_count_max", "no chunk could be registered"),
            (
                admission.deadline_ms_default == 0,
                "admission.deadline_ms_default",
                "every request would miss its deadline",
            ),
        ];
        let zero = zeros.into_iter().find(|(is_zero, ..)| *is_zero);
        zero.map(|(_, name, means)| format!("{name} is 0, so {means}; set it to at least 1"))
    }

    fn check_ranges(&self) -> Option<String> {
        let Self { blocks, admission, memory_bytes_max, .. } = self;
        if *memory_bytes_max < MEMORY_BYTES_MIN {
            return Some(format!(
                "memory_bytes_max is {memory_bytes_max}; set it to at least {MEMORY_BYTES_MIN} (128 MiB)"
            ));
        }
        if blocks.disk() && blocks.disk_bytes_max < DISK_BYTES_MIN {
            return Some(format!(
                "blocks.disk_bytes_max is {}; set it to at least {DISK_BYTES_MIN} (16 MiB), or to 0 for no disk cache",
                blocks.disk_bytes_max
            ));
        }
        let counts = [
            ("admission.concurrency_max", admission.concurrency_max, Semaphore::MAX_PERMITS),
            ("model.workers", self.model.workers, WORKERS_MAX),
        ];
        if let Some((name, found, limit)) = counts.into_iter().find(|(_, found, limit)| found > limit) {
            return Some(format!("{name} is {found}; the limit is {limit}"));
        }
        let (default, max) = (admission.deadline_ms_default, Admission::DEADLINE_MAX.as_millis());
        (u128::from(default) > max)
            .then(|| format!("admission.deadline_ms_default is {default}; the limit is {max}"))
    }

    /// Each store has a folder of its own: two in one folder would drop each other's files.
    fn check_folders(&self) -> Option<String> {
        let Self { blocks, registry, originals, .. } = self;
        let no_blocks = PathBuf::new();
        let folders = [
            ("blocks.dir", if blocks.disk() { &blocks.dir } else { &no_blocks }),
            ("registry.dir", &registry.dir),
            ("originals.dir", &originals.dir),
        ];
        let used = |folder: &&(&str, &PathBuf)| !folder.1.as_os_str().is_empty();
        for (at, (name, dir)) in folders.iter().enumerate().filter(|(_, folder)| used(folder)) {
            if let Some((other, _)) = folders[..at].iter().find(|(_, other)| other == dir) {
                let dir = dir.display();
                return Some(format!("{other} and {name} are both {dir:?}; each needs a folder of its own"));
            }
        }
        None
    }
}

/// A word without a level would be read as a target, and then only the events of that target would be logged.
fn is_log_directive(word: &str) -> bool {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    word.is_empty() || word.contains(['=', '[']) || levels.contains(&&*word.to_ascii_lowercase())
}

/// What is wrong with an entry of `http.hosts_allowed`, if it is not a host name.
fn check_host(host: &str) -> Option<String> {
    let is_host =
        !host.contains('*') && host.parse::<Authority>().is_ok_and(|authority| authority.host() == host);
    (!is_host).then(|| {
        format!("http.hosts_allowed contains {host:?}; write a host name without scheme and port, such as \"thresher.internal\"")
    })
}

/// What is wrong with an entry of `http.origins_allowed`, if it is not an origin.
fn check_origin(origin: &str) -> Option<String> {
    let is_origin = ["http://", "https://"].iter().any(|scheme| {
        origin
            .strip_prefix(scheme)
            .is_some_and(|rest| rest.parse::<Authority>().is_ok() && !rest.contains('@'))
    });
    (!is_origin).then(|| {
        format!("http.origins_allowed contains {origin:?}; write scheme, host and port only, such as \"https://app.example.com\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_origins_are_checked() {
        for host in ["thresher.internal", "10.0.0.1", "[fd00::1]"] {
            assert_eq!(check_host(host), None, "{host}");
        }
        for host in ["", "a:80", "http://a", "a/b", "*"] {
            assert!(check_host(host).is_some(), "{host}");
        }
        for origin in ["https://app.example.com", "http://localhost:3000"] {
            assert_eq!(check_origin(origin), None, "{origin}");
        }
        for origin in ["", "app.example.com", "https://a/", "https://a@b", "*", "null"] {
            assert!(check_origin(origin).is_some(), "{origin}");
        }
    }
}
