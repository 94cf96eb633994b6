// The Vercel AI SDK against the server: text, streams, objects, tools.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, jsonSchema, streamText, tool } from "ai";
import { person, startServer, weather } from "./server.mjs";

describe("AI SDK", () => {
  let server, model;
  before(async () => {
    server = await startServer({ template: "gemma4.jinja" });
    const provider = createOpenAICompatible({ name: "tandem", baseURL: `${server.url}/v1`, supportsStructuredOutputs: true, includeUsage: true });
    model = provider("gemma4");
  });
  after(async () => assert.equal(await server.stop(), 0));

  test("text and streams agree", async () => {
    const ask = { model, prompt: "Tell me a story.", maxOutputTokens: 40, temperature: 0.5, seed: 4, maxRetries: 0 };
    const whole = await generateText(ask);
    assert.ok(whole.text.length > 10);
    assert.equal(whole.usage.outputTokens, 40);
    const stream = streamText(ask);
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.equal(text, whole.text);
    assert.equal(await stream.finishReason, "length");
    assert.equal((await stream.usage).outputTokens, 40);
  });

  test("an object of a schema", async () => {
    const { output } = await generateText({
      model, prompt: "Describe a child.", maxOutputTokens: 300, temperature: 0.8, seed: 1, maxRetries: 0,
      output: Output.object({ schema: jsonSchema(person) }),
    });
    assert.equal(typeof output.name, "string");
    assert.ok(Number.isInteger(output.age));
    assert.ok(output.hobbies.length >= 1);
  });

  test("tools, whole and streamed", async () => {
    const tools = { get_weather: tool({ description: weather.description, inputSchema: jsonSchema(weather.parameters), execute: async ({ city }) => `sunny in ${city}` }) };
    const ask = { model, prompt: "How will the weather be?", tools, toolChoice: "required", maxOutputTokens: 300, temperature: 0.6, seed: 2, maxRetries: 0 };
    const { toolCalls, toolResults, finishReason } = await generateText(ask);
    assert.equal(finishReason, "tool-calls");
    assert.equal(toolCalls[0].toolName, "get_weather");
    assert.equal(toolResults[0].output, `sunny in ${toolCalls[0].input.city}`);
    const stream = streamText(ask);
    const calls = [];
    for await (const part of stream.fullStream) if (part.type === "tool-call") calls.push(part);
    assert.deepEqual(calls[0].input, toolCalls[0].input);
  });

  test("errors carry the server's words", async () => {
    await assert.rejects(generateText({ model, prompt: "x", temperature: 1000, maxRetries: 0 }), /temperature/);
  });
});
