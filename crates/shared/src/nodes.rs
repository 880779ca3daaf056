//! Which node holds which key, and which nodes are left alone because they do not answer: one breaker each.
//! Knows nothing of connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redis::Value;

/// Slots of a cluster.
const SLOTS: usize = 16_384;

/// A server and whether it is worth asking.
pub struct Node {
    /// `host:port`, or whatever the one server that is no cluster's is called; empty for a cluster's until its slots are known.
    pub address: String,
    /// A key of this node that nobody writes.
    pub probe: String,
    failures: AtomicU32,
    open: AtomicBool,
}

impl Node {
    /// Left alone until a look says that it is well.
    fn new(address: String, probe: String) -> Self {
        Self { address, probe, failures: AtomicU32::new(0), open: AtomicBool::new(true) }
    }

    /// Whether requests may ask it.
    pub fn admits(&self) -> bool {
        !self.open.load(Ordering::Relaxed)
    }

    /// It answered a request.
    pub fn answered(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// It did not answer. Returns whether the breaker opens now, at `failures_max` in a row.
    pub fn failed(&self, failures_max: u32) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures >= failures_max && !self.open.swap(true, Ordering::Relaxed)
    }

    /// A look said that it is well.
    pub fn heal(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }

    /// Leaves it alone from now on.
    pub fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }
}

/// All nodes at one moment.
pub struct Table {
    nodes: Vec<Arc<Node>>,
    /// Index of the node of every slot; empty: there is one node.
    slots: Vec<u16>,
}

impl Table {
    /// Index in [`Table::nodes`] of the node that holds `name`.
    pub fn index(&self, name: &str) -> usize {
        if self.slots.is_empty() { 0 } else { usize::from(self.slots[slot(name)]) }
    }

    /// All nodes, slots of nobody standing for one more.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Share of the nodes that are left alone, 0 to 1.
    pub fn open_share(&self) -> f64 {
        let open = self.nodes.iter().filter(|node| !node.admits()).count();
        open as f64 / self.nodes.len() as f64
    }
}

/// The nodes; their table changes as a cluster does.
pub struct Nodes {
    prefix: String,
    table: RwLock<Arc<Table>>,
}

impl Nodes {
    /// One node, until a cluster's slots are known.
    pub fn new(prefix: &str, address: String) -> Self {
        let node = Node::new(address, format!("{prefix}probe"));
        let table = Table { nodes: vec![Arc::new(node)], slots: Vec::new() };
        Self { prefix: prefix.to_owned(), table: RwLock::new(Arc::new(table)) }
    }

    /// The table now.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over the answer of `CLUSTER SLOTS`; nodes that stay keep their breakers, new ones begin open. An answer that
    /// is none changes nothing.
    pub fn learn(&self, answer: &Value) {
        let ranges = ranges(answer);
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
        let mut places: HashMap<&str, u16> = HashMap::new();
        let mut nodes = Vec::new();
        let slots: Vec<u16> = owners
            .iter()
            .map(|address| {
                *places.entry(address).or_insert_with(|| {
                    let node = known.remove(address).filter(|node| !node.address.is_empty());
                    nodes.push(
                        node.unwrap_or_else(|| Arc::new(Node::new((*address).to_owned(), String::new()))),
                    );
                    (nodes.len() - 1) as u16
                })
            })
            .collect();
        // The probe of a node must lie in its slots, which may have moved.
        for (at, node) in nodes.iter_mut().enumerate() {
            let holds = |name: &String| usize::from(slots[slot(name)]) == at;
            if !holds(&node.probe) || node.probe.is_empty() {
                let probe =
                    (0..SLOTS).map(|n| format!("{}probe:{n}", self.prefix)).find(holds).unwrap_or_default();
                let moved = Node::new(node.address.clone(), probe);
                moved.open.store(!node.admits(), Ordering::Relaxed);
                *node = Arc::new(moved);
            }
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Table { nodes, slots });
    }
}

/// First slot, last slot, address of the primary. An empty host stands for the node that answered: still a name.
fn ranges(answer: &Value) -> Vec<(usize, usize, String)> {
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
    let Value::Array(all) = answer else { return Vec::new() };
    all.iter().filter_map(range).collect()
}

/// CRC16 (XMODEM) of the part in the first braces, if any stands there, else of all.
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
    fn slots_are_the_servers() {
        let check = |name: &str, expect: usize| assert_eq!(slot(name), expect, "{name}");
        check("123456789", 0x31C3);
        check("foo", 12182);
        check("{foo}:bar", 12182);
        check("a{foo}{bar}", 12182);
        assert_eq!(slot("{}foo"), slot("{}foo"));
        assert_ne!(slot("{}foo"), slot("{}bar"), "empty braces are no tag");
    }

    fn answer(ranges: &[(i64, i64, i64)]) -> Value {
        let node = |port| Value::Array(vec![Value::BulkString(b"h".to_vec()), Value::Int(port)]);
        let range = |r: &(i64, i64, i64)| Value::Array(vec![Value::Int(r.0), Value::Int(r.1), node(r.2)]);
        Value::Array(ranges.iter().map(range).collect())
    }

    #[test]
    fn nodes_keep_their_breakers_when_slots_move() {
        let nodes = Nodes::new("p:", String::new());
        nodes.learn(&answer(&[(0, 9999, 1), (10000, 16383, 2)]));
        let table = nodes.table();
        assert_eq!(table.nodes().len(), 2);
        assert_eq!(table.open_share(), 1.0, "unknown until looked at");
        for (at, node) in table.nodes().iter().enumerate() {
            assert_eq!(table.index(&node.probe), at, "a probe lies in its node");
        }
        table.nodes()[table.index("foo")].heal();
        assert_eq!(table.open_share(), 0.5);
        nodes.learn(&answer(&[(0, 9000, 1), (9001, 16383, 2)]));
        let table = nodes.table();
        assert!(table.nodes()[table.index("foo")].admits());
        nodes.learn(&answer(&[(0, 9000, 1)]));
        let table = nodes.table();
        assert!(!table.nodes()[table.index("foo")].admits(), "a slot of nobody");
        nodes.learn(&Value::Nil);
        assert_eq!(nodes.table().nodes().len(), 2, "no answer changes nothing");
    }

    #[test]
    fn a_breaker_opens_after_failures_in_a_row() {
        let node = Node::new(String::new(), String::new());
        node.heal();
        assert!(!node.failed(2));
        node.answered();
        assert!(!node.failed(2) && node.admits());
        assert!(node.failed(2) && !node.admits());
        assert!(!node.failed(2), "opens once");
        node.heal();
        assert!(node.admits());
    }
}
