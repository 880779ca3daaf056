//! Bounds the memory that request bodies take together, and the memory that answers take which clients have not read.
//!
//! A body counts from its first byte until its request needs it no more; an answer counts until its last byte has left this process.
//! Tenants share a pool by the rule of `admission::Shares`: while other tenants may come, a tenant takes more only while it holds less
//! than is free. One tenant can therefore take half of a pool, and leaves the other half to the others.

use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use metrics::gauge;
use thresher_core::domain::Tenant;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::admission::Claim;

/// What a byte of a body takes while it is read: itself, and what is parsed from it.
const WEIGHT: usize = 2;

/// Memory for a body is taken in steps of so many bytes.
const STEP_BYTES: usize = 64 * 1024;

/// How long a body waits for memory. Bodies that each hold some and wait for more would wait for each other: after this time one gives up.
const WAIT: Duration = Duration::from_secs(2);

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
}

/// The pool has no memory for this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// Memory that a tenant has taken. Dropping it gives it back.
#[derive(Debug)]
pub struct MemoryPermit {
    pool: MemoryPool,
    tenant: Tenant,
    bytes: usize,
}

impl MemoryPool {
    /// A pool of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let state = State { free: bytes_max, held: HashMap::new() };
        Self(Arc::new(Shared { bytes_max, state: Mutex::new(state), freed: Notify::new() }))
    }

    /// Bytes that are held now.
    pub fn held(&self) -> usize {
        self.0.bytes_max - self.state().free
    }

    /// Takes memory at once.
    ///
    /// # Errors
    /// When there is not enough of it for this tenant.
    pub fn try_take(&self, claim: Claim, bytes: usize) -> Result<MemoryPermit, NoRoom> {
        let mut state = self.state();
        let held = state.held.get(claim.tenant).copied().unwrap_or_default();
        let share = if claim.has_rivals { state.free.saturating_sub(held) } else { state.free };
        if bytes > share {
            return Err(NoRoom);
        }
        state.free -= bytes;
        *state.held.entry(claim.tenant.clone()).or_default() += bytes;
        Ok(MemoryPermit { pool: self.clone(), tenant: claim.tenant.clone(), bytes })
    }

    /// Takes memory, and waits for it if it has to. Who waits for much keeps nobody waiting who needs little.
    ///
    /// # Errors
    /// [`NoRoom`], after [`WAIT`].
    async fn take(&self, claim: Claim<'_>, bytes: usize) -> Result<MemoryPermit, NoRoom> {
        if bytes > self.0.bytes_max {
            return Err(NoRoom);
        }
        let until = Instant::now() + WAIT;
        loop {
            // Registered before looking, so that nothing that is freed in between is missed.
            let mut freed = std::pin::pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if let Ok(permit) = self.try_take(claim, bytes) {
                return Ok(permit);
            }
            tokio::time::timeout_at(until, freed).await.map_err(|_elapsed| NoRoom)?;
        }
    }

    fn give_back(&self, tenant: &Tenant, bytes: usize) {
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

impl MemoryPermit {
    /// Takes `bytes` of it, as much as there is, into a permit of its own.
    fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { pool: self.pool.clone(), tenant: self.tenant.clone(), bytes }
    }

    fn merge(&mut self, mut other: Self) {
        self.bytes += mem::take(&mut other.bytes);
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.pool.give_back(&self.tenant, self.bytes);
    }
}

/// The memory that the body of one request takes. Dropping it gives it back.
#[derive(Debug)]
pub struct BodyMemory {
    pool: MemoryPool,
    held: Mutex<Option<MemoryPermit>>,
}

impl BodyMemory {
    /// Nothing is held yet.
    pub fn new(pool: MemoryPool) -> Self {
        Self { pool, held: Mutex::default() }
    }

    /// Sees to it that there is memory for a body of `bytes`, as far as it has come, and for what will be parsed from it.
    ///
    /// # Errors
    /// [`NoRoom`], after [`WAIT`].
    pub async fn grow_to(&self, claim: Claim<'_>, bytes: usize) -> Result<(), NoRoom> {
        let wanted = bytes.next_multiple_of(STEP_BYTES).saturating_mul(WEIGHT);
        let more = wanted.saturating_sub(self.bytes());
        if more == 0 {
            return Ok(());
        }
        let taken = self.pool.take(claim, more).await?;
        match &mut *self.held() {
            Some(held) => held.merge(taken),
            held => *held = Some(taken),
        }
        Ok(())
    }

    /// Keeps memory for what was parsed from a body of `bytes`, and gives the body's own back: it was dropped.
    pub fn shrink_to_parsed(&self, bytes: usize) {
        self.keep(bytes.next_multiple_of(STEP_BYTES).saturating_mul(WEIGHT - 1));
    }

    /// Gives everything back: neither the body nor what was parsed from it is held any more.
    pub fn release(&self) {
        self.keep(0);
    }

    /// Ties the memory to a body that goes on to another server, but for that of `kept` bytes which the request still needs: it is given
    /// back when the body has been sent, however long the answer takes.
    pub fn hand_over(&self, body: Vec<u8>, kept: usize) -> Bytes {
        let over = self.keep(kept.saturating_mul(WEIGHT));
        Bytes::from_owner(Owned { bytes: body, _memory: over })
    }

    fn keep(&self, bytes: usize) -> Option<MemoryPermit> {
        self.held().as_mut().map(|held| held.split(held.bytes.saturating_sub(bytes)))
    }

    fn bytes(&self) -> usize {
        self.held().as_ref().map_or(0, |held| held.bytes)
    }

    fn held(&self) -> MutexGuard<'_, Option<MemoryPermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that hold memory of a pool for as long as they are somewhere in this process.
struct Owned<B, M> {
    bytes: B,
    _memory: M,
}

impl<B: AsRef<[u8]>, M> AsRef<[u8]> for Owned<B, M> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// An answer that holds memory of `pool` until its last byte has left this process, also where HTTP/2 keeps it for a client that does not
/// read. Answers without a known length are not counted: they are made piece by piece, as fast as they are read.
///
/// # Errors
/// [`NoRoom`]. It does not wait: answers that waited would take the memory that they wait for.
pub fn held(pool: &MemoryPool, claim: Claim, answer: Response) -> Result<Response, NoRoom> {
    let Some(bytes @ 1..) = answer.body().size_hint().exact() else { return Ok(answer) };
    let permit = pool.try_take(claim, usize::try_from(bytes).map_err(|_| NoRoom)?)?;
    Ok(answer.map(|body| Body::new(Held { body, memory: Arc::new(permit) })))
}

/// The body of an answer, each piece of which holds the memory of all.
struct Held {
    body: Body,
    memory: Arc<MemoryPermit>,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let holding = |bytes| Bytes::from_owner(Owned { bytes, _memory: Arc::clone(&this.memory) });
        Pin::new(&mut this.body).poll_frame(context).map_ok(|frame| frame.map_data(holding))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Records how much is held, for operators.
pub fn observe(bodies: &MemoryPool, answers: &MemoryPool) {
    gauge!("body_bytes_held").set(bodies.held() as f64);
    gauge!("answer_bytes_held").set(answers.held() as f64);
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const STEP: usize = WEIGHT * STEP_BYTES;

    fn alone(tenant: &Tenant) -> Claim<'_> {
        Claim { tenant, has_rivals: false }
    }

    fn among(tenant: &Tenant) -> Claim<'_> {
        Claim { tenant, has_rivals: true }
    }

    #[tokio::test]
    async fn bodies_share_the_memory_and_give_it_back() {
        let (pool, tenant) = (MemoryPool::new(4 * STEP), Tenant::default());
        let claim = alone(&tenant);
        let (first, second) = (BodyMemory::new(pool.clone()), BodyMemory::new(pool.clone()));
        first.grow_to(claim, 1).await.expect("memory");
        first.grow_to(claim, STEP_BYTES).await.expect("nothing more is needed");
        assert_eq!(pool.held(), STEP);
        first.grow_to(claim, 3 * STEP_BYTES).await.expect("memory");
        assert_eq!(second.grow_to(claim, 2 * STEP_BYTES).await, Err(NoRoom));
        second.grow_to(claim, STEP_BYTES).await.expect("memory for a smaller one");
        assert_eq!(second.grow_to(claim, usize::MAX / 8).await, Err(NoRoom));
        let sent = first.hand_over(vec![7; 9], STEP_BYTES);
        assert_eq!((&sent[..], pool.held()), (&[7; 9][..], 4 * STEP));
        drop(sent);
        second.grow_to(claim, 3 * STEP_BYTES).await.expect("what the first has given back");
        second.shrink_to_parsed(3 * STEP_BYTES);
        assert_eq!(pool.held(), STEP + 3 * STEP_BYTES);
        second.release();
        drop(first);
        assert_eq!(pool.held(), 0);
    }

    #[tokio::test]
    async fn bodies_that_wait_for_each_other_do_not_wait_for_good() {
        let (pool, tenant) = (MemoryPool::new(2 * STEP), Tenant::default());
        let bodies: Vec<BodyMemory> = (0..2).map(|_| BodyMemory::new(pool.clone())).collect();
        for body in &bodies {
            body.grow_to(alone(&tenant), 1).await.expect("memory");
        }
        let grown = futures_util::future::join_all(bodies.into_iter().map(async |body| {
            // Dropped on return, as a request that is refused.
            body.grow_to(alone(&tenant), 2 * STEP_BYTES).await
        }));
        assert!(grown.await.contains(&Err(NoRoom)));
        assert_eq!(pool.held(), 0);
    }

    #[tokio::test]
    async fn one_tenant_leaves_half_to_the_others() {
        let (pool, greedy, other) = (MemoryPool::new(8 * STEP), tenant("greedy"), tenant("other"));
        let mut held = Vec::new();
        while let Ok(permit) = pool.try_take(among(&greedy), STEP) {
            held.push(permit);
        }
        assert_eq!(held.len(), 4);
        let large = pool.take(among(&greedy), 2 * STEP);
        let small = async {
            // The greedy tenant waits already, and for more than there is for it.
            tokio::task::yield_now().await;
            pool.take(among(&other), STEP).await.expect("the others have room")
        };
        let (large, small) = tokio::join!(large, small);
        assert!(large.is_err(), "it holds half");
        drop((small, held));
        assert_eq!(pool.held(), 0);
    }

    #[tokio::test]
    async fn an_answer_holds_memory_until_its_last_piece_is_dropped() {
        let (pool, tenant) = (MemoryPool::new(10), Tenant::default());
        let answer = |bytes: &'static [u8]| Response::new(Body::from(bytes));
        let held_one = held(&pool, alone(&tenant), answer(b"12345678")).expect("memory");
        assert_eq!(held(&pool, alone(&tenant), answer(b"1234")).err(), Some(NoRoom));
        let piece = held_one.into_body().frame().await.expect("a frame").expect("no error");
        assert_eq!(pool.held(), 8, "HTTP/2 still has it");
        assert_eq!(piece.into_data().expect("data"), &b"12345678"[..]);
        assert_eq!(pool.held(), 0);
        assert!(held(&pool, alone(&tenant), Response::new(Body::empty())).is_ok());
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).expect("a name")
    }
}
