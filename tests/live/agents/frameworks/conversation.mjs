// A conversation of the AI SDK, as conversation.py has those of others. Arguments: which one, URL, model, folder, after, and the questions.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";

const [framework, url, name, folder, after, ...questions] = process.argv.slice(2);
const model = {
  "ai-sdk-chat": createOpenAICompatible,
  "ai-sdk-responses": createOpenAI,
  "ai-sdk-messages": createAnthropic,
}[framework]({ name: "cwm", baseURL: `${url}/v1`, apiKey: "none" })(name);

const read_notes = tool({
  description: "Reads the notes.",
  inputSchema: jsonSchema({ type: "object", properties: { path: { type: "string" } }, required: ["path"] }),
  execute: ({ path }) => `${path} says: The code of the door is 4711.`,
});

const ask_reader = tool({
  description: "Asks somebody who reads.",
  inputSchema: jsonSchema({ type: "object", properties: { input: { type: "string" } }, required: ["input"] }),
  execute: async ({ input }) => (await generateText({ model, instructions: "You are a reader.", prompt: input })).text,
});

const file = `${folder}/messages.json`;
const messages = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : [];
if (after !== "all") {
  const asked = messages.flatMap(({ role }, index) => (role === "user" ? [index] : []));
  messages.length = asked[Number(after)];
}
for (const question of questions) {
  messages.push({ role: "user", content: question });
  const { responseMessages } = streamText({
    model,
    instructions: "Be brief.",
    messages,
    tools: { read_notes, ask_reader },
    stopWhen: isStepCount(2),
    maxRetries: 0,
  });
  messages.push(...(await responseMessages));
}
if (after === "all") writeFileSync(file, JSON.stringify(messages));
