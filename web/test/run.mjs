// Builds the tests with the sources that they import, and runs them with Node's test runner.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { readdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL(".", import.meta.url));
const out = fileURLToPath(new URL("../node_modules/.cache/test/", import.meta.url));
const names = (await readdir(folder)).filter((name) => name.endsWith(".test.mjs"));

await rm(out, { recursive: true, force: true });
await build({
  entryPoints: names.map((name) => folder + name),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  sourcemap: "inline",
  logLevel: "warning",
});
const { status } = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...names.map((name) => out + name)], { stdio: "inherit" });
process.exit(status ?? 1);
