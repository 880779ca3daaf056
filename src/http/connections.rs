//! Limits the connections of one listener: their number in all and for one peer, how long one may be idle, and how long a client may leave
//! a response unread.
//!
//! When the limit is reached, the connection that has been idle the longest is closed for a new one. The new one is refused only if every
//! connection has a request in flight; a request counts once its key has been found valid. Therefore a client that opens connections and
//! sends nothing, that keeps hundreds of them alive, or that has no key, cannot lock out others.

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

/// A response is given to its connection in frames of at most this size. HTTP/2 buffers whole frames that a client does not read: with small
/// frames, most of an unread response stays in the handler, where this module notices it.
const FRAME_BYTES_MAX: usize = 64 * 1024;

const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    pub count_max: usize,
    /// The most connections of one IPv4 address, or of one IPv6 network of 64 bits.
    pub per_peer_max: usize,
    /// The longest time that a connection may have no request in flight.
    pub idle_max: Duration,
    /// The longest time that a client may read nothing of a response.
    pub write_max: Duration,
}

impl ConnectionLimits {
    /// The limits of the public listener, if the process may open twice as many files. A new connection replaces the longest idle one, so
    /// that idle clients lock nobody out; one network gets at most half. A connection without a request lives for as long as proxies keep
    /// theirs, and a client that reads nothing for half a minute is gone.
    pub const PUBLIC: Self = Self {
        count_max: 1_024,
        per_peer_max: 512,
        idle_max: Duration::from_secs(60),
        write_max: Duration::from_secs(30),
    };
}

/// The connections of one listener. Clones share them.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The listener's label in metrics.
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

/// An open connection. Dropping it makes room for another.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    activity: Arc<Activity>,
    connections: Connections,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// It has been idle for too long. The client is told before the connection is closed.
    Idle,
    /// The client does not read, so that it cannot be told.
    Stalled,
    /// It is closed for a new connection.
    Evicted,
}

#[derive(Debug)]
struct Activity {
    peer: IpAddr,
    evicted: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    requests_in_flight: usize,
    /// The ids of those requests whose keys are valid.
    accepted: HashSet<u64>,
    /// The end of the last request.
    idle_since: Instant,
    next_id: u64,
    /// Responses of which the connection took a frame and has not asked for the next one, with the time of that frame.
    unread: HashMap<u64, Instant>,
}

/// A request in flight. Dropping it ends the request: its response has been read, or never will be.
#[derive(Debug)]
pub struct InFlight {
    activity: Arc<Activity>,
    id: u64,
}

/// Tells the connection of a request that the request is accepted. It is an extension of the request.
#[derive(Debug, Clone)]
pub struct RequestHandle {
    activity: Arc<Activity>,
    id: u64,
}

impl RequestHandle {
    /// The request has a valid key: its connection is not evicted while the request is in flight.
    pub fn accept(&self) {
        self.activity.state().accepted.insert(self.id);
    }

    pub fn is_local(&self) -> bool {
        self.activity.peer.to_canonical().is_loopback()
    }
}

impl Connections {
    /// A listener without connections. `listener` is its label in metrics.
    pub fn new(listener: &'static str, limits: ConnectionLimits) -> Self {
        Self(Arc::new(Shared { listener, limits, open: Mutex::default() }))
    }

    /// Admits a connection of `peer`, if necessary in place of an idle one. None: the connection is refused.
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
    /// Closes the connection that has been idle the longest, among those that match. False: none is idle.
    fn evict(&mut self, matches: impl Fn(&Activity) -> bool) -> bool {
        let idle = self.by_id.iter().filter(|(_, activity)| matches(activity));
        let idle = idle.filter_map(|(&id, activity)| activity.idle_since().map(|since| (since, id)));
        let Some((_, id)) = idle.min() else { return false };
        if let Some(activity) = self.remove(id) {
            activity.evicted.notify_one();
        }
        true
    }

    /// Removes a connection, once: one that was evicted is gone already when it is dropped.
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

/// The network that counts as one peer. A client with one IPv6 address usually has 2^64 of them.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

impl Connection {
    pub fn request(&self) -> InFlight {
        let mut state = self.activity.state();
        state.requests_in_flight += 1;
        state.next_id += 1;
        InFlight { activity: Arc::clone(&self.activity), id: state.next_id }
    }

    /// Waits until the connection has to be closed, and returns why. It may be dropped and called again.
    pub async fn closing(&self) -> Close {
        let ConnectionLimits { idle_max, write_max, .. } = self.connections.0.limits;
        let interval = (idle_max.min(write_max) / 8).clamp(Duration::from_millis(1), CHECK_INTERVAL_MAX);
        let close = loop {
            tokio::select! {
                () = self.activity.evicted.notified() => break Close::Evicted,
                () = tokio::time::sleep(interval) => {
                    if let Some(close) = self.activity.close_reason(idle_max, write_max) {
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
            next_id: 0,
            unread: HashMap::new(),
        };
        Self { peer, evicted: Notify::new(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the last request, if no accepted request is in flight.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        state.accepted.is_empty().then_some(state.idle_since)
    }

    fn close_reason(&self, idle_max: Duration, write_max: Duration) -> Option<Close> {
        let state = self.state();
        let is_idle = state.requests_in_flight == 0 && state.idle_since.elapsed() >= idle_max;
        // Behind a proxy, one client may leave its response unread while the requests of others on the same connection go on.
        let is_stalled = state.requests_in_flight > 0
            && state.unread.len() == state.requests_in_flight
            && state.unread.values().all(|at| at.elapsed() >= write_max);
        if is_stalled { Some(Close::Stalled) } else { is_idle.then_some(Close::Idle) }
    }
}

impl InFlight {
    pub fn handle(&self) -> RequestHandle {
        RequestHandle { activity: Arc::clone(&self.activity), id: self.id }
    }

    /// The response, watched until the connection has read all of it.
    pub fn answer(self, response: Response) -> Response {
        response.map(|body| Body::new(Watched { body, rest: Bytes::new(), in_flight: self }))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.unread.remove(&self.id);
        state.accepted.remove(&self.id);
        state.requests_in_flight -= 1;
        state.idle_since = Instant::now();
    }
}

/// The body of a response, in frames of at most [`FRAME_BYTES_MAX`].
struct Watched {
    body: Body,
    /// What is left of a longer frame.
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
                // A connection that asks for more has read the frame before.
                other => {
                    this.in_flight.activity.state().unread.remove(&id);
                    return other;
                }
            };
            this.rest = data;
        }
        let frame = this.rest.split_to(this.rest.len().min(FRAME_BYTES_MAX));
        this.in_flight.activity.state().unread.insert(id, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(frame))))
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
        in_flight.handle().accept();
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
    async fn the_connection_that_is_idle_the_longest_is_evicted() {
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
    async fn a_request_without_a_valid_key_does_not_protect_its_connection() {
        let connections = connections(1, 1);
        let unauthenticated = connections.admit(peer(1)).expect("room");
        let _refused = unauthenticated.request();
        let other = connections.admit(peer(1)).expect("in place of the first");
        assert!(is_evicted(&unauthenticated).await && !is_evicted(&other).await);
    }

    #[test]
    fn an_unread_answer_does_not_end_others_of_its_connection() {
        let connection = connections(1, 1).admit(peer(1)).expect("room");
        let [one, other] = [connection.request(), connection.request()];
        let close_reason = |write_max| connection.activity.close_reason(LONG, write_max);
        connection.activity.state().unread.insert(one.id, Instant::now());
        assert_eq!(close_reason(Duration::ZERO), None);
        connection.activity.state().unread.insert(other.id, Instant::now());
        assert_eq!(close_reason(Duration::ZERO), Some(Close::Stalled));
        drop((one, other));
        assert_eq!(close_reason(Duration::ZERO), None);
    }

    #[test]
    fn a_peer_at_its_limit_evicts_only_its_own_connections() {
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
    async fn answers_are_sent_in_frames_and_one_that_is_not_read_is_noticed() {
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
        assert_eq!(connection.activity.close_reason(LONG, Duration::ZERO), None, "all of it was taken");
        assert_eq!(connection.activity.close_reason(Duration::ZERO, LONG), Some(Close::Idle));
    }
}
