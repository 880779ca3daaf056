// How long each stage of a request took, and where the chunks' keys came from.
import type { CompressAnswer } from "../lib/api";
import { milliseconds, plural } from "../lib/format";

/** What the daemon does in a stage. A stage that is not listed is shown without a description. */
const STAGES: Record<string, string> = {
  tokenize: "divide the texts into tokens",
  history: "read the conversation",
  blocks: "load or compute the chunks' keys",
  question: "read the question",
  lexical: "compare words of unknown scripts",
  mentions: "find names with digits",
  neighbours: "join turns of a dialogue",
  scan: "compute logits",
  score: "compute RC",
  select: "choose what is kept",
  explain: "explain tokens",
  kv: "export keys and values",
};

type Blocks = NonNullable<CompressAnswer["blocks"]>;

const SOURCES: Record<keyof Blocks, string> = {
  memory: "from memory",
  disk: "from disk",
  shared: "from the shared tier",
  joined: "from another request in progress",
  read: "read by the model",
};

export function cacheSources(blocks: Blocks): string {
  const used = (Object.keys(SOURCES) as (keyof Blocks)[]).filter((source) => blocks[source] > 0);
  return used.map((source) => `${plural(blocks[source], "chunk")} ${SOURCES[source]}`).join(", ");
}

export function Timings({ timings }: { timings: Record<string, number> }) {
  const { total = 0, ...stages } = timings;
  const longest = Object.entries(stages).sort(([, a], [, b]) => b - a);
  return (
    <table class="timings">
      <caption class="sr">Time per stage</caption>
      <tbody>
        {longest.map(([stage, ms]) => (
          <tr key={stage}>
            <th scope="row">
              {stage} <span class="muted">{STAGES[stage]}</span>
            </th>
            <td class="num">{milliseconds(ms)}</td>
            <td class="bar" aria-hidden="true">
              <span style={{ width: `${total > 0 ? Math.min(100, (ms / total) * 100) : 0}%` }} />
            </td>
          </tr>
        ))}
        <tr>
          <th scope="row">total</th>
          <td class="num">{milliseconds(total)}</td>
          <td />
        </tr>
      </tbody>
    </table>
  );
}
