// Serves dist/ with the policy that the daemon sends, and passes every other path to a daemon.
//
//   THRESHER_URL   the daemon's listener (default: http://127.0.0.1:8080)
//   PORT           the port of this server on 127.0.0.1 (default: 5173)
//   WATCH=1        builds again when a source changes
import { readFile } from "node:fs/promises";
import { watch } from "node:fs";
import { createServer, request } from "node:http";
import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";

/** The content security policy of the page. README.md and the daemon name the same one. */
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FILES = {
  "/": ["index.html", "text/html; charset=utf-8"],
  "/app.js": ["app.js", "text/javascript; charset=utf-8"],
  "/app.css": ["app.css", "text/css; charset=utf-8"],
  "/favicon.svg": ["favicon.svg", "image/svg+xml"],
};

/** Starts a server in front of the daemon at `target` and returns it once it listens. Port 0 takes any free port. */
export function serve(target, port = 0) {
  const daemon = new URL(target);
  const server = createServer(async (incoming, outgoing) => {
    const [path] = incoming.url.split("?");
    const file = incoming.method === "GET" ? FILES[path] : undefined;
    if (file) {
      const body = await readFile(new URL(`dist/${file[0]}`, import.meta.url));
      outgoing.writeHead(200, {
        "content-type": file[1],
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
      });
      outgoing.end(body);
      return;
    }
    // The daemon checks the host and the origin of a request, and both name this server here.
    const headers = { ...incoming.headers, host: daemon.host };
    if (headers.origin) headers.origin = daemon.origin;
    const upstream = request(
      { host: daemon.hostname, port: daemon.port, method: incoming.method, path: incoming.url, headers },
      (answer) => {
        outgoing.writeHead(answer.statusCode, answer.headers);
        answer.pipe(outgoing);
      },
    );
    upstream.on("error", () => outgoing.destroy());
    outgoing.on("close", () => upstream.destroy());
    incoming.pipe(upstream);
  });
  return new Promise((resolve) => server.listen(port, "127.0.0.1", () => resolve(server)));
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const target = process.env.THRESHER_URL ?? "http://127.0.0.1:8080";
  const server = await serve(target, Number(process.env.PORT ?? 5173));
  console.log(`http://127.0.0.1:${server.address().port} serves dist/ in front of ${target}`);
  if (process.env.WATCH) {
    let timer;
    watch(new URL("src", import.meta.url), { recursive: true }, () => {
      clearTimeout(timer);
      timer = setTimeout(() => spawn(process.execPath, ["build.mjs"], { cwd: import.meta.dirname, stdio: "inherit" }), 100);
    });
  }
}
