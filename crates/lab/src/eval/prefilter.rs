//! Does the registry's prefilter keep what is needed, among all chunks of a file at once?

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use thresher_core::domain::Chunk;
use thresher_registry::{Change, Registry, RegistrySettings};

use super::bootstrap::estimate;
use super::data::{LabelledChunk, SelectionRow};
use super::report::PrefilterReport;

/// Chunks that are kept, beside a tenth of all, which is the least that the default settings keep.
const KEPT: [usize; 2] = [100, 1_000];

/// Share of the gold chunks that is kept when every question is put to all chunks of all rows.
pub fn evaluate(rows: &[SelectionRow]) -> Result<PrefilterReport> {
    // The same chunk may be a candidate of several questions.
    let mut ids: HashMap<(&str, &str), usize> = HashMap::new();
    let mut chunks = Vec::new();
    for chunk in rows.iter().flat_map(|row| &row.chunks) {
        ids.entry(name(chunk)).or_insert_with(|| {
            let id = chunks.len().to_string();
            chunks.push(Change::Put(Arc::new(Chunk { id, ..chunk.chunk() })));
            chunks.len() - 1
        });
    }
    let names: Vec<String> = (0..chunks.len()).map(|n| n.to_string()).collect();
    let settings =
        RegistrySettings { dir: PathBuf::new(), chunk_count_max: usize::MAX, ..RegistrySettings::default() };
    let registry = Registry::open(&settings)?;
    tokio::runtime::Builder::new_current_thread().build()?.block_on(registry.write(chunks))?;
    let mut sizes: Vec<usize> =
        KEPT.into_iter().chain([names.len() / 10]).filter(|n| (1..names.len()).contains(n)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let recall = |keep: usize| -> Result<Vec<f64>> {
        let of_row = |row: &SelectionRow| {
            let kept = registry.prefilter(&row.query, &names, keep)?;
            let has = |gold: &&usize| kept.binary_search(&ids[&name(&row.chunks[**gold])]).is_ok();
            Ok(row.gold.iter().filter(has).count() as f64 / row.gold.len() as f64)
        };
        rows.iter().map(of_row).collect()
    };
    let kept = sizes.into_iter().map(|keep| Ok((keep, estimate(&recall(keep)?)))).collect::<Result<_>>()?;
    Ok(PrefilterReport { chunks: names.len(), kept })
}

fn name(chunk: &LabelledChunk) -> (&str, &str) {
    (&chunk.title, &chunk.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gold_with_the_questions_words_is_kept() {
        let chunk = |text: String| LabelledChunk { id: "x".to_owned(), title: String::new(), text };
        let row = |n: usize| SelectionRow {
            query: format!("Where is number{n}?"),
            chunks: (0..30)
                .map(|i| {
                    chunk(if i == 7 { format!("Here is number{n}.") } else { format!("Row {n}, text {i}.") })
                })
                .collect(),
            gold: vec![7],
            gold_sets: Vec::new(),
            answers: Vec::new(),
        };
        let mut rows: Vec<_> = (0..10).map(row).collect();
        rows[3].gold = vec![7, 29];
        let report = evaluate(&rows).expect("in memory");
        assert_eq!(report.chunks, 300);
        let found: Vec<_> = report.kept.iter().map(|(keep, e)| (*keep, e.mean)).collect();
        // Of one row, one of two gold chunks shares no word with its question.
        assert_eq!(found, [(30, 0.95), (100, 0.95)]);
    }
}
