/* "Keep what I have installed as an image" in the panel of activity.js: what would be in it, its name, and how the job
   goes on that builds it. The data is of carme_hub.training.server.image_builds.

   The panel draws itself again every few seconds, so this part has elements of its own, which stay. */

/** Milliseconds between two looks at a build, and after one that failed; lines of its log that are kept. */
const LOOK = 2000, RETRY = 5000, MOST_LINES = 400;
const NAME = /^[a-z0-9][a-z0-9._-]{0,39}$/;
export const NAME_RULE = "1 to 40 lower-case letters, digits and . _ -, the first one a letter or a digit";

export const STYLE = `
.carme-keep { margin-top: 12px; border-top: 1px solid var(--jp-border-color2); padding-top: 8px; }
.carme-keep h3 { font-size: 1em; margin: 4px 0; }
.carme-keep label { display: block; margin: 8px 0 2px; }
.carme-keep input { width: 100%; box-sizing: border-box; padding: 4px 6px; border: 1px solid var(--jp-border-color0);
  border-radius: 2px; background: var(--jp-layout-color0); color: inherit; font: inherit; }
.carme-keep input:focus-visible, .carme-keep :is(ul, pre):focus-visible { outline: 2px solid var(--jp-brand-color1); }
.carme-keep input[aria-invalid="true"] { border-color: var(--jp-error-color1); }
.carme-keep ul { margin: 4px 0; padding: 4px 4px 4px 20px; max-height: 9em; overflow: auto; overflow-wrap: anywhere; }
.carme-keep pre { margin: 4px 0; padding: 6px; max-height: 16em; overflow: auto; font-size: 0.85em; white-space: pre-wrap;
  overflow-wrap: anywhere; background: var(--jp-layout-color2); }
.carme-keep .carme-bad { color: var(--jp-error-color0, var(--jp-error-color1)); }
.carme-keep .carme-bad::before { content: "! "; font-weight: bold; }
`;

/** Return why a name is none, "" = it is one. */
export const nameProblem = (name) => (NAME.test(name) ? "" : name ? `A name is ${NAME_RULE}.` : "Give it a name.");

/** Return what an image would be, as a sentence. */
export function aboutWords({ packages, base, base_digest: digest, below }) {
  const count = `${packages.length} package${packages.length === 1 ? "" : "s"}`;
  const under = below ? `your image ${below}, which is on top of ${base}` : base || "this session's image";
  return `${count} on top of ${under}${digest ? ` (${digest.slice(0, 19)}…)` : ""}:`;
}

/** Return how far a build is, as a sentence. */
export function stateWords(build, hasLog) {
  if (build.state === "ready") return `${build.name} is ready.`;
  if (build.state === "failed") return `${build.name} is not built. ${build.problem}`.trim();
  if (build.state === "removed") return `${build.name} is removed.`;
  const job = build.job ? ` (job ${build.job})` : "";
  return hasLog ? `${build.name} is being built${job} …` : `${build.name} waits for its job${job} …`;
}

/** Return the last lines of a log. */
export function lastLines(text, most = MOST_LINES) {
  const lines = text.split("\n");
  return lines.length > most ? ["…", ...lines.slice(-most)].join("\n") : text;
}

/** Return the part. `element` makes an element, `request(path, options)` asks the server, `place(page)` is the address of a
    page of the hub, `isSeen` says whether anybody looks. */
export function keepPart({ element, request, place, isSeen, later = setTimeout }) {
  const button = (text, act, more = {}) => {
    const node = element("button", { type: "button", text, ...more });
    node.addEventListener("click", act);
    return node;
  };
  const open = button("Keep what I have installed as an image…", () => show(), { "aria-expanded": "false" });
  const message = element("p", { role: "status" }), trouble = element("p", { role: "alert", class: "carme-bad", hidden: "" });
  const body = element("div"), progress = element("div");
  const node = element("div", { class: "carme-keep" }, open, body, trouble, message, progress);
  let key = "", following = "", begun = false, sending = false;

  function say(text, bad = "") {
    message.textContent = text;
    trouble.textContent = bad;
    trouble.hidden = !bad;
  }

  function close() {
    body.replaceChildren();
    say("");
    open.hidden = false;
    open.setAttribute("aria-expanded", "false");
    open.focus();
  }

  /** Show what would be in the image, and the form. */
  async function show() {
    open.setAttribute("aria-expanded", "true");
    open.disabled = true;
    say("One moment …");
    let about;
    try {
      about = await request("");
    } catch (error) {
      about = { packages: [], problem: String(error.message ?? error) };
    } finally {
      open.disabled = false;
    }
    open.hidden = true;
    say("");
    const list = element("ul", { tabindex: "0", "aria-label": "Packages" });
    list.append(...about.packages.map((text) => element("li", { text })));
    const packages = about.packages.length ? [element("p", { text: aboutWords(about) }), list] : [];
    const title = element("h3", { text: "An image of your own" });
    if (about.problem) {
      const again = button("Look again", show), away = button("Close", close);
      body.replaceChildren(title, ...packages, element("div", { class: "carme-buttons" }, again, away));
      say("", about.problem);
      again.focus();
      return;
    }
    form(title, packages, about);
  }

  function form(title, packages, about) {
    key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`; // without TLS there is no UUID
    const name = element("input", { id: "carme-keep-name", maxlength: "40", autocomplete: "off", spellcheck: "false" });
    const description = element("input", { id: "carme-keep-text", maxlength: "200", autocomplete: "off" });
    const send = element("button", { type: "submit", text: "Build it" });
    const rule = element("p", { id: "carme-keep-rule", class: "carme-dim", text: `${NAME_RULE[0].toUpperCase()}${NAME_RULE.slice(1)}.` });
    name.setAttribute("aria-describedby", "carme-keep-rule");
    const labels = [element("label", { for: "carme-keep-name", text: "Name" }), element("label", { for: "carme-keep-text", text: "One line for the form (may be empty)" })];
    const cost = `A job of yours builds it, and is charged like a session.${about.days ? ` It is removed when no session has used it for ${Math.round(about.days)} days; you are told before.` : ""}`;
    const buttons = element("div", { class: "carme-buttons" }, send, button("Cancel", close));
    const whole = element("form", { "aria-label": "An image of your own" }, labels[0], name, rule, labels[1], description, element("p", { class: "carme-dim", text: cost }), buttons);
    whole.noValidate = true; // the sentence below says more
    name.addEventListener("input", () => {
      say("");
      name.removeAttribute("aria-invalid");
    });
    whole.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
    });
    whole.addEventListener("submit", async (event) => {
      event.preventDefault();
      const bad = nameProblem(name.value.trim());
      if (bad) return refuse(bad, true);
      if (sending) return;
      sending = true; // not disabled: the focus would be lost
      say("One moment …");
      try {
        const sent = { name: name.value.trim(), description: description.value, key };
        const answer = await request("", { method: "POST", body: JSON.stringify(sent) });
        if (!answer.done) return refuse(answer.message, / is called /.test(answer.message));
        body.replaceChildren();
        open.hidden = false;
        open.setAttribute("aria-expanded", "false");
        say(answer.message);
        open.focus();
        follow(answer.build);
      } catch (error) {
        refuse(`${error.message ?? error} Look at your images before you try again.`);
      } finally {
        sending = false;
      }
    });
    function refuse(text, ofName = false) {
      say("", text);
      if (ofName) name.setAttribute("aria-invalid", "true");
      (ofName ? name : send).focus();
    }
    body.replaceChildren(title, ...packages, whole);
    name.focus();
  }

  /** Show how a build goes on, until it has ended. */
  function follow(first) {
    following = first.id;
    let end = 0, text = "", build = first;
    const state = element("p", { role: "status" }), links = element("p");
    const log = element("pre", { tabindex: "0", role: "log", "aria-label": "Log of the build", hidden: "" });
    const away = button("Hide", () => {
      following = "";
      progress.replaceChildren();
      open.focus();
    });
    progress.replaceChildren(state, log, links, element("div", { class: "carme-buttons" }, away));

    function draw(problem) {
      const words = build.state ? stateWords(build, Boolean(text)) : state.textContent;
      if (state.textContent !== words) state.textContent = words;
      state.className = build.state === "failed" ? "carme-bad" : "";
      const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      if (log.textContent !== text) log.textContent = text;
      log.hidden = !text;
      if (atEnd) log.scrollTop = log.scrollHeight;
      const shown = [problem, build.state, build.start].join("|");
      if (links.dataset.shown === shown) return;
      links.dataset.shown = shown;
      const link = (page, words) => element("a", { href: place(page), target: "_blank", rel: "noopener", text: words });
      const ready = build.state === "ready";
      const start = ready && build.start ? [link(build.start, `Start a session with ${build.name}`), " · "] : [];
      const why = problem ? [`${problem} `] : ready && !build.start ? ["Stop this session to start one with it. "] : [];
      links.replaceChildren(...why, ...start, link(`carme/images/builds/${first.id}`, "Its page"), " · ", link("carme/images/builds", "All of yours"));
    }

    async function look() {
      if (following !== first.id) return;
      let wait = LOOK;
      if (isSeen()) {
        try {
          const part = await request(`/${first.id}?from=${end}`);
          if (following !== first.id) return;
          const more = part.end > end;
          [end, text] = [part.end, lastLines(text + part.text)];
          if (part.build === null) build = { ...build, state: "removed" };
          else if (part.build.state) build = part.build;
          draw(part.problem);
          if (["ready", "failed", "removed"].includes(build.state) && !more) return;
        } catch (error) {
          draw(`${error.message ?? error} This may be out of date.`);
          wait = RETRY;
        }
      }
      later(look, wait);
    }
    draw("");
    return look();
  }

  /** Show what was begun in another tab, or before the page was opened again. */
  async function begin() {
    if (begun) return;
    begun = true;
    const about = await request("").catch(() => ({}));
    if (about.last && !following) follow({ id: about.last, name: "The image", state: "", problem: "" });
  }

  return { node, begin };
}
