// LangChain JS against the server: messages, streams, tools, structured output.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { AIMessage, HumanMessage, SystemMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { person, startServer, weather } from "./server.mjs";

describe("LangChain", () => {
  let server, options;
  before(async () => {
    server = await startServer({ template: "gemma4.jinja" });
    options = { model: "gemma4", apiKey: "none", temperature: 0.5, maxTokens: 300, maxRetries: 0, modelKwargs: { seed: 9 },
      configuration: { baseURL: `${server.url}/v1` } };
  });
  after(async () => assert.equal(await server.stop(), 0));

  test("a conversation, whole and streamed", async () => {
    const model = new ChatOpenAI({ ...options, maxTokens: 40 });
    const messages = [new SystemMessage("Be brief."), new HumanMessage("Hello."), new AIMessage("Hello."), new HumanMessage("Tell me a story.")];
    const whole = await model.invoke(messages);
    assert.ok(whole.content.length > 10);
    assert.equal(whole.usage_metadata.output_tokens, 40);
    let text = "";
    for await (const chunk of await model.stream(messages)) text += chunk.content;
    assert.equal(text, whole.content);
  });

  test("tools", async () => {
    const model = new ChatOpenAI(options).bindTools([{ type: "function", function: weather }], { tool_choice: "get_weather" });
    const { tool_calls: calls } = await model.invoke("How will the weather be?");
    assert.equal(calls[0].name, "get_weather");
    assert.equal(typeof calls[0].args.city, "string");
    let gathered;
    for await (const chunk of await model.stream("How will the weather be?")) gathered = gathered ? gathered.concat(chunk) : chunk;
    assert.deepEqual(gathered.tool_calls[0].args, calls[0].args);
  });

  test("structured output by json_schema and by function calls", async () => {
    for (const method of ["jsonSchema", "functionCalling"]) {
      const model = new ChatOpenAI(options).withStructuredOutput({ title: "person", ...person }, { method, strict: true });
      const o = await model.invoke("Describe a child.");
      assert.equal(typeof o.name, "string", method);
      assert.ok(Number.isInteger(o.age));
    }
  });
});
