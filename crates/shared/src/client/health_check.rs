//! The background task that connects, checks servers whose circuit breaker is open, closes breakers, and logs
//! changes of health. No other code connects the links of [`Core`]. Does not know about requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::cmd;
use tokio::time::Instant;

use super::Core;
use super::nodes::Node;
use super::outcome::{self, Failure};

/// The pause between two checks while all servers are healthy.
const HEALTHY_PAUSE: Duration = Duration::from_secs(10);

/// After this many failed checks in a row, the client of a cluster is replaced, because it keeps connections
/// that do not answer.
const FAILED_CHECKS_TO_RECONNECT: u32 = 2;

/// How many times the pause between two failed checks doubles.
const DOUBLINGS_MAX: u32 = 3;

/// The health of the shared tier as the log last reported it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HealthReply {
    None,
    Healthy,
    Unhealthy,
}

/// Checks the servers again and again, until the task is aborted.
pub async fn health_check(core: Arc<Core>) {
    let mut failed_checks = 0_u32;
    loop {
        let unhealthy = core.check_servers(failed_checks).await;
        core.report(unhealthy.as_ref().map(|(address, failure)| (address.as_str(), failure)));
        match unhealthy {
            None => {
                failed_checks = 0;
                let _ = tokio::time::timeout(HEALTHY_PAUSE, core.wake.notified()).await;
            }
            Some(_) => {
                let pause = core.limits.probe_pause * 2_u32.pow(failed_checks.min(DOUBLINGS_MAX));
                failed_checks = failed_checks.saturating_add(1);
                tokio::time::sleep(jittered(pause)).await;
            }
        }
    }
}

/// Returns a random pause of 0.75 to 1.25 times `pause`, so that a thousand sidecars that lost the same
/// server do not all reconnect at once.
pub fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    pause.mul_f64(0.75 + random / 2.0)
}

impl Core {
    /// Makes the connections that are missing, then probes every server. Returns the address and the failure
    /// of one server that is unhealthy, or `None` if all are healthy.
    pub(super) async fn check_servers(&self, failed_checks: u32) -> Option<(String, Failure)> {
        let reconnects =
            self.cluster && failed_checks > 0 && failed_checks.is_multiple_of(FAILED_CHECKS_TO_RECONNECT);
        for link in [&self.reads, &self.writes] {
            if reconnects || !link.is_connected() {
                let connected = link.connect().await;
                // A failure to reconnect does not matter while the old connection still works in part.
                let ignored = |failure| link.is_connected().then_some(()).ok_or(failure);
                if let Err(failure) = connected.or_else(ignored) {
                    self.nodes.table().nodes().iter().for_each(|node| node.open_breaker());
                    return Some((self.target.addresses(), failure));
                }
            }
        }
        if self.cluster {
            let mut command = cmd("CLUSTER");
            command.arg("SLOTS");
            match self.reads.send(&command, Instant::now() + self.health_check_timeout).await {
                Ok(reply) => self.nodes.update_slots(&reply),
                Err(failure) => {
                    tracing::debug!(reason = %failure, "the slots of the cluster could not be read")
                }
            }
        }
        let table = self.nodes.table();
        let probes = join_all(table.nodes().iter().map(|node| self.probe_node(node))).await;
        let mut unhealthy = None;
        for (node, probed) in table.nodes().iter().zip(probes) {
            match probed {
                Ok(()) if node.is_available() => {}
                Ok(()) => node.close_breaker(),
                Err(failure) => {
                    // While there are no requests, only a probe finds a failure.
                    node.record_failure(self.limits.failures_max);
                    unhealthy = Some((node.address.clone(), failure));
                }
            }
        }
        if let Some((_, failure)) = &unhealthy
            && table.open_share() == 1.0
            && (self.cluster || *failure == Failure::Timeout)
        {
            // After so many timeouts the server may have gone without closing the connection, or its name may
            // now belong to another address. The client of a cluster would try to recover without a pause.
            [&self.reads, &self.writes].into_iter().for_each(|link| link.disconnect());
        }
        unhealthy
    }

    /// Reads a key of the node. A node is healthy if it answers within the timeout of a request.
    async fn probe_node(&self, node: &Node) -> Result<(), Failure> {
        if node.probe.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let mut command = cmd("GETRANGE");
        command.arg(&node.probe).arg(0).arg(0);
        let reply = self.reads.send(&command, started + self.health_check_timeout).await;
        match reply {
            Ok(_) | Err(Failure::WrongType) if started.elapsed() <= self.timeout => Ok(()),
            Ok(_) | Err(Failure::WrongType) => Err(Failure::Timeout),
            Err(failure) => Err(failure),
        }
    }

    /// Handles a circuit breaker that the failures of requests opened: reports it and starts the next check
    /// at once.
    pub(super) fn on_breaker_opened(&self, address: &str, failure: &Failure) {
        self.report(Some((address, failure)));
        self.wake.notify_one();
    }

    /// Updates the metric, and writes to the log if the health of the tier has changed.
    fn report(&self, unhealthy: Option<(&str, &Failure)>) {
        let open_share = self.nodes.table().open_share();
        outcome::set_breaker_open(open_share);
        let mut reported = self.health_reply.lock().unwrap_or_else(PoisonError::into_inner);
        let now = if open_share > 0.0 { HealthReply::Unhealthy } else { HealthReply::Healthy };
        match (now, unhealthy) {
            _ if *reported == now => return,
            (HealthReply::Unhealthy, Some((node, failure))) => {
                tracing::warn!(node, reason = %failure, open_share, "the shared tier does not answer; requests go on without it");
            }
            (HealthReply::Healthy, _) => {
                tracing::info!(secret = self.sealer.secret_id(), "the shared tier answers");
            }
            // The breakers of new nodes are open until their first check, which is no news.
            _ => return,
        }
        *reported = now;
    }
}
