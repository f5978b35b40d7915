/* What the session uses and what is left of it, in JupyterLab and Notebook 7: an item of the status bar, a panel, and
   warnings. The data is from carme_hub.training.server.activity; remoteEntry.js loads this module.

   Every tab asks its own server; the server asks the hub, once a minute for all of them. A warning is shown once in all
   tabs, and stays until somebody has seen it. */

import { STYLE as KEEP_STYLE, keepPart } from "./image-keep.js";
import { readMessage } from "./messages.js";
import { runsPart } from "./session-runs.js";
import { Shown, dueSave, firstMore, gib, gpuWords, moreText, span, statusText, warnings } from "./session-words.js";

/** Milliseconds between two questions while the tab is visible, while its panel is open, and in the background. */
const VISIBLE = 10000, OPEN = 5000, HIDDEN = 60000;
/** Milliseconds for which an answer is shown. */
const TELL = 8000;

const STYLE = `
.carme-status { border: 0; background: none; color: inherit; font: inherit; cursor: pointer; white-space: nowrap; }
.carme-status:focus-visible { outline: 2px solid var(--jp-brand-color1); }
.carme-activity { overflow: auto; padding: 8px 12px; background: var(--jp-layout-color1); color: var(--jp-ui-font-color1); }
.carme-activity h2 { font-size: 1.1em; margin: 4px 0 8px; }
.carme-activity p { margin: 4px 0; overflow-wrap: anywhere; }
.carme-activity .carme-dim { color: var(--jp-ui-font-color2); padding-left: 8px; }
.carme-activity .carme-warn { color: var(--jp-warn-color0); }
.carme-use-row { display: grid; grid-template-columns: auto 1fr; column-gap: 8px; margin-bottom: 8px; }
.carme-use-row > :nth-child(2) { text-align: right; }
.carme-use-row > svg { grid-column: 1 / -1; width: 100%; height: 28px; background: var(--jp-layout-color2); }
.carme-use-row polyline { fill: none; stroke: var(--jp-brand-color1); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.carme-activity .carme-buttons { display: flex; flex-wrap: wrap; gap: 6px; margin: 4px 0; }
.carme-activity .carme-dim button { padding: 1px 6px; }
.carme-activity button { padding: 4px 10px; border: 1px solid var(--jp-border-color1); border-radius: 2px; background: none; color: inherit; }
.carme-activity button:hover { background: var(--jp-layout-color2); }
.carme-activity :is(a, button):focus-visible { outline: 2px solid var(--jp-brand-color1); }
.carme-activity a { color: var(--jp-content-link-color); text-decoration: underline; }
`;

/** Return an SVG polyline for values; there is a gap where one is not known. */
export function curve(values, top, words) {
  const box = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const attributes = { viewBox: "0 0 120 24", preserveAspectRatio: "none", role: "img", "aria-label": words, class: "carme-use-curve" };
  for (const [name, value] of Object.entries(attributes)) box.setAttribute(name, value);
  let points = [];
  const draw = () => {
    if (points.length === 1) points.push([points[0][0] + 1, points[0][1]]);
    if (points.length) {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      line.setAttribute("points", points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
      box.append(line);
    }
    points = [];
  };
  values.forEach((value, at) => {
    if (value == null) return draw();
    const x = values.length > 1 ? (120 * at) / (values.length - 1) : 0;
    points.push([x, 23 - 22 * Math.min(1, Math.max(0, value / (top || 1)))]);
  });
  draw();
  return box;
}

/** Return the plugin. `tools`: `library` loads a library of JupyterLab, `has` says whether there is one, `element` makes one. */
export async function activityPlugin({ library, has, element }) {
  const { ServerConnection } = await library("@jupyterlab/services");
  const { Dialog, Notification, ICommandPalette, showDialog } = await library("@jupyterlab/apputils");
  const { PageConfig } = await library("@jupyterlab/coreutils");
  const { Widget } = await library("@lumino/widgets");
  const { LabIcon } = await library("@jupyterlab/ui-components");
  const statusBars = has("@jupyterlab/statusbar") ? [(await library("@jupyterlab/statusbar")).IStatusBar] : [];
  const settings = ServerConnection.makeSettings();

  async function request(query = "", options = {}, path = "activity") {
    const url = `${settings.baseUrl}carme/${path}${query}`;
    const response = await ServerConnection.makeRequest(url, { ...options, signal: AbortSignal.timeout(30000) }, settings);
    if (!response.ok) throw new Error(`The server answers with ${response.status}.`);
    return response.json();
  }

  class Panel extends Widget {
    constructor(act) {
      super();
      this.id = "carme-activity";
      this.addClass("carme-activity");
      this.title.caption = "What this session uses";
      this.title.icon = new LabIcon({ name: "carme-hub:activity", svgstr: ICON });
      this._act = act;
      this._message = element("p", { role: "status" });
      this._body = element("div", { text: "One moment …" });
      const ask = (path, options) => request(path, options, "images");
      const place = (page) => `${PageConfig.getOption("hubHost")}${PageConfig.getOption("hubPrefix")}${page}`;
      this._keep = keepPart({ element, request: ask, place, isSeen: () => this.isVisible && !document.hidden });
      this._keep.node.hidden = !PageConfig.getOption("hubPrefix"); // without a hub nobody builds it
      this.node.append(element("h2", { text: "What this session uses" }), this._body, this._message, this._keep.node);
      this.node.tabIndex = 0;
    }

    say(text) {
      this._message.textContent = text;
    }

    onAfterShow(message) {
      super.onAfterShow(message);
      if (!this._keep.node.hidden) this._keep.begin();
    }

    render(view, runs) {
      const rows = [];
      const curves = view.curve ?? { at: [], cpu: [], memory: [], gpus: [] };
      (view.used?.gpus ?? []).forEach((gpu, number) => {
        const name = `${view.used.virtual ? "Virtual GPU" : "GPU"} ${number}`;
        rows.push(this._row(name, gpuWords(gpu), curves.gpus[number]?.utilisation ?? [], 100, "percent"));
        for (const process of gpu.processes ?? []) {
          const held = process.memory == null ? "memory not known" : gib(process.memory);
          const whose = process.kernel ? this._act.notebookOf(process.kernel) : `process ${process.inside}`;
          const line = element("p", { class: "carme-dim" }, `${whose}: ${held} `);
          if (process.kernel) line.append(this._shutDown(process.kernel, whose));
          rows.push(line);
        }
      });
      if (view.used) {
        const { cpu, cpus, memory, memory_limit } = view.used;
        const busy = cpu == null ? "not known" : (cpu / 100).toFixed(1);
        rows.push(this._row("CPUs", cpus ? `${busy} of ${cpus}` : busy, curves.cpu, 100 * (cpus || 1), "percent"));
        rows.push(this._row("Memory", `${gib(memory)}${memory_limit ? ` of ${gib(memory_limit)}` : ""}`, curves.memory, memory_limit || Math.max(...curves.memory, 1), "MiB"));
      } else {
        rows.push(element("p", { text: "What it uses is not measured here, or not yet." }));
      }
      rows.push(...this._left(view));
      if (runs?.length) rows.push(element("h3", { text: "Trainings" }), ...runsPart(runs, view.now, { element, ask: this._act.askRun }));
      rows.push(...this._places());
      const focused = document.activeElement?.getAttribute("aria-label");
      const inside = this._body.contains(document.activeElement);
      this._body.replaceChildren(...rows);
      if (inside && focused) this._body.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
    }

    /** Return the button that frees what a kernel holds. */
    _shutDown(kernel, whose) {
      const button = element("button", { type: "button", text: "Shut down…", "aria-label": `Shut down the kernel of ${whose}` });
      button.addEventListener("click", () => this._act.shutDown(kernel, whose));
      return button;
    }

    /** Return links to the hub, where there is one. */
    _places() {
      const hub = PageConfig.getOption("hubPrefix");
      if (!hub) return [];
      const host = PageConfig.getOption("hubHost");
      const link = (text, page) => element("a", { href: `${host}${hub}${page}`, target: "_blank", rel: "noopener", text });
      return [element("p", {}, link("Find GPUs", "home#carme-cluster"), " · ", link("Your sessions and jobs", "home"))];
    }

    _row(name, text, values, top, unit) {
      const known = values.filter((value) => value != null);
      const mean = known.reduce((sum, value) => sum + value, 0) / (known.length || 1);
      const words = known.length ? `${name}: ${Math.round(mean)} ${unit} on average in the last hour` : `${name}: not known in the last hour`;
      return element("div", { class: "carme-use-row" }, element("span", { text: name }), element("span", { text }), curve(values, top, words));
    }

    _left(view) {
      const rows = [];
      if (view.problem) rows.push(element("p", { class: "carme-warn", text: view.problem }));
      const state = view.state;
      if (!state) return rows;
      if (state.ends) {
        rows.push(element("p", { text: `It has time until ${state.said}: ${span(state.ends - view.now)}.` }));
        const buttons = element("div", { class: "carme-buttons" });
        for (const more of state.more ?? []) {
          const title = "GPU time is held for it, within your account's limits";
          const button = element("button", { type: "button", text: moreText(more), title });
          button.addEventListener("click", () => this._act.ask({ do: "extend", minutes: more.minutes }));
          buttons.append(button);
        }
        rows.push(buttons);
      }
      if (state.spent) rows.push(element("p", { text: state.spent }));
      if (state.left) rows.push(element("p", { text: `GPU time of ${state.account}: ${state.left}.` }));
      if (state.staging) {
        const entries = state.staging.stage.out ?? [];
        const where = "Your scratch folder is /scratch/" + state.staging.session + ".";
        const saved = entries.length ? ` When the session ends: ${entries.map((each) => each.source + " → " + each.target).join(", ")}.` : "";
        rows.push(element("p", { text: [state.staging.said, where + saved].filter(Boolean).join(" ") }));
      }
      if (state.idle?.since && state.idle.action !== "tell") {
        rows.push(element("p", { text: `Nothing has been at work in it for ${span(view.now - state.idle.since)}. It is stopped in ${span(state.idle.deadline - view.now)}.` }));
        if (state.idle.clicks_left) {
          const button = element("button", { type: "button", text: "I am still here" });
          button.addEventListener("click", () => this._act.ask({ do: "here" }));
          rows.push(button);
        }
      }
      return rows;
    }
  }

  const ICON =
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="24"><path class="jp-icon3" fill="#616161" ' +
    'd="M3 20h18v2H3zM4 12h3v7H4zm5-5h3v12H9zm5 3h3v9h-3zm5-7h3v16h-3z"/></svg>';

  function activate(app, palette, statusBar) {
    document.head.append(element("style", { text: STYLE + KEEP_STYLE }));
    const command = "carme-hub:toggle-activity";
    let view = null, timer, asking = false, shown;
    const bar = new Widget();
    bar.node.append(element("button", { type: "button", class: "carme-status", title: "What this session uses" }));
    const button = bar.node.firstChild;
    button.addEventListener("click", () => app.commands.execute(command));

    const act = {
      async ask(body) {
        panel.say("One moment …");
        let answer;
        try {
          answer = await request("", { method: "POST", body: JSON.stringify(body) });
        } catch (error) {
          answer = { done: false, message: String(error.message ?? error) };
        }
        panel.say(answer.message);
        await look();
        return answer;
      },
      async askRun(row, word) {
        if (word === "stop") {
          const asked = { title: `Stop ${row.name}?`, body: "Its ranks end. Their output and what they have saved stay." };
          const answer = await showDialog({ ...asked, buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: "Stop it" })] });
          if (!answer.button.accept) return;
        }
        panel.say("One moment …");
        const body = JSON.stringify({ ask: word });
        const answer = await request(`/${encodeURIComponent(row.id)}`, { method: "POST", body }, "runs").catch((error) => error);
        panel.say(answer.message);
        await look();
      },
      async shutDown(kernel, whose) {
        const asked = { title: `Shut down the kernel of ${whose}?`, body: "Its variables are lost, and the memory it holds is free." };
        const answer = await showDialog({ ...asked, buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: "Shut down" })] });
        if (!answer.button.accept) return;
        const done = app.serviceManager.kernels.shutdown(kernel);
        panel.say(await done.then(() => "It is shut down.", (error) => `It was not shut down: ${error.message ?? error}`));
        await look();
      },
      notebookOf(kernel) {
        for (const model of app.serviceManager.sessions.running()) {
          if (model.kernel?.id === kernel) return model.path || model.name;
        }
        return "a kernel";
      },
    };
    const panel = new Panel(act);

    // Without a time it is in the notification center only.
    const tell = ({ message }) => Notification.info(message, { autoClose: TELL });
    const words = { save: "Save all", here: "I am still here", panel: "Show", seen: "Seen", read: "Read it" };
    const deeds = {
      extend: () => act.ask({ do: "extend", minutes: firstMore(view).minutes }).then(tell),
      here: () => act.ask({ do: "here" }).then(tell),
      save: () => app.commands.hasCommand("docmanager:save-all") && app.commands.execute("docmanager:save-all"),
      panel: () => app.commands.execute(command),
      seen: ({ message }) => act.ask({ do: "seen", message }),
      read: ({ heading, whole }) => readMessage(showDialog, Dialog, heading, whole),
    };

    function warn() {
      for (const warning of warnings(view)) {
        if (!shown.claim(warning, view.now)) continue;
        const label = (word) => (word === "extend" ? moreText(firstMore(view)) : words[word]);
        const actions = warning.actions.map((word) => ({ label: label(word), callback: () => deeds[word](warning) }));
        Notification.warning(warning.text, { autoClose: false, actions });
      }
    }

    let saved = "";
    async function saveInTime() {
      const due = dueSave(view);
      if (!due || due === saved) return;
      saved = due;
      try {
        await deeds.save();
      } catch (error) {
        console.warn("carme-hub: not all documents are saved", error);
      }
    }

    async function look() {
      clearTimeout(timer);
      if (!asking) {
        asking = true;
        try {
          view = await request(panel.isVisible ? "?curve=1" : "");
          shown ??= new Shown(view.state?.session ?? settings.baseUrl);
          button.textContent = statusText(view);
          bar.node.hidden = !button.textContent;
          if (panel.isVisible) panel.render(view, (await request("", {}, "runs").catch(() => ({}))).runs);
          warn();
          saveInTime();
        } catch {
          button.textContent = view ? `${statusText(view)} (?)` : "";
          button.title = "The server does not answer, so this may be out of date";
        } finally {
          asking = false;
        }
      }
      // A hidden tab looks once a minute; before the end of an idle session it looks in time to save.
      timer = setTimeout(look, document.hidden && !dueSave(view) ? HIDDEN : panel.isVisible ? OPEN : VISIBLE);
    }

    app.commands.addCommand(command, {
      label: "What this session uses",
      caption: "GPUs, CPUs, memory, and the time that is left",
      execute: () => {
        if (!panel.isAttached) app.shell.add(panel, "right", { rank: 900 });
        app.shell.activateById(panel.id);
        look();
      },
    });
    palette?.addItem({ command, category: "Session" });
    statusBar?.registerStatusItem("carme-hub:activity", { item: bar, align: "left", rank: 100 });
    document.addEventListener("visibilitychange", () => !document.hidden && look());
    app.restored.then(look);
  }

  return { id: "carme-hub:activity", autoStart: true, optional: [ICommandPalette, ...statusBars], activate };
}
