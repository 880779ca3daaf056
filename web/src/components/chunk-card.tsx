// One chunk of the answer: what was kept of it, what nearly was, how much each word matters, and why.
import { useMemo } from "preact/hooks";
import type { Chunk, CompressedChunk, CompressionWarning, Range } from "../lib/api";
import { type ExplainedWords, heatLevel, type LitWords, TITLE } from "../lib/explanation";
import { score } from "../lib/format";
import { type Fate, piecesOf, type ScoredRange, segmentsOf } from "../lib/text";
import { moveFocus } from "./roving";

interface Props {
  index: number;
  name: string;
  chunk: Chunk;
  outcome: CompressedChunk;
  /** The number of the chunk in the context, if it is kept. */
  marker: number | null;
  kept: readonly ScoredRange[];
  /** Where the first text that is kept stands in its document; empty if that is unknown. */
  place: string;
  verdict: string;
  scoreBest: number;
  near: readonly Range[];
  warnings: readonly CompressionWarning[];
  explained: ExplainedWords | null;
  query: string;
  isHeated: boolean;
  lit: LitWords | undefined;
  pinned: number | null;
  isOpen: boolean;
  onToggle: () => void;
  onHover: (word: number | null) => void;
  onPin: (word: number) => void;
}

const FATES: Record<Exclude<Fate, "space">, string> = {
  kept: "Kept",
  near: "Near miss: a somewhat larger context would have this text",
  cut: "Left out",
};

export function ChunkCard(props: Props) {
  const { index, name, outcome, marker, place, verdict, scoreBest, warnings, isOpen, onToggle, near, lit } = props;
  const titleLight = lit?.get(TITLE);
  const relative = scoreBest > 0 ? (outcome.score ?? 0) / scoreBest : 0;
  return (
    <article class={`chunk ${outcome.kept ? "is-kept" : "is-cut"}`} id={`chunk-${index}`} data-chunk={outcome.id} data-kept={outcome.kept} tabIndex={-1}>
      <header>
        <h3>
          <button type="button" class="plain" aria-expanded={isOpen} aria-controls={`chunk-text-${index}`} onClick={onToggle}>
            <span class="caret" aria-hidden="true">
              {isOpen ? "▾" : "▸"}
            </span>
            {marker !== null && <span class="number kept-number">[{marker}]</span>}{" "}
            <span class={titleLight ? `word lit lit-${titleLight}` : ""}>{name}</span>
          </button>
        </h3>
        <span class="tags">
          {place && (
            <span class="tag" data-place>
              {place}
            </span>
          )}
          {near.length > 0 && <span class="tag near-tag">near miss</span>}
          {outcome.kind && <span class="tag">{outcome.kind}</span>}
        </span>
        {outcome.score !== null && (
          <span class="score" title={`Score ${outcome.score}`}>
            <span class="score-bar" aria-hidden="true">
              <span style={{ width: `${Math.round(relative * 100)}%` }} />
            </span>
            <span class="sr">Score </span>
            {score(outcome.score)}
          </span>
        )}
      </header>
      <p class="verdict">{verdict}</p>
      {warnings.map((warning) => (
        <p class="small warn" key={warning.code}>
          <code class="code">{warning.code}</code> {warning.message}
        </p>
      ))}
      <div id={`chunk-text-${index}`}>{isOpen && <ChunkText {...props} />}</div>
    </article>
  );
}

function ChunkText({ chunk, outcome, kept, near, explained, query, isHeated, lit, pinned, index, onHover, onPin }: Props) {
  const own = explained?.chunks[index];
  const body = useMemo(() => {
    const words = own?.words ?? [];
    const firstMatched = own ? Math.min(...own.matchedBy.keys()) : -1;
    const isHot = (word: number) => isHeated && heatLevel(own?.rc[word] ?? 0, explained?.rcMax ?? 0) > 0;
    const isMarked = (word: number) => isHot(word) || Boolean(own?.matchedBy.has(word)) || Boolean(lit?.has(word));
    return segmentsOf(chunk.text, kept, near).map((segment) => {
      const pieces = piecesOf(segment, words, isMarked).map((piece) => {
        const text = chunk.text.slice(piece.start, piece.end);
        if (piece.word === null || !own || !explained) return text;
        const rc = own.rc[piece.word] ?? 0;
        const heat = isHeated ? ` heat-${heatLevel(rc, explained.rcMax)}` : "";
        const light = lit?.get(piece.word);
        const classes = `word${heat}${light ? ` lit lit-${light}` : ""}`;
        const by = own.matchedBy.get(piece.word);
        if (!by) {
          return (
            <span class={classes} title={`RC ${score(rc)}`}>
              {text}
            </span>
          );
        }
        const names = by.map((word) => `“${query.slice(explained.question[word]!.start, explained.question[word]!.end)}”`).join(", ");
        return (
          <button
            type="button"
            class={`${classes} match`}
            data-rove
            data-word={piece.word}
            tabIndex={piece.word === firstMatched ? 0 : -1}
            aria-pressed={pinned === piece.word}
            title={`Matched by ${names}. RC ${score(rc)}`}
          >
            {text}
          </button>
        );
      });
      if (segment.fate === "space") return pieces;
      const scored = segment.score === null ? "" : `, score ${score(segment.score)}`;
      return (
        <span class={`segment ${segment.fate}`} data-fate={segment.fate} title={`${FATES[segment.fate]}${scored}`}>
          <span class="sr">{FATES[segment.fate]}: </span>
          {pieces}
        </span>
      );
    });
  }, [chunk, kept, near, own, isHeated, lit, pinned]);

  const wordOf = (event: Event): number | null => {
    const word = (event.target as Element).closest("[data-word]")?.getAttribute("data-word");
    return word ? Number(word) : null;
  };
  const isCode = outcome.kind !== undefined && ["code", "json", "table", "log"].includes(outcome.kind);
  return (
    <div
      class={`source${isCode ? " mono" : ""}${isHeated ? " heated" : ""}`}
      role="group"
      aria-label="Text of the chunk"
      onKeyDown={moveFocus}
      onPointerOver={(event) => onHover(wordOf(event))}
      onPointerLeave={() => onHover(null)}
      onFocusIn={(event) => onHover(wordOf(event))}
      onFocusOut={() => onHover(null)}
      onClick={(event) => {
        const word = wordOf(event);
        if (word !== null) onPin(word);
      }}
    >
      {body}
    </div>
  );
}
