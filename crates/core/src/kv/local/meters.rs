//! What a tier counts.
//! Knows nothing of how a tier works. Lookups are counted by who asks.

use metrics::{Counter, Gauge, counter, gauge};

use super::{TierName, TierStats};

/// TtlStore, looked up once: a registry search costs more than finding a block in memory.
pub struct Meters {
    bytes: Gauge,
    entries: Gauge,
    /// Blocks that made room for others.
    pub evictions: Counter,
    /// Blocks whose bytes were not those that were written.
    pub damaged: Counter,
    /// Blocks that the system would not give, whole or not.
    pub unreadable: Counter,
    /// Blocks that were kept.
    pub written: Counter,
    /// Blocks that the system would not take.
    pub failed: Counter,
    /// Blocks that found the write queue full or closed.
    pub dropped: Counter,
    /// Blocks larger than the tier.
    pub too_large: Counter,
    failing: Gauge,
}

impl Meters {
    /// Of one tier, at the recorder that is installed now.
    pub fn new(tier: TierName) -> Self {
        let tier = tier.as_str();
        let writes =
            |outcome: &'static str| counter!("kv_writes_total", "tier" => tier, "outcome" => outcome);
        Self {
            bytes: gauge!("kv_bytes", "tier" => tier),
            entries: gauge!("kv_entries", "tier" => tier),
            evictions: counter!("kv_evictions_total", "tier" => tier),
            damaged: counter!("kv_damaged_total", "tier" => tier),
            unreadable: counter!("kv_unreadable_total", "tier" => tier),
            written: writes("ok"),
            failed: writes("failed"),
            dropped: writes("dropped"),
            too_large: writes("too_large"),
            failing: gauge!("kv_failing", "tier" => tier),
        }
    }

    /// What the tier holds now.
    pub fn holds(&self, stats: TierStats) {
        self.bytes.set(stats.bytes as f64);
        self.entries.set(stats.entries as f64);
    }

    /// Whether the last write failed.
    pub fn failing(&self, failing: bool) {
        self.failing.set(if failing { 1.0 } else { 0.0 });
    }
}
