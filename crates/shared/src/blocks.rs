//! Reading many values at once, before a deadline, without ever failing a request.
//! Knows nothing of what the values are.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use redis::{Value, cmd};
use tokio::time::Instant;

use super::failure::Failure;
use super::nodes::Table;
use super::seal::OVERHEAD_BYTES;
use super::{BLOCK_BYTES_MAX, Core, observe};

/// Commands of one call that are under way at once; the answers of these stand in memory.
const CALL_GETS_MAX: usize = 128;

/// What became of one key.
enum Get {
    Hit(Bytes),
    Miss,
    Damaged,
    /// The deadline passed before it was asked for.
    Late,
    /// Its server is left alone.
    Skipped,
    Failed(Failure),
}

/// Answers and failures of one node within a call.
#[derive(Clone, Default)]
struct Tally {
    answered: bool,
    failure: Option<Failure>,
}

impl Core {
    /// The values under `names`, in their order; `None` for whatever is not there within `patience`.
    pub(super) async fn get_many(&self, names: &[String], patience: Duration) -> Vec<Option<Bytes>> {
        let started = Instant::now();
        let (deadline, table) = (started + patience, self.nodes.table());
        let mut found = vec![None; names.len()];
        let mut tallies = vec![Tally::default(); table.nodes().len()];
        let mut counts = std::collections::BTreeMap::<&str, usize>::new();
        let get = |at: usize| {
            let (name, table) = (&names[at], &table);
            async move { (at, self.get(name, table, deadline).await) }
        };
        let mut gets = stream::iter(0..names.len()).map(get).buffer_unordered(CALL_GETS_MAX);
        while let Some((at, get)) = gets.next().await {
            *counts.entry(get.label()).or_default() += 1;
            let tally = &mut tallies[table.index(&names[at])];
            match get {
                Get::Hit(value) => {
                    found[at] = Some(value);
                    tally.answered = true;
                }
                Get::Miss | Get::Damaged => tally.answered = true,
                Get::Failed(failure) => tally.failure = Some(failure),
                Get::Late | Get::Skipped => {}
            }
        }
        drop(gets);
        counts.into_iter().for_each(|(outcome, count)| observe::count("get", outcome, count));
        if tallies.iter().any(|tally| tally.answered || tally.failure.is_some()) {
            observe::time("get", started.elapsed());
        }
        self.judge(&table, &tallies);
        found
    }

    async fn get(&self, name: &str, table: &Arc<Table>, deadline: Instant) -> Get {
        let node = &table.nodes()[table.index(name)];
        if !node.admits() {
            return Get::Skipped;
        }
        let Ok(permit) = tokio::time::timeout_at(deadline, self.gets.acquire()).await else {
            return Get::Late;
        };
        if Instant::now() >= deadline {
            return Get::Late;
        }
        // As GET, but whatever stands there, no more than a block comes back.
        let mut command = cmd("GETRANGE");
        command.arg(name).arg(0).arg(BLOCK_BYTES_MAX + OVERHEAD_BYTES - 1);
        let answer = self.reads.send(&command, deadline).await;
        drop(permit);
        match answer {
            Ok(Value::BulkString(value)) if value.is_empty() => Get::Miss,
            Ok(Value::BulkString(value)) => match self.seal.open(&[name.as_bytes()], Bytes::from(value)) {
                Some(value) => Get::Hit(value),
                None => Get::Damaged,
            },
            Ok(Value::Nil) => Get::Miss,
            Ok(_) | Err(Failure::WrongType | Failure::Strange) => Get::Damaged,
            Err(failure) => Get::Failed(failure),
        }
    }

    /// A node that answered any key of a call is well; one that answered none of those asked of it failed once, however
    /// many they were: the end of a large call is not a failure of the server.
    fn judge(&self, table: &Table, tallies: &[Tally]) {
        for (node, tally) in table.nodes().iter().zip(tallies) {
            match &tally.failure {
                _ if tally.answered => node.answered(),
                Some(failure) if node.failed(self.failures_max) => self.opened(&node.address, failure),
                _ => {}
            }
        }
    }
}

impl Get {
    fn label(&self) -> &'static str {
        match self {
            Self::Hit(_) => "hit",
            Self::Miss => "miss",
            Self::Damaged => "damaged",
            Self::Late => "timeout",
            Self::Skipped => "skipped",
            Self::Failed(failure) => failure.label(),
        }
    }
}
