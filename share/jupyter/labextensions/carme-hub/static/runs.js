/* The page Runs: all runs of %%distributed and carme-hub train, found, compared, repeated and deleted. Its data are from
   carme_hub.training.server.runs_page. Everything that comes from a run is put into the page as text. */

import { charts, duration, element, field, fold, modules, moment, number, properties } from "./runs-parts.js";

const base = `${document.body.dataset.base}carme`;
const LIVE_POLL = 3000, IDLE_POLL = 20000, TIMEOUT = 30000, START_TIMEOUT = 120000;
const main = document.getElementById("runs");
/** What is shown: the rows, the ids that are chosen, what the filter says, and the panel below the table. */
const state = { rows: null, error: "", chosen: new Set(), filter: "", starred: false, panel: null };
let timer, seen = true;

/** Send a request, and return the answer; the error has the server's own words. */
async function ask(path, body) {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
  const options = { credentials: "same-origin", signal: AbortSignal.timeout(body ? START_TIMEOUT : TIMEOUT) };
  options.headers = { "X-XSRFToken": decodeURIComponent(xsrf) }; // JupyterHub asks for it when data are read, too
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(`${base}/${path}`, options);
  } catch {
    throw new Error("The server does not answer. Has the session ended?");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.message || `The server answered ${response.status}.`);
  if (answer === null) throw new Error("The server's answer cannot be understood.");
  return answer;
}

/** The scalar of the table: the loss, or else the first one. */
function mainScalar(row) {
  const names = Object.keys(row.scalars);
  const name = names.find((each) => each === "loss") ?? names.find((each) => each.includes("loss")) ?? names[0];
  return name === undefined ? "" : `${name === "loss" ? "" : `${name} `}${number(row.scalars[name])}`;
}

const SIGNS = { finished: ["✓", "good"], failed: ["✗", "bad"], lost: ["✗", "bad"], interrupted: ["■", ""] };

// -- table ------------------------------------------------------------------------------------------------------------

function visible() {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  return state.rows.filter((row) => {
    const text = [row.id, row.name, row.label, row.reason, row.code, row.note, ...row.tags.map((tag) => `#${tag}`)];
    const all = text.join(" ").toLowerCase();
    return (!state.starred || row.star) && words.every((word) => all.includes(word));
  });
}

function tableRow(row) {
  const [sign, kind] = SIGNS[row.state] ?? ["▶", ""];
  const gpus = row.gpu_seconds ? duration(row.gpu_seconds) : "";
  const [done, total] = row.progress;
  const choose = element("input", {
    type: "checkbox", "aria-label": `Choose ${row.id}`, change: (event) => {
      if (event.target.checked) state.chosen.add(row.id);
      else state.chosen.delete(row.id);
      show();
    },
  });
  choose.checked = state.chosen.has(row.id);
  const star = element("button", {
    class: "plain", "aria-pressed": String(row.star), title: row.star ? "Take the star away" : "Give a star",
    "aria-label": `Star of ${row.id}`, click: () => act(() => mark(row, { star: !row.star })),
  }, row.star ? "★" : "☆");
  const cell = (label, text, attributes = {}) => element("td", { "data-label": label, ...attributes }, text);
  return element("tr", { class: state.chosen.has(row.id) ? "chosen" : null, "data-run": row.id },
    element("td", { class: "short" }, choose, star),
    element("th", { scope: "row" },
      element("button", { class: "name", click: () => details(row) }, row.id),
      element("div", { class: "tags" }, ...row.tags.map((tag) => element("span", { class: "tag" }, `#${tag}`))),
      row.note ? element("div", { class: "quiet" }, row.note) : null),
    element("td", { class: "state", "data-label": "State" },
      element("span", { class: kind }, element("span", { "aria-hidden": "true" }, `${sign} `), row.label),
      row.reason ? element("div", { class: "quiet" }, row.reason.slice(0, 160)) : null,
      !row.ended && total ? element("div", {}, element("progress", { value: done, max: total, "aria-label": "Steps" })) : null),
    cell("Loss", mainScalar(row), { class: "number" }),
    cell("Speed", row.ended ? row.speed.replace(/^step \S+ of \S+, /, "") : row.speed, { class: "short" }),
    cell("Ranks", row.ranks ? String(row.ranks) : "", { class: "number" }),
    element("td", { class: "number", "data-label": "GPU time" }, ...(gpus ? [gpus] : []),
      gpus && row.virtual ? element("div", { class: "quiet" }, "virtual") : null),
    cell("Began", moment(row.began), { class: "short" }),
    cell("Took", duration(row.took), { class: "number" }));
}

function table(rows) {
  const names = ["", "Run", "State", "Loss", "Speed", "Ranks", "GPU time", "Began", "Took"];
  const head = names.map((name) => element("th", { scope: "col" }, name || element("span", { class: "quiet" }, "")));
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Runs" },
    element("table", { class: "runs" },
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...rows.map(tableRow))));
}

function controls(rows) {
  const chosen = rows.filter((row) => state.chosen.has(row.id)); // and not those that the filter hides
  const search = element("input", {
    type: "search", placeholder: "Filter: name, state, #tag", "aria-label": "Filter runs", value: state.filter,
    input: (event) => {
      state.filter = event.target.value;
      show();
    },
  });
  const starred = element("input", {
    type: "checkbox", change: (event) => {
      state.starred = event.target.checked;
      show();
    },
  });
  starred.checked = state.starred;
  const ended = chosen.length && chosen.every((row) => row.ended);
  return element("div", { class: "bar" },
    element("div", { class: "grow" }, search),
    element("label", { class: "check" }, starred, element("span", {}, "Only with a star")),
    element("button", { disabled: chosen.length < 2 || chosen.length > 8, click: () => compare(chosen) },
      chosen.length > 1 ? `Compare ${chosen.length}` : "Compare"),
    element("button", { class: "danger", disabled: !ended, click: () => remove(chosen) },
      chosen.length > 1 ? `Delete ${chosen.length}` : "Delete"),
    element("span", { class: "quiet", role: "status" }, rows.length === state.rows.length ? "" : `${rows.length} of ${state.rows.length}`));
}

/** What has the focus, as something that can be found again after the page is made anew. */
function focused() {
  const node = document.activeElement;
  if (!node || !main.contains(node)) return null;
  const all = [...main.querySelectorAll("button, input, textarea, summary, [tabindex]")];
  const run = node.closest("tr[data-run]")?.dataset.run;
  const within = run ? [...node.closest("tr").querySelectorAll("button, input")].indexOf(node) : all.indexOf(node);
  return { run, within, caret: node.type === "search" ? node.selectionStart : null };
}

function focusAgain(place) {
  if (!place) return;
  const row = place.run && [...main.querySelectorAll("tr[data-run]")].find((each) => each.dataset.run === place.run);
  const all = (row || main).querySelectorAll(row ? "button, input" : "button, input, textarea, summary, [tabindex]");
  const node = place.run && !row ? null : all[place.within];
  node?.focus({ preventScroll: true });
  if (node && place.caret !== null) node.setSelectionRange(place.caret, place.caret);
}

function show() {
  const place = focused(), left = main.querySelector(".wide")?.scrollLeft ?? 0;
  const parts = [element("h1", {}, "Runs")];
  if (state.error) parts.push(element("p", { class: "bad", role: "alert" }, state.error));
  if (state.rows?.length) {
    const rows = visible();
    parts.push(controls(rows));
    parts.push(rows.length ? table(rows) : element("p", {}, "No run fits the filter."));
  } else if (state.rows) {
    parts.push(element("p", {}, "There is no run yet. Begin a cell with ", element("code", {}, "%%distributed -n 2"),
      ", or write ", element("code", {}, "carme-hub train -n 2 script.py"), " in a terminal."));
  } else if (!state.error) {
    parts.push(element("p", {}, "Loading …"));
  }
  if (state.panel) parts.push(state.panel);
  parts.push(message);
  main.replaceChildren(...parts);
  const wide = main.querySelector(".wide");
  if (wide) wide.scrollLeft = left;
  focusAgain(place);
}

// -- requests ---------------------------------------------------------------------------------------------------------

const message = element("div", { class: "message", role: "status", "aria-live": "polite" });

/** Say what came of a request, with a button for what can be done next. */
function say(text, then, label = "Undo") {
  message.replaceChildren(text, ...(then ? [" ", element("button", { click: then }, label)] : []));
}

async function act(what) {
  try {
    await what();
  } catch (error) {
    say(error.message);
  }
  await load();
}

async function load() {
  clearTimeout(timer);
  try {
    const rows = (await ask("runs")).runs;
    const same = JSON.stringify(rows);
    const before = state.error;
    state.error = "";
    // What has not changed is left alone, and so is what somebody reads, selects or writes.
    const busy = ["text", "textarea"].includes(document.activeElement?.type) || String(document.getSelection());
    if ((same !== state.same || before) && !busy) {
      state.same = same;
      state.rows = rows;
      show();
    }
  } catch (error) {
    state.error = error.message;
    show();
  }
  const live = state.rows?.some((row) => !row.ended);
  timer = setTimeout(load, document.hidden || !seen || !live ? IDLE_POLL : LIVE_POLL);
}

function mark(row, changes) {
  return ask(`runs/${encodeURIComponent(row.id)}`, { ask: "mark", ...changes });
}

function remove(rows) {
  return act(async () => {
    const gone = [];
    let problem = "";
    for (const row of rows) {
      try {
        gone.push((await ask(`runs/${encodeURIComponent(row.id)}`, { ask: "delete" })).undo);
        state.chosen.delete(row.id);
      } catch (error) {
        problem = ` ${error.message}`;
      }
    }
    state.panel = null;
    const what = gone.length === 1 && rows.length === 1 ? `${rows[0].id} is deleted.` : `${gone.length} runs are deleted.`;
    say(`${what}${problem}`, gone.length ? () =>
      act(async () => {
        for (const name of gone) await ask(`runs/${encodeURIComponent(name)}`, { ask: "restore" });
        say(gone.length === 1 ? "It is restored." : "They are restored.");
      }) : null);
  });
}

// -- comparison and details -------------------------------------------------------------------------------------------

function open(title, ...children) {
  const close = element("button", {
    click: () => {
      state.panel = null;
      show();
    },
  }, "Close");
  state.panel = element("section", { class: "panel", "aria-label": title },
    element("div", { class: "bar" }, element("h2", { class: "grow", tabindex: "-1" }, title), close), ...children);
  show();
  state.panel.querySelector("h2").focus();
}

async function compare(rows) {
  try {
    const query = rows.map((row) => `run=${encodeURIComponent(row.id)}`).join("&");
    const found = await ask(`comparison?${query}`);
    open(`${rows.length} runs side by side`, ...charts(found), element("h2", {}, "What differs"), properties(found),
      found.difference.length ? fold("Difference in their code", element("pre", {}, found.difference.join("\n"))) : null);
  } catch (error) {
    say(error.message);
  }
}

async function details(row) {
  try {
    const found = await ask(`comparison?run=${encodeURIComponent(row.id)}`);
    const packages = found.rows.filter(([group]) => group === "Packages");
    const others = { ...found, rows: found.rows.filter(([group]) => group !== "Packages") };
    const stop = row.ended && row.state !== "lost" ? null : stopButton(row);
    open(row.id, stop, marksForm(row), row.repeatable ? repeatForm(row) : null, ...charts(found),
      element("h2", {}, "What is known of it"), properties(others),
      packages.length ? fold(`${packages.length} packages`, properties({ ...found, rows: packages })) : null,
      ...timelines(row, found.profiles),
      found.modules.length ? fold("Memory by module", modules(found.modules)) : null,
      found.code ? fold("Code", element("pre", {}, found.code)) : null,
      element("p", { class: "quiet" }, "All of its files: ", element("code", {}, found.folder)));
  } catch (error) {
    say(error.message);
  }
}

/** Links to the profile of each rank over time. */
function timelines(row, ranks) {
  if (!ranks.length) return [];
  const link = (rank) => element("li", {}, element("a", {
    href: `${base}/timeline/${encodeURIComponent(row.id)}/${rank}`, target: "_blank", rel: "noopener",
  }, `Rank ${rank}`));
  return [element("h2", {}, "Profile over time"), element("ul", { class: "links" }, ...ranks.map(link))];
}

/** A button that stops a run, once it is pressed again. */
function stopButton(row) {
  const button = element("button", {
    class: "danger", click: () => {
      if (!button.dataset.sure) {
        button.dataset.sure = "yes";
        button.textContent = "Stop all ranks? Press again";
        return;
      }
      act(async () => say((await ask(`runs/${encodeURIComponent(row.id)}`, { ask: "stop" })).message));
    },
  }, "Stop");
  return element("div", { class: "bar" }, button);
}

function marksForm(row) {
  const tags = element("input", { type: "text", value: row.tags.join(" ") });
  const note = element("textarea", { rows: Math.min(6, row.note.split("\n").length) }, row.note);
  const save = (event) => {
    event.preventDefault();
    const wanted = tags.value.split(/[\s,]+/).map((tag) => tag.replace(/^#/, "")).filter(Boolean);
    const untag = row.tags.filter((tag) => !wanted.includes(tag));
    document.activeElement?.blur();
    act(async () => {
      await mark(row, { tag: wanted, untag, note: note.value });
      row.tags = wanted;
      say("Saved.");
    });
  };
  return element("form", { submit: save }, element("div", { class: "fields" }, field("Tags", tags), field("Note", note)),
    element("div", { class: "bar" }, element("button", {}, "Save")));
}

function repeatForm(row) {
  const options = element("input", { type: "text", placeholder: "-n 8 --time 2h" });
  const args = element("input", { type: "text", value: row.args });
  const changed = element("input", { type: "checkbox" });
  const batch = element("input", { type: "checkbox" });
  batch.checked = row.submitted;
  const has = ["script", "module", "command"].includes(row.kind);
  const button = element("button", {}, "Start");
  const start = (event) => {
    event.preventDefault();
    document.activeElement?.blur();
    button.disabled = true; // a second click would start a second run
    say("One moment …");
    const words = `${options.value} ${batch.checked ? "--submit" : row.submitted ? "--no-submit" : ""}`;
    const body = { ask: "repeat", options: words, changed_code: changed.checked };
    if (has && args.value !== row.args) body.args = args.value;
    const send = (confirm) => act(async () => {
      try {
        const answer = await ask(`runs/${encodeURIComponent(row.id)}`, { ...body, confirm });
        say(answer.message, answer.confirm ? () => send(true) : null, "Start it");
      } finally {
        button.disabled = false;
      }
    });
    send(false);
  };
  return fold("Repeat", element("form", { submit: start },
    element("div", { class: "fields" },
      field("Options that change", options), has ? field("Arguments", args) : null,
      element("label", { class: "check" }, batch, element("span", {}, "As a batch job, which outlives this session (needs --time)")),
      row.kind === "script" ? element("label", { class: "check" }, changed, element("span", {}, "Also if the script has changed")) : null),
    element("div", { class: "bar" }, button)));
}

// A tab of JupyterLab that is behind another one is not hidden for the browser.
new IntersectionObserver(([entry]) => {
  const before = seen;
  seen = entry.isIntersecting;
  if (seen && !before) load();
}).observe(main);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) load();
});
show();
load();
