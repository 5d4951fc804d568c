// The extension starts `mtfc lsp`, and gives its figures commands. All knowledge of the language is in the server.
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as vscode from "vscode";
import { LanguageClient, type LanguageClientOptions, type ServerOptions } from "vscode-languageclient/node";
import { mtfcCommand } from "./command";

interface ModelLayouts {
  model: string;
  layouts: string[];
  chosen: string | null;
}

interface SearchAnswer {
  layout?: string;
  objective_seconds?: number;
  error?: string;
}

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const commands: Record<string, (...given: string[]) => Promise<void>> = {
    "mtfc.chooseLayout": chooseLayout,
    "mtfc.showCosts": showCosts,
    "mtfc.showReport": showReport,
    "mtfc.runVerify": runVerify,
    "mtfc.search": search,
    "mtfc.restart": restart,
  };
  for (const [name, run] of Object.entries(commands)) {
    context.subscriptions.push(vscode.commands.registerCommand(name, run));
  }
  context.subscriptions.push(vscode.workspace.registerTextDocumentContentProvider(COSTS, costs));
  await start();
}

export async function deactivate(): Promise<void> {
  await client?.stop();
}

/** Return the command of this workspace, or say how to get it. */
function command(): string | undefined {
  const configured = vscode.workspace.getConfiguration("mtfc").get<string>("command", "");
  const folders = (vscode.workspace.workspaceFolders ?? []).map((each) => each.uri.fsPath);
  const found = mtfcCommand(configured, folders, process.env);
  if (!found) {
    void vscode.window.showErrorMessage(
      "mtfc is not installed here: pip install 'mtfc[lsp]', or name the command in the setting mtfc.command",
    );
  }
  return found;
}

async function start(): Promise<void> {
  const found = command();
  if (!found) {
    return;
  }
  const server: ServerOptions = { command: found, args: ["lsp"] };
  const options: LanguageClientOptions = {
    documentSelector: [{ language: "mtf" }],
    synchronize: { configurationSection: "mtfc", fileEvents: vscode.workspace.createFileSystemWatcher("**/*.mtf") },
    initializationOptions: { target: vscode.workspace.getConfiguration("mtfc").get<string>("target", "") },
  };
  client = new LanguageClient("mtfc", "mtfc", server, options);
  try {
    await client.start();
  } catch (error) {
    void vscode.window.showErrorMessage(`${found} lsp does not start: ${String(error)}. Try pip install 'mtfc[lsp]'`);
  }
}

async function restart(): Promise<void> {
  await client?.stop().catch(() => undefined);
  client = undefined;
  await start();
}

/** Return the address of a file: the given one, or that of the active editor. */
function address(given: string | undefined): string | undefined {
  return given ?? vscode.window.activeTextEditor?.document.uri.toString();
}

async function layoutsOf(uri: string): Promise<ModelLayouts[]> {
  return (await vscode.commands.executeCommand<ModelLayouts[] | undefined>("mtfc.layouts", uri)) ?? [];
}

async function chooseLayout(given?: string): Promise<void> {
  const uri = address(given);
  if (!uri) {
    return;
  }
  const choices = (await layoutsOf(uri)).flatMap((each) =>
    each.layouts.map((layout) => ({
      label: layout,
      description: each.layouts.length ? `${each.model}${layout === each.chosen ? ", shown now" : ""}` : "",
      model: each.model,
    })),
  );
  const picked = await vscode.window.showQuickPick(choices, { placeHolder: "The layout that hovers and hints show" });
  if (picked) {
    await vscode.commands.executeCommand("mtfc.setLayout", uri, picked.label, picked.model);
  }
}

async function showCosts(given?: string): Promise<void> {
  const uri = address(given);
  if (!uri) {
    return;
  }
  const name = vscode.workspace.asRelativePath(vscode.Uri.parse(uri));
  const place = vscode.Uri.from({ scheme: COSTS, path: `/costs of ${name}.txt`, query: uri });
  costsChanged.fire(place);
  const document = await vscode.workspace.openTextDocument(place);
  await vscode.window.showTextDocument(document, vscode.ViewColumn.Beside);
}

/** Costs are documents of a scheme of their own, which no one edits or saves; `query` is the address of the file. */
const COSTS = "mtfc-costs";
const costsChanged = new vscode.EventEmitter<vscode.Uri>();
const costs: vscode.TextDocumentContentProvider = {
  onDidChange: costsChanged.event,
  provideTextDocumentContent: (place) => vscode.commands.executeCommand<string>("mtfc.costReport", place.query),
};

async function search(given?: string, model?: string, mesh?: string): Promise<void> {
  const uri = address(given);
  const wanted = model ?? (uri ? (await layoutsOf(uri))[0]?.model : undefined);
  if (!uri || !wanted) {
    return;
  }
  const answer = await vscode.window.withProgress(
    { location: vscode.ProgressLocation.Notification, title: `mtfc searches for the best layout of ${wanted}` },
    async () => vscode.commands.executeCommand<SearchAnswer>("mtfc.searchLayout", uri, wanted, mesh),
  );
  if (answer.error) {
    void vscode.window.showErrorMessage(answer.error);
  } else {
    void vscode.window.showInformationMessage(`The best known layout of ${wanted}: ${answer.layout}`);
  }
}

/** Return the saved file of the active editor. */
async function savedFile(): Promise<string | undefined> {
  const document = vscode.window.activeTextEditor?.document;
  if (!document || document.languageId !== "mtf" || (document.isDirty && !(await document.save()))) {
    return undefined;
  }
  return document.uri.scheme === "file" ? document.uri.fsPath : undefined;
}

/** Run a command as a task, whose output the terminal shows. The arguments are not read by a shell. */
async function run(name: string, ...given: string[]): Promise<vscode.TaskExecution | undefined> {
  const found = command();
  if (!found) {
    return undefined;
  }
  const definition = { type: "mtfc", command: name };
  const process = new vscode.ProcessExecution(found, given);
  return vscode.tasks.executeTask(new vscode.Task(definition, vscode.TaskScope.Workspace, name, "mtfc", process));
}

async function runVerify(): Promise<void> {
  const file = await savedFile();
  if (file) {
    await run("verify", "verify", file);
  }
}

async function showReport(): Promise<void> {
  const file = await savedFile();
  if (!file) {
    return;
  }
  const page = join(tmpdir(), `mtfc-report-${process.pid}.html`);
  const execution = await run("report", "report", file, "-o", page);
  const ended = vscode.tasks.onDidEndTaskProcess((event) => {
    if (event.execution === execution) {
      ended.dispose();
      if (event.exitCode === 0) {
        void vscode.env.openExternal(vscode.Uri.file(page));
      }
    }
  });
}
