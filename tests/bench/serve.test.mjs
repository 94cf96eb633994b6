// tandem bench serve against a server that is made up: what it makes of times, counts, gauges, failures and Ctrl-C.
import test from "node:test";
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const binary = process.env.TANDEM ?? resolve(import.meta.dirname, "../../build/tandem");

const event = (o) => `data: ${JSON.stringify(o)}\n\n`;
const piece = (text) => event({ choices: [{ delta: { content: text } }] });

// The end of an answer of n tokens; counts of drafts only when the request wanted any.
function ending(body, n, cached = 0) {
  const drafts = body.mtp === false ? {} : { draft_n: 8, draft_n_accepted: 6 };
  return event({
    choices: [], usage: { prompt_tokens: 50, completion_tokens: n, prompt_tokens_details: { cached_tokens: cached } },
    timings: { predicted_n: n, ...drafts },
  }) + "data: [DONE]\n\n";
}

// A server whose answers `answer(body, reply, count)` writes; keeps every body and every path.
async function fake(answer, { metrics = null } = {}) {
  const bodies = [], paths = [];
  const server = createServer((request, reply) => {
    let text = "";
    paths.push(request.url);
    request.on("data", (b) => (text += b));
    request.on("end", () => {
      if (request.url.endsWith("/v1/models")) return reply.end(JSON.stringify({ data: [{ id: "made-up" }] }));
      if (request.url.endsWith("/metrics") && metrics) return reply.end(metrics());
      if (!request.url.endsWith("/v1/chat/completions")) return reply.writeHead(404).end();
      bodies.push(JSON.parse(text));
      answer(bodies.at(-1), reply, bodies.length);
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const url = `http://127.0.0.1:${server.address().port}`;
  return { url, bodies, paths, close: () => (server.closeAllConnections(), server.close()) };
}

const whole = (body, reply) => reply.end(piece("once") + piece(" upon") + piece(" a time") + ending(body, 9));
const refuse = (reply, message) => reply.writeHead(400).end(JSON.stringify({ error: { message } }));

function start(args) {
  const child = spawn(binary, ["bench", "serve", "-q", ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const out = { stdout: "", stderr: "" };
  child.stdout.on("data", (b) => (out.stdout += b));
  child.stderr.on("data", (b) => (out.stderr += b));
  const ended = new Promise((done) => child.on("close", (code, signal) => done({ code: code ?? signal, ...out })));
  return { child, ended };
}

async function bench(code, ...args) {
  const r = await start(["--format", "json", ...args]).ended;
  assert.equal(r.code, code, r.stderr + r.stdout);
  return { report: r.stdout ? JSON.parse(r.stdout) : null, stderr: r.stderr };
}

const short = ["--concurrency", "1,2", "--requests", "2", "--no-cache-test"];

test("tokens that come in one read wait for nothing, and 0 is a figure", async (t) => {
  const s = await fake(whole);
  t.after(s.close);
  const { report } = await bench(0, ...short, s.url);
  for (const row of report.tables.load) {
    assert.equal(row.gap_p50_ms, 0);
    assert.equal(row.gap_p99_ms, 0);
    assert.equal(row.tpot_p50_ms, 0);
    assert.equal(row.tokens_per_piece, 3);
    assert.equal(row.tokens_per_round, 4); // 8 tokens after the first, 6 of them accepted drafts
    assert.equal(row.accepted, 0.75);
    assert.equal(row.prompt_tokens, 50);
    assert.equal(row.cached_tokens, 0);
  }
});

test("a wait counts once, the tokens behind it not at all; the time a token is over all of them", async (t) => {
  const s = await fake((body, reply) => {
    reply.write(piece("once"));
    setTimeout(() => reply.end(piece(" upon a time") + ending(body, 11)), 400);
  });
  t.after(s.close);
  const { report } = await bench(0, "--concurrency", "1", "--requests", "1", "--no-cache-test", s.url);
  const [row] = report.tables.load;
  assert.equal(row.gap_p50_ms, 0);
  assert.ok(row.gap_p99_ms > 20, `the wait is ${row.gap_p99_ms} ms`);
  assert.ok(Math.abs(row.tpot_p50_ms - row.gap_p99_ms / 10) < 1e-6);
});

test("what is asked can be asked again: facts, another seed each time, the same one when given", async (t) => {
  const s = await fake(whole);
  t.after(s.close);
  const begin = (b) => b.messages[0].content.slice(0, 12);
  const a = await bench(0, ...short, "--temp", "0.5", "-n", "7", s.url), first = s.bodies.splice(0);
  const b = await bench(0, ...short, s.url), second = s.bodies.splice(0);
  const all = [...first, ...second].map(begin);
  assert.equal(new Set(all).size, all.length, `two prompts begin alike: ${all}`);
  assert.notEqual(a.report.seed, b.report.seed);
  const { url, served_model, seed, prompt, max_tokens, temperature, ignore_eos, timeout_s, bytes_per_token } = a.report;
  assert.deepEqual({ url, served_model, prompt, max_tokens, temperature, ignore_eos, timeout_s },
    { url: s.url, served_model: "made-up", prompt: 200, max_tokens: 7, temperature: 0.5, ignore_eos: true, timeout_s: 600 });
  assert.equal(bytes_per_token, Buffer.byteLength(first[0].messages[0].content) / 50);
  assert.ok(first.every((o) => o.seed === seed && o.ignore_eos === true));
  await bench(0, ...short, "--temp", "0.5", "-n", "7", "--seed", String(seed), s.url);
  assert.deepEqual(s.bodies, first);
});

test("the path in front of /v1 stays", async (t) => {
  const s = await fake(whole);
  t.after(s.close);
  for (const end of ["/llm/v1", "/llm/v1/", "/llm//", "/llm"]) {
    s.paths.length = 0;
    const { report } = await bench(0, ...short, s.url + end);
    assert.equal(report.url, s.url + "/llm");
    assert.deepEqual([...new Set(s.paths)], ["/llm/v1/models", "/llm/v1/chat/completions"]);
  }
});

test("drafted beside plain: the field, both rows, the ratio", async (t) => {
  const s = await fake(whole);
  t.after(s.close);
  const { report } = await bench(0, "--concurrency", "1,2", "--requests", "5", "--no-cache-test", "--compare-mtp", s.url);
  assert.deepEqual(report.tables.load.map((r) => [r.way, r.concurrency, r.requests, r.tokens_per_round]),
    [["drafted", 1, 5, 4], ["plain", 1, 5, 1], ["drafted", 2, 5, 4], ["plain", 2, 5, 1]]);
  const order = s.bodies.slice(1, 11).map((b) => (b.mtp === false ? "p" : "d")).join("");
  assert.equal(order, "ddpp" + "pppddd"); // two turns of both, the second one the other way round
  assert.equal(s.bodies.filter((b) => b.mtp === false).length, 10);
  for (const r of report.tables.compare) {
    assert.ok(Math.abs(r.ratio - r.drafted_tokens_per_s / r.plain_tokens_per_s) < 1e-6);
    assert.ok(r.ratio_min <= r.ratio_max);
  }
});

test("a turn that is refused costs its own row alone; the exit code says that something failed", async (t) => {
  const s = await fake((body, reply, count) =>
    body.messages.length > 1 ? refuse(reply, "the context is too small") : whole(body, reply, count));
  t.after(s.close);
  const { report, stderr } = await bench(1, "--concurrency", "1", "--requests", "1", s.url);
  assert.equal(report.tables.load.length, 1);
  assert.deepEqual(report.tables.cache.map((r) => r.turn), ["first", "another first"]);
  assert.ok(report.notes.some((n) => n.includes("second turn") && n.includes("too small")));
  assert.match(stderr, /^tandem: 1 of 5 requests failed, .*the context is too small\n$/);
});

test("failed requests are counted, and end with 1", async (t) => {
  const s = await fake((body, reply, count) => (count === 3 ? refuse(reply, "no") : whole(body, reply)));
  t.after(s.close);
  const { report } = await bench(1, "--concurrency", "2", "--requests", "4", "--no-cache-test", s.url);
  assert.deepEqual([report.tables.load[0].requests, report.tables.load[0].failed], [4, 1]);
});

test("more in flight than requests is refused", async () => {
  const { stderr } = await bench(2, "--concurrency", "1,8", "--requests", "4", "http://127.0.0.1:1");
  assert.match(stderr, /^tandem bench serve: --requests is 4; .*8 in flight.*\n$/);
});

test("memory: highest while decoding beside before, labels, shares, no timestamp for a value; a long context is a note", async (t) => {
  let finish = null; // ends the answer that is being decoded: once its memory has been read twice
  let reads = 0;
  const metrics = () => {
    const bytes = finish ? [5000, 4000][reads] : 1000;
    if (finish && ++reads === 2) finish();
    return [
      "# TYPE x_kv_bytes gauge",
      `x_kv_bytes{gpu="0",note="a } \\" b"} ${bytes} 1395066363000`,
      `x_kv_cache_usage_ratio ${bytes === 1000 ? 0.25 : 0.375}`,
      "x_kv_reads_total 12", "x_kv_hole NaN", 'x_kv_open{a="', "x_kv_nothing ", "other 1", "",
    ].join("\n");
  };
  const s = await fake((body, reply, count) => {
    if (body.messages[0].content.length > 3000) return refuse(reply, "too long");
    if (body.max_tokens !== 64) return whole(body, reply, count);
    reply.write(piece("once"));
    const more = setInterval(() => reply.write(piece(" more")), 20);
    finish = () => {
      clearInterval(more);
      finish = null;
      reply.end(ending(body, 9));
    };
  }, { metrics });
  t.after(s.close);
  const { report } = await bench(1, "--concurrency", "1", "--requests", "1", "-n", "8", "--no-cache-test", "--prompt", "16",
    "--contexts", "9000,30", s.url);
  assert.deepEqual(report.tables.memory, [
    { prompt_tokens: 50, metric: 'x_kv_bytes{gpu="0",note="a } \\" b"}', before: 1000, value: 5000, difference: 4000 },
    { prompt_tokens: 50, metric: "x_kv_cache_usage_ratio", before: 0.25, value: 0.375, difference: 0.125 },
  ]);
  assert.ok(report.notes.some((n) => n.includes("no memory at 9000 tokens: too long")));
});

test("no /metrics is a note", async (t) => {
  const s = await fake(whole);
  t.after(s.close);
  const { report } = await bench(0, ...short, "--contexts", "30", s.url);
  assert.ok(report.notes.some((n) => n.includes("no memory by context") && n.includes("404")));
});

// Answers come whole up to the one numbered `from`, and then never end; `reached` is a promise of that.
async function stalling(from) {
  let say;
  const reached = new Promise((done) => (say = done));
  const s = await fake((body, reply, count) => {
    if (count < from) return whole(body, reply);
    reply.write(piece("once"));
    say();
  });
  return { ...s, reached };
}

test("Ctrl-C: what was measured is written, connections are closed, 130", { timeout: 30000 }, async (t) => {
  const s = await stalling(4); // the warm-up and two at one in flight are whole
  t.after(s.close);
  const run = start(["--format", "json", ...short, "--timeout", "600", s.url]);
  t.after(() => run.child.kill("SIGKILL"));
  await s.reached;
  const before = Date.now();
  run.child.kill("SIGINT");
  const { code, stdout, stderr } = await run.ended;
  assert.equal(code, 130, stderr);
  assert.ok(Date.now() - before < 5000);
  assert.equal(stderr, "tandem: interrupted\n");
  const report = JSON.parse(stdout);
  assert.equal(report.tables.load[0].requests, 2);
  assert.ok(report.notes.some((n) => n.includes("broken off at 2 in flight")));
  assert.equal(report.tables.load.length, 1);
});

test("Ctrl-C within a row: latencies of what came, no throughput", { timeout: 30000 }, async (t) => {
  const s = await stalling(4);
  t.after(s.close);
  const run = start(["--format", "json", "--concurrency", "1", "--requests", "3", "--no-cache-test", s.url]);
  t.after(() => run.child.kill("SIGKILL"));
  await s.reached;
  run.child.kill("SIGTERM");
  const { code, stdout } = await run.ended;
  assert.equal(code, 130);
  const [row] = JSON.parse(stdout).tables.load;
  assert.deepEqual([row.requests, row.failed, row.tokens_per_s, row.requests_per_s], [2, 0, null, null]);
  assert.ok(row.ttft_p50_ms > 0);
});

test("Ctrl-C while a page does not come", { timeout: 30000 }, async (t) => {
  const server = createServer(() => server.emit("asked"));
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  t.after(() => (server.closeAllConnections(), server.close()));
  const run = start([`http://127.0.0.1:${server.address().port}`]);
  t.after(() => run.child.kill("SIGKILL"));
  await new Promise((done) => server.once("asked", done));
  const before = Date.now();
  run.child.kill("SIGINT");
  const { code, stderr } = await run.ended;
  assert.equal(code, 130);
  assert.equal(stderr, "tandem: interrupted\n");
  assert.ok(Date.now() - before < 5000);
});

function plotFile(t) {
  const dir = mkdtempSync(join(tmpdir(), "tandem-plot-"));
  t.after(() => rmSync(dir, { recursive: true }));
  return join(dir, "load.svg");
}

const withoutGnuplot = (r) => r.code === 1 && r.stderr.includes("gnuplot, which is not installed");

test("--plot draws the throughput, or says that gnuplot is missing", async (t) => {
  const s = await fake(whole);
  t.after(s.close);
  const file = plotFile(t);
  const r = await start([...short, "--compare-mtp", "--plot", file, s.url]).ended;
  if (withoutGnuplot(r)) return;
  assert.equal(r.code, 0, r.stderr);
  assert.match(readFileSync(file, "utf8"), /<svg[^]*drafted[^]*plain/);
});

test("--plot without a throughput draws nothing and says so", async (t) => {
  const s = await fake((body, reply) => refuse(reply, "no"));
  t.after(s.close);
  const file = plotFile(t);
  const r = await start([...short, "--format", "json", "--plot", file, s.url]).ended;
  if (withoutGnuplot(r)) return;
  assert.equal(r.code, 1, r.stderr);
  assert.ok(JSON.parse(r.stdout).notes.some((n) => n.includes(`${file} was not drawn`)));
  assert.ok(!existsSync(file));
});
