// bench/peer/compare between engines that are made up: a script for Tandem, a package of that name for node-llama-cpp
// (so that peer.mjs runs as it is). What it refuses, asks for, adds up, and does when a process fails.
import test from "node:test";
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const compare = resolve(import.meta.dirname, "../../bench/peer/compare");
const dir = mkdtempSync(join(tmpdir(), "tandem-compare-"));
test.after(() => rmSync(dir, { recursive: true }));

const tandem = join(dir, "tandem"), log = join(dir, "log");
writeFileSync(join(dir, "model.gguf"), "");
writeFileSync(tandem, `#!${process.execPath}
const fs = require("node:fs"), args = process.argv.slice(2), what = args[0] === "run" ? "run" : args[1];
const option = (name) => args[args.indexOf(name) + 1];
fs.appendFileSync(${JSON.stringify(log)}, JSON.stringify(args) + "\\n");
const turn = fs.readFileSync(${JSON.stringify(log)}, "utf8").split("\\n").filter((l) => l.includes('"run"')).length;
if ((process.env.FAIL ?? "").split(" ").includes(what + turn)) {
  console.error("tandem: it\\nbroke");
  process.exit(1);
}
if (process.env.SILENT === what) process.exit(0);
const rows = (option("--rows") ?? "").split(",").map(Number);
console.log(JSON.stringify({
  kernels: {
    threads: Number(process.env.TANDEM_THREADS ?? option("--threads")), memory_gb_per_s: 20, weights_mb_a_row: 100,
    tables: { prompt: [{ tokens_per_s: 300 }], rows: [...rows].sort((a, b) => a - b).map((n) => ({ rows: n, min_ms: 10 + n })) },
  },
  run: { tokens_per_second: 40 + turn, ids: [1, 2, 3] },
  mtp: { tables: { mtp: [{ drafted: 80 }] } },
}[what]));
`);
chmodSync(tandem, 0o755);

// llama.cpp: decodes at once and samples the token 1.
const at = join(dir, "node_modules/node-llama-cpp");
mkdirSync(at, { recursive: true });
writeFileSync(join(at, "package.json"), JSON.stringify({ name: "node-llama-cpp", main: "index.cjs" }));
writeFileSync(join(at, "index.cjs"), `
exports.getLlama = async ({ maxThreads }) => {
  if (process.env.PEER_FAILS) throw new Error("no such architecture");
  const ctx = {
    initBatch() {}, addToBatch: (id, at, tokens, wanted) => [...wanted], decodeBatch: async () => {}, disposeSequence() {},
    sampleToken: async () => 1, removeTokenCellsFromSequence: () => true,
    getThreads: () => Number(process.env.PEER_THREADS ?? maxThreads),
  };
  class AddonSampler { applyConfig() {} dispose() {} }
  return {
    _bindings: { AddonSampler },
    loadModel: async () => ({ createContext: async () => ({ _ctx: ctx, dispose: async () => {} }), dispose: async () => {} }),
  };
};
`);

const needed = ["--tandem", tandem, "--peer", dir, "--model", join(dir, "model.gguf")];

function run(code, args, env = {}) {
  writeFileSync(log, "");
  const r = spawnSync(process.execPath, [compare, ...args], { encoding: "utf8", env: { ...process.env, ...env } });
  assert.equal(r.status, code, r.stderr + r.stdout);
  return { ...r, asked: readFileSync(log, "utf8").trim().split("\n").filter(Boolean).map((l) => JSON.parse(l)) };
}

test("a wrong command line is one line and 2, before anything runs", () => {
  for (const [args, message] of [
    [[], /--tandem is missing/],
    [["--thread", "4", ...needed], /unknown option '--thread'/],
    [["x", ...needed], /unknown option 'x'/],
    [[...needed, "--threads"], /--threads has no value/],
    [[...needed, "--threads", "2.5"], /--threads is '2.5'; expected a whole number from 1/],
    [[...needed, "--repeats", "0"], /--repeats is '0'/],
    [[...needed, "--tokens", "2", "--tokens", "3"], /--tokens is given twice/],
    [[...needed, "--rows", "1,two"], /--rows is 'two'; expected a whole number from 1 to 16/],
    [[...needed, "--rows", "1,17"], /--rows is '17'/],
    [[...needed, "--rows", "1,2,2"], /expected every number once/],
    [[...needed, "--acceptance", "0.5,0.6"], /--acceptance is '0.5,0.6'.*do not grow/],
    [[...needed, "--acceptance", "0.5,"], /--acceptance is '0.5,'/],
    [[...needed, "--acceptance", "1.5"], /--acceptance is '1.5'/],
    [[...needed, "--assistant", dir], /--assistant without --acceptance/],
    [[...needed.slice(0, 4), "--model", join(dir, "none.gguf")], /--model: there is no .*none.gguf/],
  ]) {
    const { stderr, stdout, asked } = run(2, args);
    assert.match(stderr, message);
    assert.equal(stderr.split("\n").length, 2);
    assert.equal(stdout, "");
    assert.equal(asked.length, 0);
  }
});

test("--help lists every option", () => {
  const { stdout } = run(0, ["--help"]);
  for (const name of ["tandem", "peer", "model", "assistant", "acceptance", "threads", "context", "prompt", "tokens", "rows",
    "repeats", "json"])
    assert.match(stdout, new RegExp(`--${name} `));
});

test("medians with their range, the same question to both", () => {
  const { stdout, asked } = run(0, [...needed, "--threads=3", "--rows", "4,1", "--tokens", "3", "--acceptance", "0.5",
    "--repeats", "3", "--json"]);
  const { lines, failures, notes, threads } = JSON.parse(stdout);
  const line = (what) => lines.find((l) => l.what.startsWith(what));
  assert.equal(threads, 3);
  assert.deepEqual(failures, []);
  assert.deepEqual([line("plain").tandem, line("plain").tandem_range], [42, [41, 43]]);
  assert.equal(line("1 row,").tandem, 11);
  assert.equal(line("4 rows,").tandem, 14);
  assert.ok(Math.abs(line("4 rows over 1").tandem - 14 / 11) < 1e-9);
  assert.equal(line("drafted").tandem, 80);
  assert.ok(line("drafted").llama_cpp > 0 && line("plain").llama_cpp > 0);
  assert.ok(notes.includes("greedy tokens part at 1 of 3"));
  assert.equal(asked.length, 9);
  for (const args of asked) assert.equal(args[args.indexOf("--threads") + 1], "3");
});

test("an engine on other threads than those asked for ends it", () => {
  for (const [env, who] of [[{ PEER_THREADS: "4" }, "llama.cpp"], [{ TANDEM_THREADS: "1" }, "Tandem"]]) {
    const { stderr, stdout } = run(1, [...needed, "--json"], env);
    assert.match(stderr, new RegExp(`^compare: ${who} ran on \\d threads, 2 were asked for.*\n$`));
    assert.equal(stdout, "");
  }
});

test("a process that fails costs its own figures", () => {
  const { stdout, stderr } = run(1, [...needed, "--json"], { FAIL: "run1 kernels0" });
  const { lines, failures } = JSON.parse(stdout);
  assert.equal(lines[0].tandem, 42.5); // of the second and the third turn
  assert.ok(lines.every((l) => l.tandem > 0 && l.llama_cpp > 0));
  assert.equal(failures.length, 2);
  assert.equal(stderr,
    "compare: turn 1: tandem bench failed: tandem: it broke\ncompare: turn 1: tandem run failed: tandem: it broke\n");
});

test("an engine that always fails leaves the other one's figures", () => {
  const { stdout, stderr } = run(1, [...needed, "--repeats", "1"], { PEER_FAILS: "1" });
  assert.match(stdout, /plain decoding, tokens\/s +41\.0 +- +-\n/);
  assert.match(stderr, /turn 1: node peer.mjs failed: .*no such architecture/);
});

test("a process that says nothing is a failure", () => {
  const { stdout, stderr } = run(1, [...needed, "--repeats", "1"], { SILENT: "kernels" });
  assert.match(stdout, /plain decoding/);
  assert.match(stderr, /^compare: turn 1: tandem bench printed no JSON: ''\n$/);
});
