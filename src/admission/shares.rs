//! A bounded number of slots that tenants share fairly: permits to work, requests to upstreams.
//!
//! Taking a slot without waiting follows the rule of dynamic thresholds, known from packet switches with shared memory (Choudhury and
//! Hahne, 1998): if other tenants have keys, a tenant takes one more slot only while it holds fewer slots than are free. One tenant that
//! takes all it can get leaves half of the slots free, two leave a third, and so on: a tenant that holds no slot finds a free one unless
//! there are fewer slots than tenants. A tenant without rivals takes all slots.
//!
//! Each tenant has a queue of its own, first in, first out. A slot that becomes free goes to the waiting tenant that holds the fewest
//! slots; among equals, to the one that was granted a slot least recently. Room in the queues is shared by the same rule.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;
pub use thresher_core::memory::Sharer;
use tokio::sync::oneshot;

use super::retry::{self, Load};

/// Weight of the latest released slot in the mean time for which slots are held.
const HOLD_WEIGHT: f64 = 0.2;

/// Slots that tenants share. Clones share the same slots.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Mutex<State>>);

/// A slot that a tenant holds. Dropping it releases the slot.
#[derive(Debug)]
pub struct Slot {
    shares: Shares,
    tenant: Tenant,
    since: Instant,
}

/// A request in its tenant's queue. Dropping it leaves the queue; a slot that was granted in the meantime goes to the next request.
#[derive(Debug)]
pub struct Waiting {
    shares: Shares,
    tenant: Tenant,
    ticket: u64,
    granted: oneshot::Receiver<Slot>,
}

#[derive(Debug)]
pub enum Requested {
    Granted(Slot),
    Queued(Waiting),
    /// The queue has no room for this tenant.
    Full,
}

#[derive(Debug)]
struct State {
    free: usize,
    queue_free: usize,
    /// Whether several tenants have keys, according to the latest request.
    has_rivals: bool,
    /// Grows with every request and every grant, and so orders both.
    clock: u64,
    /// The share of every tenant that has ever requested a slot. The operator's keys name the tenants, so there are few.
    tenants: HashMap<Tenant, Share>,
    epoch: Instant,
}

/// The slots that one tenant holds, and its queue.
#[derive(Debug, Default)]
struct Share {
    held: usize,
    /// Sum over the held slots of the time at which each was granted, in seconds after [`State::epoch`].
    held_since_s: f64,
    /// Requests that wait, by ticket: the oldest first.
    queue: BTreeMap<u64, oneshot::Sender<Slot>>,
    /// The value of [`State::clock`] when this tenant was last granted a slot.
    granted_at: u64,
    /// Decaying mean of the seconds for which this tenant held its slots.
    hold_s: Option<f64>,
}

impl Shares {
    /// Creates `count` free slots, and queues with room for `queue_max` requests together.
    pub fn new(count: usize, queue_max: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: count,
            queue_free: queue_max,
            has_rivals: false,
            clock: 0,
            tenants: HashMap::new(),
            epoch: Instant::now(),
        })))
    }

    /// Takes a slot if one is free for this tenant now. Never waits.
    pub fn take(&self, sharer: Sharer) -> Option<Slot> {
        self.lock().take(sharer).then(|| self.slot(sharer.tenant))
    }

    /// Takes a slot, or joins the tenant's queue if no slot is free for it now.
    pub fn request(&self, sharer: Sharer) -> Requested {
        let mut state = self.lock();
        if state.take(sharer) {
            drop(state);
            return Requested::Granted(self.slot(sharer.tenant));
        }
        match state.queue(sharer) {
            None => Requested::Full,
            Some((ticket, granted)) => {
                let (shares, tenant) = (self.clone(), sharer.tenant.clone());
                Requested::Queued(Waiting { shares, tenant, ticket, granted })
            }
        }
    }

    /// Returns the number of requests that wait, of all tenants.
    pub fn waiting(&self) -> usize {
        self.lock().tenants.values().map(|share| share.queue.len()).sum()
    }

    /// Estimates the seconds after which a request of this tenant that found no slot should be repeated.
    pub fn retry_after_s(&self, tenant: &Tenant) -> u64 {
        retry::after_s(self.lock().load(tenant))
    }

    fn slot(&self, tenant: &Tenant) -> Slot {
        Slot { shares: self.clone(), tenant: tenant.clone(), since: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants free slots to waiting requests. Must not be called while the state is locked: if a receiver is gone, sending drops the slot,
    /// which locks the state.
    fn dispatch(&self) {
        let granted = self.lock().grants();
        for (tenant, sender) in granted {
            let _ = sender.send(self.slot(&tenant));
        }
    }
}

impl State {
    /// Whether a tenant that holds `held` slots may take one more while `free` slots are free. The same rule applies to room in the queues.
    fn may_take(&self, held: usize, free: usize) -> bool {
        free > 0 && (!self.has_rivals || held < free)
    }

    /// Grants the tenant a slot if it may have one without waiting. Returns whether it did.
    fn take(&mut self, sharer: Sharer) -> bool {
        self.has_rivals = sharer.has_rivals;
        let held = self.tenants.get(sharer.tenant).map_or(0, |share| share.held);
        let is_first = self.tenants.get(sharer.tenant).is_none_or(|share| share.queue.is_empty());
        let takes = is_first && self.may_take(held, self.free);
        if takes {
            self.grant(sharer.tenant);
        }
        takes
    }

    fn grant(&mut self, tenant: &Tenant) {
        self.free -= 1;
        self.clock += 1;
        let (now, at) = (self.epoch.elapsed().as_secs_f64(), self.clock);
        let share = self.tenants.entry(tenant.clone()).or_default();
        share.held += 1;
        share.held_since_s += now;
        share.granted_at = at;
    }

    fn queue(&mut self, sharer: Sharer) -> Option<(u64, oneshot::Receiver<Slot>)> {
        let waiting = self.tenants.get(sharer.tenant).map_or(0, |share| share.queue.len());
        if !self.may_take(waiting, self.queue_free) {
            return None;
        }
        self.queue_free -= 1;
        self.clock += 1;
        let (sender, granted) = oneshot::channel();
        let share = self.tenants.entry(sharer.tenant.clone()).or_default();
        share.queue.insert(self.clock, sender);
        Some((self.clock, granted))
    }

    /// Grants free slots to the requests that are next, until no slot or no request is left. Returns the tenants and the senders of their slots.
    fn grants(&mut self) -> Vec<(Tenant, oneshot::Sender<Slot>)> {
        let mut granted = Vec::new();
        while let Some(tenant) = self.next() {
            self.grant(&tenant);
            let share = self.tenants.get_mut(&tenant).expect("a waiting tenant has a share");
            let (_, sender) = share.queue.pop_first().expect("a waiting tenant has a request");
            self.queue_free += 1;
            granted.push((tenant, sender));
        }
        granted
    }

    fn next(&self) -> Option<Tenant> {
        let waits = |(_, share): &(&Tenant, &Share)| !share.queue.is_empty();
        let waiting = self.tenants.iter().filter(waits);
        // No two tenants have the same `granted_at`, except those that never held a slot; among them the oldest ticket decides.
        let order = |(_, share): &(&Tenant, &Share)| {
            (share.held, share.granted_at, share.queue.first_key_value().map(|(&ticket, _)| ticket))
        };
        let (tenant, share) = waiting.min_by_key(order)?;
        self.may_take(share.held, self.free).then(|| tenant.clone())
    }

    fn release(&mut self, tenant: &Tenant, since: Instant) {
        self.free += 1;
        let share = self.tenants.get_mut(tenant).expect("a tenant that holds a slot has a share");
        share.held -= 1;
        share.held_since_s = match share.held {
            // Exactly zero, so that rounding errors do not add up.
            0 => 0.0,
            _ => share.held_since_s - since.saturating_duration_since(self.epoch).as_secs_f64(),
        };
        let held_s = since.elapsed().as_secs_f64();
        share.hold_s = Some(share.hold_s.map_or(held_s, |mean| mean + HOLD_WEIGHT * (held_s - mean)));
    }

    fn leave(&mut self, tenant: &Tenant, ticket: u64) {
        let waited = self.tenants.get_mut(tenant).and_then(|share| share.queue.remove(&ticket));
        self.queue_free += usize::from(waited.is_some());
    }

    /// The load that a request of this tenant meets: that of the tenant's own share, or of all shares while the tenant holds no slot.
    fn load(&self, tenant: &Tenant) -> Load {
        let own = self.tenants.get(tenant).filter(|share| share.held > 0);
        let shares: Vec<&Share> = own.map_or_else(|| self.tenants.values().collect(), |own| vec![own]);
        let held: usize = shares.iter().map(|share| share.held).sum();
        let since_s: f64 = shares.iter().map(|share| share.held_since_s).sum();
        let holds = shares.iter().filter_map(|share| share.hold_s);
        let age_s = self.epoch.elapsed().as_secs_f64() - since_s / held.max(1) as f64;
        Load {
            hold: Duration::try_from_secs_f64(holds.fold(0.0, f64::max)).unwrap_or_default(),
            age: if held == 0 {
                Duration::ZERO
            } else {
                Duration::try_from_secs_f64(age_s).unwrap_or_default()
            },
            held,
            waiting: shares.iter().map(|share| share.queue.len()).sum(),
        }
    }
}

impl Waiting {
    /// Waits for a slot, at most until `deadline`. A caller that stops waiting leaves the queue.
    pub async fn until(mut self, deadline: Instant) -> Option<Slot> {
        let granted = tokio::time::timeout_at(deadline.into(), &mut self.granted).await.ok()?;
        Some(granted.expect("the sender is dropped only when the request leaves the queue"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // `granted` is dropped afterwards, and with it a slot that was sent but not received.
        self.shares.lock().leave(&self.tenant, self.ticket);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shares.lock().release(&self.tenant, self.since);
        self.shares.dispatch();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;

    fn tenant(name: usize) -> Tenant {
        Tenant::new(&format!("t{name}")).expect("a name")
    }

    fn takes(shares: &Shares, name: usize, has_rivals: bool) -> Vec<Slot> {
        let tenant = tenant(name);
        std::iter::from_fn(|| shares.take(Sharer { tenant: &tenant, has_rivals })).collect()
    }

    #[test]
    fn one_tenant_leaves_half_and_two_leave_a_third() {
        let alone = Shares::new(64, 0);
        assert_eq!(takes(&alone, 0, false).len(), 64, "a tenant without rivals takes all slots");
        let shares = Shares::new(64, 0);
        let first = takes(&shares, 0, true);
        assert_eq!(first.len(), 32);
        let second = takes(&shares, 1, true);
        assert_eq!(second.len(), 16, "as many as it leaves free");
        assert_eq!(takes(&shares, 2, true).len(), 8);
        drop((first, second));
        assert_eq!(takes(&shares, 0, true).len(), 32, "all came back");
        for (count, expect) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            assert_eq!(takes(&Shares::new(count, 0), 0, true).len(), expect, "{count} slots");
        }
    }

    #[test]
    fn a_free_slot_goes_to_the_tenant_with_the_fewest_slots_and_then_in_turn() {
        let shares = Shares::new(1, 64);
        let request = |name: usize| shares.request(Sharer { tenant: &tenant(name), has_rivals: true });
        let Requested::Granted(mut slot) = request(0) else { panic!("the slot was free") };
        let mut waiting: Vec<(usize, Waiting)> = Vec::new();
        for name in [0, 0, 0, 0, 1, 1] {
            let Requested::Queued(queued) = request(name) else { panic!("there was room in the queue") };
            waiting.push((name, queued));
        }
        let mut served = Vec::new();
        while !waiting.is_empty() {
            drop(slot);
            let mut granted = None;
            waiting.retain_mut(|(name, queued)| match queued.granted.try_recv() {
                Ok(slot) => {
                    served.push(*name);
                    granted = Some(slot);
                    false
                }
                Err(_) => true,
            });
            slot = granted.expect("a request is served");
        }
        assert_eq!(served, [1, 0, 1, 0, 0, 0], "not all of tenant 0 first, though all of it came first");
    }

    /// One random action of the property test.
    #[derive(Debug, Clone)]
    enum Step {
        Request(usize),
        /// Receives the slot of the n-th waiting request, if it has been granted one.
        Receive(usize),
        /// Drops the n-th waiting request, whether it has been granted a slot or not.
        Cancel(usize),
        Release(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4_usize).prop_map(Step::Request),
            2 => any::<usize>().prop_map(Step::Receive),
            1 => any::<usize>().prop_map(Step::Cancel),
            2 => any::<usize>().prop_map(Step::Release),
        ]
    }

    /// Checks that no slot was lost, and that no request waits while a slot is free for it.
    #[track_caller]
    fn check(shares: &Shares, count: usize, queue_max: usize, held: &[Slot], waiting: &[(usize, Waiting)]) {
        let state = shares.lock();
        let of = |name: usize| state.tenants.get(&tenant(name)).map_or((0, 0), |s| (s.held, s.queue.len()));
        let out: usize = (0..4).map(|name| of(name).0).sum();
        let queued: usize = (0..4).map(|name| of(name).1).sum();
        assert_eq!(out + state.free, count, "a slot was lost or created");
        assert_eq!(queued + state.queue_free, queue_max, "room in the queue was lost or created");
        // Slots that were granted and not yet received belong to waiting requests.
        assert_eq!(out, held.len() + waiting.len() - queued, "a slot is held by nobody");
        for name in (0..4).filter(|&name| of(name).1 > 0) {
            assert!(
                !state.may_take(of(name).0, state.free),
                "tenant {name} waits while a slot is free for it"
            );
        }
    }

    proptest! {
        #[test]
        fn no_slot_is_lost_and_no_request_is_passed_over(
            (count, queue_max, has_rivals) in (1..6_usize, 0..6_usize, any::<bool>()),
            steps in proptest::collection::vec(step(), 1..120),
        ) {
            let shares = Shares::new(count, queue_max);
            let (mut held, mut waiting) = (Vec::new(), Vec::<(usize, Waiting)>::new());
            for step in steps {
                let held_and_queued = || -> Vec<(usize, usize)> {
                    let state = shares.lock();
                    let of = |name| state.tenants.get(&tenant(name)).map_or((0, 0), |s| (s.held, s.queue.len()));
                    (0..4).map(of).collect()
                };
                let before = held_and_queued();
                match step {
                    Step::Request(name) => match shares.request(Sharer { tenant: &tenant(name), has_rivals }) {
                        Requested::Granted(slot) => held.push(slot),
                        Requested::Queued(queued) => waiting.push((name, queued)),
                        Requested::Full => {}
                    },
                    Step::Receive(n) if !waiting.is_empty() => {
                        let n = n % waiting.len();
                        if let Ok(slot) = waiting[n].1.granted.try_recv() {
                            held.push(slot);
                            waiting.remove(n);
                        }
                    }
                    Step::Cancel(n) if !waiting.is_empty() => drop(waiting.remove(n % waiting.len())),
                    Step::Release(n) if !held.is_empty() => {
                        drop(held.remove(n % held.len()));
                        // A tenant that was served held no more slots before than any other tenant that still waits.
                        let now = held_and_queued();
                        for served in (0..4).filter(|&name| now[name].1 < before[name].1) {
                            for other in (0..4).filter(|&other| other != served && now[other].1 > 0) {
                                prop_assert!(now[served].0 - 1 <= now[other].0, "{other} was passed over");
                            }
                        }
                    }
                    Step::Receive(_) | Step::Cancel(_) | Step::Release(_) => {}
                }
                check(&shares, count, queue_max, &held, &waiting);
            }
            drop((held, waiting));
            check(&shares, count, queue_max, &[], &[]);
        }
    }

    #[tokio::test]
    async fn a_request_that_stops_waiting_at_any_point_loses_no_slot() {
        let (shares, a) = (Shares::new(1, 4), tenant(0));
        let sharer = Sharer { tenant: &a, has_rivals: false };
        let far = Instant::now() + Duration::from_secs(3600);
        let wait = |shares: &Shares| match shares.request(sharer) {
            Requested::Queued(queued) => Box::pin(queued.until(far)),
            other => panic!("{other:?}"),
        };
        let mut cx = Context::from_waker(Waker::noop());
        // Before it was first polled, while it waits, and after it was granted a slot that it has not received.
        for point in 0..3 {
            let slot = shares.take(sharer).expect("the slot is free");
            let mut waits = wait(&shares);
            if point > 0 {
                assert!(Pin::new(&mut waits).poll(&mut cx).is_pending());
            }
            if point == 1 {
                drop(waits);
                drop(slot);
            } else {
                drop(slot);
                drop(waits);
            }
            assert_eq!((shares.waiting(), shares.lock().free), (0, 1), "point {point}");
        }
        // The next request in the queue gets the slot that was granted to a request that is gone.
        let slot = shares.take(sharer).expect("the slot is free");
        let (gone, mut next) = (wait(&shares), wait(&shares));
        drop(slot);
        drop(gone);
        let Poll::Ready(Some(slot)) = pin!(&mut next).poll(&mut cx) else {
            panic!("the slot is the next request's")
        };
        drop(slot);
        // A request whose deadline passes loses no slot, either.
        let slot = shares.take(sharer).expect("the slot is free");
        let Requested::Queued(queued) = shares.request(sharer) else { panic!("the slot is taken") };
        assert!(queued.until(Instant::now()).await.is_none());
        drop(slot);
        assert_eq!((shares.waiting(), shares.lock().free), (0, 1));
    }
}
