// Builds the package, starts a daemon and runs all tests against it. The arguments are those of `node --test`; default: all test files.
//
//   THRESHER_TEST_BINARY   the path of the daemon (default: target/debug/thresher of the repository)
//   THRESHER_TEST_ROOT     the directory that the daemon runs in (default: the repository), which has the model in models/minilm-l6
//   THRESHER_RUNTIME_LIB   the path of libonnxruntime
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";

process.chdir(dirname(dirname(fileURLToPath(import.meta.url))));
const run = (...command) => {
  const { status } = spawnSync(command[0], command.slice(1), { stdio: "inherit", shell: process.platform === "win32" });
  if (status !== 0) process.exit(status ?? 1);
};
run("npx", "tsc", "-p", "tsconfig.json");
run("npx", "tsc", "-p", "tsconfig.test.json");

const { Daemon } = await import("../out/test/daemon.js");
const daemon = await Daemon.start();
process.env.THRESHER_URL = daemon.url;
const all = readdirSync("out/test").filter((name) => name.endsWith(".test.js"));
const files = process.argv.length > 2 ? process.argv.slice(2) : all.map((name) => `out/test/${name}`);
// Not synchronous: this process reads the daemon's log meanwhile.
const { spawn } = await import("node:child_process");
const tests = spawn(process.execPath, ["--test", "--test-reporter=spec", "--test-concurrency=1", ...files], { stdio: "inherit" });
const status = await new Promise((resolve) => tests.on("exit", resolve));
await daemon.stop();
process.exit(status ?? 1);
