// Who can use the page: keyboard, screen reader, small screens, colours; and how fast it appears.
import assert from "node:assert/strict";
import { accessibilityFindings, open, openExample, pageTest, questionWord, setup, until, VIEWS } from "./browser.mjs";

const state = setup();
const expected = /404/;

/** Opens a view with as much on it as there can be. */
async function fill(page, { api, admin, decoder }, view) {
  if (view === "operate") {
    await open(page, admin, view);
    await page.locator("[data-total=requests]").waitFor();
    return;
  }
  if (view === "keys" && decoder) {
    await openExample(page, decoder, "compress", "Two documents");
    await page.getByRole("link", { name: "Keys and values" }).click();
    await page.locator("[data-head]").first().waitFor();
    return;
  }
  if (view === "keys") return open(page, api, view);
  await openExample(page, api, view, "An incident");
  if (view === "compress") {
    await page.getByText("Options", { exact: true }).click();
    await questionWord(page, "payment").click();
    await page.locator(".near-tag").first().waitFor();
    await page.locator(".copy-as").getByRole("button", { name: "curl" }).click();
    await page.getByText("Time per stage, and model").click();
    await page.locator(".chunk-list button").first().click();
  } else {
    await page.getByText("Edit the chunks").click();
  }
}

for (const colorScheme of ["light", "dark"]) {
  for (const view of VIEWS) {
    pageTest(
      state,
      `axe finds nothing serious in ${view}, ${colorScheme}`,
      async (page, sites) => {
        await fill(page, sites, view);
        assert.deepEqual(await accessibilityFindings(page), []);
        if (view === "compress") {
          await page.getByLabel("Heat map").check();
          await page.locator(".word.heat-4").first().waitFor();
          assert.deepEqual(await accessibilityFindings(page), []);
        }
      },
      // Colours that are still in transition have no contrast of their own.
      { expected, context: { colorScheme, reducedMotion: "reduce" } },
    );
  }
}

for (const view of VIEWS) {
  pageTest(
    state,
    `${view} fits into 360 pixels`,
    async (page, sites) => {
      await fill(page, sites, view);
      const widths = await page.evaluate(() => [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]);
      assert.deepEqual(widths, [360, 360, 360]);
    },
    { expected, context: { viewport: { width: 360, height: 740 } } },
  );
}

pageTest(state, "the whole way through Compress and Attribute works by keyboard", async (page, { api }) => {
  await open(page, api, "compress");
  const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute("aria-label") || document.activeElement?.tagName);
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "main");
  assert.match(page.url(), /#\/compress$/);
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Two documents");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, "solid", "the focus is visible");
  await page.keyboard.press("Enter");
  await questionWord(page, "bridge").waitFor();
  // On to the slider.
  for (let i = 0; i < 60 && !(await page.evaluate(() => document.activeElement?.matches(".budget input[type=range]"))); i++) await page.keyboard.press("Tab");
  const before = await page.locator(".context").innerText();
  for (let i = 0; i < 30; i++) await page.keyboard.press("ArrowRight");
  await until(() => page.locator(".context").innerText(), (text) => text.length > before.length, "the context grows");
  // On to the words of the question: one stop of the Tab key, arrows within.
  for (let i = 0; i < 30 && !(await page.evaluate(() => document.activeElement?.matches("[data-question]"))); i++) await page.keyboard.press("Tab");
  assert.equal(await focused(), "Which");
  await page.keyboard.press("End");
  assert.match(await page.locator(".match-line").innerText(), /^“under”/);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement?.closest(".chunk")?.id), "chunk-0");

  await page.getByRole("link", { name: "Attribute" }).focus();
  await page.keyboard.press("Enter");
  await page.getByLabel("Answer of the language model").focus();
  await page.keyboard.type("The Halden Bridge was opened in 1931.");
  await page.locator(".part").waitFor();
  for (let i = 0; i < 20 && !(await page.evaluate(() => document.activeElement?.matches(".part"))); i++) await page.keyboard.press("Tab");
  assert.equal(await page.locator(".cited-source .lit-sentence").count(), 1);
});

pageTest(state, "the colours can be chosen, and the choice lasts", async (page, { api }) => {
  await open(page, api, "compress");
  const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const button = page.getByRole("button", { name: /^Colours/ });
  const light = await paper();
  await button.click();
  assert.equal(await paper(), light);
  await button.click();
  const dark = await paper();
  assert.notEqual(dark, light);
  await page.reload();
  await button.waitFor();
  assert.equal(await paper(), dark);
});

pageTest(state, "the first paint comes soon", async (page, { api }) => {
  await open(page, api, "compress");
  const paints = await until(
    () => page.evaluate(() => performance.getEntriesByType("paint").map(({ name, startTime }) => `${name}: ${Math.round(startTime)} ms`)),
    (entries) => entries.length > 0,
    "a paint",
  );
  console.log(paints.join(", "));
});
