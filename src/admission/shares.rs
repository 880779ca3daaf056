//! A bounded number of places that several tenants share: permits to work, streams, requests to upstream servers.
//!
//! Taking without waiting follows the rule of dynamic thresholds, known from packet switches with shared memory (Choudhury and
//! Hahne, 1998): while other tenants may come, a tenant takes one more place only while it holds fewer places than are free. One
//! tenant that takes all it can get leaves half of the places free, two leave a third each, and so on: a tenant that holds nothing
//! finds a free place unless there are fewer places than tenants. A tenant that is alone takes all places.
//!
//! Waiting: each tenant has a queue, first come, first served. A place that becomes free goes to the waiting tenant that holds the
//! fewest places; among equals, to the one that was granted a place least recently. Places in the queues are shared by the same rule.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;
use tokio::sync::oneshot;

use super::retry::{self, Load};

/// How much the latest place weighs in the mean time that places are held.
const HOLD_WEIGHT: f64 = 0.2;

/// Who asks for a place.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The tenant.
    pub tenant: &'a Tenant,
    /// Whether other tenants have keys. If not, the tenant may take all places.
    pub has_rivals: bool,
}

/// Places that tenants share. Clones share the same places.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Mutex<State>>);

/// A place that a tenant holds. Dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    shares: Shares,
    tenant: Tenant,
    since: Instant,
}

/// A place in a tenant's queue. Dropping it leaves the queue; a place that was granted in the meantime goes to the next tenant.
#[derive(Debug)]
pub struct Waiting {
    shares: Shares,
    tenant: Tenant,
    ticket: u64,
    granted: oneshot::Receiver<Place>,
}

/// What a request for a place led to.
#[derive(Debug)]
pub enum Claimed {
    /// A place.
    Granted(Place),
    /// A place in the queue.
    Queued(Waiting),
    /// Neither: the queue has no room for this tenant.
    Full,
}

#[derive(Debug)]
struct State {
    free: usize,
    queue_free: usize,
    /// Whether several tenants have keys, as the latest claim said.
    has_rivals: bool,
    /// Grows with every claim and every grant: orders both.
    clock: u64,
    /// Of every tenant that ever claimed a place. Tenants are named by the operator's keys, so there are few.
    tenants: HashMap<Tenant, Share>,
    epoch: Instant,
}

/// What one tenant holds and waits for.
#[derive(Debug, Default)]
struct Share {
    held: usize,
    /// Sum of the seconds after the epoch at which the held places were taken.
    held_since_s: f64,
    /// By ticket, oldest first.
    queue: BTreeMap<u64, oneshot::Sender<Place>>,
    /// When this tenant was last granted a place, on [`State::clock`].
    granted_at: u64,
    /// Decaying mean of the time that its places were held.
    hold_s: Option<f64>,
}

impl Shares {
    /// `count` places, and room for `queue_max` claims that wait.
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

    /// Takes a place if there is one for this tenant now. Never waits.
    pub fn take(&self, claim: Claim) -> Option<Place> {
        self.lock().take(claim).then(|| self.place(claim.tenant))
    }

    /// Takes a place, or joins the tenant's queue if there is none for it now.
    pub fn claim(&self, claim: Claim) -> Claimed {
        let mut state = self.lock();
        if state.take(claim) {
            drop(state);
            return Claimed::Granted(self.place(claim.tenant));
        }
        match state.queue(claim) {
            None => Claimed::Full,
            Some((ticket, granted)) => {
                let (shares, tenant) = (self.clone(), claim.tenant.clone());
                Claimed::Queued(Waiting { shares, tenant, ticket, granted })
            }
        }
    }

    /// Claims that wait, of all tenants.
    pub fn waiting(&self) -> usize {
        self.lock().tenants.values().map(|share| share.queue.len()).sum()
    }

    /// After how many seconds a claim of this tenant that finds no place should be repeated.
    pub fn retry_after_s(&self, tenant: &Tenant) -> u64 {
        retry::after_s(self.lock().load(tenant))
    }

    fn place(&self, tenant: &Tenant) -> Place {
        Place { shares: self.clone(), tenant: tenant.clone(), since: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands free places to those who wait. Never called under the lock: a receiver that has gone drops the place, which locks.
    fn dispatch(&self) {
        let granted = self.lock().grants();
        for (tenant, sender) in granted {
            let _ = sender.send(self.place(&tenant));
        }
    }
}

impl State {
    /// Whether a tenant that holds so many of some places may take one more while `free` are free.
    fn may_take(&self, held: usize, free: usize) -> bool {
        free > 0 && (!self.has_rivals || held < free)
    }

    /// Counts one more place as held, if the tenant may have it without waiting.
    fn take(&mut self, claim: Claim) -> bool {
        self.has_rivals = claim.has_rivals;
        let held = self.tenants.get(claim.tenant).map_or(0, |share| share.held);
        let is_first = self.tenants.get(claim.tenant).is_none_or(|share| share.queue.is_empty());
        let takes = is_first && self.may_take(held, self.free);
        if takes {
            self.grant(claim.tenant);
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

    fn queue(&mut self, claim: Claim) -> Option<(u64, oneshot::Receiver<Place>)> {
        let waiting = self.tenants.get(claim.tenant).map_or(0, |share| share.queue.len());
        if !self.may_take(waiting, self.queue_free) {
            return None;
        }
        self.queue_free -= 1;
        self.clock += 1;
        let (sender, granted) = oneshot::channel();
        let share = self.tenants.entry(claim.tenant.clone()).or_default();
        share.queue.insert(self.clock, sender);
        Some((self.clock, granted))
    }

    /// Who is next, as long as there are places: the places are counted as held.
    fn grants(&mut self) -> Vec<(Tenant, oneshot::Sender<Place>)> {
        let mut granted = Vec::new();
        while let Some(tenant) = self.next() {
            self.grant(&tenant);
            let share = self.tenants.get_mut(&tenant).expect("it waits");
            let (_, sender) = share.queue.pop_first().expect("it waits");
            self.queue_free += 1;
            granted.push((tenant, sender));
        }
        granted
    }

    fn next(&self) -> Option<Tenant> {
        let waits = |(_, share): &(&Tenant, &Share)| !share.queue.is_empty();
        let waiting = self.tenants.iter().filter(waits);
        // No two tenants were granted a place at the same time, but for those that never were: then the oldest ticket decides.
        let order = |(_, share): &(&Tenant, &Share)| {
            (share.held, share.granted_at, share.queue.first_key_value().map(|(&ticket, _)| ticket))
        };
        let (tenant, share) = waiting.min_by_key(order)?;
        self.may_take(share.held, self.free).then(|| tenant.clone())
    }

    fn release(&mut self, tenant: &Tenant, since: Instant) {
        self.free += 1;
        let share = self.tenants.get_mut(tenant).expect("it holds a place");
        share.held -= 1;
        share.held_since_s = match share.held {
            // Nothing of the rounding is left behind.
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

    /// What a claim of this tenant stands behind: its own share, or all shares while it holds nothing.
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
    /// Waits for a place, at most until `deadline`. Who stops waiting leaves the queue.
    pub async fn until(mut self, deadline: Instant) -> Option<Place> {
        let granted = tokio::time::timeout_at(deadline.into(), &mut self.granted).await.ok()?;
        Some(granted.expect("the sender is dropped only with the place in the queue"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Dropped afterwards: `granted`, and with it a place that nobody took.
        self.shares.lock().leave(&self.tenant, self.ticket);
    }
}

impl Drop for Place {
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

    fn takes(shares: &Shares, name: usize, has_rivals: bool) -> Vec<Place> {
        let tenant = tenant(name);
        std::iter::from_fn(|| shares.take(Claim { tenant: &tenant, has_rivals })).collect()
    }

    #[test]
    fn one_tenant_leaves_half_and_two_leave_a_third() {
        let alone = Shares::new(64, 0);
        assert_eq!(takes(&alone, 0, false).len(), 64, "a tenant without rivals takes all places");
        let shares = Shares::new(64, 0);
        let first = takes(&shares, 0, true);
        assert_eq!(first.len(), 32);
        let second = takes(&shares, 1, true);
        assert_eq!(second.len(), 16, "as many as it leaves free");
        assert_eq!(takes(&shares, 2, true).len(), 8);
        drop((first, second));
        assert_eq!(takes(&shares, 0, true).len(), 32, "all came back");
        for (count, expect) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            assert_eq!(takes(&Shares::new(count, 0), 0, true).len(), expect, "{count} places");
        }
    }

    #[test]
    fn a_place_goes_to_who_holds_the_fewest_and_then_in_turn() {
        let shares = Shares::new(1, 64);
        let claim = |name: usize| shares.claim(Claim { tenant: &tenant(name), has_rivals: true });
        let Claimed::Granted(mut place) = claim(0) else { panic!("the place was free") };
        let mut waiting: Vec<(usize, Waiting)> = Vec::new();
        for name in [0, 0, 0, 0, 1, 1] {
            let Claimed::Queued(queued) = claim(name) else { panic!("there was room in the queue") };
            waiting.push((name, queued));
        }
        let mut served = Vec::new();
        while !waiting.is_empty() {
            drop(place);
            let mut granted = None;
            waiting.retain_mut(|(name, queued)| match queued.granted.try_recv() {
                Ok(place) => {
                    served.push(*name);
                    granted = Some(place);
                    false
                }
                Err(_) => true,
            });
            place = granted.expect("somebody is served");
        }
        assert_eq!(served, [1, 0, 1, 0, 0, 0], "not all of tenant 0 first, though all of it came first");
    }

    /// What a model of the whole does next.
    #[derive(Debug, Clone)]
    enum Step {
        Claim(usize),
        /// Looks whether the n-th who waits has been granted a place.
        Look(usize),
        /// The n-th who waits goes away, whether it has been granted a place or not.
        Cancel(usize),
        Release(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4_usize).prop_map(Step::Claim),
            2 => any::<usize>().prop_map(Step::Look),
            1 => any::<usize>().prop_map(Step::Cancel),
            2 => any::<usize>().prop_map(Step::Release),
        ]
    }

    /// Whether one who waits can be passed over: places are free that it may take, or another who waits and holds more was served.
    #[track_caller]
    fn check(shares: &Shares, count: usize, queue_max: usize, held: &[Place], waiting: &[(usize, Waiting)]) {
        let state = shares.lock();
        let of = |name: usize| state.tenants.get(&tenant(name)).map_or((0, 0), |s| (s.held, s.queue.len()));
        let out: usize = (0..4).map(|name| of(name).0).sum();
        let queued: usize = (0..4).map(|name| of(name).1).sum();
        assert_eq!(out + state.free, count, "a place was lost or made");
        assert_eq!(queued + state.queue_free, queue_max, "a place in the queue was lost or made");
        // Places that were granted and not yet looked at lie with those who wait.
        assert_eq!(out, held.len() + waiting.len() - queued, "a place is held by nobody");
        for name in (0..4).filter(|&name| of(name).1 > 0) {
            assert!(
                !state.may_take(of(name).0, state.free),
                "tenant {name} waits while there is a place for it"
            );
        }
    }

    proptest! {
        #[test]
        fn no_place_is_lost_and_nobody_is_passed_over(
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
                    Step::Claim(name) => match shares.claim(Claim { tenant: &tenant(name), has_rivals }) {
                        Claimed::Granted(place) => held.push(place),
                        Claimed::Queued(queued) => waiting.push((name, queued)),
                        Claimed::Full => {}
                    },
                    Step::Look(n) if !waiting.is_empty() => {
                        let n = n % waiting.len();
                        if let Ok(place) = waiting[n].1.granted.try_recv() {
                            held.push(place);
                            waiting.remove(n);
                        }
                    }
                    Step::Cancel(n) if !waiting.is_empty() => drop(waiting.remove(n % waiting.len())),
                    Step::Release(n) if !held.is_empty() => {
                        drop(held.remove(n % held.len()));
                        // Before it was served, whoever was served held no more than any other who still waits.
                        let now = held_and_queued();
                        for served in (0..4).filter(|&name| now[name].1 < before[name].1) {
                            for other in (0..4).filter(|&other| other != served && now[other].1 > 0) {
                                prop_assert!(now[served].0 - 1 <= now[other].0, "{other} was passed over");
                            }
                        }
                    }
                    Step::Look(_) | Step::Cancel(_) | Step::Release(_) => {}
                }
                check(&shares, count, queue_max, &held, &waiting);
            }
            drop((held, waiting));
            check(&shares, count, queue_max, &[], &[]);
        }
    }

    #[tokio::test]
    async fn who_stops_waiting_at_any_point_loses_no_place() {
        let (shares, a) = (Shares::new(1, 4), tenant(0));
        let claim = Claim { tenant: &a, has_rivals: false };
        let far = Instant::now() + Duration::from_secs(3600);
        let wait = |shares: &Shares| match shares.claim(claim) {
            Claimed::Queued(queued) => Box::pin(queued.until(far)),
            other => panic!("{other:?}"),
        };
        let mut cx = Context::from_waker(Waker::noop());
        // Before it was first looked at, while it waits, and after it was granted a place that it has not looked at.
        for point in 0..3 {
            let place = shares.take(claim).expect("it is free");
            let mut waits = wait(&shares);
            if point > 0 {
                assert!(Pin::new(&mut waits).poll(&mut cx).is_pending());
            }
            if point == 1 {
                drop(waits);
                drop(place);
            } else {
                drop(place);
                drop(waits);
            }
            assert_eq!((shares.waiting(), shares.lock().free), (0, 1), "point {point}");
        }
        // The next in the queue is granted what one that has gone was granted.
        let place = shares.take(claim).expect("it is free");
        let (gone, mut next) = (wait(&shares), wait(&shares));
        drop(place);
        drop(gone);
        let Poll::Ready(Some(place)) = pin!(&mut next).poll(&mut cx) else { panic!("it is the next one's") };
        drop(place);
        // The deadline is such a point, too.
        let place = shares.take(claim).expect("it is free");
        let Claimed::Queued(queued) = shares.claim(claim) else { panic!("the place is taken") };
        assert!(queued.until(Instant::now()).await.is_none());
        drop(place);
        assert_eq!((shares.waiting(), shares.lock().free), (0, 1));
    }
}
