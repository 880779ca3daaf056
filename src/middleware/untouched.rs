//! Results of tools that are never shortened, because a model that edits files or follows paths needs every line: listings of files, matches of
//! searches, diffs, and files that were read. They are known by the name of the tool, or by their text.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thresher_core::domain::Kind;
use thresher_core::text::lexicon::{self, Class};
use thresher_core::text::outline::{Layout, kind_of};
use thresher_core::text_cache::TextCache;

use super::json::Located;

/// The most lines of a text that are looked at.
const LINES_MAX: usize = 200;

/// The least lines of a text that may be a listing, matches, or numbered lines.
const LINES_MIN: usize = 3;

const PATH_BYTES_MAX: usize = 260;

/// Names of tools that no rule knows: those that give originals back, and that of a sub-agent.
const NAMES: [&str; 3] = ["headroom_retrieve", "task", "thresher__retrieve"];

/// Names of tools of retrievers that have a word of a file.
const RETRIEVERS: [&str; 2] = ["file_search", "files_search"];

/// Names of tools with the kind of their results.
pub type ToolKinds = BTreeSet<(String, &'static str)>;

/// A kind of text that is not shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    /// Names of files: the output of `ls -l`, `find` and `tree`.
    Listing,
    /// Matches of a search with file and line, as `grep -n` writes them.
    Matches,
    /// A diff in the unified format.
    Diff,
    /// Lines with their numbers, as editors and `cat -n` show a file.
    Numbered,
    Code,
}

impl TextKind {
    /// The kinds, those first of which a text is sent as it is, even if it is of another, too.
    const ALL: [Self; 5] = [Self::Diff, Self::Numbered, Self::Code, Self::Listing, Self::Matches];

    /// Returns the first of the kinds that a text is of; `None` if it may be shortened.
    fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.is_of(text))
    }

    /// Returns whether a text of this kind is quoted when a model edits it, so that it is sent as it is.
    pub fn is_quoted(self) -> bool {
        matches!(self, Self::Diff | Self::Numbered | Self::Code)
    }

    fn is_of(self, text: &str) -> bool {
        match self {
            Self::Listing => {
                share(text, 0.6, is_listed) || share(text, 0.9, |line| is_path(line) && !line.contains(' '))
            }
            Self::Matches => share(text, 0.6, is_match),
            Self::Diff => is_diff(text),
            Self::Numbered => is_numbered(text),
            Self::Code => kind_of(text) == Kind::Code && Layout::detect(text, Kind::Auto).kind == Kind::Code,
        }
    }
}

/// A cache of the kinds of texts: an agent sends the results of its tools with each request again.
pub struct TextKinds(TextCache<(), Option<TextKind>>);

/// The number of texts whose kinds are remembered.
const TEXTS_MAX: usize = 1 << 12;

impl Default for TextKinds {
    fn default() -> Self {
        Self(TextCache::new(TEXTS_MAX))
    }
}

impl TextKinds {
    /// Returns the first of the kinds that a text is of, from the cache if possible; `None` if it may be shortened.
    pub fn of(&self, text: &str) -> Option<TextKind> {
        self.0.get_or_find((), text, || TextKind::of(text))
    }
}

/// Returns whether the name of a tool says that its result stays whole: that it lists, searches, reads or changes files, asks the
/// user, or brings the report of another agent. Web pages are no files.
pub fn is_untouched(name: &str) -> bool {
    let (server, tool) = parts(name);
    let has = |class| has_word(class, &tool);
    let is_file = has(Class::ToolFile) || server.is_some_and(|server| has_word(Class::ToolFile, &server));
    if RETRIEVERS.contains(&&*tool) {
        return false;
    }
    is_named(name, &NAMES) || has(Class::ToolActs) || is_file || has(Class::ToolReads) && !has(Class::ToolWeb)
}

/// Returns whether the name of a tool says that it lists files or lines that match.
pub fn lists(name: &str) -> bool {
    has_word(Class::ToolLists, &parts(name).1)
}

/// Returns whether a tool runs a command that prints a file that is no log. `arguments` begins with the command.
pub fn prints_file(name: &str, arguments: &str) -> bool {
    let (_, tool) = parts(name);
    let command = arguments.trim();
    // The command may begin with a change of the directory.
    let command = match command.split_once("&&") {
        Some((first, rest)) if first.trim_start().starts_with("cd ") => rest.trim_start(),
        _ => command,
    };
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    has_word(Class::Shell, &tool)
        && lexicon::is(Class::Prints, program)
        && !rest.contains(['|', '>'])
        && !rest.split_whitespace().any(is_log)
}

/// Returns whether a word is the path of a log: `app.log`, `app.log.1` or anything below `log/` or `logs/`.
fn is_log(word: &str) -> bool {
    let path = word.to_lowercase();
    let mut folders: Vec<&str> = path.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    name.ends_with(".log")
        || name.contains(".log.")
        || folders.iter().any(|folder| ["log", "logs"].contains(folder))
}

/// Returns whether a tool of a request gives originals back: one that is named `retrieve` and takes a `hash`. Of a server whose tools the
/// provider lists (`"type": "mcp"` in Responses), its label tells.
pub fn can_retrieve(body: Located) -> bool {
    let tools = body.get("tools").map(Located::items).unwrap_or_default();
    tools.into_iter().any(|tool| {
        let function = tool.get("function").unwrap_or(tool);
        let is_ours = tool.text_of("server_label").is_some_and(|label| plain(&label).contains("thresher"));
        let is_retrieve = function.text_of("name").is_some_and(|name| retrieves(&name));
        is_ours || is_retrieve && function.json().contains("\"hash\"")
    })
}

/// Returns whether a tool fetches the text that a mark names.
pub fn retrieves(name: &str) -> bool {
    parts(name).1.ends_with("retrieve")
}

/// Returns whether the name of a tool, as [`parts`] returns it, has a word of a class.
fn has_word(class: Class, name: &str) -> bool {
    name.split('_').any(|word| lexicon::has(class, word))
}

/// Returns whether the name of a tool is one of `names`. The server before a name, its case and its hyphens do not matter: `mcp__files__ReadFile` is
/// `read_file`. A name with a server, such as `thresher__retrieve`, is a tool of this server only.
pub fn is_named(name: &str, names: &[impl AsRef<str>]) -> bool {
    let (server, tool) = parts(name);
    names.iter().any(|named| {
        let (named_server, named_tool) = parts(named.as_ref());
        named_tool == tool && (named_server.is_none() || named_server == server)
    })
}

/// The server and the name of a tool, in lower case, with underscores between their words.
fn parts(name: &str) -> (Option<String>, String) {
    let mut parts = name.rsplit(['.', '/', ':']).flat_map(|part| part.rsplit("__"));
    let tool = plain(parts.next().unwrap_or(name));
    (parts.find(|part| !part.is_empty()).map(plain), tool)
}

fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len() + 4);
    let mut was_lower = false;
    for letter in name.chars() {
        if letter.is_uppercase() && was_lower {
            plain.push('_');
        }
        was_lower = letter.is_lowercase() || letter.is_numeric();
        plain.extend(if letter == '-' { '_' } else { letter }.to_lowercase());
    }
    plain
}

/// The first lines of a text that are not blank.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).take(LINES_MAX)
}

/// Whether at least this share of the lines is as `is` says, and there are enough lines to tell.
fn share(text: &str, least: f64, is: impl Fn(&str) -> bool) -> bool {
    let (mut all, mut found) = (0, 0);
    for line in lines(text) {
        all += 1;
        found += usize::from(is(line));
    }
    all >= LINES_MIN && found as f64 >= least * all as f64
}

/// A line of `ls -l` or `tree`.
fn is_listed(line: &str) -> bool {
    let mode = line.as_bytes();
    let is_mode = mode.len() > 10
        && b"-dlcbps".contains(&mode[0])
        && mode[1..10].iter().all(|letter| b"rwxsStT-".contains(letter));
    is_mode || line.trim_start_matches(['│', ' ', '\u{a0}', '|']).starts_with(['├', '└'])
}

fn is_path(line: &str) -> bool {
    let name = line.trim_end_matches(['/', '*', '@']);
    let has_extension = name.rsplit_once('.').is_some_and(|(stem, extension)| {
        !stem.is_empty() && extension.len() <= 8 && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    let is_plain =
        line.len() <= PATH_BYTES_MAX && !line.contains("://") && !line.ends_with(['.', ',', ';', ':']);
    is_plain && name.bytes().any(|byte| byte.is_ascii_alphabetic()) && (has_extension || line.contains('/'))
}

/// A line such as `src/main.rs:12: fn main()`, or one of the context of a match, with `-` in place of `:`.
fn is_match(line: &str) -> bool {
    [':', '-'].iter().any(|mark| {
        let mut parts = line.splitn(3, *mark);
        let (Some(path), Some(number), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
            return false;
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number && is_path(path) && !path.contains(' ')
    })
}

fn is_diff(text: &str) -> bool {
    let (mut has_hunk, mut has_files) = (false, false);
    let mut before = "";
    for line in lines(text) {
        has_hunk |= line.starts_with("@@ -");
        has_files |=
            line.starts_with("diff --git ") || before.starts_with("--- ") && line.starts_with("+++ ");
        before = line;
    }
    has_hunk || has_files
}

/// Lines that begin with ascending numbers, followed by a tab, an arrow, a bar or two blanks.
fn is_numbered(text: &str) -> bool {
    let (mut all, mut found, mut last) = (0, 0, None);
    for line in lines(text) {
        all += 1;
        let line = line.trim_start();
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = line.split_at(digits);
        let is_marked = rest.is_empty() || rest.starts_with(['\t', '→', '|', '│']) || rest.starts_with("  ");
        if let Some(number) = number.parse::<u64>().ok().filter(|_| is_marked) {
            found += usize::from(last.is_none_or(|last| number > last));
            last = Some(number);
        }
    }
    all >= LINES_MIN && found as f64 >= 0.8 * all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_files_are_known_by_a_word_of_their_name_in_any_spelling() {
        let check = |names: &str, expect: bool| {
            names.split_whitespace().for_each(|name| assert_eq!(is_untouched(name), expect, "{name}"));
        };
        check(
            "Read read_file ReadFile mcp__fs__read_text_file functions.read-file LS Grep fs_read view_line_range",
            true,
        );
        check(
            "builtin_read_file developer__text_editor filesystem-read_file get_file_content load_file Write",
            true,
        );
        check(
            "replace_in_file apply_diff NotebookEdit Skill load_skill read_memory Task AskUserQuestion find_path",
            true,
        );
        check(
            "mcp__filesystem__search glob rg TodoWrite read_mcp_resource ask_user str_replace_based_edit_tool",
            true,
        );
        check("mcp__thresher__retrieve thresher.retrieve Thresher/Retrieve headroom_retrieve", true);
        check("search web_search query_database fetch bash find get_task profile catalog already", false);
        check("read_url open_page view_website browser_read", false);
        // Tools of retrieval-augmented generation.
        check("retrieve file_search mcp__docs__retrieve docs.file_search thresher__search", false);
        assert!(is_named("myTool", &["my_tool"]));
    }

    #[test]
    fn a_command_that_prints_a_file_is_known() {
        let check = |name: &str, command: &str, expect: bool| {
            assert_eq!(prints_file(name, command), expect, "{name} {command}");
        };
        check("bash", "cat docs/rules.md", true);
        check("execute_command", "cd app && sed -n 1,80p src/main.rs Reads the file", true);
        check("run_in_terminal", "head -50 README.md", true);
        check("bash", "/bin/cat CHANGELOG.md Show logging rules", true);
        check("bash", "cat /var/log/app.log", false);
        check("bash", "tail -n 200 server.log", false);
        check("bash", "cat a.txt | sort | uniq -c", false);
        check("bash", "pytest -q", false);
        check("search", "cat food", false);
    }

    #[test]
    fn texts_are_known_by_their_lines() {
        let check = |text: &str, expect: &[TextKind]| {
            let found: Vec<TextKind> = TextKind::ALL.into_iter().filter(|kind| kind.is_of(text)).collect();
            assert_eq!(found, expect, "{text}");
        };
        use TextKind::{Code, Diff, Listing, Matches, Numbered};
        check(
            "total 24\n-rw-r--r-- 1 root root 12 May  9 a.txt\ndrwxr-xr-x 2 root root 40 May  9 src\n-rwxr-xr-x 1 root root 9 May 9 run",
            &[Listing],
        );
        check(".\n├── Cargo.toml\n├── src\n│   ├── lib.rs\n│   └── main.rs\n└── tests", &[Listing]);
        check("src/main.rs\nsrc/lib.rs\nCargo.toml\ntests/http/main.rs\ndocs/", &[Listing]);
        check(
            "docs/tide.md:12:The tide is at noon.\ndocs/tide.md-13-The moon is far.\ndocs/moon.md:4:The moon is far.",
            &[Matches],
        );
        check("diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b", &[Diff]);
        check("     1\tUse the key.\n     2\tThen turn it.\n     3\tWait for the light.\n", &[Numbered]);
        check("1→# Title\n2→\n3→Some words.\n10→More words.", &[Numbered]);
        check(
            "use std::fs;\n\nfn main() {\n    let text = fs::read_to_string(\"a\").unwrap();\n    println!(\"{text}\");\n}\n",
            &[Code],
        );
        // Texts that may be shortened.
        check(
            "The tide is at noon. The moon is far.\nShips are slow.\nGulls are loud.\nRopes are long.",
            &[],
        );
        check("12:30:45 INFO started\n12:30:46 INFO ready\n12:30:47 WARN slow\n12:30:48 INFO done", &[]);
        check("2026-01-01T10:00:00Z a: 1\n2026-01-01T10:00:01Z b: 2\n2026-01-01T10:00:02Z c: 3", &[]);
        check("10.0.0.1:80: open\n10.0.0.2:80: open\n10.0.0.3:443: closed", &[]);
        check("https://a.example/x\nhttps://b.example/y\nhttps://c.example/z", &[]);
        check("1. Boil the water.\n2. Add the rice.\n3. Wait for ten minutes.", &[]);
        check("1,Ada,London\n2,Grace,New York\n3,Edsger,Rotterdam", &[]);
        check("a.txt\nb.txt", &[]);
        check("", &[]);
    }
}
