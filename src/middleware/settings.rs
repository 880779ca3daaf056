//! What stands in front of which server.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thresher_core::domain::Budget;

use super::find::{Bounds, Policy};

/// Settings of the middleware.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MiddlewareSettings {
    /// Who answers; the first one that has a model is asked for it. None: there is no middleware.
    pub upstreams: Vec<UpstreamSettings>,
    /// Which requests are compressed.
    pub compress: When,
    /// Whether the answers to compressed requests are cited.
    pub cite: bool,
    /// Tools whose results are compressed; `*` for all.
    pub tools: Vec<String>,
    /// What stands in front of a context inside a message; empty: contexts are not looked for.
    pub context_start: String,
    /// What stands behind it.
    pub context_end: String,
    /// The share of tokens that is kept; 0: as much as the evidence says.
    pub ratio: f64,
    /// Prompts are not brought below so many tokens, and shorter ones go whole, unless a request names a budget.
    pub prompt_tokens_min: usize,
    /// For compressing, and again for citing; what is late goes on as it is.
    pub deadline_ms: u64,
    /// Turns of a conversation; one with more goes on whole.
    pub turn_count_max: usize,
    /// Texts of a conversation that can be compressed; one with more goes on whole.
    pub piece_count_max: usize,
    /// Bytes of a request, and of an answer that is held until it is whole.
    pub body_bytes_max: usize,
    /// Requests on their way at the same time.
    pub request_count_max: usize,
    /// For a connection to a server.
    pub connect_ms_max: u64,
    /// For a server to begin its answer, or to go on with it.
    pub silence_ms_max: u64,
}

/// A server that answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamSettings {
    /// Where it is; its path, if any, stands in front of the request's.
    pub url: String,
    /// Models that it has; `*` at the end stands for any end. None: all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Which of its requests are compressed, where it is not as elsewhere.
    #[serde(default)]
    pub compress: Option<When>,
    /// A file with the key that it is asked with instead of the caller's.
    #[serde(default)]
    pub key_file: PathBuf,
    /// Whether it gets the caller's own key. Without a value it does where `models` names its models.
    #[serde(default)]
    pub caller_key: Option<bool>,
    /// Headers of requests that it gets beside the usual ones.
    #[serde(default)]
    pub request_headers: Vec<String>,
    /// Headers of its answers that callers get beside the usual ones.
    #[serde(default)]
    pub response_headers: Vec<String>,
    /// PEM of the authorities that it is known by, instead of the public ones.
    #[serde(default)]
    pub ca_file: PathBuf,
}

/// What an upstream is asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// The key in its `key_file`.
    KeyFile,
    /// The caller's own.
    Caller,
    /// None.
    Nothing,
}

/// Headers that are not for `request_headers` and `response_headers` to name: credentials, which have settings of their own, and headers that
/// the daemon writes itself.
const HEADERS_NOT_NAMED: [&str; 13] = [
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

/// Which requests are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Those that ask for it.
    #[default]
    Asked,
    /// All that do not forbid it.
    Always,
}

impl Default for MiddlewareSettings {
    fn default() -> Self {
        Self {
            upstreams: Vec::new(),
            compress: When::Asked,
            cite: true,
            tools: Vec::new(),
            context_start: "<context>".to_owned(),
            context_end: "</context>".to_owned(),
            ratio: 0.0,
            prompt_tokens_min: 1_024,
            deadline_ms: 2_000,
            turn_count_max: Bounds::default().turn_count_max,
            piece_count_max: Bounds::default().piece_count_max,
            body_bytes_max: 33_554_432,
            request_count_max: 1_024,
            connect_ms_max: 5_000,
            silence_ms_max: 600_000,
        }
    }
}

impl MiddlewareSettings {
    /// What cannot be.
    pub fn nonsense(&self) -> Option<String> {
        let said = |broken: bool, message: &str| broken.then(|| message.to_owned());
        let of_urls = self.upstreams.iter().find_map(|upstream| {
            let known = ["http://", "https://"].iter().any(|scheme| upstream.url.starts_with(scheme));
            let message = format!(
                "middleware.upstreams: {:?} is no http:// or https:// address with a path at most; a key stands in key_file",
                upstream.url
            );
            (!known || upstream.url.contains(['@', '?', '#'])).then_some(message)
        });
        of_urls
            .or_else(|| self.upstreams.iter().find_map(UpstreamSettings::nonsense))
            .or(said(!(0.0..=1.0).contains(&self.ratio), "middleware.ratio is not from 0 to 1"))
            .or(said(
                self.context_start.is_empty() != self.context_end.is_empty(),
                "middleware.context_start and middleware.context_end: name both, or neither",
            ))
            .or(said(
                !self.context_start.is_empty() && self.context_start == self.context_end,
                "middleware.context_start and middleware.context_end are the same",
            ))
            .or(said(self.deadline_ms == 0, "middleware.deadline_ms is 0: nothing would be compressed"))
            .or(said(
                self.turn_count_max == 0,
                "middleware.turn_count_max is 0: no conversation would be compressed",
            ))
            .or(said(
                self.piece_count_max == 0,
                "middleware.piece_count_max is 0: no conversation would be compressed",
            ))
            .or(said(
                self.request_count_max == 0,
                "middleware.request_count_max is 0: nothing could be asked",
            ))
            .or(said(self.connect_ms_max == 0, "middleware.connect_ms_max is 0: nobody could be reached"))
            .or(said(self.silence_ms_max == 0, "middleware.silence_ms_max is 0: nobody could answer"))
    }

    /// What may be compressed.
    pub fn policy(&self, keeps_documents: bool) -> Policy {
        let delimiters = (!self.context_start.is_empty()).then(|| self.delimiters());
        let bounds = Bounds { turn_count_max: self.turn_count_max, piece_count_max: self.piece_count_max };
        Policy { tools: self.tools.clone(), delimiters, keeps_documents, bounds }
    }

    /// How much is kept where a request does not say.
    pub fn budget(&self) -> Budget {
        if self.ratio > 0.0 { Budget::Ratio(self.ratio) } else { Budget::Auto }
    }

    /// What stands around a context.
    pub fn delimiters(&self) -> (String, String) {
        (self.context_start.clone(), self.context_end.clone())
    }
}

impl UpstreamSettings {
    /// Whether it has a model of that name.
    pub fn has(&self, model: &str) -> bool {
        let is = |name: &String| match name.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == name,
        };
        self.models.is_empty() || self.models.iter().any(is)
    }

    /// What it is asked with. An upstream for any model may be one that the caller does not know: it gets the caller's key only if
    /// `caller_key` says so.
    pub fn credential(&self) -> Credential {
        match () {
            () if !self.key_file.as_os_str().is_empty() => Credential::KeyFile,
            () if self.caller_key.unwrap_or(!self.is_for_any_model()) => Credential::Caller,
            () => Credential::Nothing,
        }
    }

    fn is_for_any_model(&self) -> bool {
        self.models.is_empty() || self.models.iter().any(|model| model == "*")
    }

    /// What it is asked with, in words, and what to change where it should be asked with something else.
    pub fn credential_in_words(&self) -> String {
        match self.credential() {
            Credential::KeyFile => format!("asked with the key in {} (key_file)", self.key_file.display()),
            Credential::Caller => "asked with the caller's own key".to_owned(),
            Credential::Nothing if self.caller_key == Some(false) => {
                "asked without any key (caller_key = false); a key_file would give it one".to_owned()
            }
            Credential::Nothing => "asked without any key: it is for any model; if it needs one, set its key_file, or caller_key = true to \
                                    pass the caller's on"
                .to_owned(),
        }
    }

    /// Why what it is asked with can be read on the way, where it can.
    pub fn exposure(&self) -> Option<&'static str> {
        let is_exposed = self.credential() != Credential::Nothing
            && self.url.starts_with("http://")
            && !is_loopback(self.host());
        is_exposed.then_some("keys and texts cross the network unencrypted: use an https:// address")
    }

    /// Without brackets and port.
    fn host(&self) -> &str {
        let authority = self.url.split('/').nth(2).unwrap_or_default();
        match authority.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        }
    }

    fn nonsense(&self) -> Option<String> {
        if self.caller_key == Some(true) && self.credential() == Credential::KeyFile {
            return Some(format!(
                "middleware.upstreams, {}: key_file and caller_key = true exclude each other; keep one",
                self.url
            ));
        }
        let lists =
            [("request_headers", &self.request_headers), ("response_headers", &self.response_headers)];
        let named = lists.iter().flat_map(|(list, names)| names.iter().map(move |name| (list, name)));
        named.into_iter().find_map(|(list, name)| {
            let lower = name.to_ascii_lowercase();
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            let why = match () {
                () if name.is_empty() || !name.bytes().all(is_token) => "is no name of a header",
                () if HEADERS_NOT_NAMED.contains(&&*lower) || lower.starts_with("x-thresher") => {
                    "is not passed on by name; keys have key_file and caller_key"
                }
                () => return None,
            };
            Some(format!("middleware.upstreams, {}: {list} names {name:?}, which {why}", self.url))
        })
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
    fn models_have_their_server() {
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
    fn keys_of_callers_go_to_named_models_or_where_a_setting_says_so() {
        let check = |models: &[&str], caller_key: Option<bool>, key_file: &str, expect: Credential| {
            let upstream = UpstreamSettings {
                models: models.iter().map(|&model| model.to_owned()).collect(),
                caller_key,
                key_file: key_file.into(),
                ..UpstreamSettings::default()
            };
            assert_eq!(upstream.credential(), expect, "{models:?} {caller_key:?} {key_file:?}");
            assert!(!upstream.credential_in_words().is_empty());
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
    fn a_key_that_crosses_the_network_in_the_clear_is_noticed() {
        let check = |url: &str, expect: bool| {
            let mut upstream = UpstreamSettings { url: url.to_owned(), ..UpstreamSettings::default() };
            assert_eq!(upstream.exposure(), None, "{url}: no key");
            upstream.caller_key = Some(true);
            assert_eq!(upstream.exposure().is_some(), expect, "{url}");
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
    fn settings_that_cannot_be_are_named() {
        let check = |name: &str, change: fn(&mut MiddlewareSettings), expect: &[&str]| {
            let upstream = UpstreamSettings { url: "http://x".to_owned(), ..UpstreamSettings::default() };
            let mut settings =
                MiddlewareSettings { upstreams: vec![upstream], ..MiddlewareSettings::default() };
            assert_eq!(settings.nonsense(), None);
            change(&mut settings);
            let said = settings.nonsense().expect(name);
            expect.iter().for_each(|part| assert!(said.contains(part), "{name}: {said:?} lacks {part:?}"));
        };
        check("turns", |settings| settings.turn_count_max = 0, &["middleware.turn_count_max"]);
        check("pieces", |settings| settings.piece_count_max = 0, &["middleware.piece_count_max"]);
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
        check("no name", response, &["response_headers", "\"a b\"", "no name"]);
    }
}
