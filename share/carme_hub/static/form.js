// Refreshes the options form: sentences follow the choice, and suggestions are filled in without a reload.
// The form also works without this script; all rules are checked on the server.
const form = document.getElementById("spawn_form");
const part = document.getElementById("carme-form");
const liveUrl = part?.dataset.liveUrl;
const PAUSE = 300; // ms after the last change
const INTERVAL = 20000; // ms between refreshes while the page is visible

const cards = () => [...part.querySelectorAll(".carme-profile")];
const chosen = () => cards().find((card) => card.querySelector('input[name="profile"]').checked);

function optionsOf(card) {
  const options = new URLSearchParams({ profile: card.dataset.profile });
  for (const control of card.querySelectorAll("[data-option]")) {
    if (!control.disabled && control.value !== "") options.set(control.dataset.option, control.value);
  }
  return options;
}

function setText(element, text) {
  // Only a change is written, so that a screen reader does not read the same text again.
  if (element.textContent !== text) element.textContent = text;
}

function showProspect(card, prospect) {
  const free = card.querySelector(".carme-free");
  free.dataset.state = prospect.state;
  setText(free.querySelector(".carme-sentence"), prospect.sentence);
  const image = card.querySelector(".carme-image");
  setText(image, prospect.image);
  image.classList.toggle("d-none", !prospect.image);
  if (card !== chosen()) return;
  const suggestion = card.querySelector(".carme-suggestion");
  suggestion.classList.toggle("d-none", !prospect.suggestion);
  if (!prospect.suggestion) return;
  setText(suggestion.querySelector(".carme-smaller"), prospect.suggestion.what);
  const link = optionsOf(card);
  for (const [key, value] of Object.entries(prospect.suggestion.options)) link.set(key, value);
  const query = new URLSearchParams([...link].map(([key, value]) => [`opt-${key}`, value]));
  const button = suggestion.querySelector("a");
  button.href = `${window.location.pathname}?${query}`;
  button.dataset.options = JSON.stringify(prospect.suggestion.options);
}

// The cost of the choice; if it is refused, a button that fills in the largest possible choice.
function showCost(card, cost) {
  const place = card.querySelector(".carme-cost");
  if (!place) return;
  place.dataset.state = cost?.state ?? "ok";
  setText(place.querySelector(".carme-cost-sentence"), cost?.sentence ?? "");
  const button = place.querySelector("a");
  button.classList.toggle("d-none", !cost?.suggestion);
  if (!cost?.suggestion) return;
  setText(button.querySelector(".carme-largest"), cost.suggestion.what);
  const link = optionsOf(card);
  for (const [key, value] of Object.entries(cost.suggestion.options)) link.set(key, value);
  button.href = `${window.location.pathname}?${new URLSearchParams([...link].map(([key, value]) => [`opt-${key}`, value]))}`;
  button.dataset.options = JSON.stringify(cost.suggestion.options);
}

// The rest of each account, in its line of the list; without quotas there is none.
function showAccounts(accounts) {
  for (const option of part.querySelectorAll('[data-option="account"] option')) {
    const account = accounts?.[option.value];
    if (account) setText(option, `${option.value}: ${account.said}`);
  }
}

function showProblems(card, problems) {
  for (const control of card.querySelectorAll("[data-option]")) {
    const problem = problems.find((p) => p.field === control.dataset.option);
    const id = `${control.id}-error`;
    let message = document.getElementById(id);
    control.classList.toggle("is-invalid", Boolean(problem));
    if (!problem) {
      control.removeAttribute("aria-invalid");
      message?.remove();
      continue;
    }
    if (!message) {
      message = document.createElement("div");
      message.id = id;
      message.className = "invalid-feedback d-block";
      control.closest("[class^=col]").append(message);
      control.setAttribute("aria-describedby", `${id} ${control.getAttribute("aria-describedby") ?? ""}`.trim());
    }
    control.setAttribute("aria-invalid", "true");
    setText(message, problem.message);
  }
}

// Adds the card of a booking that begins while the page is open, and removes that of a booking that ends.
let slots;
function showSlots(html) {
  const place = document.getElementById("carme-slots");
  if (!place || html === undefined || html === slots) return;
  if (slots !== undefined) {
    if (place.contains(document.activeElement)) return; // the user may be about to press its button
    place.innerHTML = html; // from the server, which has escaped it
    for (const card of place.querySelectorAll("form")) {
      card.action = form.action;
      card.elements._xsrf.value = form.elements._xsrf.value;
    }
  }
  slots = html;
}

let requests = 0;
let changed = false;
async function refresh() {
  const card = chosen();
  if (!card || !liveUrl) return;
  const number = ++requests;
  let answer;
  try {
    const response = await fetch(`${liveUrl}?${optionsOf(card)}`, {
      headers: { Accept: "application/json", "X-XSRFToken": window.jhdata?.xsrf_token ?? "" },
      credentials: "same-origin",
    });
    if (!response.ok) return; // the present text stays; the check at Start decides
    answer = await response.json();
  } catch {
    return;
  }
  if (number !== requests) return; // a later request is running
  for (const other of cards()) {
    const prospect = answer.profiles[other.dataset.profile];
    if (prospect) showProspect(other, prospect);
  }
  showProblems(card, answer.problems);
  showCost(card, answer.cost);
  showAccounts(answer.accounts);
  showSlots(answer.slots);
  // The problems of the last post are solved.
  const right = !answer.problems.length && answer.cost?.state !== "refused";
  if (changed && right) document.getElementById("carme-problems")?.remove();
  document.getElementById("carme-silent").classList.toggle("d-none", !answer.silent_since);
  setText(document.getElementById("carme-silent-since"), answer.silent);
}

let timer;
function soon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, PAUSE);
}

// "1 hour 30 minutes", in the server's format.
function duration(minutes) {
  const parts = [];
  for (const [size, unit] of [[1440, "day"], [60, "hour"], [1, "minute"]]) {
    const count = Math.floor(minutes / size);
    if (count) parts.push(`${count} ${unit}${count === 1 ? "" : "s"}`);
    minutes %= size;
  }
  return parts.join(" ");
}

// Fills in a suggestion. A time that is not in the list is added to it.
function fill(control, value) {
  control.value = value;
  if (control.value === value || control.dataset.option !== "time_minutes") return;
  const longer = [...control.options].find((option) => Number(option.value) > Number(value));
  control.add(new Option(duration(Number(value)), value), longer ?? null);
  control.value = value;
}

// Disables the counts that are larger than the maximum of the chosen GPU type.
function limitCounts(card) {
  const type = card.querySelector('[data-option="gpu_type"]');
  const count = card.querySelector('select[data-option="gpus"]');
  const most = Number(type?.selectedOptions[0]?.dataset.most);
  if (!count || !most) return;
  for (const option of count.options) option.disabled = Number(option.value) > most;
  if (count.selectedOptions[0]?.disabled) count.value = String(most);
}

// "Other…" shows its text field only while it is chosen.
function showUnlisted(card) {
  for (const field of card.querySelectorAll("[data-only-with]")) {
    const name = field.dataset.onlyWith;
    const select = card.querySelector(`[data-option="${name}"]`);
    const input = field.querySelector("input");
    const on = !select || select.value === `${name}--unlisted-choice`;
    field.classList.toggle("d-none", !on);
    input.disabled = !on;
  }
}

// Shows the curves of the chosen image; on a card without a choice of images nothing changes.
function showCurves(card) {
  const image = card.querySelector('[data-option="image"]')?.value;
  if (image === undefined) return;
  for (const curve of card.querySelectorAll(".carme-curve")) {
    curve.classList.toggle("d-none", curve.dataset.image !== image);
  }
}

function settle() {
  for (const card of cards()) {
    limitCounts(card);
    showCurves(card);
    showUnlisted(card);
    for (const line of card.querySelectorAll(".carme-free, .carme-image")) {
      if (card === chosen()) line.setAttribute("aria-live", "polite");
      else line.removeAttribute("aria-live");
    }
  }
}

if (form && part && cards().length) {
  settle();
  part.addEventListener("input", () => {
    changed = true;
    settle();
    soon();
  });
  part.addEventListener("click", (event) => {
    const button = event.target.closest(".carme-suggestion a, .carme-affordable");
    if (!button?.dataset.options) return; // without a fresh answer the browser follows the link
    const card = button.closest(".carme-profile");
    event.preventDefault();
    for (const [key, value] of Object.entries(JSON.parse(button.dataset.options))) {
      const control = card.querySelector(`[data-option="${key}"]`);
      if (control) fill(control, String(value));
    }
    changed = true;
    settle();
    refresh();
    card.querySelector('[data-option="gpus"]')?.focus();
  });
  setInterval(() => document.visibilityState === "visible" && refresh(), INTERVAL);
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && refresh());
  document.getElementById("carme-problems")?.focus();
  refresh();
}
const startButtons = () => [...document.querySelectorAll('#spawn_form button[type="submit"], .carme-slot button')];
document.addEventListener("submit", (event) => {
  const button = startButtons().find((each) => each.form === event.target);
  if (!button) return;
  button.dataset.label = button.textContent;
  button.textContent = "Starting…";
  setTimeout(() => (button.disabled = true)); // after the browser has read the form
});
// After the browser's Back button the form must be usable again.
window.addEventListener("pageshow", (event) => {
  for (const button of event.persisted ? startButtons() : []) {
    button.disabled = false;
    button.textContent = button.dataset.label ?? button.textContent;
  }
});
window._jupyterhub_page_loaded = true; // the hub's own tests wait for it
