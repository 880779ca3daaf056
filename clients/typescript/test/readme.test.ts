/** The examples run, and the README shows them. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { resolve } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";

const EXPECTED: Record<string, string[]> = {
  "with_client.ts": ["[1] Cape Orrin Light was completed in 1874.", "supported [ 'history' ] The light was completed in 1874."],
  "with_stream.ts": ["supported The light was completed in 1874.", "not_found It was painted green."],
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

test("every block of the READMEs is part of an example", () => {
  const readme = readFileSync("README.md", "utf8");
  const blocks = [...readme.matchAll(/^```ts\n\/\/ (examples\/\S+)\n(.*?)^```$/gms)];
  assert.equal(blocks.length, [...readme.matchAll(/^```ts$/gm)].length, "each block names its file");
  for (const [, path, block] of blocks) assert.ok(readFileSync(path!, "utf8").includes(block!), path);
  const root = readFileSync(resolve(process.env["THRESHER_TEST_ROOT"] ?? "../..", "README.md"), "utf8");
  const examples = readdirSync("examples").map((name) => readFileSync(`examples/${name}`, "utf8"));
  const shown = [...root.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, block]) => block!);
  assert.ok(shown.length > 0 && shown.every((block) => examples.some((example) => example.includes(block))));
  assert.deepEqual([...new Set(blocks.map(([, path]) => path!.replace("examples/", "")))].sort(), Object.keys(EXPECTED).sort());
});
