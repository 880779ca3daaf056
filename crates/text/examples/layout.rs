//! Prints the layout of texts. Reads lines of JSON with a `text` and perhaps a `kind`, and writes a line for each: the kind, and every piece
//! with what it requires. `F` marks a piece that only comes with others.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};
use thresher_text::Kind;
use thresher_text::outline::Layout;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let row: Value = serde_json::from_str(&line?)?;
        let text = row["text"].as_str().unwrap_or_default();
        let kind = row["kind"].as_str().and_then(Kind::named).unwrap_or_default();
        let layout = Layout::detect(text, kind);
        let pieces: Vec<Value> = layout
            .pieces
            .iter()
            .map(|piece| {
                let mark = if piece.is_frame { "F" } else { "" };
                json!([mark, piece.requires, piece.introduces, piece.bytes.slice(text)])
            })
            .collect();
        writeln!(out, "{}", json!({"kind": layout.kind, "pieces": pieces}))?;
    }
    Ok(())
}
