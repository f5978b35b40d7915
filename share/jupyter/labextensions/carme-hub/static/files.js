/* The page Files: uploads into the folder that it shows. The page itself is complete HTML (carme_hub/files/page.py). */

import { TusUpload, Refused, bytesOf, fingerprint } from "./files-tus.js";

const MOST_AT_ONCE = 2;
const url = document.body.dataset.uploads;
const folder = document.body.dataset.folder;
const said = document.getElementById("said");
const list = document.getElementById("transfers");
const waiting = [];
let running = 0, done = 0;

function headers() {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
  return { "X-XSRFToken": decodeURIComponent(xsrf) };
}

function size(count) {
  let unit = "B", number = count;
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024) break;
    [number, unit] = [number / 1024, larger];
  }
  return `${unit === "B" || number >= 9.95 ? number.toFixed(0) : number.toFixed(1)} ${unit}`;
}

function store() {
  try {
    return window.localStorage;
  } catch {
    return undefined; // a browser that stores nothing
  }
}

/** The checksum of a chunk; browsers compute it on pages with TLS only. */
async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) return null;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return btoa(String.fromCharCode(...digest));
}

function element(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function row(file, name) {
  const item = document.createElement("li");
  const bar = element("progress", "", { max: Math.max(file.size, 1), value: 0, "aria-label": `Upload of ${name}` });
  const state = element("span", `waits, ${size(file.size)}`, { class: "quiet" });
  const buttons = document.createElement("span");
  item.append(element("span", name, { class: "name" }), bar, state, buttons);
  list.append(item);
  return { item, bar, state, buttons };
}

function begin(file) {
  const name = file.webkitRelativePath || file.name;
  const parts = row(file, name);
  const values = { filename: file.name, relativePath: file.webkitRelativePath, folder: bytesOf(folder) };
  if (document.getElementById("overwrite").checked) values.overwrite = "true";
  const entry = { file, name, values, parts };
  waiting.push(entry);
  next();
}

function next() {
  while (running < MOST_AT_ONCE && waiting.length) {
    running += 1;
    send(waiting.shift()).finally(() => {
      running -= 1;
      next();
      if (!running && !waiting.length && done) said.textContent = `${done} ${done === 1 ? "file is" : "files are"} there.`;
    });
  }
}

async function send(entry) {
  const { file, name, values, parts } = entry;
  const began = performance.now();
  let first = null;
  const upload = new TusUpload(file, url, values, {
    storage: store(), key: fingerprint(file, folder), headers, sha256,
    report: (offset, length, problem) => {
      first ??= offset;
      parts.bar.value = offset;
      const rate = ((offset - first) / (performance.now() - began)) * 1000;
      const left = rate > 0 ? `, about ${Math.max(1, Math.round((length - offset) / rate / 60))} min left` : "";
      parts.state.textContent = problem || `${size(offset)} of ${size(length)}${offset < length ? left : ""}`;
      parts.state.className = problem ? "bad" : "quiet";
    },
  });
  const pause = element("button", "Pause", { type: "button", "aria-label": `Pause the upload of ${name}` });
  const cancel = element("button", "Cancel", { type: "button", "aria-label": `Cancel the upload of ${name}` });
  pause.addEventListener("click", () => upload.pause());
  cancel.addEventListener("click", async () => {
    await upload.cancel().catch((error) => { said.textContent = error.message; });
    parts.item.remove();
  });
  parts.buttons.replaceChildren(pause, " ", cancel);
  try {
    const given = await upload.run();
    done += 1;
    parts.state.textContent = given && given !== file.name ? `There as ${given}: its name was taken meanwhile.` : "There.";
    parts.state.className = "quiet";
    parts.buttons.replaceChildren();
  } catch (error) {
    parts.state.textContent = error.message;
    parts.state.className = error instanceof Refused ? "bad" : "quiet";
    const again = element("button", "Go on", { type: "button", "aria-label": `Go on with the upload of ${name}` });
    again.addEventListener("click", () => { waiting.push(entry); next(); });
    parts.buttons.replaceChildren(again, " ", cancel);
  }
}

const drop = document.getElementById("drop");
if (drop) {
  drop.hidden = false;
  for (const id of ["files", "folders"]) {
    const input = document.getElementById(id);
    input.addEventListener("change", () => {
      for (const file of input.files) begin(file);
      input.value = "";
    });
  }
  for (const kind of ["dragover", "dragenter"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    for (const file of event.dataTransfer.files) begin(file);
  });
  // A page that is closed would end uploads without a word.
  addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });
}

for (const item of document.querySelectorAll("[data-upload]")) {
  const button = item.querySelector(".cancel");
  button.hidden = false;
  button.addEventListener("click", async () => {
    const answer = await fetch(item.dataset.upload, {
      method: "DELETE", headers: { "Tus-Resumable": "1.0.0", ...headers() }, credentials: "same-origin",
    }).catch(() => null);
    if (answer && (answer.ok || answer.status === 404)) item.remove();
    else said.textContent = "The upload could not be cancelled.";
  });
}
