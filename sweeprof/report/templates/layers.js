"use strict";
// The layers of one combination, the slowest first, or beside those of another. All text of the page goes through textContent: names of layers are data.
{
  const { make, buttonOf, ratioNumber, shortened, sortedBy, state } = window.sweeprof;
  const data = JSON.parse(document.getElementById("layers-data").textContent);
  const MISSING = "–", MANY_ROWS = 120, SHOWN_DEPTH = 2, LONGEST = 81;
  const element = (id) => document.getElementById(`layers-${id}`);
  const chosen = element("chosen"), beside = element("beside"), figure = element("figure"), table = element("table");
  const collapsed = new Set(), toggles = new Map();

  // The time of a step is that of its forward, with its backward where that was measured.
  const placeOf = (title) => data.columns.findIndex((column) => column.title === title);
  const isTraining = placeOf("backward") >= 0;
  const withTime = ([forward, backward, ...counts]) => [forward === null ? null : forward + (backward ?? 0), forward, backward, ...counts];
  if (isTraining) {
    data.columns.unshift({ title: "time", unit: "s", isTime: true });
    for (const side of data.tables) side.totals = withTime(side.totals);
  }
  const isTimed = (side) => (side.totals[placeOf("time")] ?? null) !== null;

  const scaled = (value, unit) => (value === null ? MISSING : window.sweeprof.scaled(value, unit));
  const signed = (value, unit) => (value === null ? MISSING : value > 0 ? `+${scaled(value, unit)}` : value < 0 ? `−${scaled(-value, unit)}` : "0");
  const percent = (value) => (value === null ? MISSING : `${(100 * value).toFixed(1)}%`);
  const ratioText = (value) => (value === null ? MISSING : `×${ratioNumber(value)}`);
  const quotient = (a, b) => (a === null || b === null || b === 0 ? null : a / b);
  const difference = (a, b) => (a === null || b === null ? null : a - b);

  // The nodes of a table as a tree, with their own figures, and the sums with child layers. Siblings with the same
  // name are calls of one module, and get numbers.
  const treeOf = (side) => {
    const [paths, types, depths, calls, shapes, ...figures] = side.vectors.map((place) => data.vectors[place]);
    const root = { path: "", sums: [], children: new Map() };
    const open = [root];
    const nodes = paths.map((at, place) => {
      const around = open[depths[place]], path = data.strings[at], values = figures.map((one) => one[place]);
      const name = path.startsWith(`${around.path}.`) ? path.slice(around.path.length + 1) : path;
      let key = JSON.stringify([name, 0]);
      for (let count = 1; around.children.has(key); count += 1) key = JSON.stringify([name, count]);
      const own = isTraining ? withTime(values) : values;
      const node = {
        name, path, around, type: data.strings[types[place]], call: calls[place], shape: data.strings[shapes[place]],
        own, sums: [...own], children: new Map(),
      };
      around.children.set(key, node);
      open.length = depths[place] + 1;
      open.push(node);
      return node;
    });
    for (const { around, sums } of nodes.reverse()) sums.forEach((value, column) => { if (value !== null) around.sums[column] += value; });
    return root;
  };

  // The union in the order of the first; what only the second has follows its predecessor there.
  const mergedKeys = (a, b) => {
    const after = new Map();
    let previous = null;
    for (const key of b) {
      if (a.includes(key)) previous = key;
      else after.set(previous, [...(after.get(previous) ?? []), key]);
    }
    return [...(after.get(null) ?? []), ...a.flatMap((key) => [key, ...(after.get(key) ?? [])])];
  };
  const rowsOf = (a, b, depth, around) => {
    const keys = mergedKeys([...(a?.children.keys() ?? [])], [...(b?.children.keys() ?? [])]);
    return keys.flatMap((key) => {
      const one = a?.children.get(key) ?? null, other = b?.children.get(key) ?? null;
      const id = `${around}/${key}`;
      const within = rowsOf(one, other, depth + 1, id);
      return [{ id, around, node: one ?? other, nodes: [one, other], depth, isParent: within.length > 0 }, ...within];
    });
  };

  // What is shown: one or two tables, their layers, whether as a tree, and the columns, each with the value of a row and its text.
  let view = {}, sides = [], rows = [], isTree = false, columns = [];
  const figureOf = (node, column) => (node === null ? null : (isTree ? node.sums : node.own)[column]);
  const hintOf = (node, column) => {
    const value = figureOf(node, column);
    if (value === null) return node?.call > 0 && !data.columns[column].isTime ? "counted at the first call" : "";
    return String(Number(value.toPrecision(12)));
  };
  const textColumn = (key, title, of, name = "") => ({ key, title, of, name, spell: (text) => text ?? MISSING, total: "" });
  const typeColumn = (key, side, name) => textColumn(key, "type", (row) => row.nodes[side]?.type || null, name);
  const figureColumn = (key, side, title) => {
    const column = placeOf(title), { unit } = data.columns[column];
    return {
      key, title, name: "number", of: (row) => figureOf(row.nodes[side], column), hint: (row) => hintOf(row.nodes[side], column),
      spell: (value) => scaled(value, unit), total: sides[side].totals[column],
    };
  };
  const columnsOfOne = () => {
    const [side] = sides, of = isTimed(side) ? "time" : "MACs", column = placeOf(of), whole = side.step_s ?? side.totals[column];
    const phases = side.totals[placeOf("backward")] > 0 ? ["forward", "backward"] : [];
    const share = {
      key: "share", title: `share of ${side.step_s === null ? of : "step"}`, name: "number", spell: percent,
      of: (row) => quotient(figureOf(row.node, column), whole), total: quotient(side.totals[column], whole),
    };
    const figures = (titles) => titles.map((title) => figureColumn(title, 0, title));
    return [typeColumn("type", 0, ""), ...figures(isTimed(side) ? ["time"] : []), share, ...figures([...phases, "params", "MACs"])];
  };
  const columnsOfTwo = () => {
    const column = placeOf(figure.value), { unit } = data.columns[column];
    const both = ["", "other-"].flatMap((prefix, side) => [
      typeColumn(`${prefix}type`, side, "second"),
      textColumn(`${prefix}shape`, "output shape", (row) => row.nodes[side]?.shape ?? null),
      figureColumn(`${prefix}value`, side, figure.value),
    ]);
    const compared = (key, of, spell, name) => ({
      key, title: key, name, spell, of: (row) => of(...row.nodes.map((node) => figureOf(node, column))), total: of(...sides.map(({ totals }) => totals[column])),
    });
    return [...both, compared("difference", difference, (value) => signed(value, unit), "number second"), compared("ratio", quotient, ratioText, "number")];
  };

  const cellOf = ({ key, name, of, spell, hint }, row) => {
    const value = of(row), text = spell(value), made = make("td", text, name);
    if (text === MISSING) made.classList.add("dim");
    if (key === "difference" && value) made.classList.add("differs");
    if (hint) made.title = hint(row);
    return made;
  };
  const toggleOf = ({ id, node }) => {
    const made = buttonOf("", () => {
      collapsed[collapsed.has(id) ? "delete" : "add"](id);
      draw();
      toggles.get(id).focus();
    }, "toggle");
    made.setAttribute("aria-label", `layers within ${node.name}`);
    made.setAttribute("aria-expanded", String(!collapsed.has(id)));
    toggles.set(id, made);
    return made;
  };
  const rowOf = (row) => {
    const { node, depth, isParent } = row, made = make("tr"), head = make("th");
    head.scope = "row";
    head.style.setProperty("--depth", depth);
    head.append(isParent ? toggleOf(row) : make("span", undefined, "leaf"), make("span", node.name, "name"), make("span", node.path, "path"));
    if (node.call > 0) head.append(make("span", " (recursive)", "dim"));
    if (node.call < 0 && !isParent) head.append(make("span", " (never called)", "dim"));
    made.append(head, ...columns.slice(1).map((column) => cellOf(column, row)));
    return made;
  };

  // Numbers fall first, texts rise.
  const sortBy = ({ key, name }, order) => {
    const isFalling = order === "none" ? name.startsWith("number") : order === "ascending";
    change({ "layers-sort": `${isFalling ? "descending" : "ascending"} ${key}` });
    table.querySelector(`th[data-column="${key}"] button`).focus();
  };
  const header = (order, sorted) => {
    const head = make("thead"), names = make("tr"), titles = make("tr");
    const group = (text, span) => Object.assign(make("th", shortened(text, LONGEST), "second"), { colSpan: span, scope: "colgroup", title: text });
    names.append(make("td"), ...sides.map((side) => group(side.label, 3)), group("first compared with second", 2));
    titles.append(...columns.map((column) => {
      const cell = Object.assign(make("th", undefined, column.name), { scope: "col" }), now = column === sorted ? order : "none";
      cell.dataset.column = column.key;
      cell.setAttribute("aria-sort", now);
      cell.append(buttonOf(column.title, () => sortBy(column, now), "sort"));
      return cell;
    }));
    head.append(...(sides.length > 1 ? [names] : []), titles);
    return head;
  };
  const footer = () => {
    const line = make("tr"), foot = make("tfoot"), [, ...others] = columns;
    line.append(Object.assign(make("th", "total"), { scope: "row" }), ...others.map(({ name, spell, total }) => make("td", spell(total), name)));
    foot.append(line);
    return foot;
  };

  // Reads the state: what is compared, by which figure, in which order. Names that this report does not have are left out.
  const choose = () => {
    const tableOf = (key) => data.tables.findIndex(({ label }) => label === state.layers[key]);
    const first = tableOf("layers") >= 0 ? tableOf("layers") : Math.max(0, data.tables.findIndex(isTimed)), second = tableOf("layers-beside");
    const pair = second < 0 || second === first ? [first] : [first, second];
    sides = pair.map((place) => data.tables[place]);
    if (String(pair) !== view.pair) {
      view = { pair: String(pair), rows: rowsOf(...[...sides.map(treeOf), null].slice(0, 2), 0, "") };
      collapsed.clear();
      if (view.rows.length > MANY_ROWS) for (const row of view.rows) if (row.isParent && row.depth >= SHOWN_DEPTH) collapsed.add(row.id);
    }
    view.state = state.layers;
    [chosen.value, beside.value, figure.parentElement.hidden] = [first, pair[1] ?? -1, pair.length < 2];
    const usual = sides.every(isTimed) ? "time" : "MACs", asked = state.layers["layers-figure"];
    figure.value = placeOf(asked) < 0 ? usual : asked;
    columns = [textColumn("layer", "layer", ({ node }) => node.path), ...(pair.length > 1 ? columnsOfTwo() : columnsOfOne())];
    const columnOf = (sorting) => columns.find(({ key }) => ["none", "ascending", "descending"].some((order) => sorting === `${order} ${key}`));
    const wanted = state.layers["layers-sort"] ?? "", sorting = columnOf(wanted) ? wanted : pair.length > 1 ? "none layer" : `descending ${usual}`;
    const [order] = sorting.split(" "), sorted = columnOf(sorting);
    isTree = order === "none";
    rows = isTree ? view.rows : sortedBy(view.rows, sorted.of, order === "descending");
    return [order, sorted];
  };
  const draw = () => {
    const [order, sorted] = choose(), body = make("tbody"), hidden = new Set();
    for (const row of rows) {
      if (isTree && (hidden.has(row.around) || collapsed.has(row.around))) hidden.add(row.id);
      else body.append(rowOf(row));
    }
    table.classList.toggle("sorted", !isTree);
    table.replaceChildren(header(order, sorted), body, footer());
    for (const [id, isShown] of [["tree", !isTree], ["expand", isTree], ["collapse", isTree]]) element(id).hidden = !isShown;
    const timed = sides.length < 2 || data.columns[placeOf(figure.value)].isTime ? sides : [];
    const named = (side, text) => make("p", sides.length > 1 ? `${side.label}: ${text}` : text);
    element("told").replaceChildren(...timed.map((side) => named(side, side.told)));
    const notes = [isTree ? "Values include child layers." : "Values are each layer's own, without child layers."];
    if (sides.length > 1) notes.push("The difference is the first minus the second, the ratio the first over the second.");
    element("note").textContent = notes.join(" ");
    element("remarks").replaceChildren(...timed.filter(({ remarks }) => remarks.length).map((side) => named(side, side.remarks.join(" "))));
    element("measured").hidden = element("remarks").children.length === 0;
  };

  const change = (changes) => {
    window.sweeprof.keep({ layers: { ...state.layers, ...changes } });
    draw();
  };
  const options = data.tables.map(({ label }, place) => new Option(label, place));
  chosen.append(...options);
  beside.append(new Option(MISSING, -1), ...options.map((option) => option.cloneNode(true)));
  figure.append(...data.columns.map(({ title }) => new Option(title, title)));
  chosen.addEventListener("change", () => change({ layers: data.tables[chosen.value].label }));
  beside.addEventListener("change", () => change({ "layers-beside": data.tables[beside.value]?.label, "layers-sort": undefined }));
  figure.addEventListener("change", () => change({ "layers-figure": figure.value }));
  element("tree").addEventListener("click", () => { change({ "layers-sort": "none layer" }); element("expand").focus(); });
  element("expand").addEventListener("click", () => { collapsed.clear(); draw(); });
  element("collapse").addEventListener("click", () => { for (const row of rows) if (row.isParent && row.depth > 0) collapsed.add(row.id); draw(); });
  window.sweeprof.listen(() => { if (state.layers !== view.state) draw(); });
  draw();
}
