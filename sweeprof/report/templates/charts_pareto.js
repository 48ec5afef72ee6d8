"use strict";
// Two metrics against each other, and the combinations that no other beats in both, of those that qualify.
charts.add("pareto", (choices, chosen, plot, more) => {
  const { data, varying, plain, nameOf, valueOf, amount } = charts;
  const { plural } = window.sweeprof;
  const items = charts.metricItems((metric) => metric.better);
  const x = charts.select(choices, "x axis", items, chosen.x);
  const y = charts.select(choices, "y axis", items, chosen.y);
  const by = charts.select(choices, "colour by", charts.axisItems(varying), charts.setup.colour ?? "");
  by.around.hidden = varying.length < 2;
  const LISTED = 20;

  // As results/constraints.py: from the best in the first metric on; points that are equal do not beat each other.
  const frontOf = (rows) => {
    const sign = (metric) => (data.metrics[metric].better === "lower" ? 1 : -1);
    const cost = (row) => [sign(x.value) * valueOf(row, x.value), sign(y.value) * valueOf(row, y.value)];
    const points = rows.map((row) => ({ row, cost: cost(row) })).sort((a, b) => a.cost[0] - b.cost[0] || a.cost[1] - b.cost[1]);
    const front = [];
    for (const point of points) {
      const last = front.at(-1)?.cost;
      if (!last || point.cost[1] < last[1] || (point.cost[0] === last[0] && point.cost[1] === last[1])) front.push(point);
    }
    return front.map((point) => point.row);
  };

  const label = (row) => [nameOf(row), ...(row.misses ? ["misses a constraint"] : []), ...(row.incomplete ? [row.incomplete] : []), ...[x, y].map((metric) => `${data.metrics[metric.value].title}: ${amount(valueOf(row, metric.value), metric.value)}`)].map(plain).join("<br>");
  const placed = (rows) => ({ x: rows.map((row) => valueOf(row, x.value)), y: rows.map((row) => valueOf(row, y.value)), customdata: rows.map((row) => row.id) });

  // Legends show a first point as it is, pale or not: theirs is one that is nowhere.
  const tracesOf = (one, front) => {
    const rows = one.lines.flat();
    const common = { type: "scatter", mode: "markers", name: plain(one.name), legendgroup: one.name };
    return [
      { ...common, x: [null], y: [null], marker: { color: one.colour, symbol: one.symbol(rows[0]), size: 9 } },
      {
        ...common, showlegend: false, ...placed(rows), text: rows.map(label), hovertemplate: "%{text}<extra></extra>",
        marker: {
          color: one.colour, symbol: rows.map(one.symbol), size: rows.map((row) => (front.has(row) ? 11 : 8)),
          opacity: rows.map((row) => (front.has(row) ? 1 : 0.45)), line: { width: rows.map((row) => (front.has(row) ? 1 : 0)), color: drawing.colour("--ink") },
        },
      },
    ];
  };
  // From the best in x on, the height is kept up to the next point in every one of the four directions.
  const stepsOf = (front) => ({
    type: "scatter", mode: "lines", name: "Pareto front", ...placed(front), hoverinfo: "skip",
    line: { color: charts.setup.look.other, width: 1.5, shape: "hv" },
  });

  // A link to the row in full, with its figures.
  const listed = (front) => {
    const list = document.createElement("ol"), caption = document.createElement("p");
    caption.className = "small dim";
    caption.textContent = `On the front, from the best ${data.metrics[x.value].title} to the best ${data.metrics[y.value].title}:`;
    list.className = "front";
    list.append(...front.slice(0, LISTED).map((row) => {
      const item = document.createElement("li"), link = document.createElement("a"), figures = document.createElement("span");
      link.href = `#${encodeURIComponent(row.id)}`;
      link.textContent = nameOf(row);
      figures.className = "dim";
      figures.textContent = [x, y].map((metric) => amount(valueOf(row, metric.value), metric.value)).join(", ");
      item.append(link, " ", figures);
      return item;
    }));
    if (front.length > LISTED) list.append(Object.assign(document.createElement("li"), { className: "dim", textContent: `and ${front.length - LISTED} more` }));
    more.replaceChildren(...(front.length ? [caption, list] : []));
  };

  return (rows) => {
    const known = rows.filter((row) => valueOf(row, x.value) !== null && valueOf(row, y.value) !== null);
    const fitting = known.filter((row) => !row.misses), front = frontOf(fitting), missed = known.length - fitting.length;
    const axes = varying.filter((axis) => axis !== charts.setup.batch || axis === by.value);
    const groups = known.length ? charts.classes(charts.along(known, axes), axes, varying.length ? by.value : null) : [];
    listed(front);
    return {
      data: [stepsOf(front), ...groups.flatMap((one) => tracesOf(one, new Set(front)))],
      layout: {
        xaxis: charts.scale(charts.described(x.value), known.map((row) => valueOf(row, x.value))),
        yaxis: charts.scale(charts.described(y.value), known.map((row) => valueOf(row, y.value))),
      },
      note: `${front.length} of ${plural(known.length, "combination")} on the front. Pale combinations are dominated: another one is at least as good in both metrics and better in one.${missed ? ` ${plural(missed, "combination")} cannot be on the front, because of a constraint of the sweep.` : ""}${charts.missing(rows, [x.value, y.value])}`,
    };
  };
});
