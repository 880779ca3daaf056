//! Attribution over HTTP: responses and refusals, answers to an earlier compression, and answers that arrive
//! in a stream.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::wait::eventually;
use crate::support::wire::{self, Framing, ask, post};
use thresher::admission::Sharer;
use thresher_core::domain::Tenant;
use thresher_core::kv::store::KvStore;

use crate::{
    BODY_BYTES_MAX, Daemon, STREAM_COUNT_MAX, check_error, daemon, pipeline_of, registry_settings, scripted,
    serve, service,
};

const ANSWER: &str = "The tide is at noon. The moon is far.";

fn good() -> Value {
    json!({"answer": ANSWER, "chunks": [{"id": "a", "text": "The tide is at noon."}, {"id": "b", "text": "The moon is far. Water is wet."}]})
}

fn with(fields: Value) -> String {
    let mut request = good();
    for (name, value) in fields.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request.to_string()
}

async fn attributed(daemon: &Daemon, body: impl AsRef<[u8]>) -> Value {
    let response = post(daemon.http, "/v1/attribute", body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// "text <- best chunk" for every part.
fn found(parts: &Value) -> Vec<String> {
    let one = |part: &Value| {
        format!(
            "{} <- {}",
            part["text"].as_str().expect("a text"),
            part["sources"][0]["chunk"].as_str().unwrap_or("-")
        )
    };
    parts.as_array().expect("parts").iter().map(one).collect()
}

const BOTH: [&str; 2] = ["The tide is at noon. <- a", "The moon is far. <- b"];

#[tokio::test(flavor = "multi_thread")]
async fn each_part_is_attributed_to_its_chunk() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let answer = attributed(&daemon, good().to_string()).await;
    assert_eq!(found(&answer["parts"]), BOTH);
    let first = &answer["parts"][0];
    assert_eq!(
        (&first["start"], &first["end"], &first["verdict"]),
        (&json!(0), &json!(20), &json!("supported"))
    );
    let source = &first["sources"][0];
    assert_eq!(
        (&source["cited"], &source["sentence"]["text"]),
        (&json!(true), &json!("The tide is at noon."))
    );
    let spans = with(json!({"spans": [{"start": 4, "end": 8}, {"start": 25, "end": 29}]}));
    assert_eq!(found(&attributed(&daemon, spans).await["parts"]), ["tide <- a", "moon <- b"]);
    let words = attributed(&daemon, with(json!({"granularity": "word"}))).await;
    assert_eq!(words["parts"].as_array().expect("parts").len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_attribution_requests_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let span = |start: usize, end: usize| json!({"start": start, "end": end});
    let table: Vec<(&str, String, &str, &str)> = vec![
        ("no answer", json!({"chunks": ["x"]}).to_string(), "400 missing_field answer", "`answer`"),
        ("an empty answer", with(json!({"answer": " \n"})), "422 field_empty answer", "empty"),
        (
            "too long an answer",
            with(json!({"answer": "x".repeat(1001)})),
            "422 too_long answer",
            "limit is 1000",
        ),
        ("no chunks", json!({"answer": "x"}).to_string(), "400 missing_field chunks", "chunk_ids"),
        ("an empty list", with(json!({"chunks": []})), "422 field_empty chunks", "at least one"),
        (
            "an id twice",
            with(json!({"chunks": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]})),
            "422 duplicate chunks[1].id",
            "chunks[0]",
        ),
        (
            "both kinds of chunks",
            with(json!({"compress_id": "cmp_1"})),
            "422 fields_conflict compress_id",
            "not both",
        ),
        (
            "chunk ids and a compress id",
            json!({"answer": "x", "chunk_ids": ["a"], "compress_id": "cmp_1"}).to_string(),
            "422 fields_conflict compress_id",
            "not both",
        ),
        (
            "an unknown compression",
            json!({"answer": "x", "compress_id": "cmp_1"}).to_string(),
            "404 id_unknown compress_id",
            "it expired after",
        ),
        (
            "unknown ids",
            json!({"answer": "x", "chunk_ids": ["nobody"]}).to_string(),
            "422 chunk_unknown chunk_ids[0]",
            "nobody",
        ),
        ("spans without spans", with(json!({"granularity": "span"})), "400 missing_field spans", "`spans`"),
        (
            "spans of sentences",
            with(json!({"granularity": "sentence", "spans": [span(0, 3)]})),
            "422 fields_conflict spans",
            "granularity",
        ),
        ("no span", with(json!({"spans": []})), "422 field_empty spans", "at least one"),
        ("an empty span", with(json!({"spans": [span(3, 3)]})), "422 field_empty spans[0]", "greater"),
        ("past the end", with(json!({"spans": [span(0, 99)]})), "422 out_of_range spans[0]", "past the end"),
        (
            "backwards",
            with(json!({"spans": [span(0, 1), span(5, 4)]})),
            "422 out_of_range spans[1]",
            "reversed",
        ),
        (
            "overlapping",
            with(json!({"spans": [span(0, 5), span(4, 8)]})),
            "422 out_of_range spans[1]",
            "spans[0]",
        ),
        (
            "out of order",
            with(json!({"spans": [span(9, 12), span(0, 3)]})),
            "422 out_of_range spans[1]",
            "ascend",
        ),
        (
            "too many",
            with(json!({"spans": (0..5).map(|i| span(i, i + 1)).collect::<Vec<_>>()})),
            "422 too_many spans",
            "limit is 4",
        ),
        (
            "inside a surrogate pair",
            with(json!({"answer": "a\u{1F600}b", "offsets": "utf16", "spans": [span(0, 2)]})),
            "422 out_of_range spans[0]",
            "inside a character",
        ),
        (
            "inside a character",
            with(json!({"answer": "é", "offsets": "byte", "spans": [span(0, 1)]})),
            "422 out_of_range spans[0]",
            "inside a character",
        ),
        (
            "json with spans",
            with(json!({"format": "json", "spans": [span(0, 3)]})),
            "422 fields_conflict format",
            "leave granularity",
        ),
        (
            "too many values",
            with(json!({"answer": "[1,2,3,4,5]", "format": "json"})),
            "422 too_many answer",
            "more than 4 values",
        ),
        ("too many sources", with(json!({"sources_max": 101})), "422 out_of_range sources_max", "100"),
        ("an unknown format", with(json!({"format": "bibtex"})), "400 unknown_value format", "markers"),
        (
            "an unknown granularity",
            with(json!({"granularity": "page"})),
            "400 unknown_value granularity",
            "sentence",
        ),
        ("an unknown field", with(json!({"answr": "x"})), "400 unknown_field answr", "answr"),
    ];
    for (case, body, error, message) in table {
        check_error(case, &post(daemon.http, "/v1/attribute", body).await, error, message);
        assert_eq!(
            found(&attributed(&daemon, good().to_string()).await["parts"]),
            BOTH,
            "{case}: a good request afterwards"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_compressed_context_cites_the_original_chunks() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let chunks = json!([
        {"id": "none", "text": "Nothing of this is asked about here."},
        {"id": "long", "text": "Water is wet. The tide is at noon. Rain is wet, too."},
        {"id": "tie", "text": "The tide is at noon."},
    ]);
    let body = json!({"query": "tide", "chunks": chunks, "order": "relevance", "budget": {"tokens": 40}, "tokenizer": "model"});
    let response = post(daemon.http, "/v1/compress", body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let compressed = response.json();
    let id = compressed["id"].as_str().expect("an id");
    let body =
        json!({"answer": "The tide is at noon. Rain is wet, too.", "compress_id": id, "format": "markers"});
    let answer = attributed(&daemon, body.to_string()).await;
    let marker_of = |chunk: &Value| {
        let citations = compressed["citations"].as_array().expect("citations").iter();
        citations.clone().find(|c| c["chunk"] == *chunk).map(|c| c["marker"].clone())
    };
    let first = &answer["parts"][0];
    for source in first["sources"].as_array().expect("sources").iter().filter(|s| s["cited"] == true) {
        // Every source was in the context. Its range refers to the caller's chunk.
        assert!(marker_of(&source["chunk"]).is_some(), "{source} was not kept: {compressed}");
        let text =
            chunks[source["index"].as_u64().expect("an index") as usize]["text"].as_str().expect("a text");
        let range = |name: &str| source["sentence"][name].as_u64().expect("an offset") as usize;
        assert_eq!(&text[range("start")..range("end")], source["sentence"]["text"]);
    }
    // Text that was not in the context is not a source, although the caller's chunk contains it.
    let kept = compressed["context"].as_str().expect("a context").contains("Rain is wet");
    assert!(!kept, "the budget is too small for this sentence: {compressed}");
    for source in answer["parts"][1]["sources"].as_array().expect("sources") {
        assert_eq!(source["sentence"]["text"], "The tide is at noon.", "{answer}");
    }
    // Markers are the markers of the context.
    for reference in answer["formatted"]["references"].as_array().expect("references") {
        assert_eq!(
            marker_of(&reference["chunk"]),
            Some(reference["marker"].clone()),
            "{answer} {compressed}"
        );
    }
}

fn events(first: &Value, pieces: &[&str]) -> String {
    let pieces = pieces.iter().map(|piece| format!("data: {}\n\n", json!({"delta": piece})));
    std::iter::once(format!("data: {first}\n\n")).chain(pieces).collect()
}

/// The name and data of each event of a response.
fn sent_events(response: &wire::Response) -> Vec<(String, Value)> {
    // The body has HTTP chunk framing. Each line of an event lies within one HTTP chunk.
    let lines: Vec<&str> = response.body.lines().collect();
    let mut found = Vec::new();
    for pair in lines.windows(2) {
        if let (Some(name), Some(data)) = (pair[0].strip_prefix("event: "), pair[1].strip_prefix("data: ")) {
            found.push((name.to_owned(), serde_json::from_str(data).expect("JSON")));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_answer_has_the_same_parts_as_the_whole_answer() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let answer = "The tide is at noon. The moon is far. Water is wet, is it not? And Dr. Who knows nothing of it at all.\n- one\n- two";
    let mut request = good();
    request["answer"] = json!(answer);
    let whole = attributed(&daemon, request.to_string()).await;
    request.as_object_mut().expect("fields").remove("answer");
    for size in [1, 7, 50, 1_000] {
        let pieces: Vec<String> =
            answer.chars().collect::<Vec<_>>().chunks(size).map(String::from_iter).collect();
        let pieces: Vec<&str> = pieces.iter().map(|piece| &**piece).collect();
        for ending in ["", "data: [DONE]\n\n"] {
            let body = events(&request, &pieces) + ending;
            let response =
                ask(daemon.http, "POST", "/v1/attribute/stream", body.as_bytes(), Framing::Chunked).await;
            assert_eq!(response.status, 200, "{}", response.body);
            let mut events = sent_events(&response);
            let (last, data) = events.pop().expect("a last event");
            assert_eq!((&*last, data), ("done", json!({"parts": events.len(), "ended": !ending.is_empty()})));
            let parts: Vec<Value> = events
                .into_iter()
                .map(|(name, part)| (name == "part").then_some(part).expect("a part"))
                .collect();
            assert_eq!(json!(parts), whole["parts"], "pieces of {size} characters");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_streams_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let mut request = good();
    request.as_object_mut().expect("fields").remove("answer");
    let first = |fields: Value| {
        let mut request = request.clone();
        fields.as_object().expect("fields").iter().for_each(|(name, value)| request[name] = value.clone());
        events(&request, &["x"])
    };
    let stream = async |body: String| {
        ask(daemon.http, "POST", "/v1/attribute/stream", body.as_bytes(), Framing::ContentLength).await
    };
    for (case, body, error, message) in [
        ("an empty body", String::new(), "400 invalid_json -", "the first is the request"),
        ("not JSON", "data: x\n\n".to_owned(), "400 invalid_json -", "expected value"),
        ("an answer", first(json!({"answer": "x"})), "422 fields_conflict answer", "events that follow"),
        ("spans", first(json!({"spans": []})), "422 fields_conflict spans", "still to come"),
        ("a dialect", first(json!({"format": "markers"})), "422 fields_conflict format", "native"),
        ("a receipt", first(json!({"receipt": true})), "422 fields_conflict receipt", "whole answers"),
        ("no chunks", first(json!({"chunks": []})), "422 field_empty chunks", "at least one"),
        (
            "the granularity of spans",
            first(json!({"granularity": "span"})),
            "422 fields_conflict granularity",
            "no spans",
        ),
        (
            "an unknown compression",
            events(&json!({"compress_id": "cmp_1"}), &["x"]),
            "404 id_unknown compress_id",
            "it expired after",
        ),
    ] {
        check_error(case, &stream(body).await, error, message);
    }
    // A later error is an event, behind the parts before it.
    let sentence = "The tide is at noon. ".repeat(6);
    let broken = events(&request, &[&sentence]) + "data: {\n\n";
    let sent = sent_events(&stream(broken).await);
    assert!(sent.len() > 1, "{sent:?}");
    assert_eq!(
        sent.last().map(|(name, data)| (&**name, &data["error"]["code"])),
        Some(("error", &json!("invalid_json")))
    );
    for unknown in [r#"{"detla": "x"}"#, r#"{"delta": 5}"#, "[1]", "\"x\""] {
        let sent = sent_events(&stream(events(&request, &[]) + "data: " + unknown + "\n\n").await);
        assert_eq!(sent[0].1["error"]["code"], json!("invalid_json"), "{unknown}");
    }
    let long = events(&request, &[&"x ".repeat(300), &"y ".repeat(300)]);
    let sent = sent_events(&stream(long).await);
    assert_eq!(sent.last().map(|(_, data)| data["error"]["code"].clone()), Some(json!("too_long")));
    // The error is in the status or in an event, depending on how the body arrives.
    let huge = stream(events(&request, &[&"x".repeat(BODY_BYTES_MAX)])).await;
    assert!(huge.body.contains("body_too_large"), "{}", huge.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_streams_is_limited_and_open_streams_continue_while_the_daemon_drains() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let mut request = good();
    request.as_object_mut().expect("fields").remove("answer");
    let (first, rest) = (events(&request, &[]), events(&json!({"delta": "The tide is at noon."}), &[]));
    let head = format!(
        "POST /v1/attribute/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        first.len() + rest.len()
    );
    let mut arriving = Vec::new();
    for _ in 0..STREAM_COUNT_MAX {
        let mut stream = TcpStream::connect(daemon.http).await.expect("the daemon listens");
        stream.write_all(format!("{head}{first}").as_bytes()).await.expect("the daemon reads");
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.expect("a response before the end of the request");
        assert_eq!(status, *b"HTTP/1.1 200");
        arriving.push(stream);
    }
    let more = post(daemon.http, "/v1/attribute/stream", &first).await;
    check_error("a stream beyond the limit", &more, "429 overloaded -", "too many streams");
    drop(arriving.pop());
    let room = async || post(daemon.http, "/v1/attribute/stream", &first).await.status == 200;
    eventually("the place of the stream that was dropped is free", room).await;
    daemon.service.admission.drain();
    let late = post(daemon.http, "/v1/attribute/stream", &first).await;
    check_error("while draining", &late, "503 draining -", "shutting down");
    for mut stream in arriving {
        stream.write_all(rest.as_bytes()).await.expect("the daemon reads");
        let mut rest_of_response = String::new();
        stream.read_to_string(&mut rest_of_response).await.expect("the rest of the response");
        let ends_well = rest_of_response.contains("event: part") && rest_of_response.contains("event: done");
        assert!(ends_well, "{rest_of_response}");
    }
}

/// A daemon that ends a stream without text after `silence_max`, and any stream after `stream_max`.
async fn limited(silence_max: Duration, stream_max: Duration) -> Daemon {
    let (mut service, tenants) = service(None, 2, 2, &registry_settings());
    let admission = &mut Arc::make_mut(&mut service.settings).admission;
    admission.deadline_ms_max = silence_max.as_millis() as u64;
    admission.stream_ms_max = stream_max.as_millis() as u64;
    tenants.set_pipeline(Arc::new(pipeline_of(scripted(), KvStore::without_tiers())));
    serve((service, tenants)).await
}

/// Opens a stream and sends its first event. The body that it declares is longer than anything that follows.
async fn open_stream(daemon: &Daemon) -> TcpStream {
    let mut request = good();
    request.as_object_mut().expect("fields").remove("answer");
    let head = "POST /v1/attribute/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 100000\r\n\r\n";
    let mut stream = TcpStream::connect(daemon.http).await.expect("the daemon listens");
    stream.write_all(format!("{head}{}", events(&request, &[])).as_bytes()).await.expect("the daemon reads");
    stream
}

/// Each daemon has one short limit and one that no test reaches, so that a slow machine cannot change which
/// of them ends the stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_text_or_without_an_end_is_ended() {
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(600));
    for (name, event, silence_max, stream_max, code) in [
        ("no event follows", "", short, long, "body_timeout"),
        ("events without text follow", "data: {\"type\": \"ping\"}\n\n", short, long, "body_timeout"),
        ("text follows without end", "data: {\"delta\": \"x \"}\n\n", long, short, "deadline_exceeded"),
    ] {
        let daemon = limited(silence_max, stream_max).await;
        let (mut from, mut to) = open_stream(&daemon).await.into_split();
        let sending = tokio::spawn(async move {
            while !event.is_empty() && to.write_all(event.as_bytes()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            to
        });
        let mut response = String::new();
        let _ = from.read_to_string(&mut response).await;
        assert!(response.contains(code), "{name}: {response}");
        sending.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_client_disconnects_gives_its_place_back() {
    let long = Duration::from_secs(600);
    let daemon = limited(long, long).await;
    for _ in 0..2 * STREAM_COUNT_MAX {
        drop(open_stream(&daemon).await);
    }
    let tenant = Tenant::default();
    let sharer = Sharer { tenant: &tenant, has_rivals: false };
    eventually("all places are free", async || {
        let streams: Vec<_> =
            (0..STREAM_COUNT_MAX).map(|_| daemon.service.admission.stream(sharer)).collect();
        streams.iter().all(Result::is_ok)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_receipts_of_a_daemon_are_signed_with_one_key() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let sign = async || attributed(&daemon, with(json!({"receipt": true}))).await["receipt"].clone();
    let (one, other) = (sign().await, sign().await);
    assert_eq!(one["payloadType"], "application/vnd.thresher.attribution+json");
    assert_eq!(one["signatures"][0]["keyid"], other["signatures"][0]["keyid"]);
    let receipt: thresher::receipt::Receipt = serde_json::from_value(one).expect("a receipt");
    receipt.statement(None).expect("a valid signature");
    assert_eq!(
        attributed(&daemon, good().to_string()).await.get("receipt"),
        None,
        "a response has a receipt only on request"
    );
}
