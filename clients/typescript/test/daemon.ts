/** Starts the daemon for tests: on free ports, without files on disk. */

import { type ChildProcess, spawn } from "node:child_process";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const START_MS = 120_000;
const ROOT = process.env["THRESHER_TEST_ROOT"] ?? resolve("../..");
const BINARY = process.env["THRESHER_TEST_BINARY"] ?? resolve(ROOT, "target/debug/thresher");

/** A daemon that is ready. */
export class Daemon {
  private constructor(
    readonly url: string,
    private readonly process: ChildProcess,
  ) {}

  /** Starts a daemon. `settings` are environment variables. Fails if it is not ready after two minutes. */
  static async start(settings: Record<string, string> = {}): Promise<Daemon> {
    const own = {
      // The system chooses free ports, and the daemon logs them.
      THRESHER__HTTP__LISTEN: "127.0.0.1:0",
      THRESHER__ADMIN__LISTEN: "127.0.0.1:0",
      THRESHER__BLOCKS__DIR: "",
      THRESHER__REGISTRY__DIR: "",
      THRESHER__ORIGINALS__DIR: "",
    };
    const child = spawn(BINARY, ["serve"], { cwd: ROOT, env: { ...process.env, ...own, ...settings }, stdio: ["ignore", "ignore", "pipe"] });
    const log: string[] = [];
    const listening = new Promise<{ http: string; admin: string }>((resolve, reject) => {
      createInterface(child.stderr!).on("line", (line) => {
        log.push(line);
        if (line.includes('"listening"')) resolve(JSON.parse(line));
      });
      child.on("error", reject);
      child.on("exit", (status) => reject(new Error(`the daemon ended with ${status}:\n${log.join("\n")}`)));
    });
    const { http, admin } = await listening;
    const until = Date.now() + START_MS;
    while (!(await isReady(admin))) {
      if (Date.now() > until || child.exitCode !== null) {
        child.kill("SIGKILL");
        throw new Error(`the daemon is not ready:\n${log.join("\n")}`);
      }
      await sleep(20);
    }
    return new Daemon(`http://${http}`, child);
  }

  /** Ends the process and waits until it has exited. */
  async stop(): Promise<void> {
    const exited = new Promise((resolve) => this.process.on("exit", resolve));
    this.process.kill("SIGTERM");
    await exited;
  }
}

async function isReady(admin: string): Promise<boolean> {
  try {
    return (await fetch(`http://${admin}/readyz`)).status === 200;
  } catch {
    return false;
  }
}
