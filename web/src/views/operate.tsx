// The Operate view: how the daemon is doing, from its metrics and its health checks.
import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { FailureNotice } from "../components/failure-notice";
import { Table } from "../components/table";
import { TimeSeries } from "../components/time-series";
import { adminText, Failure, type Savings } from "../lib/api";
import { otherListener } from "../lib/daemon";
import { bytes, count, milliseconds, percent, plural, significant } from "../lib/format";
import { healthSentences } from "../lib/health";
import { changes, levels, type Reading, withReading } from "../lib/history";
import { bucketIncrease, increase, labelValues, type Metrics, parseMetrics, quantile, sum } from "../lib/prometheus";

const POLL_MS = 2000;
/** Rates and percentiles are those of this time. */
const WINDOW_MS = 30_000;

/** The port of `admin.listen` in config/thresher.toml. */
const ADMIN_PORT = 8081;

type State = { kind: "waiting" } | { kind: "absent" } | { kind: "reading"; history: Reading[]; ready: string; tenants: TenantSavings[] };

type TenantSavings = Savings & { tenant: string };

export function OperateView() {
  const [state, setState] = useState<State>({ kind: "waiting" });
  const [failure, setFailure] = useState<Failure | null>(null);
  const [attempt, setAttempt] = useState(0);
  const history = useRef<Reading[]>([]);

  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    const poll = async () => {
      try {
        const { signal } = controller;
        const [metrics, ready, savings] = await Promise.all([adminText("metrics", signal), adminText("readyz", signal), adminText("v1/savings", signal)]);
        // With API keys, the public listener answers 401 to every path that it does not have.
        if (metrics.status === 404 || metrics.status === 401) return setState({ kind: "absent" });
        if (metrics.status !== 200) throw new Failure(`The daemon answered /metrics with HTTP status ${metrics.status}.`, `http_${metrics.status}`, metrics.status);
        history.current = withReading(history.current, { at: Date.now(), metrics: parseMetrics(metrics.text) });
        const { tenants } = JSON.parse(savings.text) as { tenants: TenantSavings[] };
        setState({ kind: "reading", history: history.current, ready: ready.text.trim(), tenants });
        setFailure(null);
      } catch (error) {
        if (controller.signal.aborted) return;
        setFailure(Failure.of(error));
      }
      if (!controller.signal.aborted && !document.hidden) timer = window.setTimeout(poll, POLL_MS);
    };
    // Nobody looks at a hidden tab.
    const onVisibility = () => {
      clearTimeout(timer);
      if (!document.hidden) void poll();
    };
    document.addEventListener("visibilitychange", onVisibility);
    void poll();
    return () => {
      controller.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [attempt]);

  return (
    <section aria-label="Operation">
      {failure && <FailureNotice failure={failure} onRetry={() => setAttempt(attempt + 1)} hasOldResult={state.kind === "reading"} />}
      {state.kind === "absent" && <OnAdminListener />}
      {state.kind === "waiting" && !failure && <p class="muted">Reading the metrics…</p>}
      {state.kind === "reading" && (
        <div class={failure ? "old" : ""}>
          <Dashboard history={state.history} ready={state.ready} />
          <Losses tenants={state.tenants} />
        </div>
      )}
    </section>
  );
}

function OnAdminListener() {
  const address = `${otherListener(ADMIN_PORT)}#/operate`;
  return (
    <div class="notice" data-not-admin>
      <p>
        <b>Metrics are on the daemon's admin listener</b>, and this page was opened on the public one.
      </p>
      <p>
        Open this view there. Its address is the setting <code>admin.listen</code>; by default it is <a href={address}>{address}</a>. Only this machine can reach
        it then.
      </p>
    </div>
  );
}

function Dashboard({ history, ready }: { history: readonly Reading[]; ready: string }) {
  const { at: now, metrics } = history.at(-1)!;
  const rate = (name: string, labels?: Record<string, string>) =>
    changes(history, WINDOW_MS, (before, after, seconds) => increase(before, after, name, labels) / seconds);
  const failed = changes(history, WINDOW_MS, (before, after, seconds) => {
    const all = increase(before, after, "requests_total");
    return (all - increase(before, after, "requests_total", { code: "ok" })) / seconds;
  });
  const latency = (q: number) =>
    changes(history, WINDOW_MS, (before, after) => quantile(bucketIncrease(before, after, "request_seconds"), q));
  const savedSince = (each: Metrics) =>
    increase(history[0]!.metrics, each, "tokens_in_total") - increase(history[0]!.metrics, each, "tokens_out_total");
  const level = (name: string, labels?: Record<string, string>) => levels(history, (each) => sum(each, name, labels));
  return (
    <>
      <Health history={history} ready={ready} />
      <Totals metrics={metrics} />
      <div class="charts">
        <TimeSeries title="Requests per second" now={now} atLeast={1} format={significant} series={[{ name: "all", points: rate("requests_total") }, { name: "with an error", points: failed }]} />
        <TimeSeries
          title="Time of requests"
          now={now}
          atLeast={0.01}
          format={(seconds) => milliseconds(seconds * 1000)}
          series={[0.5, 0.95, 0.99].map((q) => ({ name: `p${q * 100}`, points: latency(q) }))}
        />
        <TimeSeries title="Queue" now={now} atLeast={4} format={count} series={[{ name: "in progress", points: level("requests_in_flight") }, { name: "waiting", points: level("requests_waiting") }]} />
        <TimeSeries title="Tokens per second" now={now} atLeast={10} format={significant} series={[{ name: "in", points: rate("tokens_in_total") }, { name: "out", points: rate("tokens_out_total") }]} />
        <TimeSeries title="Tokens saved" now={now} atLeast={100} format={count} series={[{ name: "in this time", points: levels(history, savedSince) }]} />
        <TimeSeries title="Cache size" now={now} atLeast={1e6} format={bytes} series={[{ name: "memory", points: level("kv_bytes", { tier: "memory" }) }, { name: "disk", points: level("kv_bytes", { tier: "disk" }) }]} />
      </div>
      <div class="tables">
        <Cache metrics={metrics} history={history} />
        <Endpoints metrics={metrics} history={history} />
        <Keys metrics={metrics} />
      </div>
    </>
  );
}

function saved(metrics: Metrics): number {
  return (sum(metrics, "tokens_in_total") ?? 0) - (sum(metrics, "tokens_out_total") ?? 0);
}

/** The health of the daemon in sentences, the most urgent first. */
function Health({ history, ready }: { history: readonly Reading[]; ready: string }) {
  const sentences = healthSentences(history, ready);
  return (
    <div class="health" role="status" data-ready={ready}>
      {sentences.map(({ text, level }) => (
        <p key={text} class={`health-${level}`}>
          <span aria-hidden="true">{{ good: "✓", warn: "!", bad: "✗" }[level]}</span> {text}
        </p>
      ))}
    </div>
  );
}

function Totals({ metrics }: { metrics: Metrics }) {
  const tokensIn = sum(metrics, "tokens_in_total") ?? 0;
  return (
    <dl class="stats">
      <div class="stat-main">
        <dt>tokens saved since the daemon started</dt>
        <dd data-total="saved">{count(saved(metrics))}</dd>
      </div>
      <div>
        <dt>share saved</dt>
        <dd>{tokensIn > 0 ? percent(saved(metrics) / tokensIn) : "–"}</dd>
      </div>
      <div>
        <dt>requests</dt>
        <dd data-total="requests">{count(sum(metrics, "requests_total") ?? 0)}</dd>
      </div>
      <div>
        <dt>in progress</dt>
        <dd>{count(sum(metrics, "requests_in_flight") ?? 0)}</dd>
      </div>
      <div>
        <dt>waiting</dt>
        <dd>{count(sum(metrics, "requests_waiting") ?? 0)}</dd>
      </div>
    </dl>
  );
}

interface SectionProps {
  metrics: Metrics;
  history: readonly Reading[];
}

const LOOKUPS: Record<string, string> = {
  memory: "memory",
  disk: "disk",
  shared: "shared tier",
  joined: "another request in progress",
  read: "not cached: read by the model",
};

function Cache({ metrics, history }: SectionProps) {
  const first = history[0]!.metrics;
  const all = sum(metrics, "kv_lookups_total") ?? 0;
  const recent = increase(first, metrics, "kv_lookups_total");
  return (
    <section>
      <h2>Cache of chunk keys</h2>
      <Table columns={["Found in", { number: "chunks" }, { number: "share" }, { number: "since opened" }]}>
        {Object.entries(LOOKUPS).map(([source, name]) => {
          const found = sum(metrics, "kv_lookups_total", { source }) ?? 0;
          return (
            <tr key={source} data-source={source}>
              <th scope="row">{name}</th>
              <td class="num">{count(found)}</td>
              <td class="num">{all > 0 ? percent(found / all) : "–"}</td>
              <td class="num">{recent > 0 ? percent(increase(first, metrics, "kv_lookups_total", { source }) / recent) : "–"}</td>
            </tr>
          );
        })}
      </Table>
      <p class="small muted">
        {labelValues(metrics, "kv_bytes", "tier")
          .sort()
          .reverse()
          .map((tier) => {
            const evicted = sum(metrics, "kv_evictions_total", { tier }) ?? 0;
            return `${tier}: ${plural(sum(metrics, "kv_entries", { tier }) ?? 0, "block")}, ${bytes(sum(metrics, "kv_bytes", { tier }) ?? 0)}, ${count(evicted)} evicted. `;
          })}
      </p>
    </section>
  );
}

function Endpoints({ metrics, history }: SectionProps) {
  const first = history[0]!.metrics;
  const requests = (endpoint: string) => sum(metrics, "requests_total", { endpoint }) ?? 0;
  const endpoints = labelValues(metrics, "requests_total", "endpoint").sort((a, b) => requests(b) - requests(a));
  if (endpoints.length === 0) return null;
  return (
    <section>
      <h2>Endpoints</h2>
      <Table columns={["Path", { number: "requests" }, "errors", { number: "p50", title: "Since this view was opened, at most of the last 10 minutes" }]}>
        {endpoints.map((endpoint) => {
          const samples = (metrics.get("requests_total") ?? []).filter((sample) => sample.labels.endpoint === endpoint);
          const errors = samples.filter((sample) => sample.labels.code !== "ok" && sample.value > 0);
          const median = quantile(bucketIncrease(first, metrics, "request_seconds", { endpoint }), 0.5);
          return (
            <tr key={endpoint}>
              <th scope="row">
                <code>{endpoint}</code>
              </th>
              <td class="num">{count(requests(endpoint))}</td>
              <td>
                {errors.map((sample) => (
                  <Fragment key={sample.labels.code}>
                    <span class="error-count">
                      <code>{sample.labels.code}</code> {count(sample.value)}
                    </span>{" "}
                  </Fragment>
                ))}
              </td>
              <td class="num">{median === null ? "–" : milliseconds(median * 1000)}</td>
            </tr>
          );
        })}
      </Table>
    </section>
  );
}

/** What compression lost of the results of tools, as far as later steps of the model show it. */
function Losses({ tenants }: { tenants: readonly TenantSavings[] }) {
  const rows = tenants.flatMap(({ tenant, losses }) => losses.map((loss) => ({ tenant: tenant || "default", ...loss })));
  if (rows.length === 0) return null;
  return (
    <section>
      <h2>Results of tools that later steps copied from</h2>
      <Table columns={["Tenant", "Tool", "Kind", { number: "used" }, { number: "lost" }, { number: "share", title: "With 95 % confidence" }, "Compression"]}>
        {rows.map((row) => (
          <tr key={`${row.tenant} ${row.tool} ${row.kind}`} data-tool={row.tool}>
            <td>{row.tenant}</td>
            <th scope="row">
              <code>{row.tool}</code>
            </th>
            <td>{row.kind}</td>
            <td class="num">{count(row.uses)}</td>
            <td class="num">{count(row.uses_lost)}</td>
            <td class="num">
              {percent(row.share_min)} to {percent(row.share_max)}
            </td>
            <td>{row.is_off ? "off: too much was lost" : "on"}</td>
          </tr>
        ))}
      </Table>
      <p class="small muted">Lost: the model copied something that had been left out, or in shadow mode would have been. What it uses without copying is not seen.</p>
    </section>
  );
}

/** Requests and tokens by tenant and API key, if the daemon requires keys. */
function Keys({ metrics }: { metrics: Metrics }) {
  const keys = labelValues(metrics, "key_requests_total", "key");
  if (keys.length === 0) return null;
  const tenantOf = (key: string) =>
    metrics.get("key_info")?.find((sample) => sample.labels.key === key && sample.value > 0)?.labels.tenant || "default";
  const tenants = [...new Set(keys.map(tenantOf))].sort();
  const rows = tenants.flatMap((tenant) => keys.filter((key) => tenantOf(key) === tenant).map((key) => ({ tenant, key })));
  return (
    <section>
      <h2>Tenants and API keys</h2>
      <Table columns={["Tenant", "Key", { number: "requests" }, { number: "over its rate" }, { number: "model tokens" }]}>
        {rows.map(({ tenant, key }) => (
          <tr key={key} data-tenant={tenant}>
            <td>{tenant}</td>
            <th scope="row">{key}</th>
            <td class="num">{count(sum(metrics, "key_requests_total", { key }) ?? 0)}</td>
            <td class="num">{count(sum(metrics, "key_requests_total", { key, code: "rate_limited" }) ?? 0)}</td>
            <td class="num">{count(sum(metrics, "key_tokens_total", { key }) ?? 0)}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}
