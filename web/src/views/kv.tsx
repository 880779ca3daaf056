// The Keys and values view: which keys each head of a decoder keeps for a question.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { FailureNotice } from "../components/failure-notice";
import { moveFocus } from "../components/roving";
import { compress, type KvHandle, kvFile } from "../lib/api";
import { requestChunks } from "../lib/chunks";
import { useDaemon } from "../lib/daemon";
import { EXAMPLES } from "../lib/examples";
import { bytes, count, percent } from "../lib/format";
import { useDebounced, useLatest } from "../lib/hooks";
import { changeInputs, type EditedChunk, inputs, isComplete, nameOf, withKeys } from "../lib/inputs";
import { headsPerToken, type KvExport, readKvExport } from "../lib/kv-export";
import { createSessionStore, useStore } from "../lib/store";
import { trimStart, utf16Offsets } from "../lib/text";

/** Larger files are fetched only if a person asks: they hold keys and values, of which the page shows none. */
const FILE_BYTES_MAX = 32_000_000;
const MOVING_MS = 150;

const settings = createSessionStore<{ ratio: number; isWhole: boolean }>("kv", { ratio: 0.25, isWhole: true });
const change = (changed: Partial<ReturnType<typeof settings.get>>) => settings.set({ ...settings.get(), ...changed });

export function KvView() {
  const daemon = useDaemon();
  const isLoaded = daemon.state === "api" && daemon.models.length > 0;
  const decoder = daemon.state === "api" ? daemon.models.find((model) => model.exports_kv) : undefined;
  if (isLoaded && !decoder) return <NoDecoder />;
  if (!decoder) {
    const failure = daemon.state === "api" ? daemon.failure : null;
    return (
      <p class="muted">
        {failure ? <code class="code">{failure.code}</code> : null} {failure ? failure.message : "Asking the daemon which models it has…"}
      </p>
    );
  }
  return <KeptKeys decoder={decoder.id} />;
}

function NoDecoder() {
  return (
    <div class="notice prose" data-no-decoder>
      <p>
        <b>No decoder is loaded, so there are no keys and values to show.</b> A decoder that answers in your stack can run in the daemon beside the
        default model, which goes on selecting.
      </p>
      <ol>
        <li>
          Export your decoder from its Hugging Face folder or GGUF file:
          <pre>thresher export models/my-decoder --out models/my-decoder-onnx</pre>
        </li>
        <li>
          Name the exported folder in <code>model.kv_dir</code> and start the daemon again:
          <pre>THRESHER__MODEL__KV_DIR=models/my-decoder-onnx thresher serve --config config/thresher.toml</pre>
        </li>
      </ol>
      <p class="small">
        <code>make decoder</code> does both with SmolLM2-135M. <code>docs/kv-export.md</code> says more.
      </p>
    </div>
  );
}

function KeptKeys({ decoder }: { decoder: string }) {
  const { query, chunks, budget } = useStore(inputs);
  const { ratio, isWhole } = useStore(settings);
  const [allowed, setAllowed] = useState<string | null>(null);
  const typed = useDebounced(useMemo(() => ({ query, chunks }), [query, chunks]), 300);
  const request = useMemo(
    () => ({
      query: typed.query,
      chunks: requestChunks(typed.chunks),
      budget: isWhole ? { ratio: 1 } : budget,
      include: ["kv" as const],
      // The page shows which keys are kept, which encoding some tokens again does not change.
      kv: { policy: "heads" as const, ratio, recompute: 0 },
    }),
    [typed, isWhole, budget, ratio],
  );
  const key = useMemo(() => (isComplete(typed) ? JSON.stringify(request) : null), [typed, request]);
  const exported = useLatest(key, async (signal) => ({ ...(await compress(request, signal)), sent: typed.chunks }), MOVING_MS);
  const handle = exported.value?.kv;
  const isLarge = handle !== undefined && handle.bytes > FILE_BYTES_MAX && handle.handle !== allowed;
  const file = useLatest(handle && !isLarge ? handle.handle : null, async (signal) => {
    const sent = exported.value?.sent ?? [];
    return { kv: readKvExport(await kvFile(handle!.handle, signal)), sent };
  });
  const failed = exported.failure ? exported : file.failure ? file : null;

  return (
    <section aria-label="Kept keys">
      <div class="kv-head">
        <label class="field grow">
          <span class="field-name">Question</span>
          <input value={query} onInput={(event) => changeInputs({ query: event.currentTarget.value })} />
        </label>
        <label class="slider">
          <span class="field-name">
            Keys to keep <output>{percent(ratio)}</output>
          </span>
          <input type="range" min={2} max={100} value={Math.round(ratio * 100)} aria-valuetext={percent(ratio)} onInput={(event) => change({ ratio: Number(event.currentTarget.value) / 100 })} />
        </label>
        <label class="check">
          <input type="checkbox" checked={isWhole} onChange={(event) => change({ isWhole: event.currentTarget.checked })} />
          All chunks, not only those that Compress keeps
        </label>
      </div>
      {chunks.length === 0 && (
        <div class="empty">
          <p>
            Add chunks in <a href="#/compress">Compress</a>, or choose an example.
          </p>
          <p class="row">
            {EXAMPLES.map((example) => (
              <button key={example.name} type="button" class="quiet" onClick={() => changeInputs({ query: example.query, chunks: withKeys(example.chunks) })}>
                {example.name}
              </button>
            ))}
          </p>
        </div>
      )}
      {failed?.failure && <FailureNotice failure={failed.failure} onRetry={failed.retry} hasOldResult={file.value !== undefined} />}
      {exported.value && !handle && !exported.failure && <p class="notice">The daemon exported nothing: no chunk is kept.</p>}
      {isLarge && handle && (
        <p class="notice row">
          The export has {bytes(handle.bytes)}.{" "}
          <button type="button" onClick={() => setAllowed(handle.handle)}>
            Fetch it
          </button>
        </p>
      )}
      {file.value && (
        <div class={failed ? "old" : ""} aria-busy={exported.pending || file.pending}>
          {handle && <Facts handle={handle} decoder={decoder} kv={file.value.kv} />}
          <Heads kv={file.value.kv} chunks={file.value.sent} />
        </div>
      )}
    </section>
  );
}

function Facts({ handle, decoder, kv }: { handle: KvHandle; decoder: string; kv: KvExport }) {
  return (
    <>
      <dl class="stats">
        <div class="stat-main">
          <dt>of the chunks' keys</dt>
          <dd>{percent(handle.share)}</dd>
        </div>
        <div>
          <dt>tokens</dt>
          <dd>{count(handle.tokens)}</dd>
        </div>
        <div>
          <dt>file</dt>
          <dd>{bytes(handle.bytes)}</dd>
        </div>
        <div>
          <dt>room left</dt>
          <dd>{count(handle.room_tokens)}</dd>
        </div>
        <div class="stat-text">
          <dt>decoder</dt>
          <dd>
            {decoder}, {kv.layers} layers of {kv.heads} key heads
          </dd>
        </div>
      </dl>
      <p class="sr" role="status">
        The export holds {percent(handle.share)} of the keys of {count(handle.tokens)} tokens.
      </p>
    </>
  );
}

/** A head, or all of them. */
type Chosen = { layer: number; head: number } | null;

function Heads({ kv, chunks }: { kv: KvExport; chunks: readonly EditedChunk[] }) {
  const [hovered, setHovered] = useState<Chosen>(null);
  const [chosen, setChosen] = useState<Chosen>(null);
  const shown = hovered ?? chosen;
  const kept = shown && kv.kept[shown.layer]?.[shown.head];
  return (
    <div class="kv-columns">
      <div>
        <h2>Heads</h2>
        <p class="small muted">One strip per layer and head, one column per token. Dark columns are kept keys; lines divide chunks.</p>
        <div class={`head-grid${kv.layers * kv.heads <= 40 ? " tall" : ""}`} role="group" aria-label="Heads" onKeyDown={moveFocus} onPointerLeave={() => setHovered(null)}>
          {kv.kept.map((heads, layer) => (
            <div class="layer" key={layer}>
              <span class="layer-name" aria-hidden="true">
                layer {layer}
              </span>
              {heads.map((tokens, head) => {
                const isChosen = chosen?.layer === layer && chosen.head === head;
                return (
                  <button
                    key={head}
                    type="button"
                    class={`head${shown?.layer === layer && shown.head === head ? " lit" : ""}`}
                    data-head={`${layer}.${head}`}
                    data-kept={tokens.length}
                    data-rove
                    tabIndex={layer === 0 && head === 0 ? 0 : -1}
                    aria-pressed={isChosen}
                    onPointerEnter={() => setHovered({ layer, head })}
                    onFocus={() => setHovered({ layer, head })}
                    onBlur={() => setHovered(null)}
                    onClick={() => setChosen(isChosen ? null : { layer, head })}
                  >
                    <Strip kv={kv} tokens={tokens} />
                    <span class="sr">
                      Layer {layer}, head {head} keeps
                    </span>{" "}
                    <span class="head-share">{percent(tokens.length / kv.tokens)}</span>{" "}
                    <span class="sr">
                      of the keys, {count(tokens.length)} of {count(kv.tokens)}
                    </span>
                  </button>
                );
              })}
            </div>
          ))}
        </div>
      </div>
      <div>
        <h2>{shown ? `Layer ${shown.layer}, head ${shown.head}` : "All heads"}</h2>
        <p class="small muted">
          {shown ? "Underlined text is kept by this head." : "The more heads keep a token, the stronger its mark. Point at a head, or focus it, to see its own keys."}
        </p>
        <KeptText kv={kv} chunks={chunks} kept={kept ?? null} />
      </div>
    </div>
  );
}

/** The kept tokens of one head as a strip, drawn on a canvas: SVG would take an element for each token and head. */
function Strip({ kv, tokens }: { kv: KvExport; tokens: Int32Array }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [redraw, setRedraw] = useState(0);
  useEffect(() => {
    // The colours come from the style sheet, which changes with the theme.
    const watcher = new MutationObserver(() => setRedraw((times) => times + 1));
    watcher.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const update = () => setRedraw((times) => times + 1);
    scheme.addEventListener("change", update);
    return () => {
      watcher.disconnect();
      scheme.removeEventListener("change", update);
    };
  }, []);
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    const scale = devicePixelRatio || 1;
    const width = Math.max(1, element.clientWidth);
    const height = Math.max(1, element.clientHeight);
    element.width = width * scale;
    element.height = height * scale;
    context.scale(scale, scale);
    const { color, borderTopColor } = getComputedStyle(element);
    const column = width / kv.tokens;
    context.fillStyle = color;
    for (const token of tokens) context.fillRect(token * column, 0, Math.max(0.75, column), height);
    context.fillStyle = borderTopColor;
    for (let token = 1; token < kv.tokens; token++) {
      if (kv.chunks[token] !== kv.chunks[token - 1]) context.fillRect(token * column - 0.5, 0, 1, height);
    }
  }, [kv, tokens, redraw]);
  return <canvas class="strip" ref={canvas} aria-hidden="true" />;
}

/** The text of the chunks, in which each token is marked by how many heads keep it, or by whether one head does. */
function KeptText({ kv, chunks, kept }: { kv: KvExport; chunks: readonly EditedChunk[]; kept: Int32Array | null }) {
  const heads = useMemo(() => headsPerToken(kv), [kv]);
  const ranges = useMemo(() => tokenRanges(kv, chunks), [kv, chunks]);
  const body = useMemo(() => {
    const own = kept && new Set(kept);
    const levelOf = (token: number) => (own ? (own.has(token) ? 4 : 0) : level((heads[token] ?? 0) / (kv.layers * kv.heads)));
    return ranges.map(({ index, tokens }) => {
      const chunk = chunks[index]!;
      const pieces = [];
      let at = 0;
      for (const { token, start, end } of tokens) {
        const strength = levelOf(token);
        if (strength === 0 || start < at) continue;
        pieces.push(chunk.text.slice(at, start));
        pieces.push(
          <span class={`word heat-${strength}`} title={own ? "kept" : `kept by ${heads[token]} of ${kv.layers * kv.heads} heads`}>
            {chunk.text.slice(start, end)}
          </span>,
        );
        at = end;
      }
      pieces.push(chunk.text.slice(at));
      return (
        <div class="kv-chunk" key={chunk.key}>
          <h3>{nameOf(chunk, index)}</h3>
          <div class="source">{pieces}</div>
        </div>
      );
    });
  }, [kv, chunks, kept, heads, ranges]);
  return (
    <div class="kv-text" role="region" aria-label="Kept tokens in the text" tabIndex={0}>
      {body}
    </div>
  );
}

function level(share: number): number {
  return share === 0 ? 0 : Math.min(4, 1 + Math.floor(share * 4));
}

/** For each exported chunk: its tokens with their ranges in UTF-16 code units. */
function tokenRanges(kv: KvExport, chunks: readonly EditedChunk[]) {
  return kv.chunkIds.flatMap((id, exported) => {
    const index = chunks.findIndex((chunk, at) => (chunk.id || String(at)) === id);
    if (index < 0) return [];
    const tokens: number[] = [];
    for (let token = 0; token < kv.tokens; token++) {
      // Tokens of a title are not in the text.
      if (kv.chunks[token] === exported && kv.offsets[2 * token]! >= 0) tokens.push(token);
    }
    const offsets = utf16Offsets(chunks[index]!.text, tokens.flatMap((token) => [kv.offsets[2 * token]!, kv.offsets[2 * token + 1]!]));
    const { text } = chunks[index]!;
    return [{ index, tokens: tokens.map((token, at) => ({ token, ...trimStart(text, { start: offsets[2 * at]!, end: offsets[2 * at + 1]! }) })) }];
  });
}
