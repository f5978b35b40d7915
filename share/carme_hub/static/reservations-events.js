// What the calendar draws: bookings, and how many GPUs are free, from what REST says.
import { el } from "./reservations-rest.js";
import { need, span, takes, wall } from "./reservations-time.js";

/** What a booking is to the reader: mine, class, others, maintenance. */
export function kind(one) {
  if (one.kind === "maintenance") return "maintenance";
  if (one.mine) return "mine";
  return one.invited ? "class" : "others";
}

/** What is said of a booking where there is room for a line. */
export const title = (one) =>
  one.kind === "maintenance" ? "Maintenance"
    : one.hidden ? `${takes(one)} ${one.state === "pending" ? "asked for" : "booked"}` : one.title;

/** Everything that may be known of a booking, in a sentence: for tooltips and screen readers. */
export function words(one, zone) {
  const what = one.hidden ? `${title(one)} by others` : `${title(one)}: ${one.kind === "maintenance" ? one.title : `${need(one)}, ${one.owner}`}`;
  const state = one.waits ? "; on the waitlist" : one.state === "pending" ? "; waits for approval" : one.state === "ended" ? "; over" : one.state === "released" ? "; given back" : "";
  const where = one.places.length ? `; on ${[...new Set(one.places.map((each) => each.node))].join(", ")}` : "";
  return `${what}. ${span(one, zone)}${where}${state}.${one.problem ? ` Cannot be kept as booked: ${one.problem}` : ""}`;
}

/** A booking as EventCalendar takes it. */
export function event(one, zone, number) {
  const what = kind(one);
  const waits = one.waits || one.state === "pending";
  const over = ["ended", "released"].includes(one.state);
  // What was given back early took its GPUs until then; a quarter of an hour is the least that can be read.
  const until = over && one.ended ? Math.min(one.end, Math.max(one.ended, one.start + 900)) : one.end;
  const rows = new Set(one.places.flatMap((each) => [each.gpu_type, ...Object.keys(each.also)].map((type) => `${type}@${each.node}`)));
  if (one.waits) rows.add(one.gpu_type);
  const movable = one.may.includes("move") && one.kind === "booking";
  return {
    id: one.id || `hidden-${number}`,
    start: wall(one.start, zone),
    end: wall(until, zone),
    title: title(one),
    resourceIds: [...rows],
    startEditable: movable && one.state !== "active",
    durationEditable: movable,
    classNames: ["booking", `booking-${what}`, ...(waits ? ["booking-pending"] : []), ...(one.problem ? ["booking-problem"] : []), ...(over ? ["booking-over"] : []), ...(one.state === "active" ? ["booking-active"] : []), ...(until - one.start < 2700 ? ["booking-short"] : [])],
    extendedProps: { one, words: words(one, zone) },
  };
}

/** As much of a band's label as it has room for: on a timeline of a week an hour is a few pixels. */
function fitting({ event: { start, end }, view }, label, free) {
  if (!view.type.startsWith("resourceTimeline")) return label;
  const [whole, number] = view.type === "resourceTimelineWeek" ? [12, 2] : [1.5, 0.25];
  const hours = (end - start) / 3_600_000;
  return hours >= whole ? label : hours >= number ? `${free}` : "";
}

/** What is written on a booking. */
export function content(info) {
  const { one, band, label, free } = info.event.extendedProps;
  if (band) return { domNodes: [el("div", { class: "booking-band-words" }, fitting(info, label, free))] };
  if (!one) return undefined;
  const pending = one.state === "pending" && !one.hidden;
  const mark = one.problem ? "Problem: " : one.waits ? "Waits: " : pending ? "Asked for: " : kind(one) === "class" ? "◆ " : "";
  const more = one.hidden ? (one.state === "pending" ? "asked for" : "booked") : one.kind === "maintenance" ? one.title.replace("Maintenance", "") : need(one);
  return {
    domNodes: [
      el("div", { class: "ec-event-time" }, info.timeText),
      el("div", { class: "ec-event-title" }, mark, one.hidden ? takes(one) : title(one), more ? el("span", { class: "booking-event-more" }, more) : ""),
    ],
  };
}

const shade = (free, total) => (free <= 0 ? "none" : free >= total ? "all" : "some");

/** The parts of a band, each within one day. */
function* daily(parts, zone) {
  for (const { start, end, free } of parts) {
    let from = start;
    for (let at = start - (start % 900) + 900; at < end; at += 900) {
      if (wall(at, zone).slice(11, 16) !== "00:00") continue;
      yield { start: from, end: at, free };
      from = at;
    }
    yield { start: from, end, free };
  }
}

function background(start, end, zone, shading, label, only, more = {}, free = 0) {
  return {
    start: wall(start, zone),
    end: wall(end, zone),
    display: "background",
    title: label,
    classNames: ["booking-band", `booking-${shading}`],
    ...more,
    extendedProps: { band: true, label, only, free },
  };
}

/** Free GPUs as bands: of the wanted type on the hours of a week and the days of a month, of all on a timeline. */
export function bands(types, zone, wanted) {
  const found = [];
  for (const { gpu_type: name, total, parts } of types) {
    for (const { start, end, free } of parts) {
      const place = { resourceIds: [name] };
      found.push(background(start, end, zone, shade(free, total), `${free} of ${total} free`, "timeline", place, free));
    }
    if (name !== wanted) continue;
    const days = new Map();
    for (const { start, end, free } of daily(parts, zone)) {
      const day = wall(start, zone).slice(0, 10);
      days.set(day, [...(days.get(day) ?? []), free]);
      found.push(background(start, end, zone, shade(free, total), end - start < 1800 ? "" : `${free} of ${total} free`, "grid"));
    }
    for (const [day, levels] of days) found.push(monthly(day, levels, total));
  }
  return found;
}

function monthly(day, levels, total) {
  const [least, most] = [Math.min(...levels), Math.max(...levels)];
  const label = `${least === most ? least : `${least}–${most}`} of ${total} free`;
  const shading = most <= 0 ? "none" : least >= total ? "all" : "some";
  return {
    start: day, end: day, allDay: true, display: "background", title: label,
    classNames: ["booking-band", `booking-${shading}`],
    extendedProps: { band: true, label, only: "month" },
  };
}

/** Which views an event is for: bands differ from view to view, and lists have none. */
export function shown(info) {
  const { band, only } = info.event.extendedProps;
  if (!band) return true;
  const view = info.view.type;
  return only === (view.startsWith("resourceTimeline") ? "timeline" : view.startsWith("dayGrid") ? "month" : view.startsWith("list") ? "" : "grid");
}

/** Rows of the timeline: each GPU type, and below it the nodes that have it. */
export const rows = (supply) =>
  supply.types.map((type) => ({
    id: type.gpu_type,
    title: `${type.gpu_type} (${type.total})`,
    extendedProps: { type: type.gpu_type },
    children: supply.nodes.filter((node) => node.gpus[type.gpu_type]).map((node) => ({
      id: `${type.gpu_type}@${node.name}`,
      title: `${node.name} (${node.gpus[type.gpu_type]})${node.out ? ", out" : ""}`,
      extendedProps: { type: type.gpu_type },
    })),
  }));
