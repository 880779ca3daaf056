import assert from "node:assert/strict";
import { open, openExample, pageTest, setup, until } from "./browser.mjs";

const state = setup();
const states = (page) => page.locator(".part").evaluateAll((parts) => parts.map((part) => part.dataset.state));

pageTest(state, "a sentence lights up its source sentence, by pointer and by focus", async (page, { api }) => {
  await openExample(page, api, "attribute", "Two documents");
  assert.deepEqual(await states(page), ["supported", "partly", "contradicted"]);
  // The verdict is a word beside each sentence, and the contradicted sentence is shown first.
  assert.deepEqual(await page.locator(".part .sign").allInnerTexts(), ["✓ supported", "~ in part", "✗ contradicted"]);
  assert.equal(await page.locator(".summary").innerText(), "1 of 3 sentences are supported, 1 in part, 1 contradicted.");
  assert.match(
    await page.locator("[data-details]").innerText(),
    /^Contradicted[\s\S]*Probability that the chunks support it: \d+ %\.[\s\S]*“1913”: the chunk says “1931” \(Halden Bridge; another number\)/,
  );
  assert.doesNotMatch(await page.locator("[data-details]").innerText(), /no source has this number/);
  await page.locator(".part").nth(1).locator(".sign").hover();
  assert.match(await page.locator(".cited-source .lit-sentence").innerText(), /^Between 2014 and 2016 it was repaired/);
  assert.equal(await page.locator(".cited-source").getAttribute("data-source"), "2");
  await page.locator(".part").first().focus();
  assert.match(await page.locator(".cited-source .lit-sentence").innerText(), /passes under the Halden Bridge/);
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.locator(".cited-source").getAttribute("data-source"), "2");
  assert.match(await page.locator("[data-details]").innerText(), /^Supported in part\./);
  assert.deepEqual(await page.locator(".cite").allInnerTexts(), ["1", "3"]);
});

pageTest(state, "a quotation that is not exact is shown with its altered words", async (page, { api }) => {
  await openExample(page, api, "attribute", "Two documents");
  assert.match(await page.locator("[data-quotes]").innerText(), /^Quotations that are not exact\s+“without closing the line for a single week”\s+Altered: Halden Bridge does not have “week” there\.$/);
  const answer = page.getByLabel("Answer of the language model");
  await answer.fill("It was repaired “without closing the line for a single day”.");
  await until(() => page.locator("[data-quotes]").count(), (count) => count === 0, "an exact quotation is not listed");
  await answer.fill("It was repaired “by the town, which sold the ferry for it”.");
  await until(() => page.locator("[data-quotes]").allInnerTexts(), ([text]) => /Fabricated: no chunk says it/.test(text ?? ""), "a fabricated quotation is listed");
});

pageTest(state, "a source lights up the sentence that cites it", async (page, { api }) => {
  await openExample(page, api, "attribute", "Two documents");
  await page.locator('[data-source="2"]').hover();
  await until(() => page.locator(".part.active").getAttribute("data-part"), (part) => part === "1", "the second sentence is active");
});

pageTest(state, "an answer that arrives has the same verdicts as the whole answer", async (page, { api }) => {
  await openExample(page, api, "attribute", "An incident");
  const whole = await states(page);
  await page.getByLabel("As it arrives").check();
  await until(() => states(page), (found) => found.length === whole.length, "all parts");
  assert.deepEqual(await states(page), whole);
  await page.getByRole("button", { name: "Replay" }).click();
  // How many sentences are seen while they arrive depends on the speed of the machine.
  await page.getByRole("button", { name: "Replay" }).waitFor();
  await until(() => page.locator(".part.arriving").count(), (count) => count === 0, "the answer is complete");
  assert.deepEqual(await states(page), whole);
});

pageTest(state, "an answer is attributed while it is typed", async (page, { api }) => {
  await openExample(page, api, "attribute", "Two documents");
  await page.getByLabel("As it arrives").check();
  const answer = page.getByLabel("Answer of the language model");
  await answer.fill("");
  await page.getByText("paste an answer").waitFor();
  await answer.pressSequentially("The Halden Bridge was opened in 1931. It was opened in 1950.", { delay: 15 });
  await until(() => states(page), (found) => found.join() === "supported,contradicted", "both verdicts");
});

pageTest(state, "only the text that Compress kept can be the source", async (page, { api }) => {
  await openExample(page, api, "compress", "Two documents");
  await page.getByRole("link", { name: "Attribute" }).click();
  const answer = page.getByLabel("Answer of the language model");
  await answer.fill("Bicycles travel free of charge.");
  await until(() => states(page), (found) => found.join() === "supported", "the whole chunk supports it");
  await page.getByLabel(/Only the text that Compress kept/).check();
  await until(() => states(page), (found) => found.join() === "not_found", "the kept text does not");
});

pageTest(
  state,
  "an error is shown with its code, and the earlier result stays",
  async (page, { api }) => {
    await openExample(page, api, "attribute", "Two documents");
    const parts = await page.locator(".part").count();
    await page.getByLabel("Answer of the language model").fill("word ".repeat(60_000));
    await page.getByRole("alert").waitFor();
    assert.match(await page.getByRole("alert").innerText(), /too_long/);
    assert.equal(await page.locator(".old .part").count(), parts);
    await page.getByLabel("As it arrives").check();
    await page.getByRole("alert").waitFor();
    assert.match(await page.getByRole("alert").innerText(), /too_long/);
  },
  { expected: /422/ },
);

pageTest(state, "an empty view says what to do", async (page, { api }) => {
  await open(page, api, "attribute");
  await page.getByText("Choose an example, or paste an answer").waitFor();
});
