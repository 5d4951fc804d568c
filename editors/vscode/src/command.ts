// Which mtfc command serves a workspace. This file knows nothing of the editor, so that tests can run it.
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";

const FOLDERS = [".venv", "venv"];

/** Return the mtfc command of an environment's folder, or undefined if it has none. */
function inside(environment: string): string | undefined {
  const found = process.platform === "win32" ? join(environment, "Scripts", "mtfc.exe") : join(environment, "bin", "mtfc");
  return existsSync(found) ? found : undefined;
}

/**
 * Return the command that the settings name, else that of a virtual environment in the workspace, of the active environment,
 * or of the PATH; undefined if there is none.
 */
export function mtfcCommand(
  configured: string,
  workspaces: readonly string[],
  variables: Readonly<Record<string, string | undefined>>,
): string | undefined {
  if (configured.trim()) {
    return configured.trim();
  }
  const environments = workspaces.flatMap((folder) => FOLDERS.map((name) => join(folder, name)));
  const active = [variables["VIRTUAL_ENV"], variables["CONDA_PREFIX"]].filter((each): each is string => !!each);
  for (const environment of [...environments, ...active]) {
    const found = inside(environment);
    if (found) {
      return found;
    }
  }
  const name = process.platform === "win32" ? "mtfc.exe" : "mtfc";
  return (variables["PATH"] ?? "")
    .split(delimiter)
    .filter((folder) => folder !== "")
    .map((folder) => join(folder, name))
    .find((path) => existsSync(path));
}
