//! Bounds the memory that the bodies of all requests take together.
//!
//! A body counts from its first byte until its request is answered: first as bytes, then as what was read from them. What does not
//! fit waits a little and is then refused, so that many large bodies cannot use up the machine's memory before any of them is looked at.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use metrics::gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a byte of a body takes while it is read: itself, and what is made of it.
const WEIGHT: usize = 2;

/// Room is taken in steps of so many bytes of a body.
const STEP_BYTES: usize = 64 * 1024;

/// How long a body waits for room. Bodies that each hold some and wait for more would wait for each other: after this time one gives up.
const WAIT: Duration = Duration::from_secs(2);

/// The room that all bodies share. Clones share it.
#[derive(Debug, Clone)]
pub struct BodyPool {
    all: Arc<Semaphore>,
    bytes_max: usize,
}

/// There is no room for a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

impl BodyPool {
    /// Room for `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.min(Semaphore::MAX_PERMITS);
        Self { all: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    /// Bytes that are held now.
    pub fn held(&self) -> usize {
        self.bytes_max - self.all.available_permits()
    }
}

/// The room that one request has taken, which is given back when it is dropped.
#[derive(Debug)]
pub struct BodyBytes {
    pool: BodyPool,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl BodyBytes {
    /// Nothing is held yet.
    pub fn new(pool: BodyPool) -> Self {
        Self { pool, held: Mutex::default() }
    }

    /// Sees to it that there is room for a body of `bytes`, as far as it has come.
    ///
    /// # Errors
    /// [`NoRoom`], after [`WAIT`].
    pub async fn grow_to(&self, bytes: usize) -> Result<(), NoRoom> {
        let wanted = bytes.next_multiple_of(STEP_BYTES).saturating_mul(WEIGHT);
        let more = wanted.saturating_sub(self.held());
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).map_err(|_| NoRoom)?;
        let taken = tokio::time::timeout(WAIT, Arc::clone(&self.pool.all).acquire_many_owned(more)).await;
        let taken = taken.map_err(|_elapsed| NoRoom)?.expect("the semaphore is never closed");
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(held) => held.merge(taken),
            None => *held = Some(taken),
        }
        Ok(())
    }

    /// Ties the room to a body that goes on to another server, but for the room of `kept` bytes that the request still needs: it is given
    /// back when the body has been sent, however long the answer takes.
    pub fn hand_over(&self, body: Vec<u8>, kept: usize) -> Bytes {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let room = held.as_mut().and_then(|permit| {
            let over = permit.num_permits().saturating_sub(kept.saturating_mul(WEIGHT));
            permit.split(over)
        });
        Bytes::from_owner(Sent { body, _room: room })
    }

    fn held(&self) -> usize {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

/// A body on its way to another server.
struct Sent {
    body: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Records how much is held, for operators.
pub fn observe(pool: &BodyPool) {
    gauge!("body_bytes_held").set(pool.held() as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_share_the_room_and_give_it_back() {
        let pool = BodyPool::new(4 * WEIGHT * STEP_BYTES);
        let (first, second) = (BodyBytes::new(pool.clone()), BodyBytes::new(pool.clone()));
        first.grow_to(1).await.expect("room");
        first.grow_to(STEP_BYTES).await.expect("nothing more is needed");
        assert_eq!(pool.held(), WEIGHT * STEP_BYTES);
        first.grow_to(3 * STEP_BYTES).await.expect("room");
        assert_eq!(second.grow_to(2 * STEP_BYTES).await, Err(NoRoom));
        second.grow_to(STEP_BYTES).await.expect("room for a smaller one");
        assert_eq!(second.grow_to(usize::MAX / 8).await, Err(NoRoom));
        let sent = first.hand_over(vec![7; 9], STEP_BYTES);
        assert_eq!((&sent[..], pool.held()), (&[7; 9][..], 4 * WEIGHT * STEP_BYTES));
        drop(sent);
        second.grow_to(3 * STEP_BYTES).await.expect("what the first has given back");
        drop((first, second));
        assert_eq!(pool.held(), 0);
    }

    #[tokio::test]
    async fn bodies_that_wait_for_each_other_do_not_wait_for_good() {
        let pool = BodyPool::new(2 * WEIGHT * STEP_BYTES);
        let bodies: Vec<BodyBytes> = (0..2).map(|_| BodyBytes::new(pool.clone())).collect();
        for body in &bodies {
            body.grow_to(1).await.expect("room");
        }
        let grown = futures_util::future::join_all(bodies.into_iter().map(async |body| {
            // Dropped on return, as a request that is refused.
            body.grow_to(2 * STEP_BYTES).await
        }));
        assert!(grown.await.contains(&Err(NoRoom)));
        assert_eq!(pool.held(), 0);
    }
}
