// Follows the start of a server: each event is a line of a list that a screen reader reads; Stop stops the server.
// Events about the same thing ("about": how far a copy is) share one line, which changes without being read again.
const page = document.getElementById("carme-pending");
const list = document.getElementById("progress-log");
const bar = document.getElementById("progress-bar");
const stop = document.getElementById("stop-server-btn");
const status = document.getElementById("stop-server-status");
const messages = [];
let received = 0; // messages on this connection: each new connection sends all of them again

function show(event) {
  if (Number.isFinite(event.progress)) {
    const percent = Math.max(0, Math.min(100, Math.round(event.progress)));
    bar.parentElement.setAttribute("aria-valuenow", String(percent));
    bar.style.width = `${percent}%`;
  }
  let message = event.message ?? (event.html_message ? plain(event.html_message) : "");
  if (event.failed) {
    // JupyterHub 6.1 puts a prefix before the message of a SpawnException.
    message = message.replace(/^Spawn failed:? ?(\d{3} SpawnException\(reason=[^)]*\): )?/, "") || "The hub does not know why.";
  }
  if (message && messages[received] === message) {
    received += 1;
    return;
  }
  if (!message || messages.at(-1) === message) return;
  const before = list.lastElementChild;
  if (event.about && before?.dataset.about === event.about) {
    messages[messages.length - 1] = message;
    received = messages.length;
    before.setAttribute("aria-live", "off");
    before.querySelector(".carme-said").textContent = message;
    stamp(before.querySelector("time"));
    return;
  }
  messages.push(message);
  received = messages.length;
  const line = document.createElement("li");
  line.className = `progress-log-event${event.failed ? " failed" : ""}${event.ready ? " ready" : ""}`;
  const text = document.createElement("span");
  text.className = "carme-said";
  text.textContent = message;
  if (event.about) line.dataset.about = event.about;
  const time = document.createElement("time");
  stamp(time);
  line.append(text, time);
  list.append(line);
}

function stamp(time) {
  const now = new Date();
  time.dateTime = now.toISOString();
  time.textContent = now.toLocaleTimeString();
}

function plain(html) {
  return new DOMParser().parseFromString(html, "text/html").body.textContent.trim();
}

function failed(message) {
  bar.classList.add("bg-danger");
  document.getElementById("carme-heading").textContent = "The server did not start";
  document.getElementById("carme-retry").classList.remove("d-none");
  document.getElementById("carme-intro").classList.add("d-none");
  const make = document.getElementById("carme-make-folder");
  if (make && (message ?? "").includes(make.dataset.said)) {
    make.classList.remove("d-none");
    document.getElementById("carme-retry").classList.replace("btn-primary", "btn-outline-contrast");
  }
  stop.classList.add("d-none");
  page.setAttribute("aria-busy", "false");
}

// Milliseconds without a message after which the page connects again: a proxy keeps a stream open whose hub has died.
const SILENCE = 30000;
let events = null;
let silence = 0;

function follow() {
  events?.close();
  events = new EventSource(page.dataset.progressUrl);
  listen();
  events.onopen = () => {
    received = 0;
  };
  events.onmessage = (message) => {
    const event = JSON.parse(message.data);
    listen();
    show(event);
    if (!event.ready && !event.failed) return;
    clearTimeout(silence);
    events.close();
    if (event.failed) failed(event.message);
    else window.location.reload(); // the hub redirects to the server
  };
  events.onerror = () => {
    // The browser tries again by itself unless the hub refused, or the proxy answered for it.
    if (events.readyState !== EventSource.CLOSED) return;
    clearTimeout(silence);
    setTimeout(reload, 3000);
  };
}

function listen() {
  clearTimeout(silence);
  silence = setTimeout(follow, SILENCE);
}

// Reloads once the hub answers: before, the proxy's error would take the place of this page.
async function reload() {
  const there = await fetch(window.location.href, { redirect: "manual", cache: "no-store" }).catch(() => null);
  if (there && (there.type === "opaqueredirect" || there.status < 500)) {
    window.location.reload();
    return;
  }
  show({ message: "The hub does not answer. This page goes on by itself when it does." });
  setTimeout(reload, 3000);
}

follow();

stop.addEventListener("click", async () => {
  stop.disabled = true;
  status.textContent = "Stopping…";
  try {
    const response = await fetch(page.dataset.stopUrl, {
      method: "DELETE",
      headers: { "X-XSRFToken": window.jhdata?.xsrf_token ?? "" },
      credentials: "same-origin",
    });
    if (!response.ok) throw new Error((await response.json().catch(() => ({}))).message ?? `error ${response.status}`);
    status.textContent = response.status === 204 ? "Stopped." : "Stopping; this page follows.";
    setTimeout(() => window.location.reload(), 1500);
  } catch (error) {
    status.textContent = `It could not be stopped: ${error.message}. Try again, or ask your administrator.`;
    stop.disabled = false;
  }
});
window._jupyterhub_page_loaded = true; // the hub's own tests wait for it
