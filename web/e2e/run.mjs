// Runs the end-to-end tests one after another, because they measure and share one daemon. README.md lists the variables.
import { spawnSync } from "node:child_process";
import { readdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";

if (!process.env.THRESHER_URL || !process.env.THRESHER_ADMIN_URL) {
  console.error("Set THRESHER_URL and THRESHER_ADMIN_URL to the listeners of a running daemon.");
  process.exit(2);
}
const folder = fileURLToPath(new URL(".", import.meta.url));
const chosen = process.argv.slice(2);
const names = (await readdir(folder)).filter((name) => name.endsWith(".e2e.mjs") && (chosen.length === 0 || chosen.some((part) => name.includes(part))));
const options = ["--test", "--test-concurrency=1", "--test-reporter=spec", "--test-timeout=300000"];
const { status } = spawnSync(process.execPath, [...options, ...names.map((name) => folder + name)], { stdio: "inherit" });
process.exit(status ?? 1);
