/* What activity.js says of the session in words, and which warnings are due. */

import { messageWarnings } from "./messages.js";

/** Minutes before the end, and shares of memory, at which there is a warning. */
const MINUTES = [30, 10, 2], FULL = 0.9;
/** Seconds before the end of an idle session from which the status bar says so, and at which all documents are saved. */
const WARNED = 1200, SAVE_SECONDS = [300, 90];
const GIB = 1024;

/** Return MiB as GiB. */
export const gib = (mib) => (mib == null ? "not known" : `${mib < 10 * GIB ? (mib / GIB).toFixed(1) : Math.round(mib / GIB)} GiB`);

/** Return seconds as "1 h 12 min". */
export function span(seconds) {
  const minutes = Math.max(0, Math.floor(seconds / 60));
  const hours = Math.floor(minutes / 60);
  return [hours ? `${hours} h` : "", hours && !(minutes % 60) ? "" : `${minutes % 60} min`].filter(Boolean).join(" ");
}

/** Return what a GPU does now, in words. */
export function gpuWords(gpu) {
  const busy = gpu.utilisation == null ? "use not known" : `${gpu.utilisation} %`;
  return gpu.memory == null ? busy : `${busy}, ${gib(gpu.memory)} of ${gib(gpu.memory_total)}`;
}

/** Return whether a session is idle by a rule that stops it. */
export const stops = (idle) => Boolean(idle?.since && ["stop", "release_gpus"].includes(idle.action));

/** Return the text of the status bar: the busiest GPU, or the memory, and the time that is left, or until it is stopped. */
export function statusText(view) {
  const parts = [];
  const gpus = view.used?.gpus ?? [];
  if (gpus.length) {
    const known = gpus.filter((gpu) => gpu.utilisation != null);
    const mean = known.length ? `${Math.round(known.reduce((sum, gpu) => sum + gpu.utilisation, 0) / known.length)} %` : "use not known";
    const held = gpus.reduce((sum, gpu) => sum + (gpu.memory ?? 0), 0);
    const word = view.used.virtual ? "Virtual GPU" : "GPU";
    parts.push(`${word}${gpus.length > 1 ? "s" : ""} ${mean}, ${gib(held)}`);
  } else if (view.used?.memory != null) {
    parts.push(`Memory ${gib(view.used.memory)}`);
  }
  const idle = view.state?.idle;
  if (stops(idle) && idle.deadline - view.now <= WARNED) parts.push(`idle: stopped in ${span(idle.deadline - view.now)}`);
  else if (view.state?.ends) parts.push(`${span(view.state.ends - view.now)} left`);
  // An account without a limit says so in the panel only.
  if (/\d/.test(view.state?.left ?? "")) parts.push(`GPU time: ${view.state.left}`);
  return parts.join(" · ");
}

/** Return the text of a button that gives a session more time, with what that costs where it is known. */
export function moreText(more) {
  return `+ ${more.said}${more.costs ? ` (${more.costs})` : ""}`;
}

/** Return the smallest extension that the hub offers; a hub that names none takes half an hour. */
export function firstMore(view) {
  return view?.state?.more?.[0] ?? { minutes: 30, said: "30 min", costs: "" };
}

/** Return the warnings that are due: an id by which each is shown once, a sentence, and what can be done at once. */
export function warnings(view) {
  const found = messageWarnings(view);
  const { state, used, now } = view;
  if (view.home_full) {
    const text = "Your home was full when this session started, so nothing can be saved there. Remove files you do not need; carme/files shows the largest folders.";
    found.push({ id: `home-full-${state?.session ?? ""}`, text, actions: [] });
  }
  for (const place of view.disk ?? []) {
    found.push({ id: `disk-${place.path}`, text: place.text, actions: [], again: true });
  }
  if (state?.ends) {
    const left = state.ends - now;
    const due = MINUTES.filter((minutes) => left <= 60 * minutes).at(-1);
    if (due !== undefined && left > 0) {
      const text = `This session ends in ${span(left)}. Save your work, or give it more time.`;
      found.push({ id: `end-${state.ends}-${due}`, text, actions: ["extend", "save"] });
    }
  }
  const idle = state?.idle;
  if (idle?.since && idle.action === "tell") {
    const text = `Nothing has been at work in this session for ${span(now - idle.since)}. Stop it if you do not need its GPUs.`;
    if (idle.state === "due") found.push({ id: `idle-${idle.since}-told`, text, actions: ["panel"] });
  } else if (idle?.since && (idle.state === "warn" || idle.deadline - now <= WARNED)) {
    const text = `Nothing is at work in this session, so it is stopped in ${span(idle.deadline - now)}. Documents are saved before.`;
    const step = idle.deadline - now <= 300 ? "late" : "early";
    found.push({ id: `idle-${idle.since}-${step}`, text, actions: idle.clicks_left ? ["here", "save"] : ["save"] });
  }
  (used?.gpus ?? []).forEach((gpu, number) => {
    if (gpu.memory_total && gpu.memory != null && gpu.memory >= FULL * gpu.memory_total) {
      const text = `The memory of GPU ${number} is nearly full: ${gib(gpu.memory)} of ${gib(gpu.memory_total)}.`;
      found.push({ id: `gpu-${number}-full`, text, actions: ["panel"], again: true });
    }
  });
  if (used?.memory_limit && used.memory >= FULL * used.memory_limit) {
    const text = `The session's memory is nearly full: ${gib(used.memory)} of ${gib(used.memory_limit)}. The largest process is ended when it is full.`;
    found.push({ id: "memory-full", text, actions: ["panel", "save"], again: true });
  }
  return found;
}

/** Return the name of the save that is due before an idle session is stopped; "" = none. Only a browser has what was not
    saved, so it saves when the last warning comes, and once more shortly before the end. */
export function dueSave(view) {
  const idle = view?.state?.idle;
  if (!stops(idle)) return "";
  const left = idle.deadline - view.now;
  if (left > SAVE_SECONDS[0]) return "";
  return `${idle.since}-${idle.deadline}-${left > SAVE_SECONDS[1] ? "warned" : "end"}`;
}

/** Remembers in all tabs of a session which warnings were shown. What comes `again` may be shown once an hour. */
export class Shown {
  constructor(session, storage = localStorage) {
    this._key = `carme-hub:warned:${session}`;
    this._storage = storage;
  }

  /** Return whether a warning is new, and remember it. */
  claim(warning, now) {
    const known = this._read();
    const at = known[warning.id];
    if (at !== undefined && !(warning.again && now - at > 3600)) return false;
    this._write({ ...known, [warning.id]: now });
    return true;
  }

  _read() {
    try {
      return JSON.parse(this._storage.getItem(this._key) ?? "{}") ?? {};
    } catch {
      return {};
    }
  }

  _write(value) {
    try {
      this._storage.setItem(this._key, JSON.stringify(value));
    } catch {
      /* a browser without storage shows a warning in each tab */
    }
  }
}
