// Collapses rows of the tree, and sorts, back to the tree. A sorted table shows every row, by its path.
for (const table of document.querySelectorAll("table.layers")) {
  const rows = [...table.tBodies[0].rows];
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

  const headers = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column];
    if (headers[column].classList.contains("number")) return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    return (cell.querySelector(".path") ?? cell).textContent;
  };
  sortable(table, headers, key, refresh);
}
