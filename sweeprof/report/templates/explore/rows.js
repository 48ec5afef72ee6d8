// The details of one combination, which open below its row.
const opened = new Set();
let details = new Map();

const actionsOf = (row) => {
  const made = make("p", undefined, "actions");
  const choices = [...(document.getElementById("layers-chosen")?.options ?? [])];
  if (choices.some(({ textContent }) => textContent === nameOf(row))) {
    made.append(buttonOf("Its layers, beside its baseline's", () => {
      change({ layers: { layers: nameOf(row), "layers-beside": nameOf(baselineOf(row) ?? row) } });
      document.getElementById("layers").scrollIntoView();
    }));
  }
  return made;
};

const figuresOf = (row) => {
  const made = make("table", undefined, "full");
  data.metrics.forEach((metric, place) => {
    const line = make("tr"), title = make("th", metric.name), value = row.values[place], cell = cellOf(row, place);
    title.scope = "row";
    const text = value ? `${numberText(metric, value[0])} ${intervalText(metric, value)}`.trim() : MISSING;
    const ratio = cell && cell.ratio !== null ? ["×" + ratioNumber(cell.ratio), ratioInterval(cell), cell.verdict ?? ""].filter(Boolean).join(" ") : "";
    line.append(title, make("td", text), make("td", ratio), make("td", value ? row.details?.[place] ?? "" : window.sweeprof.reasonOf(row, place), "dim"));
    made.append(line);
  });
  return made;
};

const folded = (title, text) => {
  const made = make("details"), body = make("pre", text);
  body.tabIndex = 0;
  made.append(make("summary", title), body);
  return made;
};
const detailLine = (row) => {
  if (details.has(row)) return details.get(row);
  const line = make("tr", undefined, "detail"), cell = make("td"), made = make("div", undefined, "detail-body");
  cell.colSpan = width();
  made.append(make("p", row.status === "ok" ? nameOf(row) : row.incomplete ? `${nameOf(row)} – ${failureOf(row)}` : `${nameOf(row)} – ${row.status}: ${data.reasons[row.reason]}`));
  for (const [source, log, traceback] of row.failures ?? []) {
    if (log) {
      const link = make("a", "log"), text = make("p", `${source}: `, "small");
      link.href = encodeURI(log);
      text.append(link);
      made.append(text);
    }
    if (traceback >= 0) made.append(folded(`Traceback of ${source}`, data.tracebacks[traceback]));
  }
  made.append(actionsOf(row));
  const command = data.command_start + row.command;
  if (command) {
    const text = make("pre", command);
    text.tabIndex = 0;
    made.append(make("p", `Repeat this row alone (${row.wall_s.toFixed(1)} s):`, "small dim"), text);
  }
  made.append(...(row.warnings ?? []).map((place) => make("p", data.reasons[place], "small advice")));
  if (Object.keys(row.values).length) made.append(figuresOf(row));
  cell.append(made);
  line.append(cell);
  details.set(row, line);
  return line;
};

// Before the link to a row is followed, the row is there; the keyboard goes on from it.
const openRow = () => {
  const row = rowsById.get(decodeURIComponent(location.hash.slice(1)));
  if (!row) return;
  opened.add(row);
  if (!visible().includes(row)) {
    Object.assign(state, { ...initial(), columns: state.columns, baseline: state.baseline, layers: state.layers, unmeasured: true });
    tell();
  }
  room = Math.max(room, visible().length);
  drawTable();
  lines.get(row).scrollIntoView({ block: "start" });
  lines.get(row).querySelector("button").focus();
};
