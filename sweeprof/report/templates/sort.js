// Every table of results sorts by its headers, back to the order of the sweep.
for (const table of document.querySelectorAll("table.results")) {
  const headers = [...table.tHead.rows[0].cells].filter((header) => header.querySelector("button"));
  sortable(table, headers, (row, column) => {
    const cell = row.cells[column];
    // A failed row has one wide cell in place of its figures: nothing to sort by.
    if (!cell || cell.colSpan > 1 || cell.classList.contains("more")) return null;
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.classList.contains("axis") ? cell.textContent.trim() : null;
  });
}

// A link to a row opens it.
const openTarget = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", openTarget);
openTarget();
