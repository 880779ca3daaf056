//! Decides which requests are worked on now, which wait and which are refused: a bounded number of permits and a
//! bounded queue, each shared fairly between tenants, and a deadline for waiting.

pub mod retry;
mod shares;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;

use self::retry::RefusalDelays;
use self::shares::Requested;
pub use self::shares::{Sharer, Shares, Slot};

/// The numbers of requests that are admitted at the same time.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub concurrency_max: usize,
    pub queue_max: usize,
}

/// Hands out permits. Clones share the same ones.
#[derive(Debug, Clone)]
pub struct Admission {
    permits: Shares,
    refusals: Arc<Mutex<RefusalDelays>>,
    draining: Arc<AtomicBool>,
}

/// Permission to work on a request. Dropping it releases its slot.
#[derive(Debug)]
pub struct Permit(#[allow(dead_code, reason = "held for its Drop")] Slot);

/// Why a request is not admitted. `retry_after_s` is the number of seconds after which repeating the request is expected to help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue has no room for this tenant.
    Overloaded {
        /// Seconds until every request that waits now is expected to have a permit.
        retry_after_s: u64,
    },
    /// The deadline passed while the request waited for a permit.
    Late {
        /// Seconds until every request that waits now is expected to have a permit.
        retry_after_s: u64,
    },
    Draining,
}

impl Admission {
    /// Creates an admission with `bounds`, and with nothing admitted yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            permits: Shares::new(bounds.concurrency_max, bounds.queue_max),
            refusals: Arc::default(),
            draining: Arc::default(),
        }
    }

    /// Waits for a permit until `deadline`. A tenant's requests are served in the order of their arrival; between tenants, the one that
    /// holds the fewest permits is served first. A caller that stops waiting leaves the queue.
    ///
    /// # Errors
    /// Refuses if the queue is full for this tenant, if the deadline passes, or if the daemon is shutting down.
    pub async fn enter(&self, sharer: Sharer<'_>, deadline: Instant) -> Result<Permit, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        let slot = match self.permits.request(sharer) {
            Requested::Granted(slot) => Some(slot),
            Requested::Queued(waiting) => waiting.until(deadline).await,
            Requested::Full => {
                return Err(Refusal::Overloaded { retry_after_s: self.retry_after_s(sharer.tenant) });
            }
        };
        slot.map(Permit).ok_or_else(|| Refusal::Late { retry_after_s: self.retry_after_s(sharer.tenant) })
    }

    /// Estimates the seconds until a request of this tenant that arrived now would have a permit.
    pub fn retry_after_s(&self, tenant: &Tenant) -> u64 {
        self.permits.retry_after_s(tenant)
    }

    /// Returns how long to delay the refusal that this tenant is about to be sent. The delay is zero unless the tenant has rivals and
    /// repeats refused requests many times a second.
    pub fn refusal_delay(&self, sharer: Sharer) -> Duration {
        if !sharer.has_rivals {
            Duration::ZERO
        } else {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.next(sharer.tenant, Instant::now())
        }
    }

    /// Stops admitting new requests. Requests that were admitted, and those that wait, go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that wait for a permit, of all tenants.
    pub fn waiting(&self) -> usize {
        self.permits.waiting()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: Bounds = Bounds { concurrency_max: 1, queue_max: 1 };

    fn named(name: &str) -> Tenant {
        Tenant::new(name).expect("a name")
    }

    fn only(tenant: &Tenant) -> Sharer<'_> {
        Sharer { tenant, has_rivals: false }
    }

    fn among(tenant: &Tenant) -> Sharer<'_> {
        Sharer { tenant, has_rivals: true }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn one_request_works_one_waits_and_the_third_is_refused() {
        let (admission, tenant) = (Admission::new(ONE), Tenant::default());
        let first = admission.enter(only(&tenant), soon()).await.expect("the first");
        let waiting = tokio::spawn({
            let (admission, tenant) = (admission.clone(), tenant.clone());
            async move { admission.enter(only(&tenant), late()).await.map(drop) }
        });
        while admission.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let third = admission.enter(only(&tenant), soon()).await;
        assert!(matches!(third, Err(Refusal::Overloaded { .. })), "{third:?}");
        drop(first);
        assert_eq!(waiting.await.expect("no panic"), Ok(()));
        assert_eq!(admission.waiting(), 0);
    }

    #[tokio::test]
    async fn waiting_past_the_deadline_is_late_and_leaves_the_queue() {
        let (admission, tenant) = (Admission::new(ONE), Tenant::default());
        let _first = admission.enter(only(&tenant), soon()).await.expect("the first");
        let second = admission.enter(only(&tenant), soon()).await;
        assert!(matches!(second, Err(Refusal::Late { .. })), "{second:?}");
        assert_eq!(admission.waiting(), 0);
    }

    #[tokio::test]
    async fn a_draining_daemon_admits_no_request() {
        let (admission, tenant) = (Admission::new(ONE), Tenant::default());
        admission.drain();
        assert_eq!(admission.enter(only(&tenant), soon()).await.err(), Some(Refusal::Draining));
    }

    #[tokio::test]
    async fn a_greedy_tenant_leaves_permits_and_queue_to_another() {
        let bounds = Bounds { concurrency_max: 4, queue_max: 8 };
        let (admission, a, b) = (Admission::new(bounds), named("a"), named("b"));
        let mut permits = Vec::new();
        for _ in 0..2 {
            permits.push(admission.enter(among(&b), late()).await.expect("a permit"));
        }
        let flood: Vec<_> = (0..20)
            .map(|_| {
                let (admission, b) = (admission.clone(), b.clone());
                tokio::spawn(async move { admission.enter(among(&b), late()).await.map(drop) })
            })
            .collect();
        while admission.waiting() < 4 {
            tokio::task::yield_now().await;
        }
        let others: Vec<Permit> =
            vec![admission.enter(among(&a), late()).await.expect("at once, before the tenant that waits")];
        assert_eq!(admission.waiting(), 4, "half of the queue");
        drop((others, permits));
        for one in flood {
            let outcome = one.await.expect("no panic");
            assert!(matches!(outcome, Ok(()) | Err(Refusal::Overloaded { .. })), "{outcome:?}");
        }
    }
}
