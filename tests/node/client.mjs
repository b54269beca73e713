// An agent on either TypeScript SDK. Arguments: v1 or v2; legacy, auto or the revision to speak; URL; tenant;
// and the calls to make in JSON: [[tool, arguments], ...]. Prints what it saw as one JSON object.

const [sdk, era, url, tenant, calls] = process.argv.slice(2);

const { Client, StreamableHTTPClientTransport } =
  sdk === "v1"
    ? {
        ...(await import("@modelcontextprotocol/sdk/client/index.js")),
        ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      }
    : await import("@modelcontextprotocol/client");

const client = new Client(
  { name: "cwm-tests", version: "1" },
  era === "legacy" ? {} : { versionNegotiation: { mode: era === "auto" ? era : { pin: era } } },
);
const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { "x-tenant": tenant } },
});

const settled = async (promise) => {
  const [{ value, reason }] = await Promise.allSettled([promise]);
  return reason ? { thrown: { code: reason.code, message: reason.message, data: reason.data } } : value;
};

await client.connect(transport);
const { tools } = await client.listTools();
const { resources } = await client.listResources();
const read = await client.readResource({ uri: "cwm://windows" });
const answers = [];
const sessions = [];
for (const [name, given] of JSON.parse(calls)) {
  answers.push(await settled(client.callTool({ name, arguments: given })));
  sessions.push(transport.sessionId ?? null);
}
if (transport.sessionId) await transport.terminateSession();
await client.close();
console.log(JSON.stringify({ tools, resources, read, answers, sessions }));
