// What the reader has chosen, which rows that leaves, and what each is compared with. The address of the page holds it, so that a
// view can be linked and the way back leads through views.
const data = JSON.parse(document.getElementById("sweep-data").textContent);
// Rows come as a list per key, values without interval alone.
const columns = Object.entries(data.rows);
data.rows = data.rows.id.map((_, place) => Object.fromEntries(columns.map(([key, column]) => [key, column[place]]).filter(([, value]) => value !== null)));
for (const { values } of data.rows) for (const value of Object.values(values)) if (value.length === 1) value.push(null, null);
const ADDRESS = "#view&";

const varying = data.axes.map((axis, place) => ({ ...axis, place })).filter((axis) => axis.varies);
const valueText = (row, axis) => data.axes[axis].values[row.at[axis]] ?? MISSING;
// As finish.py names combinations in the layer trees.
const named = varying.length ? varying : data.axes.map((axis, place) => ({ ...axis, place }));
const nameOf = (row) => named.filter(({ place }) => row.at[place] >= 0).map(({ key, place }) => `${key}=${valueText(row, place)}`).join(", ");
const failureOf = (row) => (row.status === "ok" ? null : `${row.status}: ${data.reasons[row.reason]}`);
// Complete, or with at least one complete round: such a row has its values everywhere, with how many rounds they are of.
const hasValues = (row) => row.status === "ok" || row.incomplete !== undefined;
const statuses = [...new Set(data.rows.map(({ status }) => status))];

const rowsById = new Map(data.rows.map((row) => [row.id, row]));
const rowsByPlace = new Map();
for (const row of data.rows) {
  const place = row.at.join();
  if (!rowsByPlace.has(place)) rowsByPlace.set(place, row);
}

// A column is the position of a metric, with "r" before it where it is the ratio to the baseline.
const isRatio = (column) => column.startsWith("r");
const metricOf = (column) => Number(isRatio(column) ? column.slice(1) : column);
// What is missing or failed says nothing of whether the others differ.
const measured = data.rows.filter(hasValues);
const differs = (place) => new Set(measured.flatMap(({ values }) => (values[place] ? [JSON.stringify(values[place])] : []))).size > 1;
const COMPARED = ["latency/iteration", "latency/forward"];
const firstColumns = () => {
  const shown = data.metrics.map((_, place) => place).filter((place) => data.metrics[place].headline);
  const told = shown.filter((place) => measured.length < 2 || differs(place));
  const judged = COMPARED.map((name) => shown.find((place) => data.metrics[place].name === name)).find((place) => place !== undefined && told.includes(place))
    ?? told.find((place) => data.metrics[place].better !== null);
  return told.flatMap((place) => (place === judged ? [String(place), `r${place}`] : [String(place)]));
};

const initial = () => ({
  sort: null, // a column, or "a" and the position of an axis
  descending: false,
  group: -1, // the position of an axis
  text: "",
  hidden: data.axes.map(() => new Set()), // by axis the positions of values that are filtered out
  hiddenStatuses: new Set(),
  columns: firstColumns(),
  baseline: "planned", // or "none", a row, or an object: by the position of an axis the position of the value
});
const state = initial();

const baselineOf = (row) => {
  const { baseline } = state;
  if (baseline === "none" || row.alone) return null;
  if (baseline === "planned") return data.rows[row.base] ?? null;
  if (baseline.id !== undefined) return baseline;
  return rowsByPlace.get(row.at.map((value, axis) => (axis in baseline && value >= 0 ? baseline[axis] : value)).join()) ?? null;
};

const baselineText = () => {
  const { baseline } = state;
  if (baseline === "none") return null;
  if (baseline === "planned") return data.rows.some((row) => row.base >= 0 || row.cells) ? data.baseline_text : null;
  if (baseline.id !== undefined) return nameOf(baseline);
  const textOf = ({ key, values, numbers }, at) => (numbers ? `${key}=${values[at]}` : values[at]);
  return Object.entries(baseline).map(([axis, at]) => textOf(data.axes[axis], at)).join(", ");
};

// The row beside its baseline; null where there is none, or no value on a side.
let cells = new Map();
const cellOf = (row, place) => {
  const key = `${row.id} ${place}`;
  if (!cells.has(key)) {
    const other = state.baseline === "planned" ? row.cells?.[place] : undefined;
    cells.set(key, other ? otherCell(other) : compared(data, row, baselineOf(row), place));
  }
  return cells.get(key);
};
const otherCell = ([ratio, low, high, verdict, reason, rounds]) => ({ ratio, low: low ?? undefined, high: high ?? undefined, verdict, reason, needed: () => rounds });

// What a mean of ratios takes: values on both sides, and comparable.
const usableRatio = (row, place) => {
  const cell = cellOf(row, place), base = baselineOf(row);
  const isFine = hasValues(row) && (base === null || hasValues(base)) && cell?.verdict !== "not_comparable";
  return isFine && cell?.ratio > 0 ? cell.ratio : null;
};

const searched = new Map(data.rows.map((row) => [row, [row.id, nameOf(row), failureOf(row) ?? "ok", row.incomplete ? `incomplete ${row.incomplete}` : ""].join("\n").toLowerCase()]));
const visible = () => {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  return data.rows.filter((row) =>
    !state.hiddenStatuses.has(row.status)
    && row.at.every((value, axis) => !state.hidden[axis].has(value))
    && words.every((word) => searched.get(row).includes(word)));
};

const listeners = [];
const listen = (listener) => listeners.push(listener);
const tell = () => { for (const listener of listeners) listener(state); };

// Changes the state, the page, and the address; typing makes no step of the way back.
const change = (changes, isTyping = false) => {
  if ("baseline" in changes) cells = new Map();
  Object.assign(state, changes);
  const address = spelled() || (location.hash.startsWith(ADDRESS) ? "#" : location.hash);
  if (address !== location.hash) history[isTyping ? "replaceState" : "pushState"](null, "", address || "#");
  tell();
};

window.sweeprof = {
  data, state, visible, baselineOf, listen,
  cellOf, nameOf, isWithinProcess,
  reasonOf: (row, place) => data.reasons[row.why[place]] ?? failureOf(row) ?? "not asked for in this combination",
};
