// One combination in full: what one can do with it, and, where the page has too many to hold them ready, all of its figures.
const fullRows = document.getElementById("full-rows");

const actionsOf = (row) => {
  const made = make("p", undefined, "actions");
  const add = (text, act) => {
    const button = make("button", text);
    button.type = "button";
    button.addEventListener("click", act);
    made.append(button);
  };
  add("Compare all with this one", () => {
    change({ baseline: row });
    document.getElementById("combinations").scrollIntoView();
  });
  const left = document.getElementById("layers-left"), right = document.getElementById("layers-right");
  const layersOf = (other) => [...(left?.options ?? [])].find(({ textContent }) => textContent === nameOf(other))?.value;
  if (layersOf(row) !== undefined) {
    add("Its layers, beside its baseline's", () => {
      left.value = layersOf(baselineOf(row) ?? row) ?? layersOf(row);
      right.value = layersOf(row);
      right.dispatchEvent(new Event("change"));
      document.getElementById("layers").scrollIntoView();
    });
  }
  return made;
};

const figuresOf = (row) => {
  const made = make("table", undefined, "full");
  data.metrics.forEach((metric, place) => {
    const line = make("tr"), title = make("th", metric.name), value = row.values[place], cell = cellOf(row, place);
    title.scope = "row";
    const text = value ? `${numberText(metric, value[0])} ${intervalText(metric, value)}`.trim() : MISSING;
    const ratio = cell && cell.ratio !== null ? `×${ratioNumber(cell.ratio)} ${cell.verdict ?? ""}`.trim() : "";
    line.append(title, make("td", text), make("td", ratio), make("td", value ? "" : window.sweeprof.reasonOf(row, place), "dim"));
    made.append(line);
  });
  return made;
};

const built = new Map();
const builtRow = (row) => {
  const made = make("details", undefined, "row"), summary = make("summary", nameOf(row)), scroll = make("div", undefined, "scroll");
  made.id = row.id;
  if (!hasValues(row)) made.classList.add("failed");
  if (row.status !== "ok") summary.append(" ", make("strong", row.incomplete ? "incomplete" : row.status));
  made.append(summary);
  if (row.status !== "ok") made.append(make("p", row.incomplete ? failureOf(row) : data.reasons[row.reason]));
  if (row.command !== undefined) {
    const command = make("pre", data.command_start + row.command);
    command.tabIndex = 0;
    made.append(make("p", `Repeat this row alone (${row.wall_s.toFixed(1)} s):`, "small dim"), command);
  }
  made.append(...(row.warnings ?? []).map((place) => make("p", data.reasons[place], "small advice")));
  scroll.append(figuresOf(row));
  made.append(scroll);
  built.set(row, scroll);
  return made;
};

// Before the link to a row is followed, the row is there; the keyboard goes on from it.
const openRow = () => {
  const row = rowsById.get(location.hash.slice(1));
  if (!row) return;
  if (!document.getElementById(row.id)) fullRows.append(builtRow(row));
  document.getElementById(row.id).querySelector("summary").focus();
};
fullRows.addEventListener("toggle", ({ target }) => {
  const row = rowsById.get(target.id);
  if (row && target.open && !target.querySelector(".actions")) target.querySelector("summary").after(actionsOf(row));
}, true);
// Rows that were built here have ratios to what was the baseline then.
listen(() => {
  for (const [row, shown] of built) shown.replaceChildren(figuresOf(row));
});
addEventListener("hashchange", openRow);
document.querySelector("details.plain")?.removeAttribute("open"); // is for readers without scripts
openRow();
restore();
