//! The nodes of the shared tier: which node holds which key, and one circuit breaker for each node. No
//! requests are sent to a node whose breaker is open. Does not know about connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redis::Value;

/// The number of hash slots in a cluster.
const SLOTS: usize = 16_384;

/// A server and its circuit breaker.
pub struct Node {
    /// `host:port` for a node of a cluster, the URL for a single server, and empty for a cluster whose slots
    /// are not known yet.
    pub address: String,
    /// A key in the node's slots that is never written. Empty if the node holds no slot, so that it cannot be
    /// probed.
    pub probe: String,
    failures: AtomicU32,
    open: AtomicBool,
}

impl Node {
    /// Makes a node whose breaker is open until a health check closes it.
    fn new(address: String, probe: String) -> Self {
        Self { address, probe, failures: AtomicU32::new(0), open: AtomicBool::new(true) }
    }

    /// Whether the breaker is closed, so that requests may be sent to the node.
    pub fn is_available(&self) -> bool {
        !self.open.load(Ordering::Relaxed)
    }

    pub fn record_success(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Records that the node did not answer. At `failures_max` failures in a row the breaker opens; returns
    /// whether it opened now.
    pub fn record_failure(&self, failures_max: u32) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures >= failures_max && !self.open.swap(true, Ordering::Relaxed)
    }

    /// Closes the breaker, after a health check succeeded.
    pub fn close_breaker(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }

    pub fn open_breaker(&self) {
        self.open.store(true, Ordering::Relaxed);
    }
}

/// A snapshot of all nodes and their slots.
pub struct NodeTable {
    nodes: Vec<Arc<Node>>,
    /// `[slot]`: the index of the node that holds it. Empty if there is one node.
    slots: Vec<u16>,
}

impl NodeTable {
    /// The index in [`NodeTable::nodes`] of the node that holds the key `name`.
    pub fn index(&self, name: &str) -> usize {
        if self.slots.is_empty() { 0 } else { usize::from(self.slots[slot(name)]) }
    }

    /// All nodes. Slots that no node holds belong to one extra node with an empty address.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The share of the nodes whose breaker is open, 0 to 1.
    pub fn open_share(&self) -> f64 {
        let open = self.nodes.iter().filter(|node| !node.is_available()).count();
        open as f64 / self.nodes.len() as f64
    }
}

/// The current table of nodes, which changes when the slots of the cluster move.
pub struct Nodes {
    prefix: String,
    table: RwLock<Arc<NodeTable>>,
}

impl Nodes {
    /// Makes a table of one node, which stands for the whole cluster until its slots are known.
    pub fn new(prefix: &str, address: String) -> Self {
        let node = Node::new(address, format!("{prefix}probe"));
        let table = NodeTable { nodes: vec![Arc::new(node)], slots: Vec::new() };
        Self { prefix: prefix.to_owned(), table: RwLock::new(Arc::new(table)) }
    }

    pub fn table(&self) -> Arc<NodeTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates the table from the reply to `CLUSTER SLOTS`. Nodes that stay keep the state of their breakers;
    /// the breakers of new nodes are open. A reply without slots changes nothing.
    pub fn update_slots(&self, reply: &Value) {
        let ranges = slot_ranges(reply);
        if ranges.is_empty() {
            return;
        }
        let old = self.table();
        let mut known: HashMap<&str, Arc<Node>> =
            old.nodes.iter().map(|node| (node.address.as_str(), Arc::clone(node))).collect();
        let mut owners: Vec<&str> = vec![""; SLOTS];
        for (first, last, address) in &ranges {
            owners[*first..=*last].fill(address);
        }
        let mut indexes: HashMap<&str, u16> = HashMap::new();
        let mut nodes = Vec::new();
        let slots: Vec<u16> = owners
            .iter()
            .map(|address| {
                *indexes.entry(address).or_insert_with(|| {
                    let node = known.remove(address).filter(|node| !node.address.is_empty());
                    nodes.push(
                        node.unwrap_or_else(|| Arc::new(Node::new((*address).to_owned(), String::new()))),
                    );
                    (nodes.len() - 1) as u16
                })
            })
            .collect();
        // The probe key of a node has to lie in its slots, which may have moved.
        for (index, node) in nodes.iter_mut().enumerate() {
            let holds = |name: &String| usize::from(slots[slot(name)]) == index;
            if !holds(&node.probe) || node.probe.is_empty() {
                let probe =
                    (0..SLOTS).map(|n| format!("{}probe:{n}", self.prefix)).find(holds).unwrap_or_default();
                let moved = Node::new(node.address.clone(), probe);
                moved.open.store(!node.is_available(), Ordering::Relaxed);
                *node = Arc::new(moved);
            }
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(NodeTable { nodes, slots });
    }
}

/// The first slot, the last slot and the address of the primary of each range. An empty host means the node
/// that sent the reply, which still identifies it.
fn slot_ranges(reply: &Value) -> Vec<(usize, usize, String)> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    let slot = |value: &Value| match value {
        Value::Int(slot) => usize::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let [first, last, Value::Array(primary), ..] = parts.as_slice() else { return None };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let (first, last) = (slot(first)?, slot(last)?);
        (first <= last).then(|| (first, last, format!("{}:{port}", text(host))))
    };
    let Value::Array(all) = reply else { return Vec::new() };
    all.iter().filter_map(range).collect()
}

/// The hash slot of a key: the CRC16 (XMODEM) of its hash tag, the text in the first pair of braces, or of
/// the whole key if the tag is missing or empty.
fn slot(name: &str) -> usize {
    let tag = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(name);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| (crc << 1) ^ (0x1021 * (crc >> 15)))
    });
    usize::from(crc) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_servers_compute() {
        let check = |name: &str, expect: usize| assert_eq!(slot(name), expect, "{name}");
        check("123456789", 0x31C3);
        check("foo", 12182);
        check("{foo}:bar", 12182);
        check("a{foo}{bar}", 12182);
        assert_eq!(slot("{}foo"), slot("{}foo"));
        assert_ne!(slot("{}foo"), slot("{}bar"), "empty braces are no tag");
    }

    fn reply(ranges: &[(i64, i64, i64)]) -> Value {
        let node = |port| Value::Array(vec![Value::BulkString(b"h".to_vec()), Value::Int(port)]);
        let range = |r: &(i64, i64, i64)| Value::Array(vec![Value::Int(r.0), Value::Int(r.1), node(r.2)]);
        Value::Array(ranges.iter().map(range).collect())
    }

    #[test]
    fn nodes_keep_their_breakers_when_slots_move() {
        let nodes = Nodes::new("p:", String::new());
        nodes.update_slots(&reply(&[(0, 9999, 1), (10000, 16383, 2)]));
        let table = nodes.table();
        assert_eq!(table.nodes().len(), 2);
        assert_eq!(table.open_share(), 1.0, "unhealthy until checked");
        for (index, node) in table.nodes().iter().enumerate() {
            assert_eq!(table.index(&node.probe), index, "a probe key lies in its node");
        }
        table.nodes()[table.index("foo")].close_breaker();
        assert_eq!(table.open_share(), 0.5);
        nodes.update_slots(&reply(&[(0, 9000, 1), (9001, 16383, 2)]));
        let table = nodes.table();
        assert!(table.nodes()[table.index("foo")].is_available());
        nodes.update_slots(&reply(&[(0, 9000, 1)]));
        let table = nodes.table();
        assert!(!table.nodes()[table.index("foo")].is_available(), "a slot that no node holds");
        nodes.update_slots(&Value::Nil);
        assert_eq!(nodes.table().nodes().len(), 2, "a reply without slots changes nothing");
    }

    #[test]
    fn a_breaker_opens_after_failures_in_a_row() {
        let node = Node::new(String::new(), String::new());
        node.close_breaker();
        assert!(!node.record_failure(2));
        node.record_success();
        assert!(!node.record_failure(2) && node.is_available());
        assert!(node.record_failure(2) && !node.is_available());
        assert!(!node.record_failure(2), "opens once");
        node.close_breaker();
        assert!(node.is_available());
    }
}
