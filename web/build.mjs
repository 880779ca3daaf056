// Writes dist/: the page that the daemon embeds. The same sources and packages give the same bytes on every machine.
import { build } from "esbuild";
import { cp, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const out = new URL("dist/", import.meta.url);
const root = new URL("./", import.meta.url);

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: root.pathname,
  entryPoints: { app: "src/main.tsx" },
  outdir: "dist",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  // The licence of the only library in the bundle asks for its text in every copy.
  banner: { js: `/*! Preact\n${await readFile(new URL("node_modules/preact/LICENSE", root), "utf8")}*/` },
  charset: "utf8",
  logLevel: "warning",
});
// A build of its own, so that no rule of CSS is moved or rewritten for an old browser.
await build({
  absWorkingDir: root.pathname,
  entryPoints: { app: "src/styles/app.css" },
  outdir: "dist",
  bundle: true,
  minify: true,
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
});
for (const name of ["index.html", "favicon.svg"]) await cp(new URL(`src/${name}`, root), new URL(name, out));

let total = 0;
for (const name of (await readdir(out)).sort()) {
  const bytes = await readFile(new URL(name, out));
  const packed = gzipSync(bytes, { level: 9 }).length;
  total += packed;
  console.log(`${name.padEnd(12)} ${String(bytes.length).padStart(7)} bytes, ${String(packed).padStart(6)} with gzip`);
}
console.log(`${"total".padEnd(12)} ${"".padStart(13)} ${String(total).padStart(7)} with gzip`);
