// The form of a booking, on its own page and in the calendar's dialog: what was typed, looked at while it is typed.
import { ask, el, Refusal } from "./reservations-rest.js";
import { epoch, gpuHours, need, shortSpan, span, wall } from "./reservations-time.js";

const CODES = ["SU", "MO", "TU", "WE", "TH", "FR", "SA"];
const LISTED = 6;
const known = JSON.parse(document.getElementById("booking-data")?.textContent ?? "{}");
const weekday = (day) => CODES[new Date(`${day}T12:00:00Z`).getUTCDay()];

/** Ask at most once in a while, and show the answer to the newest question only. */
export class Looker {
  #newest = 0;
  #timer = 0;

  look(body, show, fail = () => {}, delay = 250) {
    const mine = ++this.#newest;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      try {
        const found = await ask("POST", "check", body);
        if (mine === this.#newest) show(found);
      } catch (refusal) {
        if (mine === this.#newest) fail(refusal);
      }
    }, delay);
  }

  stop() {
    this.#newest += 1;
    clearTimeout(this.#timer);
  }
}

/** What could be had instead, as (words, what it changes); `again`: of a booking that comes more than once, `count` times. */
export function offers(conflicts, zone, again = false, fits = () => true, count = Infinity) {
  const told = conflicts.filter((each) => each.times.length || each.seats || each.types.length);
  const found = [];
  if (again && conflicts.length && conflicts.length < count) {
    const starts = conflicts.map((each) => each.occurrence).filter(Boolean);
    const what = conflicts.length === 1 ? "that time" : `these ${conflicts.length} times`;
    if (starts.length) found.push([`Leave out ${what}`, { without: starts }]);
  }
  if (!told.length) return found;
  for (const time of told[0].times.filter(fits)) {
    found.push([`Take ${shortSpan(time, zone)}${again ? " every time" : ""}`, { time }]);
  }
  const seats = Math.min(...told.map((each) => each.seats));
  if (seats && told.length === conflicts.length) found.push([`${seats} seat${seats === 1 ? "" : "s"} then`, { seats }]);
  for (const type of told[0].types) {
    if (told.every((each) => each.types.includes(type))) found.push([`${type} then`, { type }]);
  }
  return found;
}

/** Buttons of offers; `take` is called with what the chosen one changes. */
export function offerButtons(found, take) {
  if (!found.length) return "";
  const buttons = found.map(([words, what]) =>
    el("button", { type: "button", class: "btn btn-outline-primary", onclick: () => take(what) }, words));
  return el("div", { class: "booking-offers", role: "group", "aria-label": "Free alternatives" }, ...buttons);
}

/** A span as nodes: its times stay on one line. */
function timed(words) {
  const at = words.lastIndexOf(", ") + 2;
  return [words.slice(0, at), el("span", { class: "text-nowrap" }, words.slice(at))];
}

/** The line that says whether it can be had. */
export const verdict = (good, words) =>
  el("p", { class: `booking-verdict ${good ? "booking-yes" : "booking-no"}` }, el("span", { class: "booking-mark", "aria-hidden": "true" }, good ? "✓" : "✕"), ` ${words}`);

export class BookingForm {
  constructor(form, place) {
    this.form = form;
    this.place = place;
    this.looker = new Looker();
    this.last = null;
    this.onlooked = () => {};
    const watched = (event) => {
      if (event.target.name?.startsWith("start_")) this.#endFollows();
      if (event.target.name && event.target.name !== "title") this.look();
    };
    form.addEventListener("change", watched);
    form.addEventListener("input", (event) => event.target.type === "number" && watched(event));
    this.#remember();
  }

  value(name) {
    const field = this.form.elements[name];
    return field ? String(field.value ?? "").trim() : "";
  }

  get days() {
    return [...this.form.querySelectorAll('[name="days"]:checked')].map((each) => each.value);
  }

  get without() {
    return [...this.form.querySelectorAll('[name="without"]')].map((each) => each.value);
  }

  get again() {
    return Boolean(this.value("repeats"));
  }

  /** Fill in a time, of epoch seconds. */
  at({ start, end }) {
    const zone = this.value("zone");
    for (const [name, at] of [["start", start], ["end", end]]) {
      this.form.elements[`${name}_date`].value = wall(at, zone).slice(0, 10);
      this.form.elements[`${name}_time`].value = wall(at, zone).slice(11, 16);
    }
    this.#remember();
  }

  /** What is asked for, as REST takes it; null while something is missing. */
  body() {
    const start = `${this.value("start_date")}T${this.value("start_time")}`;
    const end = `${this.value("end_date")}T${this.value("end_time")}`;
    if (this.missing()) return null;
    const whom = this.value("whom");
    const rule = this.#rule();
    return {
      title: this.value("title") || "-",
      gpu_type: this.value("gpu_type"),
      gpus: Number(this.value("gpus")),
      seats: Number(this.value("seats")),
      start,
      end,
      zone: this.value("zone"),
      rule,
      without: rule ? this.without : [],
      ...(this.value("account") ? { account: this.value("account") } : {}),
      users: whom === "users" ? this.#users() : [],
      group: whom === "group" ? this.value("group") : "",
      everybody: whom === "everybody",
      profile: whom === "group" ? this.value("profile") : "",
    };
  }

  /** What has to be said before it can be looked at, as a sentence; "" for nothing. */
  missing() {
    const days = ["start_date", "start_time", "end_date", "end_time"];
    if (days.some((name) => !this.value(name))) return "Say when it starts and ends.";
    if (!this.value("gpu_type")) return "Choose a GPU type.";
    if (!this.value("zone")) return "Name the time zone, such as Europe/Berlin.";
    if (!Number(this.value("seats"))) return "Say how many seats it has.";
    if (this.#rule() === null) return "Say either how many times it comes, or until which day.";
    if (this.value("whom") === "group" && !this.value("group")) return "Name the group or class for which it is, or choose “Just me”.";
    if (this.value("whom") === "users" && !this.#users().length) return "Name the people for whom it is, or choose “Just me”.";
    return "";
  }

  #users() {
    return this.value("users").split(/[\s,;]+/).filter(Boolean);
  }

  #rule() {
    if (!this.again) return "";
    const days = this.days.length ? this.days : [weekday(this.value("start_date"))];
    const [count, until] = [this.value("count"), this.value("until")];
    if (Boolean(count) === Boolean(until)) return null;
    const ends = count ? `COUNT=${Number(count)}` : `UNTIL=${until.replaceAll("-", "")}`;
    return `FREQ=WEEKLY;INTERVAL=${this.value("repeats") === "fortnightly" ? 2 : 1};BYDAY=${days.join(",")};${ends}`;
  }

  /** Look at what would come of it, and say so. */
  look(delay = 250) {
    const body = this.body();
    this.last = null;
    if (!body) {
      this.looker.stop();
      this.place.removeAttribute("aria-busy");
      this.place.replaceChildren(el("p", { class: "quota-facts mb-0" }, this.missing()));
      this.onlooked(null);
      return;
    }
    this.place.setAttribute("aria-busy", "true");
    this.looker.look(body, (found) => this.show(found, body), (refusal) => this.fail(refusal), delay);
  }

  fail(refusal) {
    this.place.removeAttribute("aria-busy");
    const words = refusal instanceof Refusal ? refusal.message : "Something went wrong here. Reload the page.";
    const conflicts = refusal.answer?.conflicts ?? [];
    this.place.replaceChildren(verdict(false, words), this.#offered(conflicts, this.value("zone")));
    this.onlooked(null);
  }

  show(found, body) {
    this.place.removeAttribute("aria-busy");
    this.last = found;
    const { zone } = body;
    const count = found.times.length;
    const parts = [];
    if (found.refusal) parts.push(verdict(false, found.refusal));
    else if (found.conflicts.length) {
      const what = count === 1 ? `${need(body)}: not free ${span(found.times[0], zone)}.` : `${need(body)}: not free at ${found.conflicts.length} of ${count} times.`;
      parts.push(verdict(false, what), this.#offered(found.conflicts, zone));
    } else if (count) {
      parts.push(verdict(true, count === 1 ? `${need(body)}: free ${span(found.times[0], zone)}.` : `${need(body)}: free at all ${count} times.`));
    }
    if (count > 1) parts.push(this.#times(found, zone));
    else if (found.times[0]?.note) parts.push(el("p", { class: "quota-facts" }, found.times[0].note));
    for (const note of found.notes) parts.push(el("p", { class: "quota-facts" }, note));
    if (found.granted && found.needs_approval) {
      parts.push(el("p", { class: "quota-facts" }, "An administrator has to approve it. Its GPUs are kept for you until then."));
    }
    if (found.granted && found.amount) parts.push(el("p", { class: "booking-cost" }, this.#cost(found.amount)));
    this.place.replaceChildren(...parts);
    this.onlooked(found);
  }

  #cost(amount) {
    const account = this.value("account");
    const left = known.left?.[account];
    const rest = left === null || left === undefined ? "" : ` Account ${account} has ${gpuHours(Math.max(0, left))} left, ${gpuHours(Math.max(0, left - amount))} after it.`;
    return `It costs at most ${gpuHours(amount)}.${rest}`;
  }

  #times(found, zone) {
    const taken = new Set(found.conflicts.map((each) => each.start));
    const first = found.times.filter((each, number) => number < LISTED || taken.has(each.start) || each.note);
    const rows = first.map((each) => {
      const free = !taken.has(each.start);
      return el("li", { class: free ? "" : "booking-taken" }, el("span", { class: "booking-mark", "aria-hidden": "true" }, free ? "✓" : "✕"),
        " ", ...timed(span(each, zone)), " ", free ? "" : el("strong", {}, "not free"), each.note ? el("span", { class: "quota-facts" }, ` ${each.note}`) : "");
    });
    if (found.times.length > first.length) rows.push(el("li", { class: "quota-facts" }, `And ${found.times.length - first.length} more, all of them free.`));
    return el("ul", { class: "list-unstyled booking-times" }, ...rows);
  }

  #offered(conflicts, zone) {
    const days = this.days.length ? this.days : [weekday(this.value("start_date"))];
    const keeps = days.length === 1 && days[0] === weekday(this.value("start_date"));
    const fits = (time) => !this.again || keeps || days.includes(weekday(wall(time.start, zone)));
    const found = offers(conflicts, zone, this.again, fits, this.last?.times.length);
    if (!found.length && conflicts.length) return el("p", { class: "quota-facts" }, "Nothing like it is free within a week of it.");
    return offerButtons(found, (what) => this.take(what));
  }

  /** Take what could be had instead. */
  take({ time, seats, type, without }) {
    if (time) this.#shift(time);
    if (seats) this.form.elements.seats.value = seats;
    if (type) this.form.elements.gpu_type.value = type;
    for (const each of without ?? []) this.form.append(el("input", { type: "hidden", name: "without", value: each }));
    this.look(0);
  }

  /** Shift it all to where one time of it would be; of a series the first stays in its week. */
  #shift(time) {
    if (this.again) {
      const zone = this.value("zone");
      const first = epoch(`${this.value("start_date")}T${this.value("start_time")}:00`, zone);
      const weeks = Math.round((time.start - first) / 604800);
      const old = weekday(this.value("start_date"));
      const shifted = (at) => {
        const there = new Date(`${wall(at, zone)}Z`);
        there.setUTCDate(there.getUTCDate() - 7 * weeks);
        return epoch(there.toISOString(), zone);
      };
      this.at({ start: shifted(time.start), end: shifted(time.end) });
      const days = this.days;
      if (days.length === 1 && days[0] === old) {
        for (const each of this.form.querySelectorAll('[name="days"]')) each.checked = each.value === weekday(this.value("start_date"));
      }
      for (const each of this.form.querySelectorAll('[name="without"]')) each.remove();
    } else {
      this.at(time);
    }
  }

  /** The end moves along with the start, so that the length stays. */
  #endFollows() {
    const start = Date.parse(`${this.value("start_date")}T${this.value("start_time")}Z`);
    if (Number.isNaN(start) || Number.isNaN(this.length)) return;
    const end = new Date(start + this.length).toISOString();
    this.form.elements.end_date.value = end.slice(0, 10);
    this.form.elements.end_time.value = end.slice(11, 16);
  }

  #remember() {
    const measure = () => {
      this.length = Date.parse(`${this.value("end_date")}T${this.value("end_time")}Z`) - Date.parse(`${this.value("start_date")}T${this.value("start_time")}Z`);
    };
    measure();
    if (!this.measured) {
      this.measured = true;
      this.form.addEventListener("change", (event) => { if (event.target.name?.startsWith("end_")) measure(); });
    }
  }
}
