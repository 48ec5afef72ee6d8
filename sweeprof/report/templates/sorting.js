"use strict";
// Clicking a header sorts the rows by it: upwards, downwards, then back to their first order. What has no key comes last.
const sortable = (table, headers, key, refresh = () => {}) => {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const next = { ascending: "descending", descending: "none", none: "ascending" };
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
      const sorted = [...original].sort((a, b) => compare(key(a, column), key(b, column), sign));
      body.append(...(order === "none" ? original : sorted));
      refresh();
    });
  });
};
