// Starts the binary named by TANDEM as a server on a free port, with the embedded pair; tests stop it.
import { spawn } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const root = resolve(import.meta.dirname, "../..");
const binary = process.env.TANDEM ?? join(root, "build/tandem");

// The embedded trunk under another chat template: it speaks neither form of tools or thoughts, but the constraint does.
function modelWithTemplate(template) {
  const from = join(root, "models/gemma4-demo-4bit");
  const dir = mkdtempSync(join(tmpdir(), "tandem-model-"));
  for (const name of readdirSync(from)) if (name !== "chat_template.jinja") symlinkSync(join(from, name), join(dir, name));
  cpSync(join(root, "tests/fixtures/templates", template), join(dir, "chat_template.jinja"));
  return dir;
}

// { url, port, process, exited (a promise of the exit code), stop() }
export async function startServer({ args = [], template = null, env = {} } = {}) {
  const model = template ? modelWithTemplate(template) : null;
  const assistant = join(root, "models/gemma4-demo-assistant-4bit");
  const all = ["serve", "--port", "0", "--parallel", "4", "--cache-mb", "64",
    ...(model ? ["--model", model, "--mtp-assistant-model", assistant, "--alias", "gemma4"] : []), ...args];
  const child = spawn(binary, all, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  let out = "", log = "";
  child.stderr.on("data", (b) => (log += b));
  const exited = new Promise((done) => child.on("exit", (code, signal) => done(code ?? signal)));
  const url = await new Promise((done, fail) => {
    const timer = setTimeout(() => fail(new Error(`no ready line within 60 s\n${out}\n${log}`)), 60000);
    child.stdout.on("data", (b) => {
      out += b;
      const at = out.match(/http:\/\/127\.0\.0\.1:\d+/);
      if (at) done(at[0]);
      if (at) clearTimeout(timer);
    });
    exited.then((code) => fail(new Error(`the server ended with ${code}\n${out}\n${log}`)));
  });
  return {
    url, process: child, exited, port: Number(url.split(":")[2]), log: () => log,
    async stop() {
      child.kill("SIGTERM");
      const code = await exited;
      if (model) rmSync(model, { recursive: true });
      return code;
    },
  };
}

export const weather = {
  name: "get_weather",
  description: "The weather of a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string", maxLength: 20 }, days: { type: "integer", minimum: 1, maximum: 9 } },
    required: ["city", "days"],
    additionalProperties: false,
  },
};

export const person = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 20 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    hobbies: { type: "array", items: { type: "string", maxLength: 12 }, minItems: 1, maxItems: 3 },
  },
  required: ["name", "age", "hobbies"],
  additionalProperties: false,
};
