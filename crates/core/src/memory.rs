//! Memory that tenants share: a number of bytes, of which what is held counts until it is dropped. Knows nothing of what the memory is for.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::domain::Tenant;

/// How often a thread that waits for memory looks whether there is any, and whether it shall still wait.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A tenant as one of those that share slots or memory.
#[derive(Debug, Clone, Copy)]
pub struct Sharer<'a> {
    pub tenant: &'a Tenant,
    /// Whether other tenants have keys. If not, the tenant may take everything.
    pub has_rivals: bool,
}

/// Memory that tenants share. Clones share the same memory.
#[derive(Debug, Clone)]
pub struct MemoryPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes_max: usize,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    free: usize,
    held: HashMap<Tenant, usize>,
    /// Who waits for memory, in the order of arrival, by the number of the request.
    waiting: VecDeque<(u64, Tenant)>,
    arrived: u64,
}

impl State {
    /// Takes memory if there is enough for the tenant.
    fn take(&mut self, sharer: Sharer, bytes: usize) -> Result<(), PoolExhausted> {
        let held = self.held.get(sharer.tenant).copied().unwrap_or_default();
        let share = if sharer.has_rivals { self.free.saturating_sub(held) } else { self.free };
        if bytes > share {
            return Err(PoolExhausted);
        }
        self.free -= bytes;
        *self.held.entry(sharer.tenant.clone()).or_default() += bytes;
        Ok(())
    }

    /// Whether no request of the tenant waits, or `number` is the first one that does.
    fn is_next(&self, tenant: &Tenant, number: Option<u64>) -> bool {
        self.waiting
            .iter()
            .find(|(_, waiting)| waiting == tenant)
            .is_none_or(|(first, _)| Some(*first) == number)
    }
}

/// The pool has not enough memory left for the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolExhausted;

/// Memory that a tenant has taken. Dropping it frees the memory.
#[derive(Debug)]
pub struct MemoryPermit {
    pool: MemoryPool,
    tenant: Tenant,
    bytes: usize,
}

impl MemoryPool {
    pub fn new(bytes_max: usize) -> Self {
        let state = State { free: bytes_max, held: HashMap::new(), waiting: VecDeque::new(), arrived: 0 };
        Self(Arc::new(Shared { bytes_max, state: Mutex::new(state), freed: Notify::new() }))
    }

    pub fn held(&self) -> usize {
        self.0.bytes_max - self.state().free
    }

    /// Takes memory without waiting, also before requests of the same tenant that wait: for a request that holds memory already, because those
    /// may wait for what it holds.
    ///
    /// # Errors
    /// Fails if there is not enough left for the tenant.
    pub fn try_take(&self, sharer: Sharer, bytes: usize) -> Result<MemoryPermit, PoolExhausted> {
        self.state().take(sharer, bytes)?;
        Ok(self.permit(sharer, bytes))
    }

    /// Takes memory, and waits for it until `until`. A waiting request for much memory does not delay requests for little: those who wait may
    /// hold memory already.
    ///
    /// # Errors
    /// Fails if there is not enough by then, or never will be.
    pub async fn take(
        &self,
        sharer: Sharer<'_>,
        bytes: usize,
        until: Instant,
    ) -> Result<MemoryPermit, PoolExhausted> {
        if bytes > self.0.bytes_max {
            return Err(PoolExhausted);
        }
        loop {
            // Registered before the attempt, so that memory that is freed in between is not missed.
            let mut freed = std::pin::pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if let Ok(permit) = self.try_take(sharer, bytes) {
                return Ok(permit);
            }
            tokio::time::timeout_at(until.into(), freed).await.map_err(|_elapsed| PoolExhausted)?;
        }
    }

    /// Takes memory for a request that holds none, and blocks the thread as long as `go_on` allows. Requests of one tenant get memory in the order
    /// of their arrival, so that small ones do not keep a large one waiting for ever. They do not delay those of other tenants.
    ///
    /// # Errors
    /// Returns the error of `go_on`. Memory that the pool will never have is taken as if it were all of the pool.
    pub fn take_blocking<E>(
        &self,
        sharer: Sharer,
        bytes: usize,
        go_on: impl Fn() -> Result<(), E>,
    ) -> Result<MemoryPermit, E> {
        let bytes = bytes.min(self.0.bytes_max);
        let mut place = Place { pool: self, tenant: sharer.tenant, number: None };
        loop {
            if let Ok(permit) = place.try_take(sharer, bytes) {
                return Ok(permit);
            }
            go_on()?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn permit(&self, sharer: Sharer, bytes: usize) -> MemoryPermit {
        MemoryPermit { pool: self.clone(), tenant: sharer.tenant.clone(), bytes }
    }

    fn free(&self, tenant: &Tenant, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut state = self.state();
        state.free += bytes;
        if let Some(held) = state.held.get_mut(tenant) {
            *held -= bytes;
            if *held == 0 {
                state.held.remove(tenant);
            }
        }
        drop(state);
        self.0.freed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a request among those of its tenant that wait. It is given up when it is dropped.
struct Place<'a> {
    pool: &'a MemoryPool,
    tenant: &'a Tenant,
    /// `None` before the first attempt.
    number: Option<u64>,
}

impl Place<'_> {
    /// Takes memory if it is this request's turn and there is enough; otherwise the request waits from now on.
    fn try_take(&mut self, sharer: Sharer, bytes: usize) -> Result<MemoryPermit, PoolExhausted> {
        let mut state = self.pool.state();
        if state.is_next(self.tenant, self.number) && state.take(sharer, bytes).is_ok() {
            return Ok(self.pool.permit(sharer, bytes));
        }
        if self.number.is_none() {
            state.arrived += 1;
            self.number = Some(state.arrived);
            let waiting = (state.arrived, self.tenant.clone());
            state.waiting.push_back(waiting);
        }
        Err(PoolExhausted)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.pool.state().waiting.retain(|(waiting, _)| *waiting != number);
        }
    }
}

impl MemoryPermit {
    /// Returns the number of bytes that are taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Moves `bytes`, or as many as there are, into another permit.
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { pool: self.pool.clone(), tenant: self.tenant.clone(), bytes }
    }

    /// Adds what `other` has taken of the same pool.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += mem::take(&mut other.bytes);
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.pool.free(&self.tenant, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).expect("a name")
    }

    fn among(tenant: &Tenant) -> Sharer<'_> {
        Sharer { tenant, has_rivals: true }
    }

    #[tokio::test]
    async fn one_tenant_leaves_half_to_the_others() {
        let (pool, greedy, other) = (MemoryPool::new(8 * 100), tenant("greedy"), tenant("other"));
        let mut held = Vec::new();
        while let Ok(permit) = pool.try_take(among(&greedy), 100) {
            held.push(permit);
        }
        assert_eq!(held.len(), 4);
        let large = pool.take(among(&greedy), 200, Instant::now() + Duration::from_millis(50));
        let small = async {
            // The greedy tenant waits already, and for more than there is for it.
            tokio::task::yield_now().await;
            pool.take(among(&other), 100, Instant::now()).await.expect("the others have room")
        };
        let (large, small) = tokio::join!(large, small);
        assert!(large.is_err(), "it holds half");
        drop((small, held));
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn small_requests_do_not_keep_a_large_one_waiting() {
        let (pool, tenant, other) = (MemoryPool::new(400), tenant("busy"), tenant("other"));
        let held = pool.try_take(among(&tenant), 100).expect("memory");
        let order = Mutex::new(Vec::new());
        let waits = |count: usize| {
            while pool.state().waiting.len() < count {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let wait = |bytes: usize| {
                let permit = pool.take_blocking(among(&tenant), bytes, || Ok::<_, ()>(())).expect("memory");
                order.lock().expect("no panic").push(permit.bytes());
            };
            // With what the tenant holds, its share is 200.
            scope.spawn(move || wait(250));
            waits(1);
            scope.spawn(move || wait(50));
            waits(2);
            drop(
                pool.take_blocking(among(&other), 50, || Err("another tenant does not wait"))
                    .expect("memory"),
            );
            drop(pool.try_take(among(&tenant), 10).expect("a request that holds memory does not wait"));
            drop(held);
        });
        assert_eq!(*order.lock().expect("no panic"), [250, 50]);
        assert_eq!(
            pool.take_blocking(among(&tenant), 401, || Err("gone")).map(|permit| permit.bytes()),
            Ok(400)
        );
        assert!(pool.state().waiting.is_empty());
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn a_thread_waits_until_memory_is_free_or_its_caller_has_gone() {
        let (pool, tenant) = (MemoryPool::new(100), Tenant::default());
        let sharer = Sharer { tenant: &tenant, has_rivals: false };
        let held = pool.try_take(sharer, 60).expect("memory");
        assert_eq!(pool.take_blocking(sharer, 60, || Err("gone")).err(), Some("gone"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.take_blocking(sharer, 1000, || Ok::<_, ()>(())));
            drop(held);
            assert_eq!(waiting.join().expect("no panic").expect("memory").bytes(), 100);
        });
        assert_eq!(pool.held(), 0);
    }
}
