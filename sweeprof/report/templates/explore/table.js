// The table of all combinations. All text goes through textContent: names and reasons are data.
const DRAWN_AT_ONCE = 200;
const table = document.getElementById("explore-table"), told = document.getElementById("explore-told");

const axisColumns = () => varying.filter(({ place }) => place !== state.group);
const sortKey = (row) => {
  const { sort } = state;
  if (sort.startsWith("a")) {
    const axis = data.axes[sort.slice(1)], at = row.at[sort.slice(1)];
    return at < 0 ? null : axis.numbers ? axis.numbers[at] : axis.values[at];
  }
  if (!hasValues(row)) return null;
  const place = metricOf(sort);
  return (isRatio(sort) ? (baselineOf(row) === row ? 1 : cellOf(row, place)?.ratio) : row.values[place]?.[0]) ?? null;
};
const inOrder = (rows) => {
  if (state.sort === null) return rows;
  const sign = state.descending ? -1 : 1;
  const keyed = rows.map((row) => [sortKey(row), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  });
  return keyed.map(([, row]) => row);
};

const titled = (made, text) => {
  made.textContent = shortened(text);
  if (made.textContent !== text) made.title = text;
  return made;
};
const SHORT = 18; // characters of a value that stays on one line
const axisCell = (row, { place, numbers }) => {
  const text = valueText(row, place);
  return titled(make("td", "", `axis${numbers ? " number" : ""}${text.length <= SHORT ? " short" : ""}`), text);
};
const valueCell = (row, place) => {
  const value = row.values[place], metric = data.metrics[place], made = make("td", undefined, "number");
  if (!value) {
    made.textContent = MISSING;
    made.title = window.sweeprof.reasonOf(row, place);
    return made;
  }
  made.textContent = numberText(metric, value[0]);
  const interval = metric.name.startsWith("throughput/") ? "" : intervalText(metric, value); // which is the latency's, the other way up
  if (interval) {
    made.append(" ", make("span", interval, "interval"));
    made.title = intervalNote(row, place);
  }
  return made;
};
const roundsCell = (row) => {
  const made = make("td", row.incomplete ?? "complete", `rounds${row.incomplete ? "" : " dim"}`);
  if (row.incomplete) made.title = failureOf(row);
  return made;
};
const someIncomplete = data.rows.some((row) => row.incomplete !== undefined);
const ratioCell = (row, place) => {
  const cell = cellOf(row, place);
  if (baselineOf(row) === row && row.values[place]) return make("td", "baseline", "number dim");
  if (!cell || cell.ratio === null) return make("td", MISSING, "number dim");
  const made = make("td", `×${ratioNumber(cell.ratio)}`, `number ${cell.verdict ?? ""}`);
  if (cell.low !== undefined) made.append(" ", make("span", `[${ratioNumber(cell.low)}–${ratioNumber(cell.high)}]`, "interval"));
  if (cell.verdict) made.append(` ${MARKS[cell.verdict] ?? cell.verdict}`);
  made.title = verdictNote(data, cell);
  return made;
};
const rowLine = (row) => {
  const line = make("tr", undefined, hasValues(row) ? "" : "failed"), more = make("td", undefined, "more"), link = make("a", "⋯");
  line.append(...axisColumns().map((axis) => axisCell(row, axis)));
  if (hasValues(row)) line.append(...(someIncomplete ? [roundsCell(row)] : []), ...state.columns.map((column) => (isRatio(column) ? ratioCell : valueCell)(row, metricOf(column))));
  else if (state.columns.length + someIncomplete) {
    const failure = make("td", undefined, "failure");
    failure.colSpan = state.columns.length + someIncomplete;
    failure.append(make("strong", row.status), `: ${data.reasons[row.reason]}`);
    line.append(failure);
  }
  link.href = `#${row.id}`;
  link.setAttribute("aria-label", `details of ${nameOf(row)}`);
  more.append(link);
  line.append(more);
  return line;
};

const sortBy = (column) => {
  const again = state.sort === column;
  if (again && state.descending) change({ sort: null, descending: false });
  else change({ sort: column, descending: again });
  table.tHead.querySelector(`th[data-column="${column}"] button`)?.focus();
};
const header = (column, title, hint, isNumber) => {
  const made = make("th", undefined, isNumber ? "number" : ""), button = make("button", title);
  made.scope = "col";
  made.dataset.column = column;
  made.setAttribute("aria-sort", state.sort !== column ? "none" : state.descending ? "descending" : "ascending");
  button.type = "button";
  button.title = hint;
  button.addEventListener("click", () => sortBy(column));
  made.append(button);
  return made;
};
const columnTitle = (column) => {
  const metric = data.metrics[metricOf(column)], arrow = ARROWS[metric.better] ?? "";
  if (!isRatio(column)) return metric.title + arrow;
  const of = state.columns.filter(isRatio).length > 1 ? `${metric.title} ` : "";
  return `${of}vs ${baselineText() ?? "nothing"}${arrow}`;
};
const hintOf = (column) => {
  const { name, definition } = data.metrics[metricOf(column)];
  return isRatio(column) ? `${name}: this value over the baseline's, with the verdict.` : `${name}: ${definition}`;
};
const headLine = () => {
  const line = make("tr"), more = make("th", undefined, "more"), hidden = make("span", "details", "hidden");
  line.append(...axisColumns().map(({ key, place, numbers }) => header(`a${place}`, key, `axis ${key}`, numbers !== null)));
  if (someIncomplete) line.append(Object.assign(make("th", "measured"), { scope: "col", title: "How many of the planned rounds were measured." }));
  line.append(...state.columns.map((column) => header(column, columnTitle(column), hintOf(column), true)));
  more.append(hidden);
  line.append(more);
  return line;
};

// What rows come to in each column of ratios: their geometric mean, and how many there are of each verdict.
const VERDICTS = ["better", "worse", "same", "unclear", "not_comparable"];
const summaryCell = (rows, column) => {
  const made = make("td", undefined, "number summary");
  if (!isRatio(column)) return made;
  const place = metricOf(column), usable = rows.filter((row) => usableRatio(row, place) !== null);
  const mean = geometricMean(usable.map((row) => usableRatio(row, place)));
  if (mean === null) return made;
  // As report/verdict_summary.py counts them: every row that has a baseline could have had a ratio.
  const candidates = rows.filter((row) => baselineOf(row) !== null && baselineOf(row) !== row && row.status !== "unsupported");
  const incomplete = usable.filter((row) => row.incomplete || baselineOf(row)?.incomplete).length;
  const some = usable.length < candidates.length || incomplete ? ` of ${usable.length} of ${candidates.length}${incomplete ? `, ${incomplete} incomplete` : ""}` : "";
  made.append(make("span", `×${ratioNumber(mean)} mean${some}`));
  made.title = "Geometric mean of the ratios of combinations that have values on both sides.";
  const cells = rows.filter(hasValues).map((row) => cellOf(row, place)?.verdict);
  const counts = VERDICTS.map((verdict) => [cells.filter((other) => other === verdict).length, verdict]).filter(([count]) => count);
  if (counts.length) made.append(" ", make("span", counts.map(([count, verdict]) => `${count} ${verdict.replace("_", " ")}`).join(", "), "interval"));
  return made;
};
const summaryLine = (rows, label, name) => {
  const line = make("tr", undefined, name), title = titled(make("th"), label);
  title.scope = "row";
  title.colSpan = Math.max(1, axisColumns().length);
  title.append(make("span", ` ${rows.length}`, "dim"));
  if (someIncomplete) line.append(title, make("td"));
  else line.append(title);
  line.append(...state.columns.map((column) => summaryCell(rows, column)), make("td", undefined, "more"));
  return line;
};

const groupsOf = (rows) => {
  if (state.group < 0) return [[null, rows]];
  const found = new Map(data.axes[state.group].values.map((value, at) => [at, [`${data.axes[state.group].key}=${value}`, []]]));
  found.set(-1, [`no ${data.axes[state.group].key}`, []]);
  for (const row of rows) found.get(row.at[state.group])[1].push(row);
  return [...found.values()].filter(([, members]) => members.length);
};

// Lines are kept as long as they would be the same: sorting and filtering make none anew.
let lines = new Map(), drawnFor = "";
const lineOf = (row) => lines.get(row) ?? lines.set(row, rowLine(row)).get(row);
let room = DRAWN_AT_ONCE;
const bodiesOf = (seen) => {
  let left = room;
  return groupsOf(inOrder(seen)).map(([name, rows]) => {
    const body = make("tbody"), shown = rows.slice(0, left);
    if (name !== null && left > 0) body.append(summaryLine(rows, name, "group-head"));
    left -= shown.length;
    body.append(...shown.map(lineOf));
    return body;
  });
};
const drawTable = () => {
  const key = JSON.stringify([state.columns, state.group, state.baseline.id ?? state.baseline]);
  if (key !== drawnFor) [lines, drawnFor] = [new Map(), key];
  const seen = visible(), foot = make("tfoot"), head = make("thead"), base = baselineText();
  head.append(headLine());
  if (seen.length && state.columns.some(isRatio) && base !== null) foot.append(summaryLine(seen, "all", "summary"));
  table.replaceChildren(head, ...bodiesOf(seen), foot);
  table.setAttribute("aria-rowcount", seen.length + 1);
  told.textContent = `${seen.length} of ${plural(data.rows.length, "combination")}${base === null ? "" : `, ratios to ${base}`}`;
};

// A long table is drawn as far as it is looked at: a browser takes its time for the layout of a thousand lines.
const region = table.parentElement;
const extend = (rows) => {
  if (visible().length <= room) return;
  room += rows;
  const focused = table.contains(document.activeElement) ? document.activeElement : null;
  for (const body of [...table.tBodies]) body.remove();
  table.tHead.after(...bodiesOf(visible()));
  focused?.focus({ preventScroll: true }); // which it lost as it was taken out
};
region.addEventListener("scroll", () => { if (region.scrollTop + 2 * region.clientHeight > region.scrollHeight) extend(DRAWN_AT_ONCE); });
addEventListener("beforeprint", () => extend(Infinity));
const drawAnew = () => {
  room = DRAWN_AT_ONCE;
  region.scrollTop = 0;
  drawTable();
};
