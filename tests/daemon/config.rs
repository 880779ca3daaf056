//! Settings: the file that the project ships, the environment, and the messages for settings that are
//! refused.

use std::path::{Path, PathBuf};

use thresher::config::Config;
use thresher::middleware::settings::Mode;
use thresher_core::kv::codec::Codec;
use toml::{Table, Value};

/// The path of the settings file that the project ships.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/thresher.toml")
}

fn load(file: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("thresher.toml");
    std::fs::write(&path, file).expect("a file");
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::load(Some(&path), environment).map_err(|e| e.to_string())
}

/// A line of a settings file with which paths do not depend on where the file is.
const ROOT: &str = "root = \"/r\"\n";

/// All settings of a file that has only [`ROOT`].
fn defaults() -> Config {
    load(ROOT, &[]).expect("the defaults")
}

/// `section.name` of every setting.
fn names(table: &Table) -> Vec<String> {
    let of = |(section, settings): (&String, &Value)| match settings.as_table() {
        Some(settings) => settings.keys().map(|name| format!("{section}.{name}")).collect(),
        None => vec![section.clone()],
    };
    table.iter().flat_map(of).collect()
}

#[test]
fn the_shipped_file_has_every_setting_with_its_default() {
    Config::load(Some(&shipped()), std::iter::empty()).expect("the shipped file loads");
    let file: Table = std::fs::read_to_string(shipped()).expect("a file").parse().expect("TOML");
    let mut without_root = file.clone();
    without_root.remove("root");
    assert_eq!(without_root.try_into::<Config>().expect("settings"), Config::default());
    let defaults = Table::try_from(Config::default()).expect("settings are TOML");
    let (mut named, mut all) = (names(&file), names(&defaults));
    named.sort();
    all.sort();
    assert_eq!(named, all, "config/thresher.toml must have every setting once");
}

#[test]
fn relative_paths_are_relative_to_the_root_which_is_relative_to_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let load = |text: &str, environment: &[(&str, &str)]| {
        let path = folder.path().join("thresher.toml");
        std::fs::write(&path, text).expect("a file");
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::load(Some(&path), environment).expect("settings")
    };
    let at = |path: &str| folder.path().join(path);

    let beside = load("[model]\ndir = \"m\"\n[receipts]\nkey_file = \"/k.pem\"\n[blocks]\ndir = \"\"", &[]);
    assert_eq!(beside.model.dir, at("m"), "a path of the file");
    assert_eq!(beside.registry.dir, at("data/registry"), "a default");
    assert_eq!(beside.receipts.key_file, Path::new("/k.pem"), "an absolute path");
    assert_eq!(beside.blocks.dir, Path::new(""), "a part that is switched off");
    assert!(beside.model.runtime_lib.starts_with(at("models/.cache")), "{:?}", beside.model.runtime_lib);

    let rooted = load("root = \"..\"\n[model]\ndir = \"m\"", &[("THRESHER__BLOCKS__DIR", "b")]);
    assert_eq!(rooted.model.dir, at("../m"), "a path below a root");
    assert_eq!(rooted.blocks.dir, Path::new("b"), "a path of a variable");
    let upstream = "[middleware]\nupstreams = [{ url = \"http://127.0.0.1:1\", key_file = \"key\" }]";
    assert_eq!(load(upstream, &[]).middleware.upstreams[0].key_file, at("key"), "a path in a list");

    let without_file = Config::load(None, std::iter::empty()).expect("settings");
    assert_eq!(without_file.model.dir, Path::new("models/minilm-l6"), "no file");
}

#[test]
fn every_path_of_the_settings_is_resolved() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("thresher.toml");
    let mut file: Table = std::fs::read_to_string(shipped()).expect("a file").parse().expect("TOML");
    file.retain(|_, section| section.is_table());
    // Every setting with such a name is a path.
    let is_path =
        |name: &str| name == "dir" || ["_dir", "_file", "_lib"].iter().any(|end| name.ends_with(end));
    for (section, settings) in &mut file {
        for (name, value) in settings.as_table_mut().expect("a section") {
            if is_path(name) {
                *value = Value::String(format!("{section}-{name}"));
            }
        }
    }
    std::fs::write(&path, file.to_string()).expect("a file");
    let config = Config::load(Some(&path), std::iter::empty()).expect("settings");
    let loaded = Table::try_from(&config).expect("TOML");
    for (section, settings) in &file {
        for (name, _) in settings.as_table().expect("a section").iter().filter(|(name, _)| is_path(name)) {
            let expect = folder.path().join(format!("{section}-{name}"));
            assert_eq!(loaded[section][name].as_str(), expect.to_str(), "{section}.{name}");
        }
    }
}

#[track_caller]
fn check_refused(name: &str, file: &str, environment: &[(&str, &str)], expect: &[&str]) {
    let message = load(file, environment).expect_err(name);
    for part in expect {
        assert!(message.contains(part), "{name}: {message:?} lacks {part:?}");
    }
}

#[test]
fn an_unknown_or_invalid_setting_is_refused_by_name() {
    let check = check_refused;
    check("unknown setting", "[http]\nport = 1", &[], &["thresher.toml: http.port", "unknown field"]);
    check("unknown section", "[htttp]\nlisten = 1", &[], &["htttp", "unknown field"]);
    check("a setting outside its section", "listen = \"127.0.0.1:1\"", &[], &["listen", "unknown field"]);
    check(
        "text for a number",
        "[admission]\ndeadline_ms_default = \"many\"",
        &[],
        &["admission.deadline_ms_default", "string \"many\", expected a whole number"],
    );
    check("a negative number", "[registry]\nchunk_count_max = -1", &[], &["registry.chunk_count_max", "-1"]);
    check(
        "an invalid address",
        "[admin]\nlisten = \"localhost\"",
        &[],
        &["admin.listen", "such as 127.0.0.1:8080"],
    );
    check(
        "an unknown choice",
        "[middleware]\nmode = \"all\"",
        &[],
        &["middleware.mode", "`lossless`", "`relevant`"],
    );
    check("a value for a section", "http = 1", &[], &["http", "integer `1`, expected an object or section"]);
    check("not TOML", "[http", &[], &["thresher.toml is not TOML"]);
    check(
        "unknown, by environment",
        "",
        &[("THRESHER__HTTP__PORT", "1")],
        &["variable THRESHER__HTTP__PORT: http.port", "unknown field"],
    );
    check(
        "wrong type, by environment",
        "",
        &[("THRESHER__MIDDLEWARE__DEADLINE_MS", "low")],
        &["middleware.deadline_ms", "string \"low\""],
    );
    check(
        "single underscores",
        "",
        &[("THRESHER_SERVICE_PORT", "1"), ("THRESHER_BLOCKS_CODEC", "f16")],
        &["THRESHER_BLOCKS_CODEC: this is not a setting; did you mean THRESHER__BLOCKS__CODEC?"],
    );
    check(
        "outside a section",
        "",
        &[("THRESHER_MEMORY_BYTES_MAX", "1")],
        &["did you mean THRESHER__MEMORY_BYTES_MAX?"],
    );
    check(
        "one underscore too few",
        "",
        &[("THRESHER_BLOCKS__DIR", "x")],
        &["did you mean THRESHER__BLOCKS__DIR?"],
    );
    let no_section = &["variable THRESHER__NOPE__X: nope", "unknown field"];
    check("an unknown section, by environment", "", &[("THRESHER__NOPE__X", "1")], no_section);
    check(
        "a setting without its section, by environment",
        "",
        &[("THRESHER__PORT", "1")],
        &["port", "unknown field"],
    );
    let setting_as_section = [("THRESHER__HTTP__LISTEN__PORT", "1")];
    let expect = ["THRESHER__HTTP__LISTEN__PORT", "listen is not a section"];
    check("a setting as a section", "[http]\nlisten = \"127.0.0.1:1\"", &setting_as_section, &expect);
}

#[test]
fn a_missing_file_is_named() {
    let error =
        Config::load(Some(Path::new("no/such.toml")), std::iter::empty()).expect_err("a missing file");
    assert!(error.to_string().starts_with("cannot read no/such.toml: "), "{error}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let check = |file: &str, expect: &str| check_refused(file, file, &[], &[expect]);
    check("[http]\nlisten = \"127.0.0.1:8081\"", "http.listen and admin.listen are both 127.0.0.1:8081");
    check(
        "[[middleware.upstreams]]\nurl = \"http://localhost:8080/v1\"",
        "middleware.upstreams: http://localhost:8080/v1 is this daemon (http.listen is 127.0.0.1:8080)",
    );
    check(
        "[http]\ntls_cert_file = \"/c\"",
        "http.tls_cert_file is \"/c\", but http.tls_key_file is empty; set both",
    );
    check("[http]\ntls_key_file = \"/k\"", "http.tls_key_file is \"/k\", but http.tls_cert_file is empty");
    check("memory_bytes_max = 2000", "memory_bytes_max is 2000; set it to at least 134217728 (128 MiB)");
    check("[registry]\nchunk_count_max = 0", "registry.chunk_count_max is 0");
    check(
        "[blocks]\ndisk_bytes_max = 8",
        "blocks.disk_bytes_max is 8; set it to at least 16777216 (16 MiB), or to 0",
    );
    check(
        "[registry]\ndir = \"/d\"\n[originals]\ndir = \"/d\"",
        "registry.dir and originals.dir are both \"/d\"",
    );
    check("[blocks]\ndir = \"/d\"\n[registry]\ndir = \"/d\"", "blocks.dir and registry.dir are both \"/d\"");
    check("[telemetry]\nlog = \"info,inof\"", "telemetry.log contains \"inof\"; write a level");
    assert!(load("[telemetry]\nlog = \"info, thresher=debug\"", &[]).is_ok());
    check("[model]\nworkers = 100000", "model.workers is 100000; the limit is 1024");
    check("[admission]\ndeadline_ms_default = 0", "admission.deadline_ms_default is 0");
    check(
        "[admission]\ndeadline_ms_default = 120001",
        "admission.deadline_ms_default is 120001; the limit is 120000",
    );
    check("[shared]\ntimeout_ms = 0", "shared.timeout_ms is 0");
    check("[receipts]\nkey_file = \"\"", "receipts.key_file is empty");
    check("[shared]\nclient_key_file = \"/k\"", "is set without the other");
    let any_ports = "[http]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"";
    assert!(load(any_ports, &[]).is_ok(), "two ports that the system chooses are different");
}

#[test]
fn without_keys_only_loopback_addresses_are_accepted() {
    let listen = |address: &str| format!("[http]\nlisten = \"{address}\"\n");
    for address in
        ["0.0.0.0:9000", "[::]:9000", "10.0.0.1:9000", "[2001:db8::1]:9000", "[::ffff:10.0.0.1]:9000"]
    {
        let expect = format!("http.listen is {address}, which is not a loopback address");
        check_refused(address, &listen(address), &[], &[&expect, "access.keys_file"]);
        check_refused(address, "", &[("THRESHER__HTTP__LISTEN", address)], &[&expect]);
        let keyed = listen(address) + "[access]\nkeys_file = \"keys.toml\"";
        assert!(load(&keyed, &[]).is_ok(), "{address}");
        assert!(load(&listen(address), &[("THRESHER__ACCESS__KEYS_FILE", "keys.toml")]).is_ok(), "{address}");
    }
    for address in ["127.0.0.1:9000", "127.8.0.1:9000", "[::1]:9000", "[::ffff:127.0.0.1]:9000"] {
        assert!(load(&listen(address), &[]).is_ok(), "{address}");
    }
    assert!(
        load("[admin]\nlisten = \"0.0.0.0:9001\"", &[]).is_ok(),
        "the admin listener has no request texts"
    );
}

#[test]
fn the_environment_overrides_the_file_in_every_section() {
    type Set = fn(&mut Config);
    let table: &[(&str, &str, Set)] = &[
        ("THRESHER__HTTP__LISTEN", "127.0.0.2:9000", |c| c.http.listen = ([127, 0, 0, 2], 9000).into()),
        ("THRESHER__ACCESS__KEYS_FILE", "k.toml", |c| c.access.keys_file = "k.toml".into()),
        ("THRESHER__ADMIN__LISTEN", "[::1]:9001", |c| {
            c.admin.listen = "[::1]:9001".parse().expect("an address")
        }),
        ("THRESHER__MODEL__DIR", "/models/x y", |c| c.model.dir = "/models/x y".into()),
        ("THRESHER__MODEL__RUNTIME_LIB", "/lib/a.so", |c| c.model.runtime_lib = "/lib/a.so".into()),
        ("THRESHER_RUNTIME_LIB", "/lib/b.so", |c| c.model.runtime_lib = "/lib/b.so".into()),
        ("THRESHER__MODEL__WORKERS", "3", |c| c.model.workers = 3),
        ("THRESHER__MEMORY_BYTES_MAX", "1_000_000_000", |c| c.memory_bytes_max = 1_000_000_000),
        ("THRESHER__BLOCKS__DIR", "", |c| c.blocks.dir = "".into()),
        ("THRESHER__REGISTRY__CHUNK_COUNT_MAX", "7", |c| c.registry.chunk_count_max = 7),
        ("THRESHER__REGISTRY__DIR", "", |c| c.registry.dir = "".into()),
        ("THRESHER__ADMISSION__DEADLINE_MS_DEFAULT", "60_000", |c| c.admission.deadline_ms_default = 60_000),
        ("THRESHER__SHARED__URLS", "redis://u:p@a, redis://b", |c| {
            c.shared.urls = ["redis://u:p@a", "redis://b"].into_iter().collect()
        }),
        ("THRESHER__SHARED__CLUSTER", "true", |c| c.shared.cluster = true),
        ("THRESHER__TELEMETRY__LOG", "warn,thresher=debug", |c| {
            c.telemetry.log = "warn,thresher=debug".to_owned()
        }),
        ("THRESHER__MIDDLEWARE__MODE", "lossless", |c| c.middleware.mode = Mode::Lossless),
        ("THRESHERS__HTTP__LISTEN", "not a setting of this program", |_| {}),
        ("THRESHER_SERVICE_HOST", "an orchestrator's", |_| {}),
        ("THRESHER__BLOCKS__CODEC", "f16", |c| c.blocks.codec = Codec::F16),
    ];
    let file = std::fs::read_to_string(shipped()).expect("the shipped file");
    let of_repository = file.lines().find(|line| line.starts_with("root = ")).expect("a root");
    let file = file.replace(of_repository, ROOT);
    for (name, value, set) in table {
        let mut expect = defaults();
        set(&mut expect);
        assert_eq!(load(&file, &[(name, value)]), Ok(expect), "{name}={value}");
    }
}

#[test]
fn the_long_variable_of_the_runtime_has_precedence_over_the_short_one() {
    let (short, long) = (("THRESHER_RUNTIME_LIB", "short.so"), ("THRESHER__MODEL__RUNTIME_LIB", "long.so"));
    for environment in [[short, long], [long, short]] {
        let config = load("[model]\nruntime_lib = \"file.so\"", &environment).expect("it loads");
        assert_eq!(config.model.runtime_lib(), Path::new("long.so"));
    }
}
