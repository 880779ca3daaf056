// Writes PNGs of each view: npm run screenshots -- FOLDER. The variables are those of the tests.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { addressOf, launch, open, openExample, questionWord } from "./browser.mjs";

const folder = process.argv[2];
if (!folder) {
  console.error("Name a folder: npm run screenshots -- FOLDER");
  process.exit(2);
}
await mkdir(folder, { recursive: true });
const { THRESHER_URL, THRESHER_ADMIN_URL, THRESHER_DECODER_URL } = process.env;
const servers = [await addressOf(THRESHER_URL), await addressOf(THRESHER_ADMIN_URL), await addressOf(THRESHER_DECODER_URL)];
const [api, admin, decoder] = servers.map((server) => server?.url);
const browser = await launch();

async function compress(page) {
  await openExample(page, api, "compress", "Two documents");
  await page.locator(".near-tag").first().waitFor();
  await questionWord(page, "repaired").click();
}

const VIEWS = {
  compress,
  async "compress-heat"(page) {
    await openExample(page, api, "compress", "An incident");
    await page.getByLabel("Heat map").check();
    await page.locator(".near-tag").first().waitFor();
    await questionWord(page, "payment").click();
  },
  async attribute(page) {
    await openExample(page, api, "attribute", "Two documents");
    await page.locator(".part").nth(1).click({ position: { x: 4, y: 4 }, force: true });
  },
  async keys(page) {
    await openExample(page, decoder ?? api, "compress", "Two documents");
    await page.getByRole("link", { name: "Keys and values" }).click();
    await page.locator("[data-head], [data-no-decoder]").first().waitFor();
  },
  async operate(page) {
    await open(page, admin, "operate");
    // A chart needs some requests and some time.
    for (let second = 0; second < 20; second++) {
      const chunks = Array.from({ length: 5 }, (_, index) => `Tower ${second + index} was built in ${1800 + index}. The weather was fine. Nobody complained.`);
      const body = JSON.stringify({ query: "When was the tower built?", chunks, budget: { ratio: 0.5 } });
      const send = () => fetch(`${THRESHER_URL}/v1/compress`, { method: "POST", headers: { "content-type": "application/json" }, body });
      await Promise.all(Array.from({ length: 1 + (second % 4) }, send));
      await page.waitForTimeout(1000);
    }
  },
};

const DESKTOP = { viewport: { width: 1360, height: 900 }, deviceScaleFactor: 1, colorScheme: "light" };
const SHOTS = [
  ...Object.keys(VIEWS).map((view) => ({ name: view, view, context: DESKTOP })),
  { name: "compress-dark", view: "compress", context: { ...DESKTOP, colorScheme: "dark" } },
];

for (const { name, view, context: options } of SHOTS) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  await VIEWS[view](page);
  await page.mouse.move(0, 0);
  await page.evaluate(() => scrollTo(0, 0));
  await page.waitForTimeout(300);
  const path = join(folder, `${name}.png`);
  await page.screenshot({ path });
  console.log(path);
  await context.close();
}
await browser.close();
for (const server of servers) server?.close();
