// A small chart of series over the last minutes.
import { useState } from "preact/hooks";
import { HISTORY_MS, type Point } from "../lib/history";

export interface Series {
  name: string;
  points: readonly Point[];
}

interface Props {
  title: string;
  series: readonly Series[];
  /** The time at the right edge, in milliseconds since the epoch. */
  now: number;
  format: (value: number) => string;
  /** The top of the chart if no value is higher. */
  atLeast: number;
}

const WIDTH = 600;
const HEIGHT = 100;
/** The time that a chart shows at least. It grows with the history. */
const SPAN_MS_MIN = 60_000;

export function TimeSeries({ title, series, now, format, atLeast }: Props) {
  const [cursor, setCursor] = useState<number | null>(null);
  const values = series.flatMap(({ points }) => points.map((point) => point.value ?? 0));
  const top = niceCeiling(Math.max(atLeast, ...values));
  const first = Math.min(now, ...series.flatMap(({ points }) => points.slice(0, 1).map((point) => point.at)));
  const span = Math.min(HISTORY_MS, Math.max(SPAN_MS_MIN, now - first));
  const x = (at: number) => WIDTH * (1 - (now - at) / span);
  const y = (value: number) => HEIGHT * (1 - value / top);
  const at = cursor === null ? null : nearest(series, now - span * (1 - cursor));
  const read = ({ points }: Series) => (at === null ? lastValue(points) : (points.find((point) => point.at === at)?.value ?? null));
  const summary = series.map((each) => `${each.name}: ${written(lastValue(each.points), format)}`).join("; ");
  const step = (change: number) => setCursor((old) => Math.min(1, Math.max(0, (old ?? 1) + change)));
  return (
    <figure class="time-series" data-chart={title}>
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="chart-values">
          {series.map((each, index) => (
            <span key={each.name} class={`series-${index}`}>
              <svg class="key" viewBox="0 0 18 4" aria-hidden="true">
                <path d="M0 2H18" />
              </svg>
              {each.name} <b>{written(read(each), format)}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div
        class="plot"
        role="img"
        aria-label={`${title}. Now: ${summary}`}
        tabIndex={0}
        onPointerMove={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          setCursor((event.clientX - box.left) / box.width);
        }}
        onPointerLeave={() => setCursor(null)}
        onBlur={() => setCursor(null)}
        onKeyDown={(event) => {
          if (event.key === "ArrowLeft") step(-0.01);
          else if (event.key === "ArrowRight") step(0.01);
          else return;
          event.preventDefault();
        }}
      >
        <span class="top-label">{format(top)}</span>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <path class="grid" d={`M0 ${HEIGHT / 2}H${WIDTH}M0 0.5H${WIDTH}`} />
          {series.map((each, index) => (
            <path key={each.name} class={`line series-${index}`} d={path(each.points, x, y)} />
          ))}
          {at !== null && <path class="cursor" d={`M${x(at)} 0V${HEIGHT}`} />}
        </svg>
      </div>
      <div class="time-axis" aria-hidden="true">
        <span>{ago(span)}</span>
        <span>{at === null ? "" : ago(now - at)}</span>
        <span>now</span>
      </div>
    </figure>
  );
}

function ago(ms: number): string {
  return ms < 120_000 ? `${Math.round(ms / 1000)} s ago` : `${Math.round(ms / 60_000)} min ago`;
}

function written(value: number | null, format: (value: number) => string): string {
  return value === null ? "–" : format(value);
}

function lastValue(points: readonly Point[]): number | null {
  return points.at(-1)?.value ?? null;
}

/** The time of the point that is nearest to `time`. */
function nearest(series: readonly Series[], time: number): number | null {
  const times = series[0]?.points.map((point) => point.at) ?? [];
  return times.reduce<number | null>((best, at) => (best === null || Math.abs(at - time) < Math.abs(best - time) ? at : best), null);
}

/** A line through the points, broken where there is no value. */
function path(points: readonly Point[], x: (at: number) => number, y: (value: number) => number): string {
  let isDrawing = false;
  return points
    .map(({ at, value }) => {
      const command = value === null ? "" : `${isDrawing ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(2)}`;
      isDrawing = value !== null;
      return command;
    })
    .join("");
}

/** The next of 1, 2 and 5 times a power of ten. */
export function niceCeiling(value: number): number {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((step) => value <= step * power * (1 + 1e-9)) ?? 10);
}
