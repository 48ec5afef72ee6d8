"use strict";
// What the charts share: data, names, looks, choosers. Text of the data goes to plotly through plain(), to the page through textContent.
const charts = (() => {
  const { data, filtered, hasValues, failureOf, plural, significant, numberText, shortened } = window.sweeprof;
  const setup = JSON.parse(document.getElementById("charts-data").textContent);
  const { look } = setup;
  const varying = data.axes.flatMap((axis, place) => (axis.varies ? [place] : []));
  const MISSING = "–", NAME = 40, NARROW_NAME = 16, SPAN = 10, FEW = 12;

  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const short = (text, limit = NAME) => shortened(text, limit);
  const spelled = (axis) => data.axes[axis].key.replaceAll("_", " ");
  const textOf = (row, axis) => (row.at[axis] < 0 ? MISSING : data.axes[axis].values[row.at[axis]]);
  const named = (axis, text) => (/^[-\d.]/.test(text) || text === "true" || text === "false" ? `${spelled(axis)} ${text}` : text);
  const nameOf = (row, axes = varying, limit = NAME) =>
    axes.map((axis) => short(named(axis, textOf(row, axis)), limit)).join(" · ") || short(data.name, limit);

  const entryOf = (row, metric) => (hasValues(row) ? row.values[metric] ?? null : null);
  const valueOf = (row, metric) => entryOf(row, metric)?.[0] ?? null;
  const whyOf = (row, metric) => (hasValues(row) ? data.reasons[row.why[metric]] ?? "not requested for this combination" : failureOf(row));
  const amount = (value, metric) => numberText(data.metrics[metric], value);
  const described = (metric) => {
    const { title, unit, better } = data.metrics[metric];
    return `${title}${unit ? ` (${unit})` : ""}${better ? ` – ${better} is better` : ""}`;
  };
  const isLog = (values) => values.length > 0 && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) >= SPAN;
  // Powers of ten and nothing between: what plotly writes there by default is a lone 2 or 5.
  const scale = (title, values, more = {}) => {
    const log = isLog(values);
    const decades = log && Math.max(...values) / Math.min(...values) >= 100;
    return {
      title: { text: plain(title), font: { size: 13 } }, type: log ? "log" : "linear", tickformat: ",.6~g",
      ...(decades ? { dtick: 1, minor: { ticks: "outside" } } : log ? { dtick: "D2" } : {}), ...more,
    };
  };

  // Numbers take a ramp, names take colours that are told apart; grey where those have run out.
  const RAMP = ["#4464b5", "#2093a8", "#2fae76", "#9cb93b", "#e0a526", "#d9603b"];
  const mixed = (stops, share) => {
    const at = share * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    const parts = (text) => [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16));
    const [a, b] = [parts(stops[low]), parts(stops[low + 1])];
    return `#${a.map((one, place) => Math.round(one + (b[place] - one) * (at - low)).toString(16).padStart(2, "0")).join("")}`;
  };
  const colourOf = (axis, place) => {
    if (axis === null) return look.palette[0];
    const { values, numbers } = data.axes[axis];
    if (place < 0) return look.other;
    if (!numbers || values.length < 3) return look.palette[place] ?? look.other;
    const order = [...numbers].sort((a, b) => a - b);
    return mixed(RAMP, order.indexOf(numbers[place]) / (order.length - 1));
  };
  const cycled = (list, axis, row) => list[(axis === null || row.at[axis] < 0 ? 0 : row.at[axis]) % list.length];

  const groupedBy = (list, key) => {
    const found = new Map();
    for (const item of list) {
      const name = key(item);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(item);
    }
    return [...found.values()];
  };
  const along = (list, axes) => groupedBy(list, (row) => axes.map((axis) => row.at[axis]).join());

  const legendLimit = () => (document.documentElement.clientWidth < drawing.narrow ? NARROW_NAME : NAME);

  // Lines (lists of rows) that share an entry of the legend: each its own while they are few, else those of one look, else of one colour.
  const classes = (lines, axes, colour) => {
    const shape = setup.shape !== null && axes.includes(setup.shape) ? setup.shape : axes.find((axis) => axis !== colour) ?? null;
    const of = (list, names, dashed) => {
      const [first] = list[0];
      return {
        lines: list, name: nameOf(first, names, legendLimit()), colour: colourOf(colour, colour === null ? 0 : first.at[colour]),
        dash: dashed ? cycled(look.dashes, shape, first) : "solid", symbol: (row) => cycled(look.markers, shape, row),
      };
    };
    if (lines.length <= FEW) return lines.map((line) => of([line], axes, true));
    const both = [...new Set([colour, shape])].filter((axis) => axis !== null);
    const alike = groupedBy(lines, ([row]) => both.map((axis) => row.at[axis]).join());
    if (alike.length <= FEW) return alike.map((list) => of(list, both, true));
    const coloured = groupedBy(lines, ([row]) => (colour === null ? "" : colourOf(colour, row.at[colour])));
    const found = coloured.map((list) => of(list, colour === null ? [] : [colour], false));
    return found.map((one) => (one.colour === look.other && new Set(one.lines.map(([row]) => row.at[colour])).size > 1 ? { ...one, name: "others" } : one));
  };

  // What the reader chooses by: a labelled native select. Its items are [value, text] or {label, items}.
  const select = (place, label, items, chosen) => {
    const made = document.createElement("select"), around = document.createElement("label");
    const option = ([value, text]) => new Option(short(text, 60), value);
    made.append(...items.map((item) => {
      if (Array.isArray(item)) return option(item);
      const group = document.createElement("optgroup");
      group.label = item.label;
      group.append(...item.items.map(option));
      return group;
    }));
    made.value = chosen;
    around.append(label, " ", made);
    place.append(around);
    return { element: made, around, get value() { return Number(made.value); } };
  };
  const metricItems = (fits = () => true) => {
    const known = data.metrics.flatMap((metric, place) => (fits(metric, place) && data.rows.some((row) => valueOf(row, place) !== null) ? [place] : []));
    const items = (headline) => known.filter((place) => Boolean(data.metrics[place].headline) === headline).map((place) => [place, data.metrics[place].title]);
    const [first, rest] = [items(true), items(false)];
    return first.length && rest.length ? [{ label: "headline", items: first }, { label: "further", items: rest }] : [...first, ...rest];
  };
  const axisItems = (axes) => axes.map((axis) => [axis, spelled(axis)]);

  // Which of the rows have no value, by reason: said, never silently left out.
  const missing = (list, metrics) => {
    const gone = list.flatMap((row) => { const metric = metrics.find((place) => valueOf(row, place) === null); return metric === undefined ? [] : [[row, whyOf(row, metric)]]; });
    const partial = list.filter((row) => row.incomplete && !gone.some(([other]) => other === row)).length;
    const some = partial ? ` ${plural(partial, "combination")} incomplete: values of fewer rounds than planned, or without a pass.` : "";
    if (!gone.length) return some;
    const reasons = groupedBy(gone, ([, why]) => why).sort((a, b) => b.length - a.length);
    const who = (same) => (same.length > 1 ? same.length : nameOf(same[0][0]));
    const told = reasons.slice(0, 3).map((same) => (reasons.length > 1 || same.length === 1 ? `${who(same)}: ` : "") + short(same[0][1], 120));
    return `${some} ${gone.length} without a value: ${told.join("; ")}${reasons.length > 3 ? `; and ${reasons.length - 3} further reasons` : ""}.`;
  };

  // A chart is what `start` makes: given the place of its choosers, what is chosen first and the place of further text, it returns what
  // makes a figure of rows, with `note`, one sentence or more of what is to be seen.
  const add = (key, start) => {
    const chosen = setup.figures[key];
    if (!chosen) return;
    const part = (name) => document.getElementById(`chart-${key}${name}`);
    const plot = part(""), note = part("-note");
    const make = start(part("-choices"), chosen, plot, part("-more"));
    const made = () => {
      const figure = make(filtered());
      note.textContent = figure.note;
      if (figure.height) plot.style.height = `${figure.height}px`;
      return figure;
    };
    const update = () => draw(plot, made);
    // Its height, words and choosers are right before it is seen, too: nothing moves under a reader who scrolls to it.
    const choose = () => { made(); update(); };
    part("-choices").addEventListener("change", choose);
    window.sweeprof.listen(update);
    choose();
  };

  return {
    data, setup, varying, MISSING, plain, short, spelled, textOf, nameOf, entryOf, valueOf, whyOf, amount, described, isLog, scale,
    mixed, colourOf, groupedBy, along, classes, select, metricItems, axisItems, missing, add,
  };
})();
