//! Makes the index what a log adds up to, where its entries are missing or were never followed.
//! Knows nothing of entries, or of where the log is kept.

use std::collections::HashSet;
use std::sync::Arc;

use thresher_core::domain::Chunk;

use super::RegistryError;
use super::change::Change;
use super::content::id_hash;
use super::log::{ChangeLog, LogError, Place};
use super::store::{Store, blocking};
use super::writer::Commit;

/// Chunks of this registry that go into one entry of a log that lacks them.
const ENTRY_COUNT: usize = 64;

/// What happens to chunks that this registry has and the log lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// They were deleted while nobody looked.
    Delete,
    /// The log is new to this registry, or has lost its content or its end: it gets them, unless it has others under
    /// their ids by then.
    Publish,
}

/// Makes the index what the log called `name` adds up to, in one commit; where to follow from then. Chunks that are
/// damaged in the log and sound here are given to it again.
pub async fn adopt(
    store: &Arc<Store>,
    log: &dyn ChangeLog,
    name: String,
    extra: Extra,
) -> Result<Place, RegistryError> {
    // Taken before the pages: what changes meanwhile comes again.
    let position = log.end().await?.unwrap_or_default();
    let (mut cursor, mut theirs, mut unreadable) = (None, HashSet::new(), HashSet::new());
    loop {
        let page = log.page(cursor).await?;
        unreadable.extend(page.unreadable);
        theirs.extend(page.chunks.iter().map(|chunk| id_hash(&chunk.id)));
        store.follow(page.chunks.into_iter().map(Change::Put).collect(), Commit::Later).await?;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let known = theirs.len();
    let ours = blocking({
        let store = Arc::clone(store);
        move || store.ids(None).filter(|id| !theirs.contains(&id_hash(id))).collect::<Vec<_>>()
    })
    .await?;
    let give = |id: &Arc<str>| extra == Extra::Publish || unreadable.contains(&**id);
    let (given, deleted): (Vec<_>, Vec<_>) = ours.into_iter().partition(give);
    // Before the place is committed: after a crash in between they are still known to be ours.
    for ids in given.chunks(ENTRY_COUNT) {
        let (store, ids) = (Arc::clone(store), ids.to_vec());
        let chunks = blocking(move || store.get(&ids)).await??;
        // What somebody has registered since the pages were read is newer.
        let give = |chunk: Arc<Chunk>| match unreadable.contains(&chunk.id) {
            true => Change::Put(chunk),
            false => Change::Offer(chunk),
        };
        let chunks: Vec<_> = chunks.into_iter().flatten().map(give).collect();
        if !chunks.is_empty() {
            log.publish(chunks).await?;
        }
    }
    // Names do not come back: if it has this one still, all of this was the same log.
    if log.identity().await? != name {
        return Err(LogError { reason: "it was lost while it was being read".to_owned() }.into());
    }
    tracing::info!(
        theirs = known,
        given = given.len(),
        deleted = deleted.len(),
        "the registry has met the log"
    );
    let place = Place { log: name, position };
    let deleted = deleted.iter().map(|id| Change::Delete(id.to_string())).collect();
    store.follow(deleted, Commit::At(place.clone())).await?;
    Ok(place)
}
