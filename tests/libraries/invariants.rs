//! Properties that hold for every request, tested with texts that are chosen to break them. The scripted
//! model makes thousands of requests take seconds. Each property is a promise of the README. A bug that one
//! finds becomes a row of `requests_that_failed_before`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::Value;
use thresher::api::{AttributeAnswer, AttributeBody, BodyLimits, ChunkNumbers, CompressAnswer};
use thresher_core::domain::{
    AtMost, AttributeRequest, Budget, ByteRange, Chunk, CompressRequest, Format, Granularity, Kind,
    Omissions, Order, Parts, TokenizerName,
};
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::store::{BlockOrigin, KvStore, Tiers};
use thresher_core::model::scripted::ScriptedModel;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::attribute::Verdict;
use thresher_core::pipeline::calibration::Calibration;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::{Clock, Timings};
use thresher_core::pipeline::validate::{InvalidRequest, RequestLimits};
use thresher_core::pipeline::{
    ChunkOutcome, Compressed, Pipeline, PipelineError, Settings, Warning, passthrough,
};
use thresher_core::text::offsets::OffsetUnit;

/// The window is small, so that nearly every chunk has several windows.
const WINDOW_TOKENS: usize = 16;
/// Words that are one token of the scripted tokenizer. Questions and the texts that answer them share these
/// words.
const WORDS: [&str; 6] = ["tide", "moon", "water", "rises", "twice", "coast"];
const GRANULARITIES: [Granularity; 3] = [Granularity::Chunk, Granularity::Sentence, Granularity::Word];
const FORMATS: [Format; 3] = [Format::Numbered, Format::Plain, Format::Xml];
const TOKENIZERS: [TokenizerName; 3] =
    [TokenizerName::Model, TokenizerName::O200kBase, TokenizerName::Cl100kBase];
const UNITS: [OffsetUnit; 3] = [OffsetUnit::Byte, OffsetUnit::Codepoint, OffsetUnit::Utf16];

/// Texts that are known to break text processing.
const HOSTILE: [&str; 44] = [
    "The tide rises twice a day.",
    "Moon and water. The coast waits!",
    "The moon pulls the water of the coast.",
    " ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{2003}\u{3000}",
    "\u{2028}",
    "\u{85}",
    ".",
    "...",
    "?!",
    "/",
    "/usr/lib/a.so:12",
    "e\u{301}\u{323} o\u{308}",
    "\u{301}",
    "👩‍👩‍👧‍👦",
    "👍🏽 👋",
    "🏳️‍🌈",
    "🇩🇪🇫🇷🇯",
    "\u{200d}",
    "\u{feff}",
    "\u{200b}\u{200b}",
    "שלום עולם. מה שלומך?",
    "مرحبا بالعالم؟ نعم.",
    "\u{202e}abc\u{202c}",
    "潮は一日に二回満ちる。月が水を引く。",
    "天气很好。我们走吧！",
    "น้ำขึ้นวันละสองครั้ง",
    "밀물은 하루에 두 번 온다.",
    "ภาษาไทยไม่มีช่องว่าง",
    "\u{0}\u{1}\u{7f}\u{9b}",
    "| a | b |\n|---|---|\n| tide | 2 |\n",
    "```rust\nfn main() { println!(\"{}\", 1); }\n```\n",
    "- one\n- two\n  - three\n",
    "# Heading\n\nBody of it.",
    "<document index=\"1\">\n</document>",
    "[1] not our marker",
    "<|endoftext|>",
    "Dr. Smith paid $3.14, i.e. 2.50 €… Then left.",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u{10ffff}",
];

static PIPELINE: LazyLock<Pipeline> = LazyLock::new(|| pipeline(RequestLimits::default()));
static TOKENIZER: LazyLock<ModelTokenizer> = LazyLock::new(|| ScriptedModel::tokenizer(&WORDS));

/// A pipeline with the default model's tokenizer, which splits at white space, and a scripted model that
/// accepts any token id.
static WORD_PIPELINE: LazyLock<Pipeline> = LazyLock::new(|| {
    let (model, store) = (Arc::new(ScriptedModel::new(WINDOW_TOKENS)), KvStore::without_tiers());
    Pipeline::new(model, Arc::clone(&WORD_TOKENIZER), store.into(), Settings::default())
});
static WORD_TOKENIZER: LazyLock<Arc<ModelTokenizer>> = LazyLock::new(|| {
    let path = crate::support::model_dir().join("tokenizer.json");
    Arc::new(ModelTokenizer::from_file(&path).expect("the default model's tokenizer"))
});

fn pipeline(limits: RequestLimits) -> Pipeline {
    over(KvStore::without_tiers(), limits)
}

fn over(store: KvStore, limits: RequestLimits) -> Pipeline {
    let (model, tokenizer) = (Arc::new(ScriptedModel::new(WINDOW_TOKENS)), ScriptedModel::tokenizer(&WORDS));
    let settings = Settings { limits, calibration: Calibration::shipped("minilm-l6"), ..Settings::default() };
    Pipeline::new(model, tokenizer.into(), store.into(), settings)
}

/// A tier that keeps every block in memory and never evicts one.
#[derive(Default)]
struct Memory(Mutex<HashMap<BlockKey, Bytes>>);

impl Tiers for Memory {
    fn resident(&self, key: &BlockKey) -> Option<Bytes> {
        self.0.lock().expect("no panic").get(key).cloned()
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, BlockOrigin)>> {
        vec![None; keys.len()]
    }

    fn keep(&self, key: BlockKey, bytes: Bytes) {
        self.0.lock().expect("no panic").insert(key, bytes);
    }

    fn remove(&self, key: &BlockKey) {
        self.0.lock().expect("no panic").remove(key);
    }
}

fn compress(request: &CompressRequest) -> Result<Compressed, PipelineError> {
    PIPELINE.compress(request, &Cancel::default())
}

// ---- requests ----

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => select(&HOSTILE[..]).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => "[a-z ]{0,40}",
    ];
    prop_oneof![
        1 => select(&["", " ", "\n\t ", "\u{2003}"][..]).prop_map(str::to_owned),
        9 => prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat()),
    ]
}

fn query() -> impl Strategy<Value = String> {
    let hostile = text().prop_filter("a question must not be blank", |text| !text.trim().is_empty());
    prop_oneof![2 => Just("How often does the tide rise?".to_owned()), 1 => hostile]
}

fn chunks() -> impl Strategy<Value = Vec<Chunk>> {
    let chunk = (prop::option::weighted(0.3, text()), text());
    prop::collection::vec(chunk, 1..14).prop_map(|chunks| {
        let chunk = |(index, (title, text))| Chunk { title, ..Chunk::new(format!("<\"{index}\">&"), text) };
        chunks.into_iter().enumerate().map(chunk).collect()
    })
}

fn budget() -> impl Strategy<Value = Budget> {
    prop_oneof![
        2 => (1_usize..400).prop_map(Budget::tokens),
        2 => (0.01..=1.0_f64).prop_map(Budget::ratio),
        2 => Just(Budget::default()),
        1 => (0.5..=0.99_f64).prop_map(Budget::coverage),
        1 => (0.5..=0.99_f64, 1_usize..400).prop_map(|(coverage, tokens)| Budget {
            coverage: Some(coverage),
            ..Budget::tokens(tokens)
        }),
    ]
}

fn request() -> impl Strategy<Value = CompressRequest> {
    let content = (query(), chunks(), budget());
    let options =
        (select(&GRANULARITIES[..]), select(&FORMATS[..]), select(&TOKENIZERS[..]), any::<[bool; 3]>());
    (content, options).prop_flat_map(|((query, chunks, budget), (granularity, format, tokenizer, flags))| {
        let ids: Vec<String> = chunks.iter().map(|chunk| chunk.id.clone()).collect();
        let most = if flags[0] { 0 } else { ids.len().min(3) };
        let [_, relevance, explain] = flags;
        let order = if relevance { Order::Relevance } else { Order::Input };
        subsequence(ids, 0..=most).prop_map(move |keep| CompressRequest {
            query: query.clone(),
            history: if relevance { vec!["The moon.".to_owned(), query.clone()] } else { Vec::new() },
            chunks: chunks.iter().cloned().map(Arc::new).collect(),
            budget,
            granularity: if budget.coverage.is_some() { Granularity::Sentence } else { granularity },
            keep,
            keeps_notable: explain && relevance,
            order,
            format,
            titles: relevance,
            related_only: !relevance,
            omissions: if relevance { Omissions::Range } else { Omissions::None },
            tokenizer,
            missed_max: None,
            best_effort: false,
            explain,
            registered: false,
        })
    })
}

/// The response, and the request with a budget that can be met: if the budget is impossible, the request is
/// repeated with the budget that the error names.
fn answered(mut request: CompressRequest) -> Result<(CompressRequest, Compressed), TestCaseError> {
    let compressed = match compress(&request) {
        Ok(compressed) => compressed,
        Err(PipelineError::Invalid(InvalidRequest::BudgetImpossible { budget, needed, .. })) => {
            prop_assert_ne!(request.budget, Budget::default(), "an automatic budget is impossible");
            prop_assert!(needed > budget, "{} tokens are needed, the budget is {}", needed, budget);
            request.budget = Budget::tokens(needed);
            match compress(&request) {
                Ok(compressed) => compressed,
                Err(e) => {
                    return Err(TestCaseError::fail(format!("a budget of {needed} is not enough: {e}")));
                }
            }
        }
        Err(e) => return Err(TestCaseError::fail(e.to_string())),
    };
    Ok((request, compressed))
}

// ---- properties ----

/// 1. Kept text is the caller's text, byte for byte and in the requested order. The text between is as
///    documented.
fn text_is_the_callers(request: &CompressRequest, found: &Compressed) -> Result<(), TestCaseError> {
    for span in found.chunks.iter().flat_map(|outcome| &outcome.spans) {
        let source = span.source.slice(&request.chunks[span.chunk].text);
        prop_assert_eq!(source, span.output.slice(&found.context));
    }
    for outcome in &found.chunks {
        let text = &request.chunks[outcome.index].text;
        prop_assert_eq!(outcome.kept, !outcome.spans.is_empty());
        let mut end = 0;
        for (position, span) in outcome.spans.iter().map(|span| span.source).enumerate() {
            prop_assert!(!span.is_empty());
            prop_assert!(if position == 0 { span.start >= end } else { span.start > end }, "spans touch");
            prop_assert!(text.is_char_boundary(span.start) && text.is_char_boundary(span.end));
            end = span.end;
        }
    }
    let rank = |outcome: &ChunkOutcome| (outcome.score.unwrap_or(f32::NEG_INFINITY), outcome.index);
    let order: Vec<_> = found.chunks.iter().map(rank).collect();
    let best_first = request.order == Order::Relevance && !found.degraded;
    let ordered = |a: (f32, usize), b: (f32, usize)| if best_first { a.0 >= b.0 } else { a.1 < b.1 };
    prop_assert!(order.windows(2).all(|pair| ordered(pair[0], pair[1])), "not in the requested order");
    // Titles, and marks in texts other than prose, are the only text of a context that `rewritten` does not know.
    let is_prose = |outcome: &ChunkOutcome| matches!(outcome.kind, None | Some(Kind::Prose));
    let is_known = match request.omissions {
        Omissions::None => true,
        Omissions::Auto => found.chunks.iter().all(is_prose),
        Omissions::Ellipsis | Omissions::Range => false,
    };
    if !request.titles && is_known {
        prop_assert_eq!(&found.context, &rewritten(request, found));
    }
    let mut spans =
        found.chunks.iter().flat_map(|outcome| outcome.spans.iter().map(|span| (outcome.index, span)));
    prop_assert!(spans.all(|(index, span)| span.chunk == index), "a span names another chunk");
    let outputs: Vec<_> =
        found.chunks.iter().flat_map(|outcome| &outcome.spans).map(|span| span.output).collect();
    prop_assert!(
        outputs.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "spans are not in the order of the context"
    );
    Ok(())
}

/// The context as the documentation of the formats describes it, built from the outcomes of the chunks.
fn rewritten(request: &CompressRequest, found: &Compressed) -> String {
    let escaped =
        |s: &str| s.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;");
    let tag = |separator: &str| found.marker_tag.map_or_else(String::new, |tag| format!("{separator}{tag}"));
    let kept = found.chunks.iter().filter(|outcome| outcome.kept).enumerate();
    let blocks = kept.map(|(position, outcome)| {
        let (marker, chunk) = (position + 1, &request.chunks[outcome.index]);
        let mut body = String::new();
        for (n, span) in outcome.spans.iter().map(|span| span.source).enumerate() {
            if n > 0 {
                let gap = &chunk.text[outcome.spans[n - 1].source.end..span.start];
                let separator = if gap.contains('\n') { "\n" } else { " " };
                let start = body.len();
                match request.omissions {
                    _ if gap.trim().is_empty() => body.push_str(separator),
                    Omissions::None => body.push('\n'),
                    _ => body.extend([separator, "…", separator]),
                }
                // A line keeps its indent, unless the gap would become longer by it.
                let indent = gap.rsplit_once('\n').map_or("", |(_, indent)| indent);
                let fits = body.len() - start + indent.len() <= gap.len();
                if fits && body.ends_with('\n') && indent.trim_matches([' ', '\t']).is_empty() {
                    body.push_str(indent);
                }
            }
            body.push_str(span.slice(&chunk.text));
        }
        let title = chunk.title.as_ref().map_or(String::new(), |t| format!(" title=\"{}\"", escaped(t)));
        match request.format {
            Format::Plain => body,
            Format::Numbered => format!("[{marker}{}] {body}", tag(":")),
            Format::Xml => {
                let (tag, id) = (tag("-"), escaped(&chunk.id));
                format!("<document{tag} index=\"{marker}\" id=\"{id}\"{title}>\n{body}\n</document{tag}>")
            }
        }
    });
    blocks.collect::<Vec<_>>().join("\n\n")
}

/// 2. The context is never larger than the budget or the input. Tokens are counted independently of the
///    pipeline.
fn size_is_bounded(request: &CompressRequest, found: &Compressed) -> Result<(), TestCaseError> {
    let usage = found.usage.expect("a response that is not degraded counts tokens");
    prop_assert_eq!(usage.tokens_out, count(request.tokenizer, &found.context));
    prop_assert!(usage.tokens_out <= usage.tokens_in);
    match request.budget.at_most {
        Some(AtMost::Tokens(tokens)) => prop_assert!(usage.tokens_out <= tokens),
        // A ratio of a short text may be less than any word has.
        Some(AtMost::Ratio(_))
            if found.warnings.iter().any(|found| matches!(found, Warning::UnitCut { .. })) => {}
        Some(AtMost::Ratio(ratio)) => prop_assert!(usage.tokens_out as f64 <= ratio * usage.tokens_in as f64),
        None => {}
    }
    if request.format == Format::Plain {
        let titled = |chunk: &Arc<Chunk>| match &chunk.title {
            Some(title) if request.titles => format!("{title}\n{}", chunk.text),
            _ => chunk.text.clone(),
        };
        let sent: Vec<String> = request.chunks.iter().map(titled).collect();
        prop_assert!(found.context.len() <= sent.join("\n\n").len());
    }
    Ok(())
}

fn count(tokenizer: TokenizerName, text: &str) -> usize {
    match tokenizer {
        TokenizerName::Model => TOKENIZER.encode(text).expect("bytes are tokens").ids.len(),
        TokenizerName::O200kBase => tiktoken_rs::o200k_base_singleton().encode_ordinary(text).len(),
        TokenizerName::Cl100kBase => tiktoken_rs::cl100k_base_singleton().encode_ordinary(text).len(),
    }
}

/// 3. Every span of the JSON response, cut from its text in its unit, is the text that the response gives for
///    it.
fn citations_cut_true(request: &CompressRequest, found: &Compressed) -> Result<(), TestCaseError> {
    for unit in UNITS {
        let answer = CompressAnswer::new(request, found.clone(), unit, Some(&PIPELINE));
        let answer = serde_json::to_value(&answer).expect("a response is JSON");
        let context = answer["context"].as_str().expect("text");
        let source = |id: &Value| &*request.chunks.iter().find(|c| id == &*c.id).expect("a chunk").text;
        let citations = list(&answer["citations"]);
        for citation in citations {
            let text = citation["text"].as_str().map(str::to_owned);
            prop_assert_eq!(&cut(source(&citation["chunk"]), &citation["source"], unit), &text);
            prop_assert_eq!(&cut(context, &citation["output"], unit), &text);
        }
        for chunk in list(&answer["chunks"]) {
            prop_assert!(context.contains(chunk["text"].as_str().expect("text")));
        }
        let pieces = |outcome: &ChunkOutcome| outcome.spans.len() + outcome.repeats.len();
        prop_assert_eq!(found.chunks.iter().map(pieces).sum::<usize>(), citations.len());
        if request.explain && !found.degraded {
            explanation_cuts(request, &answer["explain"], unit)?;
        }
    }
    Ok(())
}

fn explanation_cuts(
    request: &CompressRequest,
    explain: &Value,
    unit: OffsetUnit,
) -> Result<(), TestCaseError> {
    prop_assert!(list(&explain["query"]).iter().all(|range| cut(&request.query, range, unit).is_some()));
    prop_assert_eq!(list(&explain["chunks"]).len(), request.chunks.len());
    for (chunk, found) in request.chunks.iter().zip(list(&explain["chunks"])) {
        prop_assert!(list(&found["tokens"]).iter().all(|token| cut(&chunk.text, token, unit).is_some()));
        let anchors = list(&found["query"]).iter().map(|token| &token["source"]).filter(|at| !at.is_null());
        for anchor in anchors {
            prop_assert!(cut(&chunk.text, anchor, unit).is_some_and(|text| !text.is_empty()));
        }
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// The part of `text` from `start` to `end` of `range`, cut as a client that counts in `unit` would cut it.
fn cut(text: &str, range: &Value, unit: OffsetUnit) -> Option<String> {
    let at = |end: &str| range[end].as_u64().map(|n| n as usize);
    let (start, end) = (at("start")?, at("end")?);
    match unit {
        OffsetUnit::Byte => text.get(start..end).map(str::to_owned),
        OffsetUnit::Codepoint => text.chars().collect::<Vec<_>>().get(start..end).map(|c| c.iter().collect()),
        OffsetUnit::Utf16 => {
            String::from_utf16(text.encode_utf16().collect::<Vec<_>>().get(start..end)?).ok()
        }
    }
}

/// 4. Parts are in order, sources lie within their chunks, only text that the model has seen is cited, and
///    sentences that are attributed one by one have the same result.
fn attribution_holds(request: &AttributeRequest) -> Result<(), TestCaseError> {
    let cancel = Cancel::default();
    let found = match PIPELINE.attribute(request, &cancel) {
        Err(PipelineError::Invalid(InvalidRequest::SpansEmpty)) => return Ok(()),
        found => found.map_err(|error| TestCaseError::fail(error.to_string()))?,
    };
    for pair in found.parts.windows(2) {
        prop_assert!(pair[0].bytes.end <= pair[1].bytes.start);
    }
    for part in &found.parts {
        prop_assert!(request.answer.get(part.bytes.start..part.bytes.end).is_some());
        prop_assert!(part.support.is_none_or(|support| (0.0..=1.0).contains(&support)), "{:?}", part.support);
        prop_assert!(
            part.unsupported
                .iter()
                .all(|span| request.answer.get(span.bytes.start..span.bytes.end).is_some())
        );
        let may_be_cited = matches!(part.verdict, Verdict::Supported | Verdict::Partly | Verdict::Unjudged);
        let is_cited = part.citations().next().is_some();
        prop_assert!(may_be_cited || !is_cited, "{:?} is cited", part.verdict);
        prop_assert!(is_cited || part.verdict != Verdict::Supported, "supported by nothing");
        for source in &part.sources {
            let text = &request.chunks[source.chunk].text;
            prop_assert!(text.get(source.sentence.start..source.sentence.end).is_some_and(|s| !s.is_empty()));
            prop_assert!(source.sentence.start <= source.run.start && source.run.end <= source.sentence.end);
            prop_assert!(text.get(source.run.start..source.run.end).is_some());
            if let Some(seen) = &request.seen {
                let inside =
                    |seen: &ByteRange| seen.start <= source.sentence.start && source.sentence.end <= seen.end;
                prop_assert!(
                    seen[source.chunk].iter().any(inside),
                    "the model has not seen {:?}",
                    source.sentence
                );
            }
        }
    }
    Ok(())
}

/// 5. Every chunk is in the response once. A blank chunk is marked as empty. A chunk that the caller wants to
///    keep is whole.
fn nothing_is_dropped_silently(request: &CompressRequest, found: &Compressed) -> Result<(), TestCaseError> {
    let mut seen: Vec<_> = found.chunks.iter().map(|outcome| outcome.index).collect();
    seen.sort_unstable();
    prop_assert!(seen.into_iter().eq(0..request.chunks.len()));
    for outcome in &found.chunks {
        let chunk = &request.chunks[outcome.index];
        prop_assert_eq!(outcome.empty, chunk.text.trim().is_empty(), "{:?}", chunk.text);
        if request.keep.contains(&chunk.id) && !outcome.empty {
            let spans: Vec<_> =
                outcome.spans.iter().map(|span| (span.source.start, span.source.end)).collect();
            prop_assert_eq!(spans, vec![(0, chunk.text.len())]);
        }
    }
    Ok(())
}

/// A response without its timings and without the sources of its blocks.
fn without_timings(compressed: Compressed) -> Compressed {
    Compressed { timings: Timings::default(), sources: None, ..compressed }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_response_has_all_properties(request in request()) {
        let (request, found) = answered(request)?;
        text_is_the_callers(&request, &found)?;
        size_is_bounded(&request, &found)?;
        citations_cut_true(&request, &found)?;
        nothing_is_dropped_silently(&request, &found)?;
    }

    #[test]
    fn token_counts_from_blocks_equal_those_of_the_context_text(request in request()) {
        prop_assert!(WORD_TOKENIZER.splits_at_blanks() && !TOKENIZER.splits_at_blanks());
        let request = CompressRequest { tokenizer: TokenizerName::Model, ..request };
        // Questions without words and budgets that are too small are refused; other properties cover them.
        let Ok(found) = WORD_PIPELINE.compress(&request, &Cancel::default()) else { return Ok(()) };
        let usage = found.usage.expect("a response that is not degraded counts tokens");
        let written = WORD_TOKENIZER.encode(&found.context).expect("text is tokens").ids.len();
        prop_assert_eq!(usage.tokens_out, written);
    }

    #[test]
    fn a_request_has_the_same_response_on_any_number_of_threads(request in request()) {
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            pool.install(|| compress(&request)).map(without_timings).map_err(|e| e.to_string())
        };
        let first = on(1);
        prop_assert_eq!(&on(1), &first);
        prop_assert_eq!(&on(4), &first);
    }

    #[test]
    fn a_prepared_request_has_the_response_of_any_budget(request in request(), others in prop::collection::vec(request(), 1..4)) {
        let Ok(prepared) = PIPELINE.prepare(&request, &Cancel::default()) else { return Ok(()) };
        for budget in others.iter().map(|other| other.budget).chain([request.budget]) {
            let once = PIPELINE.compress(&CompressRequest { budget, ..request.clone() }, &Cancel::default());
            let again = PIPELINE.compress_prepared(&prepared, budget, &Cancel::default());
            let plain = |answer: Result<Compressed, PipelineError>| answer.map(without_timings).map_err(|e| e.to_string());
            prop_assert_eq!(plain(again), plain(once));
        }
    }

    #[test]
    fn cached_blocks_change_no_response(requests in prop::collection::vec(request(), 1..4)) {
        let warm = over(KvStore::new(Arc::new(Memory::default())), RequestLimits::default());
        for request in requests.iter().chain(&requests) {
            let answer = |pipeline: &Pipeline| pipeline.compress(request, &Cancel::default()).map(without_timings);
            let (warm, cold) = (answer(&warm), answer(&PIPELINE));
            prop_assert_eq!(warm.map_err(|e| e.to_string()), cold.map_err(|e| e.to_string()));
        }
    }

    #[test]
    fn a_chunk_has_the_same_block_alone_and_with_other_chunks(request in request()) {
        let read = |request: &CompressRequest| {
            PIPELINE.read(request, &Cancel::default(), &mut Clock::start()).expect("a reading").blocks
        };
        let beside = read(&request);
        for (chunk, block) in request.chunks.iter().zip(&beside.blocks) {
            let alone = read(&CompressRequest { chunks: vec![chunk.clone()], ..request.clone() });
            prop_assert_eq!(block.bytes(), alone.blocks[0].bytes());
        }
    }

    #[test]
    fn blocks_hold_every_token(request in request()) {
        let blocks = PIPELINE.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading").blocks;
        let mut start = 0;
        for ((chunk, block), span) in request.chunks.iter().zip(&blocks.blocks).zip(&blocks.spans) {
            let title = chunk.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
            let title = title.map_or(0, |title| count(TokenizerName::Model, &format!("{title}. ")));
            let text = count(TokenizerName::Model, &chunk.text);
            prop_assert_eq!((block.title_tokens(), block.text_tokens(), block.offsets().len()), (title, text, text));
            prop_assert_eq!((span.start, span.len()), (start, title + text));
            start = span.end;
        }
    }

    #[test]
    fn a_budget_for_everything_keeps_everything(request in request(), by_ratio in any::<bool>()) {
        let budget = if by_ratio { Budget::ratio(1.0) } else { Budget::tokens(1_000_000) };
        let request = CompressRequest { budget, related_only: false, ..request };
        let (_, found) = answered(request.clone())?;
        for outcome in &found.chunks {
            let text = &request.chunks[outcome.index].text;
            if outcome.repeats.is_empty() {
                let kept: String = outcome.spans.iter().map(|span| span.source.slice(text)).collect();
                prop_assert_eq!(kept.trim(), text.trim());
            } else {
                // What another chunk says is kept there.
                for repeat in &outcome.repeats {
                    prop_assert_eq!(repeat.output.slice(&found.context), repeat.source.slice(text));
                }
            }
        }
    }

    #[test]
    fn an_attribution_has_all_properties(
        answer in text(),
        chunks in chunks(),
        seen in any::<Option<u64>>(),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        format in select(&["native", "markers", "json"][..]),
        unit in select(&UNITS[..]),
    ) {
        prop_assume!(!answer.trim().is_empty());
        let mut bounds: Vec<usize> = at.iter().map(|at| answer.floor_char_boundary(at.index(answer.len() + 1))).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let spans = bounds.windows(2).step_by(2).map(|pair| ByteRange::new(pair[0], pair[1]));
        for parts in [Parts::Sentences, Parts::Words, Parts::Spans(spans.collect())] {
            let mut request = AttributeRequest { parts, ..AttributeRequest::new(answer.clone(), chunks.clone()) };
            // If there is a seed, the model has seen one half of each chunk.
            request.seen = seen.map(|seed| request.chunks.iter().map(|chunk| {
                let middle = chunk.text.floor_char_boundary(chunk.text.len() / 2);
                let (start, end) = if seed % 2 == 0 { (0, middle) } else { (middle, chunk.text.len()) };
                vec![ByteRange::new(start, end)]
            }).collect());
            attribution_holds(&request)?;
        }
        let unit_name = match unit { OffsetUnit::Byte => "byte", OffsetUnit::Codepoint => "codepoint", OffsetUnit::Utf16 => "utf16" };
        let body = serde_json::json!({
            "answer": answer, "format": format, "offsets": unit_name,
            "chunks": chunks.iter().map(|c| serde_json::json!({"id": c.id, "title": c.title, "text": c.text})).collect::<Vec<_>>(),
        });
        let limits = BodyLimits::default();
        let body: AttributeBody = thresher::api::parse(body.to_string().as_bytes(), &limits).expect("a request");
        let (request, options) = body.into_domain(None, &limits).expect("a request");
        let found = PIPELINE.attribute(&request, &Cancel::default());
        let found = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let response = AttributeAnswer::new(&request, &found, &options, &PIPELINE, ChunkNumbers::default());
        let response = serde_json::to_value(&response).expect("JSON");
        for part in list(&response["parts"]) {
            prop_assert_eq!(cut(&answer, part, unit), part["text"].as_str().map(str::to_owned));
            for source in list(&part["sources"]) {
                let text = &chunks[source["index"].as_u64().expect("an index") as usize].text;
                for range in ["sentence", "run"] {
                    let quoted = source[range]["text"].as_str().map(str::to_owned);
                    prop_assert_eq!(cut(text, &source[range], unit), quoted);
                }
            }
        }
    }

    #[test]
    fn passthrough_returns_every_chunk_whole_and_is_marked_as_degraded(request in request()) {
        let found = passthrough(&request, Duration::ZERO);
        prop_assert!(found.degraded);
        prop_assert!(found.usage.is_none() && found.relevance.is_none());
        for (index, (outcome, chunk)) in found.chunks.iter().zip(&request.chunks).enumerate() {
            prop_assert_eq!(outcome.index, index);
            let whole: Vec<_> = outcome.spans.iter().map(|span| span.source.slice(&chunk.text)).collect();
            prop_assert_eq!(whole.concat(), &*chunk.text);
            prop_assert_eq!(outcome.empty, chunk.text.trim().is_empty());
        }
        prop_assert_eq!(found.chunks.len(), request.chunks.len());
        text_is_the_callers(&request, &found)?;
        citations_cut_true(&request, &found)?;
    }
}

// ---- tables ----

/// What may stand between two kept parts of a chunk besides blanks and the source's comma: a mark, alone or in a comment.
fn is_mark(between: &str) -> bool {
    let mut rest = between.trim();
    for opening in ["<!--", "//", "--", "#", ";", "["] {
        rest = rest.strip_prefix(opening).unwrap_or(rest).trim_start();
    }
    for ending in ["-->", "]"] {
        rest = rest.strip_suffix(ending).unwrap_or(rest).trim_end();
    }
    let Some(count) = rest.strip_prefix('…') else { return rest.is_empty() };
    let words: Vec<&str> = count.split_whitespace().collect();
    match words[..] {
        [] => true,
        [number, what] => {
            number.parse::<usize>().is_ok() && ["line", "lines", "item", "items"].contains(&what)
        }
        _ => false,
    }
}

/// Asserts that a context without its marks, titles and frames is a sequence of substrings of its sources, in order.
fn is_word_for_word(request: &CompressRequest, found: &Compressed) {
    for outcome in found.chunks.iter().filter(|outcome| outcome.kept) {
        let text = &request.chunks[outcome.index].text;
        for pair in outcome.spans.windows(2) {
            let between = &found.context[pair[0].output.end..pair[1].output.start];
            let source = &text[pair[0].source.end..pair[1].source.start];
            let comma = between.trim_start().starts_with(',') && source.trim_start().starts_with(',');
            let rest = if comma { between.trim_start().trim_start_matches(',') } else { between };
            assert!(is_mark(rest), "{between:?} stands for {source:?} in:\n{}", found.context);
        }
    }
}

#[test]
fn contexts_of_every_kind_are_word_for_word() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kinds")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let set = std::fs::read_to_string(&path).expect("a set");
        for line in set.lines() {
            let row: Value = serde_json::from_str(line).expect("JSON");
            let chunk = |chunk: &Value| {
                let of = |key: &str| chunk[key].as_str().map(str::to_owned);
                Chunk {
                    title: of("title"),
                    ..Chunk::new(of("id").unwrap_or_default(), of("text").expect("a text"))
                }
            };
            let chunks: Vec<Chunk> = list(&row["chunks"]).iter().map(chunk).collect();
            let query = list(&row["questions"])[0]["query"].as_str().expect("a question");
            for ratio in [0.1, 0.25, 0.5, 0.8] {
                let chunks = chunks.clone();
                let request =
                    CompressRequest { budget: Budget::ratio(ratio), ..CompressRequest::new(query, chunks) };
                let found = WORD_PIPELINE.compress(&request, &Cancel::default()).expect("a context");
                text_is_the_callers(&request, &found).expect("the caller's text");
                is_word_for_word(&request, &found);
            }
        }
    }
}

#[test]
fn a_least_length_is_reached_by_what_the_text_has() {
    let text =
        "The tide rises at noon. Rain fell on the old harbour for days. The moon is far away. ".repeat(6);
    for tokenizer in [TokenizerName::Model, TokenizerName::O200kBase] {
        let request =
            CompressRequest { tokenizer, ..plain("When does the tide rise?", &[&text], Budget::default()) };
        let prepared = PIPELINE.prepare(&request, &Cancel::default()).expect("prepared");
        let all = count(tokenizer, text.trim());
        for least in [1, 20, all / 2, all, 10 * all] {
            let budget = Budget { at_least: least, ..Budget::coverage(0.5) };
            let found = PIPELINE.compress_prepared(&prepared, budget, &Cancel::default()).expect("a context");
            let tokens = found.usage.expect("counted").tokens_out;
            assert!(tokens >= least.min(all), "{tokenizer:?}: {tokens} of {least}, {all}");
            // The budget is raised in steps of at most 192 tokens.
            assert!(tokens <= least + 256 || least > all, "{tokenizer:?}: {tokens} for {least}");
        }
    }
}

fn plain(query: &str, texts: &[&str], budget: Budget) -> CompressRequest {
    let chunk = |(i, text): (usize, &&str)| Chunk::new(i.to_string(), *text);
    let chunks = texts.iter().enumerate().map(chunk).collect();
    let (titles, omissions) = (false, Omissions::None);
    CompressRequest { budget, titles, omissions, ..CompressRequest::new(query, chunks) }
}

#[track_caller]
fn check(name: &str, request: CompressRequest) {
    let all = || {
        let (request, found) = answered(request)?;
        text_is_the_callers(&request, &found)?;
        size_is_bounded(&request, &found)?;
        citations_cut_true(&request, &found)?;
        nothing_is_dropped_silently(&request, &found)
    };
    if let Err(broken) = all() {
        panic!("{name}: {broken}");
    }
}

#[test]
fn requests_that_failed_before() {
    let base = || plain("tide?", &["."], Budget::tokens(1));
    check("the budget that an error names is enough", base());
    let (o200k, plain_text) = (TokenizerName::O200kBase, Format::Plain);
    let whole =
        CompressRequest { budget: Budget::ratio(1.0), tokenizer: o200k, format: plain_text, ..base() };
    check("a full stop and a line break are one token", whole);
    let titled = Chunk { title: Some("tide?".to_owned()), ..Chunk::new("t", "\n") };
    let mut empty_first = plain("tide?", &["A coast.", "Nothing."], Budget::default());
    empty_first.chunks.insert(0, Arc::new(titled));
    check(
        "an empty chunk is last in the order of relevance",
        CompressRequest { order: Order::Relevance, ..empty_first },
    );
}

#[test]
fn a_single_word_of_300_kb_is_compressed_with_every_option() {
    let word = "ab".repeat(150_000);
    let wide = "潮".repeat(100_000);
    let limits = RequestLimits { input_tokens_max: 1_000_000, ..RequestLimits::default() };
    let pipeline = pipeline(limits);
    for granularity in GRANULARITIES {
        for tokenizer in TOKENIZERS {
            for text in [&*word, &*wide] {
                let request = plain("tide", &[text, "The tide rises."], Budget::tokens(5_000));
                let request = CompressRequest { granularity, tokenizer, ..request };
                let found = pipeline.compress(&request, &Cancel::default());
                let found = found.unwrap_or_else(|e| panic!("{granularity:?}, {tokenizer:?}: {e}"));
                let whole = |()| size_is_bounded(&request, &found);
                text_is_the_callers(&request, &found).and_then(whole).expect("the properties hold");
                nothing_is_dropped_silently(&request, &found).expect("no chunk is missing");
            }
        }
    }
}

#[test]
fn the_smallest_texts_are_compressed_with_every_option() {
    for text in HOSTILE {
        for granularity in GRANULARITIES {
            for format in FORMATS {
                for tokenizer in TOKENIZERS {
                    for budget in
                        [Budget::default(), Budget::tokens(1), Budget::ratio(0.5), Budget::ratio(1.0)]
                    {
                        let request = plain("tide?", &[text, "", text, " "], budget);
                        let name =
                            format!("{text:?}, {granularity:?}, {format:?}, {tokenizer:?}, {budget:?}");
                        check(&name, CompressRequest { granularity, format, tokenizer, ..request });
                    }
                }
            }
        }
    }
}

/// The tokenizer reads a long text in pieces; the library reads it at once.
#[test]
fn a_long_text_has_the_same_tokens_in_pieces() {
    let path = crate::support::model_dir().join("tokenizer.json");
    let mut whole = tokenizers::Tokenizer::from_file(path).expect("the default model's tokenizer");
    whole.with_padding(None);
    whole.with_truncation(None).expect("removed");
    whole.set_encode_special_tokens(true);
    let prose =
        "Größe: 3.5 m — the tide's at noon… [SEP] 東京都 isn’t far; see (a||b) && \\\\\\.\n".repeat(4_000);
    for text in [
        prose,
        "\\".repeat(200_000),
        "ab,".repeat(60_000),
        "x".repeat(200_000),
        format!("{}é", "ée ".repeat(50_000)),
    ] {
        let found = WORD_TOKENIZER.encode(&text).expect("tokens");
        let expect = whole.encode(&*text, false).expect("tokens");
        assert!(found.ids == expect.get_ids(), "{}", &text[..20]);
        let offsets = found.offsets.iter().map(|range| (range.start, range.end));
        assert!(offsets.eq(expect.get_offsets().iter().copied()), "{}", &text[..20]);
    }
}
