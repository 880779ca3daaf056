// The Attribute view: an answer beside its sources, and which words of it no source supports.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ChunkEditor } from "../components/chunk-editor";
import { Examples } from "../components/examples";
import { FailureNotice } from "../components/failure-notice";
import { moveFocus } from "../components/roving";
import { attribute, type AttributeSource, type Part, type Quote, type Source } from "../lib/api";
import { requestChunks } from "../lib/chunks";
import { lastCompression } from "../lib/compression";
import { percent, score } from "../lib/format";
import { useDebounced, useLatest } from "../lib/hooks";
import { type EditedChunk, inputs, nameOf } from "../lib/inputs";
import { createSessionStore, useStore } from "../lib/store";
import { conflictLine, otherVerdicts, partVerdict, placeOf, quoteVerdict, unsupportedReason, VERDICTS } from "../lib/verdict";

const attributed = createSessionStore<{ answer: string; onlyKept: boolean }>("attribute", { answer: "", onlyKept: false });
const change = (changed: Partial<ReturnType<typeof attributed.get>>) => attributed.set({ ...attributed.get(), ...changed });

const TYPING_MS = 400;

export function AttributeView() {
  const { chunks } = useStore(inputs);
  const { answer, onlyKept } = useStore(attributed);
  const compression = useStore(lastCompression);
  const compressId = compression && compression.inputs.chunks === chunks ? compression.answer.id : null;
  const sources: AttributeSource = useMemo(
    () => (onlyKept && compressId ? { compress_id: compressId } : { chunks: requestChunks(chunks) }),
    [onlyKept, compressId, chunks],
  );

  return (
    <>
      <div class="columns">
        <section class="inputs" aria-label="Input">
          <Examples onChoose={(example) => change({ answer: example.answer })} />
          <label class="field">
            <span class="field-name">Answer of the language model</span>
            <textarea rows={5} value={answer} placeholder="Paste or write an answer." onInput={(event) => change({ answer: event.currentTarget.value })} />
          </label>
          {compressId && (
            <label class="check">
              <input type="checkbox" checked={onlyKept} onChange={(event) => change({ onlyKept: event.currentTarget.checked })} />
              Only the text that Compress kept, which is all that the model saw
            </label>
          )}
          <details class="sources-editor" open={chunks.length === 0}>
            <summary>Edit the chunks</summary>
            <ChunkEditor />
          </details>
        </section>
        <Whole answer={answer} sources={sources} chunks={chunks} />
      </div>
    </>
  );
}

interface AttributionProps {
  answer: string;
  sources: AttributeSource;
  chunks: readonly EditedChunk[];
}

function Whole({ answer, sources, chunks }: AttributionProps) {
  const typed = useDebounced(answer, TYPING_MS);
  const request = useMemo(() => ({ ...sources, answer: typed }), [sources, typed]);
  const key = useMemo(() => (typed.trim() === "" || chunks.length === 0 ? null : JSON.stringify(request)), [request]);
  const result = useLatest(key, async (signal) => ({ answer: typed, ...(await attribute(request, signal)) }));
  const isEmpty = answer.trim() === "" || chunks.length === 0;
  const shown = isEmpty ? undefined : result.value;
  return (
    <section class="results" aria-label="Result">
      {result.failure && <FailureNotice failure={result.failure} onRetry={result.retry} hasOldResult={shown !== undefined} />}
      {isEmpty && <EmptyAttribution />}
      {shown && (
        <div class={result.failure ? "old" : ""} aria-busy={result.pending}>
          <Attribution answer={shown.answer} parts={shown.parts} quotes={shown.quotes} chunks={chunks} />
        </div>
      )}
    </section>
  );
}

function EmptyAttribution() {
  return (
    <div class="empty">
      <p>Choose an example, or paste an answer and add the chunks that the model had when it wrote the answer.</p>
      <p class="muted">The daemon says which chunk each sentence came from, whether the chunks support it, and which words they contradict.</p>
    </div>
  );
}

interface ShownProps {
  answer: string;
  parts: readonly Part[];
  quotes: readonly Quote[];
  chunks: readonly EditedChunk[];
}

function Attribution({ answer, parts, quotes, chunks }: ShownProps) {
  const [active, setActive] = useState<number | null>(null);
  const [pinned, setPinned] = useState<number | null>(null);
  const shownIndex = active ?? pinned ?? firstToShow(parts);
  const part = shownIndex === null ? undefined : parts[shownIndex];
  const checked = parts.filter((each) => each.verdict !== "no_claim");
  const supported = checked.filter((each) => each.verdict === "supported").length;
  return (
    <>
      <p class="summary" role="status">
        {checked.length > 0 && (
          <>
            <b>
              {supported} of {checked.length}
            </b>{" "}
            {checked.length === 1 ? "sentence is" : "sentences are"} supported{otherVerdicts(checked)}.
          </>
        )}
      </p>
      <div class="beside">
        <div>
          <h2>Answer</h2>
          <AnswerText answer={answer} parts={parts} active={shownIndex} pinned={pinned} onActive={setActive} onPin={(index) => setPinned(pinned === index ? null : index)} />
          <Quotations quotes={quotes} chunks={chunks} />
          {part && <PartDetails part={part} chunks={chunks} />}
        </div>
        <div>
          <h2>Sources</h2>
          <Sources chunks={chunks} part={part} parts={parts} onActive={setActive} />
        </div>
      </div>
    </>
  );
}

/** A person wants to see first what is wrong, and then what is not supported. */
function firstToShow(parts: readonly Part[]): number | null {
  for (const verdict of ["contradicted", "not_found", "partly", "unjudged"] as const) {
    const index = parts.findIndex((part) => part.verdict === verdict);
    if (index >= 0) return index;
  }
  return parts.length > 0 ? 0 : null;
}

/** The quotations that are not what a chunk says. */
function Quotations({ quotes, chunks }: { quotes: readonly Quote[]; chunks: readonly EditedChunk[] }) {
  const wrong = quotes.filter((quote) => quote.verdict !== "exact");
  if (wrong.length === 0) return null;
  return (
    <section class="details" aria-label="Quotations that are not exact" data-quotes>
      <h3>Quotations that are not exact</h3>
      <ul class="reasons">
        {wrong.map((quote) => (
          <li key={quote.start}>
            <q class="quote">“{quote.text}”</q>
            <span class="no">{quoteVerdict(quote, (index) => chunkName(chunks, index, `chunk ${index + 1}`))}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The name of the chunk at an index, or `absent` if it has been removed since. */
function chunkName(chunks: readonly EditedChunk[], index: number, absent: string): string {
  const chunk = chunks[index];
  return chunk ? nameOf(chunk, index) : absent;
}

interface AnswerTextProps {
  answer: string;
  parts: readonly Part[];
  active: number | null;
  pinned: number | null;
  onActive: (part: number | null) => void;
  onPin: (part: number) => void;
}

function AnswerText({ answer, parts, active, pinned, onActive, onPin }: AnswerTextProps) {
  const pieces = [];
  let at = 0;
  parts.forEach((part, index) => {
    if (part.start > at) pieces.push(answer.slice(at, part.start));
    const verdict = VERDICTS[part.verdict];
    const state = part.verdict;
    const markers = part.sources.filter((source) => source.cited).map((source) => source.index + 1);
    pieces.push(
      <span
        key={part.start}
        role="button"
        class={`part ${state}${index === active ? " active" : ""}`}
        data-part={index}
        data-state={state}
        data-rove
        tabIndex={index === 0 ? 0 : -1}
        aria-pressed={pinned === index}
        onPointerEnter={() => onActive(index)}
        onFocus={() => onActive(index)}
        onBlur={() => onActive(null)}
        onClick={() => onPin(index)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          onPin(index);
        }}
      >
        <span class="sr">{verdict.word}: </span>
        <PartText part={part} />
        {verdict.sign && (
          <span class="sign" aria-hidden="true">
            {`${verdict.sign} ${verdict.word}`}
          </span>
        )}
      </span>,
    );
    if (markers.length > 0) pieces.push(<sup class="cite">{markers.join(", ")}</sup>);
    at = part.end;
  });
  if (at < answer.length) pieces.push(<span class="muted">{answer.slice(at)}</span>);
  return (
    <div class="answer" role="group" aria-label="Sentences of the answer" onKeyDown={moveFocus} onPointerLeave={() => onActive(null)}>
      {pieces}
    </div>
  );
}

/** The text of a part, in which unsupported words are underlined. */
function PartText({ part }: { part: Part }) {
  const pieces = [];
  let at = part.start;
  for (const word of [...part.unsupported].sort((a, b) => a.start - b.start)) {
    // A dropped negation concerns the whole part.
    if (word.reason === "negation_dropped" || word.start < at) continue;
    pieces.push(part.text.slice(at - part.start, word.start - part.start));
    pieces.push(
      <span class="unsupported-word" title={unsupportedReason(word.reason)}>
        {word.text}
      </span>,
    );
    at = word.end;
  }
  pieces.push(part.text.slice(at - part.start));
  return <>{pieces}</>;
}

function PartDetails({ part, chunks }: { part: Part; chunks: readonly EditedChunk[] }) {
  const { verdict, conflicts = [] } = part;
  // A conflict says more of a word than that no source has it.
  const unsupported = part.unsupported.filter((word) => !conflicts.some(({ start, end }) => start === word.start && end === word.end));
  return (
    <section class="details" aria-label="The sentence in detail" data-details>
      <p class="verdict-line">
        <span>
          <b class={`is-${verdict}`}>{partVerdict(part)}</b>{" "}
          {part.support !== null && <span class="muted">Probability that the chunks support it: {percent(part.support)}.</span>}
        </span>
        {part.support !== null && (
          <span class={`support-bar is-${verdict}`} aria-hidden="true">
            <span style={{ width: `${part.support * 100}%` }} />
          </span>
        )}
      </p>
      {conflicts.length > 0 && (
        <ul class="reasons" data-conflicts>
          {conflicts.map((conflict) => (
            <li key={`${conflict.start}${conflict.reason}`}>{conflictLine(conflict, part, chunkName(chunks, conflict.index, conflict.chunk))}</li>
          ))}
        </ul>
      )}
      {unsupported.length > 0 && (
        <ul class="reasons">
          {unsupported.map((word) => (
            <li key={`${word.start}${word.reason}`}>
              {word.reason === "negation_dropped" ? "The sentence" : `“${word.text}”`}: {unsupportedReason(word.reason)}.
            </li>
          ))}
        </ul>
      )}
      <ol class="source-list">
        {part.sources.map((source) => (
          <li key={source.index}>
            <SourceLine source={source} chunks={chunks} />
          </li>
        ))}
      </ol>
    </section>
  );
}

function SourceLine({ source, chunks }: { source: Source; chunks: readonly EditedChunk[] }) {
  const { sentence, run } = source;
  const at = run.start - sentence.start;
  const place = placeOf(source);
  return (
    <>
      <span class="small">
        <b>{chunkName(chunks, source.index, source.chunk)}</b>{" "}
        <span class="muted">
          {source.cited ? (source.tied ? "cited, says the same" : "cited") : "not cited"}, score {score(source.score)}
        </span>
        {place && (
          <>
            {" "}
            <span class="tag" data-place>
              {place}
            </span>
          </>
        )}
      </span>
      <q class="quote">
        {sentence.text.slice(0, at)}
        <b>{run.text}</b>
        {sentence.text.slice(at + run.text.length)}
      </q>
    </>
  );
}

interface SourcesProps {
  chunks: readonly EditedChunk[];
  part: Part | undefined;
  parts: readonly Part[];
  onActive: (part: number | null) => void;
}

function Sources({ chunks, part, parts, onActive }: SourcesProps) {
  return (
    <div class="sources" role="region" aria-label="Sources" tabIndex={0}>
      {chunks.map((chunk, index) => {
        const source = part?.sources.find((each) => each.index === index);
        const isBest = source !== undefined && source === part?.sources[0];
        const strength = !source ? "" : source.cited ? "cited-source" : isBest ? "best-source" : "other-source";
        // The reverse: a chunk lights up the first part that cites it.
        const citing = parts.findIndex((each) => each.sources.some((candidate) => candidate.index === index && candidate.cited));
        return (
          <article
            key={chunk.key}
            class={`source-chunk ${strength}`}
            data-source={index}
            data-strength={strength}
            onPointerEnter={() => citing >= 0 && onActive(citing)}
            onPointerLeave={() => onActive(null)}
          >
            <h3>
              <span class="number">{index + 1}</span> {nameOf(chunk, index)}
            </h3>
            <SourceText text={chunk.text} source={source} isLit={strength === "cited-source" || strength === "best-source"} />
          </article>
        );
      })}
    </div>
  );
}

/** Text of a chunk around its source sentence. Long texts are cut to what is near to it. */
const CONTEXT_LENGTH = 400;

function SourceText({ text, source, isLit }: { text: string; source: Source | undefined; isLit: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const sentence = source?.sentence;
  const run = source?.run;
  useEffect(() => {
    // Within the list only: scrolling the page while the pointer moves would be confusing.
    const lit = isLit ? box.current?.querySelector<HTMLElement>(".lit-sentence") : null;
    const list = box.current?.closest<HTMLElement>(".sources");
    if (!lit || !list || list.scrollHeight <= list.clientHeight) return;
    const top = box.current!.closest<HTMLElement>(".source-chunk")!.offsetTop;
    // The start of the chunk, unless the sentence would then be too far down.
    list.scrollTop = lit.offsetTop - top < list.clientHeight / 2 ? top : lit.offsetTop - list.clientHeight / 3;
  }, [isLit, sentence?.start]);
  if (!sentence || !run) return <div class="source-text">{text.length > 2 * CONTEXT_LENGTH ? `${text.slice(0, 2 * CONTEXT_LENGTH)}…` : text}</div>;
  const from = Math.max(0, sentence.start - CONTEXT_LENGTH);
  const to = Math.min(text.length, sentence.end + CONTEXT_LENGTH);
  return (
    <div class="source-text" ref={box}>
      {from > 0 && "…"}
      {text.slice(from, sentence.start)}
      <mark class="lit-sentence">
        {text.slice(sentence.start, run.start)}
        <b class="run">{text.slice(run.start, run.end)}</b>
        {text.slice(run.end, sentence.end)}
      </mark>
      {text.slice(sentence.end, to)}
      {to < text.length && "…"}
    </div>
  );
}
