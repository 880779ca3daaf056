//! A log in the memory of one process, for tests. It is also the simplest implementation of a log's contract.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thresher_core::domain::Chunk;
use tokio::sync::watch;

use super::{ChangeLog, Event, Later, LogError, LogPage, Position, Tail};
use crate::change::{Change, id_of};

/// The number of chunks on a page. It is small so that tests read several pages.
const PAGE_COUNT: usize = 3;

/// A log in memory, with methods that simulate failures. Clones refer to the same log.
#[derive(Clone)]
pub struct MemoryLog {
    state: Arc<Mutex<State>>,
    updates: Arc<watch::Sender<()>>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<(Position, Vec<Change>)>,
    chunks: BTreeMap<String, Arc<Chunk>>,
    /// The position of the last entry that was appended.
    end: Option<Position>,
    /// The position of the last entry that was trimmed.
    trimmed: Option<Position>,
    clock: u64,
    /// How often the log has lost its content; part of its identity.
    generation: u64,
    down: bool,
    /// Whether [`ChangeLog::page`] waits.
    holds_pages: bool,
    /// Whether [`ChangeLog::publish`] waits.
    holds_publishing: bool,
    /// The number of batches that wait to be published.
    waiting_count: usize,
    /// The number of pages that are returned before one fails.
    pages_left: Option<usize>,
    /// The ids of chunks that cannot be read.
    damaged: BTreeSet<String>,
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self { state: Arc::default(), updates: Arc::new(watch::Sender::new(())) }
    }
}

impl MemoryLog {
    /// Makes the log unavailable (true) or available again (false).
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
        self.updates.send_replace(());
    }

    /// Removes all but the last `keep` entries. The state that the entries add up to stays.
    pub fn trim(&self, keep: usize) {
        let mut state = self.state();
        while state.entries.len() > keep {
            state.trimmed = state.entries.pop_front().map(|(position, _)| position);
        }
        drop(state);
        self.updates.send_replace(());
    }

    /// Loses the last `count` entries and their effect, like a server that is restored from an older copy.
    ///
    /// # Panics
    /// Panics if the log was trimmed, because the state cannot be computed again then.
    pub fn rewind(&self, count: usize) {
        let mut state = self.state();
        let kept = state.entries.len().saturating_sub(count);
        let entries: Vec<_> = state.entries.drain(..).take(kept).collect();
        assert_eq!(state.trimmed, None, "trimmed entries cannot be applied again");
        (state.chunks, state.end) = (BTreeMap::new(), None);
        for (position, changes) in entries {
            state.apply(&changes);
            state.end = Some(position);
            state.entries.push_back((position, changes));
        }
        drop(state);
        self.updates.send_replace(());
    }

    /// Loses all content, like a server without a disk that restarts. With `clock_set_back`, the clock starts
    /// from 0 again.
    pub fn lose(&self, clock_set_back: bool) {
        let mut state = self.state();
        let clock = if clock_set_back { 0 } else { state.clock };
        let (generation, holds_pages) = (state.generation + 1, state.holds_pages);
        *state = State { generation, clock, holds_pages, ..State::default() };
        drop(state);
        self.updates.send_replace(());
    }

    /// Makes pages wait (true), or lets them continue (false).
    pub fn hold_pages(&self, holds: bool) {
        self.state().holds_pages = holds;
        self.updates.send_replace(());
    }

    /// Makes publishing wait (true), or lets it continue (false).
    pub fn hold_publishing(&self, holds: bool) {
        self.state().holds_publishing = holds;
        self.updates.send_replace(());
    }

    /// Returns the number of batches that wait to be published.
    pub fn waiting_count(&self) -> usize {
        self.state().waiting_count
    }

    /// Appends an entry, even while publishing waits. Returns the entry's position.
    pub fn append(&self, changes: Vec<Change>) -> Position {
        let position = self.state().append(changes);
        self.updates.send_replace(());
        position
    }

    /// Damages the chunk of `id` until it is written again.
    pub fn damage(&self, id: &str) {
        self.state().damaged.insert(id.to_owned());
    }

    /// Makes one page fail, after `count` more pages have been returned.
    pub fn fail_page_after(&self, count: usize) {
        self.state().pages_left = Some(count);
    }

    /// Returns whether the page of [`Self::fail_page_after`] has failed.
    pub fn page_has_failed(&self) -> bool {
        self.state().pages_left.is_none()
    }

    /// Returns the ids of the chunks that the log adds up to, ascending.
    pub fn ids(&self) -> Vec<String> {
        self.state().chunks.keys().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.state().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn if_available<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, LogError> {
        let mut state = self.state();
        if state.down {
            Err(LogError { reason: "it is down: nothing was changed".to_owned() })
        } else {
            Ok(work(&mut state))
        }
    }
}

impl State {
    fn append(&mut self, changes: Vec<Change>) -> Position {
        self.clock += 1;
        let position = Position { ms: self.clock / 4, seq: self.clock % 4 };
        self.apply(&changes);
        self.entries.push_back((position, changes));
        self.end = Some(position);
        position
    }

    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(chunk) => drop(self.chunks.insert(chunk.id.clone(), Arc::clone(chunk))),
                Change::Offer(chunk) => {
                    self.chunks.entry(chunk.id.clone()).or_insert_with(|| Arc::clone(chunk));
                    continue;
                }
                Change::Delete(id) => drop(self.chunks.remove(id)),
            }
            self.damaged.remove(id_of(change));
        }
    }

    fn page(&self, cursor: Option<String>) -> LogPage {
        let is_after = |id: &String| cursor.as_ref().is_none_or(|cursor| id > cursor);
        let mut left = self.chunks.iter().filter(|(id, _)| is_after(id));
        let page: Vec<_> = left.by_ref().take(PAGE_COUNT).collect();
        let next = left.next().and_then(|_| page.last().map(|(id, _)| (*id).clone()));
        let (damaged, intact): (Vec<_>, Vec<_>) =
            page.into_iter().partition(|(id, _)| self.damaged.contains(*id));
        LogPage {
            chunks: intact.into_iter().map(|(_, chunk)| Arc::clone(chunk)).collect(),
            unreadable: damaged.into_iter().map(|(id, _)| id.clone()).collect(),
            next,
        }
    }

    /// The next event of a tail at `at`; `None` while there is none.
    fn event(&self, at: Option<Position>, generation: u64) -> Option<Event> {
        let exists = |at| self.entries.iter().any(|(position, _)| *position == at);
        match at {
            _ if generation != self.generation => return Some(Event::Rewound),
            _ if self.trimmed > at => return Some(Event::Missing),
            Some(at) if self.trimmed != Some(at) && !exists(at) => return Some(Event::Rewound),
            _ => {}
        }
        let next = self.entries.iter().find(|(position, _)| Some(*position) > at)?;
        Some(Event::Entry(next.0, next.1.clone()))
    }
}

impl ChangeLog for MemoryLog {
    fn identity(&self) -> Later<'_, Result<String, LogError>> {
        Box::pin(async { self.if_available(|state| format!("memory-{}", state.generation)) })
    }

    fn publish(&self, changes: Vec<Change>) -> Later<'_, Result<Position, LogError>> {
        Box::pin(async {
            let mut updates = self.updates.subscribe();
            self.state().waiting_count += 1;
            while self.state().holds_publishing {
                let _ = updates.changed().await;
            }
            self.state().waiting_count -= 1;
            self.if_available(|_| ())?;
            Ok(self.append(changes))
        })
    }

    fn end(&self) -> Later<'_, Result<Option<Position>, LogError>> {
        Box::pin(async { self.if_available(|state| state.end) })
    }

    fn trim(&self, first: Position) -> Later<'_, Result<(), LogError>> {
        let keep = self.state().entries.iter().filter(|(position, _)| *position >= first).count();
        self.trim(keep);
        Box::pin(async { Ok(()) })
    }

    fn follow(&self, position: Option<Position>) -> Box<dyn Tail> {
        let generation = self.state().generation;
        Box::new(MemoryTail {
            log: self.clone(),
            updates: self.updates.subscribe(),
            at: position,
            generation,
        })
    }

    fn page(&self, cursor: Option<String>) -> Later<'_, Result<LogPage, LogError>> {
        Box::pin(async {
            let mut updates = self.updates.subscribe();
            while self.state().holds_pages {
                let _ = updates.changed().await;
            }
            let left = self.if_available(|state| {
                let left = state.pages_left;
                state.pages_left = left.and_then(|left| left.checked_sub(1));
                left
            })?;
            match left {
                Some(0) => Err(LogError { reason: "this page fails: nothing was changed".to_owned() }),
                _ => self.if_available(|state| state.page(cursor)),
            }
        })
    }
}

struct MemoryTail {
    log: MemoryLog,
    updates: watch::Receiver<()>,
    at: Option<Position>,
    generation: u64,
}

impl Tail for MemoryTail {
    fn next(&mut self) -> Later<'_, Event> {
        Box::pin(async {
            loop {
                self.updates.mark_unchanged();
                // While the log is down, the tail waits.
                let event = self.log.if_available(|state| state.event(self.at, self.generation));
                if let Ok(Some(event)) = event {
                    if let Event::Entry(position, _) = &event {
                        self.at = Some(*position);
                    }
                    return event;
                }
                let _ = self.updates.changed().await;
            }
        })
    }
}
