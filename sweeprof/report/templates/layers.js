"use strict";
// Two layer trees side by side. All text of the page goes through textContent: names of layers are data.
{
  const { make, ratioNumber, shortened } = window.sweeprof;
  const data = JSON.parse(document.getElementById("layers-data").textContent);
  const MISSING = "–";
  const element = (id) => document.getElementById(`layers-${id}`);
  const left = element("left"), right = element("right"), figure = element("figure"), table = element("table");
  const collapsed = new Set();
  const MANY_ROWS = 120, SHOWN_DEPTH = 2, LONGEST = 81;

  const scaled = (value, unit) => (value === null ? MISSING : window.sweeprof.scaled(value, unit));
  const signed = (value, unit) => (value === null ? MISSING : value > 0 ? `+${scaled(value, unit)}` : value < 0 ? `−${scaled(-value, unit)}` : "0");
  const ratioText = (a, b) => (a === null || b === null || a === 0 ? MISSING : `×${ratioNumber(b / a)}`);
  const difference = (a, b) => (a === null || b === null ? null : b - a);

  // The nodes of a table as a tree. Siblings of one name are calls of one module: they are told apart by their number.
  const treeOf = (index) => {
    const [labels, types, depths, calls, shapes, ...figures] = data.tables[index].vectors.map((place) => data.vectors[place]);
    const reasons = data.tables[index].reasons === null ? [] : data.vectors[data.tables[index].reasons];
    const root = { children: new Map() };
    const open = [root];
    labels.forEach((label, place) => {
      const around = open[depths[place]];
      const name = data.strings[label];
      let key = JSON.stringify([name, 0]);
      for (let count = 1; around.children.has(key); count += 1) key = JSON.stringify([name, count]);
      const node = {
        name, type: data.strings[types[place]], call: calls[place], shape: data.strings[shapes[place]],
        values: figures.map((values) => values[place]), reason: data.strings[reasons[place]] ?? "no times were measured",
        children: new Map(),
      };
      around.children.set(key, node);
      open.length = depths[place] + 1;
      open.push(node);
    });
    return root;
  };

  // The union in the order of the left; what only the right has follows its predecessor there.
  const mergedKeys = (a, b) => {
    const after = new Map();
    let previous = null;
    for (const key of b) {
      if (a.includes(key)) previous = key;
      else after.set(previous, [...(after.get(previous) ?? []), key]);
    }
    return [...(after.get(null) ?? []), ...a.flatMap((key) => [key, ...(after.get(key) ?? [])])];
  };

  const rowsOf = (a, b, depth, path) => {
    const keys = mergedKeys([...(a?.children.keys() ?? [])], [...(b?.children.keys() ?? [])]);
    return keys.flatMap((key) => {
      const one = a?.children.get(key) ?? null, other = b?.children.get(key) ?? null;
      const id = `${path}/${key}`;
      const within = rowsOf(one, other, depth + 1, id);
      return [{ id, around: path, one, other, depth, isParent: within.length > 0 }, ...within];
    });
  };

  const figureCells = (a, b, unit) => {
    const gap = difference(a, b);
    const cells = [make("td", signed(gap, unit), `number difference second${gap ? " differs" : ""}`), make("td", ratioText(a, b), "number ratio")];
    if (gap !== null) cells[0].title = String(gap);
    return cells;
  };

  const sideCells = (node, column, unit, second) => {
    const texts = node === null ? [MISSING, MISSING, MISSING] : [node.type || MISSING, node.shape, scaled(node.values[column], unit)];
    const cells = texts.map((text, place) => make("td", text, `${place === 2 ? "number value" : ""}${text === MISSING ? " dim" : ""}`.trim()));
    if (node !== null && node.values[column] !== null) cells[2].title = String(node.values[column]);
    const isTime = data.columns[column].isTime;
    if (node !== null && node.values[column] === null && isTime) cells[2].title = node.reason;
    if (node !== null && node.values[column] === null && node.call > 0 && !isTime) cells[2].title = "counted at the first call";
    if (second) cells[0].classList.add("second");
    return cells;
  };

  // Where only one side includes what is within, the figures of what has something within mean different things.
  const areAlike = (row) => !row.isParent || Boolean(data.tables[left.value].note) === Boolean(data.tables[right.value].note);

  const rowOf = (row, column, unit) => {
    const made = make("tr");
    const head = make("th");
    head.scope = "row";
    head.style.setProperty("--depth", row.depth);
    const node = row.one ?? row.other;
    const name = node.name || "(model)";
    if (row.isParent) {
      const toggle = make("button", undefined, "toggle");
      toggle.type = "button";
      toggle.setAttribute("aria-label", `layers within ${name}`);
      toggle.addEventListener("click", () => { set(row.id, !collapsed.has(row.id)); });
      toggle.addEventListener("keydown", (event) => {
        if (event.key === "ArrowLeft") set(row.id, true);
        else if (event.key === "ArrowRight") set(row.id, false);
        else return;
        event.preventDefault();
      });
      head.append(toggle);
    } else {
      head.append(make("span", undefined, "leaf"));
    }
    head.append(make("span", name, "name"));
    if (node.call > 0) head.append(make("span", " (recursive)", "dim"));
    if (node.call < 0 && !row.isParent) head.append(make("span", " (never called)", "dim"));
    made.append(head, ...sideCells(row.one, column, unit, true), ...sideCells(row.other, column, unit, true));
    const compared = areAlike(row) ? [row.one, row.other] : [null, null];
    made.append(...figureCells(...compared.map((side) => side?.values[column] ?? null), unit));
    return made;
  };

  let rows = [], drawn = [];

  const set = (id, isCollapsed) => {
    if (isCollapsed) collapsed.add(id);
    else collapsed.delete(id);
    refresh();
  };

  const refresh = () => {
    const hidden = new Set();
    rows.forEach((row, place) => {
      if (hidden.has(row.around) || collapsed.has(row.around)) hidden.add(row.id);
      drawn[place].hidden = hidden.has(row.id);
      drawn[place].querySelector(".toggle")?.setAttribute("aria-expanded", String(!collapsed.has(row.id)));
    });
  };

  const header = (one, other, title) => {
    const names = make("tr"), titles = make("tr");
    const group = (text, span, name) => { const cell = make("th", shortened(text, LONGEST), name); cell.colSpan = span; cell.scope = "colgroup"; cell.title = text; return cell; };
    names.append(make("td"), group(one.label, 3, "second"), group(other.label, 3, "second"), group("right compared with left", 2, "second"));
    const texts = [["layer", ""], ...[1, 2].flatMap(() => [["type", "second"], ["output shape", ""], [title, "number"]]), ["difference", "number second"], ["ratio", "number"]];
    for (const [text, name] of texts) { const cell = make("th", text, name); cell.scope = "col"; titles.append(cell); }
    const head = make("thead");
    head.append(names, titles);
    return head;
  };

  const totals = (one, other, column, unit) => {
    const line = make("tr"), foot = make("tfoot");
    const head = make("th", "total");
    head.scope = "row";
    line.append(head);
    for (const side of [one, other]) {
      const blank = make("td", "", "second");
      blank.colSpan = 2;
      line.append(blank, make("td", scaled(side.totals[column], unit), "number value"));
    }
    line.append(...figureCells(one.totals[column], other.totals[column], unit));
    foot.append(line);
    return foot;
  };

  const draw = () => {
    const one = data.tables[left.value], other = data.tables[right.value];
    const column = Number(figure.value);
    const { title, unit } = data.columns[column];
    drawn = rows.map((row) => rowOf(row, column, unit));
    const body = make("tbody");
    body.append(...drawn);
    table.replaceChildren(header(one, other, title), body, totals(one, other, column, unit));
    const notes = [...new Set([one, other])].filter((side) => side.note).map((side) => `${side.label}: ${side.note}`);
    const usual = "Values include child layers. The difference is right minus left.";
    const shown = data.columns[column].isTime ? [...new Set([one, other])].filter((side) => side.timing.length) : [];
    const timing = shown.map((side) => `${side.label}: ${side.timing.join(" ")}`);
    element("note").replaceChildren(...[usual, ...timing, ...notes].map((text) => make("p", text)));
    refresh();
  };

  const choose = () => {
    rows = rowsOf(treeOf(left.value), treeOf(right.value), 0, "");
    collapsed.clear();
    if (rows.length > MANY_ROWS) for (const row of rows) if (row.isParent && row.depth >= SHOWN_DEPTH) collapsed.add(row.id);
    draw();
  };

  const options = (select, texts, chosen) => {
    select.append(...texts.map((text, place) => { const option = make("option", text); option.value = place; return option; }));
    select.value = chosen;
  };

  const [one, other, shown] = data.first;
  options(left, data.tables.map((item) => item.label), one);
  options(right, data.tables.map((item) => item.label), other);
  options(figure, data.columns.map((item) => item.title), shown);
  left.addEventListener("change", choose);
  right.addEventListener("change", choose);
  figure.addEventListener("change", draw);
  element("expand").addEventListener("click", () => { collapsed.clear(); refresh(); });
  element("collapse").addEventListener("click", () => { for (const row of rows) if (row.isParent && row.depth > 0) collapsed.add(row.id); refresh(); });
  choose();
}
