// Drives Chromium over its DevTools protocol: node --experimental-websocket browser.mjs CHROMIUM URL
import {spawn} from "node:child_process";
import {mkdtempSync, rmSync} from "node:fs";

const [chromium, url] = process.argv.slice(2);
const folder = mkdtempSync("/tmp/penstock-page-");
const words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"];
const browser = spawn(chromium, [...words, `--user-data-dir=${folder}`, "about:blank"]);
process.on("exit", () => browser.kill());
const address = await new Promise(found => {
  let text = "";
  browser.stderr.on("data", data => {
    text += data;
    const match = text.match(/ws:\/\/[^\s]+/);
    if (match) found(new URL(match[0]));
  });
});
const tabs = await (await fetch(`http://${address.host}/json`)).json();
const socket = new WebSocket(tabs.find(tab => tab.type === "page").webSocketDebuggerUrl);
await new Promise(open => socket.addEventListener("open", open));
const waiting = new Map(), complaints = [];
socket.addEventListener("message", ({data}) => {
  const {id, result, error, method, params} = JSON.parse(data);
  if (id) waiting.get(id)(error ? Promise.reject(error) : result);
  else if (method === "Log.entryAdded") complaints.push(params.entry.text);
  else if (method === "Runtime.exceptionThrown") complaints.push(params.exceptionDetails.text);
});
let number = 0;
function send(method, params = {}) {
  socket.send(JSON.stringify({id: ++number, method, params}));
  return new Promise(done => waiting.set(number, done));
}
async function evaluate(expression) {
  const said = await send("Runtime.evaluate", {expression, returnByValue: true, awaitPromise: true});
  if (said.exceptionDetails) throw new Error(JSON.stringify(said.exceptionDetails));
  return said.result.value;
}
async function until(expression) {
  for (let left = 5000; !(await evaluate(expression)); --left) {
    if (!left) throw new Error(`this did not come to be: ${expression}`);
    await new Promise(done => setTimeout(done, 20));
  }
}
for (const each of ["Page", "Runtime", "Log"]) await send(`${each}.enable`);
await send("Page.navigate", {url});
await until("document.getElementById(\"who\")?.hidden === false");
complaints.length = 0;  // it was refused without a token, which the console says
const at = id => `document.getElementById(${JSON.stringify(id)})`;
const change = id => `${at(id)}.dispatchEvent(new Event("change"))`;
await evaluate(`${at("token")}.value = "secret"; ${change("token")}`);
const names = `[...${at("model")}.options].map(each => each.value)`;
await until(`${names}.length === 3`);
const seen = {models: await evaluate(names)};
// What a model takes is known late: nothing that was asked or chosen meanwhile gets lost.
await evaluate(`{
  const ask = window.fetch;
  window.late = 0;
  window.fetch = async (path, options) => {
    if (options.method) return ask(path, options);
    ++window.late;
    await new Promise(done => setTimeout(done, 300));
    const answer = await ask(path, options);
    setTimeout(() => --window.late, 100);
    return answer;
  };
}`);
async function choose(name) {
  await evaluate(`${at("model")}.value = ${JSON.stringify(name)}; ${change("model")}`);
}
const cells = `[...document.querySelectorAll("#answer td")].map(each => each.textContent)`;
await choose("image");
await until(`!${at("drop")}.hidden`);
await evaluate(`{
  const transfer = new DataTransfer();
  transfer.items.add(new File(["abc"], "a.png", {type: "image/png"}));
  ${at("drop")}.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, cancelable: true}));
}`);
await until(`${cells}.length > 0`);
seen.image = await evaluate(cells);
for (const [name, text] of [["text", "xyz"], ["array", "[[1, 2, 3]]"], ["array", "[1"], ["array", "[1]"]]) {
  await choose(name);
  await until(`!${at("typed")}.hidden && ${at("answer")}.textContent === ""`);
  await evaluate(`${at("text")}.value = ${JSON.stringify(text)}; ${at("send")}.click()`);
  await until(`${cells}.length > 0 || !/^(\\.\\.\\.)?$/.test(${at("state")}.textContent)`);
  await until("window.late === 0");
  seen[`${name} ${text}`] = await evaluate(`${cells}.concat(${at("state")}.textContent)`);
}
seen.complaints = complaints;
console.log(JSON.stringify(seen));
socket.close();
browser.on("exit", () => rmSync(folder, {recursive: true, force: true}));
browser.kill();
