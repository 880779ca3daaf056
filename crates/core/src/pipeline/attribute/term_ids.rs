//! The ids of the terms of a text: hashes, so that texts need no common vocabulary.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::domain::Lang;
use crate::text::{self, Term, Writing};
use crate::text_cache::TextCache;

/// The hash of a name of a term. Two names among a million have the same hash once in 37 million times.
pub(super) type TermId = u64;

/// The bytes of all entries of the cache together.
const BYTES_MAX: usize = 8 << 20;

/// The number of texts that the cache is made for; more or fewer may fit.
const TEXTS: usize = 1 << 15;

/// The bytes of an entry of the cache besides its key and its ids.
const ENTRY_BYTES: usize = 64;

/// A cache of the ids of the terms of texts. The sources of a conversation are the same in each of its requests,
/// and reading their words takes longer than attributing an answer to them.
pub struct TermIds(TextCache<Option<Lang>, Arc<[TermId]>>);

impl Default for TermIds {
    fn default() -> Self {
        Self(TextCache::with_bytes(TEXTS, BYTES_MAX, |ids| ENTRY_BYTES + size_of_val::<[TermId]>(ids)))
    }
}

impl TermIds {
    /// Returns the bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Returns the ids of all names of the terms of a text in this language, ascending and distinct, from the cache if possible.
    pub(super) fn of_text(&self, text: &str, lang: Option<Lang>) -> Arc<[TermId]> {
        self.0.get_or_find(lang, text, || {
            let terms = text::terms_in(text, &[], lang.and_then(Writing::in_lang));
            sorted_distinct(terms.iter().flat_map(ids_of).collect()).into()
        })
    }
}

/// Returns the id of a name.
pub(super) fn id_of(name: &str) -> TermId {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn ids_of(term: &Term) -> impl Iterator<Item = TermId> {
    std::iter::once(id_of(&term.folded)).chain(term.other_names().map(|name| id_of(&name)))
}

pub(super) fn sorted_distinct(mut ids: Vec<TermId>) -> Vec<TermId> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
