// Requests as no client should send them: JSON that is cut or spoilt, members of the wrong type or out of range, deep and
// long things, strange bytes, unknown paths and methods.
const values = () => [null, true, false, 0, -1, 1, 1e308, -1e-308, 0.5, 2 ** 31, 2 ** 53, -(2 ** 63), "", "x", "\u0000", "\ud800",
  "💥".repeat(50), "a".repeat(3000), [], {}, [[]], [null], [{}], { a: {} }, [1, "2", null], { type: "text" }, "NaN", "1"];
const members = ["messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
  "n", "logprobs", "top_logprobs", "logit_bias", "response_format", "tools", "tool_choice", "stream", "stream_options", "user", "mtp",
  "num_mtp_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "chat_template_kwargs", "enable_thinking", "grammar",
  "parallel_tool_calls", "reasoning_effort", "ignore_eos", "timeout", "prompt", "echo", "suffix", "best_of", "prediction"];
const paths = ["/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
  "/v1/embeddings", "/slots/0?action=save", "/slots/99999999999?action=erase", "/v1/nowhere", "/../../etc/passwd", "/%00", "/v1//models"];

export class Broken {
  constructor(random) { this.random = random; }

  good(path) {
    const chat = path.includes("chat");
    const body = { max_tokens: 1 };
    if (path.includes("tokenize")) return path.includes("de") ? { tokens: [1, 2, 3] } : { content: "some text" };
    if (chat) body.messages = [{ role: "user", content: "x" }];
    else body.prompt = "x";
    return body;
  }

  // One member is spoilt, at some depth.
  spoil(body) {
    const r = this.random;
    const value = r.pick(values());
    const name = r.pick(members);
    if (r.below(3) === 0 && body.messages) {
      const m = body.messages[0];
      r.pick([() => (m.role = value), () => (m.content = value), () => (m.content = [value]), () => (m.tool_calls = value),
        () => (m.content = [{ type: value, text: "x" }]), () => (m.content = [{ type: "image_url", image_url: value }]),
        () => (m[String(value)] = value), () => delete m.role, () => (body.messages = [value]),
        () => (m.tool_calls = [{ id: "1", type: "function", function: { name: "f", arguments: value } }])])();
    } else if (r.below(4) === 0) {
      r.pick([() => (body.response_format = { type: "json_schema", json_schema: { name: "x", schema: value } }),
        () => (body.response_format = { type: "json_schema", json_schema: { name: "x", schema: { type: "object", properties: { a: { type: value } } } } }),
        () => (body.response_format = { type: "json_schema", json_schema: { schema: { $ref: "#/$defs/no" } } }),
        () => (body.response_format = { type: "json_schema", json_schema: { name: "x", schema: { type: "string", pattern: "(a+)+$".repeat(20) } } }),
        () => (body.grammar = "root ::= " + "(".repeat(r.below(2000))), () => (body.grammar = "root ::= root root | \"a\""),
        () => (body.grammar = "root ::= [a-z]{1,1000000000}"), () => (body.tools = [{ type: "function", function: { name: value, parameters: value } }]),
        () => { body.tools = [{ type: "function", function: { name: "f", parameters: { type: "object" } } }]; body.tool_choice = value; },
        () => (body.logit_bias = { [String(value)]: value }), () => (body.stop = Array(500).fill("x"))])();
    } else body[name] = value;
    return body;
  }

  make() {
    const r = this.random;
    const path = r.pick(paths);
    let method = "POST", headers = { "Content-Type": "application/json" };
    let body = JSON.stringify(this.spoil(this.good(path)));
    switch (r.below(10)) {
      case 0: body = body.slice(0, r.below(body.length)); break;
      case 1: { const at = r.below(body.length); body = body.slice(0, at) + r.pick(["\u0000", "}", "]", "\\", "\"", ",", "é"]) + body.slice(at + 1); break; }
      case 2: body = new Uint8Array(Array.from({ length: r.below(200) }, () => r.below(256))); break;
      case 3: body = r.pick(["[".repeat(100000), "{\"a\":".repeat(5000), "", "null", "[]", "\"x\"", "1e999", "{}{}", "{\"messages\":[],\"messages\":[]}"]); break;
      case 4: if (r.below(3) === 0) { method = r.pick(["GET", "PUT", "DELETE", "PATCH"]); if (method === "GET") body = undefined; } break;
      case 5: if (r.below(3) === 0) headers = { "Content-Type": r.pick(["text/plain", "multipart/form-data", "application/json; charset=latin1", ""]) }; break;
      default: break;
    }
    return { method, path, headers, body };
  }
}
