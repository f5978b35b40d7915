// The output of a job: follows the file while the job runs. Without this the page shows its end, and "Look again" loads it.

const output = document.getElementById("carme-output");
if (output) {
  const MOST = 2_000_000; // characters that are kept
  const state = document.getElementById("carme-follow-state");
  const button = document.getElementById("carme-follow");
  let end = Number(output.dataset.end);
  let inode = output.dataset.inode;
  let timer = 0;
  let following = false;
  output.scrollTop = output.scrollHeight;

  const isAtEnd = () => output.scrollHeight - output.scrollTop - output.clientHeight < 40;

  async function look() {
    let wait = 3000;
    try {
      const answer = await fetch(`${output.dataset.url}&from=${end}&inode=${inode}`, { credentials: "same-origin" });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.message);
      const stay = isAtEnd();
      if (found.replaced) output.textContent = found.text;
      else if (found.text) output.append(found.text);
      if (output.textContent.length > MOST) output.textContent = output.textContent.slice(-MOST / 2);
      if (stay) output.scrollTop = output.scrollHeight;
      end = found.end;
      inode = found.inode;
      state.textContent = found.said || (found.live ? "Following." : "The job has ended.");
      if (!found.live) {
        stop();
        if (output.dataset.reload) window.location.reload(); // the page says more of the end
        return;
      }
      if (end < found.size) wait = 200;
    } catch (error) {
      state.textContent = error.message || "The hub does not answer.";
      wait = 10000;
    }
    if (following && !document.hidden) timer = setTimeout(look, wait);
  }

  function stop() {
    following = false;
    clearTimeout(timer);
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Follow";
  }

  function start() {
    following = true;
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Stop following";
    look();
  }

  button.hidden = Boolean(output.dataset.reload) && !output.dataset.live; // there is no more to come
  button.addEventListener("click", () => (following ? (stop(), (state.textContent = "")) : start()));
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (following && !document.hidden) look();
  });
  if (output.dataset.live) start();
}
