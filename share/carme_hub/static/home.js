// Extends a running server: sends the request to the hub, and shows the result below the time.
for (const line of document.querySelectorAll(".carme-time")) {
  const time = line.querySelector("time");
  const answered = line.querySelector('[role="status"]');
  const buttons = [...line.querySelectorAll("button")];
  line.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    const minutes = Number(button?.dataset.minutes);
    if (!minutes) return;
    for (const each of buttons) each.disabled = true;
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
        time.dateTime = new Date(answer.ends * 1000).toISOString();
        time.textContent = answer.said; // in the hub's zone, as it was before
        const result = `It has ${button.textContent.replace("+", "").trim()} more.`;
        answered.textContent = [result, ...(answer.warnings ?? [])].join(" ");
      } else {
        answered.textContent = answer.message ?? "The hub does not answer. Probably nothing was changed.";
      }
    } catch {
      answered.textContent = "The hub does not answer. It is unknown whether there is more time.";
    } finally {
      line.classList.toggle("alert-warning", !done);
      line.classList.toggle("alert-secondary", done);
      for (const each of buttons) each.disabled = false;
      button.focus();
    }
  });
}

// Buttons that end something open a dialog first; its form is sent once.
for (const button of document.querySelectorAll("[data-carme-dialog]")) {
  const dialog = document.getElementById(button.dataset.carmeDialog);
  button.addEventListener("click", () => dialog.showModal());
  dialog.querySelector("form").addEventListener("submit", (event) => {
    if (event.submitter?.formMethod === "dialog") return;
    if (dialog.dataset.sent) event.preventDefault();
    dialog.dataset.sent = "yes";
    event.submitter.textContent = event.submitter.dataset.doing; // the answer comes once it has ended
    for (const each of dialog.querySelectorAll("button")) each.disabled = true;
  });
  dialog.addEventListener("cancel", (event) => {
    if (dialog.dataset.sent) event.preventDefault();
  });
}
// Reloads a page that the browser restores from its cache.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) window.location.reload();
});
