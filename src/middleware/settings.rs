//! Settings of the middleware and of its upstreams, with their defaults and checks.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use thresher_core::domain::Budget;

use super::find::{Bounds, CONTEXT_DELIMITERS, Policy};
use super::paths;

/// `[middleware]`: the OpenAI- and Anthropic-compatible proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MiddlewareSettings {
    /// The upstreams. A request goes to the first one that has its model. Empty: the middleware is off.
    pub upstreams: Vec<UpstreamSettings>,
    pub mode: Mode,
    /// Whether citations are added to answers of compressed requests.
    pub cite: bool,
    /// Names of tools whose results are compressed; `*`: all tools.
    pub tools: Vec<String>,
    /// Names of tools whose results stay whole, beside those that list, search, read and change files. A tool that `tools` names is compressed.
    pub tools_untouched: Vec<String>,
    /// Share of tokens to keep, from 0 to 1. 0: as much as the question needs.
    pub ratio: f64,
    /// Tokens below which no prompt is compressed, unless a request sets a budget: providers do not cache shorter prompts. 0: no minimum.
    pub prompt_tokens_min: usize,
    /// The share of results of a tool of which something may be missing that a later step copies. Once it is certain at 95 % that more is
    /// missing, results of this tool and kind are sent whole. 1: never.
    pub loss_max: f64,
    /// Milliseconds to compress a request, and again to cite its answer. After that, the text is forwarded unchanged.
    pub deadline_ms: u64,
}

/// What bounds the middleware apart from its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MiddlewareLimits {
    /// The limits of a conversation. One that exceeds them is forwarded unchanged.
    pub bounds: Bounds,
    /// Tokens below which the result of a tool is not compressed: a gap and its mark would save next to nothing.
    pub result_tokens_min: usize,
    /// Bytes of a request body, images included; also the most that is buffered of a JSON answer.
    pub body_bytes_max: usize,
    /// Requests to upstreams that are in flight at the same time, shared fairly between tenants; one more gets a 429. Each takes two
    /// connections and hardly any work.
    pub request_count_max: usize,
    /// How long an upstream may take to begin its answer, or pause within it: models that reason are silent for minutes.
    pub silence_max: Duration,
}

impl Default for MiddlewareLimits {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            result_tokens_min: 200,
            body_bytes_max: 32 << 20,
            request_count_max: 1_024,
            silence_max: Duration::from_secs(600),
        }
    }
}

/// An entry of `middleware.upstreams`: a server with an OpenAI- or Anthropic-compatible API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSettings {
    /// The `http://` or `https://` URL of the upstream. Its path, if any, is put before the path of a request.
    pub url: String,
    /// Names of the models that the upstream has; a `*` at the end of a name matches any ending. Empty: all models.
    #[serde(default)]
    pub models: Vec<String>,
    /// Which requests to this upstream are compressed.
    #[serde(default)]
    pub compress: When,
    /// Whether requests that would be compressed are sent whole, and what compression would have kept is computed beside them.
    #[serde(default)]
    pub shadow: bool,
    /// Tokens of the texts and tools of a request after compression; a request with more is refused. 0: no limit.
    #[serde(default)]
    pub input_tokens_max: usize,
    /// File with the key that the daemon sends to the upstream instead of the caller's key. Empty: none.
    #[serde(default)]
    pub key_file: PathBuf,
    /// Whether the caller's own key is forwarded. The default is true only if `models` names the models.
    #[serde(default)]
    pub caller_key: Option<bool>,
    /// Paths that are forwarded with the key of `key_file` in addition to those that store nothing; a `*` at the end of a path matches any ending.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Names of request headers that are forwarded in addition to the usual ones.
    #[serde(default)]
    pub request_headers: Vec<String>,
    /// Names of response headers that are forwarded in addition to the usual ones.
    #[serde(default)]
    pub response_headers: Vec<String>,
    /// PEM file with the certificate authorities to trust instead of the public ones. Empty: the public ones.
    #[serde(default)]
    pub ca_file: PathBuf,
}

/// The key that requests to an upstream carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    KeyFile,
    Caller,
    Nothing,
}

/// Headers that `request_headers` and `response_headers` must not name: credentials, which have settings of their own, and headers that the
/// daemon writes itself.
const RESERVED_HEADERS: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-api-key",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Requests that ask for it.
    #[default]
    Asked,
    /// All requests that do not forbid it.
    Always,
}

/// What compression may leave out of a request that sets no budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing: results of tools are encoded by [`thresher_codec`], from which every byte can be read.
    Lossless,
    /// Results of tools are encoded, and sentences that the question does not need are left out of running text: prose, web pages, documents,
    /// chunks of a retriever, and long logs.
    #[default]
    Relevant,
}

impl Default for MiddlewareSettings {
    fn default() -> Self {
        Self {
            upstreams: Vec::new(),
            mode: Mode::default(),
            cite: true,
            tools: Vec::new(),
            tools_untouched: Vec::new(),
            ratio: 0.0,
            prompt_tokens_min: 1_024,
            loss_max: 0.05,
            deadline_ms: 2_000,
        }
    }
}

impl MiddlewareSettings {
    /// Checks that every setting is in its range and that the settings do not contradict each other.
    ///
    /// # Errors
    /// Returns a message for the first rule that is broken. It names the settings, their values, and what to change.
    pub fn validate(&self) -> Result<(), String> {
        self.upstreams.iter().try_for_each(UpstreamSettings::validate)?;
        if !(0.0..=1.0).contains(&self.ratio) {
            return Err(format!("middleware.ratio is {}; it must be from 0 to 1", self.ratio));
        }
        if !(0.0..=1.0).contains(&self.loss_max) {
            return Err(format!("middleware.loss_max is {}; it must be from 0 to 1", self.loss_max));
        }
        if self.deadline_ms == 0 {
            return Err(
                "middleware.deadline_ms is 0, so no conversation would be compressed; set it to at least 1"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the budget of requests that set none.
    pub fn budget(&self) -> Budget {
        if self.ratio > 0.0 { Budget::ratio(self.ratio) } else { Budget::default() }
    }

    /// Returns which texts of a conversation may be compressed. `keeps_documents` excludes documents and search results.
    pub fn policy(&self, limits: &MiddlewareLimits, keeps_documents: bool) -> Policy {
        Policy {
            tools: self.tools.clone(),
            tools_untouched: self.tools_untouched.clone(),
            delimiters: Some(CONTEXT_DELIMITERS),
            keeps_documents,
            result_tokens_min: limits.result_tokens_min,
            bounds: limits.bounds,
        }
    }
}

impl UpstreamSettings {
    /// Returns whether the upstream has a model with this name.
    pub fn has(&self, model: &str) -> bool {
        self.models.is_empty() || self.name_of(model).is_some()
    }

    /// Returns the name in `models` that matches a model.
    pub fn name_of(&self, model: &str) -> Option<&str> {
        let is = |name: &&String| match name.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == *name,
        };
        self.models.iter().find(is).map(String::as_str)
    }

    /// Returns the key that requests to this upstream carry. An upstream for any model may be one that the caller does not expect, so it gets
    /// the caller's key only if `caller_key` says so.
    pub fn credential(&self) -> Credential {
        if !self.key_file.as_os_str().is_empty() {
            Credential::KeyFile
        } else if self.caller_key.unwrap_or(!self.is_for_any_model()) {
            Credential::Caller
        } else {
            Credential::Nothing
        }
    }

    pub fn is_for_any_model(&self) -> bool {
        self.models.is_empty() || self.models.iter().any(|model| model == "*")
    }

    /// Returns whether a request that the middleware does not read may be sent to this upstream. With a key that all tenants share, only those
    /// may that cannot reach what another tenant has stored, and those that `paths` names.
    pub fn forwards(&self, method: &str, path: &str) -> bool {
        self.credential() != Credential::KeyFile || paths::may_use_key(method, path, &self.paths)
    }

    /// Returns whether a body for `path` may neither read nor store anything at the provider, because all tenants share the key.
    pub fn refuses_state(&self, path: &str) -> bool {
        self.credential() == Credential::KeyFile && !paths::is_named(path, &self.paths)
    }

    /// Returns whether `name` is the URL of this upstream, or its host with or without the port.
    pub fn is_named(&self, name: &str) -> bool {
        let authority = self.url.split('/').nth(2).unwrap_or_default();
        let is_host = [authority, self.host()].iter().any(|host| host.eq_ignore_ascii_case(name));
        is_host || self.url.trim_end_matches('/') == name.trim_end_matches('/')
    }

    /// Describes the key that requests to this upstream carry, and what to change to use another one. The text completes "the upstream is".
    pub fn credential_description(&self) -> String {
        match self.credential() {
            Credential::KeyFile => format!("called with the key in {} (key_file)", self.key_file.display()),
            Credential::Caller => "called with the caller's own key".to_owned(),
            Credential::Nothing if self.caller_key == Some(false) => {
                "called without a key (caller_key = false); set key_file to give it one".to_owned()
            }
            Credential::Nothing => "called without a key, because it is for any model; if it needs one, set its key_file, or caller_key = \
                                    true to forward the caller's key"
                .to_owned(),
        }
    }

    /// Returns a warning if keys and texts cross the network unencrypted on their way to this upstream.
    pub fn cleartext_warning(&self) -> Option<&'static str> {
        let is_cleartext = self.credential() != Credential::Nothing
            && self.url.starts_with("http://")
            && !is_loopback(self.host());
        is_cleartext.then_some("keys and texts cross the network unencrypted; use an https:// address")
    }

    /// Whether the URL is that of a program on this machine that listens at `address`.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        let listens = address.ip().to_canonical();
        let is_same = match self.host().parse::<IpAddr>().map(|host| host.to_canonical()) {
            Ok(host) => {
                host == listens
                    || host.is_loopback() && listens.is_unspecified() && host.is_ipv4() == listens.is_ipv4()
            }
            Err(_) => is_loopback(self.host()) && (listens.is_loopback() || listens.is_unspecified()),
        };
        let default_port = if self.url.starts_with("https://") { 443 } else { 80 };
        let authority = self.url.split('/').nth(2).unwrap_or_default();
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        is_same && port.unwrap_or(default_port) == address.port()
    }

    /// The host of the URL, without brackets and port.
    fn host(&self) -> &str {
        let authority = self.url.split('/').nth(2).unwrap_or_default();
        match authority.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        }
    }

    fn validate(&self) -> Result<(), String> {
        let url = &self.url;
        let is_http = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        if !is_http || url.contains(['@', '?', '#']) {
            return Err(format!(
                "middleware.upstreams: the url {url:?} is not valid; write an http:// or https:// URL without user, query and fragment, and put \
                 a key into key_file"
            ));
        }
        if self.caller_key == Some(true) && self.credential() == Credential::KeyFile {
            return Err(format!(
                "middleware.upstreams, {url}: key_file and caller_key = true exclude each other; remove one of them"
            ));
        }
        if let Some(path) = self.paths.iter().find(|path| *path != "*" && !path.starts_with("/v1/")) {
            return Err(format!(
                "middleware.upstreams, {url}: paths contains {path:?}; write \"*\" or a path that starts with /v1/, such as \"/v1/files*\""
            ));
        }
        if !self.paths.is_empty() && self.credential() != Credential::KeyFile {
            return Err(format!(
                "middleware.upstreams, {url}: paths is set without key_file; without it all paths are forwarded, so remove paths"
            ));
        }
        let lists =
            [("request_headers", &self.request_headers), ("response_headers", &self.response_headers)];
        let named = lists.iter().flat_map(|(list, names)| names.iter().map(move |name| (list, name)));
        for (list, name) in named {
            let lower = name.to_ascii_lowercase();
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            let reason = if name.is_empty() || !name.bytes().all(is_token) {
                "is not a name of a header"
            } else if RESERVED_HEADERS.contains(&&*lower) || lower.starts_with("x-thresher") {
                "cannot be forwarded by name; use key_file or caller_key for keys"
            } else {
                continue;
            };
            return Err(format!("middleware.upstreams, {url}: {list} contains {name:?}, which {reason}"));
        }
        Ok(())
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_has_the_models_that_match_its_names() {
        let upstream = |models: &[&str]| UpstreamSettings {
            models: models.iter().map(|&model| model.to_owned()).collect(),
            ..UpstreamSettings::default()
        };
        let check =
            |models: &[&str], model: &str, expect: bool| assert_eq!(upstream(models).has(model), expect);
        check(&[], "any", true);
        check(&["gpt-*", "o3"], "gpt-5", true);
        check(&["gpt-*", "o3"], "o3", true);
        check(&["gpt-*", "o3"], "o3-mini", false);
    }

    #[test]
    fn the_callers_key_is_forwarded_for_named_models_or_if_a_setting_says_so() {
        let check = |models: &[&str], caller_key: Option<bool>, key_file: &str, expect: Credential| {
            let upstream = UpstreamSettings {
                models: models.iter().map(|&model| model.to_owned()).collect(),
                caller_key,
                key_file: key_file.into(),
                ..UpstreamSettings::default()
            };
            assert_eq!(upstream.credential(), expect, "{models:?} {caller_key:?} {key_file:?}");
            assert!(!upstream.credential_description().is_empty());
        };
        check(&["gpt-*"], None, "", Credential::Caller);
        check(&["gpt-*"], Some(false), "", Credential::Nothing);
        check(&["gpt-*"], None, "key", Credential::KeyFile);
        check(&[], None, "", Credential::Nothing);
        check(&["gpt-*", "*"], None, "", Credential::Nothing);
        check(&[], Some(true), "", Credential::Caller);
        check(&[], Some(false), "key", Credential::KeyFile);
    }

    #[test]
    fn an_upstream_is_named_by_its_url_or_host() {
        let check = |url: &str, name: &str, expect: bool| {
            let upstream = UpstreamSettings { url: url.to_owned(), ..UpstreamSettings::default() };
            assert_eq!(upstream.is_named(name), expect, "{url} {name}");
        };
        check("https://api.openai.com/v1", "api.openai.com", true);
        check("https://api.openai.com/v1", "API.OpenAI.com", true);
        check("https://api.openai.com/v1/", "https://api.openai.com/v1", true);
        check("http://127.0.0.1:8000", "127.0.0.1:8000", true);
        check("http://127.0.0.1:8000", "127.0.0.1", true);
        check("http://127.0.0.1:8000", "127.0.0.1:8001", false);
        check("http://[::1]:8000", "[::1]:8000", true);
        check("https://api.openai.com", "", false);
    }

    #[test]
    fn a_key_that_crosses_the_network_unencrypted_gets_a_warning() {
        let check = |url: &str, expect: bool| {
            let mut upstream = UpstreamSettings { url: url.to_owned(), ..UpstreamSettings::default() };
            assert_eq!(upstream.cleartext_warning(), None, "{url}: no key");
            upstream.caller_key = Some(true);
            assert_eq!(upstream.cleartext_warning().is_some(), expect, "{url}");
        };
        check("https://api.openai.com", false);
        check("http://api.openai.com/v1", true);
        check("http://10.0.0.7:8000", true);
        check("http://127.0.0.1:8000/v1", false);
        check("http://LOCALHOST:8000", false);
        check("http://[::1]:8000/v1", false);
        check("http://[::ffff:127.0.0.1]", false);
        check("http://[2001:db8::1]:8000", true);
        check("http://127.0.0.1.example.com", true);
    }

    #[test]
    fn an_upstream_at_an_address_of_this_machine_is_recognised() {
        let check = |url: &str, address: &str, expect: bool| {
            let upstream = UpstreamSettings { url: url.to_owned(), ..UpstreamSettings::default() };
            assert_eq!(upstream.is_at(address.parse().expect("an address")), expect, "{url} {address}");
        };
        check("http://localhost:8080/v1", "127.0.0.1:8080", true);
        check("http://127.0.0.1:8080", "0.0.0.0:8080", true);
        check("http://[::1]:8080", "0.0.0.0:8080", false);
        check("http://[::1]:8080", "127.0.0.1:8080", false);
        check("http://127.0.0.1", "127.0.0.1:80", true);
        check("https://[::1]/v1", "[::]:443", true);
        check("http://127.0.0.1:8000", "127.0.0.1:8080", false);
        check("http://10.0.0.7:8080", "127.0.0.1:8080", false);
        check("http://127.0.0.1:8080", "10.0.0.7:8080", false);
    }

    #[test]
    fn invalid_settings_are_named() {
        let check = |name: &str, change: fn(&mut MiddlewareSettings), expect: &[&str]| {
            let upstream = UpstreamSettings { url: "http://x".to_owned(), ..UpstreamSettings::default() };
            let mut settings =
                MiddlewareSettings { upstreams: vec![upstream], ..MiddlewareSettings::default() };
            assert_eq!(settings.validate(), Ok(()));
            change(&mut settings);
            let message = settings.validate().expect_err(name);
            expect
                .iter()
                .for_each(|part| assert!(message.contains(part), "{name}: {message:?} lacks {part:?}"));
        };
        check("deadline", |settings| settings.deadline_ms = 0, &["middleware.deadline_ms is 0"]);
        let both = |settings: &mut MiddlewareSettings| {
            settings.upstreams[0].key_file = "key".into();
            settings.upstreams[0].caller_key = Some(true);
        };
        check("two keys", both, &["http://x", "key_file", "caller_key"]);
        let request = |settings: &mut MiddlewareSettings| {
            settings.upstreams[0].request_headers = vec!["x-mine".to_owned(), "Authorization".to_owned()];
        };
        check("a credential", request, &["request_headers", "\"Authorization\"", "caller_key"]);
        let response = |settings: &mut MiddlewareSettings| {
            settings.upstreams[0].response_headers = vec!["a b".to_owned()];
        };
        let path = |settings: &mut MiddlewareSettings| {
            settings.upstreams[0].key_file = "key".into();
            settings.upstreams[0].paths = vec!["*".to_owned(), "files".to_owned()];
        };
        check("a path", path, &["paths", "\"files\"", "/v1/"]);
        let paths = |settings: &mut MiddlewareSettings| settings.upstreams[0].paths = vec!["*".to_owned()];
        check("paths without a key", paths, &["paths", "key_file"]);
        check("no name", response, &["response_headers", "\"a b\"", "not a name"]);
    }
}
