// Says in words why a chunk or a part of an answer was judged as it was.
import type { Answerable, Citation, CompressAnswer, CompressedChunk, Conflict, Part, Quote, Range, Verdict } from "./api";
import { count, percent, score } from "./format";
import type { ScoredRange } from "./text";

/** The largest score of all chunks; 0 if there are none. */
export function bestScore(chunks: readonly CompressedChunk[]): number {
  return chunks.reduce((best, chunk) => Math.max(best, chunk.score ?? 0), 0);
}

/** Where a citation stands in its document, such as "page 12, line 120, Leave policy › Carry-over"; empty if that is unknown. */
export function placeOf({ page, line, heading = [] }: Place): string {
  const known = [page === undefined ? "" : `page ${page}`, line === undefined ? "" : `line ${line}`, heading.join(" › ")];
  return known.filter((part) => part !== "").join(", ");
}

type Place = Pick<Citation, "page" | "line" | "heading">;

/** What the context has of a chunk: the number of the chunk, ranges of its text, and where the first of them stands in its document. */
export interface Kept {
  marker: number;
  ranges: ScoredRange[];
  place: string;
}

/** What the context has of each chunk that is kept, by the chunk's id. A piece that stands under an earlier chunk, too, belongs to that chunk. */
export function keptOf(answer: CompressAnswer): ReadonlyMap<string, Kept> {
  const kept = answer.chunks.filter((chunk) => chunk.kept);
  const byId = new Map(kept.map(({ id }, index): [string, Kept] => [id, { marker: index + 1, ranges: [], place: "" }]));
  for (const citation of answer.citations) {
    const { chunk, marker, source, score } = citation;
    const own = byId.get(chunk);
    if (own?.marker !== marker) continue;
    if (own.ranges.length === 0) own.place = placeOf(citation);
    own.ranges.push({ ...source, score });
  }
  return byId;
}

/** The share of a text that ranges have. */
function shareOf(ranges: readonly Range[], text: string): number {
  const length = ranges.reduce((total, range) => total + range.end - range.start, 0);
  return text.length === 0 ? 0 : length / text.length;
}

/** `ranges` are what is kept of `text`, the chunk's text. */
export function chunkVerdict(answer: CompressAnswer, outcome: CompressedChunk, ranges: readonly Range[], text: string): string {
  if (outcome.empty) return "The chunk has no text to read.";
  if (answer.degraded) return "Returned unchanged, because the compression failed.";
  const best = bestScore(answer.chunks);
  const share = outcome.score === null || best === 0 ? null : outcome.score / best;
  const isBest = share === 1;
  if (outcome.kept) {
    const kept = `${percent(shareOf(ranges, text))} of the text is kept.`;
    if (share === null) return kept;
    return isBest ? `${kept} No chunk has a higher score.` : `${kept} Its score is ${percent(share)} of the best.`;
  }
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

/** How the page shows a verdict: its word, and its sign. */
export const VERDICTS: Record<Verdict, { word: string; sign: string }> = {
  supported: { word: "supported", sign: "✓" },
  partly: { word: "in part", sign: "~" },
  contradicted: { word: "contradicted", sign: "✗" },
  unjudged: { word: "not judged", sign: "–" },
  not_found: { word: "not found", sign: "?" },
  no_claim: { word: "no claim", sign: "" },
};

export function partVerdict(part: Part): string {
  const cited = part.sources.filter((source) => source.cited).length;
  const independent = part.sources_independent > 1 ? `, ${part.sources_independent} independent sources` : "";
  const by = (cited > 1 ? ` by ${cited} chunks` : "") + independent;
  switch (part.verdict) {
    case "no_claim":
      return "The sentence makes no claim.";
    case "supported":
      return `Supported${by}.`;
    case "partly":
      return `Supported in part${by}.`;
    case "contradicted":
      return "Contradicted: a chunk says something else.";
    case "unjudged":
      return `Not judged: it is said in other words${by}.`;
    case "not_found":
      return "Not found: the chunks do not speak of it.";
  }
}

/** How many parts have each verdict, without the supported ones, such as ", 1 in part, 2 not found". */
export function otherVerdicts(parts: readonly Part[]): string {
  const others = (["partly", "contradicted", "unjudged", "not_found"] as const).map((verdict) => {
    const many = parts.filter((part) => part.verdict === verdict).length;
    return many === 0 ? "" : `, ${count(many)} ${VERDICTS[verdict].word}`;
  });
  return others.join("");
}

const CONFLICTS: Record<string, string> = {
  number: "another number",
  negation: "one of the two denies it",
  meaning: "the model finds that it says something else",
};

/** What a chunk says in place of words of a part. `name` is the name of the chunk. */
export function conflictLine(conflict: Conflict, part: Part, name: string): string {
  const words = conflict.text === part.text ? "The sentence" : `“${conflict.text}”`;
  return `${words}: the chunk says “${conflict.source.text}” (${name}; ${CONFLICTS[conflict.reason] ?? conflict.reason}).`;
}

/** What is wrong with a quotation. `nameOf` gives the name of the chunk with an index. */
export function quoteVerdict(quote: Quote, nameOf: (index: number) => string): string {
  const names = [...new Set(quote.passages.map((passage) => nameOf(passage.index)))].join(", ");
  const altered = quote.altered.map((word) => `“${word.text}”`).join(", ");
  switch (quote.verdict) {
    case "exact":
      return `Exact: ${names} says it word for word.`;
    case "stitched":
      return `Stitched together: it consists of ${quote.passages.length} passages (${names}).`;
    case "altered":
      return altered ? `Altered: ${names} does not have ${altered} there.` : `Altered: it is not word for word what ${names} says.`;
    case "misattributed":
      return `Misattributed: it stands in ${names}, not in the chunk that the answer names.`;
    case "fabricated":
      return "Fabricated: no chunk says it.";
  }
}

/** Whether the chunks answer the question. Between the even chance and the daemon's limit, both are possible. */
export function answerableVerdict({ probability, answerable }: Answerable): string {
  if (answerable !== probability >= 0.5) return `Perhaps answered by the chunks: ${percent(probability)}.`;
  if (answerable) return `Probably answered by the chunks: ${percent(probability)}.`;
  return `Probably not answered by the chunks: an answer has a probability of ${percent(probability)}.`;
}
