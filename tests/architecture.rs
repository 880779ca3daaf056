//! The dependencies between modules of one crate, which the compiler does not restrict. These tests read
//! every file of the daemon and of `thresher-core` and compare the modules that it names with a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each module of the daemon, in the order of the code map, and the modules that it may name. `a::b` allows
/// only `b` of `a`.
const DAEMON: Table = &[
    ("kv_export", &[]),
    ("process", &[]),
    ("receipt", &[]),
    ("admission", &[]),
    ("access", &[]),
    ("error", &["admission", "access"]),
    ("api", &["error", "receipt", "kv_export::KvDtype"]),
    ("originals", &[]),
    ("middleware", &["error", "api"]),
    ("savings", &["middleware"]),
    ("shared_tier", &[]),
    ("executor", &["error", "admission", "access"]),
    ("tenants", &["error", "kv_export", "admission", "middleware", "savings", "executor"]),
    ("local", &["error", "receipt", "api", "admission", "access", "executor"]),
    ("mcp", &["error", "api"]),
    (
        "config",
        &[
            "access::AccessSettings",
            "middleware::settings",
            "originals::OriginalSettings",
            "savings::settings",
        ],
    ),
    (
        "http",
        &[
            "error",
            "api",
            "kv_export",
            "originals",
            "middleware",
            "savings",
            "receipt",
            "admission",
            "access",
            "executor",
            "tenants",
            "mcp",
        ],
    ),
    ("telemetry", &["config"]),
    (
        "app",
        &[
            "api::BodyLimits",
            "middleware::settings::MiddlewareLimits",
            "originals",
            "access",
            "tenants",
            "admission",
            "executor",
            "local",
            "config",
            "http",
            "process",
            "shared_tier",
            "telemetry",
        ],
    ),
    (
        "cli",
        &[
            "access",
            "originals",
            "http",
            "receipt",
            "error",
            "api",
            "savings",
            "config",
            "telemetry",
            "local",
            "mcp",
            "process",
            "app",
        ],
    ),
    ("allocator", &[]),
    ("main", &["cli"]),
];

/// The same for `thresher-core`.
const CORE: Table = &[
    ("domain", &[]),
    ("memory", &["domain"]),
    ("plain", &[]),
    ("regular_files", &[]),
    ("shape", &[]),
    ("text", &["domain"]),
    ("text_cache", &[]),
    ("rc", &["domain"]),
    ("model", &["domain", "regular_files", "text::script_of", "rc::OverQuestion", "rc::Reference"]),
    ("private_files", &[]),
    ("kv", &["domain", "private_files"]),
    ("pipeline", &["domain", "memory", "text", "text_cache", "rc", "model", "kv", "plain", "regular_files"]),
    ("engine", &["domain", "model", "kv", "pipeline"]),
];

/// The same for `thresher-text`.
const TEXT: Table = &[
    ("kind", &[]),
    ("range", &[]),
    ("lexicon", &[]),
    ("abbreviations", &["lexicon"]),
    ("bound", &["range"]),
    ("line", &["range"]),
    ("lines", &["range", "lexicon", "line"]),
    ("stop_context", &["abbreviations"]),
    ("stops", &["lexicon", "abbreviations", "lines", "stop_context"]),
    ("sentences", &["range", "bound", "lines", "stops"]),
    ("intent", &["lexicon", "sentences"]),
    ("questions", &["range", "intent", "lexicon", "sentences"]),
    ("grams", &["range"]),
    ("definitions", &["grams"]),
    ("mentions", &["range", "grams"]),
    ("outline", &["range", "kind", "lexicon", "line", "sentences"]),
    ("tests", &["sentences"]),
];

/// A module, and the modules of its crate that it may name.
type Table = &'static [(&'static str, &'static [&'static str])];

/// Directories of sources and their tables. Dependencies between crates are in the manifests.
const CRATES: [(&str, Table); 3] = [("src/", DAEMON), ("crates/text/src/", TEXT), ("crates/core/src/", CORE)];

/// Each stage of the pipeline, and the stages whose types it may name. `pipeline.rs` calls the stages. `decide`
/// chooses the kept text and writes the context; it calls `assemble`.
const STAGE_MAY_NAME: &[(&str, &[&str])] = &[
    ("answerable", &["calibration", "cancel", "scan", "score"]),
    ("assemble", &[]),
    (
        "attribute",
        &[
            "blocks",
            "calibration",
            "cancel",
            "clock",
            "question",
            "repeats",
            "scan",
            "score",
            "source_conflicts",
            "tokenize",
            "units",
            "validate",
        ],
    ),
    ("blocks", &["cancel", "load", "tokenize", "validate"]),
    ("calibration", &["decide"]),
    ("cancel", &[]),
    ("clock", &[]),
    ("count", &["cancel"]),
    ("explain", &["cancel", "score"]),
    (
        "decide",
        &[
            "assemble",
            "cancel",
            "count",
            "notable",
            "repeats",
            "scan",
            "score",
            "source_conflicts",
            "units",
            "validate",
        ],
    ),
    ("evict", &["cancel", "kv_export", "question", "validate"]),
    ("in_time", &["blocks", "cancel", "outcome", "validate"]),
    ("kv_export", &["blocks", "cancel", "question", "tokenize", "validate"]),
    ("lexical", &["cancel", "units", "validate"]),
    ("load", &[]),
    ("neighbours", &[]),
    ("outcome", &["answerable", "assemble", "clock", "decide", "explain", "source_conflicts"]),
    ("place", &[]),
    ("question", &["blocks", "cancel", "validate"]),
    ("recompute", &["cancel", "kv_export", "validate"]),
    ("reading", &["blocks", "lexical", "neighbours", "question", "repeats", "units"]),
    ("related", &["answerable", "calibration", "outcome", "score"]),
    ("scan", &["blocks", "cancel", "question", "units"]),
    ("score", &["cancel", "clock", "neighbours", "question", "scan", "units"]),
    ("notable", &[]),
    ("repeats", &["seams", "units"]),
    ("seams", &["neighbours", "units"]),
    ("source_conflicts", &["cancel", "units"]),
    ("tokenize", &["cancel", "validate"]),
    ("units", &["blocks", "tokenize"]),
    ("validate", &[]),
];

/// Libraries, and the only files or directories that may use them.
const OWNED: &[(&str, &[&str])] = &[
    ("ort", &["crates/core/src/model/ort.rs", "crates/core/src/model/ort/", "crates/lab/src/model_graph.rs"]),
    ("libloading", &["crates/core/src/model/ort/version.rs"]),
    ("memmap2", &["crates/core/src/model/ort/weights.rs"]),
    ("tikv_jemallocator", &["src/allocator.rs"]),
    ("prost", &["crates/core/src/model/onnx.rs", "crates/core/src/model/onnx/"]),
    ("icu_segmenter", &["crates/text/src/sentences.rs", "crates/text/src/stops.rs"]),
    (
        "aho_corasick",
        &["crates/text/src/definitions.rs", "crates/text/src/mentions.rs", "src/middleware/copied.rs"],
    ),
    ("tiktoken_rs", &["crates/core/src/pipeline/count.rs", "crates/core/src/pipeline/units.rs"]),
    ("quick_cache", &["crates/core/src/kv/local/bounded.rs", "crates/core/src/text_cache.rs"]),
    ("axum", &["src/http.rs", "src/http/", "src/app.rs", "src/config/relations.rs"]),
    ("clap", &["src/cli.rs", "src/cli/"]),
    ("anyhow", &["src/app.rs", "src/cli.rs", "src/cli/"]),
    (
        "metrics",
        &[
            "src/telemetry/",
            "src/http/",
            "src/originals.rs",
            "src/access.rs",
            "src/access/keys.rs",
            "crates/core/src/kv/",
        ],
    ),
    ("opentelemetry", &["src/telemetry.rs", "src/http/traces.rs", "src/http/traces/", "src/executor.rs"]),
    ("opentelemetry_sdk", &["src/telemetry.rs", "src/http/traces/context.rs"]),
    ("uuid", &["src/tenants/ttl_store.rs"]),
    ("ring", &["src/receipt/key.rs", "src/access/issue.rs"]),
    ("redb", &["src/originals.rs"]),
    ("rustls", &["src/http/middleware/upstream.rs"]),
    ("rmcp", &["src/mcp.rs"]),
    ("hyper_rustls", &["src/http/middleware/upstream.rs"]),
    ("tokio_rustls", &["src/http/tls.rs"]),
    ("ureq", &["src/cli/health.rs"]),
    ("etcetera", &["src/config/places.rs"]),
    ("sd_notify", &["src/process.rs"]),
];

/// A source file: its path in the checkout, its path in its crate's source directory, and its code without
/// comments and string literals.
struct File {
    path: String,
    inside: String,
    code: String,
}

impl File {
    /// `domain` for `src/domain.rs`, `http` for `src/http/error.rs`.
    fn module(&self) -> &str {
        self.inside.split('/').next().and_then(|first| first.split('.').next()).expect("a name")
    }

    /// The paths of its own crate that the code names, without `crate::`. A list in braces gives one path for
    /// each item.
    fn names(&self) -> BTreeSet<String> {
        let prefix = if self.module() == "main" { "thresher::" } else { "crate::" };
        let mut found = BTreeSet::new();
        for (at, _) in self.code.match_indices(prefix) {
            let free = !self.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if free {
                expand("", &self.code[at + prefix.len()..], &mut found);
            }
        }
        found
    }
}

/// Reads a path, or a list of paths in braces, from the start of `code`. Returns the number of bytes that it
/// has read.
fn expand(before: &str, code: &str, found: &mut BTreeSet<String>) -> usize {
    let word = code.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(code.len());
    let path = format!("{before}{}", &code[..word]);
    if !code[word..].starts_with('{') || !(path.is_empty() || path.ends_with("::")) {
        found.insert(path.trim_end_matches("::").to_owned());
        return word;
    }
    let mut at = word + 1;
    while at < code.len() && !code[at..].starts_with('}') {
        let skip = code[at..].find(|c: char| c == '}' || c == '{' || c == '_' || c.is_alphanumeric());
        at += skip.expect("a list ends");
        if !code[at..].starts_with('}') {
            at += expand(&path, &code[at..], found);
            // In `x as y`, only `x` is a path.
            at += code[at..].find([',', '}']).expect("a list ends");
        }
    }
    at + 1
}

/// All source files in a directory and its subdirectories.
fn files(sources: &str) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut open, mut paths) = (vec![root.join(sources)], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { open.push(path) } else { paths.push(path) }
        }
    }
    paths.sort();
    let read = |path: &PathBuf| {
        let code = stripped(&std::fs::read_to_string(path).expect("a source file"));
        let path = path.strip_prefix(root).expect("inside").display().to_string();
        let inside = path.strip_prefix(sources).expect("inside").to_owned();
        File { path, inside, code }
    };
    paths.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).map(read).collect()
}

fn all_files() -> impl Iterator<Item = File> {
    CRATES.iter().flat_map(|(sources, _)| files(sources))
}

/// The code without comments, doc comments and the content of plain string literals.
fn stripped(source: &str) -> String {
    let (mut code, mut quoted) = (String::with_capacity(source.len()), false);
    for line in source.lines() {
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' if quoted => drop(chars.next()),
                '"' if !code.ends_with('\'') => quoted = !quoted,
                '/' if !quoted && chars.peek() == Some(&'/') => break,
                _ if quoted => {}
                _ => code.push(c),
            }
        }
        code.push('\n');
    }
    code
}

fn allowed(name: &str, rules: &[&str]) -> bool {
    rules
        .iter()
        .any(|rule| name == *rule || name.strip_prefix(rule).is_some_and(|rest| rest.starts_with("::")))
}

#[test]
fn modules_name_only_modules_that_the_table_allows() {
    let mut broken = Vec::new();
    for (sources, table) in CRATES {
        for file in files(sources).iter().filter(|file| file.inside != "lib.rs") {
            let module = file.module();
            let Some((_, rules)) = table.iter().find(|(name, _)| *name == module) else {
                panic!(
                    "{} belongs to no module of the table: add a row for `{module}` to tests/architecture.rs with the \
                     modules that it may name, and a line to the code map of {sources}lib.rs",
                    file.path
                );
            };
            let foreign =
                file.names().into_iter().filter(|name| !allowed(name, &[module]) && !allowed(name, rules));
            broken.extend(
                foreign.map(|name| format!("{} names crate::{name}; {module} may name {rules:?}", file.path)),
            );
        }
    }
    assert!(
        broken.is_empty(),
        "\n{}\nmove the code, or change the table and say why in the commit",
        broken.join("\n")
    );
}

#[test]
fn the_tables_have_no_cycles_and_no_unused_rows() {
    for (sources, table) in CRATES {
        let files = files(sources);
        let mut below: Vec<&str> = Vec::new();
        for (module, rules) in table {
            assert!(
                files.iter().any(|file| file.module() == *module),
                "{module} does not exist: remove its row"
            );
            for rule in *rules {
                let above = !below.contains(&rule.split("::").next().expect("a name"));
                assert!(
                    !above,
                    "{module} may name {rule}, whose row is not above its own: this allows a cycle"
                );
            }
            below.push(module);
        }
    }
}

/// A module and those inside it may name each other: `http.rs` and the files in `http/` are parts of one. Any other two files do not, neither
/// directly nor by way of others.
#[test]
fn files_name_each_other_in_no_circle() {
    let crates = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).expect("a folder");
    let crates =
        crates.map(|entry| format!("crates/{}/src/", entry.expect("an entry").file_name().display()));
    for sources in crates.chain(["src/".to_owned(), "fuzz/src/".to_owned()]) {
        let mut files = files(&sources);
        files.retain(|file| file.inside != "main.rs" && !format!("/{}", file.inside).contains("/tests"));
        let modules: Modules = files.iter().map(|file| (file.path_of_module(), file)).collect();
        let mut edges: BTreeSet<(String, String)> = BTreeSet::new();
        for (module, file) in &modules {
            let named =
                file.names_from(module).into_iter().map(|(from, path)| resolve(&modules, from, &path));
            edges.extend(named.map(|named| (module.clone(), named)));
        }
        edges.retain(|(one, other)| !is_inside(one, other) && !is_inside(other, one));
        // A file that names no other, or that no other names, is in no circle.
        loop {
            let (names, named): (BTreeSet<_>, BTreeSet<_>) = edges.iter().cloned().unzip();
            let count = edges.len();
            edges.retain(|(one, other)| named.contains(one) && names.contains(other));
            if edges.len() == count {
                break;
            }
        }
        assert!(edges.is_empty(), "{sources}: these files name each other in a circle: {edges:#?}");
    }
}

/// The files of a crate by the paths of their modules, such as `http::body`; that of `lib.rs` is empty.
type Modules<'a> = BTreeMap<String, &'a File>;

fn is_inside(module: &str, parent: &str) -> bool {
    module == parent || parent.is_empty() || module.starts_with(&format!("{parent}::"))
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(parent, _)| parent)
}

/// Returns the module that `path` means in the module `from`: the last one on it, or the one from which a name is re-exported.
fn resolve(modules: &Modules, from: String, path: &str) -> String {
    let mut at = from;
    for name in path.split("::") {
        let child = if at.is_empty() { name.to_owned() } else { format!("{at}::{name}") };
        match name {
            "self" => {}
            "super" => at = parent(&at).to_owned(),
            _ if modules.contains_key(&child) => at = child,
            _ => {
                while let Some(exported) =
                    modules.get(&at).and_then(|file| file.re_export(&at, name, modules))
                {
                    at = exported;
                }
                return at;
            }
        }
    }
    at
}

impl File {
    fn path_of_module(&self) -> String {
        let path = self.inside.trim_end_matches(".rs").replace('/', "::");
        if path == "lib" { String::new() } else { path }
    }

    fn code_of_product(&self) -> &str {
        self.code.split("mod tests {").next().unwrap_or_default()
    }

    /// The paths that the code of `module` names in its crate, each with the module in which it begins.
    fn names_from(&self, module: &str) -> Vec<(String, String)> {
        let code = self.code_of_product();
        let starts = [("crate::", ""), ("super::", parent(module)), ("self::", module)];
        let mut found = Vec::new();
        for (prefix, start) in starts {
            for (at, _) in code.match_indices(prefix) {
                let is_free = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
                let mut paths = BTreeSet::new();
                if is_free {
                    expand("", &code[at + prefix.len()..], &mut paths);
                }
                found.extend(paths.into_iter().map(|path| (start.to_owned(), path)));
            }
        }
        found
    }

    /// The module below `module` from which this file re-exports `name`, if it does.
    fn re_export(&self, module: &str, name: &str, modules: &Modules) -> Option<String> {
        let code = self.code_of_product();
        let exports = code.match_indices(" use ").filter(|(at, _)| {
            let line = code[..*at].rsplit('\n').next().unwrap_or_default();
            line.trim_start().starts_with("pub")
        });
        let mut paths = BTreeSet::new();
        exports.for_each(|(at, export)| _ = expand("", &code[at + export.len()..], &mut paths));
        let path = paths.iter().find(|path| path.rsplit("::").next() == Some(name))?;
        let path = path.strip_prefix("self::").unwrap_or(path);
        let (mut from, _) = path.rsplit_once("::")?;
        loop {
            let exported = if module.is_empty() { from.to_owned() } else { format!("{module}::{from}") };
            if modules.contains_key(&exported) {
                return Some(exported);
            }
            (from, _) = from.rsplit_once("::")?;
        }
    }
}

#[test]
fn stages_name_only_stages_that_the_table_allows() {
    for file in files("crates/core/src/") {
        let Some(stage) = file.inside.strip_prefix("pipeline/").and_then(|path| path.strip_suffix(".rs"))
        else {
            continue;
        };
        // In the directory of a stage, `super` is the stage itself.
        let (stage, to_stages) = match stage.split_once('/') {
            Some((stage, _)) => (stage, ["super::super::", "crate::pipeline::"]),
            None => (stage, ["super::", "crate::pipeline::"]),
        };
        let Some((_, rules)) = STAGE_MAY_NAME.iter().find(|(name, _)| *name == stage) else {
            panic!(
                "{} belongs to no stage of the table: add a row for `{stage}` to STAGE_MAY_NAME",
                file.path
            );
        };
        let mut named = BTreeSet::new();
        for prefix in to_stages {
            for (at, _) in file.code.match_indices(prefix) {
                // In a test module, `super` is the stage itself.
                if !file.code[..at].contains("mod tests {") {
                    expand("", &file.code[at + prefix.len()..], &mut named);
                }
            }
        }
        for name in named.iter().filter(|name| name.starts_with(char::is_lowercase)) {
            let name = name.split("::").next().expect("a name");
            assert!(rules.contains(&name), "{} names the stage {name}; it may name {rules:?}", file.path);
        }
    }
}

#[test]
fn libraries_are_used_only_by_the_files_that_own_them() {
    for file in all_files() {
        for (library, owners) in OWNED {
            let is_owner = owners
                .iter()
                .any(|owner| file.path == *owner || owner.ends_with('/') && file.path.starts_with(owner));
            let named = file.code.match_indices(&format!("{library}::")).any(|(at, _)| {
                !file.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
            });
            assert!(!named || is_owner, "{} names {library}, which belongs to {owners:?}", file.path);
        }
    }
}

/// The folders whose rules know words, and how many lists of words they have outside `crates/text/lexicon`: weekdays and months, whose places
/// are their numbers, and the codes of languages. The number may only fall.
const RULES: [&str; 4] =
    ["crates/text/src/", "crates/core/src/text/", "crates/core/src/pipeline/", "src/middleware/"];
const WORD_LISTS_MAX: usize = 3;

#[test]
fn words_that_rules_know_are_in_the_lexicon() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lists = Vec::new();
    for file in RULES.iter().flat_map(|folder| files(folder)) {
        let source = std::fs::read_to_string(root.join(&file.path)).expect("a source file");
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let inside = code.split('[').map(|part| part.split(']').next().unwrap_or_default());
        let strings =
            code.split("&str =").skip(1).filter_map(|rest| rest.split(';').next()?.split('"').nth(1));
        let found =
            inside.filter(|part| is_word_list(part)).chain(strings.filter(|text| is_words_in_one(text)));
        lists
            .extend(found.map(|list| format!("{}: {:.60}", file.path, list.trim_start().replace('\n', " "))));
    }
    assert!(lists.len() <= WORD_LISTS_MAX, "{} lists of words:\n{}", lists.len(), lists.join("\n"));
}

/// Returns whether a part of a program between square brackets is a list of at least six words.
fn is_word_list(inside: &str) -> bool {
    let items: Vec<&str> = inside.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    let is_word = |item: &str| {
        let word = item.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
        !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || c == ' ' || c == '\'')
    };
    items.len() >= 6 && items.iter().filter(|item| is_word(item)).count() * 4 >= items.len() * 3
}

/// Returns whether a string is a list of at least six words in lower case.
fn is_words_in_one(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").collect();
    let is_word = |word: &&str| word.chars().all(|c| c.is_lowercase() || c == '-' || c == '_');
    words.len() >= 6 && words.iter().all(is_word)
}

#[test]
fn the_reader_finds_all_paths_in_code_and_none_in_comments_or_strings() {
    let names = |code: &str| {
        let file = File { path: "src/x.rs".to_owned(), inside: "x.rs".to_owned(), code: stripped(code) };
        file.names().into_iter().collect::<Vec<_>>()
    };
    let check = |code: &str, expect: &[&str]| assert_eq!(names(code), expect, "{code}");
    check("use crate::a::B;", &["a::B"]);
    check("use crate::{a, b::{C, d::E}, f::{self, G as H}};", &["a", "b::C", "b::d::E", "f::G", "f::self"]);
    check("use crate::a::{\n    B,\n    C,\n};\nlet x = crate::d::e(1);", &["a::B", "a::C", "d::e"]);
    check("fn f(x: &crate::a::B) -> Vec<crate::c::D> {}", &["a::B", "c::D"]);
    check("pub(crate) fn f() {} // crate::a\n/// crate::b\nlet s = \"crate::c\";", &[]);
    check("let quote = '\"'; crate::a::b(); let s = \"\\\"crate::c\";", &["a::b"]);
}
