/* Shows the profile of a rank in speedscope. The server wants a header with each request for data, which speedscope does
   not send, so the events are fetched here and handed over as a blob. */

const { base, events, title } = document.body.dataset;
const status = document.querySelector("[role=status]");

async function load() {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)?.[1] ?? "";
  const response = await fetch(events, {
    credentials: "same-origin", headers: { "X-XSRFToken": decodeURIComponent(xsrf) },
  });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).message || `The server answered ${response.status}.`);
  const blob = URL.createObjectURL(await response.blob());
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
