"use strict";
// Collapses rows of the tree, and sorts: upwards, downwards, then back to the tree. A sorted table shows every row, by its path.
for (const table of document.querySelectorAll("table.layers")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const depth = (row) => Number(row.dataset.depth);
  const toggle = (row) => row.querySelector(".toggle");
  const isSorted = () => table.classList.contains("sorted");

  const refresh = () => {
    let limit = Infinity;
    for (const row of rows) {
      if (depth(row) <= limit) limit = Infinity;
      row.hidden = !isSorted() && depth(row) > limit;
      if (limit === Infinity && toggle(row)?.getAttribute("aria-expanded") === "false") limit = depth(row);
    }
  };

  const set = (row, isOpen) => {
    toggle(row).setAttribute("aria-expanded", String(isOpen));
    refresh();
  };

  for (const row of rows.filter(toggle)) {
    toggle(row).addEventListener("click", () => set(row, toggle(row).getAttribute("aria-expanded") === "false"));
    toggle(row).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      set(row, event.key === "ArrowRight");
      event.preventDefault();
    });
  }

  const isFigure = (header) => header.classList.contains("number");
  const key = (row, header) => {
    const cell = row.cells[header.cellIndex];
    if (isFigure(header)) return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    return (cell.querySelector(".path") ?? cell).textContent;
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  };

  const next = { ascending: "descending", descending: "none", none: "ascending" };
  const headers = [...table.tHead.rows[0].cells];
  for (const header of headers) {
    header.setAttribute("aria-sort", "none");
    header.querySelector("button").addEventListener("click", () => {
      const order = next[header.getAttribute("aria-sort")];
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", order);
      table.classList.toggle("sorted", order !== "none");
      const sign = order === "descending" ? -1 : 1;
      body.append(...(order === "none" ? rows : [...rows].sort((a, b) => compare(key(a, header), key(b, header), sign))));
      refresh();
    });
  }
}
