//! One connection that may be gone: who asks never waits for it to come back.
//! Knows nothing of when it is made again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::failure::Failure;
use super::target::{Connection, Patience, Target};

/// The connection, while there is one.
pub struct Link {
    target: Target,
    patience: Patience,
    current: RwLock<Option<Numbered>>,
    made: AtomicU64,
    /// Told whenever the connection is lost.
    lost: Arc<Notify>,
}

/// A connection with the number of its making, so that a late error of an old one does not end a new one.
#[derive(Clone)]
struct Numbered {
    number: u64,
    connection: Connection,
}

impl Link {
    /// Without a connection yet.
    pub fn new(target: Target, patience: Patience, lost: Arc<Notify>) -> Self {
        Self { target, patience, current: RwLock::default(), made: AtomicU64::default(), lost }
    }

    /// Whether there is a connection; it may be broken without anybody knowing.
    pub fn is_up(&self) -> bool {
        self.current().is_some()
    }

    /// Connects anew, in place of any old connection.
    ///
    /// # Errors
    /// [`Failure`]; the old connection then stays.
    pub async fn connect(&self) -> Result<(), Failure> {
        let connection = self.target.connect(self.patience).await?;
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Numbered { number, connection });
        Ok(())
    }

    /// Lets go of the connection.
    pub fn lose(&self) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.lost.notify_one();
    }

    /// Sends one command.
    ///
    /// # Errors
    /// [`Failure`], at `deadline` at the latest.
    pub async fn send(&self, command: &Cmd, deadline: Instant) -> Result<Value, Failure> {
        let mut current = self.current().ok_or(Failure::NoConnection)?;
        let answer = tokio::time::timeout_at(deadline, current.connection.send(command)).await;
        self.judge(current.number, answer)
    }

    /// Sends several commands for one slot within `patience`.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn send_all(&self, commands: &Pipeline, patience: Duration) -> Result<Value, Failure> {
        let mut current = self.current().ok_or(Failure::NoConnection)?;
        let answer = tokio::time::timeout(patience, current.connection.send_all(commands)).await;
        self.judge(current.number, answer)
    }

    fn judge<E>(&self, number: u64, answer: Result<RedisResult<Value>, E>) -> Result<Value, Failure> {
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                self.end_if_broken(number, &error);
                Err(Failure::from_redis(&error))
            }
            Err(_elapsed) => Err(Failure::Timeout),
        }
    }

    /// A cluster's connection mends itself, node by node.
    fn end_if_broken(&self, number: u64, error: &RedisError) {
        if !error.is_unrecoverable_error() {
            return;
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let single = |now: &Numbered| matches!(now.connection, Connection::Single(_)) && now.number == number;
        if current.as_ref().is_some_and(single) {
            *current = None;
            self.lost.notify_one();
        }
    }

    fn current(&self) -> Option<Numbered> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
