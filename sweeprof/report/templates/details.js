"use strict";
// Pictures, tables and files of one combination. All text of the page goes through textContent: names of layers are data.
{
  const { make } = window.sweeprof;
  const data = JSON.parse(document.getElementById("details-data").textContent);
  const element = (id) => document.getElementById(`details-${id}`);
  const chosen = element("chosen");

  const LONG = 16; // characters of a cell that may take several lines

  const legendOf = (names) => {
    const list = make("ul", undefined, "captions");
    for (const [name, colour] of names) {
      const line = make("li"), swatch = make("span", undefined, "swatch");
      swatch.style.background = colour;
      line.append(swatch, make("span", name));
      list.append(line);
    }
    return list;
  };

  const figureOf = (figure, place) => {
    const made = make("figure"), caption = make("figcaption"), plot = make("div", undefined, "plot");
    caption.append(make("h3", figure.title));
    plot.id = `details-plot-${figure.key}`;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `${figure.title}; ${place} of the pictures`);
    if (figure.height !== null) plot.style.height = `${figure.height}px`;
    made.append(caption, plot);
    if (figure.legend.length) made.append(legendOf(figure.legend));
    if (figure.caption) made.append(make("p", figure.caption, "dim small"));
    return made;
  };

  const cellOf = (content, isNumber) => {
    if (!Array.isArray(content)) return make("td", content, isNumber ? "number" : content.length > LONG ? "long" : "");
    const made = make("td", content[0], "number");
    made.dataset.value = content[1];
    return made;
  };

  const tableOf = ({ title, columns, rows, note }, place) => {
    const heading = make("h3", title), region = make("div", undefined, "scroll"), table = make("table", undefined, "results whole");
    heading.id = `details-table-${place}`;
    region.setAttribute("role", "region");
    region.setAttribute("aria-labelledby", heading.id);
    region.tabIndex = 0;
    const head = make("thead"), titles = make("tr"), body = make("tbody");
    const numeric = columns.map((name, column) => rows.some((row) => Array.isArray(row[column])));
    const headers = columns.map((name, column) => {
      const header = make("th", undefined, numeric[column] ? "number" : ""), button = make("button", name);
      header.scope = "col";
      button.type = "button";
      header.append(button);
      return header;
    });
    titles.append(...headers);
    head.append(titles);
    body.append(...rows.map((row) => { const line = make("tr"); line.append(...row.map((content, column) => cellOf(content, numeric[column]))); return line; }));
    table.append(head, body);
    sortable(table, headers, (row, column) => {
      const cell = row.cells[column];
      if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
      return numeric[column] ? null : cell.textContent;
    });
    region.append(table);
    return [heading, region, ...(note ? [make("p", note, "dim small")] : [])];
  };

  const filesOf = (files) => {
    const list = make("ul", undefined, "notes");
    for (const { href, name, hint } of files) {
      const line = make("li"), link = make("a", name);
      link.href = href;
      line.append(link, make("span", ` ${hint}`, "dim"));
      list.append(line);
    }
    const note = "The links work if this page is in the folder of its sweep. In MLflow the files are in the run of the combination.";
    return files.length ? [make("h3", "Files"), list, make("p", note, "dim small")] : [];
  };

  const choose = () => {
    const { figures, tables, files } = data.combinations[chosen.value];
    for (const old of element("figures").querySelectorAll(".plot")) forget(old);
    element("figures").replaceChildren(...figures.map((figure, place) => figureOf(figure, place + 1)));
    for (const figure of figures) draw(document.getElementById(`details-plot-${figure.key}`), figure);
    element("tables").replaceChildren(...tables.flatMap(tableOf));
    element("files").replaceChildren(...filesOf(files));
  };

  chosen.append(...data.combinations.map(({ label }, place) => new Option(label, place)));
  chosen.addEventListener("change", choose);
  const { left_out: rest } = data;
  if (rest.length) element("left-out").textContent = `${rest.length} combinations would make this page too large; their data are in the folders operators and memory: ${rest.join("; ")}`;
  choose();
}
