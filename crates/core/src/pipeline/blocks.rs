//! The blocks stage: returns the block of each chunk, from the cache or by having the model read the chunk.
//! The model reads each window of a chunk on its own, so a block does not depend on other chunks. Knows
//! nothing of questions.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ndarray::{Array3, ArrayView3, s};
use rayon::prelude::*;

use super::PipelineError;
use super::cancel::{Cancel, Holding};
use super::load::{LoadEstimator, OngoingRead};
use super::tokenize::{self, TokenizedChunk};
use super::validate::RequestLimits;
use crate::domain::{Chunk, Tenant, TokenSpan};
use crate::kv::block::{BadBlock, Block, BlockEncoder, TokenCounts};
use crate::kv::codec::{Codec, LANES};
use crate::kv::key::{BlockKey, KeySpace, TenantTag};
use crate::kv::store::{BlockOrigin, BlockOrigins, KvStore, PendingChunk, Unread};
use crate::memory::{MemoryPermit, MemoryPool, Sharer};
use crate::model::tokenizer::{self, ModelTokenizer};
use crate::model::{ModelInfo, ModelRuntime};
use crate::text;

/// How many bytes of text are read to measure the model's speed, if there may be no time for all.
const BYTES_TO_MEASURE: usize = 16 * 1024;

/// How many windows a worker has at most, that it reads and that wait for it, and the tokens of a window that
/// [`Reader::time_to_end`] estimates, and their bytes: most chunks are shorter than the windows of models with long
/// ones.
const WINDOWS_PER_WORKER: u32 = 3;
const WINDOW_TOKENS_USUAL_MAX: usize = 512;
const BYTES_PER_TOKEN: usize = 4;

/// Bytes of text for which memory for one token is taken before the text is tokenized, and tokens that every chunk has
/// besides. Prose has four or five bytes per token.
const BYTES_PER_TOKEN_MIN: usize = 3;
const TOKENS_PER_CHUNK_MIN: usize = 4;

/// The blocks of all chunks of a request. Their tokens follow each other on one key axis.
#[derive(Debug, Clone)]
pub struct Blocks {
    /// `[chunk]`: the block of each chunk.
    pub blocks: Vec<Block>,
    /// `[chunk]`: the tokens of each chunk on the key axis, those of its title first.
    pub spans: Vec<TokenSpan>,
    pub sources: BlockOrigins,
    /// The memory of the blocks, in a pool of their reader; `None` if it is counted elsewhere.
    pub memory: Option<Arc<BlockMemory>>,
}

/// Memory for the blocks of a request. Dropping it frees the memory.
#[derive(Debug)]
pub struct BlockMemory {
    permit: Mutex<MemoryPermit>,
    /// Tells the request that it holds memory.
    _holding: Holding,
}

impl Blocks {
    /// Returns the blocks with their tokens on one key axis, in the order given.
    pub fn new(blocks: Vec<Block>, sources: BlockOrigins, memory: Option<Arc<BlockMemory>>) -> Self {
        let mut start = 0;
        let span = |block: &Block| {
            let span = TokenSpan::new(start, start + block.tokens());
            start = span.end;
            span
        };
        let spans = blocks.iter().map(span).collect();
        Self { blocks, spans, sources, memory }
    }

    /// Returns the blocks that these have without those of chunk `index`, in the same memory.
    #[must_use]
    pub fn without(&self, index: usize) -> Self {
        let mut blocks = self.blocks.clone();
        blocks.remove(index);
        Self::new(blocks, self.sources, self.memory.clone())
    }

    /// Returns the blocks with their memory freed in the pool, for an owner that counts it.
    #[must_use]
    pub fn counted_elsewhere(self) -> Self {
        Self { memory: None, ..self }
    }

    /// Returns the number of tokens in all chunks, which is the length of the key axis.
    pub fn tokens(&self) -> usize {
        self.spans.last().map_or(0, |last| last.end)
    }
}

/// Finds the blocks of chunks in the store, and has the model read missing ones, for one tenant. Concurrent
/// requests for the same chunk have it read once.
pub struct Reader {
    model: Arc<dyn ModelRuntime>,
    tokenizer: Arc<ModelTokenizer>,
    store: Arc<KvStore>,
    codec: Codec,
    keys: KeySpace,
    tenant: Tenant,
    /// Shared by all tenants of the model.
    load: Arc<LoadEstimator>,
    token_bytes: usize,
    limits: RequestLimits,
    /// Memory for the blocks of all requests, and of all streams, shared by all tenants.
    memory: MemoryPool,
    memory_of_streams: MemoryPool,
    /// The tenants that have readers, besides the default one.
    tenants: Arc<AtomicUsize>,
}

/// What a request's reads are to the load of the model.
struct ReadLoad<'a> {
    ongoing: OnceCell<OngoingRead<'a>>,
    /// The time for which the request may be refused; `None`: it is not.
    time_left: Option<Duration>,
}

impl Reader {
    /// Returns a reader for the default tenant.
    pub fn new(
        model: Arc<dyn ModelRuntime>,
        tokenizer: Arc<ModelTokenizer>,
        store: Arc<KvStore>,
        codec: Codec,
        limits: RequestLimits,
    ) -> Self {
        let info = model.info();
        let tenant = Tenant::default();
        let keys = key_space(info, codec, &tenant);
        let scale_bytes = if codec.is_quantized() { 4 } else { 0 };
        let key_bytes = codec.head_bytes(LANES, info.head_dim) / LANES;
        let token_bytes = info.planes * (key_bytes + scale_bytes);
        let load = Arc::default();
        let memory = MemoryPool::new(limits.block_bytes_max);
        let memory_of_streams = MemoryPool::new(limits.stream_block_bytes_max);
        Self {
            model,
            tokenizer,
            store,
            codec,
            keys,
            tenant,
            load,
            token_bytes,
            limits,
            memory,
            memory_of_streams,
            tenants: Arc::default(),
        }
    }

    /// Returns this reader with a known speed of the model.
    #[cfg(test)]
    pub fn with_speed(self, bytes_per_s: f64) -> Self {
        Self { load: Arc::new(LoadEstimator::with_speed(bytes_per_s)), ..self }
    }

    #[cfg(test)]
    pub fn load(&self) -> &LoadEstimator {
        &self.load
    }

    /// Returns a reader for another tenant, which reads with `model`, the tenant's own share of the model. It
    /// neither finds blocks of other tenants nor waits for reads of theirs.
    pub fn of_tenant(&self, tenant: &Tenant, model: Arc<dyn ModelRuntime>) -> Self {
        self.tenants.fetch_add(1, Ordering::Relaxed);
        Self {
            keys: key_space(model.info(), self.codec, tenant),
            model,
            tokenizer: Arc::clone(&self.tokenizer),
            store: Arc::clone(&self.store),
            codec: self.codec,
            tenant: tenant.clone(),
            load: Arc::clone(&self.load),
            token_bytes: self.token_bytes,
            limits: self.limits,
            memory: self.memory.clone(),
            memory_of_streams: self.memory_of_streams.clone(),
            tenants: Arc::clone(&self.tenants),
        }
    }

    /// Returns the blocks of `chunks`, in this order.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] if the chunks have more tokens than the limits allow, [`PipelineError::MemoryTaken`],
    /// [`PipelineError::Overloaded`] if new chunks could not be read before the deadline, the error of
    /// `cancel` if it stops the work, and [`PipelineError::Model`] if the model or its tokenizer fails.
    pub fn blocks(&self, chunks: &[Arc<Chunk>], cancel: &Cancel) -> Result<Blocks, PipelineError> {
        let memory = self.memory_for(chunks, cancel)?;
        let blocks =
            self.checked_blocks(chunks, None, (Arc::clone(&memory), 0), cancel, cancel.time_left())?;
        self.free_rest(blocks.tokens(), &memory);
        Ok(blocks)
    }

    /// As [`Self::blocks`], with memory from [`Self::memory_for`], in which there are `tokens_before` tokens; the request
    /// takes what there is time for, so it is not refused for what other requests read.
    ///
    /// # Errors
    /// Fails as [`Self::blocks`] does, but for [`PipelineError::Overloaded`].
    pub fn blocks_if_in_time(
        &self,
        chunks: &[Arc<Chunk>],
        (memory, tokens_before): (Arc<BlockMemory>, usize),
        cancel: &Cancel,
    ) -> Result<Blocks, PipelineError> {
        self.checked_blocks(chunks, None, (memory, tokens_before), cancel, None)
    }

    /// Waits for memory for the blocks of `chunks`, as many bytes as they probably have. A request does not wait for more
    /// while it has some, because two such requests would wait for each other.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work, and [`PipelineError::MemoryTaken`] if the request holds memory
    /// and there is not enough for more.
    pub fn memory_for(
        &self,
        chunks: &[Arc<Chunk>],
        cancel: &Cancel,
    ) -> Result<Arc<BlockMemory>, PipelineError> {
        let text_bytes =
            |chunk: &Arc<Chunk>| chunk.text.len() + chunk.title.as_ref().map_or(0, |title| title.len());
        let text_bytes: usize = chunks.iter().map(text_bytes).sum();
        let tokens = text_bytes / BYTES_PER_TOKEN_MIN + chunks.len() * TOKENS_PER_CHUNK_MIN;
        let bytes = tokens.saturating_mul(self.token_bytes).min(self.limits.block_bytes_max);
        let permit = if cancel.holds_memory() {
            self.memory.try_take(self.sharer(), bytes).map_err(|_| PipelineError::MemoryTaken)?
        } else {
            self.memory.take_blocking(self.sharer(), bytes, || cancel.check())?
        };
        Ok(Arc::new(BlockMemory { permit: Mutex::new(permit), _holding: cancel.hold_memory() }))
    }

    /// Checks that the blocks of a request may have so many tokens, and takes more memory for them if they need it.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] if they have more than the limits allow, and [`PipelineError::MemoryTaken`] if
    /// other requests have the memory.
    pub fn take_for(&self, tokens: usize, memory: &BlockMemory) -> Result<(), PipelineError> {
        self.limits.check_tokens(tokens, self.token_bytes)?;
        let mut held = memory.permit.lock().expect("taking memory does not panic");
        let more = (tokens * self.token_bytes).saturating_sub(held.bytes());
        if more > 0 {
            let taken = self.memory.try_take(self.sharer(), more);
            held.merge(taken.map_err(|_| PipelineError::MemoryTaken)?);
        }
        Ok(())
    }

    /// Frees what was taken for more tokens than so many.
    pub fn free_rest(&self, tokens: usize, memory: &BlockMemory) {
        let mut held = memory.permit.lock().expect("freeing memory does not panic");
        let rest = held.bytes().saturating_sub(tokens * self.token_bytes);
        drop(held.split(rest));
    }

    /// Returns blocks that are kept for the length of a stream, which has a client's pace: in memory of their own, so that
    /// requests do not wait for it.
    ///
    /// # Errors
    /// Returns [`PipelineError::MemoryTaken`] if other streams have the memory.
    pub fn for_stream(&self, blocks: Blocks) -> Result<Blocks, PipelineError> {
        let taken = self.memory_of_streams.try_take(self.sharer(), blocks.tokens() * self.token_bytes);
        let permit = Mutex::new(taken.map_err(|_| PipelineError::MemoryTaken)?);
        let memory = Some(Arc::new(BlockMemory { permit, _holding: Holding::default() }));
        Ok(Blocks { memory, ..blocks })
    }

    fn sharer(&self) -> Sharer<'_> {
        Sharer { tenant: &self.tenant, has_rivals: self.tenants.load(Ordering::Relaxed) > 1 }
    }

    /// Returns the bytes of memory that the blocks of all requests and streams hold.
    pub fn memory_held(&self) -> usize {
        self.memory.held() + self.memory_of_streams.held()
    }

    /// Returns the blocks that are cached, `[chunk]`. Their tokens are not counted as spent. With `memory`, which has a number of
    /// tokens already, the blocks are only those for which there is room; without it, the caller drops them at once.
    pub fn cached_blocks(
        &self,
        chunks: &[Arc<Chunk>],
        memory: Option<(&BlockMemory, usize)>,
        cancel: &Cancel,
    ) -> (Vec<Option<Block>>, BlockOrigins) {
        let mut tokens = memory.map_or(0, |(_, before)| before);
        let (mut all, mut sources) = (Vec::with_capacity(chunks.len()), BlockOrigins::default());
        for batch in chunks.chunks(chunks_per_batch(self.model.info().windows_at_once)) {
            if !cancel.go_on() {
                break;
            }
            let keys: Vec<BlockKey> = batch.iter().map(|chunk| self.key(chunk)).collect();
            let check = |i: usize, block: &Block, source| self.check_block(&batch[i], block, source);
            let (found, found_in) = self.store.find(&keys, check);
            tokens += found.iter().flatten().map(Block::tokens).sum::<usize>();
            if memory.is_some_and(|(memory, _)| self.take_for(tokens, memory).is_err()) {
                break;
            }
            all.extend(found);
            sources += found_in;
        }
        all.resize(chunks.len(), None);
        (all, sources)
    }

    /// Checks a block that a tier returned. The contents of a block in memory were checked before it was put there.
    fn check_block(&self, chunk: &Chunk, block: &Block, source: BlockOrigin) -> Result<(), BadBlock> {
        let info = self.model.info();
        block.check_shape(info.planes, info.head_dim, self.codec)?;
        match source {
            BlockOrigin::Memory => Ok(()),
            _ => block.check(&chunk.text),
        }
    }

    /// Returns the estimated time to read so many bytes of text. It is zero until the model's speed has been measured.
    pub fn time_to_read(&self, bytes: usize) -> Duration {
        self.load.time_of_one(bytes)
    }

    /// Returns how many of the first `chunks` the model can probably read within `time`. Until the model's speed has been
    /// measured, these are few.
    pub fn count_within(&self, chunks: &[Arc<Chunk>], time: Duration) -> usize {
        let is_measured = !self.window_time().is_zero();
        let mut bytes = 0;
        let fits = |chunk: &&Arc<Chunk>| {
            bytes += chunk.text.len();
            if is_measured { self.load.time_of_one(bytes) <= time } else { bytes <= BYTES_TO_MEASURE }
        };
        chunks.iter().take_while(fits).count()
    }

    /// Returns the estimated time that the model needs to end its work: for the windows that it reads and those that
    /// wait in its queue. It is zero until the model's speed has been measured.
    pub fn time_to_end(&self) -> Duration {
        WINDOWS_PER_WORKER * self.window_time()
    }

    /// Returns the estimated time for one window. It is zero until the model's speed has been measured.
    fn window_time(&self) -> Duration {
        let window = self.model.info().window_tokens_max.min(WINDOW_TOKENS_USUAL_MAX) * BYTES_PER_TOKEN;
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        self.load.time_of_one(window * workers)
    }

    /// Returns the blocks of chunks that the caller has tokenized. A cached block with other numbers of
    /// tokens than its tokenized is discarded, and the model reads the chunk again.
    ///
    /// # Errors
    /// Fails as [`Self::blocks`] does.
    pub fn blocks_of_tokenized(
        &self,
        chunks: &[Arc<Chunk>],
        tokenized: &[TokenizedChunk],
        cancel: &Cancel,
    ) -> Result<Blocks, PipelineError> {
        let counts: Vec<TokenCounts> = tokenized.iter().map(TokenizedChunk::token_counts).collect();
        let memory = self.memory_for(chunks, cancel)?;
        let memory_of_all = (Arc::clone(&memory), 0);
        let blocks = self.checked_blocks(chunks, Some(&counts), memory_of_all, cancel, cancel.time_left())?;
        self.free_rest(blocks.tokens(), &memory);
        Ok(blocks)
    }

    /// `time_left` is the time for which the request may be refused; `None`: it is not.
    fn checked_blocks(
        &self,
        chunks: &[Arc<Chunk>],
        expected: Option<&[TokenCounts]>,
        (memory, tokens_before): (Arc<BlockMemory>, usize),
        cancel: &Cancel,
        time_left: Option<Duration>,
    ) -> Result<Blocks, PipelineError> {
        let spent_before = cancel.spent();
        let keys: Vec<BlockKey> = chunks.par_iter().with_min_len(64).map(|chunk| self.key(chunk)).collect();
        let caller_waits = {
            let cancel = cancel.clone();
            Arc::new(move || cancel.go_on())
        };
        let check = |i: usize, block: &Block, source: BlockOrigin| {
            if let Some(expected) = expected {
                block.check_tokens(expected[i])?;
            }
            self.check_block(&chunks[i], block, source)
        };
        let load = ReadLoad { ongoing: OnceCell::new(), time_left };
        let batch = chunks_per_batch(self.model.info().windows_at_once);
        let (found, sources) = self.store.get(&keys, batch, caller_waits, check, |unread| {
            self.read(chunks, unread, &load, (&memory, tokens_before), cancel)
        })?;
        // Tokens that were read for this request have been counted. Those from the cache are counted here.
        let tokens: usize = found.iter().flatten().map(Block::tokens).sum();
        cancel.spend(tokens.saturating_sub(cancel.spent() - spent_before));
        let blocks = found.into_iter().collect::<Option<Vec<_>>>();
        let blocks = blocks.ok_or_else(|| {
            cancel.check().expect_err("blocks are missing only if the caller no longer waits")
        })?;
        let blocks = Blocks::new(blocks, sources, Some(Arc::clone(&memory)));
        let tokens = tokens_before + blocks.tokens();
        self.take_for(tokens, &memory)?;
        Ok(blocks)
    }

    /// Returns the estimated time that the ongoing reads of this tenant still take. It is zero until the
    /// model's speed has been measured.
    pub fn time_left(&self) -> Duration {
        self.load.time_left(&self.tenant)
    }

    /// Removes the blocks of chunks from all tiers.
    pub fn forget(&self, chunks: &[Arc<Chunk>]) {
        chunks.iter().for_each(|chunk| self.store.forget(&self.key(chunk)));
    }

    /// Removes all blocks of the tenant from the tiers of this machine. Returns how many there were in the
    /// largest of them.
    pub fn forget_all(&self) -> usize {
        self.store.forget_tenant(TenantTag::of(&self.tenant))
    }

    pub fn key(&self, chunk: &Chunk) -> BlockKey {
        self.keys.key(chunk.title.as_deref(), &chunk.text)
    }

    /// Has the model read the pending chunks, and completes each chunk as soon as the last window of its
    /// chunk has been read. A chunk for which only another request still waits is read, too.
    fn read<'a>(
        &'a self,
        chunks: &[Arc<Chunk>],
        unread: Unread,
        load: &ReadLoad<'a>,
        (memory, tokens_before): (&BlockMemory, usize),
        cancel: &Cancel,
    ) -> Result<(), PipelineError> {
        let Unread { pending, later, known_tokens } = unread;
        let known_tokens = tokens_before + known_tokens;
        self.take_for(known_tokens, memory)?;
        if pending.is_empty() {
            return Ok(());
        }
        let text_bytes = |chunk: &PendingChunk| chunks[chunk.index()].text.len();
        let bytes_later: usize = later.iter().map(|&index| chunks[index].text.len()).sum();
        let bytes = pending.iter().map(text_bytes).sum::<usize>() + bytes_later;
        let ongoing = match load.ongoing.get() {
            Some(ongoing) => {
                ongoing.set_bytes_left(bytes);
                ongoing
            }
            None => {
                let begun = self.load.begin(&self.tenant, bytes, load.time_left)?;
                load.ongoing.get_or_init(|| begun)
            }
        };
        let tokenized = self.tokenized(chunks, pending, known_tokens, cancel)?;
        let unread_tokens: usize = tokenized.iter().map(|chunk| chunk.ids.len()).sum();
        self.take_for(known_tokens + unread_tokens, memory)?;
        let info = self.model.info();
        let partial: Vec<PartialBlock> = tokenized.iter().map(PartialBlock::new).collect();
        for (chunk, partial) in
            pending.iter().zip(&partial).filter(|(_, partial)| partial.tokenized.ids.is_empty())
        {
            let keys = Array3::zeros((info.planes, 0, info.head_dim));
            chunk.complete(Block::encode(partial.tokenized.block_parts(keys.view()), self.codec));
        }
        let tokens_max = info.window_tokens_max;
        // Long chunks are read first, so that the last chunk to be finished is a short one and no worker
        // waits long for it. The windows of a chunk follow each other, so that only a few chunks are
        // encoded at a time.
        let mut order: Vec<usize> = (0..tokenized.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(tokenized[i].ids.len()));
        let windows_of = |i: usize| {
            tokenized[i].windows(tokens_max).enumerate().map(move |(w, ids)| (i, w * tokens_max, ids))
        };
        let windows: Vec<(usize, usize, &[u32])> = order.into_iter().flat_map(windows_of).collect();
        let ids: Vec<&[u32]> = windows.iter().map(|&(.., ids)| ids).collect();
        let done = |window: usize, keys: ArrayView3<f32>| {
            let (i, first, ids) = windows[window];
            // Tokens are counted as soon as they have been read, even if the request then has no result.
            cancel.spend(ids.len());
            if let Some(block) = partial[i].add(first, keys, self.codec) {
                ongoing.add_bytes_read(text_bytes(&pending[i]));
                pending[i].complete(block);
            }
        };
        Ok(self.model.read(&ids, &|window| pending[windows[window].0].is_wanted(), &done)?)
    }

    /// Tokenizes the pending chunks. `known_tokens` is the number of tokens in the request's other blocks.
    fn tokenized(
        &self,
        chunks: &[Arc<Chunk>],
        pending: &[PendingChunk],
        known_tokens: usize,
        cancel: &Cancel,
    ) -> Result<Vec<TokenizedChunk>, PipelineError> {
        let total = AtomicUsize::new(known_tokens);
        let tokenized = |chunk: &PendingChunk| -> Result<_, PipelineError> {
            cancel.check()?;
            self.limits.check_tokens(total.load(Ordering::Relaxed), self.token_bytes)?;
            let tokenized = tokenize::chunk(&chunks[chunk.index()], &self.tokenizer, cancel)?;
            self.limits.check_chunk_tokens(chunk.index(), tokenized.ids.len())?;
            total.fetch_add(tokenized.ids.len(), Ordering::Relaxed);
            Ok(tokenized)
        };
        pending.par_iter().map(tokenized).collect()
    }
}

/// Returns how many chunks a request has read at a time. Another request for one of these chunks waits for at most
/// this many, not for all chunks of a large request; and a request over its limits is refused before all of its
/// blocks are in memory. At the end of each batch, workers wait for the last window, so a model that reads many
/// windows at once gets larger batches: with windows of full length, the wait is then at most about one part in eight.
pub(super) fn chunks_per_batch(windows_at_once: usize) -> usize {
    (8 * windows_at_once).max(64)
}

/// Returns the key space of a tenant's blocks: everything that a block depends on besides its chunk.
fn key_space(model: &ModelInfo, codec: Codec, tenant: &Tenant) -> KeySpace {
    let rules = [text::RULES_VERSION, tokenizer::RULES_VERSION].map(u32::to_le_bytes);
    let codec = [codec.id()];
    KeySpace::new(tenant, &[model.fingerprint.as_bytes(), &codec, rules.as_flattened()])
}

/// Returns the planes of consecutive windows, `[plane, token, head_dim]`, for the tokens of all windows.
///
/// # Errors
/// Returns [`PipelineError::Model`] if the model fails.
pub fn keys_of(windows: &[&[u32]], model: &dyn ModelRuntime) -> Result<Array3<f32>, PipelineError> {
    let info = model.info();
    let tokens = windows.iter().map(|window| window.len()).sum();
    let all = Mutex::new(Array3::zeros((info.planes, tokens, info.head_dim)));
    let starts: Vec<usize> = windows
        .iter()
        .scan(0, |start, window| Some(std::mem::replace(start, *start + window.len())))
        .collect();
    model.read(windows, &|_| true, &|i, keys| {
        let mut all = all.lock().expect("copying does not panic");
        all.slice_mut(s![.., starts[i]..starts[i] + keys.dim().1, ..]).assign(&keys);
    })?;
    Ok(all.into_inner().expect("copying does not panic"))
}

/// A block of which the model has read some windows.
struct PartialBlock<'a> {
    tokenized: &'a TokenizedChunk,
    state: Mutex<PartialState>,
}

struct PartialState {
    /// `None` before the first window has arrived: until then a chunk takes no memory.
    encoder: Option<BlockEncoder>,
    tokens_missing: usize,
}

impl<'a> PartialBlock<'a> {
    fn new(tokenized: &'a TokenizedChunk) -> Self {
        let state = PartialState { encoder: None, tokens_missing: tokenized.ids.len() };
        Self { tokenized, state: Mutex::new(state) }
    }

    /// Encodes the planes of the window that begins at token `first`. Returns the block if no window is missing.
    fn add(&self, first: usize, window: ArrayView3<f32>, codec: Codec) -> Option<Block> {
        let mut state = self.state.lock().expect("encoding does not panic");
        let (planes, tokens, dim) = window.dim();
        let all = (planes, self.tokenized.ids.len(), dim);
        state.encoder.get_or_insert_with(|| BlockEncoder::new(all, codec)).add(first, window);
        state.tokens_missing -= tokens;
        if state.tokens_missing > 0 {
            return None;
        }
        let encoder = state.encoder.take()?;
        drop(state);
        Some(encoder.finish(self.tokenized.block_parts(window)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Instant;

    use super::*;
    use crate::model::device::DeviceInUse;
    use crate::model::scripted::ScriptedModel;

    #[test]
    fn the_load_of_a_whole_request_is_estimated_before_any_chunk_is_read() {
        let store = Arc::new(KvStore::without_tiers());
        let (model, tokenizer) = (ScriptedModel::new(64), Arc::new(ScriptedModel::tokenizer(&[])));
        let mut reader =
            Reader::new(Arc::new(model), tokenizer, store, Codec::Int8, RequestLimits::default());
        reader.load = Arc::new(LoadEstimator::with_speed(1_000.0));
        let chunk = |n: usize| Arc::new(Chunk::new(n.to_string(), format!("{n:020}")));
        let chunks: Vec<Arc<Chunk>> = (0..200).map(chunk).collect();
        let blocks = |count: usize| {
            let cancel = Cancel::at(Some(Instant::now() + Duration::from_secs(9)));
            reader.blocks(&chunks[..count], &cancel)
        };
        let time_left = Some(Duration::from_secs(60));
        let _other = reader.load.begin(&Tenant::default(), 9_000, time_left).expect("the only read");
        // 64 chunks would be read in time, beside the other read: 2 × 1.3 s × the margin.
        match blocks(200) {
            Err(PipelineError::Overloaded(overload)) => {
                assert_eq!((overload.bytes, overload.expected), (4_000, Duration::from_secs(8)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(blocks(64).expect("in time").sources.read, 64, "the refused request has read nothing");
    }

    #[test]
    fn a_plan_holds_the_first_chunks_that_there_is_time_for() {
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide"]));
        let (model, store) = (Arc::new(ScriptedModel::new(4)), Arc::new(KvStore::without_tiers()));
        let reader = Reader::new(model, tokenizer, store, Codec::Int8, RequestLimits::default());
        let chunks: Vec<Arc<Chunk>> =
            (0..40).map(|n| Arc::new(Chunk::new(n.to_string(), "tide ".repeat(100)))).collect();
        assert_eq!(reader.count_within(&chunks, Duration::ZERO), 32, "the speed is unknown");
        let reader = reader.with_speed(1_000_000.0);
        let count = |ms: u64| reader.count_within(&chunks, Duration::from_millis(ms));
        assert_eq!([count(0), count(1), count(5), count(100)], [0, 2, 10, 40]);
    }

    #[test]
    fn tokens_are_counted_once_whether_read_or_cached() {
        let (model, tokenizer) = (ScriptedModel::new(4), Arc::new(ScriptedModel::tokenizer(&["tide"])));
        let store = Arc::new(KvStore::without_tiers());
        let reader = Reader::new(Arc::new(model), tokenizer, store, Codec::Int8, RequestLimits::default());
        let chunk = |text: &str| Arc::new(Chunk::new(String::new(), text));
        // A chunk of several windows, two equal chunks, and an empty one.
        let chunks = ["tide ".repeat(11), "tide".to_owned(), "tide".to_owned(), String::new()];
        let chunks: Vec<_> = chunks.iter().map(|text| chunk(text)).collect();
        let cancel = Cancel::default();
        for turn in 1..=2 {
            let blocks = reader.blocks(&chunks, &cancel).expect("blocks");
            assert!(blocks.tokens() > 12);
            assert_eq!(cancel.spent(), turn * blocks.tokens());
        }
        let cancelled = Cancel::default();
        cancelled.cancel();
        assert!(reader.blocks(&chunks, &cancelled).is_err());
        assert_eq!(cancelled.spent(), 0, "nothing was read");
    }

    #[test]
    fn requests_take_turns_with_the_memory_for_their_blocks() {
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&["a"]));
        let reader = |limits| {
            let (model, store) = (Arc::new(ScriptedModel::new(64)), Arc::new(KvStore::without_tiers()));
            Reader::new(model, Arc::clone(&tokenizer), store, Codec::Int8, limits)
        };
        let chunks = |words: usize, word: &str| [Arc::new(Chunk::new(String::new(), word.repeat(words)))];
        let free = reader(RequestLimits::default());
        let bytes =
            free.blocks(&chunks(900, "a "), &Cancel::default()).expect("blocks").tokens() * free.token_bytes;
        let reader = reader(RequestLimits { block_bytes_max: bytes * 10 / 9, ..RequestLimits::default() });
        let read = |words| reader.blocks(&chunks(words, "a "), &Cancel::default());

        let error = read(1010).expect_err("more than one request may have");
        assert!(error.to_string().contains("raise memory_bytes_max"), "{error}");
        assert_eq!(reader.memory_held(), 0, "a refused request holds nothing");

        let holder = Cancel::default();
        let held = reader.blocks(&chunks(900, "a "), &holder).expect("the first");
        assert_eq!(reader.memory_held(), bytes, "as many tokens as they have");
        let error = read(250).expect_err("two bytes are a token, where three are expected");
        assert!(matches!(error, PipelineError::MemoryTaken), "{error}");
        let spaced = chunks(200, "a        ");
        let error =
            reader.blocks(&spaced, &holder).expect_err("a request that holds memory does not wait for more");
        assert!(matches!(error, PipelineError::MemoryTaken), "{error}");
        let late = Cancel::at(Some(Instant::now() + Duration::from_millis(40)));
        let error = reader.blocks(&spaced, &late).expect_err("another one waits before it reads");
        assert!(matches!(error, PipelineError::DeadlineExceeded), "{error}");
        assert_eq!(late.spent(), 0);
        let waits = Cancel::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.blocks(&spaced, &waits).map(drop));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished(), "there is no memory for it yet");
            drop(held);
            waiting.join().expect("no panic").expect("memory");
        });
        assert_eq!(reader.memory_held(), 0);
        assert!(!holder.holds_memory());
    }

    #[test]
    fn streams_and_exports_take_no_memory_from_requests() {
        let tokenizer = Arc::new(ScriptedModel::tokenizer(&["a"]));
        let (model, store) = (Arc::new(ScriptedModel::new(64)), Arc::new(KvStore::without_tiers()));
        let limits = RequestLimits { stream_block_bytes_max: 50_000, ..RequestLimits::default() };
        let reader = Reader::new(model, tokenizer, store, Codec::Int8, limits);
        let read = || {
            reader.blocks(&[Arc::new(Chunk::new("", "a ".repeat(500)))], &Cancel::default()).expect("blocks")
        };
        let stream = reader.for_stream(read()).expect("there is memory for one stream");
        assert_eq!(
            (reader.memory.held(), reader.memory_of_streams.held()),
            (0, stream.tokens() * reader.token_bytes)
        );
        let error = reader.for_stream(read()).expect_err("and not for two");
        assert!(matches!(error, PipelineError::MemoryTaken), "{error}");
        drop(stream);
        let export = read().counted_elsewhere();
        assert_eq!((reader.memory_held(), export.tokens() > 500), (0, true));
    }

    /// A block that the daemon itself has written must pass the check when it is read from disk, whatever the
    /// tokenizer does to the text.
    #[test]
    fn blocks_of_every_tokenizer_pass_the_check_of_untrusted_blocks() {
        const TEXTS: [&str; 10] = [
            "",
            " ",
            "The tide rises. The moon pulls!",
            "caf\u{e9} cafe\u{301} \u{fb01}ne \u{bd} \u{212b} e\u{327}\u{301}x.  Two  blanks.\tA tab.\r\nA line.",
            "\u{6f6e}\u{6c50}\u{306f}\u{6708}\u{306e}\u{5f15}\u{529b}\u{3002}\u{307e}\u{305f}\u{660e}\u{65e5}\u{3002}",
            "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467} and \u{1f1e9}\u{1f1ea}. \u{1d4d0}\u{1d4d1}!",
            "\u{0}\u{feff}\u{200b}a\u{ad}b\u{202e}c. \u{fdfa}\u{fdfa}.",
            "\u{fffd}\u{fffd}\u{10ffff}",
            "[CLS] [SEP] <s> </s> <|endoftext|> [MASK] <unk>.",
            "word word-word word's \u{130}STANBUL \u{df}\u{1e9e} \u{3a3}\u{3c2}. 1,234.5 3.14e-10?",
        ];
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
        let entries = std::fs::read_dir(folder).expect("the tiny models");
        let paths = entries.map(|entry| entry.expect("an entry").path().join("tokenizer.json"));
        let paths: Vec<_> = paths.filter(|path| path.exists()).collect();
        assert!(paths.len() > 4, "{paths:?}");
        let tokenizers = paths.iter().map(|path| ModelTokenizer::from_file(path).expect("a tokenizer"));
        for (n, tokenizer) in tokenizers.chain([ScriptedModel::tokenizer(&["tide"])]).enumerate() {
            for text in TEXTS {
                for title in [None, Some("A title".to_owned())] {
                    let text = format!("{text} {text}");
                    let chunk = Chunk { title, ..Chunk::new(String::new(), text) };
                    let tokenized = tokenize::chunk(&chunk, &tokenizer, &Cancel::default()).expect("tokens");
                    let keys = Array3::from_elem((1, tokenized.ids.len(), 4), 0.5);
                    let block = Block::encode(tokenized.block_parts(keys.view()), Codec::Int8);
                    let name = paths.get(n);
                    assert_eq!(block.check(&chunk.text), Ok(()), "{name:?}: {:?}", chunk.text);
                    assert_eq!(block.check_tokens(tokenized.token_counts()), Ok(()), "{name:?}");
                }
            }
        }
    }

    #[test]
    fn everything_that_a_block_depends_on_changes_its_key() {
        let model = ModelInfo {
            name: "m".to_owned(),
            fingerprint: "f".to_owned(),
            window_tokens_max: 510,
            planes: 2,
            head_dim: 64,
            readout: vec![0, 1],
            decoder: None,
            windows_at_once: 1,
            device: DeviceInUse::cpu(),
        };
        let key_of = |model: &ModelInfo, codec, tenant: &str| {
            let tenant = Tenant::new(tenant).expect("a name");
            key_space(model, codec, &tenant).key(None, "text")
        };
        let key = |model: &ModelInfo, codec| key_of(model, codec, "");
        let usual = key(&model, Codec::Int8);
        let check = |name: &str, change: &dyn Fn(&mut ModelInfo), codec| {
            let mut other = model.clone();
            change(&mut other);
            assert_ne!(key(&other, codec), usual, "{name}");
        };
        // The fingerprint covers tokenizer, window and readout: see `Contract::fingerprint`.
        check("fingerprint", &|model| model.fingerprint.push('f'), Codec::Int8);
        check("codec", &|_| {}, Codec::F16);
        let tenants = ["", "a", "b", "ab"].map(|tenant| key_of(&model, Codec::Int8, tenant));
        assert_eq!(HashSet::from(tenants).len(), 4, "every tenant has keys of its own");
        assert_eq!(tenants[0], usual, "the default tenant has the keys of a daemon without tenants");
        let renamed = ModelInfo { name: "n".to_owned(), ..model.clone() };
        assert_eq!(key(&renamed, Codec::Int8), usual, "the model's name does not matter");
    }
}
