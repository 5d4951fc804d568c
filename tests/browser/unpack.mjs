// Unpacks the browser of @sparticuz/chromium beside its archives: node unpack.mjs FOLDER
import { chmodSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { brotliDecompressSync } from "node:zlib";

const folder = process.argv[2];
for (const name of readdirSync(folder).filter((each) => each.endsWith(".br"))) {
  const target = `${folder}/${name.slice(0, -3)}`;
  writeFileSync(target, brotliDecompressSync(readFileSync(`${folder}/${name}`)));
  if (target.endsWith(".tar")) execFileSync("tar", ["xf", target, "-C", folder]);
}
chmodSync(`${folder}/chromium`, 0o755);
