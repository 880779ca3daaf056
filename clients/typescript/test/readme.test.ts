/** The examples run, and the documentation shows them. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

const EXPECTED: Record<string, string[]> = {
  "with_client.ts": ["[1] Cape Orrin Light was completed in 1874.", "supported [ 'history' ] The light was completed in 1874."],
  "with_errors.ts": ["422 out_of_range budget.tokens"],
  "with_ai_sdk.ts": ["The light was completed in 1874. [ 'history' ]", "true true [ 'supported' ]"],
  "with_langchain.ts": ["history Cape Orrin Light was completed in 1874. 39 true", "contradicted 1874"],
};

test("every example runs", async () => {
  const examples = readdirSync("examples").filter((name) => name.startsWith("with_"));
  assert.deepEqual(examples.sort(), Object.keys(EXPECTED).sort());
  for (const [name, lines] of Object.entries(EXPECTED)) {
    const { stdout } = await promisify(execFile)(process.execPath, [`out/examples/${name.replace(/\.ts$/, ".js")}`]);
    for (const line of lines) assert.ok(stdout.includes(line), `${name}: ${stdout}`);
  }
});

test("every block of the documentation is part of an example", () => {
  const readme = readFileSync("README.md", "utf8");
  const blocks = [...readme.matchAll(/^```ts\n\/\/ (examples\/\S+)\n(.*?)^```$/gms)];
  assert.equal(blocks.length, [...readme.matchAll(/^```ts$/gm)].length, "each block names its file");
  for (const [, path, block] of blocks) assert.ok(readFileSync(path!, "utf8").includes(block!), path);
  const root = resolve(process.env["THRESHER_TEST_ROOT"] ?? "../..");
  const examples = readdirSync("examples").map((name) => readFileSync(`examples/${name}`, "utf8"));
  const pages = readdirSync(join(root, "docs")).filter((name) => name.endsWith(".md")).map((name) => `docs/${name}`);
  for (const page of ["README.md", ...pages]) {
    const shown = readFileSync(join(root, page), "utf8").matchAll(/^```ts\n(.*?)^```$/gms);
    for (const [, block] of shown) assert.ok(examples.some((example) => example.includes(block!)), page);
  }
  assert.deepEqual([...new Set(blocks.map(([, path]) => path!.replace("examples/", "")))].sort(), Object.keys(EXPECTED).sort());
});
