"use strict";
// Clicking a header sorts by it: upwards, downwards, then back to the order of the sweep.
for (const table of document.querySelectorAll("table.results")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.tHead.rows[0].cells].filter((header) => header.querySelector("button"));
  const next = { ascending: "descending", descending: "none", none: "ascending" };

  const key = (row, column) => {
    const cell = row.cells[column];
    // A failed row has one wide cell in place of its figures: nothing to sort by.
    if (!cell || cell.colSpan > 1 || cell.classList.contains("more")) return null;
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.classList.contains("axis") ? cell.textContent.trim() : null;
  };

  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  };

  headers.forEach((header, column) => {
    header.setAttribute("aria-sort", "none");
    header.querySelector("button").addEventListener("click", () => {
      const order = next[header.getAttribute("aria-sort")];
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", order);
      table.classList.toggle("sorted", order !== "none");
      const sign = order === "descending" ? -1 : 1;
      const rows = order === "none" ? original : [...original].sort((a, b) => compare(key(a, column), key(b, column), sign));
      body.append(...rows);
    });
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
