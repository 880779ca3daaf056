// The control for the size of the context: what decides it, and the slider.
import type { Budget as BudgetValue } from "../lib/api";
import { percent } from "../lib/format";
import { COVERAGES } from "../lib/inputs";

interface Props {
  budget: BudgetValue;
  /** The share that the daemon kept, which the slider shows while the daemon chooses. */
  chosen: number | null;
  onChange: (budget: BudgetValue) => void;
}

export function Budget({ budget, chosen, onChange }: Props) {
  const ratio = budget.ratio ?? null;
  const shown = ratio ?? chosen ?? 0.5;
  const choices: [name: string, label: string, budget: BudgetValue][] = [
    ["auto", "Auto", {}],
    ...COVERAGES.map((coverage): [string, string, BudgetValue] => [`coverage ${coverage}`, `Evidence kept: ${percent(coverage)}`, { coverage }]),
    ["ratio", "Share of tokens", { ratio: Math.max(0.05, Math.round(shown * 100) / 100) }],
  ];
  const name = budget.coverage ? `coverage ${budget.coverage}` : ratio === null ? "auto" : "ratio";
  return (
    <div class="budget">
      <select
        aria-label="Budget"
        title="“Evidence kept” keeps as little as holds all needed evidence with this probability; Auto is 90 %."
        value={name}
        onChange={(event) => onChange(choices.find(([choice]) => choice === event.currentTarget.value)![2])}
      >
        {choices.map(([choice, label]) => (
          <option key={choice} value={choice}>
            {label}
          </option>
        ))}
      </select>
      <label class="slider">
        <span class="sr">Share of tokens to keep, in per cent</span>
        <input
          type="range"
          min={5}
          max={100}
          step={1}
          value={Math.round(shown * 100)}
          aria-valuetext={ratio === null ? `chosen by the daemon, ${percent(shown)}` : percent(shown)}
          onInput={(event) => onChange({ ratio: Number(event.currentTarget.value) / 100 })}
        />
      </label>
      <output class="budget-value">{chosen === null && ratio === null ? "auto" : percent(shown)}</output>
    </div>
  );
}
