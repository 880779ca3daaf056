//! The memory that parsing a request body allocates. The allocator counts it, so the load of the machine does
//! not matter. Whatever the body contains, parsing allocates less than three times its bytes, in most cases
//! less than twice, and errors quote little of it.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use thresher::api::{
    self, AttributeBody, Body, BodyLimits, CompressBody, DeleteBody, MiddlewareBody, RegisterBody,
    RerankBody, SearchBody, TeiRerankBody,
};
use thresher::error::{ApiError, ErrorCode};
use thresher::middleware::json::Located;

/// The code by which a test says that a body was taken, and what it made of it.
const TAKEN: ErrorCode = ErrorCode::Internal;
const BODY_BYTES: usize = 8 * 1024 * 1024;
/// The most memory that parsing may hold at any time, besides the body, as a multiple of the body's bytes.
const TIMES_MAX: usize = 2;
/// The same for a body that is one long list. The pool of body memory counts this much for the parsed
/// request.
const LIST_TIMES_MAX: usize = 1;
/// The same where parsing copies the whole body: metadata that is kept with its chunk, a document that is
/// kept with its text.
const TWICE_TIMES_MAX: usize = 3;
/// More bytes than any error needs, and fewer than one that quotes a body.
const MESSAGE_BYTES_MAX: usize = 2_000;

// ---- the allocator ----

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// Each thread counts for itself, since tests run in parallel.
thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn grown(bytes: usize) {
    // This thread may free memory that another thread has allocated and counted.
    let now = NOW.get().wrapping_add(bytes);
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

fn shrunk(bytes: usize) {
    NOW.set(NOW.get().saturating_sub(bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        shrunk(layout.size());
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // The old and the new memory may exist at the same time.
        grown(bytes);
        shrunk(layout.size());
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

/// The result of `work`, and the most bytes that it held at any time.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let found = work();
    (found, PEAK.get() - before)
}

// ---- bodies ----

fn limits() -> BodyLimits {
    BodyLimits::default()
}

/// `head`, then as many `item`s as fit into [`BODY_BYTES`], with commas between them, then `tail`.
fn filled(head: &str, item: &str, tail: &str) -> Vec<u8> {
    let mut body = String::with_capacity(BODY_BYTES + item.len() + tail.len());
    body.push_str(head);
    while body.len() < BODY_BYTES {
        body.push_str(item);
        body.push(',');
    }
    body.pop();
    body.push_str(tail);
    body.into_bytes()
}

/// `head`, then one run of `character`, then `tail`.
fn run(head: &str, character: &str, tail: &str) -> Vec<u8> {
    format!("{head}{}{tail}", character.repeat(BODY_BYTES / character.len())).into_bytes()
}

/// Parses `body` and expects `error`, given as "code param", and less memory than [`TIMES_MAX`] times the
/// body.
#[track_caller]
fn check<T>(
    name: &str,
    body: &[u8],
    error: &str,
    parse: impl FnOnce(&[u8], &BodyLimits) -> Result<T, ApiError>,
) {
    check_within(TIMES_MAX, name, body, error, parse);
}

#[track_caller]
fn check_within<T>(
    times_max: usize,
    name: &str,
    body: &[u8],
    error: &str,
    parse: impl FnOnce(&[u8], &BodyLimits) -> Result<T, ApiError>,
) {
    let limits = limits();
    let (found, bytes) = peak(|| parse(body, &limits));
    let Err(found) = found else { panic!("{name}: the body is accepted") };
    let head = format!("{} {}", found.code, found.param.as_deref().unwrap_or("-"));
    assert!(head.starts_with(error), "{name}: {head}, not {error}: {}", found.message);
    let error_bytes = found.message.len() + head.len();
    assert!(error_bytes < MESSAGE_BYTES_MAX, "{name}: the error has {error_bytes} bytes");
    let ratio = bytes as f64 / body.len() as f64;
    println!("{ratio:5.2} {name}");
    assert!(ratio < times_max as f64, "{name}: {bytes} bytes at a time, {ratio:.1} times the body");
}

/// Hostile content that any type of body may get. `field` is one of its fields, neither a string nor a list;
/// `denies` says whether the type refuses unknown fields.
fn check_any<T: Body>(name: &str, field: &str, denies: bool) {
    let parse = |body: &[u8], limits: &BodyLimits| api::parse::<T>(body, limits).map(drop);
    let check =
        |case: &str, body: Vec<u8>, error: &str| check(&format!("{name}: {case}"), &body, error, parse);
    let unknown = if denies { "unknown_field" } else { "missing_field" };
    check("a long key", run("{\"", "k", "\": 1}"), unknown);
    check("a long key with escapes", run("{\"", "\\n", "\": 1}"), unknown);
    check("many keys", filled("{", "\"k\":1", "}"), unknown);
    check("lists inside each other", run("{\"k\": ", "[", ""), if denies { unknown } else { "invalid_json" });
    check(
        "a string for a number",
        run(&format!("{{\"{field}\": \""), "x", "\"}"),
        &format!("wrong_type {field}"),
    );
    check(
        "escapes for a number",
        run(&format!("{{\"{field}\": \""), "\\n", "\"}"),
        &format!("wrong_type {field}"),
    );
    check(
        "a field twice",
        filled("{", &format!("\"{field}\":null"), "}"),
        &format!("duplicate_field {field}"),
    );
    check("a string", run("\"", "x", "\""), "wrong_type");
    check("a list", filled("[", "[]", "]"), "wrong_type");
}

// ---- tests ----

#[test]
fn hostile_bodies_of_every_type_need_little_memory() {
    check_any::<CompressBody>("compress", "deadline_ms", true);
    check_any::<AttributeBody>("attribute", "deadline_ms", true);
    check_any::<RegisterBody>("register", "deadline_ms", true);
    check_any::<SearchBody>("search", "limit", true);
    check_any::<MiddlewareBody>("middleware", "cite", true);
    check_any::<RerankBody>("rerank", "top_n", false);
}

/// Fills each of the body's lists with each of `items`, all of which are valid in it.
fn check_lists<T: Body>(name: &str, head: &str, items: &[&str], lists: &[(&str, &str)]) {
    for (field, code) in lists {
        for item in items {
            let body = filled(&format!("{{{head}\"{field}\":["), item, "]}");
            let case = format!("{name}.{field} of {item}");
            check_within(LIST_TIMES_MAX, &case, &body, &format!("{code} {field}"), api::parse::<T>);
        }
    }
}

#[test]
fn a_list_is_refused_before_all_of_it_is_in_memory() {
    let (texts, chunks) = (["\"\"", "\"\\n\""], ["\"\"", "{\"text\":\"\"}"]);
    let any = ["\"\"", "{}", "[]", "1", "null", "[[],[]]", "{\"a\":1,\"b\":\"\"}"];
    let (query, many) = ("\"query\":\"q\",", "too_many");
    check_lists::<CompressBody>("compress", query, &chunks, &[("chunks", many)]);
    check_lists::<CompressBody>("compress", query, &texts, &[("chunk_ids", many), ("keep", "too_many")]);
    check_lists::<CompressBody>("compress", query, &["\"kv\""], &[("include", "too_many")]);
    check_lists::<AttributeBody>("attribute", "", &chunks, &[("chunks", many)]);
    check_lists::<AttributeBody>("attribute", "", &texts, &[("chunk_ids", many)]);
    check_lists::<AttributeBody>("attribute", "", &["{\"start\":0,\"end\":1}"], &[("spans", "too_many")]);
    check_lists::<RerankBody>("rerank", query, &any, &[("documents", many)]);
    check_lists::<RerankBody>("rerank", query, &texts, &[("rank_fields", "too_many")]);
    check_lists::<TeiRerankBody>("rerank", query, &texts, &[("texts", many)]);
    check_lists::<RegisterBody>("register", "", &any, &[("chunks", many)]);
    check_lists::<DeleteBody>("delete", "", &texts, &[("ids", many)]);
    check_lists::<MiddlewareBody>("middleware", "", &chunks, &[("chunks", many)]);
}

#[test]
fn errors_do_not_quote_long_strings() {
    let compress = api::parse::<CompressBody>;
    let long = |head: &str, tail: &str| run(head, "x", tail);
    check("a word", &long("{\"order\": \"", "\"}"), "unknown_value order", compress);
    check("a word in a list", &long("{\"include\": [\"", "\"]}"), "unknown_value include[0]", compress);
    check("an object's key", &long("{\"budget\": {\"", "\": 1}}"), "unknown_field budget.xxx", compress);
    check("a chunk's key", &long("{\"chunks\": [{\"", "\": 1}]}"), "unknown_field chunks[0].xxx", compress);
    check("a string for an object", &long("{\"budget\": \"", "\"}"), "wrong_type budget", compress);
    check("a string for a list", &long("{\"keep\": \"", "\"}"), "wrong_type keep", compress);
    let rerank = |body: &[u8], limits: &BodyLimits| api::parse::<RerankBody>(body, limits)?.into_v1(limits);
    let fields = long("{\"query\":\"q\",\"documents\":[{}],\"rank_fields\":[\"", "\"]}");
    check("a rank field", &fields, "missing_field documents[0]", rerank);
}

/// A field of 200 kB that is ranked 50,000 times would make 10 GB of one document.
#[test]
fn rank_fields_do_not_multiply_a_document() {
    let rerank = |body: &[u8], limits: &BodyLimits| api::parse::<RerankBody>(body, limits)?.into_v1(limits);
    let body = |fields: &str, bytes: usize| {
        let text = "x".repeat(bytes);
        format!(r#"{{"query":"q","rank_fields":[{fields}],"documents":[{{"a":"{text}","b":"{text}"}}]}}"#)
            .into_bytes()
    };
    let many = vec!["\"a\""; 50_000].join(",");
    check("many times", &body(&many, 200_000), "too_many rank_fields", rerank);
    check("twice", &body("\"a\",\"b\",\"a\"", 200_000), "duplicate rank_fields[2]", rerank);
    check("too long together", &body("\"a\",\"b\"", 600_000), "too_long documents[0]", rerank);
}

#[test]
fn nested_values_are_refused_before_all_of_them_are_in_memory() {
    let rerank = |body: &[u8], limits: &BodyLimits| {
        let request = api::parse::<RerankBody>(body, limits)?.into_v1(limits)?;
        // The request is valid. This error only ends the measurement.
        let chunks = request.chunks.len();
        Err::<(), _>(ApiError::new(TAKEN, chunks.to_string()))
    };
    let tree =
        |item: &str| filled("{\"query\":\"q\",\"documents\":[{\"text\":\"t\",\"more\":[", item, "]}]}");
    check("a document of lists", &tree("[]"), "internal", rerank);
    check("a document of objects", &tree("{\"a\":1}"), "internal", rerank);
    check(
        "a document of keys",
        &filled("{\"query\":\"q\",\"documents\":[{\"text\":\"t\",", "\"a\":1", "}]}"),
        "internal",
        rerank,
    );
    let register = |body: &[u8], limits: &BodyLimits| {
        let batch = api::parse::<RegisterBody>(body, limits)?.into_batch(limits)?;
        let taken = batch.chunks().count();
        Err::<(), _>(ApiError::with_param(TAKEN, taken.to_string(), taken.to_string()))
    };
    let metadata = filled("{\"chunks\":[{\"text\":\"t\",\"metadata\":{\"a\":[", "[]", "]}}]}");
    check_within(TWICE_TIMES_MAX, "metadata", &metadata, "internal 0", register);
    let attribute = |body: &[u8], limits: &BodyLimits| {
        api::parse::<AttributeBody>(body, limits)?.into_domain(None, limits)
    };
    let answer = filled("{\"chunks\":[\"c\"],\"format\":\"json\",\"answer\":\"[", "1", "]\"}");
    check("an answer that is JSON", &answer, "too_long answer", attribute);
    let values = |answer: &[u8], limits: &BodyLimits| {
        let answer = std::str::from_utf8(answer).expect("text");
        let wrong = |error| ApiError::new(TAKEN, format!("{error}"));
        api::json_values(answer, limits).map_err(wrong)
    };
    check("its values", &filled("[", "1", "]"), "internal", values);
    check("its keys", &filled("{\"a\":[", "[]", "]}"), "internal", values);
    let tree = |body: &[u8], limits: &BodyLimits| limits.check_tree(body, Some("messages"));
    let field = |body: &[u8], limits: &BodyLimits| {
        let body = Located::parse(std::str::from_utf8(body).expect("text")).expect("JSON");
        let messages = body.get("messages").expect("the field");
        limits.check_tree(messages.json().as_bytes(), Some("messages"))?;
        Err::<(), _>(ApiError::new(TAKEN, ""))
    };
    check("fields around a conversation", &filled("{", "\"k\":1", ",\"messages\":[]}"), "internal", field);
    check("a conversation", &filled("[", "{}", "]"), "too_many messages", tree);
    check("a deep one", &run("", "[", ""), "too_long messages", tree);
}

#[test]
fn ordinary_bodies_need_little_more_memory_than_their_size() {
    let limits = limits();
    let text = "The tide is at noon.\\nThe moon is far. ".repeat(220);
    let chunk = format!(r#"{{"id":"a","text":"{text}","metadata":{{"page":3}}}}"#);
    let body = filled("{\"query\":\"q\",\"chunks\":[", &chunk, "]}");
    let (parsed, bytes) = peak(|| api::parse::<CompressBody>(&body, &limits));
    parsed.expect("a request");
    assert!(2 * bytes < 3 * body.len(), "{bytes} bytes of {}", body.len());
    let body = filled("{\"query\":\"q\",\"documents\":[", &chunk, "]}");
    let (parsed, bytes) = peak(|| api::parse::<RerankBody>(&body, &limits)?.into_v1(&limits));
    parsed.expect("a request");
    assert!(bytes < TWICE_TIMES_MAX * body.len(), "{bytes} bytes of {}", body.len());
}
