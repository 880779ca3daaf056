//! A log in the memory of one process: for tests, and the plainest reading of what a log has to do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thresher_core::domain::Chunk;
use tokio::sync::watch;

use super::{ChangeLog, Event, Later, LogError, LogPage, Position, Tail};
use crate::change::{Change, id_of};

/// Chunks on a page; small, so that tests see several.
const PAGE_COUNT: usize = 3;

/// A log. Clones are the same log.
#[derive(Clone)]
pub struct MemoryLog {
    state: Arc<Mutex<State>>,
    turn: Arc<watch::Sender<()>>,
}

#[derive(Default)]
struct State {
    entries: VecDeque<(Position, Vec<Change>)>,
    chunks: BTreeMap<String, Arc<Chunk>>,
    /// Of the last entry ever, and of the last that was trimmed away.
    end: Option<Position>,
    trimmed: Option<Position>,
    clock: u64,
    lives: u64,
    down: bool,
    /// Whether pages are answered later.
    holds_pages: bool,
    /// Whether publishing waits, and how many batches do.
    holds_publishing: bool,
    held: usize,
    /// Pages that are answered before one fails.
    pages_left: Option<usize>,
    /// Ids of chunks that cannot be read.
    damaged: BTreeSet<String>,
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self { state: Arc::default(), turn: Arc::new(watch::Sender::new(())) }
    }
}

impl MemoryLog {
    /// Whether it answers.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
        self.turn.send_replace(());
    }

    /// Forgets all but the last `keep` entries; what they add up to stays.
    pub fn trim(&self, keep: usize) {
        let mut state = self.state();
        while state.entries.len() > keep {
            state.trimmed = state.entries.pop_front().map(|(position, _)| position);
        }
        drop(state);
        self.turn.send_replace(());
    }

    /// Loses the last `count` entries and what they changed, as a server does that comes back from a copy.
    pub fn rewind(&self, count: usize) {
        let mut state = self.state();
        let kept = state.entries.len().saturating_sub(count);
        let entries: Vec<_> = state.entries.drain(..).take(kept).collect();
        assert_eq!(state.trimmed, None, "what was trimmed cannot be played again");
        (state.chunks, state.end) = (BTreeMap::new(), None);
        for (position, changes) in entries {
            state.play(&changes);
            state.end = Some(position);
            state.entries.push_back((position, changes));
        }
        drop(state);
        self.turn.send_replace(());
    }

    /// Loses everything, as a server without a disk does when it restarts, perhaps with a clock that goes wrong.
    pub fn lose(&self, clock_set_back: bool) {
        let mut state = self.state();
        let clock = if clock_set_back { 0 } else { state.clock };
        let (lives, holds_pages) = (state.lives + 1, state.holds_pages);
        *state = State { lives, clock, holds_pages, ..State::default() };
        drop(state);
        self.turn.send_replace(());
    }

    /// Whether pages are answered only once this is called again.
    pub fn hold_pages(&self, holds: bool) {
        self.state().holds_pages = holds;
        self.turn.send_replace(());
    }

    /// Whether publishing waits until this is called again.
    pub fn hold_publishing(&self, holds: bool) {
        self.state().holds_publishing = holds;
        self.turn.send_replace(());
    }

    /// Batches that wait to be published.
    pub fn held(&self) -> usize {
        self.state().held
    }

    /// Appends an entry, whoever is kept waiting.
    pub fn append(&self, changes: Vec<Change>) -> Position {
        let position = self.state().append(changes);
        self.turn.send_replace(());
        position
    }

    /// Damages the chunk of `id`, until it is written again.
    pub fn damage(&self, id: &str) {
        self.state().damaged.insert(id.to_owned());
    }

    /// One page fails after `count` more.
    pub fn fail_page_after(&self, count: usize) {
        self.state().pages_left = Some(count);
    }

    /// Whether that has happened.
    pub fn page_has_failed(&self) -> bool {
        self.state().pages_left.is_none()
    }

    /// Ids of the chunks that it adds up to, ascending.
    pub fn ids(&self) -> Vec<String> {
        self.state().chunks.keys().cloned().collect()
    }

    /// Entries that are in it.
    pub fn len(&self) -> usize {
        self.state().entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, LogError> {
        let mut state = self.state();
        match state.down {
            true => Err(LogError { reason: "it is down: nothing was changed".to_owned() }),
            false => Ok(work(&mut state)),
        }
    }
}

impl State {
    fn append(&mut self, changes: Vec<Change>) -> Position {
        self.clock += 1;
        let position = Position { ms: self.clock / 4, seq: self.clock % 4 };
        self.play(&changes);
        self.entries.push_back((position, changes));
        self.end = Some(position);
        position
    }

    fn play(&mut self, changes: &[Change]) {
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
        let behind = |id: &String| cursor.as_ref().is_none_or(|cursor| id > cursor);
        let mut left = self.chunks.iter().filter(|(id, _)| behind(id));
        let page: Vec<_> = left.by_ref().take(PAGE_COUNT).collect();
        let next = left.next().and_then(|_| page.last().map(|(id, _)| (*id).clone()));
        let (damaged, sound): (Vec<_>, Vec<_>) =
            page.into_iter().partition(|(id, _)| self.damaged.contains(*id));
        LogPage {
            chunks: sound.into_iter().map(|(_, chunk)| Arc::clone(chunk)).collect(),
            unreadable: damaged.into_iter().map(|(id, _)| id.clone()).collect(),
            next,
        }
    }

    /// None while there is nothing to say.
    fn event(&self, at: Option<Position>, life: u64) -> Option<Event> {
        let is_there = |at| self.entries.iter().any(|(position, _)| *position == at);
        match at {
            _ if life != self.lives => return Some(Event::Rewound),
            _ if self.trimmed > at => return Some(Event::Missing),
            Some(at) if self.trimmed != Some(at) && !is_there(at) => return Some(Event::Rewound),
            _ => {}
        }
        let next = self.entries.iter().find(|(position, _)| Some(*position) > at)?;
        Some(Event::Entry(next.0, next.1.clone()))
    }
}

impl ChangeLog for MemoryLog {
    fn identity(&self) -> Later<'_, Result<String, LogError>> {
        Box::pin(async { self.ask(|state| format!("memory-{}", state.lives)) })
    }

    fn publish(&self, changes: Vec<Change>) -> Later<'_, Result<Position, LogError>> {
        Box::pin(async {
            let mut turns = self.turn.subscribe();
            self.state().held += 1;
            while self.state().holds_publishing {
                let _ = turns.changed().await;
            }
            self.state().held -= 1;
            self.ask(|_| ())?;
            Ok(self.append(changes))
        })
    }

    fn end(&self) -> Later<'_, Result<Option<Position>, LogError>> {
        Box::pin(async { self.ask(|state| state.end) })
    }

    fn follow(&self, position: Option<Position>) -> Box<dyn Tail> {
        let life = self.state().lives;
        Box::new(MemoryTail { log: self.clone(), turns: self.turn.subscribe(), at: position, life })
    }

    fn page(&self, cursor: Option<String>) -> Later<'_, Result<LogPage, LogError>> {
        Box::pin(async {
            let mut turns = self.turn.subscribe();
            while self.state().holds_pages {
                let _ = turns.changed().await;
            }
            let left = self.ask(|state| {
                let left = state.pages_left;
                state.pages_left = left.and_then(|left| left.checked_sub(1));
                left
            })?;
            match left {
                Some(0) => Err(LogError { reason: "this page fails: nothing was changed".to_owned() }),
                _ => self.ask(|state| state.page(cursor)),
            }
        })
    }
}

struct MemoryTail {
    log: MemoryLog,
    turns: watch::Receiver<()>,
    at: Option<Position>,
    life: u64,
}

impl Tail for MemoryTail {
    fn next(&mut self) -> Later<'_, Event> {
        Box::pin(async {
            loop {
                self.turns.mark_unchanged();
                // While it is down there is nothing to say.
                if let Ok(Some(event)) = self.log.ask(|state| state.event(self.at, self.life)) {
                    if let Event::Entry(position, _) = &event {
                        self.at = Some(*position);
                    }
                    return event;
                }
                let _ = self.turns.changed().await;
            }
        })
    }
}
