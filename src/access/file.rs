//! The file of keys as it is written: what stands in it, and what is wrong with it, where.
//! Knows nothing of what a key has left.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::Tenant;
use thresher_core::plain;

/// The longest name of a key: it stands in every line of the log and in metrics.
const NAME_BYTES_MAX: usize = 64;

/// Why a file of keys cannot be used.
#[derive(Debug, Error)]
pub enum KeysError {
    /// It cannot be read.
    #[error("cannot read {} (access.keys_file): {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Something in it is wrong.
    #[error("{}: {at}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What, and where.
        at: Misplaced,
    },
}

impl KeysError {
    pub(super) fn read(path: &Path, cause: io::Error) -> Self {
        Self::Read { path: path.to_owned(), cause }
    }
}

/// What is wrong with the content of a file, and where. Quotes no key: somebody may have put one where its hash belongs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct Misplaced {
    place: String,
    reason: String,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &*self.place {
            "" | "." => write!(f, "{}", self.reason),
            place => write!(f, "{place}: {}", self.reason),
        }
    }
}

impl Misplaced {
    pub(super) fn of(self, path: &Path) -> KeysError {
        KeysError::Content { path: path.to_owned(), at: self }
    }
}

/// A key as it stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// For logs and metrics.
    pub name: String,
    /// Whose data it works with; empty: the default tenant's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// SHA-256 of the key, in hexadecimal.
    pub sha256: String,
    /// Requests that a minute brings, and that may come at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Tokens of the model, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Whether the middleware compresses its requests without being asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub middleware: bool,
    /// Whether it was taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// All that stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// In the order of the file.
    #[serde(default)]
    pub key: Vec<Entry>,
}

/// A key that was found right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// As it stands in the file.
    pub entry: Entry,
    /// Its hash.
    pub sha256: [u8; 32],
    /// Its tenant.
    pub tenant: Tenant,
}

/// Reads what stands in a file.
///
/// # Errors
/// What is wrong, and where; also more tenants than `tenant_count_max`.
pub fn parse(bytes: &[u8], tenant_count_max: usize) -> Result<Vec<Checked>, Misplaced> {
    let at = |place: String, reason: String| Misplaced { place, reason };
    let text = std::str::from_utf8(bytes).map_err(|e| at(String::new(), format!("not UTF-8: {e}")))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        // Without the line itself, which the error would quote: a key may stand there.
        let line = e.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
        at(format!("line {line}"), format!("not TOML: {}", e.message()))
    })?;
    let file: File = serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
        let place = error.path().to_string();
        let said = error.into_inner();
        // Of a value that has the wrong type, the value is quoted: of a hash it may be a key.
        let reason = match place.ends_with(".sha256") {
            true => "not text".to_owned(),
            false => plain::message(said.message()),
        };
        at(place, reason)
    })?;
    let (mut names, mut hashes) = (HashMap::new(), HashMap::new());
    let mut tenants = BTreeSet::new();
    let mut checked = Vec::with_capacity(file.key.len());
    for (n, entry) in file.key.into_iter().enumerate() {
        let at = |field: &str, reason: String| at(format!("key[{n}].{field}"), reason);
        let one = check(entry).map_err(|(field, reason)| at(field, reason))?;
        if let Some(first) = names.insert(one.entry.name.clone(), n) {
            return Err(at("name", format!("{:?} is the name of key[{first}] already", one.entry.name)));
        }
        if let Some(first) = hashes.insert(one.sha256, n) {
            return Err(at("sha256", format!("this is the hash of key[{first}] already")));
        }
        tenants.insert(one.tenant.clone());
        if tenants.len() > tenant_count_max {
            let reason = format!("more than {tenant_count_max} tenants (access.tenant_count_max)");
            return Err(at("tenant", reason));
        }
        checked.push(one);
    }
    Ok(checked)
}

/// Whether a key may have this name.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@' | b'/');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

/// What a name may be, in words.
pub const NAME_RULE: &str = "1 to 64 letters, digits and -_.@/";

/// What a tenant's may be, in words.
pub const TENANT_RULE: &str = "at most 64 lower-case letters, digits and -_., not with . first";

fn check(entry: Entry) -> Result<Checked, (&'static str, String)> {
    if !is_name(&entry.name) {
        return Err(("name", format!("{:?} is no name: {NAME_RULE}", entry.name)));
    }
    let Some(tenant) = Tenant::new(&entry.tenant) else {
        return Err(("tenant", format!("{:?} is no tenant: {TENANT_RULE}", entry.tenant)));
    };
    let Some(sha256) = from_hex(&entry.sha256) else {
        return Err(("sha256", "not 64 hexadecimal digits: it is the key's SHA-256, not the key".to_owned()));
    };
    for (field, rate) in
        [("requests_per_minute", entry.requests_per_minute), ("tokens_per_minute", entry.tokens_per_minute)]
    {
        if rate == Some(0) {
            return Err((
                field,
                "0 lets nothing through; to take the key back set revoked = true".to_owned(),
            ));
        }
    }
    Ok(Checked { entry, sha256, tenant })
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().expect("32 of them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn refused(text: &str) -> String {
        parse(text.as_bytes(), 2).expect_err(text).to_string()
    }

    #[test]
    fn what_is_right_is_read() {
        let text = format!(
            "[[key]]\nname = \"a\"\nsha256 = \"{HASH}\"\n\
             [[key]]\nname = \"B/b@c\"\ntenant = \"acme-1\"\nsha256 = \"{}\"\nrequests_per_minute = 5\ntokens_per_minute = 7\n\
             middleware = true\nrevoked = true\n",
            HASH.replace('9', "A")
        );
        let read = parse(text.as_bytes(), 2).expect("right");
        assert_eq!(read[0].sha256[..2], [0x9f, 0x86]);
        assert!(read[0].tenant.is_default() && !read[0].entry.revoked && !read[0].entry.middleware);
        let Checked { entry, tenant, .. } = &read[1];
        assert_eq!(
            (tenant.name(), entry.requests_per_minute, entry.tokens_per_minute),
            ("acme-1", Some(5), Some(7))
        );
        assert!(entry.revoked && entry.middleware);
        assert_eq!(parse(b"", 2), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_key_is_quoted() {
        let entry =
            |name: &str, more: &str| format!("[[key]]\nname = \"{name}\"\nsha256 = \"{HASH}\"\n{more}\n");
        let check = |text: &str, expect: &str| {
            let said = refused(text);
            assert!(said.contains(expect), "{text}: {said:?} lacks {expect:?}");
            assert!(!said.contains("thr_"), "{said}");
        };
        check(&entry("a", "tenent = \"x\""), "key[0].tenent: unknown field `tenent`");
        check("keys = 1", "keys: unknown field");
        check("[[key]]\nname = \"a\"", "key[0]: missing field `sha256`");
        check("[[key]]\nname = \"a\"\nsha256 = \"thr_abc\"", "key[0].sha256: not 64 hexadecimal digits");
        check("[[key]]\nname = \"a\"\nsha256 = [\"thr_abc\"]", "key[0].sha256: not text");
        check("[[key]]\nname = \"a\"\nsha256 = thr_abc", "line 3: not TOML");
        check(&entry("", ""), "key[0].name: \"\" is no name");
        check(&entry("a b", ""), "1 to 64 letters");
        check(&entry("a", "tenant = \"Acme\""), "key[0].tenant: \"Acme\" is no tenant");
        check(&entry("a", "tenant = \"../x\""), "is no tenant");
        check(&entry("a", "requests_per_minute = 0"), "key[0].requests_per_minute: 0 lets nothing through");
        check(&entry("a", "tokens_per_minute = -1"), "key[0].tokens_per_minute");
        check(&entry("a", "revoked = \"yes\""), "key[0].revoked");
        check(&(entry("a", "") + &entry("a", "")), "key[1].name: \"a\" is the name of key[0] already");
        check(&(entry("a", "") + &entry("b", "")), "key[1].sha256: this is the hash of key[0] already");
        let tenants = ["x", "y", "z"].iter().enumerate().map(|(n, tenant)| {
            let hash = HASH.replacen('9', &n.to_string(), 1);
            format!("[[key]]\nname = \"{n}\"\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\n")
        });
        check(&tenants.collect::<String>(), "key[2].tenant: more than 2 tenants (access.tenant_count_max)");
        assert!(parse(b"\xff", 2).expect_err("no text").to_string().starts_with("not UTF-8"));
    }
}
