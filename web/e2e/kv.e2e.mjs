import assert from "node:assert/strict";
import { open, openExample, pageTest, setChunks, setup, until } from "./browser.mjs";

const state = setup();
const skip = process.env.THRESHER_DECODER_URL ? false : "THRESHER_DECODER_URL names no daemon with a decoder";

pageTest(state, "without a decoder the view says how to load one", async (page, { api }) => {
  await open(page, api, "keys");
  const notice = page.locator("[data-no-decoder]");
  await notice.waitFor();
  assert.match(await notice.innerText(), /thresher export[\s\S]*model\.kv_dir/);
});

pageTest(
  state,
  "each head shows the keys that it keeps, and the slider changes them",
  async (page, { decoder }) => {
    await openExample(page, decoder, "compress", "Two documents");
    await setChunks(page, ["Fodas has chant as its song . Tizar has Vover as its maker .", "the food of Dabun is bread . as for Fodas , its home is barn ."]);
    await page.getByLabel("Question", { exact: true }).fill("which maker does Tizar have ?");
    await page.getByRole("link", { name: "Keys and values" }).click();
    const heads = page.locator("[data-head]");
    await until(() => heads.count(), (count) => count === 15, "five layers of three heads");
    const kept = async () => (await heads.evaluateAll((all) => all.map((head) => Number(head.dataset.kept)))).reduce((a, b) => a + b);
    const quarter = await kept();
    const painted = await page.locator("[data-head] canvas").first().evaluate((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return data.some((value, index) => index % 4 === 3 && value > 0);
    });
    assert.ok(painted, "the strip is drawn");
    await heads.nth(4).hover();
    await page.getByRole("heading", { name: "Layer 1, head 1" }).waitFor();
    await heads.nth(4).focus();
    await page.keyboard.press("ArrowRight");
    await page.getByRole("heading", { name: "Layer 1, head 2" }).waitFor();
    assert.match(await heads.nth(5).textContent(), /^Layer 1, head 2 keeps \d+ % of the keys, \d+ of \d+$/);
    await page.locator(".kv-head input[type=range]").fill("80");
    await until(kept, (count) => count > 2 * quarter, "more keys are kept");
    assert.match(await page.locator(".stats").innerText(), /80 %/);
  },
  { skip },
);
