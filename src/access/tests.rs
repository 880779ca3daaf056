use std::path::Path;

use super::*;

/// What a key file of the tests holds; the key of `name` is `thr_name`.
fn entry(name: &str, more: &str) -> String {
    let sha256: String =
        keys::sha256(&format!("thr_{name}")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n{more}\n")
}

fn open(path: &Path, text: &str) -> (Access, Watched) {
    std::fs::write(path, text).expect("written");
    let settings = AccessSettings { keys_file: path.to_owned(), tenant_count_max: 2 };
    let (access, watched) = Access::open(&settings).expect("right");
    (access, watched.expect("a file to watch"))
}

fn codes(access: &Access, keys: &[&str], now: Instant) -> Vec<&'static str> {
    let code = |key: &&str| match access.admit(Some(key), now) {
        Ok(_) => "ok",
        Err(Denied::Missing) => "key_missing",
        Err(Denied::Unknown) => "key_unknown",
        Err(Denied::Revoked { .. }) => "key_revoked",
        Err(Denied::RateLimited { .. }) => "rate_limited",
    };
    keys.iter().map(code).collect()
}

#[test]
fn without_a_file_all_come_in_as_one() {
    let (access, watched) = Access::open(&AccessSettings::default()).expect("nothing to read");
    assert!(watched.is_none() && !access.is_keyed());
    let caller = access.admit(None, Instant::now()).expect("let in");
    assert!(caller.tenant().is_default() && caller.key_name().is_none() && !caller.is_compressed_unasked());
}

#[test]
fn who_has_a_key_is_known_and_who_has_none_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = entry("a", "tenant = \"acme\"\nmiddleware = true") + &entry("b", "revoked = true");
    let (access, _) = open(&dir.path().join("keys.toml"), &text);
    let now = Instant::now();
    assert_eq!(access.admit(None, now).err(), Some(Denied::Missing));
    let caller = access.admit(Some("thr_a"), now).expect("known");
    assert_eq!((caller.tenant().name(), caller.key_name().map(|name| &**name)), ("acme", Some("a")));
    assert!(caller.is_compressed_unasked());
    let expect = ["key_revoked", "key_unknown", "key_unknown", "key_unknown"];
    assert_eq!(codes(&access, &["thr_b", "thr_c", "", "thr_a "], now), expect);
}

#[test]
fn a_file_is_taken_in_when_it_changes_and_not_when_it_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("keys.toml");
    let (access, mut watched) = open(&path, &entry("a", "requests_per_minute = 2"));
    let now = Instant::now();
    let look = |watched: &mut Watched, text: &str| {
        std::fs::write(&path, text).expect("written");
        let mut prepared = None;
        access.refresh(watched, |tenants| prepared = Some(tenants.len()));
        prepared
    };
    assert_eq!(codes(&access, &["thr_a", "thr_b"], now), ["ok", "key_unknown"]);
    let two = entry("a", "requests_per_minute = 2") + &entry("b", "tenant = \"x\"");
    assert_eq!(look(&mut watched, &two), Some(2));
    assert_eq!(look(&mut watched, &two), None, "nothing new");
    let left = codes(&access, &["thr_a", "thr_a", "thr_b"], now);
    assert_eq!(left, ["ok", "rate_limited", "ok"], "what was used before counts");
    assert_eq!(look(&mut watched, "[[key]]\nname = 1"), None, "a wrong one");
    assert_eq!(codes(&access, &["thr_b"], now), ["ok"]);
    let gone = std::fs::remove_file(&path);
    access.refresh(&mut watched, |_| panic!("there is nothing to prepare"));
    assert!(gone.is_ok() && codes(&access, &["thr_b"], now) == ["ok"]);
    look(&mut watched, &entry("a", "revoked = true"));
    assert_eq!(codes(&access, &["thr_a", "thr_b"], now), ["key_revoked", "key_unknown"]);
    look(&mut watched, "");
    assert_eq!(codes(&access, &["thr_a"], now), ["key_unknown"], "an empty file lets nobody in");
}

#[test]
fn rates_say_when_to_come_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = entry("a", "requests_per_minute = 2\ntokens_per_minute = 60");
    let (access, _) = open(&dir.path().join("keys.toml"), &text);
    let start = Instant::now();
    let retry = |after_ms: u64| {
        let denied = access.admit(Some("thr_a"), start + Duration::from_millis(after_ms)).err();
        denied.map(|denied| (denied.retry_after_s(), denied.to_string()))
    };
    let caller = access.admit(Some("thr_a"), start).expect("the first");
    caller.charge(60, start);
    assert_eq!(retry(0), None, "nothing left is not less than nothing");
    let (after, said) = retry(100).expect("two a minute");
    assert!(after == Some(30) && said.contains("requests_per_minute; it may ask again in 30 s"), "{said}");
    caller.charge(40, start);
    let (after, said) = retry(0).expect("in debt, and two a minute");
    assert!(after == Some(40) && said.contains("tokens_per_minute"), "{said}");
    assert_eq!(retry(39_001).expect("still in debt").0, Some(1));
    assert_eq!(retry(40_000), None);
}

#[test]
fn nothing_that_is_said_or_shown_holds_a_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("keys.toml");
    std::fs::write(&path, "[[key]]\nname = \"a\"\nsha256 = \"thr_secret\"").expect("written");
    let settings = AccessSettings { keys_file: path.clone(), tenant_count_max: 2 };
    let said = Access::open(&settings).err().expect("no hash").to_string();
    assert!(said.starts_with(&format!("{}: key[0].sha256: ", path.display())), "{said}");
    assert!(!said.contains("thr_"), "{said}");
    let missing = AccessSettings { keys_file: dir.path().join("none.toml"), ..settings };
    let said = Access::open(&missing).err().expect("no file").to_string();
    assert!(said.contains("none.toml (access.keys_file)"), "{said}");
}
