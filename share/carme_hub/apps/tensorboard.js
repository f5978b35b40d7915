// In TensorBoard's page: says what is shown, and presses its reload button when there is news.
(() => {
  "use strict";
  const place = new URL(".", document.currentScript.src);
  if (window.location.pathname === place.pathname) {
    // The form. Who picks a run, or writes a folder, means it.
    document.addEventListener("input", ({ target }) => {
      const line = target.matches("select, [type=text]") && target.closest(".line");
      if (line) line.querySelector("[type=radio]").checked = true;
    });
    return;
  }
  const bar = document.createElement("div");
  bar.className = "carme-bar";
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  const link = document.createElement("a");
  link.href = place.href;
  link.textContent = "Show something else";
  bar.append(said, link);
  const style = document.createElement("style");
  style.textContent = `
    body { display: flex; flex-direction: column; height: 100vh; margin: 0; }
    tb-webapp { flex: 1; min-height: 0; position: relative; overflow: auto; }
    .carme-bar { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 16px; padding: 6px 12px;
      font: 14px/1.4 system-ui, sans-serif; background: #263238; color: #fff; }
    .carme-bar span { overflow-wrap: anywhere; }
    .carme-bar a, .carme-bar a:visited { color: #9be7ff !important; margin-left: auto; }
    @media (max-width: 699px) {
      .carme-bar { padding: 4px 12px 0; }
      .carme-bar a { padding: 12px 0; }
      plugins-component .warning-message { margin: 24px 16px 0 !important; }
      app-header .brand { margin-right: 8px; }
      metrics-main-view { min-width: 0; overflow: hidden; }
      metrics-main-view .toolbar { flex-wrap: wrap; height: auto !important; padding-block: 4px; }
      metrics-card-groups .card-grid { grid-template-columns: minmax(0, 1fr) !important; }
    }`;
  document.head.append(style);

  // On a phone the list of runs and the settings would leave no room for the curves.
  const key = "_tb_global_settings";
  if (window.innerWidth < 700) {
    const settings = JSON.parse(localStorage.getItem(key) || "{}");
    Object.assign(settings, { timeSeriesSettingsPaneOpened: false, sideBarWidthInPercent: 0 });
    localStorage.setItem(key, JSON.stringify(settings));
  }

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const seen = () =>
    document.hidden
      ? new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }))
      : null;

  async function reload() {
    for (let tries = 0; tries < 50; tries += 1) {
      const button = document.querySelector("app-header-reload button");
      if (button && !button.disabled && !button.classList.contains("loading")) {
        button.click();
        return;
      }
      await pause(200);
    }
  }

  async function follow() {
    let last = "";
    for (;;) {
      await seen();
      try {
        const answer = await fetch(new URL(`news?seen=${last}`, place), { cache: "no-store" });
        if (!answer.ok) throw new Error(`${answer.status}`);
        const told = await answer.json();
        said.textContent = told.shows;
        const known = last;
        last = String(told.news);
        if (known !== "" && last !== known) {
          await reload();
          await pause(400); // a run may write more often than anybody can read
        }
      } catch {
        said.textContent = "The session does not answer; what is shown may be old.";
        await pause(3000);
      }
    }
  }
  document.addEventListener("DOMContentLoaded", () => {
    document.body.prepend(bar);
    follow();
  });
})();
