// The official openai package against the server: chat, streams, tools, json_schema, errors, completions, models.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import OpenAI from "openai";
import { person, startServer, weather } from "./server.mjs";

const story = [{ role: "user", content: "Tell me a story about a boat." }];

function checkPerson(text) {
  const o = JSON.parse(text);
  assert.deepEqual(Object.keys(o), ["name", "age", "hobbies"]);
  assert.equal(typeof o.name, "string");
  assert.ok(Number.isInteger(o.age) && o.age >= 0 && o.age <= 120);
  assert.ok(o.hobbies.length >= 1 && o.hobbies.length <= 3);
}

describe("openai on the embedded pair", () => {
  let server, client;
  before(async () => {
    server = await startServer({ args: ["--api-key", "secret"] });
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "secret", maxRetries: 0 });
  });
  after(async () => assert.equal(await server.stop(), 0));

  test("lists the model, and finds it by name", async () => {
    const { data } = await client.models.list();
    assert.equal(data.length, 1);
    assert.equal((await client.models.retrieve(data[0].id)).id, data[0].id);
  });

  test("a chat, with usage and timings", async () => {
    const r = await client.chat.completions.create({ model: "gemma4-demo-4bit", messages: story, max_tokens: 40, temperature: 0 });
    assert.equal(r.object, "chat.completion");
    assert.equal(r.choices[0].message.role, "assistant");
    assert.ok(r.choices[0].message.content.length > 20);
    assert.equal(r.choices[0].finish_reason, "length");
    assert.equal(r.usage.completion_tokens, 40);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + 40);
    assert.equal(r.mtp.active, true);
    assert.ok((r.timings.draft_n_accepted ?? 0) <= (r.timings.draft_n ?? 0));
  });

  test("the stream is the answer, byte for byte, with one id and one end", async () => {
    const ask = { model: "gemma4-demo-4bit", messages: story, max_tokens: 60, temperature: 0.8, seed: 11 };
    const whole = await client.chat.completions.create(ask);
    const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
    let text = "", finish = [], ids = new Set(), usage = null, roles = 0;
    for await (const chunk of stream) {
      ids.add(chunk.id);
      if (chunk.usage) usage = chunk.usage;
      if (!chunk.choices.length) continue;
      roles += chunk.choices[0].delta.role === "assistant";
      text += chunk.choices[0].delta.content ?? "";
      assert.notEqual(chunk.choices[0].finish_reason, undefined);
      if (chunk.choices[0].finish_reason) finish.push(chunk.choices[0].finish_reason);
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(ids.size, 1);
    assert.equal(roles, 1);
    assert.deepEqual(finish, [whole.choices[0].finish_reason]);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  });

  test("drafting on or off, at any depth: the same text", async () => {
    const ask = { model: "gemma4-demo-4bit", messages: story, max_tokens: 50, temperature: 0.7, seed: 5 };
    const plain = await client.chat.completions.create({ ...ask, mtp: false });
    assert.equal(plain.mtp.active, false);
    assert.match(plain.mtp.reason, /request/);
    assert.equal(plain.timings.draft_n, undefined);
    for (const depth of [1, 3, 8]) {
      const r = await client.chat.completions.create({ ...ask, num_mtp_tokens: depth });
      assert.equal(r.choices[0].message.content, plain.choices[0].message.content);
      assert.equal(r.mtp.active, true);
    }
  });

  test("n choices, of their own seeds", async () => {
    const ask = { model: "gemma4-demo-4bit", messages: story, max_tokens: 20, temperature: 1, seed: 2, n: 3 };
    const r = await client.chat.completions.create(ask);
    assert.deepEqual(r.choices.map((c) => c.index), [0, 1, 2]);
    assert.ok(new Set(r.choices.map((c) => c.message.content)).size > 1);
    const again = await client.chat.completions.create(ask);
    assert.deepEqual(again.choices.map((c) => c.message.content), r.choices.map((c) => c.message.content));
    const texts = ["", "", ""];
    for await (const chunk of await client.chat.completions.create({ ...ask, stream: true }))
      for (const c of chunk.choices) texts[c.index] += c.delta.content ?? "";
    assert.deepEqual(texts, r.choices.map((c) => c.message.content));
  });

  test("stop strings end the answer and never leak", async () => {
    const ask = { model: "gemma4-demo-4bit", messages: story, max_tokens: 60, temperature: 0 };
    const whole = (await client.chat.completions.create(ask)).choices[0].message.content;
    const stop = whole.slice(15, 22);
    for (const form of [stop, ["never there", stop]]) {
      let text = "", finish;
      for await (const chunk of await client.chat.completions.create({ ...ask, stop: form, stream: true })) {
        text += chunk.choices[0]?.delta.content ?? "";
        finish = chunk.choices[0]?.finish_reason ?? finish;
      }
      assert.equal(text, whole.slice(0, whole.indexOf(stop)));
      assert.equal(finish, "stop");
    }
  });

  test("log-probabilities, the same with and without drafts", async () => {
    const ask = { model: "gemma4-demo-4bit", messages: story, max_tokens: 25, temperature: 0, logprobs: true, top_logprobs: 3 };
    const a = await client.chat.completions.create({ ...ask, num_mtp_tokens: 6 });
    const b = await client.chat.completions.create({ ...ask, mtp: false });
    const content = a.choices[0].logprobs.content;
    assert.equal(content.length, 25);
    assert.deepEqual(content, b.choices[0].logprobs.content);
    for (const t of content) {
      assert.ok(t.logprob <= 0);
      assert.equal(t.top_logprobs.length, 3);
      assert.equal(t.top_logprobs[0].token, t.token); // greedy
      assert.ok(Array.isArray(t.bytes));
    }
  });

  test("json_schema and json_object", async () => {
    for (let seed = 0; seed < 5; seed++) {
      const r = await client.chat.completions.create({
        model: "gemma4-demo-4bit", messages: [{ role: "user", content: "Describe a child." }], max_tokens: 300, temperature: 0.8, seed,
        response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
      });
      assert.equal(r.choices[0].finish_reason, "stop");
      checkPerson(r.choices[0].message.content);
    }
    const r = await client.chat.completions.create({
      model: "gemma4-demo-4bit", messages: story, max_tokens: 30, temperature: 0, response_format: { type: "json_object" },
    });
    assert.equal(r.choices[0].message.content.trim()[0], "{");
  });

  test("completions: text, token ids, lists, echo, streams", async () => {
    const ask = { model: "gemma4-demo-4bit", max_tokens: 12, temperature: 0 };
    const a = await client.completions.create({ ...ask, prompt: "Once upon a time" });
    const { tokens } = await (await fetch(`${server.url}/tokenize`, {
      method: "POST", headers: { Authorization: "Bearer secret", "Content-Type": "application/json" },
      body: JSON.stringify({ content: "Once upon a time", add_special: true }),
    })).json();
    const b = await client.completions.create({ ...ask, prompt: tokens });
    assert.equal(b.choices[0].text, a.choices[0].text);
    const c = await client.completions.create({ ...ask, prompt: ["Once upon a time", "The end"], echo: true });
    assert.equal(c.choices[0].text, "Once upon a time" + a.choices[0].text);
    assert.ok(c.choices[1].text.startsWith("The end"));
    let text = "";
    for await (const chunk of await client.completions.create({ ...ask, prompt: "Once upon a time", stream: true }))
      text += chunk.choices[0]?.text ?? "";
    assert.equal(text, a.choices[0].text);
  });

  test("errors are the client's own classes", async () => {
    const ask = { model: "gemma4-demo-4bit", messages: story, max_tokens: 5 };
    const wrong = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
    await assert.rejects(client.chat.completions.create({ ...ask, model: "gpt-5" }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ ...ask, temperature: "hot" }), (e) =>
      e instanceof OpenAI.BadRequestError && e.param === "temperature");
    await assert.rejects(client.chat.completions.create({ ...ask, messages: [{ role: "user", content: "long ".repeat(20000) }] }), (e) =>
      e instanceof OpenAI.BadRequestError && e.code === "context_length_exceeded" && /\d{4,}/.test(e.message));
    await assert.rejects(client.embeddings.create({ model: "x", input: "x" }), OpenAI.APIError);
    const image = [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } }] }];
    await assert.rejects(client.chat.completions.create({ ...ask, messages: image }), OpenAI.BadRequestError);
    assert.equal((await client.chat.completions.create(ask)).mtp.active, true); // and the next one drafts
  });

  test("a client that aborts frees its place", async () => {
    const stream = await client.chat.completions.create({ model: "gemma4-demo-4bit", messages: story, max_tokens: 4000, ignore_eos: true, stream: true });
    let n = 0;
    for await (const _ of stream) if (++n === 5) break; // the client closes the connection
    for (let i = 0; ; i++) {
      const slots = await (await fetch(`${server.url}/slots`, { headers: { Authorization: "Bearer secret" } })).json();
      if (slots.every((s) => !s.is_processing)) break;
      assert.ok(i < 100, "the slot is still busy");
      await new Promise((r) => setTimeout(r, 20));
    }
  });
});

for (const [name, template] of [["Gemma 4", "gemma4.jinja"], ["Qwen 3.5", "qwen35.jinja"]]) {
  describe(`openai with tools in the form of ${name}`, () => {
    let server, client;
    before(async () => {
      server = await startServer({ template });
      client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    });
    after(async () => assert.equal(await server.stop(), 0));
    const ask = (more) => ({
      model: "", messages: [{ role: "user", content: "How will the weather be?" }], max_tokens: 300, temperature: 0.7,
      chat_template_kwargs: { enable_thinking: false },
      tools: [{ type: "function", function: weather }], tool_choice: "required", ...more,
    });

    test("a forced call, whole and streamed, and its answer", async () => {
      for (let seed = 0; seed < 4; seed++) {
        const r = await client.chat.completions.create(ask({ seed, parallel_tool_calls: false }));
        const { tool_calls: calls, content } = r.choices[0].message;
        assert.equal(r.choices[0].finish_reason, "tool_calls");
        assert.equal(content, null);
        assert.equal(calls.length, 1);
        assert.equal(calls[0].type, "function");
        assert.equal(calls[0].function.name, "get_weather");
        const args = JSON.parse(calls[0].function.arguments);
        assert.equal(typeof args.city, "string");
        assert.ok(args.days >= 1 && args.days <= 9);

        const gathered = [];
        let finish;
        for await (const chunk of await client.chat.completions.create(ask({ seed, parallel_tool_calls: false, stream: true }))) {
          finish = chunk.choices[0]?.finish_reason ?? finish;
          for (const d of chunk.choices[0]?.delta.tool_calls ?? []) {
            const call = (gathered[d.index] ??= { id: d.id, type: d.type, name: d.function.name, args: "" });
            assert.ok(call.id && call.type === "function" && call.name, "the first piece of a call names it");
            call.args += d.function.arguments ?? "";
          }
        }
        assert.equal(finish, "tool_calls");
        assert.equal(gathered.length, 1);
        assert.equal(gathered[0].args, calls[0].function.arguments);

        const next = await client.chat.completions.create(ask({
          tool_choice: "none", max_tokens: 10, messages: [
            { role: "user", content: "How will the weather be?" }, { role: "assistant", content: null, tool_calls: calls },
            { role: "tool", tool_call_id: calls[0].id, content: "sunny" }],
        }));
        assert.equal(typeof next.choices[0].message.content, "string");
      }
    });

    test("a format beside tools that may be called: calls, or a text of the format", async () => {
      for (let seed = 0; seed < 8; seed++) {
        const r = await client.chat.completions.parse(ask({
          seed, temperature: 3, max_tokens: 400, tool_choice: "auto", parallel_tool_calls: false,
          tools: [{ type: "function", function: { ...weather, strict: true } }],
          response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
        }));
        const { tool_calls: calls, content, parsed } = r.choices[0].message;
        assert.equal(r.choices[0].finish_reason, calls?.length ? "tool_calls" : "stop");
        if (calls?.length) assert.ok(calls[0].function.parsed_arguments.days <= 9 && content === null);
        else assert.ok(parsed.age <= 120 && parsed.hobbies.length >= 1);
      }
    });

    test("the runner of the client plays a whole round of tools", async () => {
      let called = 0;
      const runner = client.chat.completions.runTools({
        ...ask({ seed: 3, max_tokens: 200, parallel_tool_calls: false }), tool_choice: { type: "function", function: { name: "get_weather" } },
        tools: [{ type: "function", function: { ...weather, parse: JSON.parse, function: async (a) => (called++, `sunny in ${a.city}`) } }],
      }, { maxChatCompletions: 1 });
      await runner.done();
      assert.ok(called >= 1);
    });
  });
}
