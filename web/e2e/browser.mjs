// What all end-to-end tests share: a browser, the addresses of the page, and the checks that every test makes.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import test, { after, before } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "../dev.mjs";

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export const VIEWS = ["compress", "attribute", "keys", "operate"];

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
}

/** The address of the page on a listener: the listener's own, or with WEB_DEV=1 that of a development server in front of it. */
export async function addressOf(listener) {
  if (!listener) return null;
  if (!process.env.WEB_DEV) return { url: new URL(listener).origin, close() {} };
  const server = await serve(listener);
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, close };
}

/** The setup of one test file. `sites` has the addresses once the tests run. */
export function setup() {
  const state = { sites: {} };
  before(async () => {
    state.browser = await launch();
    const { THRESHER_URL, THRESHER_ADMIN_URL, THRESHER_DECODER_URL } = process.env;
    state.servers = { api: await addressOf(THRESHER_URL), admin: await addressOf(THRESHER_ADMIN_URL), decoder: await addressOf(THRESHER_DECODER_URL) };
    for (const [name, server] of Object.entries(state.servers)) state.sites[name] = server?.url;
  });
  after(async () => {
    await state.browser?.close();
    for (const server of Object.values(state.servers ?? {})) server?.close();
  });
  return state;
}

/**
 * Declares a test with a page of its own. It fails after console errors, uncaught errors and violations of the content security policy, but
 * not for failed requests whose message matches `expected`.
 */
export function pageTest(state, name, run, { expected, context: options = {}, skip } = {}) {
  test(name, { skip }, async () => {
    const context = await state.browser.newContext(options);
    const page = await context.newPage();
    page.setDefaultTimeout(30_000);
    const problems = [];
    page.on("pageerror", (error) => problems.push(`uncaught: ${error}`));
    page.on("console", (message) => {
      const text = `${message.text()} (${message.location().url})`;
      if (message.type() === "error" && !expected?.test(text)) problems.push(text);
    });
    await page.addInitScript(() => {
      addEventListener("securitypolicyviolation", (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
    });
    try {
      await run(page, state.sites);
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  });
}

/** Opens a view. */
export async function open(page, site, view) {
  await page.goto(`${site}/#/${view}`);
  await page.locator("main h1").waitFor({ state: "attached" });
}

/** Loads an example of the Compress or Attribute view, and waits for its result. */
export async function openExample(page, site, view, name) {
  await open(page, site, view);
  await page.getByRole("button", { name, exact: true }).click();
  await page.locator(view === "compress" ? ".chunk [data-fate]" : ".part").first().waitFor();
}

/** Waits until the words of the question are known. */
export function questionWord(page, word) {
  return page.locator(".question").getByRole("button", { name: word, exact: true });
}

/** Replaces the chunks through the JSON editor. */
export async function setChunks(page, chunks) {
  await page.getByLabel("JSON", { exact: true }).check();
  await page.getByLabel("Chunks as JSON").fill(JSON.stringify(chunks));
}

/** Waits until `read` gives a value for which `isFine` is true, and returns it. */
export async function until(read, isFine, message) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const value = await read();
    if (isFine(value)) return value;
    if (Date.now() > deadline) assert.fail(`${message}; last seen: ${JSON.stringify(value)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const axeSource = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** The serious and critical findings of axe-core. */
export async function accessibilityFindings(page) {
  await page.evaluate(axeSource);
  const findings = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.any[0]?.message ?? ""}`) }));
  });
  return findings.filter(({ impact }) => impact === "serious" || impact === "critical");
}
