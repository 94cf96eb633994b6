// The chat page in headless Chromium: drafts are coloured, figures appear, controls act, and nothing is said to anybody
// but the server. Skips where there is no Chromium.
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";
import { startServer } from "./server.mjs";

const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

describe("the chat page", { skip: executablePath ? false : "no Chromium here" }, () => {
  let server, browser, profile, page, problems, strangers;
  before(async () => {
    server = await startServer({ args: ["--num-mtp-tokens", "4", "--mtp-fixed"] }); // drafts whether they pay or not: a test has no clock
    profile = mkdtempSync(join(tmpdir(), "tandem-page-"));
    browser = await chromium.launchPersistentContext(profile, {
      executablePath, headless: true,
      args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync"],
    });
    page = await browser.newPage();
    problems = [];
    strangers = [];
    page.on("pageerror", (e) => problems.push(e.message));
    page.on("console", (m) => m.type() === "error" && problems.push(m.text()));
    page.on("request", (r) => r.url().startsWith(server.url) || strangers.push(r.url()));
    await page.goto(server.url);
  });
  after(async () => {
    await browser?.close();
    rmSync(profile, { recursive: true, force: true });
    assert.equal(await server.stop(), 0);
  });

  const say = async (text) => {
    await page.fill("#input", text);
    await page.keyboard.press("Enter");
  };
  const finished = () => page.waitForFunction(() => !document.querySelector("#send").hidden, null, { timeout: 60000 });

  // An answer that goes on until somebody stops it.
  const endless = async (text) => {
    await page.route("**/v1/chat/completions", (r) =>
      r.continue({ postData: JSON.stringify({ ...r.request().postDataJSON(), ignore_eos: true, max_tokens: -1 }) }));
    await say(text);
    await page.waitForFunction(() => document.querySelector(".turn.assistant:last-child p")?.textContent.length > 5);
    await page.unroute("**/v1/chat/completions");
  };

  test("names the model and its drafter", async () => {
    await page.waitForFunction(() => document.querySelector("#model").textContent.includes("drafts: assistant"));
    assert.equal(await page.title(), "Tandem");
  });

  test("an answer comes with its drafts coloured and its figures", async () => {
    await page.click("#settings-button");
    await page.fill("#temperature", "0");
    await page.fill("#max-tokens", "60");
    await say("Tell me a story.");
    await finished();
    const answer = page.locator(".turn.assistant").last();
    assert.ok((await answer.innerText()).length > 30);
    assert.ok((await answer.locator(".drafted").count()) > 3);
    const coloured = (await answer.locator(".drafted").allInnerTexts()).join("");
    assert.ok(coloured.length > 20);
    assert.match(await page.innerText("#speed"), /^\d+\.\d$/);
    assert.match(await page.innerText("#accepted"), /^\d+ %$/);
    assert.ok((await page.locator("#positions div").count()) === 4);
  });

  test("a comparison shows the same text and the ratio", async () => {
    await page.check("#compare");
    await say("And another one.");
    await finished();
    assert.equal(await page.locator(".turn.same").count(), 1);
    assert.match(await page.innerText("#ratio"), /^\d+\.\d\d×$/);
    await page.uncheck("#compare");
  });

  test("drafting can be switched off, and then nothing is coloured", async () => {
    await page.uncheck("#mtp");
    await say("One more.");
    await finished();
    const answer = page.locator(".turn.assistant").last();
    assert.equal(await answer.locator(".drafted").count(), 0);
    assert.equal(await page.innerText("#accepted"), "–");
    assert.match(await page.innerText("#note"), /No drafting/);
    await page.check("#mtp");
  });

  test("the depth control limits the drafts", async () => {
    await page.fill("#depth", "2"); // auto, 0, 1: at most one draft
    assert.equal(await page.innerText("#depth-text"), "1");
    await say("A short one.");
    await finished();
    assert.ok((await page.locator("#positions div").count()) <= 1);
    await page.fill("#depth", "0");
  });

  test("stop stops, and the next question is answered", async () => {
    await endless("Tell me everything.");
    await page.click("#stop");
    await finished();
    await page.fill("#max-tokens", "10");
    await say("Go on.");
    await finished();
    assert.ok((await page.locator(".turn.assistant").last().innerText()).length > 0);
  });

  test("a new chat during an answer starts from nothing", async () => {
    await endless("Tell me everything.");
    await page.click("#clear");
    await finished();
    assert.equal(await page.evaluate(() => messages.length), 0);
    await page.fill("#max-tokens", "10");
    const asked = page.waitForRequest((r) => r.url().endsWith("/v1/chat/completions"));
    await say("Hello.");
    assert.deepEqual(JSON.parse((await asked).postData()).messages, [{ role: "user", content: "Hello." }]);
    await finished();
  });

  test("a question that failed can be sent again", async () => {
    await page.fill("#temperature", "-1");
    await say("Still there?");
    await finished();
    assert.match(await page.locator(".turn.assistant .fault").last().innerText(), /temperature/);
    assert.equal(await page.inputValue("#input"), "Still there?");
    await page.fill("#temperature", "0");
    await page.focus("#input");
    await page.keyboard.press("Enter");
    await finished();
    assert.equal(await page.inputValue("#input"), "");
    assert.equal(await page.evaluate(() => messages.length), 4);
    problems.length = 0; // the browser reports the 400
  });

  test("text of the model cannot become markup", async () => {
    const html = await page.evaluate(() => {
      const p = document.createElement("p");
      append(p, "<img src=x onerror=alert(1)> & more", [[5, false], [30, true]]);
      return p.innerHTML;
    });
    assert.ok(!html.includes("<img"));
    assert.ok(html.includes("&lt;img"));
  });

  test("a narrow window has room for the conversation", async () => {
    await page.click("#settings-button");
    await page.setViewportSize({ width: 380, height: 700 });
    const box = await page.locator("#log").boundingBox();
    assert.ok(box.height > 250 && box.width <= 380);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 380));
    if (process.env.TANDEM_SCREENSHOTS) await page.screenshot({ path: join(process.env.TANDEM_SCREENSHOTS, "narrow.png") });
    await page.setViewportSize({ width: 1200, height: 800 });
    if (process.env.TANDEM_SCREENSHOTS) await page.screenshot({ path: join(process.env.TANDEM_SCREENSHOTS, "wide.png") });
  });

  test("a new chat is empty, and nothing went wrong on the way", async () => {
    await page.click("#clear");
    assert.equal(await page.locator(".turn").count(), 0);
    assert.deepEqual(problems, []);
    assert.deepEqual(strangers, []);
  });
});
