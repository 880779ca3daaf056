//! What has to hold between settings, and of each.

use axum::http::uri::Authority;
use tokio::sync::Semaphore;

use super::{Config, ConfigError};

/// A disk tier for less is a mistake in the unit.
const KV_DISK_BYTES_MIN: u64 = 16 << 20;

/// Far more than there are cores.
const WORKERS_MAX: usize = 1024;

impl Config {
    /// # Errors
    /// [`ConfigError::Relation`] names the settings that contradict each other, or are out of range.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Self { http, access, admin, blocks, limits, registry, admission, .. } = self;
        let is_reachable = !http.listen.ip().to_canonical().is_loopback();
        if is_reachable && access.keys_file.as_os_str().is_empty() {
            let message = format!(
                "http.listen is {}, which is not this machine's loopback, and access.keys_file names no keys: whoever reaches \
                 it could ask; make a key (thresher key new), or listen on 127.0.0.1",
                http.listen
            );
            return Err(ConfigError::Relation(message));
        }
        let rules = [
            (
                http.listen == admin.listen && http.listen.port() != 0,
                "http.listen and admin.listen are the same address",
            ),
            (
                blocks.disk() && blocks.dir == registry.dir,
                "blocks.dir and registry.dir are the same folder: each needs one of its own",
            ),
            (
                http.tls_cert_file.as_os_str().is_empty() != http.tls_key_file.as_os_str().is_empty(),
                "http.tls_cert_file and http.tls_key_file: one is set without the other",
            ),
            (
                !access.keys_file.as_os_str().is_empty() && access.tenant_count_max == 0,
                "access.tenant_count_max is 0: no key could be used",
            ),
            (http.body_bytes_max == 0, "http.body_bytes_max is 0: no request could be sent"),
            (http.read_ms_max == 0, "http.read_ms_max is 0: no request could arrive"),
            (http.write_ms_max == 0, "http.write_ms_max is 0: no answer could be taken"),
            (http.idle_ms_max == 0, "http.idle_ms_max is 0: every connection would be closed at once"),
            (
                http.connection_count_max == 0 || http.peer_connection_count_max == 0,
                "http.connection_count_max or http.peer_connection_count_max is 0: nobody could connect",
            ),
            (
                http.bodies_bytes_max / 4 < http.body_bytes_max.max(self.middleware.body_bytes_max),
                "http.bodies_bytes_max is less than four times http.body_bytes_max or middleware.body_bytes_max: a body counts twice, and one tenant may take half",
            ),
            (
                blocks.disk() && blocks.write_queue_bytes_max == 0,
                "blocks.write_queue_bytes_max is 0: nothing would be written; for no disk tier set blocks.dir to \"\"",
            ),
            (
                blocks.disk() && blocks.disk_bytes_max < KV_DISK_BYTES_MIN,
                "blocks.disk_bytes_max is less than 16777216, which holds next to nothing; for no disk tier set it to 0",
            ),
            (limits.chunk_bytes_max == 0, "limits.chunk_bytes_max is 0: no request could be answered"),
            (
                admission.concurrency_max > Semaphore::MAX_PERMITS,
                "admission.concurrency_max is greater than the system can count",
            ),
            (
                admission.stream_count_max > Semaphore::MAX_PERMITS,
                "admission.stream_count_max is greater than the system can count",
            ),
            (
                !self.telemetry.otlp_endpoint.is_empty()
                    && !self.telemetry.otlp_endpoint.starts_with("http://"),
                "telemetry.otlp_endpoint must be empty or start with http://",
            ),
            (!self.auto.max_sim_min.is_finite(), "auto.max_sim_min is not a finite number"),
            (
                self.model.workers > WORKERS_MAX,
                "model.workers is more than 1024: each takes memory of its own",
            ),
            (limits.chunk_count_max == 0, "limits.chunk_count_max is 0: no request could be answered"),
            (
                limits.registered_chunk_count_max == 0,
                "limits.registered_chunk_count_max is 0: no request could name a chunk",
            ),
            (
                limits.registered_bytes_max == 0,
                "limits.registered_bytes_max is 0: no request could name a chunk",
            ),
            (registry.chunk_count_max == 0, "registry.chunk_count_max is 0: nothing could be registered"),
            (registry.batch_count_max == 0, "registry.batch_count_max is 0: nothing could be registered"),
            (registry.candidate_count_max == 0, "registry.candidate_count_max is 0: nothing could be found"),
            (
                registry.candidate_count_default == 0
                    || registry.candidate_count_default > registry.candidate_count_max,
                "registry.candidate_count_default is not from 1 to registry.candidate_count_max",
            ),
            (
                registry.prefilter_above > 0
                    && (registry.prefilter_to == 0 || registry.prefilter_to > registry.prefilter_above),
                "registry.prefilter_to is not from 1 to registry.prefilter_above",
            ),
            (limits.query_tokens_max == 0, "limits.query_tokens_max is 0: no request could be answered"),
            (limits.input_tokens_max == 0, "limits.input_tokens_max is 0: no request could be answered"),
            (
                admission.deadline_ms_default == 0,
                "admission.deadline_ms_default is 0: every request would be late",
            ),
            (limits.source_count_max == 0, "limits.source_count_max is 0: no answer could be attributed"),
            (limits.logit_count_max == 0, "limits.logit_count_max is 0: no request could be answered"),
            (
                limits.json_value_count_max == 0,
                "limits.json_value_count_max is 0: no tool could be called and no conversation compressed",
            ),
            (
                admission.deadline_ms_default > admission.deadline_ms_max,
                "admission.deadline_ms_default is greater than admission.deadline_ms_max",
            ),
        ];
        if let Some(word) = self.telemetry.log.split(',').map(str::trim).find(|word| !is_log_directive(word))
        {
            let message = format!(
                "telemetry.log holds {word:?}: a directive is a level (off, error, warn, info, debug, trace) or target=level"
            );
            return Err(ConfigError::Relation(message));
        }
        let in_hosts = http.hosts_allowed.iter().find_map(|host| nonsense_in_host(host));
        let in_origins = || http.origins_allowed.iter().find_map(|origin| nonsense_in_origin(origin));
        if let Some(message) = in_hosts.or_else(in_origins) {
            return Err(ConfigError::Relation(message));
        }
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, message)) => Err(ConfigError::Relation(message.to_owned())),
            None => match self.shared.nonsense().map(str::to_owned).or_else(|| self.middleware.nonsense()) {
                Some(said) => Err(ConfigError::Relation(said)),
                None => Ok(()),
            },
        }
    }
}

/// A bare word that is no level would be taken for a target, of which everything is logged, and nothing else.
fn is_log_directive(word: &str) -> bool {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    word.is_empty() || word.contains(['=', '[']) || levels.contains(&&*word.to_ascii_lowercase())
}

/// Why a setting is no host name of `http.hosts_allowed`; none where it is one.
fn nonsense_in_host(host: &str) -> Option<String> {
    let is_host =
        !host.contains('*') && host.parse::<Authority>().is_ok_and(|authority| authority.host() == host);
    (!is_host).then(|| {
        format!("http.hosts_allowed holds {host:?}: write a host name alone, such as \"thresher.internal\"")
    })
}

/// Why a setting is no origin of `http.origins_allowed`; none where it is one.
fn nonsense_in_origin(origin: &str) -> Option<String> {
    let is_origin = ["http://", "https://"].iter().any(|scheme| {
        origin
            .strip_prefix(scheme)
            .is_some_and(|rest| rest.parse::<Authority>().is_ok() && !rest.contains('@'))
    });
    (!is_origin).then(|| {
        format!("http.origins_allowed holds {origin:?}: write scheme, host and port alone, such as \"https://app.example.com\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_hosts_and_origins() {
        for host in ["thresher.internal", "10.0.0.1", "[fd00::1]"] {
            assert_eq!(nonsense_in_host(host), None, "{host}");
        }
        for host in ["", "a:80", "http://a", "a/b", "*"] {
            assert!(nonsense_in_host(host).is_some(), "{host}");
        }
        for origin in ["https://app.example.com", "http://localhost:3000"] {
            assert_eq!(nonsense_in_origin(origin), None, "{origin}");
        }
        for origin in ["", "app.example.com", "https://a/", "https://a@b", "*", "null"] {
            assert!(nonsense_in_origin(origin).is_some(), "{origin}");
        }
    }
}
