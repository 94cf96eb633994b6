// jinja_test.mjs - our template engine against @huggingface/jinja, byte for byte.
//
// node jinja_test.mjs <jinja_driver> <repository>
//
// Two sets of cases: the templates of tests/fixtures/templates over every conversation, with and without tools, with
// and without a generation prompt, in every variant of conversations.json; and the rows of snippets.json. Where the
// package differs from Jinja2, which is the authority, a case is excluded by name with what Jinja2 does; our side of it
// is then held by tests/text/test_jinja.c. An exclusion that is no longer needed is an error too.
import { spawnSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { Template } from "@huggingface/jinja";

const [driver, repository] = process.argv.slice(2);
const folder = join(repository, "tests/fixtures/templates");
const read = (name) => readFileSync(join(folder, name), "utf8");
const { now, special, tools, variants, conversations } = JSON.parse(read("conversations.json"));
const snippets = JSON.parse(read("snippets.json"));

// strftime_now of the package reads the clock and the zone: make both those of the cases.
process.env.TZ = "UTC";
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...args) {
    super(...(args.length ? args : [now * 1000]));
  }
};

// template: { conversation: what Jinja2 does }
const excluded = {
  "deepseek_r1.jinja": {
    parts: "refuses to add a list to text; the package adds JavaScript's text of it",
  },
  "mistral.jinja": {
    parts: "refuses to add a list to text; the package adds JavaScript's text of it",
  },
  "llama31.jinja": {
    parts: "trims any value, as text: the list's repr; the package fails",
    parts2: "trims any value, as text: the list's repr; the package fails",
  },
  "gemma4_demo.jinja": {
    parts: "trims any value, as text: the list's repr; the package fails",
    parts2: "trims any value, as text: the list's repr; the package fails",
    toolnone: "trims any value, as text: None; the package fails",
  },
};

function matrix() {
  const cases = [];
  for (const file of readdirSync(folder).filter((name) => name.endsWith(".jinja")).sort())
    for (const [conversation, messages] of Object.entries(conversations))
      for (const withTools of [false, true])
        for (const [variant, variables] of Object.entries(variants))
          for (const add_generation_prompt of [false, true])
            cases.push({
              name: [file, conversation, withTools ? "tools" : "no tools", variant, add_generation_prompt].join(", "),
              template: read(file),
              context: { ...special, messages, add_generation_prompt, ...variables, ...(withTools ? { tools } : {}) },
              now,
              why: excluded[file]?.[conversation],
            });
  return cases;
}

const rows = () =>
  snippets.rows.map((row) => ({
    name: row.template,
    template: row.template,
    context: snippets.context,
    now: snippets.now,
    why: row.js,
  }));

function renderHere({ template, context }) {
  try {
    return { text: new Template(template).render(structuredClone(context)) };
  } catch (error) {
    return { error: error.message };
  }
}

function renderThere(cases) {
  const input = JSON.stringify(cases.map(({ template, context, now }) => ({ template, context, now })));
  const run = spawnSync(driver, { input, maxBuffer: 1 << 30, encoding: "utf8" });
  if (run.status !== 0) throw new Error(`${driver} ended with ${run.status ?? run.signal}: ${run.stderr}`);
  const results = JSON.parse(run.stdout);
  if (results.length !== cases.length) throw new Error(`${results.length} results for ${cases.length} cases`);
  return results;
}

// Refusals count as equal whatever their words, which differ throughout.
const same = (a, b) => a.text === b.text;

function compare(title, cases) {
  const ours = renderThere(cases);
  let different = 0, stale = 0, skipped = 0;
  cases.forEach((item, i) => {
    const theirs = renderHere(item), agree = same(theirs, ours[i]);
    if (item.why) skipped++;
    if (agree !== Boolean(item.why)) return;
    item.why ? stale++ : different++;
    console.log(`not ok: ${item.name}`);
    if (item.why) console.log(`  excluded (${item.why}), but both give the same`);
    else console.log(`  package: ${JSON.stringify(theirs)}\n  ours:    ${JSON.stringify(ours[i])}`);
  });
  const compared = cases.length - skipped;
  console.log(`${title}: ${compared - different} of ${compared} equal; ${skipped} excluded by name, ${stale} needlessly`);
  return different + stale;
}

const failed = compare("templates", matrix()) + compare("snippets", rows());
process.exit(failed ? 1 : 0);
