//! The outcomes of commands: why one failed, in words that are safe to log, and the metrics that record
//! outcomes. A server's own error message may quote what it was sent, so it is never repeated. Keys and
//! values are never metric labels. Does not know which caller sent a command.

use std::fmt;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use redis::{ErrorKind, RedisError};

/// Why a command has no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// There is no connection. Commands do not wait for one.
    NoConnection,
    /// The connection was lost or could not be made, with the error of the operating system.
    Lost(String),
    Timeout,
    /// The key holds a value of another Redis type.
    WrongType,
    /// The server's memory is full, so it refuses writes.
    Full,
    /// The server is a replica, so it refuses writes.
    ReadOnly,
    /// The server refused for another reason, with its error code, such as `NOPERM` or `LOADING`.
    Refused(String),
    /// The answer has another shape than the command's reply should have.
    UnexpectedReply,
}

/// Marks that may occur anywhere in an error message of the client library, and the words that are logged for
/// them.
const KNOWN: [(&str, &str); 13] = [
    ("WRONGPASS", "WRONGPASS"),
    ("NOAUTH", "NOAUTH"),
    ("NOPERM", "NOPERM"),
    ("LOADING", "LOADING"),
    ("CLUSTERDOWN", "CLUSTERDOWN"),
    ("cluster support disabled", "no cluster"),
    ("DB index is out of range", "no such database"),
    ("refused to switch database", "no such database, or no right to select it"),
    ("without any password configured", "it has no password"),
    ("unknown command", "it does not know a command: it may be too old"),
    ("AuthenticationFailed", "authentication failed"),
    ("invalid peer certificate", "invalid certificate"),
    ("Connection refused", "connection refused"),
];

impl Failure {
    pub fn from_redis(error: &RedisError) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        let inner = error.clone().into_server_errors();
        let code = inner.as_ref().and_then(|all| all.first()).map(|(_, error)| error.code());
        match (code.or(error.code()), error.kind()) {
            (Some("WRONGTYPE"), _) => Self::WrongType,
            (Some("OOM"), _) => Self::Full,
            (Some("READONLY"), _) => Self::ReadOnly,
            (Some(code), _) => {
                Self::Refused(known_words(&error.to_string()).unwrap_or_else(|| safe_code(code)))
            }
            (None, ErrorKind::UnexpectedReturnType) => Self::UnexpectedReply,
            (None, _) => Self::Lost(safe_reason(error)),
        }
    }

    /// The value of the metric label `outcome`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoConnection | Self::Lost(_) => "down",
            Self::Timeout => "timeout",
            Self::WrongType | Self::UnexpectedReply => "damaged",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Refused(_) => "refused",
        }
    }
}

/// Returns `code` if it has the form of a server's error codes. Anything else is not repeated.
fn safe_code(code: &str) -> String {
    let is_code = code.len() <= 24 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    if is_code { code.to_owned() } else { "unknown code".to_owned() }
}

fn known_words(text: &str) -> Option<String> {
    KNOWN.iter().find(|(mark, _)| text.contains(mark)).map(|(_, words)| (*words).to_owned())
}

/// The error of the operating system. The library's message may quote the server's, so only known words are
/// taken from it.
fn safe_reason(error: &RedisError) -> String {
    let system = || std::error::Error::source(error).map(ToString::to_string);
    known_words(&error.to_string()).or_else(system).unwrap_or_else(|| error.category().to_owned())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::NoConnection => f.write_str("no connection"),
            Self::Lost(reason) => write!(f, "connection lost: {reason}"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::WrongType => f.write_str("the key holds another type"),
            Self::Full => f.write_str("the server's memory is full"),
            Self::ReadOnly => f.write_str("the server is a read-only replica"),
            Self::Refused(code) => write!(f, "refused: {code}"),
            Self::UnexpectedReply => f.write_str("an answer of another shape than expected"),
        }
    }
}

/// Counts commands or blocks. `op` is `get`, `put` or `journal`; `outcome` is one of the words that
/// docs/deployment.md lists.
pub fn count(op: &'static str, outcome: &'static str, count: usize) {
    if count > 0 {
        counter!("shared_requests_total", "op" => op, "outcome" => outcome).increment(count as u64);
    }
}

pub fn record_seconds(op: &'static str, elapsed: Duration) {
    histogram!("shared_seconds", "op" => op).record(elapsed);
}

/// Sets the number of bytes of blocks that wait to be written.
pub fn set_queue_bytes(bytes: usize) {
    gauge!("shared_queue_bytes").set(bytes as f64);
}

/// Sets the share of the servers whose circuit breaker is open, 0 to 1.
pub fn set_breaker_open(open_share: f64) {
    gauge!("shared_breaker_open").set(open_share);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_classified_and_never_quoted() {
        let check = |code: &str, detail: &str, expect: Failure| {
            let failure = Failure::from_redis(&redis::make_extension_error(code.into(), Some(detail.into())));
            assert_eq!(failure, expect);
            assert!(!failure.to_string().contains("secret"), "{failure}");
        };
        check("WRONGTYPE", "Operation against a key", Failure::WrongType);
        check("OOM", "command not allowed", Failure::Full);
        check("NOAUTH", "Authentication required, secret", Failure::Refused("NOAUTH".into()));
        check(
            "ERR",
            "unknown command 'AUTH', with args beginning with: 'secret'",
            Failure::Refused("it does not know a command: it may be too old".into()),
        );
        check("secret", "", Failure::Refused("unknown code".into()));
        let io = |kind| Failure::from_redis(&std::io::Error::from(kind).into());
        assert_eq!(io(std::io::ErrorKind::TimedOut), Failure::Timeout);
        assert!(matches!(io(std::io::ErrorKind::ConnectionReset), Failure::Lost(_)));
        let client = (ErrorKind::AuthenticationFailed, "AUTH", "'secret'".to_owned());
        assert_eq!(Failure::from_redis(&client.into()), Failure::Lost("authentication failed".into()));
    }
}
