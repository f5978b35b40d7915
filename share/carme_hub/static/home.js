// The home page: more time for a session, dialogs that confirm, and the stream that keeps the sessions up to date.
// Listeners are on the document, since the stream replaces cards.

async function extend(line, button) {
  const minutes = Number(button.dataset.minutes);
  const answered = line.querySelector('[role="status"]');
  const buttons = [...line.querySelectorAll("button")];
  for (const each of buttons) each.disabled = true;
  line.dataset.busy = "yes"; // the stream leaves this card alone meanwhile
  answered.textContent = "";
  let done = false;
  try {
    const response = await fetch(line.dataset.url, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-XSRFToken": window.jhdata?.xsrf_token ?? "" },
      credentials: "same-origin",
      body: JSON.stringify({ minutes }),
    });
    const answer = await response.json().catch(() => ({}));
    done = response.ok;
    if (done) {
      const time = line.querySelector("time");
      time.dateTime = new Date(answer.ends * 1000).toISOString();
      time.textContent = answer.said; // in the hub's zone, as it was before
      const result = `It has ${button.dataset.said} more.`;
      answered.textContent = [result, ...(answer.warnings ?? [])].join(" ");
    } else {
      answered.textContent = answer.message ?? "The hub does not answer. Probably nothing was changed.";
    }
  } catch {
    answered.textContent = "The hub does not answer. It is unknown whether there is more time.";
  } finally {
    line.classList.toggle("carme-refused", !done);
    for (const each of buttons) each.disabled = false;
    button.focus();
    // The answer is read before the next state of the card takes its place.
    setTimeout(() => delete line.dataset.busy, 15000);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.minutes) extend(button.closest(".carme-time"), button);
  // Buttons that end something open a dialog first; its form is sent once.
  if (button?.dataset.carmeDialog) document.getElementById(button.dataset.carmeDialog).showModal();
});

document.addEventListener("submit", (event) => {
  const dialog = event.target.closest("dialog");
  if (!dialog || event.submitter?.formMethod === "dialog") return;
  if (dialog.dataset.sent) event.preventDefault();
  dialog.dataset.sent = "yes";
  event.submitter.textContent = event.submitter.dataset.doing; // the answer comes once it has ended
  for (const each of dialog.querySelectorAll("button")) each.disabled = true;
});

document.addEventListener(
  "cancel", // it does not bubble
  (event) => {
    if (event.target.dataset?.sent) event.preventDefault();
  },
  true,
);

// What somebody uses at this moment.
const IN_USE = "dialog[open], [data-busy], input:checked";

// Replaces what has changed of the sessions, and leaves alone what somebody uses at this moment; returns whether all is
// shown.
function show(box, html) {
  const next = document.createElement("template");
  next.innerHTML = html;
  const before = [...box.children];
  const after = [...next.content.children];
  if (before.length !== after.length || before.some((each, at) => each.id !== after[at].id)) {
    if (box.querySelector(IN_USE)) return false;
    const focused = document.activeElement?.id;
    box.replaceChildren(...after);
    if (focused) document.getElementById(focused)?.focus();
    return true;
  }
  let whole = true;
  before.forEach((old, at) => {
    if (old.outerHTML === after[at].outerHTML) return;
    if (old.querySelector(IN_USE)) {
      whole = false;
      return;
    }
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    old.replaceWith(after[at]);
    if (focused) document.getElementById(focused)?.focus();
  });
  return whole;
}

// Returns whether a reload would take something from who uses the page.
function busy() {
  const typed = [...document.querySelectorAll("input:not([type=hidden])")].some((each) => each.value !== each.defaultValue);
  return typed || document.querySelector(`${IN_USE}, .modal.show`) !== null;
}

// Milliseconds after which a stream is taken for dead; the hub says something every ten seconds.
const SILENCE = 25000;
const sessions = document.getElementById("carme-sessions");
if (sessions?.dataset.events) {
  const stale = document.getElementById("carme-stale");
  let stream = null;
  let waiting = ""; // what could not be shown yet
  let pause = 3000; // milliseconds before the next attempt
  const active = (part) => part.querySelector("#carme-active-servers").dataset.names;
  const loaded = active(sessions);
  let began = 0; // the last attempt
  let heard = Date.now(); // when the hub said something last, also that nothing has changed
  const open = () => {
    if (stream || document.hidden) return;
    const opened = new EventSource(sessions.dataset.events);
    stream = opened;
    began = Date.now();
    opened.addEventListener("alive", () => (heard = Date.now()));
    opened.addEventListener("sessions", (event) => {
      heard = Date.now();
      pause = 3000;
      stale.hidden = true;
      waiting = show(sessions, event.data) ? "" : event.data;
    });
    // The browser connects again by itself, but not after the answer that the proxy gives for a hub that is not there.
    opened.addEventListener("error", () => opened.readyState === EventSource.CLOSED && stream === opened && again());
  };
  const again = () => {
    close();
    setTimeout(open, pause * (0.5 + Math.random()));
    pause = Math.min(2 * pause, 60000);
  };
  const close = () => {
    stream?.close();
    stream = null;
  };
  setInterval(() => {
    if (waiting && show(sessions, waiting)) waiting = "";
    // JupyterHub's own buttons say which servers there were when the page was loaded.
    if (active(sessions) !== loaded && !busy()) return window.location.reload();
    // The proxy keeps a stream open whose hub has died, so silence is the only sign.
    if (document.hidden || Date.now() - heard < SILENCE) return;
    if (stale.hidden) stale.querySelector("time").textContent = new Date(heard).toLocaleTimeString();
    stale.hidden = false;
    if (stream && Date.now() - began > SILENCE) again();
  }, 1000);
  // A tab in the background needs no stream; the browser allows few connections to a host.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    heard = Date.now();
    open();
  });
  window.addEventListener("pagehide", close);
  open();
}

// Reloads a page that the browser restores from its cache.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) window.location.reload();
});
