//! Bounds the connections of one listener: how many there are in all and of one peer, how long one may be idle, and how long a client
//! may leave an answer unread.
//!
//! A new connection finds room when the limit is reached: the connection that has been idle the longest is closed for it. Only where
//! every connection has a request in flight is the new one refused; a request counts here once its key was found valid. A client that
//! opens connections and says nothing, that keeps hundreds of them alive, or that has no key, therefore keeps nobody out.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use metrics::{counter, gauge};
use tokio::sync::Notify;

/// An answer is handed to its connection in pieces of this size. HTTP/2 keeps what a client does not take in memory, whole frames at a
/// time: in smaller frames, an answer that is left unread stays with its handler, where it is seen.
const FRAME_BYTES_MAX: usize = 64 * 1024;

/// How often a connection is looked at, at most.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Bounds of a listener's connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections in all.
    pub count_max: usize,
    /// Connections of one IPv4 address, or of one IPv6 network of 64 bits.
    pub per_peer_max: usize,
    /// How long a connection may have no request in flight.
    pub idle_max: Duration,
    /// How long a client may take nothing of an answer.
    pub write_max: Duration,
}

/// The connections of one listener. Clones share them.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// ChunkNumbers the listener in metrics.
    listener: &'static str,
    limits: ConnectionLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_id: HashMap<u64, Arc<Activity>>,
    per_peer: HashMap<IpAddr, usize>,
}

/// A connection that was let in. Dropped, it makes room for another.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    activity: Arc<Activity>,
    connections: Connections,
}

/// Why a connection is closed from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// It has been idle for too long: its client is told before it is closed.
    Idle,
    /// Its client reads no answer: nothing that it is told would arrive.
    Stalled,
    /// Another connection needs its place.
    Evicted,
}

/// What a connection does.
#[derive(Debug)]
struct Activity {
    peer: IpAddr,
    evicted: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    requests_in_flight: usize,
    /// Of these, the requests that may be answered, by their ids.
    accepted: HashSet<u64>,
    /// The end of the latest request.
    idle_since: Instant,
    next_answer: u64,
    /// Answers of which the connection took a piece and has not come back for the next one, with the time of that piece.
    handed_over: HashMap<u64, Instant>,
}

/// A request on its way. Dropped when its answer has been handed over whole, or will not be.
#[derive(Debug)]
pub struct InFlight {
    activity: Arc<Activity>,
    id: u64,
}

/// Travels with a request from its connection to the layer that asks for keys.
#[derive(Debug, Clone)]
pub struct Begun {
    activity: Arc<Activity>,
    id: u64,
}

impl Begun {
    /// The request may be answered: its connection is kept for as long as it is in flight.
    pub fn accept(&self) {
        self.activity.state().accepted.insert(self.id);
    }
}

impl Connections {
    /// No connections yet. `listener` is their label in metrics.
    pub fn new(listener: &'static str, limits: ConnectionLimits) -> Self {
        Self(Arc::new(Shared { listener, limits, open: Mutex::default() }))
    }

    /// Takes in a connection of `peer`, in place of an idle one where there are as many as may be. None: it is to be refused.
    pub fn admit(&self, peer: IpAddr) -> Option<Connection> {
        let ConnectionLimits { count_max, per_peer_max, .. } = self.0.limits;
        let peer = network(peer);
        let mut open = self.open();
        let of_peer = open.per_peer.get(&peer).copied().unwrap_or_default();
        let refused = if of_peer >= per_peer_max {
            (!open.evict(|activity| activity.peer == peer)).then_some("peer_limit")
        } else if open.by_id.len() >= count_max {
            (!open.evict(|_| true)).then_some("limit")
        } else {
            None
        };
        if let Some(reason) = refused {
            counter!("connections_refused_total", "listener" => self.0.listener, "reason" => reason)
                .increment(1);
            return None;
        }
        let id = open.next;
        open.next += 1;
        let activity = Arc::new(Activity::new(peer));
        open.by_id.insert(id, Arc::clone(&activity));
        *open.per_peer.entry(peer).or_default() += 1;
        gauge!("connections_open", "listener" => self.0.listener).set(open.by_id.len() as f64);
        Some(Connection { id, activity, connections: self.clone() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: u64) {
        let mut open = self.open();
        open.remove(id);
        gauge!("connections_open", "listener" => self.0.listener).set(open.by_id.len() as f64);
    }
}

impl Open {
    /// Closes the connection that has been idle the longest, among those that `may_go`. False: there is none.
    fn evict(&mut self, may_go: impl Fn(&Activity) -> bool) -> bool {
        let idle = self.by_id.iter().filter(|(_, activity)| may_go(activity));
        let idle = idle.filter_map(|(&id, activity)| activity.may_go_since().map(|since| (since, id)));
        let Some((_, id)) = idle.min() else { return false };
        if let Some(activity) = self.remove(id) {
            activity.evicted.notify_one();
        }
        true
    }

    /// Once for each connection: one that was evicted is not counted any more when it is dropped.
    fn remove(&mut self, id: u64) -> Option<Arc<Activity>> {
        let activity = self.by_id.remove(&id)?;
        if let Some(count) = self.per_peer.get_mut(&activity.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&activity.peer);
            }
        }
        Some(activity)
    }
}

/// What counts as one peer. Whoever has an IPv6 address has 2^64 of them.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

impl Connection {
    /// A request has come on this connection.
    pub fn request(&self) -> InFlight {
        let mut state = self.activity.state();
        state.requests_in_flight += 1;
        state.next_answer += 1;
        InFlight { activity: Arc::clone(&self.activity), id: state.next_answer }
    }

    /// Returns when the connection is to be closed, and why. Cancelling it loses nothing.
    pub async fn closing(&self) -> Close {
        let ConnectionLimits { idle_max, write_max, .. } = self.connections.0.limits;
        let look = (idle_max.min(write_max) / 8).clamp(Duration::from_millis(1), LOOK_MAX);
        let close = loop {
            tokio::select! {
                () = self.activity.evicted.notified() => break Close::Evicted,
                () = tokio::time::sleep(look) => {
                    if let Some(close) = self.activity.is_over(idle_max, write_max) {
                        break close;
                    }
                }
            }
        };
        let reason = match close {
            Close::Idle => "idle",
            Close::Stalled => "stalled",
            Close::Evicted => "evicted",
        };
        let listener = self.connections.0.listener;
        counter!("connections_closed_total", "listener" => listener, "reason" => reason).increment(1);
        close
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.remove(self.id);
    }
}

impl Activity {
    fn new(peer: IpAddr) -> Self {
        let state = State {
            requests_in_flight: 0,
            accepted: HashSet::new(),
            idle_since: Instant::now(),
            next_answer: 0,
            handed_over: HashMap::new(),
        };
        Self { peer, evicted: Notify::new(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when it has answered nothing, if no request that may be answered is in flight.
    fn may_go_since(&self) -> Option<Instant> {
        let state = self.state();
        state.accepted.is_empty().then_some(state.idle_since)
    }

    fn is_over(&self, idle_max: Duration, write_max: Duration) -> Option<Close> {
        let state = self.state();
        let is_idle = state.requests_in_flight == 0 && state.idle_since.elapsed() >= idle_max;
        // One client of many behind a proxy may leave its answer unread: the others' requests on the same connection go on.
        let is_stalled = state.requests_in_flight > 0
            && state.handed_over.len() == state.requests_in_flight
            && state.handed_over.values().all(|at| at.elapsed() >= write_max);
        if is_stalled { Some(Close::Stalled) } else { is_idle.then_some(Close::Idle) }
    }
}

impl InFlight {
    /// What the request takes along.
    pub fn begun(&self) -> Begun {
        Begun { activity: Arc::clone(&self.activity), id: self.id }
    }

    /// The answer, watched until the connection has taken all of it.
    pub fn answer(self, response: Response) -> Response {
        response.map(|body| Body::new(Watched { body, rest: Bytes::new(), in_flight: self }))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.handed_over.remove(&self.id);
        state.accepted.remove(&self.id);
        state.requests_in_flight -= 1;
        state.idle_since = Instant::now();
    }
}

/// The body of an answer, in pieces of [`FRAME_BYTES_MAX`] at most.
struct Watched {
    body: Body,
    /// What is left of a longer piece.
    rest: Bytes,
    in_flight: InFlight,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let id = this.in_flight.id;
        if this.rest.is_empty() {
            let polled = Pin::new(&mut this.body).poll_frame(context);
            let data = match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                // Whoever waits for more of the answer has taken what there was.
                other => {
                    this.in_flight.activity.state().handed_over.remove(&id);
                    return other;
                }
            };
            this.rest = data;
        }
        let piece = this.rest.split_to(this.rest.len().min(FRAME_BYTES_MAX));
        this.in_flight.activity.state().handed_over.insert(id, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.body.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn connections(count_max: usize, per_peer_max: usize) -> Connections {
        Connections::new(
            "test",
            ConnectionLimits { count_max, per_peer_max, idle_max: LONG, write_max: LONG },
        )
    }

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn accepted(connection: &Connection) -> InFlight {
        let in_flight = connection.request();
        in_flight.begun().accept();
        in_flight
    }

    async fn is_evicted(connection: &Connection) -> bool {
        tokio::select! {
            biased;
            close = connection.closing() => close == Close::Evicted,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn the_one_that_is_idle_the_longest_makes_room() {
        let connections = connections(3, 2);
        let busy = connections.admit(peer(1)).expect("room");
        let in_flight = accepted(&busy);
        let first = connections.admit(peer(2)).expect("room");
        let second = connections.admit(peer(3)).expect("room");
        let third = connections.admit(peer(4)).expect("in place of the first");
        assert!(is_evicted(&first).await && !is_evicted(&busy).await && !is_evicted(&second).await);
        drop(first);
        let held = [accepted(&second), accepted(&third)];
        assert!(connections.admit(peer(5)).is_none(), "every connection has a request in flight");
        drop(held);
        drop(in_flight);
        assert!(connections.admit(peer(5)).is_some());
        assert!(is_evicted(&second).await, "the one whose request ended first");
    }

    #[tokio::test]
    async fn a_request_without_a_valid_key_keeps_nobody_out() {
        let connections = connections(1, 1);
        let nobody = connections.admit(peer(1)).expect("room");
        let _refused = nobody.request();
        let somebody = connections.admit(peer(1)).expect("in place of the first");
        assert!(is_evicted(&nobody).await && !is_evicted(&somebody).await);
    }

    #[test]
    fn an_answer_that_is_left_unread_does_not_end_others_of_its_connection() {
        let connection = connections(1, 1).admit(peer(1)).expect("room");
        let [one, other] = [connection.request(), connection.request()];
        let over = |write_max| connection.activity.is_over(LONG, write_max);
        connection.activity.state().handed_over.insert(one.id, Instant::now());
        assert_eq!(over(Duration::ZERO), None);
        connection.activity.state().handed_over.insert(other.id, Instant::now());
        assert_eq!(over(Duration::ZERO), Some(Close::Stalled));
        drop((one, other));
        assert_eq!(over(Duration::ZERO), None);
    }

    #[test]
    fn one_peer_makes_room_for_itself_only() {
        let connections = connections(10, 2);
        let others = connections.admit(peer(1)).expect("room");
        let own: Vec<Connection> = (0..2).map(|_| connections.admit(peer(2)).expect("room")).collect();
        let held: Vec<InFlight> = own.iter().map(accepted).collect();
        assert!(connections.admit(peer(2)).is_none());
        assert!(connections.admit(peer(3)).is_some());
        drop(held);
        assert!(connections.admit(peer(2)).is_some());
        drop((own, others));
        let open = connections.open();
        assert!(open.by_id.is_empty() && open.per_peer.is_empty(), "{open:?}");
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let check = |one: &str, other: &str, same: bool| {
            let [one, other] = [one, other].map(|address| network(address.parse().expect("an address")));
            assert_eq!(one == other, same, "{one} {other}");
        };
        check("2001:db8::1", "2001:db8::ffff:2", true);
        check("2001:db8::1", "2001:db8:0:1::1", false);
        check("::ffff:10.0.0.1", "10.0.0.1", true);
        check("10.0.0.1", "10.0.0.2", false);
    }

    #[tokio::test]
    async fn answers_go_out_in_pieces_and_one_that_is_not_taken_is_seen() {
        let limits =
            ConnectionLimits { count_max: 1, per_peer_max: 1, idle_max: LONG, write_max: Duration::ZERO };
        let connection = Connections::new("test", limits).admit(peer(1)).expect("room");
        let text = vec![7; 3 * FRAME_BYTES_MAX + 1];
        let answer = connection.request().answer(Response::new(Body::from(text.clone())));
        let mut body = answer.into_body();
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        let mut taken = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.expect("a frame").into_data().expect("data");
            assert!(data.len() <= FRAME_BYTES_MAX);
            taken.extend_from_slice(&data);
            assert_eq!(connection.closing().await, Close::Stalled, "it does not come back for more");
        }
        assert_eq!(taken, text);
        drop(body);
        assert_eq!(connection.activity.is_over(LONG, Duration::ZERO), None, "all of it was taken");
        assert_eq!(connection.activity.is_over(Duration::ZERO, LONG), Some(Close::Idle));
    }
}
