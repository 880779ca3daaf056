//! What can go wrong with one command, in words that are safe to log: a server's own words may quote what it was sent.
//! Knows nothing of who asked.

use std::fmt;

use redis::{ErrorKind, RedisError};

/// Why a command has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// There is no connection, and nobody waits for one.
    NoConnection,
    /// The connection broke or could not be made; what the system said.
    Lost(String),
    /// No answer in time.
    Timeout,
    /// The key holds something of another type.
    WrongType,
    /// The server's memory is full: it refuses to write.
    Full,
    /// The server is a replica: it refuses to write.
    ReadOnly,
    /// Any other refusal; its code, such as `NOPERM`, `LOADING`.
    Refused(String),
    /// An answer of another shape than was asked for.
    Strange,
}

/// Codes that a client's message may hold in its middle, and what stands for them.
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
    /// What the library's error means here.
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
            (Some(code), _) => Self::Refused(known(&error.to_string()).unwrap_or_else(|| plain(code))),
            (None, ErrorKind::UnexpectedReturnType) => Self::Strange,
            (None, _) => Self::Lost(reason(error)),
        }
    }

    /// For metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoConnection | Self::Lost(_) => "down",
            Self::Timeout => "timeout",
            Self::WrongType | Self::Strange => "damaged",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Refused(_) => "refused",
        }
    }
}

/// A code as servers write them; anything longer or stranger is not repeated.
fn plain(code: &str) -> String {
    let plain = code.len() <= 24 && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    if plain { code.to_owned() } else { "unknown code".to_owned() }
}

fn known(text: &str) -> Option<String> {
    KNOWN.iter().find(|(mark, _)| text.contains(mark)).map(|(_, name)| (*name).to_owned())
}

/// The system's words; of the library's, which may hold the server's, only what is known to be harmless.
fn reason(error: &RedisError) -> String {
    let system = || std::error::Error::source(error).map(ToString::to_string);
    known(&error.to_string()).or_else(system).unwrap_or_else(|| error.category().to_owned())
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
            Self::Strange => f.write_str("an answer of another shape"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_and_quote_nothing() {
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
