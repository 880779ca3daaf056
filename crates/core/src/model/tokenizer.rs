//! The model's tokenizer: turns a text into token ids with byte offsets, without truncation or padding.

mod model;
mod unigram;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::OnceLock;

use icu_properties::props::Script;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::{
    AddedToken, Decoder, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer, TokenizerBuilder, TokenizerImpl,
};

use self::model::AnyModel;
use self::unigram::{Unigram, UnigramFile};

use super::ModelError;
use crate::domain::ByteRange;
use crate::text::script_of;

/// The number of tokens of two or more letters that a vocabulary has in a script that the model knows. BERT's
/// English vocabulary has 27,533 in the Latin script, 8 in the Cyrillic and none in most others.
const KNOWN_SCRIPT_TOKENS_MIN: usize = 300;

/// The number of single Han characters in a vocabulary of a model that knows Chinese or Japanese. BERT's
/// English vocabulary has 488, a Chinese one more than 7,000.
const KNOWN_HAN_CHARACTERS_MIN: usize = 2_000;

/// About how many bytes of a text the tokenizer reads at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The tokens of a text, without special tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    pub ids: Vec<u32>,
    /// The byte range of each token in the text, in the order of `ids`. The starts never decrease.
    pub offsets: Vec<ByteRange>,
}

/// The library's tokenizer with either the library's model or one of ours.
type Inner =
    TokenizerImpl<AnyModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The version of how texts become tokens. Blocks that were read by another version are not used.
pub const RULES_VERSION: u32 = 3;

/// A Hugging Face tokenizer with truncation and padding switched off.
///
/// Text that looks like a special token, such as `<|im_end|>`, is read as plain text: whoever writes a chunk
/// cannot end the user's turn. Special are the tokens that the file calls special. Only
/// [`Self::encode_prompt`] reads such text as the special token.
pub struct ModelTokenizer {
    inner: Inner,
    /// The same tokenizer for prompts. It is made for the first prompt.
    of_prompts: OnceLock<Box<Inner>>,
    /// `(tokens of one letter, tokens of more letters)` of each script. It is counted for the first question
    /// that is not ASCII.
    letters_by_script: OnceLock<HashMap<Script, (usize, usize)>>,
    splits: Splits,
}

/// Where a text can be divided so that its parts have the tokens of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Splits {
    Unknown,
    /// A text can be divided between any two blanks.
    AtBlanks,
    /// Also at punctuation marks of ASCII.
    AtBlanksAndMarks,
}

impl ModelTokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// Returns [`ModelError::Tokenizer`] if the file cannot be read or parsed, or if its post-processor has a
    /// fault that [`template_fault`] finds.
    pub fn from_file(path: &Path) -> Result<Self, ModelError> {
        let refuse = |reason: String| ModelError::Tokenizer { path: path.display().to_string(), reason };
        let file = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
        let (rules, model) = match with_small_model(&file) {
            Some((rules, model)) => (Tokenizer::from_bytes(rules), Some(model)),
            None => (Tokenizer::from_bytes(file), None),
        };
        let inner = rules.map_err(|e| refuse(e.to_string()))?;
        match template_fault(&inner) {
            Some(fault) => Err(refuse(format!("post_processor: {fault}"))),
            None => Ok(Self::with_model(inner, model.map(AnyModel::Unigram))),
        }
    }

    /// Wraps a tokenizer and switches its truncation and padding off.
    pub fn new(inner: Tokenizer) -> Self {
        Self::with_model(inner, None)
    }

    /// Wraps a tokenizer with another model in place of its own, if there is one.
    fn with_model(rules: Tokenizer, model: Option<AnyModel>) -> Self {
        let builder = TokenizerBuilder::new()
            .with_normalizer(rules.get_normalizer().cloned())
            .with_pre_tokenizer(rules.get_pre_tokenizer().cloned())
            .with_post_processor(rules.get_post_processor().cloned())
            .with_decoder(rules.get_decoder().cloned())
            .with_added_vocabulary(rules.get_added_vocabulary().clone());
        let model = model.unwrap_or_else(|| AnyModel::Library(rules.get_model().clone()));
        let mut inner = builder.with_model(model).build().expect("a builder with a model");
        inner.set_encode_special_tokens(true);
        let splits = splits(&inner);
        Self { inner, of_prompts: OnceLock::new(), letters_by_script: OnceLock::new(), splits }
    }

    /// Returns whether the text between two blanks (see [`is_blank`]) has the same tokens in every context.
    /// The tokens of a text then can be counted part by part if the parts are cut at blanks. Returns false if
    /// this is not known.
    pub fn splits_at_blanks(&self) -> bool {
        self.splits != Splits::Unknown
    }

    /// Returns whether the vocabulary has words or syllables of a script, not only single letters. A model
    /// whose tokenizer does not know a script cannot tell the words of its texts apart. Numbers and
    /// punctuation are known to every tokenizer.
    pub fn knows(&self, script: Script) -> bool {
        if matches!(script, Script::Latin | Script::Common | Script::Inherited) {
            return true;
        }
        let counted = self.letters_by_script.get_or_init(|| letters_by_script(&self.inner));
        let (single, longer) = counted.get(&script).copied().unwrap_or_default();
        longer >= KNOWN_SCRIPT_TOKENS_MIN || script == Script::Han && single >= KNOWN_HAN_CHARACTERS_MIN
    }

    /// Returns the number of tokens in the vocabulary, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Returns the ids of the special tokens before, between and after two texts that are read together.
    ///
    /// # Errors
    /// Returns the reason if the tokenizer does not join two texts with a token between.
    pub fn around_pair(&self) -> Result<[Vec<u32>; 3], String> {
        let encoding = self.inner.encode_fast(("a", "a"), true).map_err(|cause| cause.to_string())?;
        let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
        let next = |from: usize, special: u32| (from..ids.len()).find(|&at| mask[at] == special);
        let ends = next(0, 0).and_then(|first| {
            let end = next(first, 1)?;
            let second = next(end, 0)?;
            Some((first, end, second, next(second, 1)?))
        });
        let Some((first, end, second, last)) = ends else {
            return Err(format!(
                "has a tokenizer that joins two texts as {ids:?}, without tokens between and after"
            ));
        };
        Ok([ids[..first].to_vec(), ids[end..second].to_vec(), ids[last..].to_vec()])
    }

    /// Returns the token ids of `text` and their byte offsets.
    ///
    /// # Errors
    /// Returns [`ModelError::Tokenize`] if the tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Tokens, ModelError> {
        self.encode_while(text, || true)
    }

    /// As [`Self::encode`], for a long text: it asks `go_on` before each piece.
    ///
    /// # Errors
    /// Also returns [`ModelError::Cancelled`] if `go_on` returned false.
    pub fn encode_while(&self, text: &str, go_on: impl Fn() -> bool) -> Result<Tokens, ModelError> {
        let mut all = Tokens::default();
        for piece in self.pieces(text) {
            if !go_on() {
                return Err(ModelError::Cancelled);
            }
            let found = tokens(&self.inner, piece.slice(text))?;
            all.ids.extend(found.ids);
            let offset =
                |range: ByteRange| ByteRange::new(piece.start + range.start, piece.start + range.end);
            all.offsets.extend(found.offsets.into_iter().map(offset));
        }
        Ok(all)
    }

    /// Divides a long text into pieces whose tokens, put together, are those of the text: the library takes several hundred bytes of memory
    /// for each byte that it reads at once.
    fn pieces(&self, text: &str) -> Vec<ByteRange> {
        let (bytes, mut pieces, mut start) = (text.as_bytes(), Vec::new(), 0);
        let at_marks = self.splits == Splits::AtBlanksAndMarks;
        while self.splits_at_blanks() && text.len() - start > PIECE_BYTES {
            // BERT's tokenizers read each punctuation mark of ASCII as a token, too.
            let divides = |at: &usize| {
                let [before, after] = [bytes[at - 1], bytes[*at]];
                is_blank(before)
                    || is_blank(after)
                    || at_marks && before.is_ascii_punctuation() && before == after
            };
            let Some(end) = (start + PIECE_BYTES..text.len()).find(divides) else { break };
            pieces.push(ByteRange::new(start, end));
            start = end;
        }
        pieces.push(ByteRange::new(start, text.len()));
        pieces
    }

    /// Returns the token ids of a prompt and their byte offsets. Text that looks like a special token is read as
    /// that token, so text of strangers within the prompt could end the user's turn.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Tokens, ModelError> {
        let of_prompts = || {
            let mut tokenizer = self.inner.clone();
            tokenizer.set_encode_special_tokens(false);
            Box::new(tokenizer)
        };
        tokens(self.of_prompts.get_or_init(of_prompts), prompt)
    }

    /// Returns the number of tokens of `text`. It is faster than [`Self::encode`].
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn count(&self, text: &str) -> Result<usize, ModelError> {
        let count = |piece: ByteRange| {
            let encoding = self.inner.encode_fast(piece.slice(text), false);
            encoding.map(|encoding| encoding.get_ids().len()).map_err(|e| ModelError::Tokenize(e.to_string()))
        };
        self.pieces(text).into_iter().map(count).sum()
    }
}

/// Counts the tokens of a vocabulary that have letters of one script only, as `(of one letter, of more)`.
fn letters_by_script(tokenizer: &Inner) -> HashMap<Script, (usize, usize)> {
    let mut counted: HashMap<Script, (usize, usize)> = HashMap::new();
    for token in tokenizer.get_vocab(false).into_keys() {
        // Byte-level vocabularies do not hold the characters themselves.
        let text = tokenizer.get_decoder().map_or(Ok(token.clone()), |decoder| decoder.decode(vec![token]));
        let Ok(token) = text else { continue };
        let mut letters = token.chars().filter(|c| c.is_alphabetic()).map(script_of);
        let Some(first) = letters.next() else { continue };
        let mut count = 1;
        if letters.all(|script| {
            count += 1;
            script == first || script == Script::Inherited
        }) {
            let (single, longer) = counted.entry(first).or_default();
            *(if count > 1 { longer } else { single }) += 1;
        }
    }
    counted
}

fn tokens(tokenizer: &Inner, text: &str) -> Result<Tokens, ModelError> {
    let encoding = tokenizer.encode(text, false).map_err(|e| ModelError::Tokenize(e.to_string()))?;
    let offsets = encoding.get_offsets().iter().map(|&(start, end)| ByteRange::new(start, end)).collect();
    Ok(Tokens { ids: encoding.get_ids().to_vec(), offsets })
}

/// Returns whether `byte` is a blank: a space, tab, line feed or carriage return. A tokenizer for which
/// [`ModelTokenizer::splits_at_blanks`] holds never makes a token across a blank. Other white space does not
/// count, because some tokenizers remove it before they split the text.
pub fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Returns the fault of an invalid template in the tokenizer's post-processor, or `None` if all templates are
/// valid. The `tokenizers` library loads invalid templates without an error, and panics when they are used.
pub fn template_fault(tokenizer: &Tokenizer) -> Option<String> {
    fault(&serde_json::to_value(tokenizer.get_post_processor()).ok()?)
}

fn fault(processor: &Value) -> Option<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if processor["type"] == "Sequence" {
        return list(&processor["processors"]).iter().find_map(fault);
    }
    if processor["type"] != "TemplateProcessing" {
        return None;
    }
    let pieces = |template: &str| list(&processor[template]).into_iter();
    let special = |piece: &Value| piece["SpecialToken"]["id"].as_str().map(str::to_owned);
    let unknown = |id: &String| processor["special_tokens"].get(id).is_none();
    if let Some(id) = pieces("single").chain(pieces("pair")).filter_map(|piece| special(&piece)).find(unknown)
    {
        return Some(format!("a template uses the special token {id:?}, which special_tokens does not list"));
    }
    let is_second = |piece: Value| piece["Sequence"]["id"] == "B";
    pieces("single")
        .any(is_second)
        .then(|| "the template for a single text contains a second text".to_owned())
}

/// Returns `tokenizer.json` without its pieces, and the pieces, if it is one of a unigram model that we read ourselves.
fn with_small_model(file: &[u8]) -> Option<(Vec<u8>, Unigram)> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
    }
    #[derive(Deserialize)]
    struct Added {
        id: u32,
        content: String,
        special: bool,
    }
    let mut parts: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(file).ok()?;
    let model = parts.get("model")?.get();
    if serde_json::from_str::<Kind>(model).ok()?.r#type? != "Unigram" {
        return None;
    }
    let added: Vec<Added> =
        parts.get("added_tokens").map_or(Ok(Vec::new()), |added| serde_json::from_str(added.get())).ok()?;
    let special = added.iter().filter(|token| token.special).map(|token| token.id).collect();
    let unigram = Unigram::new(&serde_json::from_str::<UnigramFile>(model).ok()?, special)?;
    // The library compares the ids of added tokens with those of its model.
    let vocab: HashMap<&str, u32> = added.iter().map(|token| (&*token.content, token.id)).collect();
    let unknown = added.first().map_or("", |token| &token.content);
    let placeholder = serde_json::json!({"type": "WordLevel", "vocab": vocab, "unk_token": unknown});
    parts.insert("model".to_owned(), serde_json::value::to_raw_value(&placeholder).ok()?);
    Some((serde_json::to_vec(&parts).ok()?, unigram))
}

/// Says where the tokenizer's texts can be divided.
///
/// BERT's normalizer maps characters one by one (it reorders combining marks, but never across a blank), its pre-tokenizer
/// splits at every blank and mark, and WordPiece processes one word at a time. XLM-RoBERTa's normalizer composes
/// characters, but never across a blank, and its pre-tokenizer splits at blanks before it puts a mark before every word.
fn splits(tokenizer: &Inner) -> Splits {
    // The tokenizer searches the text for added tokens before it splits the text.
    let is_bound = |token: &AddedToken| token.lstrip || token.rstrip || token.content.bytes().any(is_blank);
    if tokenizer.get_added_tokens_decoder().values().any(|token| is_bound(token) && !token.special) {
        return Splits::Unknown;
    }
    let (normalizer, pre_tokenizer) = (tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer());
    match tokenizer.get_model() {
        AnyModel::Library(ModelWrapper::WordPiece(_))
            if matches!(normalizer, None | Some(NormalizerWrapper::BertNormalizer(_)))
                && matches!(pre_tokenizer, Some(PreTokenizerWrapper::BertPreTokenizer(_))) =>
        {
            Splits::AtBlanksAndMarks
        }
        AnyModel::Unigram(_) if normalizer.is_none_or(is_local) && pre_tokenizer.is_some_and(reads_words) => {
            Splits::AtBlanks
        }
        _ => Splits::Unknown,
    }
}

/// Whether a normalizer never maps a blank together with what stands beside it.
fn is_local(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().all(is_local),
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFC(_) | NormalizerWrapper::Nmt(_) => true,
        // Patterns that contain no blank and are not expressions, of which that is unknown.
        NormalizerWrapper::Replace(replace) => serde_json::to_value(replace).is_ok_and(|replace| {
            replace["pattern"]["String"].as_str().is_some_and(|text| !text.bytes().any(is_blank))
        }),
        _ => false,
    }
}

/// Whether a pre-tokenizer divides a text into words first, and then looks at each word for itself.
fn reads_words(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(all) => match all.as_ref() {
            [PreTokenizerWrapper::WhitespaceSplit(_), PreTokenizerWrapper::Metaspace(spaces)] => {
                spaces.get_prepend_scheme() == tokenizers::pre_tokenizers::metaspace::PrependScheme::Always
            }
            _ => false,
        },
        _ => false,
    }
}
