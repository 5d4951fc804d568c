// The server, spoken to by the library that the extension uses, and the choice of the command. `MTFC` names the command.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import protocol from "vscode-languageserver-protocol/node.js";
import { mtfcCommand } from "../dist/command.mjs";

const WRONG = "dim batch = 8\nmodel net(x: [batch]) {\n  y = relu(xs)\n  return y\n}\n";

test("the server answers the extension's library", async () => {
  const server = spawn(process.env.MTFC ?? "mtfc", ["lsp"]);
  const reader = new protocol.StreamMessageReader(server.stdout);
  const connection = protocol.createProtocolConnection(reader, new protocol.StreamMessageWriter(server.stdin));
  const uri = "file:///net.mtf";
  const shown = [];
  let arrived = () => {};
  connection.onNotification(protocol.PublishDiagnosticsNotification.type, (each) => {
    shown.push(each);
    arrived();
  });
  connection.listen();
  const started = await connection.sendRequest(protocol.InitializeRequest.type, {
    processId: process.pid,
    rootUri: null,
    capabilities: {},
  });
  assert.ok(started.capabilities.hoverProvider);
  const offered = started.capabilities.executeCommandProvider.commands;
  for (const name of ["mtfc.layouts", "mtfc.setLayout", "mtfc.costReport", "mtfc.searchLayout"]) {
    assert.ok(offered.includes(name), name);
  }
  await connection.sendNotification(protocol.InitializedNotification.type, {});
  const first = new Promise((resolve) => (arrived = resolve));
  await connection.sendNotification(protocol.DidOpenTextDocumentNotification.type, {
    textDocument: { uri, languageId: "mtf", version: 1, text: WRONG },
  });
  await first;
  assert.deepEqual(shown.at(-1).diagnostics.map((each) => each.code), ["E101"]);
  const second = new Promise((resolve) => (arrived = resolve));
  await connection.sendNotification(protocol.DidChangeTextDocumentNotification.type, {
    textDocument: { uri, version: 2 },
    contentChanges: [{ range: { start: { line: 2, character: 11 }, end: { line: 2, character: 13 } }, text: "x" }],
  });
  await second;
  assert.deepEqual(shown.at(-1).diagnostics, []);
  await connection.sendRequest(protocol.ShutdownRequest.type);
  await connection.sendNotification(protocol.ExitNotification.type);
  assert.equal(await new Promise((resolve) => server.once("exit", resolve)), 0);
});

function executable(folder) {
  const found = join(folder, "bin", "mtfc");
  mkdirSync(join(folder, "bin"), { recursive: true });
  writeFileSync(found, "");
  chmodSync(found, 0o755);
  return found;
}

test("the command is the nearest one", { skip: process.platform === "win32" }, () => {
  const folder = mkdtempSync(join(tmpdir(), "mtfc-"));
  assert.equal(mtfcCommand("", [folder], {}), undefined);
  const onPath = executable(join(folder, "system"));
  const variables = { PATH: join(folder, "none") + ":" + join(folder, "system", "bin") };
  assert.equal(mtfcCommand("", [folder], variables), onPath);
  const active = executable(join(folder, "active"));
  assert.equal(mtfcCommand("", [folder], { ...variables, VIRTUAL_ENV: join(folder, "active") }), active);
  const own = executable(join(folder, ".venv"));
  assert.equal(mtfcCommand("", [folder], { ...variables, VIRTUAL_ENV: join(folder, "active") }), own);
  assert.equal(mtfcCommand(" /opt/mtfc ", [folder], variables), "/opt/mtfc");
});
