//! Work stops soon after its caller has gone, and grows with the length of the texts and no faster. Both are measured in processor time of one
//! thread, on which everything runs here, so that a busy machine changes little.
//!
//! `make cancellation` runs the tests; `THRESHER_TEST_TEXT` names one of the texts.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use thresher_core::domain::{AttributeRequest, Budget, ByteRange, Chunk, CompressRequest, Kind, Parts};
use thresher_core::kv::store::KvStore;
use thresher_core::model::scripted::ScriptedModel;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::pipeline::{Pipeline, Settings};

const TEXT_BYTES: usize = 1 << 20;

/// The longest answer that a request may have.
const ANSWER_BYTES: usize = 256 << 10;

/// How long work may go on after its caller has gone. Most texts take a tenth of it. Most of all takes a megabyte of lines of one digit,
/// which is divided into units without a look at the caller.
const GAP_MAX: Duration = Duration::from_millis(1_000);

/// Processor time after which the caller of long work has gone.
const WORK_MAX: Duration = Duration::from_secs(20);

/// How much longer a text of twice the bytes may take.
const DOUBLED_MAX: f64 = 2.8;

/// Texts are this long where they are doubled, so that a measurement takes some time and a quadratic one not too much.
const DOUBLED_BYTES: usize = 32 << 10;

fn pipeline() -> Pipeline {
    let model = ScriptedModel::new(512);
    // As the tokenizer of the default model, it reads long texts in pieces.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny/bert-gelu/tokenizer.json");
    let tokenizer = ModelTokenizer::from_file(&file).expect("a tokenizer");
    let limits = RequestLimits {
        chunk_tokens_max: 2 * TEXT_BYTES,
        chunk_bytes_max: 2 * TEXT_BYTES,
        input_tokens_max: 4 * TEXT_BYTES,
        logit_count_max: usize::MAX,
        json_value_count_max: usize::MAX,
        ..RequestLimits::default()
    };
    let settings = Settings { limits, ..Settings::default() };
    Pipeline::new(Arc::new(model), tokenizer.into(), KvStore::without_tiers().into(), settings)
}

fn thread_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let on_cpu = times.split(' ').next().and_then(|time| time.parse().ok());
    Duration::from_nanos(on_cpu.expect("nanoseconds"))
}

/// Runs `work` on one thread, also what it would do on several.
fn on_one_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread").install(work)
}

/// Returns the longest time that `work` takes between two looks at its [`Cancel`], and the place where it ended. After [`WORK_MAX`] its caller has
/// gone.
fn longest_gap(work: impl FnOnce(&Cancel) + Send) -> (Duration, String) {
    on_one_thread(|| {
        let until = thread_time() + WORK_MAX;
        let last = Arc::new(Mutex::new((Instant::now(), thread_time(), Duration::ZERO, String::new())));
        let look = {
            let last = Arc::clone(&last);
            move || {
                let mut last = last.lock().expect("no panic");
                // Reading the time of a thread takes some microseconds, so it is read once a millisecond at most.
                if last.0.elapsed() > Duration::from_millis(1) {
                    let now = thread_time();
                    let gap = now - last.1;
                    if gap > last.2 {
                        (last.2, last.3) = (gap, std::backtrace::Backtrace::force_capture().to_string());
                    }
                    (last.0, last.1) = (Instant::now(), now);
                }
                last.1 < until
            }
        };
        let cancel = Cancel::default().while_wanted(Arc::new(look.clone()));
        work(&cancel);
        look();
        let found = last.lock().expect("no panic");
        let lines = found.3.lines().filter(|line| line.contains("thresher") && line.contains("::"));
        (found.2, lines.skip(3).take(6).collect::<Vec<_>>().join("\n"))
    })
}

/// Texts that rules may take long for, `(name, kind, repeated)`.
const TEXTS: [(&str, Kind, &str); 16] = [
    ("prose", Kind::Auto, "The tide rises twice a day at the coast of Orrin. The moon pulls the water. "),
    ("a chain of answers", Kind::Auto, "Who? Yes. "),
    ("a chain of questions", Kind::Auto, "Was it so? It was. "),
    ("lines of a letter", Kind::Auto, "a\n"),
    ("lines of a digit", Kind::Auto, "1\n"),
    ("signs", Kind::Auto, "-. "),
    ("one word", Kind::Auto, "tide"),
    ("forwarded mails", Kind::Mail, "---------- Forwarded message ---------\n"),
    ("quoted mails", Kind::Mail, "On Mon, Ann wrote:\n> It was so.\n\nYes, it was.\n"),
    ("a table", Kind::Auto, "| tide | 12 | It was so |\n"),
    ("JSON", Kind::Auto, "{\"tide\": [1, {\"moon\": \"It was so.\"}]}\n"),
    ("a log", Kind::Auto, "2024-01-02 10:11:12 ERROR [tide] It was so: 12\n"),
    ("code", Kind::Auto, "fn tide() {\n    moon();\n}\n"),
    ("Markdown", Kind::Auto, "# Tide\n\nIt was so:\n\n- one\n- two\n\n"),
    ("HTML", Kind::Auto, "<div><p>It was so.</p><ul><li>tide</li></ul></div>\n"),
    ("a chat", Kind::Auto, "Ann: Who? \nBob: Yes.\n"),
];

fn text(repeated: &str, bytes: usize) -> String {
    repeated.repeat(bytes / repeated.len())
}

fn request(kind: Kind, text: String, ratio: f64) -> CompressRequest {
    let chunk = Chunk { kind, ..Chunk::new("a", text) };
    let mut request = CompressRequest::new("Who built the valve in 1987?", vec![chunk]);
    request.budget = Budget::ratio(ratio);
    request
}

/// Fails with every text for which the work goes on for too long.
fn check_gaps(texts: &[(&str, Kind, &str)], work: impl Fn(&Pipeline, Kind, String, &Cancel) + Sync) {
    let pipeline = pipeline();
    let only = std::env::var("THRESHER_TEST_TEXT").ok();
    let mut late = Vec::new();
    for &(name, kind, repeated) in texts {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let text = text(repeated, TEXT_BYTES);
        let (gap, place) = longest_gap(|cancel| work(&pipeline, kind, text, cancel));
        eprintln!("{name}: {gap:?}");
        if gap > GAP_MAX {
            late.push(format!("{name}: {gap:?} before\n{place}"));
        }
    }
    assert!(late.is_empty(), "work goes on after its caller has gone:\n{}", late.join("\n"));
}

#[test]
#[ignore = "takes half a minute: run as the head of this file says"]
fn compression_stops() {
    check_gaps(&TEXTS, |pipeline, kind, text, cancel| {
        let _ = pipeline.compress(&request(kind, text, 0.3), cancel);
    });
}

#[test]
#[ignore = "takes half a minute: run as the head of this file says"]
fn attribution_stops() {
    check_gaps(&TEXTS, |pipeline, kind, text, cancel| {
        let answer = "The valve was built in 1987. It was so. Yes.".to_owned();
        let chunk = Chunk { kind, ..Chunk::new("a", text) };
        let _ = pipeline.attribute(&AttributeRequest::new(answer, vec![chunk]), cancel);
    });
}

#[test]
#[ignore = "takes minutes: run as the head of this file says"]
fn attribution_of_a_long_answer_stops() {
    // With one short span, little is scored, and the time is that of the rest.
    let span = Parts::Spans(vec![ByteRange::new(0, 8)]);
    let cases = [
        ("The tide rises twice a day. It was built in 1987. ", Parts::Sentences),
        ("1\n", Parts::Sentences),
        ("tide and moon, ", Parts::Words),
        ("She said \"the tide rises twice a day at the coast\". ", span.clone()),
        ("\"The tide\" ", span.clone()),
        ("the tide rises twice a day ", span),
    ];
    for (repeated, parts) in cases {
        // The last answer is one long quotation.
        let answer = format!("\"{}\"", text(repeated, ANSWER_BYTES - 2));
        eprintln!("{repeated:?}, {parts:?}");
        // Prose, lines of a letter, one word.
        check_gaps(&[TEXTS[0], TEXTS[3], TEXTS[6]], |pipeline, kind, text, cancel| {
            let chunk = Chunk { kind, ..Chunk::new("a", text) };
            let request = AttributeRequest::new(answer.clone(), vec![chunk]);
            let _ = pipeline.attribute(&AttributeRequest { parts: parts.clone(), ..request }, cancel);
        });
    }
}

/// Texts that are twice as long take about twice as long, for every budget.
fn check_growth(texts: &[(&str, Kind, &str)], budgets: &[Budget]) {
    let pipeline = pipeline();
    let time = |kind: Kind, repeated: &str, budget: Budget, bytes: usize| {
        let request = CompressRequest { budget, ..request(kind, text(repeated, bytes), 0.3) };
        on_one_thread(|| {
            let before = thread_time();
            let _ = pipeline.compress(&request, &Cancel::default());
            (thread_time() - before).as_secs_f64()
        })
    };
    let mut slow = Vec::new();
    for &(name, kind, repeated) in texts {
        for &budget in budgets {
            let times = [1, 2, 4].map(|factor| time(kind, repeated, budget, factor * DOUBLED_BYTES));
            eprintln!("{name}, {budget:?}: {times:.3?}");
            // Both doublings: a single one may be that of a buffer.
            if times[1] > DOUBLED_MAX * times[0] && times[2] > DOUBLED_MAX * times[1] {
                slow.push(format!("{name}, {budget:?}: {times:.3?} s"));
            }
        }
    }
    assert!(slow.is_empty(), "not linear:\n{}", slow.join("\n"));
}

#[test]
#[ignore = "takes half a minute: run as the head of this file says"]
fn time_grows_with_the_text() {
    let budgets = [Budget::default(), Budget::ratio(0.3)];
    let is_chain = |text: &&(&str, Kind, &str)| text.0.starts_with("a chain");
    let others: Vec<_> = TEXTS.iter().filter(|text| !is_chain(text)).copied().collect();
    check_growth(&others, &budgets);
}

#[test]
#[ignore = "takes half a minute: run as the head of this file says"]
fn time_grows_with_a_chain() {
    let is_chain = |text: &&(&str, Kind, &str)| text.0.starts_with("a chain");
    let chains: Vec<_> = TEXTS.iter().filter(is_chain).copied().collect();
    check_growth(&chains, &[Budget::default(), Budget::ratio(0.3), Budget::ratio(0.9), Budget::tokens(1000)]);
}
