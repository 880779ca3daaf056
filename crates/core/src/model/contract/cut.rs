//! Names of the values inside a decoder's graph where it can be cut: what the export names, a runtime cuts at.
//! Knows nothing of how either works.

/// `[b, 1, t, dim / 2]`: cosine of each pair's angle at each position.
pub const COS: &str = "rotary.cos";

/// `[b, 1, t, dim / 2]`: its sine.
pub const SIN: &str = "rotary.sin";

/// How the names of what is added to logits begin.
pub const SEEN: &str = "seen.";

/// `[b, t, d]`: what goes into `layer`.
pub fn hidden(layer: usize) -> String {
    format!("hidden.{layer}")
}

/// `[b, 1, t, p + t]`: what is added to the logits of layers that see so many positions back.
pub fn bias(window: Option<usize>) -> String {
    window.map_or(format!("{SEEN}all"), |positions| format!("{SEEN}{positions}"))
}

/// `[b, heads, t, head_dim]`: queries in their positions, scaled; their products with keys are the raw logits.
pub fn query(layer: usize) -> String {
    format!("query.{layer}")
}

/// `[b, kv_heads, t, head_dim]`: keys of the new tokens, in their positions.
pub fn key(layer: usize) -> String {
    format!("key.{layer}")
}

/// `[b, kv_heads, t, head_dim]`: values of the new tokens.
pub fn value(layer: usize) -> String {
    format!("value.{layer}")
}
