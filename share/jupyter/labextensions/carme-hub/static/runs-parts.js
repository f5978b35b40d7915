/* Parts of the page Runs that ask for nothing: elements, numbers and times as text, curves and tables of properties. */

const COLOURS = ["#1f77b4", "#d95f02", "#2a9d4a", "#c2185b", "#7b61c9", "#8a6d3b", "#0097a7", "#666666"];

/** Create an element; functions among the attributes are event handlers. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds)), pad = (number) => String(number).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return hours ? `${hours}:${pad(minutes)}:${pad(rest)}` : `${minutes}:${pad(rest)}`;
}

export function moment(seconds) {
  if (!seconds) return "";
  const when = new Date(seconds * 1000);
  const year = when.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return when.toLocaleString([], { ...year, month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
}

export function number(value) {
  if (typeof value !== "number") return value; // NaN and infinity come as texts
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

const SVG = "http://www.w3.org/2000/svg";

function drawing(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Draw one value of several runs or ranks, by step or by second. */
function chart(name, lines, by) {
  const points = lines.flatMap(([, each]) => each).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [begin, lowest] = by === "step" ? [xs, ys] : [[0], [0]]; // what is used is measured from nothing
  const [left, right, low, high] = [Math.min(...begin), Math.max(...xs), Math.min(...lowest), Math.max(...ys)];
  const [width, height, edge, foot] = [560, 240, 76, 28];
  const x = (value) => edge + ((value - left) / (right - left || 1)) * (width - edge - 12);
  const y = (value) => height - foot - ((value - low) / (high - low || 1)) * (height - foot - 12);
  const text = (at, down, what, anchor) => drawing("text", { x: at, y: down, "text-anchor": anchor }, what);
  const drawn = lines.map(([, each], index) => {
    const colour = COLOURS[index % COLOURS.length];
    if (each.length === 1) return drawing("circle", { cx: x(each[0][0]), cy: y(each[0][1]), r: 3, fill: colour });
    // A run that was started again, or whose ranks changed, counts some steps again: there a new line begins.
    const path = each.map(([step, value], at) =>
      `${at && step >= each[at - 1][0] ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    return drawing("path", { d: path, fill: "none", stroke: colour, "stroke-width": 2 });
  });
  const axes = drawing("path", {
    d: `M${edge} 12V${height - foot}H${width - 12}`, fill: "none", stroke: "currentColor", "stroke-opacity": 0.4,
  });
  return element("figure", {},
    element("figcaption", {}, name),
    drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name} by ${by}` },
      axes, ...drawn, text(edge - 6, 20, number(high), "end"), text(edge - 6, height - foot, number(low), "end"),
      text(edge, height - 8, by === "step" ? number(left) : duration(left), "start"),
      text(width - 12, height - 8, by === "step" ? `step ${number(right)}` : duration(right), "end")));
}

function section(title, labels, curves, by) {
  const names = [...new Set(labels.flatMap((label) => Object.keys(curves[label] ?? {})))];
  if (!names.length) return [];
  const legend = labels.length < 2 ? null : element("ul", { class: "legend" }, ...labels.map((label, index) =>
    element("li", {}, element("i", { style: `background: ${COLOURS[index % COLOURS.length]}` }), label)));
  return [element("h2", {}, title), legend, element("div", { class: "charts" }, ...names.map((name) =>
    chart(name, labels.map((label) => [label, curves[label]?.[name] ?? []]), by)))];
}

export function charts(found) {
  return [
    ...section("Curves", found.runs, found.curves, "step"),
    // In the order of the runs, so that each has the same colour as above.
    ...(found.runs.length > 1
      ? section("Use of rank 0", found.runs, found.use, "second")
      : section("Use", Object.keys(found.use), found.use, "second")),
  ];
}

export function properties(found) {
  if (!found.rows.length) return element("p", {}, "Nothing that is known of them differs.");
  const head = found.runs.length > 1 ? [element("thead", {}, element("tr", {}, element("td"),
    ...found.runs.map((run) => element("th", { scope: "col" }, run))))] : [];
  const rows = found.rows.map(([group, name, values]) => element("tr", {},
    element("th", { scope: "row" }, element("span", { class: "quiet" }, `${group}: `), name),
    ...values.map((value) => element("td", {}, value))));
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Properties" },
    element("table", {}, ...head, element("tbody", {}, ...rows)));
}

/** Show what the profile says of each module: its name, the GiB that it adds, and the most GiB held meanwhile. */
export function modules(rows) {
  const words = ["Module", "Adds in a forward pass", "Most held meanwhile"];
  const size = (gib) => (gib >= 0.1 ? `${gib.toFixed(2)} GiB` : `${(gib * 1024).toFixed(1)} MiB`);
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Memory by module" },
    element("table", {},
      element("thead", {}, element("tr", {}, ...words.map((word) => element("th", { scope: "col" }, word)))),
      element("tbody", {}, ...rows.map(([name, added, most]) => element("tr", {},
        element("th", { scope: "row" }, name), element("td", {}, size(added)), element("td", {}, size(most)))))));
}

export function fold(title, ...children) {
  return element("details", {}, element("summary", {}, title), ...children);
}

export function field(label, input) {
  return element("label", {}, element("span", {}, label), input);
}
