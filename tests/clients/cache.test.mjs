// The prompt cache as clients meet it: a second turn reads only what is new, long and short requests in turns keep memory
// flat, and every answer is the one that a server without a cache gives.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { startServer } from "./server.mjs";

// A sanitizer looks for bad accesses, which a third of a long prompt has as many kinds of, and is ten times slower.
const sanitized = ["1", "ON"].includes(process.env.TANDEM_SANITIZED);
const longWords = (n) => (sanitized ? Math.floor(n / 3) : n);

const words = "a small boat lay under the old bridge and waited for rain while two birds counted stones along the bank".split(" ");
const prose = (n, from = 0) => Array.from({ length: n }, (_, i) => words[(i * 7 + ((i * i + from) >> 3)) % words.length]).join(" ");

async function chat(server, messages, more = {}) {
  const r = await fetch(`${server.url}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages, max_tokens: 24, temperature: 0.7, seed: 5, ...more }),
  });
  const body = await r.json();
  assert.equal(r.status, 200, JSON.stringify(body));
  return { text: body.choices[0].message.content, usage: body.usage, timings: body.timings, mtp: body.mtp,
    cached: body.usage.prompt_tokens_details.cached_tokens };
}

const resident = async (server) => {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return Number(text.match(/^tandem_resident_memory_bytes (\S+)$/m)[1]);
};

describe("the prompt cache", () => {
  let cached, cold, dir;
  before(async () => {
    dir = mkdtempSync(join(tmpdir(), "tandem-slots-"));
    cached = await startServer({ args: ["--parallel", "2", "--cache-mb", "128", "--slot-save-path", dir] });
    cold = await startServer({ args: ["--parallel", "1", "--cache-mb", "0"] });
  });
  after(async () => {
    assert.equal(await cached.stop(), 0);
    assert.equal(await cold.stop(), 0);
    rmSync(dir, { recursive: true });
  });

  test("the second turn of a 6,000-token chat reads only what is new", async () => {
    for (const more of [{}, { mtp: false }]) {
      const messages = [{ role: "user", content: prose(longWords(5800), more.mtp === false ? 3 : 0) }];
      const first = await chat(cached, messages, more);
      assert.ok(first.usage.prompt_tokens > longWords(5700), `${first.usage.prompt_tokens} tokens`);
      messages.push({ role: "assistant", content: first.text }, { role: "user", content: "And then?" });
      const second = await chat(cached, messages, more);
      const before = first.usage.prompt_tokens;
      assert.ok(second.cached >= before - 1, `${second.cached} of ${before} were cached`);
      assert.equal(second.timings.prompt_n, second.usage.prompt_tokens - second.cached);
      assert.equal(second.mtp.active, more.mtp !== false);
      assert.equal(second.text, (await chat(cold, messages, more)).text);
    }
  });

  test("long and short requests in turns: the text of a cold run, and flat memory", async () => {
    const long = [{ role: "user", content: prose(longWords(5500), 9) }];
    const short = [{ role: "user", content: "Who lives by the river, and what do they do all day long?" }];
    const texts = [(await chat(cold, long)).text, (await chat(cold, short)).text];
    let early = 0;
    for (let i = 0; i < 8; i++) {
      for (const [k, messages] of [long, short].entries()) {
        const r = await chat(cached, messages);
        assert.equal(r.text, texts[k]);
        if (i > 0) assert.equal(r.timings.prompt_n, 1);
      }
      if (i === 2) early = await resident(cached);
    }
    assert.ok((await resident(cached)) < early + (8 << 20));
  });

  test("a branch in the middle of a long prompt is taken up there", async () => {
    const trunk = prose(longWords(3000), 21);
    for (const tail of ["one way", "another way", "a third way, far longer than the others were"]) {
      const messages = [{ role: "user", content: `${trunk} ${prose(800, tail.length)} ${tail}` }];
      const r = await chat(cached, messages);
      assert.equal(r.text, (await chat(cold, messages)).text);
      if (tail !== "one way") assert.ok(r.cached >= longWords(2900), `${r.cached} were cached`);
    }
  });

  test("a saved conversation comes back after a restart", async () => {
    const messages = [{ role: "user", content: prose(1500, 33) }];
    const first = await chat(cached, messages);
    const slots = await (await fetch(`${cached.url}/slots`)).json();
    const post = (server, slot, action, body) => fetch(`${server.url}/slots/${slot}?action=${action}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    let saved = null;
    for (const s of slots) {
      const r = await post(cached, s.id, "save", { filename: `slot${s.id}` });
      if (r.ok && (await r.json()).n_saved >= first.usage.prompt_tokens) saved = `slot${s.id}`;
    }
    assert.ok(saved);
    for (const filename of ["../x", "/etc/x", "a/b", ".hidden", ""])
      assert.equal((await post(cached, 0, "save", { filename })).status, 400, filename);
    const restarted = await startServer({ args: ["--slot-save-path", dir] });
    assert.equal((await post(restarted, 0, "restore", { filename: "nothing" })).status, 404);
    assert.equal((await post(restarted, 0, "restore", { filename: saved })).status, 200);
    const again = await chat(restarted, messages);
    assert.equal(again.text, first.text);
    assert.equal(again.timings.prompt_n, 1);
    assert.equal(await restarted.stop(), 0);
  });
});
