// The soak of soak.mjs for some seconds, with broken requests mixed in: enough to see that it passes, not to prove it.
//   node soak.mjs URL --seconds 300 --malformed 10000     is the real one (CONTRIBUTING.md)
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { startServer } from "./server.mjs";

const sanitized = ["1", "ON"].includes(process.env.TANDEM_SANITIZED);

for (const [name, more] of [["clients that leave", []], ["and broken requests", ["--malformed", sanitized ? "400" : "2000"]]])
  test(`64 streams, ${name}`, { timeout: 600000 }, async () => {
    const server = await startServer({ args: ["--parallel", "16"] });
    const args = [join(import.meta.dirname, "soak.mjs"), server.url, "--seconds", sanitized ? "15" : "12", ...more];
    if (sanitized) args.push("--no-memory"); // a sanitizer keeps what is freed for a while
    const { stdout } = await promisify(execFile)("node", args).catch((e) => e);
    assert.equal(await server.stop(), 0, server.log().slice(-2000));
    const result = JSON.parse(stdout);
    assert.deepEqual(result.faults, []);
    assert.ok(result.whole > 30 && result.left > 10, stdout);
  });
