// Times: the service speaks UTC epoch seconds, people read the wall clock of the zone that they chose.
const formats = new Map();
const format = (zone, options) => {
  const key = zone + JSON.stringify(options);
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", ...options }));
  return formats.get(key);
};
const two = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** "2026-11-24T09:00:00" on the wall of a zone. */
export function wall(at, zone) {
  const part = Object.fromEntries(format(zone, two).formatToParts(at * 1000).map(({ type, value }) => [type, value]));
  return `${part.year}-${part.month}-${part.day}T${part.hour}:${part.minute}:${part.second}`;
}

/** Seconds by which a zone is ahead of UTC at a moment. */
const ahead = (at, zone) => Date.parse(`${wall(at, zone)}Z`) / 1000 - Math.floor(at);

/** Epoch seconds of a time on the wall; of one that comes twice the first, of one that is skipped the moment after. */
export function epoch(text, zone) {
  const guess = Date.parse(`${text.slice(0, 19)}Z`) / 1000;
  const tried = [guess - 86400, guess + 86400].map((near) => guess - ahead(near, zone)).sort((a, b) => a - b);
  return tried.find((at) => wall(at, zone) === text.slice(0, 19)) ?? tried[1];
}

/** "+01:00": the zone's offset now. */
export function offset(zone) {
  const minutes = Math.round(ahead(Date.now() / 1000, zone) / 60);
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `${minutes < 0 ? "-" : "+"}${String(hours).padStart(2, "0")}:${String(rest).padStart(2, "0")}`;
}

/** "Tuesday 24 November". */
export const day = (at, zone) => format(zone, { weekday: "long", day: "numeric", month: "long" }).format(at * 1000).replace(",", "");
/** "09:00". */
export const clock = (at, zone) => format(zone, { hour: "2-digit", minute: "2-digit" }).format(at * 1000);

/** "Tuesday 24 November, 09:00–11:00", or both days where it ends on another. */
export function span({ start, end }, zone) {
  const [first, last] = [wall(start, zone), wall(end, zone)];
  if (first.slice(0, 10) === last.slice(0, 10)) return `${day(start, zone)}, ${clock(start, zone)}–${clock(end, zone)}`;
  if (last.slice(11, 16) === "00:00" && end - start <= 86400) return `${day(start, zone)}, ${clock(start, zone)}–24:00`;
  return `${day(start, zone)}, ${clock(start, zone)} – ${day(end, zone)}, ${clock(end, zone)}`;
}

/** The same for buttons: within the next six days the weekday is enough. */
export function shortSpan(period, zone) {
  const near = period.start - Date.now() / 1000 < 6 * 86400 && period.end - period.start < 86400;
  return near ? span(period, zone).replace(/^(\w+) \d+ \w+,/, "$1") : span(period, zone);
}

/** "2 h 30 min". */
export function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  const parts = [[Math.floor(minutes / 60), "h"], [minutes % 60, "min"]];
  return parts.filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ") || "0 min";
}

/** "8 a100", and "7 × 1g.10gb", since two numbers in a row are read as one. */
export const counted = (count, type) => `${count} ${/^\d/.test(type) ? "× " : ""}${type}`;

/** All GPUs that a booking takes: "8 a100", "1 l4 and 4 a100". */
export const takes = ({ by_type: types, total, gpu_type: own }) =>
  Object.entries(types).map(([type, count]) => counted(count, type)).join(" and ") || counted(total, own);

/** "4 seats with 1 a100 each", "8 a100", "2 whole a100 nodes". */
export function need({ gpu_type: type, gpus, seats }) {
  if (!gpus) return seats > 1 ? `${seats} whole ${type} nodes` : `a whole ${type} node`;
  return seats > 1 ? `${seats} seats with ${counted(gpus, type)} each` : counted(gpus, type);
}

/** "12.5 GPU-hours". */
export function gpuHours(amount) {
  const hours = Number((amount / 3600000).toFixed(2));
  return `${hours} GPU-hour${hours === 1 ? "" : "s"}`;
}
