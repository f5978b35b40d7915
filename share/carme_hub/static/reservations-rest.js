// The service's REST interface, asked with the page's own login and secret against forged requests.
const page = document.getElementById("reservations");
export const settings = page ? { ...page.dataset } : {};

/** Milliseconds after which an answer is not waited for any more. */
const PATIENCE = 30_000;

/** What the service refuses, or that it cannot be reached; `answer` is what it said. */
export class Refusal extends Error {
  constructor(message, answer = {}) {
    super(message);
    this.answer = answer;
  }
}

/** Ask; returns the answer, and throws a Refusal with a sentence for people. */
export async function ask(method, path, body, headers = {}) {
  let answer;
  try {
    answer = await fetch(`${settings.prefix}api/v1/${path}`, {
      method,
      headers: { "X-XSRFToken": settings.xsrf, ...(body ? { "Content-Type": "application/json" } : {}), ...headers },
      body: body ? JSON.stringify(body) : undefined,
      credentials: "same-origin",
      signal: AbortSignal.timeout(PATIENCE),
    });
  } catch (error) {
    if (error.name === "TimeoutError") {
      throw new Refusal(`The reservations service has not answered for ${PATIENCE / 1000} s.${method === "GET" || path === "check" ? "" : " What you asked for may be done all the same: reload the page to see."}`);
    }
    throw new Refusal("The reservations service cannot be reached. Check your connection, and try again.");
  }
  let said = {};
  try {
    said = await answer.json();
  } catch { /* no JSON: a proxy answered */ }
  if (answer.ok) return said;
  if (answer.status === 401 || (answer.status === 403 && !said.message)) {
    throw new Refusal("You are not logged in any more. Reload the page to log in.", said);
  }
  throw new Refusal(said.message || `The reservations service answered ${answer.status}. Try again in a moment.`, said);
}

/** A key under which a write happens once, however often it is sent. */
const newKey = () => crypto.randomUUID ? crypto.randomUUID() : `${Date.now()}-${Math.random().toString(36).slice(2)}`;

/** The keys of one kind of write. Whose answer was lost may have been done, so the same is sent again with its key. */
export class Keys {
  #said = "";
  #key = "";

  /** Return the key of what is asked: a new one where it is not what was asked last. */
  of(body) {
    const said = JSON.stringify(body);
    if (said !== this.#said) [this.#said, this.#key] = [said, newKey()];
    return this.#key;
  }

  /** What was asked is done; the same again is something new. */
  done() {
    this.#said = "";
  }
}

/** Make an element: el("p", { class: "x" }, "text", child…). */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
  return made;
}
