// The state as text after the # of the address, and back. Names stand in it, not positions, which another report may number otherwise.
const columnName = (column) => (isRatio(column) ? "ratio:" : "") + data.metrics[metricOf(column)].name;
const columnOf = (name) => {
  const place = data.metrics.findIndex((metric) => metric.name === name.replace(/^ratio:/, ""));
  return place < 0 ? null : name.startsWith("ratio:") ? `r${place}` : String(place);
};
const axisOf = (key) => data.axes.findIndex((axis) => axis.key === key);

const spelled = (layers = state.layers) => {
  const first = initial(), found = new URLSearchParams();
  if (state.sort !== null) found.append(state.descending ? "falling" : "rising", state.sort.startsWith("a") ? `axis:${data.axes[state.sort.slice(1)].key}` : columnName(state.sort));
  if (state.group >= 0) found.append("group", data.axes[state.group].key);
  if (state.text) found.append("search", state.text);
  if (state.unmeasured !== first.unmeasured) found.append("unmeasured", state.unmeasured);
  state.hidden.forEach((values, axis) => { for (const value of values) found.append(`without.${data.axes[axis].key}`, data.axes[axis].values[value] ?? MISSING); });
  for (const status of state.hiddenStatuses) found.append("without-status", status);
  if (state.columns.join() !== first.columns.join()) for (const column of state.columns.length ? state.columns : [null]) found.append("column", column === null ? "" : columnName(column));
  if (state.baseline !== first.baseline) found.append("baseline", state.baseline.key);
  for (const [key, text] of Object.entries(layers)) if (text !== undefined) found.append(key, text);
  const text = found.toString();
  return text && ADDRESS + text;
};

// Parses the state in the page's address; names that this report does not have are left out.
const read = (address) => {
  const found = initial(), given = new URLSearchParams(address.startsWith(ADDRESS) ? address.slice(ADDRESS.length) : "");
  if (given.has("column")) found.columns = given.getAll("column").map(columnOf).filter((column) => column !== null);
  for (const [key, value] of given) {
    const axisKey = key.startsWith("without.") ? key.slice("without.".length) : null;
    const axis = axisOf(axisKey ?? value.replace(/^axis:/, ""));
    if (axisKey !== null) {
      if (axis >= 0) found.hidden[axis].add(data.axes[axis].values.indexOf(value));
    } else if (key === "rising" || key === "falling") {
      found.sort = value.startsWith("axis:") ? (axis < 0 ? null : `a${axis}`) : columnOf(value);
      found.descending = key === "falling";
    } else if (key === "group") found.group = axis;
    else if (key === "search") found.text = value;
    else if (key === "unmeasured") found.unmeasured = value === "true";
    else if (key === "without-status") found.hiddenStatuses.add(value);
    else if (key.startsWith("layers")) found.layers[key] = value;
    else if (key === "baseline") found.baseline = data.baselines.find((one) => one.key === value) ?? found.baseline;
  }
  return found;
};

// The address of a row or a section is no view: what is shown stays.
const restore = () => {
  if (location.hash !== "" && location.hash !== "#" && !location.hash.startsWith(ADDRESS)) return;
  Object.assign(state, read(location.hash));
  tell();
};
addEventListener("popstate", restore);
