// The examples, as buttons.
import { EXAMPLES, type Example } from "../lib/examples";
import { changeInputs, withKeys } from "../lib/inputs";

/** Replaces the question and the chunks by those of the chosen example. */
export function Examples({ onChoose }: { onChoose?: (example: Example) => void }) {
  const choose = (example: Example) => {
    changeInputs({ query: example.query, chunks: withKeys(example.chunks), budget: {} });
    onChoose?.(example);
  };
  return (
    <div class="examples">
      <h2>Examples</h2>
      <ul>
        {EXAMPLES.map((example) => (
          <li key={example.name}>
            <button type="button" class="quiet" title={example.about} onClick={() => choose(example)}>
              {example.name}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
