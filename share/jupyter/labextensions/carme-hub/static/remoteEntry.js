/* Shows a run of %%distributed in JupyterLab and Jupyter Notebook 7, from the data of carme_hub.training.notebook.display,
   and opens the page Runs (runs.js) from JupyterLab's launcher and palette. What the session uses is in activity.js.

   The kernel sends the data again when it changes. Where it does not (the page was opened later, the kernel ended), the
   page asks the server (carme_hub.training.server.extension), so a saved notebook shows what became of its run.

   This is a prebuilt extension in the form that webpack's module federation gives one; it is written by hand, since it
   has two small modules and takes its libraries from JupyterLab. */
(() => {
  "use strict";
  const MEDIA_TYPE = "application/vnd.carme.run+json";
  /** Milliseconds: a kernel that sends nothing for SILENCE does not follow its run; then the server is asked each POLL,
      after a failure each RETRY. */
  const TICK = 500, SILENCE = 4000, POLL = 1000, RETRY = 5000, TIMEOUT = 30000;
  /** What a part may consist of: the data may come with somebody else's notebook. */
  const ELEMENTS = new Set(["P", "SPAN", "DIV", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "PRE", "CODE", "PROGRESS"]);
  const ATTRIBUTES = new Set(["class", "scope", "role", "tabindex", "aria-label", "aria-hidden", "value", "max"]);
  const here = document.currentScript.src;
  let shared;
  let lab; // JupyterLab, once it has started

  /** Return a library of JupyterLab. */
  async function library(name) {
    const [version] = Object.values(shared[name]);
    return (await version.get())();
  }

  /** Create an element. */
  function element(tag, { text = "", ...attributes } = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...(text ? [text] : []), ...children);
    return node;
  }

  /** Add copies of text and of known elements and attributes to a node. Whatever else there is, is left out: a form
      may hide its own properties and those of its document behind its fields, so nothing of it is read. */
  function copyKnown(from, to) {
    for (const child of from.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) {
        to.append(child.data);
      } else if (ELEMENTS.has(child.tagName)) {
        const copy = document.createElement(child.tagName);
        for (const { name, value } of child.attributes) if (ATTRIBUTES.has(name)) copy.setAttribute(name, value);
        copyKnown(child, copy);
        to.append(copy);
      }
    }
  }

  /** Replace what is in a node by what is known of HTML. In a template nothing is loaded or executed. */
  function fill(node, html) {
    if (node.carmeHtml === html) return;
    node.carmeHtml = html;
    const template = document.createElement("template");
    template.innerHTML = html;
    node.replaceChildren();
    copyKnown(template.content, node);
  }

  /** Type a command into a new terminal; return whether there is one. */
  async function typeInTerminal(command) {
    if (!lab?.commands.hasCommand("terminal:create-new")) return false;
    const widget = await lab.commands.execute("terminal:create-new");
    const session = widget?.content?.session;
    if (!session) return false;
    await new Promise((resolve) => {
      const look = () => session.connectionStatus === "connected" && resolve();
      session.connectionStatusChanged.connect(look);
      setTimeout(resolve, TIMEOUT);
      look();
    });
    session.send({ type: "stdin", content: [`${command}\r`] });
    return true;
  }

  function runRenderer({ Widget }, { ServerConnection }) {
    const settings = ServerConnection.makeSettings();

    /** Send a request to the server; return its status and answer. */
    async function request(path, options = {}) {
      const url = `${settings.baseUrl}carme/runs${path}`;
      const signal = AbortSignal.timeout(TIMEOUT);
      const response = await ServerConnection.makeRequest(url, { ...options, signal }, settings);
      return [response.status, await response.json().catch(() => ({}))];
    }

    function addStyle() {
      if (document.getElementById("carme-run-style")) return;
      document.head.append(
        element("link", { id: "carme-run-style", rel: "stylesheet", href: `${settings.baseUrl}carme/runs.css` }),
      );
    }

    return class RunRenderer extends Widget {
      constructor() {
        super();
        addStyle();
        this.addClass("carme-run");
        this._heard = 0; // when the kernel has sent something
        this._due = 0; // when the server is asked next
        this._data = {};
        this._folds = new Map(); // number of a rank: the element that unfolds its log
        this._part = {};
        for (const name of ["head", "ranks"]) this._part[name] = element("div");
        this._part.buttons = element("div", { class: "carme-buttons" });
        this._part.message = element("div", { role: "status" });
        this._part.log = element("div", { class: "carme-log", role: "log", tabindex: "0", "aria-label": "Rank 0" });
        this._part.others = element("div");
        this._part.notes = element("div");
        this._part.source = element("p", { class: "carme-dim", hidden: "" });
        const { head, source, buttons, message, ranks, log, others, notes } = this._part;
        this.node.append(head, source, buttons, message, ranks, log, others, notes);
      }

      /** Show what the kernel has sent, or what the notebook was saved with. */
      async renderModel(model) {
        const first = !this._model;
        this._model = model;
        if (!first && model.data[MEDIA_TYPE] !== this._persisted) {
          this._heard = Date.now();
          this._live = true;
          this._gone = false;
          this._source("");
        }
        this._show(model.data[MEDIA_TYPE]);
      }

      onAfterAttach(message) {
        super.onAfterAttach(message);
        this._timer ??= setInterval(() => this._tick(), TICK);
      }

      onBeforeDetach(message) {
        clearInterval(this._timer);
        this._timer = undefined;
        super.onBeforeDetach(message);
      }

      async _tick() {
        const now = Date.now();
        if (this._data.ended || !this._data.run || this._gone || this._asking || now < this._heard + SILENCE || now < this._due) return;
        if (document.hidden) return; // nobody looks
        this._asking = true;
        const before = this._heard;
        try {
          const [status, answer] = await request(`/${encodeURIComponent(this._data.run)}`);
          if (before !== this._heard) return; // the kernel follows its run after all
          this._due = Date.now() + (status === 200 ? POLL : RETRY);
          if (status === 200) {
            this._live = true;
            this._source("");
            this._show(answer[MEDIA_TYPE]);
            if (this._data.ended) this._persist(answer);
          } else if (status === 404) {
            const why = answer.message || `To see how it goes on: ${this._data.watch}.`;
            this._source(`This is how it was when the notebook was saved. ${why}`);
            this._gone = true;
          } else {
            this._source(`The server answers with ${status}, so this may be out of date.`);
          }
        } catch {
          this._due = Date.now() + RETRY;
          this._source("The server cannot be reached, so this may be out of date.");
        } finally {
          this._asking = false;
          this._showButtons();
        }
      }

      /** Keep the end of a run in the notebook. */
      _persist(bundle) {
        this._persisted = bundle[MEDIA_TYPE];
        this._model.setData({ data: { ...this._model.data, ...bundle }, metadata: this._model.metadata });
      }

      _source(text) {
        this._part.source.textContent = text;
        this._part.source.hidden = !text;
      }

      _show(data) {
        if (this._data.generation !== undefined && this._data.generation !== data.generation) {
          this._part.message.replaceChildren(); // the requested ranks have come
        }
        this._data = data;
        fill(this._part.head, data.head);
        fill(this._part.ranks, data.ranks);
        fill(this._part.log, data.log);
        this._part.log.hidden = !data.log;
        fill(this._part.notes, data.notes);
        this._showOthers(data.others);
        this._showButtons();
      }

      _showOthers(others) {
        const numbers = new Set(others.map(([number]) => number));
        for (const [number, fold] of this._folds) {
          if (!numbers.has(number)) {
            fold.remove();
            this._folds.delete(number);
          }
        }
        for (const [number, summary, html] of others) {
          let fold = this._folds.get(number);
          if (!fold) {
            const log = element("div", { class: "carme-log", role: "log", tabindex: "0", "aria-label": `Rank ${number}` });
            fold = element("details", {}, element("summary"), log);
            this._folds.set(number, fold);
          }
          const at = this._part.others.children[[...numbers].indexOf(number)];
          if (at !== fold) this._part.others.insertBefore(fold, at ?? null);
          if (fold.firstChild.textContent !== summary) fold.firstChild.textContent = summary;
          fill(fold.lastChild, html);
        }
      }

      _showButtons() {
        // What is only saved may be somebody else's, and what its buttons do would be ours.
        const buttons = this._live && !this._gone ? (this._data.buttons ?? []) : [];
        const words = JSON.stringify([buttons, this._confirming ?? "", this._choosing ?? ""]);
        if (words === this._buttonWords) return;
        this._buttonWords = words;
        const button = (text, title, act) => {
          const node = element("button", { type: "button", text, title });
          node.addEventListener("click", act);
          return node;
        };
        const had = this._part.buttons.contains(document.activeElement);
        if (this._confirming && buttons.length) {
          this._part.buttons.replaceChildren(
            element("span", { text: `Stop all ranks of ${this._data.name}?` }),
            button("Stop the run", "Its output stays", () => this._confirm("", () => this._ask("stop"))),
            button("Let it run", "Nothing changes", () => this._confirm("")),
          );
        } else if (this._choosing && buttons.length) {
          const ranks = element("select", { "aria-label": "Rank" });
          ranks.append(...this._choosing.map(([rank, label]) => element("option", { text: `Rank ${label}`, value: rank })));
          this._part.buttons.replaceChildren(
            ranks,
            button("Open a terminal in it", "The run continues meanwhile", () => this._openShell(ranks.value)),
            button("Cancel", "Nothing changes", () => this._choose()),
          );
        } else {
          this._part.buttons.replaceChildren(
            ...buttons.map(([word, text, title]) =>
              button(text, title, () => {
                if (word === "stop") this._confirm(word);
                else if (word === "shell") this._choose(this._data.running);
                else this._ask(word);
              }),
            ),
          );
        }
        if (had) this._part.buttons.querySelector("select, button")?.focus();
      }

      _confirm(word, then) {
        this._confirming = word;
        this._showButtons();
        then?.();
      }

      /** Have a rank chosen for a terminal, where several run. */
      _choose(ranks) {
        this._choosing = ranks?.length > 1 ? ranks : undefined;
        this._showButtons();
        if (ranks?.length === 1) this._openShell(ranks[0][0]);
        else if (ranks && !ranks.length) this._say("No rank runs yet. Try again.");
      }

      async _openShell(rank) {
        this._choose();
        const run = this._data.run;
        if (!/^[\w.-]+$/.test(run)) return; // it is typed into a shell
        const command = `carme-hub runs shell ${run} --rank ${Number(rank)}`;
        const opened = await typeInTerminal(command).catch(() => false);
        this._say(opened ? "The terminal is in a tab of its own." : `In a terminal: ${command}`);
      }

      async _ask(word) {
        this._say("One moment …");
        try {
          const path = `/${encodeURIComponent(this._data.run)}`;
          const [, answer] = await request(path, { method: "POST", body: JSON.stringify({ ask: word }) });
          this._say(answer.message || "The server does not know this request.");
        } catch {
          this._say("The server cannot be reached. Try again.");
        }
        this._due = 0;
      }

      _say(text) {
        const log = { class: "carme-log", tabindex: "0", role: "log", "aria-label": "Stacks" };
        if (!text.includes("\n")) {
          this._part.message.replaceChildren(element("p", { text }));
          return;
        }
        const close = element("button", { type: "button", text: "Hide" });
        close.addEventListener("click", () => this._part.message.replaceChildren());
        this._part.message.replaceChildren(element("div", log, element("pre", { text })), close);
      }
    };
  }

  async function mimeExtension() {
    const RunRenderer = runRenderer(await library("@lumino/widgets"), await library("@jupyterlab/services"));
    const rendererFactory = { safe: true, mimeTypes: [MEDIA_TYPE], createRenderer: () => new RunRenderer() };
    return { __esModule: true, default: { id: "carme-hub:run", rendererFactory, rank: 0, dataType: "json" } };
  }

  const ICON =
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="24"><path class="jp-icon3" fill="#616161" ' +
    'd="M3 5h2v2H3zm4 0h14v2H7zM3 11h2v2H3zm4 0h9v2H7zM3 17h2v2H3zm4 0h12v2H7z"/></svg>';

  /** Open the files that the page “New from template” asks for, in its own tab of the browser. */
  function openForOthers(app, server) {
    if (app.name !== "JupyterLab") return; // Jupyter Notebook would open a tab more
    const channel = new BroadcastChannel("carme-hub");
    channel.onmessage = async ({ data }) => {
      if (typeof data?.open !== "string" || data.server !== server) return;
      await app.commands.execute("docmanager:open", { path: data.open });
      channel.postMessage({ opened: data.open, server });
    };
  }

  /** Return the plugin that opens the page Runs in a tab of JupyterLab. */
  async function runsPlugin() {
    const { ServerConnection } = await library("@jupyterlab/services");
    const { ICommandPalette, IFrame, MainAreaWidget } = await library("@jupyterlab/apputils");
    const { LabIcon } = await library("@jupyterlab/ui-components");
    const launchers = shared["@jupyterlab/launcher"] ? [(await library("@jupyterlab/launcher")).ILauncher] : [];
    const command = "carme-hub:open-runs";
    let panel;

    function open(app) {
      if (!panel || panel.isDisposed) {
        const frame = new IFrame({ sandbox: ["allow-same-origin", "allow-scripts", "allow-forms", "allow-popups", "allow-popups-to-escape-sandbox"] });
        frame.url = `${ServerConnection.makeSettings().baseUrl}carme/runs.html`;
        panel = new MainAreaWidget({ content: frame });
        Object.assign(panel, { id: "carme-runs" });
        Object.assign(panel.title, { label: "Runs", closable: true });
      }
      if (!panel.isAttached) app.shell.add(panel, "main");
      app.shell.activateById(panel.id);
    }

    return {
      id: "carme-hub:runs",
      autoStart: true,
      optional: [ICommandPalette, ...launchers],
      activate(app, palette, launcher) {
        lab = app;
        openForOthers(app, new URL(ServerConnection.makeSettings().baseUrl, location).pathname);
        const icon = new LabIcon({ name: "carme-hub:runs", svgstr: ICON });
        app.commands.addCommand(command, {
          label: "Runs",
          caption: "Find, compare and repeat your training runs",
          icon: (args) => (args.isPalette ? undefined : icon),
          execute: () => open(app),
        });
        palette?.addItem({ command, category: "Training", args: { isPalette: true } });
        launcher?.add({ command, category: "Other", rank: 10 });
      },
    };
  }

  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB["carme-hub"] = {
    init(scope) {
      shared = scope;
    },
    async get(name) {
      if (name === "./extension") {
        const plugins = [await runsPlugin()];
        try {
          const { activityPlugin } = await import(new URL("activity.js", here));
          plugins.push(await activityPlugin({ library, has: (other) => other in shared, element }));
        } catch (error) {
          console.warn("carme-hub: what the session uses is not shown", error); // an exception would leave the page blank
        }
        return () => ({ __esModule: true, default: plugins });
      }
      if (name !== "./mimeExtension") throw new Error(`carme-hub has no module ${name}`);
      const extension = await mimeExtension();
      return () => extension;
    },
  };
})();
