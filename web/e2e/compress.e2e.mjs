import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { open, openExample, pageTest, questionWord, setChunks, setup, until } from "./browser.mjs";

const state = setup();
const context = (page) => page.locator(".context").innerText();

for (const [name, needed] of [
  ["Two documents", ["Halden Bridge", "Brock & Daughters"]],
  ["An incident", ['"vault-eu" is empty', "no answer from the card vault"]],
  ["A table and a chat", ["500 GB", "fifteen per cent"]],
]) {
  pageTest(state, `the example "${name}" keeps what its question needs`, async (page, { api }) => {
    await openExample(page, api, "compress", name);
    const text = await context(page);
    for (const part of needed) assert.ok(text.includes(part), `${part} in ${text}`);
    assert.match(await page.locator(".stats").innerText(), /saved\s+\d+ %\s+tokens\s+\d+ → \d+\s+time\s+[\d.]+ ms\s+keys\s+\d chunks/);
    assert.ok((await page.locator(".chunk").count()) >= 4);
    assert.match(await page.locator('.chunk[data-kept="false"] .verdict').first().innerText(), /Left out(:| although) its score is/);
  });
}

pageTest(state, "moving the slider changes the context", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  const slider = page.locator(".budget input[type=range]");
  const budget = page.getByLabel("Budget", { exact: true });
  await slider.fill("90");
  const large = await until(() => context(page), (text) => text.includes("small wooden boats"), "a large context has the boats");
  await slider.fill("20");
  const small = await until(() => context(page), (text) => !text.includes("small wooden boats"), "a small context lacks them");
  assert.ok(small.length < large.length);
  assert.equal(await budget.inputValue(), "ratio");
  await budget.selectOption("Auto");
  const auto = await until(() => context(page), (text) => text.length > small.length, "auto keeps more");
  await budget.selectOption("Evidence kept: 95 %");
  const evidence = await until(() => context(page), (text) => text.length > auto.length, "a promise of the evidence keeps more than auto");
  await budget.selectOption("Share of tokens");
  await until(() => slider.inputValue(), (value) => Number(value) > 20, "the slider starts at what was kept");
  assert.ok(Math.abs((await context(page)).length - evidence.length) < 0.2 * evidence.length);
});

pageTest(state, "an older answer never replaces a newer one", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  const ratios = [];
  await page.route("**/v1/compress", async (route) => {
    const { ratio } = route.request().postDataJSON().budget;
    if (ratio) ratios.push(ratio);
    // The answer to the first position of the slider is late.
    if (ratio === 0.9) await new Promise((resolve) => setTimeout(resolve, 600));
    await route.continue().catch(() => {});
  });
  const slider = page.locator(".budget input[type=range]");
  await slider.fill("90");
  await until(() => ratios, (seen) => seen.includes(0.9), "the first request was sent");
  await slider.fill("20");
  await until(() => context(page), (text) => text.length < 450, "the second answer is shown");
  await page.waitForTimeout(900);
  assert.ok((await context(page)).length < 450, "the first answer came late and is not shown");
});

pageTest(state, "a word of the question lights up its match, and the match lights up the word", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  const word = questionWord(page, "repaired");
  await word.hover();
  const lit = page.locator("#chunk-2 .word.lit-best");
  assert.equal(await lit.innerText(), "repaired");
  assert.match(await page.locator(".match-line").innerText(), /“repaired” best matched “repaired” in Halden Bridge \(RC \d/);
  await page.mouse.move(0, 0);
  await until(() => page.locator(".word.lit").count(), (count) => count === 0, "the light goes out");

  await page.locator("#chunk-2").getByRole("button", { name: "repaired", exact: true }).hover();
  assert.equal(await page.locator(".question .lit").innerText(), "repaired");
  await page.mouse.move(0, 0);

  // The best match of a word may be in a title.
  await questionWord(page, "Sorrel").hover();
  assert.deepEqual((await page.locator(".chunk .word.lit").allInnerTexts()).filter((text) => !text.includes("Sorrel")), []);

  await word.focus();
  assert.equal(await page.locator("#chunk-2 .word.lit-best").innerText(), "repaired");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator(".match-line").innerText(), /^“bridge”/);
  // Enter keeps the word lit after the focus has gone.
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.locator(".copy-as button").first().focus();
  assert.match(await page.locator(".match-line").innerText(), /^“bridge”/);
});

pageTest(state, "the heat map marks words by colour, line and title", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  await questionWord(page, "bridge").waitFor();
  await page.getByLabel("Heat map").check();
  const hot = page.locator(".chunk .word.heat-4").first();
  await hot.waitFor();
  assert.match(await hot.getAttribute("title"), /RC 0\.\d/);
  const style = await hot.evaluate((element) => [getComputedStyle(element).backgroundColor, getComputedStyle(element).boxShadow]);
  assert.notEqual(style[0], "rgba(0, 0, 0, 0)");
  assert.match(style[1], /-3px/);
});

pageTest(state, "near misses are text that a larger context would have", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  const near = page.locator('.chunk [data-fate="near"]').first();
  await near.waitFor();
  // Hidden text for screen readers stands before it.
  const text = (await near.innerText()).replace(/^Near miss[^:]*: /, "").trim();
  assert.ok(text.length > 10 && !(await context(page)).includes(text), text);
  // In the whole context nothing is left that could be missed.
  await page.locator(".budget input[type=range]").fill("100");
  await until(() => page.locator('[data-fate="near"], .near-tag').count(), (count) => count === 0, "no near misses");
  await until(() => page.locator('[data-fate="cut"]').count(), (count) => count === 0, "nothing is left out");
});

pageTest(state, "a line says whether the chunks probably answer the question", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  const line = page.locator("[data-answerable]");
  assert.match(await line.innerText(), /^Probably answered by the chunks: \d+ %\.$/);
  await page.getByLabel("Question", { exact: true }).fill("How much does a single ticket of the ferry to Sorrel Island cost for children?");
  await until(() => line.allInnerTexts(), ([text]) => text !== undefined && !text.startsWith("Probably answered"), "the chunks do not say it");
});

pageTest(state, "an unrelated question says so", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  await page.getByLabel("Question", { exact: true }).fill("How does photosynthesis make sugar?");
  const notice = page.locator("[data-unrelated]");
  await notice.waitFor();
  assert.match(await notice.innerText(), /Nothing is related to the question[\s\S]*mean of its largest logits is 0\.\d+/);
  assert.equal(await page.locator(".context").count(), 1, "the context is not emptied");
});

pageTest(
  state,
  "an error is shown with its code, and the earlier result is marked as old",
  async (page, { api }) => {
    await openExample(page, api, "compress", "Two documents");
    const before = await context(page);
    await setChunks(page, [{ id: "a", text: "One." }, { id: "a", text: "Two." }]);
    const failure = page.getByRole("alert");
    await failure.waitFor();
    assert.match(await failure.innerText(), /duplicate[\s\S]*chunks\[1\]\.id[\s\S]*earlier one/);
    assert.equal(await page.locator(".old .context").innerText(), before);
    await setChunks(page, ["One ferry passes under the bridge."]);
    await until(() => page.locator(".old, [role=alert]").count(), (count) => count === 0, "the error is gone");
  },
  { expected: /422.*v1\/compress/ },
);

pageTest(
  state,
  "if the daemon cannot be reached, the page says so and retries",
  async (page, { api }) => {
    await openExample(page, api, "compress", "Two documents");
    await page.route("**/v1/compress", (route) => route.abort());
    await page.getByLabel("Question", { exact: true }).fill("Who repaired the bridge?");
    const failure = page.locator(".results > [role=alert]");
    await failure.waitFor();
    assert.match(await failure.innerText(), /unreachable[\s\S]*cannot be reached/);
    await page.unroute("**/v1/compress");
    await failure.getByRole("button", { name: "Try again" }).click();
    await until(() => page.locator(".old, [role=alert]").count(), (count) => count === 0, "the result is new");
  },
  { expected: /ERR_FAILED/ },
);

pageTest(
  state,
  "a 401 asks for a key, which stays in this tab and can be forgotten",
  async (page, { api }) => {
    // As a daemon with keys answers.
    await page.route("**/v1/**", async (route) => {
      const key = route.request().headers().authorization;
      if (key === "Bearer thr_good") return route.continue();
      const code = key ? "key_unknown" : "key_missing";
      await route.fulfill({ status: 401, contentType: "application/json", body: JSON.stringify({ error: { code, message: "no", param: null } }) });
    });
    await open(page, api, "compress");
    const panel = page.getByRole("form", { name: "API key" });
    await panel.waitFor();
    await panel.getByLabel("API key").fill("thr_bad");
    await panel.getByLabel("API key").press("Enter");
    await panel.getByText("does not know this API key").waitFor();
    await panel.getByLabel("API key").fill("thr_good");
    await panel.getByRole("button").click();
    await until(() => panel.count(), (count) => count === 0, "the panel closes");
    await page.getByRole("button", { name: "Two documents" }).click();
    await page.locator(".context").waitFor();
    const stored = await page.evaluate(() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage)]);
    assert.ok(stored[0].includes("thr_good") && !stored[1].includes("thr_good"));
    await page.locator(".copy-as").getByRole("button", { name: "curl" }).click();
    assert.ok(!(await page.locator(".snippet").innerText()).includes("thr_good"), "snippets do not contain the key");
    await page.getByRole("button", { name: "Forget the key" }).click();
    await panel.waitFor();
    assert.ok(!(await page.evaluate(() => JSON.stringify(sessionStorage))).includes("thr_good"));
  },
  { expected: /401/ },
);

pageTest(state, "chunks are pasted, chosen as files, dropped and edited", async (page, { api }) => {
  await open(page, api, "compress");
  const box = page.getByLabel("Text of new chunks");
  const count = () => page.locator(".chunk-list > li").count();
  await box.fill("One ferry.\n\nTwo bridges.");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  assert.equal(await count(), 2);
  await box.fill("Three\n\nin one.");
  await page.getByLabel("Blank lines divide chunks").uncheck();
  await page.getByRole("button", { name: "Add", exact: true }).click();
  assert.equal(await count(), 3);
  await page.locator("input[type=file]").setInputFiles([
    { name: "a.log", mimeType: "text/plain", buffer: Buffer.from("a line\n\nanother") },
    { name: "b.json", mimeType: "application/json", buffer: Buffer.from('["x", {"title": "T", "text": "y"}]') },
    { name: "c.png", mimeType: "image/png", buffer: Buffer.from([0x89, 0, 0, 1]) },
  ]);
  await until(count, (found) => found === 6, "one chunk of the log and two of the JSON");
  await page.getByText("Not added, because they are not text").waitFor();
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped text"], "d.md"));
    document.querySelector(".chunk-editor").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  });
  await until(count, (found) => found === 7, "the dropped file");
  await page.getByLabel("Kind of d.md").selectOption("markdown");
  await page.getByRole("button", { name: "Remove a.log" }).click();
  assert.equal(await count(), 6);
  await page.getByLabel("JSON", { exact: true }).check();
  const json = JSON.parse(await page.getByLabel("Chunks as JSON").inputValue());
  assert.deepEqual(json.at(-1), { title: "d.md", kind: "markdown", text: "dropped text" });
  await page.getByLabel("Chunks as JSON").fill('["a", 5]');
  await page.getByText("Chunk 2: expected a string").waitFor();
});

pageTest(state, "input survives a reload, unless it is too large", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  await page.getByLabel("Question", { exact: true }).fill("Who opened the bridge?");
  await page.reload();
  await page.locator(".context").waitFor();
  assert.equal(await page.getByLabel("Question", { exact: true }).inputValue(), "Who opened the bridge?");
  assert.equal(await page.locator(".chunk-list > li").count(), 6);
  await page.getByLabel("Question", { exact: true }).fill("");
  await setChunks(page, [`${"word ".repeat(420_000)}`]);
  await page.getByText("does not keep it over a reload").waitFor();
});

pageTest(state, "text is never read as HTML", async (page, { api }) => {
  await open(page, api, "compress");
  await setChunks(page, [{ title: "<b>T</b>", text: '<img src="x" onerror="alert(1)"> built the bridge. <script>alert(2)</script>', kind: "prose" }]);
  await page.getByLabel("Question", { exact: true }).fill("Who built the <i>bridge</i>?");
  await page.locator(".chunk [data-fate]").first().waitFor();
  assert.equal(await page.locator("main img, main script, main i, .chunk b").count(), 0);
  assert.ok((await page.locator(".chunk .source").innerText()).includes('<img src="x"'));
});

pageTest(
  state,
  "the request is copied as a program",
  async (page, { api }) => {
    await openExample(page, api, "compress", "An incident");
    for (const [language, part] of [
      ["curl", "curl -s "],
      ["Python", "from thresher_client import Client"],
      ["TypeScript", "await fetch("],
    ]) {
      await page.locator(".copy-as").getByRole("button", { name: language }).click();
      await page.getByText(`Copied as ${language}.`).waitFor();
      assert.ok((await page.evaluate(() => navigator.clipboard.readText())).includes(part));
      assert.ok((await page.locator(".snippet").innerText()).includes(part));
    }
  },
  { context: { permissions: ["clipboard-read", "clipboard-write"] } },
);

/** Runs a program that is given on the standard input, and returns what it prints. */
function output(command, program, env = {}) {
  const [name, ...args] = command;
  return execFileSync(name, args, { input: program, env: { ...process.env, ...env }, encoding: "utf8", timeout: 60_000 });
}

pageTest(state, "the copied programs run as they are, and print the context of the page", async (page, { api }) => {
  await openExample(page, api, "compress", "An incident");
  const kept = (await context(page)).replace(/\s+/g, " ").trim();
  const copied = async (language) => {
    await page.locator(".copy-as").getByRole("button", { name: language }).click();
    await page.getByText(`Copied as ${language}.`).waitFor();
    // The browser knows the daemon by another port.
    return (await page.locator(".snippet").innerText()).replaceAll(new URL(api).origin, process.env.THRESHER_URL);
  };
  const check = (language, printed) => assert.equal(printed.replace(/\s+/g, " ").trim(), kept, language);
  check("curl", JSON.parse(output(["bash"], await copied("curl"))).context);
  check("TypeScript", output(["node", "--input-type=module", "-"], await copied("TypeScript")));
  const env = { PYTHONPATH: process.env.THRESHER_PYTHONPATH };
  try {
    output(["python3", "-"], "import thresher_client", env);
  } catch {
    console.log("the packages of the Python client are not installed: its program was not run");
    return;
  }
  check("Python", output(["python3", "-"], await copied("Python"), env));
});

pageTest(state, "offsets are right in any script", async (page, { api }) => {
  const text = "🚢🚢 Naïve 東京 sailors know: the ferry passes under the Halden Bridge. 😀 The weather was fine that year.";
  await open(page, api, "compress");
  await setChunks(page, [text, "Trains leave at noon. 𝔸 bicycle costs three euros."]);
  await page.getByLabel("Question", { exact: true }).fill("Which bridge does the 🚢 ferry pass under?");
  await questionWord(page, "bridge").waitFor();
  await page.locator(".budget input[type=range]").fill("50");
  await until(() => page.locator('#chunk-0 [data-fate="cut"], #chunk-0 [data-fate="near"]').count(), (count) => count > 0, "something is left out");
  const shown = await page.locator("#chunk-0 .source").evaluate((source) => {
    const copy = source.cloneNode(true);
    copy.querySelectorAll(".sr").forEach((hidden) => hidden.remove());
    return [copy.textContent, copy.querySelector('[data-fate="kept"]').textContent];
  });
  assert.equal(shown[0], text);
  assert.ok((await context(page)).includes(shown[1]), shown[1]);
  await questionWord(page, "ferry").hover();
  assert.equal(await page.locator("#chunk-0 .word.lit-best").innerText(), "ferry");
});
