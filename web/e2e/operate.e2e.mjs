import assert from "node:assert/strict";
import { open, pageTest, setup, until, VIEWS } from "./browser.mjs";

const state = setup();
/** The page finds out which listener it is on by a path that only the other one has. */
const expected = /404.*\/(v1\/models|metrics|readyz)/;

pageTest(
  state,
  "numbers follow the requests",
  async (page, { admin }) => {
    await open(page, admin, "operate");
    await page.locator('[data-ready="ok"]').waitFor();
    assert.match(await page.locator(".health").innerText(), /The daemon is ready\. .+ runs on/);
    const total = async (name) => Number((await page.locator(`[data-total=${name}]`).innerText()).replaceAll(",", ""));
    const requests = await total("requests");
    const saved = await total("saved");
    const body = { query: "When was the tower built?", chunks: ["The tower was built in 1874. The weather was fine.", "Trains leave at noon."], budget: { tokens: 14 } };
    for (let i = 0; i < 5; i++) {
      const response = await fetch(`${process.env.THRESHER_URL}/v1/compress`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      assert.equal(response.status, 200);
    }
    await until(() => total("requests"), (count) => count >= requests + 5, "requests are counted");
    await until(() => total("saved"), (count) => count > saved, "tokens are saved");
    const chart = page.locator('[data-chart="Time of requests"] .plot');
    await until(() => chart.getAttribute("aria-label"), (label) => /p50: [\d.]+ ms; p95: [\d.]+ m?s; p99: /.test(label), "percentiles");
    await until(() => page.locator('[data-chart="Tokens saved"] path.line').getAttribute("d"), (path) => path.includes("L"), "a line");
    assert.match(await page.locator('[data-source="memory"]').innerText(), /memory\s+[\d,]+\s+\d+ %/);
    await chart.focus();
    await page.keyboard.press("ArrowLeft");
    await page.locator('[data-chart="Time of requests"] .cursor').waitFor({ state: "attached" });
  },
  { expected },
);

pageTest(
  state,
  "on the public listener the view leads to the admin listener",
  async (page, { api }) => {
    await open(page, api, "operate");
    await page.locator("[data-not-admin]").waitFor();
    assert.match(await page.locator("[data-not-admin] a").getAttribute("href"), /:8081\/#\/operate$/);
  },
  { expected },
);

pageTest(
  state,
  "on the admin listener the other views lead to the public listener, and the page opens with Operate",
  async (page, { admin }) => {
    await page.goto(admin);
    await page.getByRole("heading", { level: 1, name: "Operate" }).waitFor({ state: "attached" });
    for (const view of VIEWS.filter((name) => name !== "operate")) {
      await open(page, admin, view);
      await page.locator("[data-admin]").waitFor();
      assert.ok((await page.locator("[data-admin] a").getAttribute("href")).endsWith(`:8080/#/${view}`));
    }
  },
  { expected },
);

pageTest(
  state,
  "a daemon that stops is reported, and the last numbers stay",
  async (page, { admin }) => {
    await open(page, admin, "operate");
    await page.locator("[data-total=requests]").waitFor();
    await page.route(/metrics|readyz/, (route) => route.abort());
    await page.getByRole("alert").waitFor();
    assert.match(await page.getByRole("alert").innerText(), /cannot be reached/);
    assert.equal(await page.locator(".old [data-total=requests]").count(), 1);
    await page.unroute(/metrics|readyz/);
    await until(() => page.getByRole("alert").count(), (count) => count === 0, "it recovers by itself");
  },
  { expected: /404|ERR_FAILED/ },
);

pageTest(
  state,
  "with API keys, requests are listed by tenant",
  async (page, { admin }) => {
    // As a daemon with keys answers.
    await page.route("**/metrics", async (route) => {
      const answer = await route.fetch();
      const lines = [
        'key_requests_total{key="web",code="ok"} 7',
        'key_requests_total{key="batch",code="rate_limited"} 2',
        'key_requests_total{key="own",code="ok"} 1',
        'key_tokens_total{key="web"} 1500',
        'key_info{key="web",tenant="acme"} 1',
        'key_info{key="batch",tenant="acme"} 1',
        'key_info{key="batch",tenant="before"} 0',
        'key_info{key="own",tenant=""} 1',
      ];
      await route.fulfill({ response: answer, body: `${await answer.text()}\n${lines.join("\n")}\n` });
    });
    await open(page, admin, "operate");
    const rows = page.locator("tr[data-tenant]");
    await until(() => rows.count(), (count) => count === 3, "a row for each key");
    const text = async (at) => (await rows.nth(at).innerText()).replace(/\s+/g, " ");
    const [first, second, third] = [await text(0), await text(1), await text(2)];
    assert.match(first, /^acme web 7 0 1,500$/);
    assert.match(second, /^acme batch 2 2 0$/);
    assert.match(third, /^default own 1 0 0$/);
  },
  { expected },
);

pageTest(
  state,
  "what compression lost of results of tools",
  async (page, { admin }) => {
    await page.route("**/v1/savings", async (route) => {
      const answer = await route.fetch();
      const savings = await answer.json();
      assert.deepEqual(savings.tenants[0].losses, [], "no agent has sent anything to this daemon");
      const loss = { kind: "prose", uses: 40, uses_lost: 9, pieces: 61, pieces_lost: 10, share_min: 0.094, share_max: 0.414 };
      savings.tenants[0].losses = [
        { tool: "browse", ...loss, is_off: true },
        { tool: "search", ...loss, uses_lost: 0, pieces_lost: 0, share_min: 0, share_max: 0.088, is_off: false },
      ];
      await route.fulfill({ response: answer, json: savings });
    });
    await open(page, admin, "operate");
    const text = async (tool) => (await page.locator(`[data-tool=${tool}]`).innerText()).replace(/\s+/g, " ");
    assert.equal(await text("browse"), "default browse prose 40 9 9 % to 41 % off: too much was lost");
    assert.equal(await text("search"), "default search prose 40 0 0 % to 9 % on");
  },
  { expected },
);
