// The head of the page follows the chosen baseline: sentences, and a dot with its interval for each combination.
const MOST_DOTS = 40;
const SVG = "http://www.w3.org/2000/svg";
const shape = (tag, attributes) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

// A logarithmic scale for values with their intervals; null if there are none.
const scaleOf = (entries, around = []) => {
  const numbers = [...around, ...entries.flatMap(({ value, low = value, high = value }) => [value, low, high])].filter((number) => number > 0);
  return entries.length ? { from: Math.min(...numbers), to: Math.max(...numbers), mark: around[0] } : null;
};
const whisker = ({ value, low, high }, { from, to, mark }, name = "") => {
  const at = (number) => `${to > from ? 6 + 88 * Math.min(1, Math.max(0, Math.log(Math.max(number, from) / from) / Math.log(to / from))) : 50}%`;
  const svg = shape("svg", { class: `whisker ${name}`, "aria-hidden": "true" });
  if (mark !== undefined) svg.append(shape("line", { class: "mark", x1: at(mark), x2: at(mark), y1: 0, y2: "100%" }));
  if (low !== undefined && low !== null) svg.append(shape("line", { class: "span", x1: at(low), x2: at(high), y1: "50%", y2: "50%" }));
  svg.append(shape("circle", { cx: at(value), cy: "50%", r: 3.2 }));
  return svg;
};

const dots = document.getElementById("dots"), dotsNote = document.getElementById("dots-note");
const captionOf = (row) => ofModels.map((place) => `${data.metrics[place].title} ${numberText(data.metrics[place], row.values[place][0])}`).join(" · ");
const dotOf = (row) => {
  if (baselineText() === null) {
    const [value, low, high] = row.values[main] ?? [];
    return hasValues(row) && value > 0 ? { row, value, low: low ?? undefined, high: high ?? undefined, text: numberText(data.metrics[main], value), verdict: "" } : null;
  }
  const cell = hasValues(row) ? cellOf(row, main) : null;
  return cell?.ratio > 0 ? { row, ...cell, value: cell.ratio, text: `×${ratioNumber(cell.ratio)} ${verdictText(cell)}`.trim() } : null;
};
const lineOfDot = (dot, axes, scale) => {
  const line = make("li"), text = axes.map(({ key, place, numbers }) => (numbers && axes.length === 1 ? `${key} ` : "") + valueText(dot.row, place)).join(" · ");
  const name = make("a", shortened(text || nameOf(dot.row)), "name");
  name.href = `#${dot.row.id}`;
  name.tabIndex = -1;
  name.title = nameOf(dot.row);
  const value = make("span", dot.text, `value ${dot.verdict ?? ""}`);
  value.title = [ratioInterval(dot), verdictNote(dot)].filter(Boolean).join(" ");
  line.append(name, whisker(dot, scale, dot.verdict), value);
  return line;
};
// One stop of the Tab key for all: arrows lead from one to the next.
dots.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], names = [...dots.querySelectorAll(".name")];
  if (!step) return;
  event.preventDefault();
  names[Math.max(0, names.indexOf(document.activeElement) + step)]?.focus();
});
const drawDots = () => {
  const base = baselineText(), all = main === undefined ? [] : inOrder(visible()).map(dotOf).filter((dot) => dot !== null);
  const shown = all.slice(0, MOST_DOTS), scale = scaleOf(all, base === null ? [] : [1]);
  const axes = varying.filter(({ key, place }) => key !== "model" && new Set(shown.map(({ row }) => row.at[place])).size > 1);
  const panels = new Map();
  for (const dot of shown) {
    const title = modelAxis ? valueText(dot.row, modelAxis.place) : "";
    if (!panels.has(title)) panels.set(title, []);
    panels.get(title).push(dot);
  }
  dots.replaceChildren(...[...panels].map(([title, members]) => {
    const panel = make("div", undefined, "panel"), list = make("ul"), heading = make("h3", shortened(title)), caption = captionOf(members[0].row);
    list.append(...members.map((dot) => lineOfDot(dot, axes, scale)));
    if (caption) heading.append(make("span", ` ${caption}`, "dim"));
    if (title || caption) panel.append(heading);
    panel.append(list);
    return panel;
  }));
  document.getElementById("overview").hidden = !shown.length;
  if (!shown.length) return;
  const { title, better } = data.metrics[main], subject = document.getElementById("overview-title");
  subject.textContent = base === null ? title : `${title[0].toUpperCase()}${title.slice(1)} as a ratio to ${shortened(base)}`;
  const parts = [better ? `${better} is better` : "", base === null ? "" : `the line marks ${shortened(base)}`, all.some(({ low }) => low !== undefined) ? "whiskers: 95% intervals" : ""];
  if (axes.length > 1) parts.unshift(axes.map(({ key }) => key).join(" · "));
  if (shown.length < all.length) parts.push(`the first ${shown.length} of ${all.length.toLocaleString("en")}`);
  dotsNote.textContent = parts.filter(Boolean).join(" · ");
};

const drawHead = () => {
  document.getElementById("answer-finding").textContent = state.baseline.finding;
  document.getElementById("answer-rest").textContent = state.baseline.rest;
};
