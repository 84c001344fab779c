// Bundles src/ into the folder that is named, `../static` by default, with the licences of everything inside.
// The same versions (package-lock.json) give the same bytes on every machine.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const target = path.resolve(process.argv[2] ?? path.join(here, "..", "static"));
await mkdir(target, { recursive: true });

const made = await build({
  absWorkingDir: here,
  entryPoints: { workbench: "src/main.js" },
  outdir: target,
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});
await build({ absWorkingDir: here, entryPoints: { workbench: "src/workbench.css" }, outdir: target, minify: true, target: "es2022", logLevel: "warning" });

const names = new Set();
for (const file of Object.keys(made.metafile.inputs)) {
  const inside = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file);
  if (inside) names.add(inside[1]);
}
const licences = [];
for (const name of [...names].sort()) {
  const folder = path.join(here, "node_modules", name);
  const { version, license } = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
  const text = await readFile(path.join(folder, "LICENSE"), "utf8");
  licences.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
}
await writeFile(path.join(target, "LICENSES.txt"), licences.join(`\n${"-".repeat(80)}\n\n`));
