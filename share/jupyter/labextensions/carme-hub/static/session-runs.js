/* The trainings of a session in the panel of activity.js: how far each is, and what can be done to it. The data is of
   the page Runs (carme_hub.training.server.runs_page). */

const LIVE = ["starting", "waiting", "running", "stopping"];
/** Seconds for which a run that has failed is shown, and how many runs there are at most. */
const FAILED_SECONDS = 3600, MOST = 8;

/** Return a number as people write it. */
const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value));

/** Return the rows that the panel shows: those that go on, and then those that failed in the last hour. */
export function shownRuns(rows, now) {
  const live = rows.filter((row) => LIVE.includes(row.state));
  const failed = rows.filter((row) => row.state === "failed" && row.began + row.took > now - FAILED_SECONDS);
  return [...live, ...failed].slice(0, MOST);
}

/** Return how far a run is, as "running, 40 of 100, loss 0.33"; of a run that failed, why. */
export function runWords(row) {
  const [done, total] = row.progress;
  const scalars = Object.entries(row.scalars).map(([name, value]) => `${name} ${short(value)}`);
  const live = LIVE.includes(row.state);
  const steps = live && done != null && total ? `${short(done)} of ${short(total)}` : "";
  const words = [row.label.toLowerCase(), steps, ...(live ? scalars.slice(0, 2) : [row.reason])];
  return words.filter(Boolean).join(", ");
}

/** Return the buttons of a run, as the word that is asked for and the text: an elastic one can be resized. */
export function runButtons(row) {
  if (!LIVE.includes(row.state) || row.state === "stopping") return [];
  const resize = row.elastic ? [["+1", "Add a rank"], ["-1", "Give one back"]] : [];
  return [...resize, ["stop", "Stop…"]];
}

/** Return the elements of the runs. `ask(row, word)` sends a request; `element` makes an element. */
export function runsPart(rows, now, { element, ask }) {
  return shownRuns(rows, now).map((row) => {
    const buttons = element("div", { class: "carme-buttons" });
    for (const [word, text] of runButtons(row)) {
      const button = element("button", { type: "button", text, "aria-label": `${text.replace("…", "")}: ${row.name}` });
      button.addEventListener("click", () => ask(row, word));
      buttons.append(button);
    }
    const name = element("strong", { text: row.name });
    return element("div", { class: "carme-run-row" }, element("p", {}, name, `: ${runWords(row)}`), buttons);
  });
}
