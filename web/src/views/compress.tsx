// The Compress view: a question and chunks, and what the daemon keeps of them.
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { Budget } from "../components/budget";
import { ChunkCard } from "../components/chunk-card";
import { ChunkEditor } from "../components/chunk-editor";
import { ContextView } from "../components/context-view";
import { CopyAs } from "../components/copy-as";
import { Examples } from "../components/examples";
import { FailureNotice } from "../components/failure-notice";
import { QuestionWords } from "../components/question-words";
import { cacheSources, Timings } from "../components/timings";
import { apiKey } from "../lib/access";
import { compress, type CompressAnswer, type Range } from "../lib/api";
import { lastCompression } from "../lib/compression";
import { type ExplainedWords, explainWords, litWords, type LitWords } from "../lib/explanation";
import { count, milliseconds, percent, score } from "../lib/format";
import { useDebounced, useLatest } from "../lib/hooks";
import { changeInputs, type Inputs, inputs, isComplete, nameOf, OPTION_NAMES, OPTIONS, requestOf } from "../lib/inputs";
import { useStore } from "../lib/store";
import { subtract } from "../lib/text";
import { answerableVerdict, bestScore, chunkVerdict, keptOf } from "../lib/verdict";

/** Requests wait until nothing has been typed for this long. */
const TYPING_MS = 300;
/** While the slider moves, requests start this far apart. */
const SLIDING_MS = 80;
/** The second request, which finds near misses, waits until the slider rests. */
const RESTING_MS = 250;
/** More chunks than this are closed at first, because each open one takes thousands of elements. */
const OPEN_CHUNKS_MAX = 12;
/** The code of the warning that no chunk is related to the question. */
const UNRELATED = "unrelated";

export function CompressView() {
  const current = useStore(inputs);
  return (
    <div class="columns">
      <section class="inputs" aria-label="Input">
        <Examples />
        <label class="field">
          <span class="field-name">Question</span>
          <textarea
            rows={2}
            value={current.query}
            placeholder="What do you want to know?"
            onInput={(event) => changeInputs({ query: event.currentTarget.value })}
          />
        </label>
        <ChunkEditor />
        <Options current={current} />
      </section>
      <Result current={current} />
    </div>
  );
}

function Options({ current }: { current: Inputs }) {
  return (
    <details class="options">
      <summary>Options</summary>
      <div class="option-grid">
        {OPTION_NAMES.map((name) => (
          <label key={name}>
            {name}
            <select value={current[name]} onChange={(event) => changeInputs({ [name]: event.currentTarget.value })}>
              {OPTIONS[name].map((value) => (
                <option key={value}>{value}</option>
              ))}
            </select>
          </label>
        ))}
      </div>
    </details>
  );
}

function Result({ current }: { current: Inputs }) {
  const settled = useDebounced(current, TYPING_MS);
  // The slider is not typing: its value counts at once.
  const sent = useMemo(() => ({ ...settled, budget: current.budget }), [settled, current.budget]);
  const request = useMemo(() => requestOf(sent), [sent]);
  const key = useMemo(() => (isComplete(sent) ? JSON.stringify(request) : null), [sent, request]);
  const result = useLatest(
    key,
    async (signal) => ({ answer: await compress(request, signal), request, inputs: sent }),
    SLIDING_MS,
  );

  const shown = result.value;
  useEffect(() => {
    if (shown) lastCompression.set(shown);
  }, [shown]);

  const isEmpty = !isComplete(current);
  const isOld = shown !== undefined && result.valueKey !== key;
  return (
    <section class="results" aria-label="Result">
      <Budget budget={current.budget} chosen={shown?.answer.usage?.ratio ?? null} onChange={(budget) => changeInputs({ budget })} />
      {result.failure && <FailureNotice failure={result.failure} onRetry={result.retry} hasOldResult={shown !== undefined} />}
      {isEmpty && (
        <div class="empty">
          <p>Choose an example, or write a question and add the chunks that your retriever found.</p>
          <p class="muted">The daemon returns the sentences that the question needs, word for word and with citations.</p>
        </div>
      )}
      {!isEmpty && shown && (
        <div class={isOld && !result.pending ? "old" : ""} aria-busy={result.pending}>
          <Outcome answer={shown.answer} request={shown.request} inputs={shown.inputs} />
        </div>
      )}
      {!isEmpty && !shown && result.pending && <p class="muted">Reading the chunks…</p>}
    </section>
  );
}

interface OutcomeProps {
  answer: CompressAnswer;
  request: ReturnType<typeof requestOf>;
  inputs: Inputs;
}

function Outcome({ answer, request, inputs: sent }: OutcomeProps) {
  const { usage, rc, blocks, warnings = [] } = answer;
  const showChunk = useCallback((id: string) => {
    const card = document.querySelector<HTMLElement>(`[data-chunk="${CSS.escape(id)}"].chunk`);
    card?.scrollIntoView({ block: "nearest" });
    card?.focus();
  }, []);
  const isCode = answer.chunks.some((chunk) => chunk.kept && chunk.kind !== undefined && ["code", "json", "table", "log"].includes(chunk.kind));
  return (
    <>
      <dl class="stats">
        {usage && (
          <>
            <div class="stat-main">
              <dt>saved</dt>
              <dd>{percent(1 - usage.ratio)}</dd>
            </div>
            <div>
              <dt>tokens</dt>
              <dd>
                {count(usage.tokens_in)} → {count(usage.tokens_out)}
              </dd>
            </div>
          </>
        )}
        <div>
          <dt>time</dt>
          <dd>{milliseconds(answer.timing_ms.total ?? 0)}</dd>
        </div>
        {blocks && (
          <div class="stat-text">
            <dt>keys</dt>
            <dd>{cacheSources(blocks) || "none"}</dd>
          </div>
        )}
      </dl>
      <Announcement answer={answer} />
      {answer.degraded && (
        <p class="notice failure">
          <code class="code">{answer.degraded.code}</code> {answer.degraded.message} The chunks came back unchanged.
        </p>
      )}
      {answer.related === false && (
        <div class="notice" data-unrelated>
          <p>
            <b>Nothing is related to the question.</b> The context has what comes nearest.
          </p>
          <p class="small">{warnings.find(({ code }) => code === UNRELATED)?.message}</p>
        </div>
      )}
      {answer.answerable && answer.related !== false && (
        <p class="small" data-answerable={answer.answerable.answerable}>
          {answerableVerdict(answer.answerable)}
        </p>
      )}
      {warnings
        .filter(({ code, chunk }) => chunk === undefined && code !== UNRELATED)
        .map((warning) => (
          <p class="notice" key={warning.code}>
            <code class="code">{warning.code}</code> {warning.message}
          </p>
        ))}
      {answer.context !== "" && <h2>Context</h2>}
      <ContextView answer={answer} isCode={isCode} onChunk={showChunk} />
      <CopyAs url={new URL(".", location.href).href.replace(/\/$/, "")} request={request} isKeyed={apiKey.get() !== ""} />
      <Chunks answer={answer} request={request} inputs={sent} />
      <details class="timing">
        <summary>Time per stage, and model</summary>
        <Timings timings={answer.timing_ms} />
        <p class="small muted">
          {rc.model} scores with {rc.estimator}. {answer.relevance !== null && `Relevance ${score(answer.relevance)}: the probability that the best chunk contains something that the question asks.`}
        </p>
      </details>
    </>
  );
}

/** Tells users of screen readers about a new context, once it has stopped changing. */
function Announcement({ answer }: { answer: CompressAnswer }) {
  const { usage } = useDebounced(answer, 800);
  return (
    <p class="sr" role="status">
      {usage && `The context has ${count(usage.tokens_out)} of ${count(usage.tokens_in)} tokens.`}
    </p>
  );
}

/** A word that the pointer or the focus is on. */
type Target = { question: number } | { chunk: number; word: number };

function Chunks({ answer, request, inputs: sent }: OutcomeProps) {
  const { query } = request;
  const texts = useMemo(() => sent.chunks.map((chunk) => chunk.text), [sent.chunks]);
  const explained = useExplanation(request, texts);
  const near = useNearMisses(request, answer, texts);
  const [isHeated, setIsHeated] = useState(false);
  const [isToggled, setIsToggled] = useState<ReadonlyMap<number, boolean>>(new Map());
  const [hovered, setHovered] = useState<Target | null>(null);
  const [pinned, setPinned] = useState<Target | null>(null);

  // Words of another question or of other chunks are not those that were pinned.
  useEffect(() => {
    setHovered(null);
    setPinned(null);
  }, [explained.value]);

  const words = explained.value;
  const active = hovered ?? pinned;
  const litQuestion = new Set(
    !active || !words ? [] : "question" in active ? [active.question] : (words.chunks[active.chunk]?.matchedBy.get(active.word) ?? []),
  );
  const lit = useMemo((): Map<number, LitWords> => {
    if (!active || !words) return new Map();
    if ("question" in active) return litWords(words, active.question);
    return new Map([[active.chunk, new Map([[active.word, "best" as const]])]]);
  }, [active, words]);
  const pin = (target: Target) => setPinned((old) => (JSON.stringify(old) === JSON.stringify(target) ? null : target));

  const scoreBest = bestScore(answer.chunks);
  const keptById = useMemo(() => keptOf(answer), [answer]);
  return (
    <>
      <div class="row spread chunks-head">
        <h2>What happened to each chunk</h2>
        <label class="check">
          <input type="checkbox" checked={isHeated} disabled={!words} onChange={(event) => setIsHeated(event.currentTarget.checked)} />
          Heat map
        </label>
      </div>
      <p class={`legend small${isHeated ? " heated" : ""}`}>
        <span class="segment kept">kept</span>
        <span>
          <span class="segment near">near miss</span>: kept if the context may be half as long again
        </span>
        <span class="segment cut">left out</span>
        {isHeated && (
          <span class="heat-legend">
            RC of a word: <span class="word heat-1">low</span> <span class="word heat-2">some</span> <span class="word heat-3">more</span>{" "}
            <span class="word heat-4">high</span>
          </span>
        )}
      </p>
      {explained.failure && <FailureNotice failure={explained.failure} onRetry={explained.retry} />}
      {words && words.question.length > 0 && (
        <div class="question-panel">
          <QuestionWords
            query={query}
            words={words.question}
            lit={litQuestion}
            pinned={pinned && "question" in pinned ? pinned.question : null}
            onHover={(word) => setHovered(word === null ? null : { question: word })}
            onPin={(word) => pin({ question: word })}
          />
          <p class="small muted match-line" role="status">
            {active ? matchLine(active, words, query, sent) : "Point at a word, or focus it, to see the text that it matched. Click to keep it lit."}
          </p>
        </div>
      )}
      {answer.chunks.map((outcome) => {
        const chunk = sent.chunks[outcome.index];
        if (!chunk) return null;
        const { index } = outcome;
        const kept = keptById.get(outcome.id);
        const ranges = kept?.ranges ?? NONE;
        const isOpenFirst = answer.chunks.length <= OPEN_CHUNKS_MAX || (outcome.kept && index < OPEN_CHUNKS_MAX);
        const isOpen = isToggled.get(index) ?? isOpenFirst;
        return (
          <ChunkCard
            key={chunk.key}
            index={index}
            name={nameOf(chunk, index)}
            chunk={chunk}
            outcome={outcome}
            marker={kept?.marker ?? null}
            kept={ranges}
            place={kept?.place ?? ""}
            verdict={chunkVerdict(answer, outcome, ranges, chunk.text)}
            scoreBest={scoreBest}
            near={near.get(index) ?? NONE}
            warnings={(answer.warnings ?? []).filter((warning) => warning.chunk === outcome.id)}
            explained={words}
            query={query}
            isHeated={isHeated}
            lit={lit.get(index)}
            pinned={pinned && "chunk" in pinned && pinned.chunk === index ? pinned.word : null}
            isOpen={isOpen}
            onToggle={() => setIsToggled(new Map(isToggled).set(index, !isOpen))}
            onHover={(word) => setHovered(word === null ? null : { chunk: index, word })}
            onPin={(word) => pin({ chunk: index, word })}
          />
        );
      })}
    </>
  );
}

const NONE: readonly never[] = [];

function matchLine(active: Target, words: ExplainedWords, query: string, { chunks }: Inputs): string {
  const textOf = (chunk: number, word: number) => {
    const range = words.chunks[chunk]?.words[word];
    return range ? `“${chunks[chunk]?.text.slice(range.start, range.end)}”` : "";
  };
  const questionWord = (index: number) => {
    const { start, end } = words.question[index]!;
    return `“${query.slice(start, end)}”`;
  };
  if ("chunk" in active) {
    const by = (words.chunks[active.chunk]?.matchedBy.get(active.word) ?? []).map(questionWord);
    return `${textOf(active.chunk, active.word)} was matched by ${by.join(", ")}.`;
  }
  const word = words.question[active.question];
  if (!word || word.best === null) return `${questionWord(active.question)} matched nothing better than the other chunks.`;
  const match = word.matches[word.best]!;
  const found = match.word === null ? "the title" : textOf(word.best, match.word);
  return `${questionWord(active.question)} best matched ${found} in ${nameOf(chunks[word.best]!, word.best)} (RC ${score(match.rc)}).`;
}

/** The RC of words. It does not depend on the budget, so it is requested once for a question and its chunks. */
function useExplanation(request: OutcomeProps["request"], texts: readonly string[]) {
  const { query, chunks } = request;
  const key = useMemo(() => JSON.stringify([query, chunks]), [query, chunks]);
  const latest = useLatest(key, async (signal) => {
    const { explain } = await compress({ query, chunks, budget: {}, explain: true }, signal);
    // A probe explains nothing.
    return explain ? explainWords(query, texts, explain) : null;
  });
  // Words of other texts would be marked at wrong places.
  return { ...latest, value: latest.valueKey === key ? (latest.value ?? null) : null };
}

/** For each chunk, the ranges that a context of half as many tokens again would have in addition. */
function useNearMisses(
  request: OutcomeProps["request"],
  answer: CompressAnswer,
  texts: readonly string[],
): ReadonlyMap<number, readonly Range[]> {
  const rested = useDebounced(answer, RESTING_MS);
  const { usage, related } = rested;
  const isFull = !usage || usage.tokens_out >= usage.tokens_in || related === false;
  const tokens = usage ? Math.min(usage.tokens_in, Math.max(usage.tokens_out + 40, Math.ceil(usage.tokens_out * 1.5))) : 0;
  const key = useMemo(() => (isFull ? null : JSON.stringify([request, tokens])), [isFull, request, tokens]);
  const larger = useLatest(key, (signal) => compress({ ...request, budget: { tokens } }, signal));
  return useMemo(() => {
    if (isFull || !larger.value || larger.valueKey !== key || rested !== answer) return new Map();
    const [kept, wider] = [keptOf(answer), keptOf(larger.value)];
    const isText = (index: number) => (range: Range) => texts[index]?.slice(range.start, range.end).trim() !== "";
    return new Map(
      answer.chunks
        .map(({ id, index }) => [index, subtract(wider.get(id)?.ranges ?? NONE, kept.get(id)?.ranges ?? NONE).filter(isText(index))] as const)
        .filter(([, ranges]) => ranges.length > 0),
    );
  }, [isFull, larger.value, larger.valueKey, key, rested, answer, texts]);
}
