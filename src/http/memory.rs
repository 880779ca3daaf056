//! Limits the memory of all request bodies together, and of all responses that clients have not read yet.
//!
//! A body counts from its first byte until its request does not need it any more; a response counts until its last byte has left this process.
//! Tenants share a pool by the rule of `admission::Shares`: while other tenants may come, a tenant takes more only while it holds less
//! than is free. One tenant can therefore take half of a pool, and leaves the other half to the others.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use metrics::gauge;
use thresher_core::memory::{MemoryPermit, MemoryPool, PoolExhausted, Sharer};

/// The memory of one byte of a body while it is parsed: the byte itself, and what is parsed from it.
const WEIGHT: usize = 2;

/// Memory for a body is taken in steps of this many bytes.
const STEP_BYTES: usize = 64 * 1024;

/// How long a body waits for memory. Bodies that each hold some memory and wait for more would wait for each other: after this time they fail.
const WAIT: Duration = Duration::from_secs(2);

/// The memory of the body of one request. Dropping it frees the memory.
#[derive(Debug)]
pub struct BodyMemory {
    pool: MemoryPool,
    held: Mutex<Option<MemoryPermit>>,
}

impl BodyMemory {
    /// Creates the memory of a body, which holds nothing yet.
    pub fn new(pool: MemoryPool) -> Self {
        Self { pool, held: Mutex::default() }
    }

    /// Takes memory for the first `bytes` of a body, and for what will be parsed from them.
    ///
    /// # Errors
    /// Fails if there is not enough memory after two seconds.
    pub async fn grow_to(&self, sharer: Sharer<'_>, bytes: usize) -> Result<(), PoolExhausted> {
        let wanted = bytes.next_multiple_of(STEP_BYTES).saturating_mul(WEIGHT);
        let more = wanted.saturating_sub(self.bytes());
        if more == 0 {
            return Ok(());
        }
        let taken = self.pool.take(sharer, more, Instant::now() + WAIT).await?;
        match &mut *self.held() {
            Some(held) => held.merge(taken),
            held => *held = Some(taken),
        }
        Ok(())
    }

    /// Frees the memory of a body of `bytes` that has been parsed and dropped. The memory of what was parsed stays taken.
    pub fn shrink_to_parsed(&self, bytes: usize) {
        self.keep(bytes.next_multiple_of(STEP_BYTES).saturating_mul(WEIGHT - 1));
    }

    /// Frees all memory: both the body and what was parsed from it have been dropped.
    pub fn release(&self) {
        self.keep(0);
    }

    /// Transfers the memory to a body that is sent to an upstream: it is freed when the body has been sent. The memory of `kept` bytes stays with
    /// the request, which still needs them.
    pub fn transfer(&self, body: Vec<u8>, kept: usize) -> Bytes {
        let transferred = self.keep(kept.saturating_mul(WEIGHT));
        Bytes::from_owner(Accounted { bytes: body, _memory: transferred })
    }

    fn keep(&self, bytes: usize) -> Option<MemoryPermit> {
        self.held().as_mut().map(|held| held.split(held.bytes().saturating_sub(bytes)))
    }

    fn bytes(&self) -> usize {
        self.held().as_ref().map_or(0, MemoryPermit::bytes)
    }

    fn held(&self) -> MutexGuard<'_, Option<MemoryPermit>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that count towards a pool for as long as they are in this process.
struct Accounted<B, M> {
    bytes: B,
    _memory: M,
}

impl<B: AsRef<[u8]>, M> AsRef<[u8]> for Accounted<B, M> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Counts a response towards `pool` until its last byte has left this process, also while HTTP/2 buffers it for a client that does not read.
/// Responses of unknown length are not counted: they are produced as fast as they are read.
///
/// # Errors
/// Fails if there is not enough memory. It does not wait, since waiting responses would take the memory that they wait for.
pub fn account(pool: &MemoryPool, sharer: Sharer, answer: Response) -> Result<Response, PoolExhausted> {
    let Some(bytes @ 1..) = answer.body().size_hint().exact() else { return Ok(answer) };
    let permit = pool.try_take(sharer, usize::try_from(bytes).map_err(|_| PoolExhausted)?)?;
    Ok(answer.map(|body| Body::new(AccountedBody { body, memory: Arc::new(permit) })))
}

/// The body of a response. Each of its frames holds the memory of the whole response.
struct AccountedBody {
    body: Body,
    memory: Arc<MemoryPermit>,
}

impl HttpBody for AccountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let account = |bytes| Bytes::from_owner(Accounted { bytes, _memory: Arc::clone(&this.memory) });
        Pin::new(&mut this.body).poll_frame(context).map_ok(|frame| frame.map_data(account))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Records how much memory is taken, for operators.
pub fn observe(bodies: &MemoryPool, answers: &MemoryPool) {
    gauge!("body_bytes_held").set(bodies.held() as f64);
    gauge!("answer_bytes_held").set(answers.held() as f64);
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use thresher_core::domain::Tenant;

    use super::*;

    const STEP: usize = WEIGHT * STEP_BYTES;

    fn alone(tenant: &Tenant) -> Sharer<'_> {
        Sharer { tenant, has_rivals: false }
    }

    #[tokio::test]
    async fn bodies_share_the_memory_and_free_it() {
        let (pool, tenant) = (MemoryPool::new(4 * STEP), Tenant::default());
        let sharer = alone(&tenant);
        let (first, second) = (BodyMemory::new(pool.clone()), BodyMemory::new(pool.clone()));
        first.grow_to(sharer, 1).await.expect("memory");
        first.grow_to(sharer, STEP_BYTES).await.expect("nothing more is needed");
        assert_eq!(pool.held(), STEP);
        first.grow_to(sharer, 3 * STEP_BYTES).await.expect("memory");
        assert_eq!(second.grow_to(sharer, 2 * STEP_BYTES).await, Err(PoolExhausted));
        second.grow_to(sharer, STEP_BYTES).await.expect("memory for a smaller one");
        assert_eq!(second.grow_to(sharer, usize::MAX / 8).await, Err(PoolExhausted));
        let sent = first.transfer(vec![7; 9], STEP_BYTES);
        assert_eq!((&sent[..], pool.held()), (&[7; 9][..], 4 * STEP));
        drop(sent);
        second.grow_to(sharer, 3 * STEP_BYTES).await.expect("what the first has given back");
        second.shrink_to_parsed(3 * STEP_BYTES);
        assert_eq!(pool.held(), STEP + 3 * STEP_BYTES);
        second.release();
        drop(first);
        assert_eq!(pool.held(), 0);
    }

    #[tokio::test]
    async fn bodies_do_not_wait_for_each_other_forever() {
        let (pool, tenant) = (MemoryPool::new(2 * STEP), Tenant::default());
        let bodies: Vec<BodyMemory> = (0..2).map(|_| BodyMemory::new(pool.clone())).collect();
        for body in &bodies {
            body.grow_to(alone(&tenant), 1).await.expect("memory");
        }
        let grown = futures_util::future::join_all(bodies.into_iter().map(async |body| {
            // Dropped on return, as a request that is refused.
            body.grow_to(alone(&tenant), 2 * STEP_BYTES).await
        }));
        assert!(grown.await.contains(&Err(PoolExhausted)));
        assert_eq!(pool.held(), 0);
    }

    #[tokio::test]
    async fn an_answer_holds_memory_until_its_last_piece_is_dropped() {
        let (pool, tenant) = (MemoryPool::new(10), Tenant::default());
        let answer = |bytes: &'static [u8]| Response::new(Body::from(bytes));
        let held_one = account(&pool, alone(&tenant), answer(b"12345678")).expect("memory");
        assert_eq!(account(&pool, alone(&tenant), answer(b"1234")).err(), Some(PoolExhausted));
        let piece = held_one.into_body().frame().await.expect("a frame").expect("no error");
        assert_eq!(pool.held(), 8, "HTTP/2 still has it");
        assert_eq!(piece.into_data().expect("data"), &b"12345678"[..]);
        assert_eq!(pool.held(), 0);
        assert!(account(&pool, alone(&tenant), Response::new(Body::empty())).is_ok());
    }
}
