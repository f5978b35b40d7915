/* Shows the profile of a rank in speedscope. The server wants a header with each request for data, which speedscope does
   not send, and speedscope refuses some events of torch's profiler: so the events are fetched here, and those with a
   duration are handed over as a blob. */

const { base, events, title } = document.body.dataset;
const status = document.querySelector("[role=status]");

/** Return the events of a profile, as torch has written them. */
async function fetchEvents() {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
  const response = await fetch(events, {
    credentials: "same-origin", headers: { "X-XSRFToken": decodeURIComponent(xsrf) },
  });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).message || `The server answered ${response.status}.`);
  const text = response.body.pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(text).json()).traceEvents;
}

/** Return the events that have a duration, with names of their processes and threads. */
function withDuration(all) {
  const spans = all.filter(({ ph, cat, ts, dur }) => ph === "X" && cat !== "Trace" && Number.isFinite(ts) && Number.isFinite(dur));
  const threads = new Set(spans.map(({ pid, tid }) => `${pid} ${tid}`)), processes = new Set(spans.map(({ pid }) => pid));
  const names = all.filter(({ ph, name, pid, tid }) => ph === "M" &&
    ((name === "thread_name" && threads.has(`${pid} ${tid}`)) || (name === "process_name" && processes.has(pid))));
  return [...names, ...spans.map(({ name, cat, pid, tid, ts, dur }) => ({ ph: "X", name, cat, pid, tid, ts, dur }))];
}

async function load() {
  const found = withDuration(await fetchEvents());
  if (!found.length) throw new Error("The profile has no events.");
  const blob = URL.createObjectURL(new Blob([JSON.stringify(found)], { type: "application/json" }));
  history.replaceState(null, "", `#profileURL=${encodeURIComponent(blob)}&title=${encodeURIComponent(title)}`);
  const script = document.createElement("script");
  script.src = `${base}/vendor/speedscope.min.js`;
  script.onload = () => status.remove();
  script.onerror = () => {
    status.textContent = "speedscope cannot be loaded. Reload the page.";
  };
  document.body.append(script);
}

load().catch((error) => {
  status.textContent = error.message;
});
