//! Chunks to blocks: from the store where they have been read before, else from the model, every window on its own.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ndarray::{Array3, ArrayView3, s};
use rayon::prelude::*;

use super::PipelineError;
use super::cancel::Cancel;
use super::load::{LoadEstimator, Reading};
use super::tokenize::{self, Passage};
use super::validate::RequestLimits;
use crate::domain::{Chunk, Tenant, TokenSpan};
use crate::kv::block::{Block, Parts, TokenCounts};
use crate::kv::codec::{Codec, LANES};
use crate::kv::key::{BlockKey, KeySpace};
use crate::kv::store::{Claim, KvStore, Source, Sources, Unread};
use crate::model::tokenizer::ModelTokenizer;
use crate::model::{ModelInfo, ModelRuntime};
use crate::text;

/// Blocks of all chunks, on one key axis.
#[derive(Debug, Clone)]
pub struct Blocks {
    /// One per chunk.
    pub blocks: Vec<Block>,
    /// Where each chunk's tokens stand on the key axis.
    pub spans: Vec<TokenSpan>,
    /// Where the blocks came from.
    pub sources: Sources,
}

impl Blocks {
    /// Blocks one behind the other.
    pub fn new(blocks: Vec<Block>, sources: Sources) -> Self {
        let mut start = 0;
        let span = |block: &Block| {
            let span = TokenSpan::new(start, start + block.tokens());
            start = span.end;
            span
        };
        let spans = blocks.iter().map(span).collect();
        Self { blocks, spans, sources }
    }

    /// Tokens of all chunks.
    pub fn tokens(&self) -> usize {
        self.spans.last().map_or(0, |last| last.end)
    }
}

/// Reads chunks, each once.
pub struct Reader {
    model: Arc<dyn ModelRuntime>,
    tokenizer: Arc<ModelTokenizer>,
    store: Arc<KvStore>,
    codec: Codec,
    salt: Vec<u8>,
    keys: KeySpace,
    tenant: Tenant,
    /// Of the model, shared by all tenants.
    pace: Arc<LoadEstimator>,
    /// What a token takes in a block, and as full numbers.
    token_bytes: [usize; 2],
}

impl Reader {
    /// Reads with `model` and keeps what it reads in `store`, for the default tenant. Blocks under another `salt` are never
    /// found.
    pub fn new(
        model: Arc<dyn ModelRuntime>,
        tokenizer: Arc<ModelTokenizer>,
        store: Arc<KvStore>,
        codec: Codec,
        salt: &[u8],
    ) -> Self {
        let info = model.info();
        let tenant = Tenant::default();
        let keys = key_space(info, codec, salt, &tenant);
        let scale = if codec.is_quantized() { 4 } else { 0 };
        let value_bytes = codec.head_bytes(LANES, info.head_dim) / LANES;
        let token_bytes = [info.planes * (value_bytes + scale), info.planes * info.head_dim * 4];
        let (salt, pace) = (salt.to_vec(), Arc::default());
        Self { model, tokenizer, store, codec, salt, keys, tenant, pace, token_bytes }
    }

    /// The same for a tenant, through its own share of the model: blocks of others are never found, nor waited for while they are
    /// read.
    pub fn of_tenant(&self, tenant: &Tenant, model: Arc<dyn ModelRuntime>) -> Self {
        Self {
            keys: key_space(model.info(), self.codec, &self.salt, tenant),
            model,
            tokenizer: Arc::clone(&self.tokenizer),
            store: Arc::clone(&self.store),
            codec: self.codec,
            salt: self.salt.clone(),
            tenant: tenant.clone(),
            pace: Arc::clone(&self.pace),
            token_bytes: self.token_bytes,
        }
    }

    /// The blocks of `chunks`.
    ///
    /// # Errors
    /// When they have more tokens than `limits` allow; what the model reports; a deadline when `cancel` says so.
    pub fn blocks(
        &self,
        chunks: &[Arc<Chunk>],
        limits: &RequestLimits,
        cancel: &Cancel,
    ) -> Result<Blocks, PipelineError> {
        self.blocks_of(chunks, None, limits, cancel)
    }

    /// As [`Self::blocks`], for a caller that has tokenized the chunks: a cached block with another number of tokens than its
    /// passage is discarded, and the chunk is read again.
    ///
    /// # Errors
    /// As [`Self::blocks`].
    pub fn blocks_of_passages(
        &self,
        chunks: &[Arc<Chunk>],
        passages: &[Passage],
        limits: &RequestLimits,
        cancel: &Cancel,
    ) -> Result<Blocks, PipelineError> {
        let counts: Vec<TokenCounts> = passages.iter().map(Passage::token_counts).collect();
        self.blocks_of(chunks, Some(&counts), limits, cancel)
    }

    fn blocks_of(
        &self,
        chunks: &[Arc<Chunk>],
        expected: Option<&[TokenCounts]>,
        limits: &RequestLimits,
        cancel: &Cancel,
    ) -> Result<Blocks, PipelineError> {
        let spent_before = cancel.spent();
        let keys: Vec<BlockKey> = chunks.par_iter().with_min_len(64).map(|chunk| self.key(chunk)).collect();
        let wanted = {
            let cancel = cancel.clone();
            Arc::new(move || cancel.go_on())
        };
        let info = self.model.info();
        let check = |i: usize, block: &Block, source: Source| {
            block.check_shape((info.planes, info.head_dim), self.codec)?;
            if let Some(expected) = expected {
                block.check_tokens(expected[i])?;
            }
            match source {
                // It was checked on its way into memory.
                Source::Memory => Ok(()),
                _ => block.check(&chunks[i].text),
            }
        };
        let reading = OnceCell::new();
        let (found, sources) = self
            .store
            .get(&keys, wanted, check, |unread| self.read(chunks, unread, &reading, limits, cancel))?;
        let blocks = found.into_iter().collect::<Option<Vec<_>>>();
        let blocks =
            blocks.ok_or_else(|| cancel.check().expect_err("blocks are left out only when nobody waits"))?;
        let blocks = Blocks::new(blocks, sources);
        // What was read has been counted; what was there is looked at as well.
        cancel.spend(blocks.tokens().saturating_sub(cancel.spent() - spent_before));
        limits.check_tokens(blocks.tokens(), self.token_bytes[0])?;
        Ok(blocks)
    }

    /// How long the model will take for the chunks of this tenant that are being read.
    pub fn time_left(&self) -> Duration {
        self.pace.time_left(&self.tenant)
    }

    /// The key of a chunk's block.
    pub fn key(&self, chunk: &Chunk) -> BlockKey {
        self.keys.key(chunk.title.as_deref(), &chunk.text)
    }

    /// Reads the chunks that nobody has read yet, and lands each as soon as its last window is there. A chunk that only
    /// another request still waits for is read for it.
    fn read<'a>(
        &'a self,
        chunks: &[Arc<Chunk>],
        unread: Unread,
        reading: &OnceCell<Reading<'a>>,
        limits: &RequestLimits,
        cancel: &Cancel,
    ) -> Result<(), PipelineError> {
        let Unread { claims, later, known_tokens } = unread;
        limits.check_tokens(known_tokens, self.token_bytes[0])?;
        if claims.is_empty() {
            return Ok(());
        }
        let bytes_of = |claim: &Claim| chunks[claim.index()].text.len();
        let bytes_later: usize = later.iter().map(|&index| chunks[index].text.len()).sum();
        let bytes = claims.iter().map(bytes_of).sum::<usize>() + bytes_later;
        let reading = match reading.get() {
            Some(begun) => {
                begun.expect(bytes);
                begun
            }
            None => {
                let late = |late| PipelineError::WouldBeLate { bytes, late };
                let begun = self.pace.begin(&self.tenant, bytes, cancel.patience()).map_err(late)?;
                reading.get_or_init(|| begun)
            }
        };
        let total = AtomicUsize::new(known_tokens);
        let passage = |claim: &Claim| -> Result<_, PipelineError> {
            cancel.check()?;
            limits.check_tokens(total.load(Ordering::Relaxed), self.token_bytes[0])?;
            let passage = tokenize::passage(&chunks[claim.index()], &self.tokenizer)?;
            limits.check_tokens(passage.ids.len(), self.token_bytes[1])?;
            total.fetch_add(passage.ids.len(), Ordering::Relaxed);
            Ok(passage)
        };
        let passages = claims.par_iter().map(passage).collect::<Result<Vec<_>, _>>();
        limits.check_tokens(total.into_inner(), self.token_bytes[0])?;
        let passages = passages?;
        let info = self.model.info();
        let pending: Vec<Pending> = passages.iter().map(|passage| Pending::new(passage, info)).collect();
        for (claim, pending) in
            claims.iter().zip(&pending).filter(|(_, pending)| pending.passage.ids.is_empty())
        {
            claim.complete(pending.encode(self.codec));
        }
        let tokens_max = info.window_tokens_max;
        // Long chunks first: the last to finish is then a short one, and no worker waits long for it. Windows of one chunk stand
        // together, so that only few chunks are in memory as full numbers.
        let mut order: Vec<usize> = (0..passages.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(passages[i].ids.len()));
        let windows_of = |i: usize| {
            passages[i].windows(tokens_max).enumerate().map(move |(w, ids)| (i, w * tokens_max, ids))
        };
        let windows: Vec<(usize, usize, &[u32])> = order.into_iter().flat_map(windows_of).collect();
        let ids: Vec<&[u32]> = windows.iter().map(|&(.., ids)| ids).collect();
        let done = |window: usize, keys: ArrayView3<f32>| {
            let (i, first, ids) = windows[window];
            // At once: what was read for a request that then ends without an answer was read all the same.
            cancel.spend(ids.len());
            if pending[i].add(first, keys) {
                reading.read(bytes_of(&claims[i]));
                claims[i].complete(pending[i].encode(self.codec));
            }
        };
        Ok(self.model.read(&ids, &|window| claims[windows[window].0].is_wanted(), &done)?)
    }
}

/// Everything but the chunk that a block depends on, and whose it is.
fn key_space(model: &ModelInfo, codec: Codec, salt: &[u8], tenant: &Tenant) -> KeySpace {
    let rules = text::RULES_VERSION.to_le_bytes();
    let codec = [codec.id()];
    let mut parts = vec![model.fingerprint.as_bytes(), &codec, &rules, salt];
    // Blocks of a daemon without tenants are those of the default one.
    if !tenant.is_default() {
        parts.push(tenant.name().as_bytes());
    }
    KeySpace::new(&parts)
}

/// Keys `[head, token, head_dim]` of windows, one behind the other.
///
/// # Errors
/// What the model reports.
pub fn keys_of(windows: &[&[u32]], model: &dyn ModelRuntime) -> Result<Array3<f32>, PipelineError> {
    let info = model.info();
    let passage = Passage { ids: windows.concat(), ..Passage::default() };
    let pending = Pending::new(&passage, info);
    let starts: Vec<usize> = windows
        .iter()
        .scan(0, |start, window| Some(std::mem::replace(start, *start + window.len())))
        .collect();
    model.read(windows, &|_| true, &|i, keys| {
        pending.add(starts[i], keys);
    })?;
    Ok(pending.keys.into_inner().expect("copying does not panic").0)
}

/// A passage whose windows come in one by one.
struct Pending<'a> {
    passage: &'a Passage,
    /// `[plane, token, head_dim]`, and how many tokens are still missing.
    keys: Mutex<(Array3<f32>, usize)>,
}

impl<'a> Pending<'a> {
    fn new(passage: &'a Passage, info: &ModelInfo) -> Self {
        // Room is made when the first window comes: chunks that are not begun take none.
        let keys = Array3::zeros((info.planes, 0, info.head_dim));
        Self { passage, keys: Mutex::new((keys, passage.ids.len())) }
    }

    /// Takes the keys of the window that begins at token `first`; whether they were the last.
    fn add(&self, first: usize, window: ArrayView3<f32>) -> bool {
        let mut keys = self.keys.lock().expect("copying does not panic");
        let (heads, tokens, dim) = window.dim();
        if keys.0.is_empty() {
            keys.0 = Array3::zeros((heads, self.passage.ids.len(), dim));
        }
        keys.0.slice_mut(s![.., first..first + tokens, ..]).assign(&window);
        keys.1 -= tokens;
        keys.1 == 0
    }

    /// All keys, which are given up.
    fn encode(&self, codec: Codec) -> Block {
        let empty = Array3::zeros((0, 0, 0));
        let keys = std::mem::replace(&mut self.keys.lock().expect("copying does not panic").0, empty);
        let Passage { title_tokens, offsets, sentences, .. } = self.passage;
        Block::encode(Parts { keys: keys.view(), title_tokens: *title_tokens, offsets, sentences }, codec)
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
    fn all_of_a_request_is_judged_before_any_of_it_is_read() {
        let store = Arc::new(KvStore::without_tiers());
        let (model, tokenizer) = (ScriptedModel::new(64), Arc::new(ScriptedModel::tokenizer(&[])));
        let mut reader = Reader::new(Arc::new(model), tokenizer, store, Codec::Int8, b"");
        reader.pace = Arc::new(LoadEstimator::of(1_000.0));
        let chunk = |n: usize| {
            Arc::new(Chunk { id: n.to_string(), title: None, text: format!("{n:020}"), metadata: None })
        };
        let chunks: Vec<Arc<Chunk>> = (0..200).map(chunk).collect();
        let ask = |count: usize| {
            let cancel = Cancel::at(Some(Instant::now() + Duration::from_secs(9)));
            reader.blocks(&chunks[..count], &RequestLimits::default(), &cancel)
        };
        let patience = Some(Duration::from_secs(60));
        let _other = reader.pace.begin(&Tenant::default(), 9_000, patience).expect("alone");
        // 64 of them would be in time, beside the other one: 2 × 1.3 s, and some.
        match ask(200) {
            Err(PipelineError::WouldBeLate { bytes, late }) => {
                assert_eq!((bytes, late.expected), (4_000, Duration::from_secs(8)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(ask(64).expect("in time").sources.read, 64, "nothing was read before");
    }

    #[test]
    fn what_is_looked_at_is_counted_once_wherever_it_came_from() {
        let (model, tokenizer) = (ScriptedModel::new(4), Arc::new(ScriptedModel::tokenizer(&["tide"])));
        let store = Arc::new(KvStore::without_tiers());
        let reader = Reader::new(Arc::new(model), tokenizer, store, Codec::Int8, b"");
        let chunk = |text: &str| {
            Arc::new(Chunk { id: String::new(), title: None, text: text.to_owned(), metadata: None })
        };
        // Several windows, one that is there twice, an empty one.
        let chunks = ["tide ".repeat(11), "tide".to_owned(), "tide".to_owned(), String::new()];
        let chunks: Vec<_> = chunks.iter().map(|text| chunk(text)).collect();
        let cancel = Cancel::default();
        for turn in 1..=2 {
            let blocks = reader.blocks(&chunks, &RequestLimits::default(), &cancel).expect("blocks");
            assert!(blocks.tokens() > 12);
            assert_eq!(cancel.spent(), turn * blocks.tokens());
        }
        let late = Cancel::default();
        late.cancel();
        assert!(reader.blocks(&chunks, &RequestLimits::default(), &late).is_err());
        assert_eq!(late.spent(), 0, "nothing was done");
    }

    /// A block that the daemon made itself must pass the check when it comes back from disk, whatever the tokenizer does to the text.
    #[test]
    fn blocks_of_every_tokenizer_pass_the_check_of_blocks_from_outside() {
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
                    let chunk = Chunk { id: String::new(), title, text, metadata: None };
                    let passage = tokenize::passage(&chunk, &tokenizer).expect("tokens");
                    let keys = Array3::from_elem((1, passage.ids.len(), 4), 0.5);
                    let Passage { title_tokens, offsets, sentences, .. } = &passage;
                    let parts = Parts { keys: keys.view(), title_tokens: *title_tokens, offsets, sentences };
                    let block = Block::encode(parts, Codec::Int8);
                    let name = paths.get(n);
                    assert_eq!(block.check(&chunk.text), Ok(()), "{name:?}: {:?}", chunk.text);
                    assert_eq!(block.check_tokens(passage.token_counts()), Ok(()), "{name:?}");
                }
            }
        }
    }

    #[test]
    fn whatever_a_block_depends_on_changes_its_key() {
        let model = ModelInfo {
            name: "m".to_owned(),
            fingerprint: "f".to_owned(),
            window_tokens_max: 510,
            planes: 2,
            head_dim: 64,
            readout: vec![0, 1],
            decoder: None,
            device: DeviceInUse::cpu(),
        };
        let key_of = |model: &ModelInfo, codec, salt: &[u8], tenant: &str| {
            let tenant = Tenant::new(tenant).expect("a name");
            key_space(model, codec, salt, &tenant).key(None, "text")
        };
        let key = |model: &ModelInfo, codec, salt: &[u8]| key_of(model, codec, salt, "");
        let usual = key(&model, Codec::Int8, b"");
        let check = |name: &str, change: &dyn Fn(&mut ModelInfo), codec, salt: &[u8]| {
            let mut other = model.clone();
            change(&mut other);
            assert_ne!(key(&other, codec, salt), usual, "{name}");
        };
        // Tokenizer, window and readout are in the model's fingerprint: see `Contract::fingerprint`.
        check("fingerprint", &|model| model.fingerprint.push('f'), Codec::Int8, b"");
        check("codec", &|_| {}, Codec::Int4, b"");
        check("salt", &|_| {}, Codec::Int8, b"salt");
        let tenants = ["", "a", "b", "ab"].map(|tenant| key_of(&model, Codec::Int8, b"", tenant));
        assert_eq!(HashSet::from(tenants).len(), 4, "every tenant has its own");
        assert_eq!(tenants[0], usual, "the default one's are those of a daemon without tenants");
        assert_ne!(key_of(&model, Codec::Int8, b"a", ""), tenants[1], "a salt is no tenant");
        let renamed = ModelInfo { name: "n".to_owned(), ..model.clone() };
        assert_eq!(key(&renamed, Codec::Int8, b""), usual, "a name changes nothing");
    }
}
