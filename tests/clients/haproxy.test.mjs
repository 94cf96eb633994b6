// deploy/haproxy.cfg in front of two servers: a conversation stays where its prompt is cached, conversations spread, and
// a server that goes away takes nobody's answers with it. Skips where there is no HAProxy.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { createServer } from "node:net";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { startServer } from "./server.mjs";

const root = resolve(import.meta.dirname, "../..");
const missing = spawnSync("haproxy", ["-v"]).error ? "no HAProxy here" : false;

const freePort = () => new Promise((done) => {
  const s = createServer().listen(0, "127.0.0.1", () => {
    const { port } = s.address();
    s.close(() => done(port));
  });
});
const metric = async (server, name) => {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return Number(text.split("\n").find((l) => l.startsWith(`${name} `))?.split(" ")[1]);
};

describe("HAProxy in front of two servers", { skip: missing }, () => {
  let servers, proxy, url;
  before(async () => {
    servers = [await startServer(), await startServer()];
    const port = await freePort();
    url = `http://127.0.0.1:${port}`;
    proxy = spawn("haproxy", ["-db", "-f", join(root, "deploy/haproxy.cfg")], {
      stdio: ["ignore", "ignore", "pipe"],
      env: { ...process.env, TANDEM_BIND: `127.0.0.1:${port}`, TANDEM_ONE: `127.0.0.1:${servers[0].port}`, TANDEM_TWO: `127.0.0.1:${servers[1].port}` },
    });
    let log = "";
    proxy.stderr.on("data", (b) => (log += b));
    for (let i = 0; ; i++) {
      const up = await fetch(`${url}/health`).then((r) => r.ok, () => false);
      if (up) break;
      assert.ok(i < 100 && proxy.exitCode === null, log);
      await new Promise((r) => setTimeout(r, 100));
    }
  });
  after(async () => {
    proxy?.kill();
    for (const s of servers) if (s.process.exitCode === null) await s.stop();
  });

  const chat = async (messages, more = {}) => {
    const r = await fetch(`${url}/v1/chat/completions`, {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ messages, max_tokens: 12, temperature: 0, ...more }),
    });
    assert.equal(r.status, 200, await r.clone().text());
    return r;
  };

  test("a conversation stays with its cache, and conversations spread", async () => {
    for (let c = 0; c < 16; c++) {
      const messages = [{ role: "system", content: `You are guide number ${c} of ${c * 7}. ` + "Tell what you see on the way. ".repeat(50) }];
      for (let turn = 0; turn < 3; turn++) {
        messages.push({ role: "user", content: `And at stop ${turn}?` });
        const answer = await (await chat(messages)).json();
        const cached = answer.usage.prompt_tokens_details.cached_tokens;
        if (turn > 0) assert.ok(cached > 0.8 * answer.usage.prompt_tokens, `conversation ${c}, turn ${turn}: ${cached} cached`);
        messages.push({ role: "assistant", content: answer.choices[0].message.content });
      }
    }
    for (const s of servers) assert.ok((await metric(s, "tandem_requests_total")) >= 6);
  });

  test("a server that stops finishes its answers, and the other takes over", async () => {
    const streams = Array.from({ length: 8 }, (_, i) =>
      chat([{ role: "user", content: `story ${i}` }], { max_tokens: 150, stream: true, ignore_eos: true }).then((r) => r.text()));
    await new Promise((r) => setTimeout(r, 60));
    const stopped = servers[0].stop();
    for (const text of await Promise.all(streams)) assert.ok(text.includes('"finish_reason":"length"') && text.includes("[DONE]"));
    assert.equal(await stopped, 0);
    await new Promise((r) => setTimeout(r, 2500)); // the proxy notices
    for (let i = 0; i < 8; i++) await (await chat([{ role: "user", content: `question ${i}` }])).json();
    assert.ok((await metric(servers[1], "tandem_requests_total")) >= 8);
  });
});
