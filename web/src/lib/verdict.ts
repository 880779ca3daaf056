// Says in words why a chunk or a part of an answer was judged as it was.
import type { ChunkOutcome, CompressAnswer, Part } from "./api";
import { percent, score } from "./format";

/** The largest score of all chunks; 0 if there are none. */
export function bestScore(chunks: readonly ChunkOutcome[]): number {
  return chunks.reduce((best, chunk) => Math.max(best, chunk.score ?? 0), 0);
}

/** The share of a chunk's text that is in the context. */
function keptShare(outcome: ChunkOutcome, text: string): number {
  const kept = outcome.spans.reduce((total, span) => total + span.end - span.start, 0);
  return text.length === 0 ? 0 : kept / text.length;
}

export function chunkVerdict(answer: CompressAnswer, outcome: ChunkOutcome, text: string): string {
  if (outcome.empty) return "The chunk has no text to read.";
  if (answer.degraded) return "Returned unchanged, because the compression failed.";
  const best = bestScore(answer.chunks);
  const share = outcome.score === null || best === 0 ? null : outcome.score / best;
  const isBest = share === 1;
  if (outcome.kept) {
    const kept = `${percent(keptShare(outcome, text))} of the text is kept.`;
    if (share === null) return kept;
    return isBest ? `${kept} No chunk has a higher score.` : `${kept} Its score is ${percent(share)} of the best.`;
  }
  if (answer.rc.related === false) return "Left out: nothing is related to the question.";
  if (share === null || outcome.score === null) return "Left out.";
  if (share >= 0.5) return `Left out although its score is ${percent(share)} of the best: other text came first in the budget.`;
  return `Left out: its score is ${percent(share)} of the best (${score(outcome.score)} of ${score(best)}).`;
}

const REASONS: Record<string, string> = {
  number: "no source has this number",
  name: "no source has this name",
  negation: "no source has this negation",
  negation_dropped: "the sources have a negation that is missing here",
  word: "no source says this",
};

/** Why a word of an answer is unsupported. */
export function unsupportedReason(reason: string): string {
  return REASONS[reason] ?? reason;
}

export function partVerdict(part: Part): string {
  if (part.support === null) return "There is no word to check.";
  const cited = part.sources.filter((source) => source.cited).length;
  if (!part.supported) return "Not supported.";
  return `Supported${cited > 1 ? ` by ${cited} chunks` : ""}.`;
}
