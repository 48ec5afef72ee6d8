// Controls of groups, search, filters and columns, and of the sweep to compare with. Native elements, so that every one is usable by keyboard.
const controls = document.getElementById("explore-controls");

const labelled = (text, element) => {
  const made = make("label", text);
  made.append(element);
  return made;
};
const menuOf = (title, parts) => {
  const made = make("details", undefined, "menu"), summary = make("summary"), list = make("div", undefined, "list");
  summary.append(make("span", title), make("span", "", "count"));
  list.append(...parts);
  made.append(summary, list);
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    made.open = false;
    summary.focus();
  });
  return made;
};
const checkbox = (text, onChange, name) => {
  const made = make("label", undefined, name), box = make("input");
  box.type = "checkbox";
  box.addEventListener("change", () => onChange(box.checked));
  made.append(box, make("span", text));
  return [made, box];
};
addEventListener("click", ({ target }) => {
  for (const menu of controls.querySelectorAll("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
});

// The own baseline, or another sweep that this one was compared with.
const baselineChoice = () => {
  const select = make("select"), [own, ...others] = data.baselines;
  select.append(new Option(own.text === null ? "nothing" : `as swept: ${own.text}`, 0), ...others.map(({ key }, at) => new Option(key, at + 1)));
  select.addEventListener("change", () => change({ baseline: data.baselines[select.value] }));
  listen(() => { select.value = data.baselines.indexOf(state.baseline); });
  return labelled("compare with", select);
};

const groupChoice = () => {
  const select = make("select");
  select.append(new Option("nothing", -1), ...varying.map(({ key, place }) => new Option(key, place)));
  select.addEventListener("change", () => change({ group: Number(select.value) }));
  listen(() => { select.value = state.group; });
  return labelled("group by", select);
};

const search = () => {
  const input = make("input");
  input.type = "search";
  input.placeholder = "name, status or reason";
  input.addEventListener("input", () => change({ text: input.value }, true));
  listen(() => { if (input.value !== state.text) input.value = state.text; });
  return labelled("search", input);
};

// A menu of what is shown: hidden(choice) says whether one is not, and hide(set of choices) changes it.
const filterMenu = (title, choices, hidden, hide) => {
  const boxes = choices.map(([text, value]) => {
    const [label, box] = checkbox(text, (isOn) => {
      const next = new Set(hidden());
      next[isOn ? "delete" : "add"](value);
      hide(next);
    });
    return { label, box, value };
  });
  const both = make("div", undefined, "both");
  for (const [text, values] of [["all", []], ["none", choices.map(([, value]) => value)]]) {
    both.append(buttonOf(text, () => hide(new Set(values))));
  }
  const menu = menuOf(title, [both, ...boxes.map(({ label }) => label)]);
  listen(() => {
    for (const { box, value } of boxes) box.checked = !hidden().has(value);
    const shown = boxes.filter(({ box }) => box.checked).length;
    menu.querySelector(".count").textContent = shown === boxes.length ? "" : ` ${shown} of ${boxes.length}`;
    menu.classList.toggle("active", shown !== boxes.length);
  });
  return menu;
};
const filters = () => {
  const found = varying.map(({ key, values, place }) => {
    const absent = data.rows.some((row) => row.at[place] < 0) ? [[MISSING, -1]] : [];
    const hide = (set) => change({ hidden: state.hidden.map((old, axis) => (axis === place ? set : old)) });
    return filterMenu(key, [...values.map((value, at) => [value, at]), ...absent], () => state.hidden[place], hide);
  });
  if (statuses.length > 1) found.push(filterMenu("status", statuses.map((status) => [status, status]), () => state.hiddenStatuses, (set) => change({ hiddenStatuses: set })));
  return found;
};

const columnsMenu = () => {
  const every = data.metrics.flatMap((metric, place) => [[String(place), metric.title], [`r${place}`, `${metric.title}, ratio`]]);
  const order = new Map(every.map(([column], place) => [column, place]));
  const boxes = every.map(([column, text]) => {
    const [label, box] = checkbox(text, (isOn) => {
      const kept = state.columns.filter((other) => other !== column);
      change({ columns: isOn ? [...kept, column].sort((a, b) => order.get(a) - order.get(b)) : kept });
    }, isRatio(column) ? "ratio" : "");
    label.title = data.metrics[metricOf(column)].name;
    return [column, label, box];
  });
  const rest = data.left_out.length ? [make("p", `For the size of this page left out, but in comparison.csv: ${data.left_out.join(", ")}`, "dim small")] : [];
  const menu = menuOf("columns", [...boxes.map(([, label]) => label), ...rest]);
  menu.classList.add("columns");
  listen(() => { for (const [column, , box] of boxes) box.checked = state.columns.includes(column); });
  return menu;
};

const resetButton = () => {
  const button = buttonOf("reset", () => change({ ...initial(), layers: state.layers }));
  listen(() => { button.disabled = spelled({}) === ""; });
  return button;
};
const filterButton = buttonOf("", () => change({ unmeasured: !state.unmeasured }), "unmeasured");

if (data.baselines.length > 1) document.getElementById("explore-baseline").append(baselineChoice());
controls.append(groupChoice(), search(), ...filters(), columnsMenu(), resetButton(), buttonOf("CSV", download));
told.after(filterButton);
listen(drawAnew);
listen(drawHead);
listen(drawDots);
addEventListener("hashchange", openRow);
Object.assign(state, read(location.hash));
tell();
openRow();
