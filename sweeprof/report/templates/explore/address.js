// The state as text after the # of the address, and back. Names stand in it, not positions, which another report may number otherwise.
const columnName = (column) => (isRatio(column) ? "ratio:" : "") + data.metrics[metricOf(column)].name;
const columnOf = (name) => {
  const place = data.metrics.findIndex((metric) => metric.name === name.replace(/^ratio:/, ""));
  return place < 0 ? null : name.startsWith("ratio:") ? `r${place}` : String(place);
};
const axisOf = (key) => data.axes.findIndex((axis) => axis.key === key);

const spelled = () => {
  const first = initial(), found = new URLSearchParams();
  if (state.sort !== null) found.append(state.descending ? "falling" : "rising", state.sort.startsWith("a") ? `axis:${data.axes[state.sort.slice(1)].key}` : columnName(state.sort));
  if (state.group >= 0) found.append("group", data.axes[state.group].key);
  if (state.text) found.append("search", state.text);
  state.hidden.forEach((values, axis) => { for (const value of values) found.append(`without.${data.axes[axis].key}`, data.axes[axis].values[value] ?? MISSING); });
  for (const status of state.hiddenStatuses) found.append("without-status", status);
  if (state.columns.join() !== first.columns.join()) for (const column of state.columns.length ? state.columns : [null]) found.append("column", column === null ? "" : columnName(column));
  if (state.baseline === "none") found.append("baseline", "none");
  else if (state.baseline.id !== undefined) found.append("baseline", state.baseline.id);
  else if (state.baseline !== "planned") {
    for (const [axis, value] of Object.entries(state.baseline)) found.append(`baseline.${data.axes[axis].key}`, data.axes[axis].values[value]);
  }
  const text = found.toString();
  return text && ADDRESS + text;
};

// What an address says, as far as this report knows what it speaks of.
const read = (address) => {
  const found = initial(), given = new URLSearchParams(address.startsWith(ADDRESS) ? address.slice(ADDRESS.length) : "");
  const baseline = {};
  if (given.has("column")) found.columns = given.getAll("column").map(columnOf).filter((column) => column !== null);
  for (const [key, value] of given) {
    const [, kind, axisKey] = /^(without|baseline)\.(.*)$/s.exec(key) ?? [null, key, null];
    const axis = axisKey === null ? axisOf(value.replace(/^axis:/, "")) : axisOf(axisKey);
    if (axisKey !== null && axis < 0) continue;
    if (key === "rising" || key === "falling") {
      found.sort = value.startsWith("axis:") ? (axis < 0 ? null : `a${axis}`) : columnOf(value);
      found.descending = key === "falling";
    } else if (key === "group") found.group = axis;
    else if (key === "search") found.text = value;
    else if (key === "without-status") found.hiddenStatuses.add(value);
    else if (key === "baseline") found.baseline = value === "none" ? "none" : rowsById.get(value) ?? "planned";
    else if (kind === "without") found.hidden[axis].add(data.axes[axis].values.indexOf(value));
    else if (kind === "baseline" && data.axes[axis].values.includes(value)) baseline[axis] = data.axes[axis].values.indexOf(value);
  }
  return Object.keys(baseline).length ? { ...found, baseline } : found;
};

// The address of a row or a section is no view: what is shown stays.
const restore = () => {
  if (location.hash !== "" && location.hash !== "#" && !location.hash.startsWith(ADDRESS)) return;
  cells = new Map();
  Object.assign(state, read(location.hash));
  tell();
};
addEventListener("popstate", restore);
