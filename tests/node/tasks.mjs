// A client of the TypeScript SDK that calls a tool as a task, or reads the result of one. Arguments: URL; the tool, or the handle of its task.
// Prints what it saw as one JSON object.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema } from "@modelcontextprotocol/sdk/types.js";

const [url, name] = process.argv.slice(2);
const client = new Client({ name: "cwm-tests", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
await client.listTools();
const { tasks } = client.experimental;
const seen = [];
if (name.startsWith("task_")) {
  seen.push({ type: "result", result: await tasks.getTaskResult(name, CallToolResultSchema) });
} else {
  for await (const message of tasks.callToolStream({ name, arguments: {} }, CallToolResultSchema, { task: { ttl: 60000 } })) {
    seen.push(message);
  }
}
await client.close();
console.log(JSON.stringify({ tasks: client.getServerCapabilities().tasks, seen }));
