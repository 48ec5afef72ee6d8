// What the reader has chosen, which rows that leaves, and what each is compared with. The address of the page holds it, so that a
// view can be linked and the way back leads through views.
const data = JSON.parse(document.getElementById("sweep-data").textContent);
// Rows come as a list per key, values without interval alone.
const keys = Object.entries(data.rows);
data.rows = data.rows.id.map((_, place) => Object.fromEntries([["place", place], ...keys.map(([key, column]) => [key, column[place]]).filter(([, value]) => value !== null)]));
for (const { values } of data.rows) for (const value of Object.values(values)) if (value.length === 1) value.push(null, null);
const ADDRESS = "#view&";

const varying = data.axes.map((axis, place) => ({ ...axis, place })).filter((axis) => axis.varies);
const valueText = (row, axis) => data.axes[axis].values[row.at[axis]] ?? MISSING;
// As run/reports.py names combinations in the layer trees.
const named = varying.length ? varying : data.axes.map((axis, place) => ({ ...axis, place }));
const nameOf = (row) => named.filter(({ place }) => row.at[place] >= 0).map(({ key, place }) => `${key}=${valueText(row, place)}`).join(", ");
const failureOf = (row) => (row.status === "ok" ? null : `${row.status}: ${data.reasons[row.reason]}`);
// Complete, or with at least one complete round: such a row has its values everywhere, with how many rounds they are of.
const hasValues = (row) => row.status === "ok" || row.incomplete !== undefined;
const statuses = [...new Set(data.rows.map(({ status }) => status))];
const rowsById = new Map(data.rows.map((row) => [row.id, row]));

// A column is the position of a metric, with "r" before it where it is the ratio to the baseline.
const isRatio = (column) => column.startsWith("r");
const metricOf = (column) => Number(isRatio(column) ? column.slice(1) : column);
// What is missing or failed says nothing of whether the others differ.
const measured = data.rows.filter(hasValues);
const differs = (place) => new Set(measured.flatMap(({ values }) => (values[place] ? [JSON.stringify(values[place])] : []))).size > 1;
const COMPARED = ["latency/iteration", "latency/forward"];
const headline = data.metrics.map((_, place) => place).filter((place) => data.metrics[place].headline);
// A metric with one value for each model, such as its parameters, is in the heading of the model's panel instead of a column.
const modelAxis = varying.find(({ key }) => key === "model");
const byModel = new Map();
for (const row of measured) {
  const model = modelAxis ? row.at[modelAxis.place] : 0;
  (byModel.get(model) ?? byModel.set(model, []).get(model)).push(row);
}
const isOfModel = (place) => !data.own_axes.includes("model") && [...byModel.values()].some((rows) => rows.length > 1)
  && [...byModel.values()].every((rows) => new Set(rows.map(({ values }) => JSON.stringify(values[place] ?? null))).size === 1);
const ofModels = headline.filter((place) => isOfModel(place) && measured[0].values[place]?.[1] === null);
const differing = headline.filter((place) => measured.length < 2 || differs(place));
const inColumns = differing.filter((place) => !ofModels.includes(place));
const shownAtFirst = inColumns.length ? inColumns : differing;
// The metric that is compared first, or undefined.
const main = COMPARED.map((name) => shownAtFirst.find((place) => data.metrics[place].name === name)).find((place) => place !== undefined)
  ?? shownAtFirst.find((place) => data.metrics[place].better !== null);

const initial = () => ({
  sort: null, // a column, or "a" and the position of an axis
  descending: false,
  group: -1, // the position of an axis
  text: "",
  hidden: data.axes.map(() => new Set()), // by axis the positions of values that are filtered out
  hiddenStatuses: new Set(),
  unmeasured: measured.length === 0, // whether rows without values are shown
  columns: shownAtFirst.flatMap((place) => (place === main ? [String(place), `r${place}`] : [String(place)])),
  baseline: data.baselines[0],
  layers: {}, // what layers.js shows, as texts by their keys of the address
});
const state = initial();

const baselineOf = (row) => data.rows[state.baseline.bases[row.place]] ?? null;
const baselineText = () => state.baseline.text;

// The row beside its baseline, as Python compared them. Null where there is none.
const cellOf = (row, place) => {
  const found = state.baseline.cells[place]?.[row.place];
  if (!found) return null;
  const [ratio, verdict, code, low, high, needed] = found, [reason, why] = data.verdict_reasons[code] ?? [];
  return { ratio, low, high, verdict: data.verdict_names[verdict], reason, why, needed };
};

const searched = new Map(data.rows.map((row) => [row, [row.id, nameOf(row), failureOf(row) ?? "ok", row.incomplete ? `incomplete ${row.incomplete}` : "", row.noisy ? "noisy" : ""].join("\n").toLowerCase()]));
// The rows that the filters leave, and those of them that the table shows.
const filtered = () => {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  return data.rows.filter((row) =>
    !state.hiddenStatuses.has(row.status)
    && row.at.every((value, axis) => !state.hidden[axis].has(value))
    && words.every((word) => searched.get(row).includes(word)));
};
const visible = () => filtered().filter((row) => state.unmeasured || hasValues(row));

// Rows by a number or a text of each; null comes last either way.
const sortedBy = (rows, keyOf, isDescending) => {
  const sign = isDescending ? -1 : 1, keyed = rows.map((row) => [keyOf(row), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  });
  return keyed.map(([, row]) => row);
};

const listeners = [];
const listen = (listener) => listeners.push(listener);
const tell = () => { for (const listener of listeners) listener(state); };

// Changes the state and the address; typing makes no step of the way back.
const keep = (changes, isTyping = false) => {
  Object.assign(state, changes);
  const address = spelled() || (location.hash.startsWith(ADDRESS) ? "#" : location.hash);
  if (address !== location.hash) history[isTyping ? "replaceState" : "pushState"](null, "", address || "#");
};
const change = (...changes) => { keep(...changes); tell(); }; // and the page

window.sweeprof = {
  data, state, visible, filtered, baselineOf, listen, keep, sortedBy,
  cellOf, nameOf, hasValues, failureOf, isWithinProcess, make, buttonOf, plural, shortened, scaled, significant, numberText, ratioNumber,
  reasonOf: (row, place) => data.reasons[row.why[place]] ?? failureOf(row) ?? "not requested for this combination",
};
