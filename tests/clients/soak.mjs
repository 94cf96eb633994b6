// Many clients at once, a third of whom leave in the middle: every answer that comes whole must be the one that the same
// request has alone, memory must be flat, and nobody who left may keep a place.
//
//   node soak.mjs URL [--seconds 300] [--streams 64] [--leave 0.33] [--malformed 10000] [--seed 1] [--no-memory]
//
// --malformed: so many broken requests are mixed in; each must get a 4xx with an error object, or what it asked for.
// Prints one JSON object; exit code 1 when something was wrong.
import { Broken } from "./broken.mjs";
import { Random } from "./random.mjs";

const url = process.argv[2];
const options = { seconds: 300, streams: 64, leave: 0.33, malformed: 0, seed: 1 };
let checkMemory = true;
for (let i = 3; i < process.argv.length; i++) {
  const name = process.argv[i].replace(/^--/, "");
  if (name === "no-memory") checkMemory = false;
  else options[name] = Number(process.argv[++i]);
}
const random = new Random(options.seed);
const faults = [];
const fault = (text) => faults.length < 20 && faults.push(text);

// ---- requests ----

const words = ("the river ran under a small bridge while children counted boats and an old man told them about winters " +
  "when ice stood from bank to bank and nobody crossed without a lantern").split(" ");
const prose = (n) => Array.from({ length: n }, () => words[random.below(words.length)]).join(" ");

const system = "You are a patient teller of tales. " + prose(120);

function requests(count) {
  return Array.from({ length: count }, (_, i) => {
    const shared = i % 3 === 0 ? system : ""; // these share their first pages
    const length = [3, 10, 40, 150, 400][random.below(5)];
    const body = {
      messages: [...(shared ? [{ role: "system", content: shared }] : []), { role: "user", content: prose(length) }],
      max_tokens: 1 + random.below([5, 30, 80][random.below(3)]),
      temperature: i % 2 ? 0.8 : 0, seed: i,
    };
    if (i % 5 === 1) body.mtp = false;
    if (i % 5 === 2) body.num_mtp_tokens = 1 + random.below(6);
    if (i % 7 === 3) body.stop = ["the ", ".\n"];
    if (i % 11 === 4) body.response_format = { type: "json_object" };
    return body;
  });
}

const post = (body, signal) => fetch(`${url}/v1/chat/completions`, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
});

async function alone(body) {
  const r = await post(body);
  if (!r.ok) throw new Error(`alone: ${r.status} ${await r.text()}`);
  return (await r.json()).choices[0].message.content ?? "";
}

// The text of a stream; `enough` is told of every chunk and may say that the client leaves.
async function streamed(body, controller, enough) {
  const r = await post({ ...body, stream: true }, controller.signal);
  if (!r.ok) throw new Error(`${r.status} ${await r.text()}`);
  const decoder = new TextDecoder();
  let text = "", rest = "", finish = null, done = false, id = null;
  for await (const bytes of r.body) {
    const parts = (rest + decoder.decode(bytes, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith(":") || !part) continue;
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") { done = true; continue; }
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if (id !== null && event.id !== id) fault("the id changed within a stream");
      id = event.id;
      text += event.choices[0]?.delta.content ?? "";
      finish = event.choices[0]?.finish_reason ?? finish;
    }
    if (enough()) {
      controller.abort();
      return null;
    }
  }
  if (!done || finish === null) throw new Error("the stream ended without an end");
  return text;
}

// ---- the server's own figures ----

async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const line = text.split("\n").find((l) => l.startsWith(`${name} `));
  return line ? Number(line.split(" ")[1]) : NaN;
}

// ---- the run ----

const count = { whole: 0, left: 0, refused: 0, malformed: 0 };
const memory = [];
const bodies = requests(60);
const expected = [];
for (const body of bodies) expected.push(await alone(body));
const end = Date.now() + options.seconds * 1000;

async function client() {
  while (Date.now() < end) {
    const i = random.below(bodies.length);
    const controller = new AbortController();
    const leaves = random.next() < options.leave;
    let chunks = leaves ? random.below(12) : Infinity;
    const timer = leaves && chunks < 3 ? setTimeout(() => controller.abort(), random.below(300)) : null;
    try {
      const text = await streamed(bodies[i], controller, () => chunks-- <= 0);
      if (text === null) count.left++;
      else if (text === expected[i]) count.whole++;
      else fault(`request ${i}: ${JSON.stringify(text.slice(0, 80))} in company, ${JSON.stringify(expected[i].slice(0, 80))} alone`);
    } catch (e) {
      if (e.name === "AbortError") count.left++;
      else if (/^429 /.test(e.message)) {
        count.refused++;
        await new Promise((r) => setTimeout(r, 50));
      } else fault(`request ${i}: ${e.message} ${e.cause ?? ""}`);
    }
    clearTimeout(timer);
  }
}

async function vandal(share) {
  const broken = new Broken(random);
  for (let i = 0; i < share; i++) {
    const what = broken.make();
    try {
      const r = await fetch(`${url}${what.path}`, { method: what.method, headers: what.headers, body: what.body,
        signal: AbortSignal.timeout(60000) });
      const text = await r.text();
      count.malformed++;
      if (r.status >= 500) fault(`${r.status} for ${what.path} ${String(what.body).slice(0, 200)}: ${text.slice(0, 200)}`);
      else if (r.status >= 400 && what.method === "POST" && !JSON.parse(text).error?.message)
        fault(`no error object for ${what.path}: ${text.slice(0, 200)}`);
    } catch (e) {
      fault(`${what.path} ${String(what.body).slice(0, 120)}: ${e.message} ${e.cause ?? ""}`);
    }
  }
}

async function watch() {
  while (Date.now() < end) {
    memory.push(await metric("tandem_resident_memory_bytes"));
    await new Promise((r) => setTimeout(r, Math.max(250, options.seconds * 10)));
  }
}

const vandals = options.malformed ? 16 : 0;
await Promise.all([
  watch(),
  ...Array.from({ length: options.streams }, client),
  ...Array.from({ length: vandals }, () => vandal(Math.ceil(options.malformed / vandals))),
]);

// Nobody is left: places are free within a moment.
let active = NaN;
for (let i = 0; i < 50 && active !== 0; i++) {
  await new Promise((r) => setTimeout(r, 100));
  active = (await metric("tandem_requests_active")) + (await metric("tandem_requests_queued"));
}
if (active !== 0) fault(`${active} requests are still active after everybody has left`);
const third = Math.floor(memory.length / 3);
const peak = (a) => Math.max(...a);
const early = peak(memory.slice(third, 2 * third)), late = peak(memory.slice(2 * third));
if (checkMemory && third >= 3 && late > early * 1.03 + (4 << 20))
  fault(`resident memory grew from ${early >> 20} to ${late >> 20} MiB after the first third of the run`);
if (count.whole < options.streams / 4) fault(`only ${count.whole} answers came whole`);
console.log(JSON.stringify({ ...options, ...count, resident_mib: [early, late].map((b) => Math.round(b / 2 ** 20)), faults }, null, 1));
process.exit(faults.length ? 1 : 0);
