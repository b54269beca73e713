// A conversation of the AI SDK, as conversation.py has those of others. Arguments: which one, URL, model, and the questions.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { isStepCount, jsonSchema, streamText, tool } from "ai";

const [framework, url, name, ...questions] = process.argv.slice(2);
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

const messages = [];
for (const question of questions) {
  messages.push({ role: "user", content: question });
  const { responseMessages } = streamText({
    model,
    instructions: "Be brief.",
    messages,
    tools: { read_notes },
    stopWhen: isStepCount(2),
    maxRetries: 0,
  });
  messages.push(...(await responseMessages));
}
