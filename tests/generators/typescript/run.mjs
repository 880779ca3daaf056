// Generates types from the OpenAPI document of a daemon, compiles calls with them, and runs the calls. `clients/typescript` must be built.
// Settings are those of `clients/typescript/test/run.mjs`.
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

process.chdir(dirname(fileURLToPath(import.meta.url)));
process.env.THRESHER_TEST_ROOT ??= resolve("../../..");
const { Daemon } = await import("../../../clients/typescript/out/test/daemon.js");

const daemon = await Daemon.start();
process.env.THRESHER_URL = daemon.url;
let status = 0;
// Not synchronous: this process reads the daemon's log meanwhile.
const run = async (...command) => {
  if (status === 0) status = await new Promise((done) => spawn(command[0], command.slice(1), { stdio: "inherit" }).on("exit", (code) => done(code ?? 1)));
};
writeFileSync("openapi.json", await (await fetch(`${daemon.url}/openapi.json`)).text());
await run("npm", "run", "--silent", "generate");
await run("npm", "run", "--silent", "check");
await run(process.execPath, "--test", "--test-reporter=spec", "out/calls.test.js");
await daemon.stop();
process.exit(status);
