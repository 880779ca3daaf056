// The slider for the size of the context.
import { percent } from "../lib/format";

interface Props {
  /** The share of tokens to keep, or null if the daemon chooses. */
  ratio: number | null;
  /** The share that the daemon kept, which the slider shows while the daemon chooses. */
  chosen: number | null;
  onChange: (ratio: number | null) => void;
}

export function Budget({ ratio, chosen, onChange }: Props) {
  const shown = ratio ?? chosen ?? 0.5;
  return (
    <div class="budget">
      <label class="check">
        <input
          type="checkbox"
          checked={ratio === null}
          onChange={(event) => onChange(event.currentTarget.checked ? null : Math.max(0.05, Math.round(shown * 100) / 100))}
        />
        Auto
      </label>
      <label class="slider">
        <span class="sr">Share of tokens to keep, in per cent</span>
        <input
          type="range"
          min={5}
          max={100}
          step={1}
          value={Math.round(shown * 100)}
          aria-valuetext={ratio === null ? `auto, ${percent(shown)}` : percent(shown)}
          onInput={(event) => onChange(Number(event.currentTarget.value) / 100)}
        />
      </label>
      <output class="budget-value">{chosen === null && ratio === null ? "auto" : percent(shown)}</output>
    </div>
  );
}
