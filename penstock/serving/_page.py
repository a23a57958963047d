"""The page of a server: drop a picture or type a text, and see the answer."""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; --soft: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44em; margin: 0 auto; padding: 1em; }
#drop { border: 2px dashed #888; border-radius: 8px; padding: 2em; text-align: center;
  display: block; cursor: pointer; }
#drop.over { background: var(--soft); }
#drop img { max-width: 100%; max-height: 16em; }
textarea { width: 100%; height: 8em; font: inherit; box-sizing: border-box; }
table { width: 100%; border-collapse: collapse; }
td { padding: .2em .5em; border-bottom: 1px solid var(--soft); overflow-wrap: anywhere; }
meter { width: 100%; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: 1em; }
[hidden] { display: none !important; }
"""
_SCRIPT = r"""
const at = id => document.getElementById(id);
const models = {};
let example = null;
function headers() {
  return at("token").value ? {"Authorization": "Bearer " + at("token").value} : {};
}
async function ask(path, options) {
  const answer = await fetch(path, {...options, headers: headers()});
  if (answer.status === 401) at("who").hidden = false;
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error || answer.statusText);
  return said;
}
function fail(error) { at("state").textContent = error.message; }
async function begin() {
  try {
    const list = await ask("v2/repository/index", {method: "POST", body: "{}"});
    at("model").replaceChildren(...list.map(each => new Option(each.name)));
    await choose();
  } catch (error) { fail(error); }
}
async function choose() {
  const name = at("model").value;
  // Nothing can be asked until it is known what the model takes.
  at("drop").hidden = at("typed").hidden = true;
  at("state").textContent = at("answer").textContent = "";
  models[name] = await ask("v2/models/" + encodeURIComponent(name));
  if (at("model").value !== name) return;
  const kind = models[name].inputs[0].parameters.kind;
  at("drop").hidden = kind !== "image";
  at("typed").hidden = kind === "image";
  const shape = JSON.stringify(models[name].inputs[0].shape.slice(1));
  at("text").placeholder = kind === "text" ? "" : "JSON: numbers of the shape " + shape;
}
function encode(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768)
    text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}
async function infer() {
  const model = models[at("model").value], input = model.inputs[0];
  const isChosen = () => at("model").value === model.name;
  try {
    const tensor = {name: input.name, shape: [1], datatype: "BYTES"};
    if (input.parameters.kind === "image") tensor.data = [example];
    else if (input.parameters.kind === "text") tensor.data = [at("text").value];
    else {
      tensor.datatype = input.datatype;
      tensor.data = JSON.parse(at("text").value).flat(Infinity);
      tensor.shape = [1, ...input.shape.slice(1)];
    }
    const output = {name: model.outputs[0].name};
    if (model.outputs[0].shape.length === 2 && model.parameters.class_names.length)
      output.parameters = {classification: 5};
    at("state").textContent = "...";
    const start = performance.now();
    const body = JSON.stringify({inputs: [tensor], outputs: [output]});
    const path = "v2/models/" + encodeURIComponent(model.name) + "/infer";
    const said = await ask(path, {method: "POST", body});
    if (!isChosen()) return;
    at("state").textContent = Math.round(performance.now() - start) + " ms";
    show(said.outputs[0]);
  } catch (error) { if (isChosen()) { fail(error); at("answer").textContent = ""; } }
}
function show(output) {
  if (output.datatype !== "BYTES") {
    const pre = document.createElement("pre");
    pre.textContent = JSON.stringify([output.shape, output.data.slice(0, 1000)]);
    return at("answer").replaceChildren(pre);
  }
  const table = document.createElement("table");
  for (const each of output.data) {
    const [score, index, ...name] = each.split(":");
    const row = table.insertRow(), meter = document.createElement("meter");
    row.insertCell().textContent = name.join(":") || index;
    row.insertCell().textContent = Number(score).toPrecision(4);
    meter.value = Number(score);
    row.insertCell().append(meter);
  }
  at("answer").replaceChildren(table);
}
async function take(file) {
  if (!file) return;
  at("picture").src = URL.createObjectURL(file);
  at("picture").hidden = false;
  example = encode(new Uint8Array(await file.arrayBuffer()));
  await infer();
}
at("model").addEventListener("change", () => choose().catch(fail));
at("token").addEventListener("change", begin);
at("send").addEventListener("click", infer);
at("file").addEventListener("change", event => take(event.target.files[0]));
for (const name of ["dragover", "dragleave", "drop"])
  at("drop").addEventListener(name, event => {
    event.preventDefault();
    at("drop").classList.toggle("over", name === "dragover");
    if (name === "drop") take(event.dataTransfer.files[0]);
  });
begin();
"""
PAGE = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>penstock serve</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>penstock serve</h1>
<p id="who" hidden><label>Token <input id="token" type="password" autocomplete="off"></label></p>
<p><label>Model <select id="model"></select></label></p>
<label id="drop" hidden>Drop a picture here, or click to choose one
<input id="file" type="file" accept="image/*" hidden><br><img id="picture" alt="" hidden></label>
<p id="typed" hidden><textarea id="text" aria-label="Text"></textarea>
<button id="send">Ask</button></p>
<p id="state" role="status"></p>
<div id="answer"></div>
<script>{_SCRIPT}</script></body></html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The browser runs this script and no other, and asks this server alone.
POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
    "img-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
