//! Reads many values at once before a deadline. A value that cannot be read is a miss, never an error.
//! Does not know what the values hold.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use redis::{Value, cmd};
use tokio::time::Instant;

use super::nodes::NodeTable;
use super::outcome::{self, Failure};
use super::seal::OVERHEAD_BYTES;
use super::{BLOCK_BYTES_MAX, Core};

/// Commands of one call in flight at once. The limit bounds the replies that are in memory.
const CALL_GETS_MAX: usize = 128;

enum GetOutcome {
    Hit(Bytes),
    Miss,
    Damaged,
    /// The deadline passed before the command was sent.
    Late,
    /// The server's circuit breaker is open.
    Skipped,
    Failed(Failure),
}

#[derive(Clone, Default)]
struct NodeOutcome {
    answered: bool,
    failure: Option<Failure>,
}

impl Core {
    /// Returns the values under `names`, in the order of `names`. A value that is missing, damaged, or not
    /// received within `timeout` is `None`.
    pub(super) async fn get_many(&self, names: &[String], timeout: Duration) -> Vec<Option<Bytes>> {
        let started = Instant::now();
        let (deadline, table) = (started + timeout, self.nodes.table());
        let mut found = vec![None; names.len()];
        let mut node_outcomes = vec![NodeOutcome::default(); table.nodes().len()];
        let mut counts = std::collections::BTreeMap::<&str, usize>::new();
        let get = |index: usize| {
            let (name, table) = (&names[index], &table);
            async move { (index, self.get(name, table, deadline).await) }
        };
        let mut gets = stream::iter(0..names.len()).map(get).buffer_unordered(CALL_GETS_MAX);
        while let Some((index, get)) = gets.next().await {
            *counts.entry(get.label()).or_default() += 1;
            let node = &mut node_outcomes[table.index(&names[index])];
            match get {
                GetOutcome::Hit(value) => {
                    found[index] = Some(value);
                    node.answered = true;
                }
                GetOutcome::Miss | GetOutcome::Damaged => node.answered = true,
                GetOutcome::Failed(failure) => node.failure = Some(failure),
                GetOutcome::Late | GetOutcome::Skipped => {}
            }
        }
        drop(gets);
        counts.into_iter().for_each(|(outcome, count)| outcome::count("get", outcome, count));
        if node_outcomes.iter().any(|node| node.answered || node.failure.is_some()) {
            outcome::record_seconds("get", started.elapsed());
        }
        self.record_outcomes(&table, &node_outcomes);
        found
    }

    async fn get(&self, name: &str, table: &Arc<NodeTable>, deadline: Instant) -> GetOutcome {
        let node = &table.nodes()[table.index(name)];
        if !node.is_available() {
            return GetOutcome::Skipped;
        }
        let Ok(permit) = tokio::time::timeout_at(deadline, self.gets.acquire()).await else {
            return GetOutcome::Late;
        };
        if Instant::now() >= deadline {
            return GetOutcome::Late;
        }
        // GETRANGE instead of GET, so that a value of any size returns no more bytes than a block has.
        let mut command = cmd("GETRANGE");
        command.arg(name).arg(0).arg(BLOCK_BYTES_MAX + OVERHEAD_BYTES - 1);
        let reply = self.reads.send(&command, deadline).await;
        drop(permit);
        match reply {
            Ok(Value::BulkString(value)) if value.is_empty() => GetOutcome::Miss,
            Ok(Value::BulkString(value)) => match self.sealer.open(&[name.as_bytes()], Bytes::from(value)) {
                Some(value) => GetOutcome::Hit(value),
                None => GetOutcome::Damaged,
            },
            Ok(Value::Nil) => GetOutcome::Miss,
            Ok(_) | Err(Failure::WrongType | Failure::UnexpectedReply) => GetOutcome::Damaged,
            Err(failure) => GetOutcome::Failed(failure),
        }
    }

    /// Updates the circuit breakers. A node that answered for at least one key of the call is healthy. A node
    /// that answered for none counts as one failure, however many keys it was asked for: a large call that
    /// ends at its deadline is not many failures of the server.
    fn record_outcomes(&self, table: &NodeTable, outcomes: &[NodeOutcome]) {
        for (node, outcome) in table.nodes().iter().zip(outcomes) {
            match &outcome.failure {
                _ if outcome.answered => node.record_success(),
                Some(failure) if node.record_failure(self.limits.failures_max) => {
                    self.on_breaker_opened(&node.address, failure);
                }
                _ => {}
            }
        }
    }
}

impl GetOutcome {
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
