// The table of all combinations. All text goes through textContent: names and reasons are data.
const DRAWN_AT_ONCE = 200;
const table = document.getElementById("explore-table"), told = document.getElementById("explore-told");

// Of a sweep in which nothing is compared there are no ratios, until the reader chooses a baseline.
const shownColumns = () => state.columns.filter((column) => !isRatio(column) || baselineText() !== null);
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
const inOrder = (rows) => (state.sort === null ? rows : sortedBy(rows, sortKey, state.descending));

// What a cell draws as a dot with its interval, or null; all of a column on one scale.
const drawnOf = (row, column) => {
  const place = metricOf(column), [value, low, high] = row.values[place] ?? [null, null, null], cell = cellOf(row, place);
  if (isRatio(column)) return cell?.ratio > 0 ? { ...cell, value: cell.ratio } : null;
  const isRepeated = data.metrics[place].name.startsWith("throughput/"); // which is the latency's, the other way up
  return low !== null && value > 0 && !isRepeated ? { value, low, high } : null;
};
let scales = new Map();
const scaleOfColumn = (column) => {
  if (!scales.has(column)) scales.set(column, scaleOf(measured.map((row) => drawnOf(row, column)).filter(Boolean), isRatio(column) ? [1] : []));
  return scales.get(column);
};

const titled = (made, text) => {
  made.textContent = shortened(text);
  if (made.textContent !== text) made.title = text;
  return made;
};
const SHORT = 18; // characters of a value that stays on one line
const frozen = (made, at) => {
  made.classList.add("frozen");
  made.style.left = `var(--left-${at}, auto)`;
  return made;
};
const axisCell = (row, { place, numbers }, at) => {
  const text = valueText(row, place);
  return frozen(titled(make("td", "", `axis${numbers ? " number" : ""}${text.length <= SHORT ? " short" : ""}`), text), at + 1);
};
const valueCell = (row, column) => {
  const place = metricOf(column), value = row.values[place], metric = data.metrics[place], made = make("td", undefined, "number");
  if (!value) {
    made.textContent = MISSING;
    made.title = window.sweeprof.reasonOf(row, place);
    return made;
  }
  if (row.noisy && place === main) made.append(Object.assign(make("span", "noisy", "noisy"), { title: row.noisy.map((at) => data.reasons[at]).join("; ") }), " ");
  made.append(numberText(metric, value[0]));
  if (drawnOf(row, column)) {
    const interval = intervalText(metric, value);
    made.append(" ", make("span", interval, "interval drawn"), whisker(drawnOf(row, column), scaleOfColumn(column)));
    made.title = `${interval} ${intervalNote(row, place)}`;
  }
  return made;
};
const ratioCell = (row, column) => {
  const place = metricOf(column), cell = cellOf(row, place);
  if (baselineOf(row) === row && row.values[place]) return make("td", "baseline", "number dim");
  if (!cell || (cell.ratio === null && !cell.verdict)) return make("td", MISSING, "number dim");
  const text = cell.ratio === null ? MISSING : `×${ratioNumber(cell.ratio)}`;
  const made = make("td", text, `number ${cell.verdict ?? ""}`), interval = ratioInterval(cell);
  if (interval) made.append(" ", make("span", interval, "interval drawn"));
  if (cell.ratio > 0) made.append(whisker(drawnOf(row, column), scaleOfColumn(column), cell.verdict));
  if (cell.verdict) made.append(" ", make("span", verdictText(cell), "verdict"));
  made.title = [interval, verdictNote(cell)].filter(Boolean).join(" ");
  return made;
};
const roundsCell = (row) => {
  const made = make("td", row.incomplete ?? "complete", `rounds${row.incomplete ? "" : " dim"}`);
  if (row.incomplete) made.title = failureOf(row);
  return made;
};
const someIncomplete = data.rows.some((row) => row.incomplete !== undefined);
const NO_FAILURE = new Set(["unsupported", "skipped"]);
const width = () => 1 + axisColumns().length + someIncomplete + shownColumns().length;
const rowLine = (row) => {
  const line = make("tr", undefined, hasValues(row) ? "" : NO_FAILURE.has(row.status) ? "unmeasured" : "unmeasured failed");
  const toggle = buttonOf("", () => { opened[opened.has(row) ? "delete" : "add"](row); drawTable(); line.querySelector("button").focus(); }, "toggle");
  toggle.setAttribute("aria-label", `details of ${nameOf(row)}`);
  line.id = row.id;
  const first = frozen(make("td", undefined, "more"), 0);
  first.append(toggle);
  line.append(first, ...axisColumns().map((axis, at) => axisCell(row, axis, at)));
  if (hasValues(row)) line.append(...(someIncomplete ? [roundsCell(row)] : []), ...shownColumns().map((column) => (isRatio(column) ? ratioCell : valueCell)(row, column)));
  else if (shownColumns().length + someIncomplete) {
    const failure = make("td", undefined, "failure");
    failure.colSpan = shownColumns().length + someIncomplete;
    failure.append(make("strong", row.status), `: ${data.reasons[row.reason]}`);
    line.append(failure);
  }
  return line;
};

const sortBy = (column) => {
  const again = state.sort === column;
  if (again && state.descending) change({ sort: null, descending: false });
  else change({ sort: column, descending: again });
  table.tHead.querySelector(`th[data-column="${column}"] button`)?.focus();
};
const header = (column, title, hint, isNumber, words = "") => {
  const made = make("th", undefined, isNumber ? "number" : ""), button = buttonOf(title, () => sortBy(column));
  made.scope = "col";
  made.dataset.column = column;
  made.setAttribute("aria-sort", state.sort !== column ? "none" : state.descending ? "descending" : "ascending");
  button.title = hint;
  if (words) button.append(make("span", words, "words"));
  made.append(button);
  return made;
};
const columnTitle = (column) => {
  const { title } = data.metrics[metricOf(column)];
  const of = shownColumns().filter(isRatio).length > 1 ? `${title} ` : "";
  return isRatio(column) ? `${of}vs ${shortened(baselineText())}` : title;
};
const hintOf = (column) => {
  const { name, definition } = data.metrics[metricOf(column)];
  if (!isRatio(column)) return `${name}: ${definition}`;
  return `${name}: this value over the baseline's, with the verdict.`;
};
const headLine = () => {
  const line = make("tr"), first = frozen(make("th", undefined, "more"), 0);
  first.append(make("span", "details", "hidden"));
  line.append(first, ...axisColumns().map(({ place, key, numbers }, at) => frozen(header(`a${place}`, shortened(key), key, numbers), at + 1)));
  if (someIncomplete) line.append(Object.assign(make("th", "measured"), { scope: "col", title: "How many of the planned rounds were measured; the values are those of these rounds." }));
  line.append(...shownColumns().map((column) => {
    const { better } = data.metrics[metricOf(column)];
    return header(column, columnTitle(column), hintOf(column), true, better ? `${better} is better` : "");
  }));
  return line;
};

const groupLine = (name, count) => {
  const line = make("tr", undefined, "group-head"), title = titled(make("th"), name);
  title.scope = "row";
  title.colSpan = width();
  title.append(make("span", ` ${count}`, "dim"));
  line.append(title);
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
const lineOf = (row) => {
  const line = lines.get(row) ?? lines.set(row, rowLine(row)).get(row);
  line.querySelector("button").setAttribute("aria-expanded", String(opened.has(row)));
  return opened.has(row) ? [line, detailLine(row)] : [line];
};
let room = DRAWN_AT_ONCE;
const bodiesOf = (seen) => {
  let left = room;
  return groupsOf(inOrder(seen)).map(([name, rows]) => {
    const body = make("tbody"), shown = rows.slice(0, left);
    if (name !== null && left > 0) body.append(groupLine(name, rows.length));
    left -= shown.length;
    body.append(...shown.flatMap(lineOf));
    return body;
  });
};
const region = table.parentElement;
// Columns of axes stay in sight as long as they leave nearly half of the width to the figures.
const freeze = () => {
  let left = 0;
  [...table.tHead.rows[0].cells].slice(0, 1 + axisColumns().length).forEach((cell, at) => {
    const fits = left + cell.offsetWidth <= 0.56 * region.clientWidth;
    table.style.setProperty(`--left-${at}`, fits ? `${left}px` : "auto");
    left += cell.offsetWidth;
  });
};
const drawTable = () => {
  const key = JSON.stringify([shownColumns(), state.group, state.baseline.key]);
  if (key !== drawnFor) [lines, details, scales, drawnFor] = [new Map(), new Map(), new Map(), key];
  const matching = filtered(), seen = visible(), head = make("thead"), base = baselineText();
  head.append(headLine());
  table.replaceChildren(head, ...bodiesOf(seen));
  table.setAttribute("aria-rowcount", seen.length + 1);
  freeze();
  const unmeasured = matching.filter((row) => !hasValues(row)).length;
  const ratios = base === null ? "" : `, ratios to ${base}`;
  told.textContent = `${matching.length - (state.unmeasured ? 0 : unmeasured)} of ${plural(data.rows.length, "combination")}${ratios}`;
  filterButton.hidden = !unmeasured;
  filterButton.textContent = `${unmeasured.toLocaleString("en")} not measured – ${state.unmeasured ? "hide" : "show"}`;
  filterButton.setAttribute("aria-pressed", String(state.unmeasured));
};
addEventListener("resize", freeze);

// A long table is drawn as far as it is looked at: a browser takes its time for the layout of a thousand lines.
const extend = (rows) => {
  if (visible().length <= room) return;
  room += rows;
  const top = region.scrollTop;
  const focused = table.contains(document.activeElement) ? document.activeElement : null;
  for (const body of [...table.tBodies]) body.remove();
  table.tHead.after(...bodiesOf(visible()));
  focused?.focus({ preventScroll: true }); // which it lost as it was taken out
  region.scrollTop = top;
};
region.addEventListener("scroll", () => { if (region.scrollTop + 2 * region.clientHeight > region.scrollHeight) extend(DRAWN_AT_ONCE); });
addEventListener("beforeprint", () => extend(Infinity));
const drawAnew = () => {
  room = DRAWN_AT_ONCE;
  region.scrollTop = 0;
  drawTable();
};

// What the table shows, as text; a spreadsheet computes texts that look like formulas, unless an apostrophe stands before them.
const exported = () => {
  const plainText = (text) => (/^[=+\-@\t\r\n＝＋－＠]/.test(text) && !/^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(text) ? `'${text}` : text);
  const titleOf = (column) => { const { name, unit } = data.metrics[metricOf(column)]; return isRatio(column) ? `${name} ratio to ${baselineText()}` : `${name}${unit ? ` (${unit})` : ""}`; };
  const head = [...varying.map(({ key }) => key), "status", ...shownColumns().flatMap((column) => [titleOf(column), "low", "high", ...(isRatio(column) ? ["verdict"] : [])])];
  const fieldsOf = (row, column) => {
    if (!isRatio(column)) return hasValues(row) ? row.values[column] ?? [null, null, null] : [null, null, null];
    const { ratio, low, high, verdict } = (hasValues(row) && cellOf(row, metricOf(column))) || {};
    return [ratio, low, high, verdict];
  };
  const body = inOrder(visible()).map((row) => [...varying.map(({ place }) => valueText(row, place)), row.incomplete ?? row.status, ...shownColumns().flatMap((column) => fieldsOf(row, column))]);
  return [head, ...body].map((fields) => fields.map((field) => plainText(String(field ?? ""))));
};
const download = () => {
  const quoted = (field) => (/[",\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field);
  const link = make("a"), text = exported().map((fields) => fields.map(quoted).join(",")).join("\n");
  link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
  link.download = "table.csv";
  link.click();
  URL.revokeObjectURL(link.href);
};
