//! Answers in time: when a request takes the best answer that its deadline allows, chunks are read in the order of a
//! cheap score, as long as there is time, and the others stay unread.
//!
//! Cached chunks are taken first, from every tier. The others are read in rounds. Before each round, a plan says how many of
//! the next chunks fit into half of the time that is left, at the speed that was measured; then the round reads all of them,
//! as any request reads its chunks. The halves keep a wrong estimate, and chunks that other requests wait for, too, from
//! taking the time of the answer: a chunk that is being read for somebody else is not interrupted. For the same reason, a
//! chunk that does not fit into the time at all is passed over. The order does not depend on the time, so that no
//! chunk is lost by waiting longer.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::PipelineError;
use super::blocks::{BlockMemory, Blocks, Reader};
use super::cancel::Cancel;
use super::outcome::{ChunkOutcome, Compressed, Warning};
use crate::domain::{Chunk, CompressRequest, Order};
use crate::kv::block::Block;
use crate::kv::store::BlockOrigins;
use crate::text;

/// The share of a request's time that is kept for what follows the reading.
const RESERVE_SHARE: f64 = 0.15;

/// The least and the most time that is kept for what follows the reading.
const RESERVE_MIN: Duration = Duration::from_millis(30);
const RESERVE_MAX: Duration = Duration::from_secs(2);

/// A request with those of its chunks that were read in time.
pub struct InTime<'a> {
    /// The request with the chunks that were read.
    pub request: Cow<'a, CompressRequest>,
    pub blocks: Blocks,
    /// `[chunk]`: the index in the caller's request of each chunk that was read.
    indices: Vec<usize>,
    all: &'a [Arc<Chunk>],
}

struct Read {
    /// `[chunk]`: the blocks that were found or read.
    by_chunk: Vec<Option<Block>>,
    sources: BlockOrigins,
    tokens: usize,
}

impl Read {
    /// Adds what was found of `chunks`. Returns the chunks without a block.
    fn add(
        &mut self,
        chunks: Vec<usize>,
        found: impl IntoIterator<Item = Option<Block>>,
        sources: BlockOrigins,
    ) -> Vec<usize> {
        self.sources += sources;
        let mut unread = Vec::new();
        for (chunk, block) in chunks.into_iter().zip(found) {
            match block {
                Some(block) => {
                    self.tokens += block.tokens();
                    self.by_chunk[chunk] = Some(block);
                }
                None => unread.push(chunk),
            }
        }
        unread
    }
}

/// Returns the time at which reading has to end, for a request that has until `deadline`. `to_end` is the time that the
/// model needs for what it does not interrupt. At least half of the time is for reading.
pub fn read_until(deadline: Instant, to_end: Duration) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    let reserve = left.mul_f64(RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX) + to_end;
    deadline.checked_sub(reserve.min(left / 2)).unwrap_or(deadline)
}

/// Returns the indices of the chunks in the order in which they are read: first those that the request keeps whole,
/// then by the rarity of the question's words that a chunk has, per the root of its number of words, best first.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn reading_order(request: &CompressRequest, cancel: &Cancel) -> Result<Vec<usize>, PipelineError> {
    let words = |text: &str| text::terms(text, &[]).into_iter().map(|term| term.folded);
    let question: HashSet<String> = words(&request.query).collect();
    let found: Vec<(HashSet<String>, usize)> = request
        .chunks
        .par_iter()
        .map(|chunk| {
            cancel.check()?;
            let (mut shared, mut count) = (HashSet::new(), 0);
            let title = chunk.title.as_deref().unwrap_or_default();
            for word in words(title).chain(words(&chunk.text)) {
                count += 1;
                if question.contains(&word) {
                    shared.insert(word);
                }
            }
            Ok((shared, count))
        })
        .collect::<Result<_, PipelineError>>()?;
    let mut chunks_with: HashMap<&String, usize> = HashMap::new();
    found.iter().flat_map(|(shared, _)| shared).for_each(|word| *chunks_with.entry(word).or_default() += 1);
    let rarity = |word: &String| (1.0 + request.chunks.len() as f64 / chunks_with[word] as f64).ln();
    let score = |(shared, count): &(HashSet<String>, usize)| {
        // Summed in a fixed order, so that equal requests have equal orders.
        let mut rarities: Vec<f64> = shared.iter().map(rarity).collect();
        rarities.sort_by(f64::total_cmp);
        rarities.iter().sum::<f64>() / (1.0 + *count as f64).sqrt().sqrt()
    };
    let kept: HashSet<&String> = request.keep.iter().collect();
    let rank: Vec<(bool, f64)> = (found.iter().zip(&request.chunks))
        .map(|(found, chunk)| (kept.contains(&chunk.id), score(found)))
        .collect();
    let mut order: Vec<usize> = (0..request.chunks.len()).collect();
    order.sort_by(|&a, &b| rank[b].0.cmp(&rank[a].0).then(rank[b].1.total_cmp(&rank[a].1)));
    Ok(order)
}

impl<'a> InTime<'a> {
    /// Returns the request with the chunks that are cached, or that are read before `until`, in the order `order`.
    ///
    /// # Errors
    /// Fails as [`Reader::blocks`] does; with [`PipelineError::DeadlineExceeded`] only if no chunk is read in time, or not
    /// one that the request keeps whole.
    pub fn read(
        request: &'a CompressRequest,
        order: Vec<usize>,
        reader: &Reader,
        until: Instant,
        cancel: &Cancel,
    ) -> Result<Self, PipelineError> {
        let reading = cancel.until(until);
        let chunks = |indices: &[usize]| -> Vec<Arc<Chunk>> {
            indices.iter().map(|&chunk| Arc::clone(&request.chunks[chunk])).collect()
        };
        let memory = reader.memory_for(&request.chunks, &reading)?;
        let (found, sources) = reader.cached_blocks(&chunks(&order), Some((&memory, 0)), &reading);
        let by_chunk = vec![None; request.chunks.len()];
        let mut read = Read { by_chunk, sources: BlockOrigins::default(), tokens: 0 };
        let mut unread = read.add(order, found, sources);
        cancel.spend(read.tokens);
        let mut refusal = PipelineError::DeadlineExceeded;
        loop {
            let time = until.saturating_duration_since(Instant::now());
            unread.retain(|&chunk| reader.time_to_read(request.chunks[chunk].text.len()) <= time);
            // One chunk may take all of the time.
            let count = reader.count_within(&chunks(&unread), time / 2).max(1);
            if unread.is_empty() || time.is_zero() {
                break;
            }
            let later = unread.split_off(count.min(unread.len()));
            match reader.blocks_if_in_time(&chunks(&unread), (Arc::clone(&memory), read.tokens), &reading) {
                Ok(blocks) => {
                    read.add(unread, blocks.blocks.into_iter().map(Some), blocks.sources);
                }
                Err(error @ (PipelineError::DeadlineExceeded | PipelineError::MemoryTaken)) => {
                    // The round has read some of its chunks, which are cached now. Their tokens are spent.
                    let in_memory = Some((&*memory, read.tokens));
                    let (found, sources) = reader.cached_blocks(&chunks(&unread), in_memory, cancel);
                    refusal = error;
                    read.add(unread, found, sources);
                    break;
                }
                Err(error) => return Err(error),
            }
            unread = later;
        }
        cancel.check()?;
        reader.free_rest(read.tokens, &memory);
        Self::new(request, read.by_chunk, read.sources, memory).ok_or(refusal)
    }

    /// Returns the request with the chunks that have a block, `[chunk]`. Returns `None` if there is none, or if a chunk has
    /// none that the request keeps whole.
    fn new(
        request: &'a CompressRequest,
        by_chunk: Vec<Option<Block>>,
        sources: BlockOrigins,
        memory: Arc<BlockMemory>,
    ) -> Option<Self> {
        let kept: HashSet<&String> = request.keep.iter().collect();
        let is_missing =
            |(chunk, block): (&Arc<Chunk>, &Option<Block>)| block.is_none() && kept.contains(&chunk.id);
        if request.chunks.iter().zip(&by_chunk).any(is_missing) {
            return None;
        }
        let indices: Vec<usize> = (0..by_chunk.len()).filter(|&chunk| by_chunk[chunk].is_some()).collect();
        if indices.is_empty() {
            return None;
        }
        let blocks = Blocks::new(by_chunk.into_iter().flatten().collect(), sources, Some(memory));
        let read = if indices.len() == request.chunks.len() {
            Cow::Borrowed(request)
        } else {
            let chunks = indices.iter().map(|&chunk| Arc::clone(&request.chunks[chunk])).collect();
            Cow::Owned(CompressRequest { chunks, ..request.clone() })
        };
        Some(Self { request: read, blocks, indices, all: &request.chunks })
    }

    /// Changes a result from the chunks that were read to all chunks, and marks the others as unread.
    pub fn result(self, mut compressed: Compressed) -> Compressed {
        if self.indices.len() == self.all.len() {
            return compressed;
        }
        for outcome in &mut compressed.chunks {
            outcome.index = self.indices[outcome.index];
            outcome.spans.iter_mut().chain(&mut outcome.repeats).for_each(|span| span.chunk = outcome.index);
        }
        if let Some(answerable) = &mut compressed.answerable {
            answerable.chunk = self.indices[answerable.chunk];
        }
        for warning in &mut compressed.warnings {
            match warning {
                Warning::RowsLeftOut { chunk }
                | Warning::GroupCut { chunk }
                | Warning::UnitCut { chunk }
                | Warning::KindUnfit { chunk, .. } => *chunk = self.indices[*chunk],
                Warning::CoverageNotPromised(_)
                | Warning::CoverageCut { .. }
                | Warning::ScriptUnknown
                | Warning::QuestionShortened { .. }
                | Warning::Unread { .. } => {}
            }
        }
        if let Some(explanation) = &mut compressed.explanation {
            let mut of_read = std::mem::take(&mut explanation.chunks).into_iter();
            let is_read = |chunk: usize| self.indices.binary_search(&chunk).is_ok();
            let of_chunk = |chunk| if is_read(chunk) { of_read.next() } else { None };
            explanation.chunks = (0..self.all.len()).map(of_chunk).map(Option::unwrap_or_default).collect();
        }
        let is_unread = |chunk: &usize| self.indices.binary_search(chunk).is_err();
        let unread: Vec<usize> = (0..self.all.len()).filter(is_unread).collect();
        compressed.warnings.push(Warning::Unread { chunks: unread.len(), of: self.all.len() });
        compressed.chunks.extend(unread.into_iter().map(|index| ChunkOutcome {
            index,
            kept: false,
            empty: self.all[index].text.trim().is_empty(),
            unread: true,
            kind: None,
            lang: None,
            score: None,
            relevance: None,
            spans: Vec::new(),
            repeats: Vec::new(),
        }));
        if self.request.order == Order::Input {
            compressed.chunks.sort_by_key(|outcome| outcome.index);
        }
        compressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Tenant;
    use crate::kv::codec::Codec;
    use crate::kv::store::KvStore;
    use crate::model::scripted::ScriptedModel;
    use crate::pipeline::validate::RequestLimits;

    #[test]
    fn chunks_with_the_rare_words_of_the_question_are_read_first_and_kept_ones_before_them() {
        let chunks =
            ["The moon is far.", "Rain fell on the sea.", "The sea has tides.", "A tide table of the sea."];
        let chunk = |(at, text): (usize, &&str)| Chunk::new(at.to_string(), *text);
        let chunks: Vec<Chunk> = chunks.iter().enumerate().map(chunk).collect();
        let mut request = CompressRequest::new("When is the tide at sea?", chunks);
        let order =
            |request: &CompressRequest| reading_order(request, &Cancel::default()).expect("no deadline");
        assert_eq!(order(&request)[0], 3);
        request.keep = vec!["1".to_owned()];
        assert_eq!(order(&request)[..2], [1, 3]);
    }

    #[test]
    fn chunks_that_fit_are_read_beside_other_requests_and_one_that_does_not_is_passed_over() {
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide"]));
        let (model, store) = (Arc::new(ScriptedModel::new(4)), Arc::new(KvStore::without_tiers()));
        let reader = Reader::new(model, tokenizer, store, Codec::Int8, RequestLimits::default());
        // Another request of the tenant has twice the text to read that there is time for.
        let reader = reader.with_speed(10_000.0);
        let time_left = Some(Duration::from_secs(60));
        let _other = reader.load().begin(&Tenant::default(), 200_000, time_left).expect("the only read");
        let texts = ["tide ".repeat(100_000), "tide ".repeat(50), "tide ".repeat(60)];
        let chunk = |(at, text): (usize, &String)| Chunk::new(at.to_string(), text.as_str());
        let request = CompressRequest::new("tide", texts.iter().enumerate().map(chunk).collect());
        let until = Instant::now() + Duration::from_secs(10);
        let cancel = Cancel::default();
        let read = InTime::read(&request, vec![0, 1, 2], &reader, until, &cancel).expect("in time");
        assert_eq!(read.indices, [1, 2]);
        assert_eq!(cancel.spent(), read.blocks.tokens(), "every token is counted once");
    }

    #[test]
    fn reading_ends_before_the_deadline() {
        let now = Instant::now();
        for (left_ms, to_end_ms, least_ms, most_ms) in [
            (10_000, 100, 1_500, 1_600),
            (1_000, 100, 200, 250),
            (200, 1_000, 50, 100),
            (20_000, 0, 1_900, 2_000),
        ] {
            let deadline = now + Duration::from_millis(left_ms);
            let reserve = deadline - read_until(deadline, Duration::from_millis(to_end_ms));
            let bounds = Duration::from_millis(least_ms)..=Duration::from_millis(most_ms);
            assert!(bounds.contains(&reserve), "{left_ms}: {reserve:?}");
        }
    }
}
