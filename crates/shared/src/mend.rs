//! The one place that connects, looks after servers that are left alone, and says so in the log.
//! Knows nothing of requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::cmd;
use tokio::time::Instant;

use super::failure::Failure;
use super::nodes::Node;
use super::{Core, observe};

/// How often servers are looked at when all is well.
const IDLE: Duration = Duration::from_secs(10);

/// Looks without success after which a cluster is connected to anew: its client keeps connections that are silent.
const LOOKS_TO_RECONNECT: u32 = 2;

/// Times that the pause between two looks doubles.
const DOUBLINGS_MAX: u32 = 3;

/// Whether the log says that the tier is well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Nothing,
    Well,
    Ill,
}

/// Runs as long as the tier does.
pub async fn mend(core: Arc<Core>) {
    let mut failed_looks = 0_u32;
    loop {
        let ill = core.look(failed_looks).await;
        core.say(ill.as_ref().map(|(address, failure)| (address.as_str(), failure)));
        match ill {
            None => {
                failed_looks = 0;
                let _ = tokio::time::timeout(IDLE, core.wake.notified()).await;
            }
            Some(_) => {
                let pause = core.probe_pause * 2_u32.pow(failed_looks.min(DOUBLINGS_MAX));
                failed_looks = failed_looks.saturating_add(1);
                tokio::time::sleep(jittered(pause)).await;
            }
        }
    }
}

/// Between three and five quarters of `pause`: a thousand sidecars that lost one server shall not come back in step.
pub fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    pause.mul_f64(0.75 + random / 2.0)
}

impl Core {
    /// Connects what is not connected, asks every server. Returns one that is not well.
    pub(super) async fn look(&self, failed_looks: u32) -> Option<(String, Failure)> {
        let again = self.cluster && failed_looks > 0 && failed_looks.is_multiple_of(LOOKS_TO_RECONNECT);
        for link in [&self.reads, &self.writes] {
            if again || !link.is_up() {
                let connected = link.connect().await;
                // A new try beside a connection that partly works may fail.
                if let Err(failure) = connected.or_else(|failure| link.is_up().then_some(()).ok_or(failure)) {
                    self.nodes.table().nodes().iter().for_each(|node| node.open());
                    return Some((self.target.place(), failure));
                }
            }
        }
        if self.cluster {
            let mut command = cmd("CLUSTER");
            command.arg("SLOTS");
            match self.reads.send(&command, Instant::now() + self.look_timeout).await {
                Ok(answer) => self.nodes.learn(&answer),
                Err(failure) => tracing::debug!(reason = %failure, "a cluster's slots could not be read"),
            }
        }
        let table = self.nodes.table();
        let looks = join_all(table.nodes().iter().map(|node| self.probe(node))).await;
        let mut ill = None;
        for (node, probed) in table.nodes().iter().zip(looks) {
            match probed {
                Ok(()) if node.admits() => {}
                Ok(()) => node.heal(),
                Err(failure) => {
                    // Without requests, this is how a failure is found.
                    node.failed(self.failures_max);
                    ill = Some((node.address.clone(), failure));
                }
            }
        }
        if let Some((_, failure)) = &ill
            && table.open_share() == 1.0
            && (self.cluster || *failure == Failure::Timeout)
        {
            // Silent for so long: the other end may be gone without a word, or stand elsewhere. A cluster's client would
            // try to recover without a pause.
            [&self.reads, &self.writes].into_iter().for_each(|link| link.lose());
        }
        ill
    }

    /// Well is who answers as fast as a request needs it.
    async fn probe(&self, node: &Node) -> Result<(), Failure> {
        if node.probe.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let mut command = cmd("GETRANGE");
        command.arg(&node.probe).arg(0).arg(0);
        let answer = self.reads.send(&command, started + self.look_timeout).await;
        match answer {
            Ok(_) | Err(Failure::WrongType) if started.elapsed() <= self.timeout => Ok(()),
            Ok(_) | Err(Failure::WrongType) => Err(Failure::Timeout),
            Err(failure) => Err(failure),
        }
    }

    /// A request found that a server does not answer.
    pub(super) fn opened(&self, address: &str, failure: &Failure) {
        self.say(Some((address, failure)));
        self.wake.notify_one();
    }

    /// Into the log when it is news, into the metrics always.
    fn say(&self, ill: Option<(&str, &Failure)>) {
        let open_share = self.nodes.table().open_share();
        observe::breaker(open_share);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let now = if open_share > 0.0 { Said::Ill } else { Said::Well };
        match (now, ill) {
            _ if *said == now => return,
            (Said::Ill, Some((node, failure))) => {
                tracing::warn!(node, reason = %failure, open_share, "the shared tier does not answer; requests go on without it");
            }
            (Said::Well, _) => tracing::info!(secret = self.seal.name(), "the shared tier answers"),
            // Opened and not looked at yet.
            _ => return,
        }
        *said = now;
    }
}
