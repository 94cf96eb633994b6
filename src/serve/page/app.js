"use strict";
// The chat page: one conversation, kept in this tab. It talks to the server as any OpenAI client does, and asks for one
// thing more, stream_options.include_drafts: which characters of a chunk came from accepted drafts.

const $ = (id) => document.getElementById(id);
let messages = []; // what the next request sends; a new chat is a new list
let running = null; // AbortController of the answer under way
const AUTO = 0; // of the depth control: 0 is auto, n is n - 1 drafts

// ---- the server ----

function headers() {
  const key = $("api-key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function failure(response) {
  let text = `${response.status} ${response.statusText}`;
  try {
    text = (await response.json()).error.message;
  } catch { /* not from the API: the status has to do */ }
  if (response.status === 401) text += " (Settings: API key)";
  return Object.assign(new Error(text), { status: response.status });
}

// fetch, with an error that says what it means that nobody answered.
async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (e) {
    throw e.name === "AbortError" ? e : new Error("The server does not answer.");
  }
}

// The events of a stream, as parsed JSON.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

function request(drafting, seed) {
  const body = { messages: messages.slice(), stream: true, stream_options: { include_usage: true, include_drafts: true }, seed };
  const system = $("system").value.trim();
  if (system) body.messages.unshift({ role: "system", content: system });
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("max-tokens").value !== "") body.max_tokens = Number($("max-tokens").value);
  body.enable_thinking = $("thinking").checked;
  body.mtp = drafting;
  const depth = Number($("depth").value);
  if (drafting && depth !== AUTO) body.num_mtp_tokens = depth - 1;
  return body;
}

// ---- what is shown ----

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function show(turn) {
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  if (turn) log.append(turn);
  if (atEnd || turn) log.scrollTop = log.scrollHeight;
}

// Appends text to a paragraph, its drafted parts coloured. spans: [[length, drafted], ...] or undefined.
function append(paragraph, text, spans) {
  let at = 0;
  for (const [n, drafted] of spans ?? [[text.length, false]]) {
    const piece = text.slice(at, at + n);
    at += n;
    if (!piece) continue;
    const last = paragraph.lastChild;
    const same = last && (last.nodeType === Node.TEXT_NODE ? !drafted : drafted);
    if (same) last.nodeType === Node.TEXT_NODE ? last.appendData(piece) : (last.textContent += piece);
    else paragraph.append(drafted ? element("span", "drafted", piece) : document.createTextNode(piece));
  }
}

class Answer {
  constructor() {
    this.turn = element("section", "turn assistant");
    this.content = "";
    this.calls = [];
    this.started = performance.now();
    this.tokens = 0;
    show(this.turn);
  }
  part(name, tag, className) {
    if (!this[name]) this.turn.append((this[name] = element(tag, className)));
    return this[name];
  }
  take(event) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    if (choice) {
      const { reasoning_content: thoughts, content, tool_calls: calls } = choice.delta;
      if (thoughts) append(this.part("thoughtsBox", "p", "thoughts"), thoughts);
      if (content) {
        append(this.part("contentBox", "p", ""), content, choice.drafted ?? event.drafted);
        this.content += content;
      }
      for (const c of calls ?? []) this.call(c);
      if (choice.finish_reason) this.finish = choice.finish_reason;
    }
    if (event.timings) this.timings = event.timings;
    if (event.mtp) this.mtp = event.mtp;
    if (event.usage) this.usage = event.usage;
    show();
  }
  call(c) {
    const call = (this.calls[c.index] ??= { box: this.turn.appendChild(element("div", "call")), name: "", args: "" });
    call.name += c.function?.name ?? "";
    call.args += c.function?.arguments ?? "";
    call.box.textContent = `${call.name}(${call.args})`;
  }
  say(className, text) {
    this.turn.append(element("p", className, text));
    show();
  }
}

const number = (x, digits = 1) => (Number.isFinite(x) ? x.toFixed(digits) : "–");

function report(answer, plain) {
  const t = answer.timings ?? {};
  $("speed").textContent = number(t.predicted_per_second);
  $("prompt").textContent = t.prompt_n === undefined ? "–" : `${t.prompt_n} + ${t.cached_n ?? 0} cached`;
  const drafted = t.draft_n ?? 0;
  $("accepted").textContent = drafted ? `${Math.round((100 * t.draft_n_accepted) / drafted)} %` : "–";
  const rounds = t.predicted_n - (t.draft_n_accepted ?? 0);
  $("per-round").textContent = rounds > 0 ? number(t.predicted_n / rounds, 2) : "–";
  const bars = $("positions");
  bars.replaceChildren();
  $("positions-text").hidden = !drafted;
  (t.draft_n_by_position ?? []).forEach((n, i) => {
    if (!n) return;
    const rate = t.draft_n_accepted_by_position[i] / n;
    const bar = element("div");
    bar.style.height = `${100 * rate}%`;
    bar.title = `draft ${i + 1}: ${Math.round(100 * rate)} % of ${n}`;
    bar.append(element("span", "", String(i + 1)));
    bars.append(bar);
  });
  $("note").textContent = answer.mtp && !answer.mtp.active ? `No drafting: ${answer.mtp.reason}` : "";
  if (plain?.timings) $("ratio").textContent = `${number(t.predicted_per_second / plain.timings.predicted_per_second, 2)}×`;
  else $("ratio").textContent = "–";
}

// ---- a turn ----

function live(answer) {
  const timer = setInterval(() => {
    const words = answer.content.length; // until the server's own count comes: characters / 4 is about a token
    const seconds = (performance.now() - answer.first) / 1000;
    if (answer.first && seconds > 0.3) $("speed").textContent = `≈ ${number(words / 4 / seconds, 0)}`;
  }, 200);
  return () => clearInterval(timer);
}

async function run(answer, drafting, seed, signal) {
  const stop = live(answer);
  try {
    const response = await reach("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(request(drafting, seed)), signal,
    });
    if (!response.ok) throw await failure(response);
    for await (const event of events(response)) {
      answer.first ??= performance.now();
      answer.take(event);
    }
  } finally {
    stop();
  }
  return answer;
}

function busy(controller) {
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
}

async function comparison(answer, seed, signal) {
  const plain = await run(new Answer(), false, seed, signal);
  const same = plain.content === answer.content;
  plain.say(same ? "verdict" : "verdict fault",
    same ? "Plain decoding: the same text." : "Plain decoding gave another text: please report this.");
  plain.turn.classList.add(same ? "same" : "differs");
  return plain;
}

async function ask(text) {
  const conversation = messages;
  $("welcome")?.remove();
  const turn = element("section", "turn user");
  turn.append(element("p", "", text));
  show(turn);
  conversation.push({ role: "user", content: text });
  const controller = new AbortController();
  busy(controller);
  const seed = $("seed").value === "" ? Math.floor(Math.random() * 2 ** 32) : Number($("seed").value);
  const answer = new Answer();
  let plain = null;
  try {
    await run(answer, $("mtp").checked, seed, controller.signal);
    if (answer.finish === "length") answer.say("verdict", "Cut at the limit of tokens.");
    report(answer, null);
    if ($("compare").checked && $("mtp").checked) plain = await comparison(answer, seed, controller.signal);
    report(answer, plain);
  } catch (e) {
    if (e.name !== "AbortError") answer.say("fault", e.message);
    if (e.name !== "AbortError" && !answer.content && !$("input").value) {
      $("input").value = text; // to be sent again
      grow();
    }
  } finally {
    busy(null);
    if (answer.content) conversation.push({ role: "assistant", content: answer.content });
    else if (!answer.calls.length) conversation.pop();
    $("input").focus();
  }
}

// ---- controls ----

function depthText() {
  const depth = Number($("depth").value);
  $("depth-text").textContent = depth === AUTO ? "auto" : String(depth - 1);
}

function grow() {
  const box = $("input");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

async function connect() {
  const response = await reach("props", { headers: headers() });
  if (!response.ok) throw await failure(response);
  const props = await response.json();
  const mtp = props.mtp ?? {};
  $("model").textContent = `${props.model ?? props.model_alias ?? ""} · ` +
    (mtp.active ? `drafts: ${mtp.kind}` : "no drafting");
  $("model").title = mtp.active ? `${props.model_path ?? ""}` : mtp.reason ?? "";
  if (mtp.max_depth) $("depth").max = String(mtp.max_depth + 1);
  $("mtp").disabled = $("depth").disabled = $("compare").disabled = !mtp.active;
  $("mtp").checked = Boolean(mtp.active);
  if (!mtp.active) $("note").textContent = `No drafting: ${mtp.reason}`;
}

function start() {
  $("ask").addEventListener("submit", (e) => {
    e.preventDefault();
    const text = $("input").value.trim();
    if (!text || running) return;
    $("input").value = "";
    grow();
    ask(text);
  });
  $("input").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      $("ask").requestSubmit();
    }
  });
  $("input").addEventListener("input", grow);
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    $("log").replaceChildren();
    $("input").focus();
  });
  $("depth").addEventListener("input", depthText);
  $("settings").addEventListener("submit", (e) => e.preventDefault());
  $("settings-button").addEventListener("click", () => {
    const open = $("settings").hidden;
    $("settings").hidden = !open;
    $("settings-button").setAttribute("aria-expanded", String(open));
  });
  const again = () => connect().catch((e) => {
    $("model").textContent = e.message;
    if (e.status !== 401) setTimeout(again, 2000); // it loads, or is started anew
  });
  $("api-key").addEventListener("change", again);
  depthText();
  again();
}

start();
