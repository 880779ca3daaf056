//! The format of key files: parsing, and errors that name the entry and the field. The module knows nothing of rate limits in use.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::Tenant;
use thresher_core::plain;

/// The most bytes of a key's name, which appears in log lines and as a label of metrics.
const NAME_BYTES_MAX: usize = 64;

#[derive(Debug, Error)]
pub enum KeysError {
    #[error("cannot read {} (access.keys_file): {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("{}: {problem}", path.display())]
    Content { path: PathBuf, problem: KeyFileProblem },
}

impl KeysError {
    pub(super) fn read(path: &Path, cause: io::Error) -> Self {
        Self::Read { path: path.to_owned(), cause }
    }
}

/// What is wrong with the content of a key file, and where. The message never quotes a key, which somebody may have written in place of its hash.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct KeyFileProblem {
    /// The line, or the field, such as `key[0].sha256`; empty: the whole file.
    location: String,
    reason: String,
}

impl fmt::Display for KeyFileProblem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &*self.location {
            "" | "." => write!(f, "{}", self.reason),
            location => write!(f, "{location}: {}", self.reason),
        }
    }
}

impl KeyFileProblem {
    pub(super) fn in_file(self, path: &Path) -> KeysError {
        KeysError::Content { path: path.to_owned(), problem: self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The name of the key in logs and metrics: 1 to 64 letters, digits and `-_.@/`.
    pub name: String,
    /// The tenant whose data the key gives access to; empty: the default tenant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The SHA-256 of the key, 64 hexadecimal digits.
    pub sha256: String,
    /// Requests that the key may send in a minute, or in one burst. `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Tokens that the model may read for the key in a minute, or in one burst. `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Whether the middleware compresses requests with this key by default.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub middleware: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The entries (`[[key]]`) in the order of the file.
    #[serde(default)]
    pub key: Vec<KeyEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedKey {
    pub entry: KeyEntry,
    /// The SHA-256 of the key, decoded.
    pub sha256: [u8; 32],
    pub tenant: Tenant,
}

/// Parses the content of a key file.
///
/// # Errors
/// Fails if the content is not TOML, if an entry is invalid or has the name or hash of an earlier one, or if the entries name more than
/// `tenant_count_max` tenants.
pub fn parse(bytes: &[u8], tenant_count_max: usize) -> Result<Vec<ParsedKey>, KeyFileProblem> {
    let at = |location: String, reason: String| KeyFileProblem { location, reason };
    let text = std::str::from_utf8(bytes).map_err(|e| at(String::new(), format!("not UTF-8: {e}")))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        // The number of the line only: the error's own text quotes the line, which may contain a key.
        let line = e.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
        at(format!("line {line}"), format!("not TOML: {}", e.message()))
    })?;
    let file: KeyFile = serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
        let location = error.path().to_string();
        let error = error.into_inner();
        // An error about a wrong type quotes the value, which may be a key where a hash belongs.
        let reason = if location.ends_with(".sha256") {
            "not a string".to_owned()
        } else {
            plain::message(error.message())
        };
        at(location, reason)
    })?;
    let (mut names, mut hashes) = (HashMap::new(), HashMap::new());
    let mut tenants = BTreeSet::new();
    let mut parsed = Vec::with_capacity(file.key.len());
    for (n, entry) in file.key.into_iter().enumerate() {
        let at = |field: &str, reason: String| at(format!("key[{n}].{field}"), reason);
        let key = check(entry).map_err(|(field, reason)| at(field, reason))?;
        if let Some(first) = names.insert(key.entry.name.clone(), n) {
            return Err(at("name", format!("{:?} is already the name of key[{first}]", key.entry.name)));
        }
        if let Some(first) = hashes.insert(key.sha256, n) {
            return Err(at("sha256", format!("this is already the hash of key[{first}]")));
        }
        tenants.insert(key.tenant.clone());
        if tenants.len() > tenant_count_max {
            let reason = format!("the file names more than {tenant_count_max} tenants");
            return Err(at("tenant", reason));
        }
        parsed.push(key);
    }
    Ok(parsed)
}

/// Returns whether a key may have this name: see [`NAME_RULE`].
pub fn is_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@' | b'/');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The rule for names of keys, for error messages.
pub const NAME_RULE: &str = "it must be 1 to 64 letters, digits and -_.@/";

/// The rule for names of tenants, for error messages.
pub const TENANT_RULE: &str =
    "it must be at most 64 lower-case letters, digits and -_., and must not begin with a .";

fn check(entry: KeyEntry) -> Result<ParsedKey, (&'static str, String)> {
    if !is_name(&entry.name) {
        return Err(("name", format!("{:?} is not a valid name; {NAME_RULE}", entry.name)));
    }
    let Some(tenant) = Tenant::new(&entry.tenant) else {
        return Err(("tenant", format!("{:?} is not a valid tenant; {TENANT_RULE}", entry.tenant)));
    };
    let mut sha256 = [0; 32];
    if hex::decode_to_slice(&entry.sha256, &mut sha256).is_err() {
        let reason = "not 64 hexadecimal digits; write the SHA-256 of the key, not the key itself";
        return Err(("sha256", reason.to_owned()));
    }
    for (field, rate) in
        [("requests_per_minute", entry.requests_per_minute), ("tokens_per_minute", entry.tokens_per_minute)]
    {
        if rate == Some(0) {
            return Err((
                field,
                "0 would refuse every request; to revoke the key, set revoked = true".to_owned(),
            ));
        }
    }
    Ok(ParsedKey { entry, sha256, tenant })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn refused(text: &str) -> String {
        parse(text.as_bytes(), 2).expect_err(text).to_string()
    }

    #[test]
    fn a_valid_file_is_parsed() {
        let text = format!(
            "[[key]]\nname = \"a\"\nsha256 = \"{HASH}\"\n\
             [[key]]\nname = \"B/b@c\"\ntenant = \"acme-1\"\nsha256 = \"{}\"\nrequests_per_minute = 5\ntokens_per_minute = 7\n\
             middleware = true\nrevoked = true\n",
            HASH.replace('9', "A")
        );
        let read = parse(text.as_bytes(), 2).expect("valid");
        assert_eq!(read[0].sha256[..2], [0x9f, 0x86]);
        assert!(read[0].tenant.is_default() && !read[0].entry.revoked && !read[0].entry.middleware);
        let ParsedKey { entry, tenant, .. } = &read[1];
        assert_eq!(
            (tenant.name(), entry.requests_per_minute, entry.tokens_per_minute),
            ("acme-1", Some(5), Some(7))
        );
        assert!(entry.revoked && entry.middleware);
        assert_eq!(parse(b"", 2), Ok(Vec::new()));
    }

    #[test]
    fn an_error_names_the_field_and_quotes_no_key() {
        let entry =
            |name: &str, more: &str| format!("[[key]]\nname = \"{name}\"\nsha256 = \"{HASH}\"\n{more}\n");
        let check = |text: &str, expect: &str| {
            let message = refused(text);
            assert!(message.contains(expect), "{text}: {message:?} lacks {expect:?}");
            assert!(!message.contains("thr_"), "{message}");
        };
        check(&entry("a", "tenent = \"x\""), "key[0].tenent: unknown field `tenent`");
        check("keys = 1", "keys: unknown field");
        check("[[key]]\nname = \"a\"", "key[0]: missing field `sha256`");
        check("[[key]]\nname = \"a\"\nsha256 = \"thr_abc\"", "key[0].sha256: not 64 hexadecimal digits");
        check("[[key]]\nname = \"a\"\nsha256 = [\"thr_abc\"]", "key[0].sha256: not a string");
        check("[[key]]\nname = \"a\"\nsha256 = thr_abc", "line 3: not TOML");
        check(&entry("", ""), "key[0].name: \"\" is not a valid name");
        check(&entry("a b", ""), "1 to 64 letters");
        check(&entry("a", "tenant = \"Acme\""), "key[0].tenant: \"Acme\" is not a valid tenant");
        check(&entry("a", "tenant = \"../x\""), "is not a valid tenant");
        check(
            &entry("a", "requests_per_minute = 0"),
            "key[0].requests_per_minute: 0 would refuse every request",
        );
        check(&entry("a", "tokens_per_minute = -1"), "key[0].tokens_per_minute");
        check(&entry("a", "revoked = \"yes\""), "key[0].revoked");
        check(&(entry("a", "") + &entry("a", "")), "key[1].name: \"a\" is already the name of key[0]");
        check(&(entry("a", "") + &entry("b", "")), "key[1].sha256: this is already the hash of key[0]");
        let tenants = ["x", "y", "z"].iter().enumerate().map(|(n, tenant)| {
            let hash = HASH.replacen('9', &n.to_string(), 1);
            format!("[[key]]\nname = \"{n}\"\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\n")
        });
        check(&tenants.collect::<String>(), "key[2].tenant: the file names more than 2 tenants");
        assert!(parse(b"\xff", 2).expect_err("not UTF-8").to_string().starts_with("not UTF-8"));
    }
}
