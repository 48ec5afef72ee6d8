"use strict";
// One metric, or its ratio to the baseline, over two axes; the other axes are fixed, or taken together by the geometric mean.
charts.add("heatmap", (choices, chosen, plot) => {
  const { data, varying, plain, short, valueOf } = charts;
  const { plural, ratioNumber, significant } = window.sweeprof;
  const base = window.sweeprof.baselineOf;
  const metric = charts.select(choices, "metric", charts.metricItems(), chosen.metric);
  const show = charts.select(choices, "shown as", [[0, "value"], [1, "ratio to the baseline"]], 0);
  const across = charts.select(choices, "x axis", charts.axisItems(varying), chosen.x);
  const down = charts.select(choices, "y axis", charts.axisItems(varying), chosen.y);
  const ALL = -1, CELL = 34, NARROWEST = 46, MOST_TEXTS = 400;
  const fixed = new Map(varying.map((axis) => {
    const items = data.axes[axis].values.map((text, place) => [place, text]);
    return [axis, charts.select(choices, charts.spelled(axis), [[ALL, "all (geometric mean)"], ...items], 0)];
  }));
  const SHADES = { light: ["#eaf2f9", "#9fc5e4", "#3f8cc4", "#0b4f86"], dark: ["#1c2733", "#274b6d", "#3f86bf", "#9bd0fb"] };
  const GOOD = "#0072b2", BAD = "#d55e00";

  const unlike = () => {
    if (across.value !== down.value) return;
    down.element.value = varying.find((axis) => axis !== across.value);
  };

  // [number, null], or [null, why there is none]
  const numberOf = (row) => {
    const value = valueOf(row, metric.value);
    if (value === null) return [null, charts.whyOf(row, metric.value)];
    if (!show.value) return [value, null];
    const other = base(row);
    if (other === row) return [1, null];
    if (other && valueOf(other, metric.value) === null) return [null, `its baseline has no value: ${charts.whyOf(other, metric.value)}`];
    const cell = window.sweeprof.cellOf(row, metric.value);
    if (cell?.verdict === "not_comparable") return [null, "not comparable with its baseline"];
    if (cell && cell.ratio !== null) return [cell.ratio, null];
    return [null, other ? "not comparable with its baseline" : "no baseline for it"];
  };

  // A cell: its number or null, of how many combinations, of how many that there are, and why what is missing is.
  const reduced = (rows) => {
    const found = rows.map(numberOf);
    const known = found.flatMap(([number]) => (number === null ? [] : [number]));
    const why = [...new Set(found.flatMap(([number, reason]) => (number === null ? [reason] : [])))];
    const cell = { number: null, n: known.length, of: rows.length, why };
    if (known.length === 1) return { ...cell, number: known[0] };
    if (known.length && Math.min(...known) <= 0) return { ...cell, why: ["a value that is not above 0 has no geometric mean", ...why] };
    return known.length ? { ...cell, number: Math.exp(known.reduce((sum, one) => sum + Math.log(one), 0) / known.length) } : cell;
  };

  const told = (number) => (!show.value ? significant(number) : `×${ratioNumber(number)}`);
  const hover = (cell, row, column) => {
    const place = `${charts.spelled(across.value)} ${column}, ${charts.spelled(down.value)} ${row}`;
    const value = cell.number === null ? "no value" : show.value ? told(cell.number) : charts.amount(cell.number, metric.value);
    const of = cell.of > 1 ? [`geometric mean of ${cell.n} of ${cell.of} combinations`] : [];
    const why = cell.why.slice(0, 3).map((text) => short(text, 100));
    return [place, value, ...(cell.number === null ? [] : of), ...(cell.of ? why : ["not in the sweep, or filtered out"])].map(plain).join("<br>");
  };

  const colours = (numbers) => {
    const shades = SHADES[drawing.isDark() ? "dark" : "light"];
    const even = (stops) => stops.map((stop, place) => [place / (stops.length - 1), stop]);
    if (!numbers.length) return { of: (number) => number, scale: even(shades) };
    const ticks = (values, text, of) => ({ tickvals: values.map(of), ticktext: values.map(text) });
    if (show.value && Math.min(...numbers) > 0) {
      const ends = data.metrics[metric.value].better === "higher" ? [BAD, GOOD] : [GOOD, BAD];
      const most = Math.max(...numbers.map((number) => Math.abs(Math.log2(number))), Math.log2(1.1));
      const marks = [2 ** -most, 2 ** (-most / 2), 1, 2 ** (most / 2), 2 ** most];
      return { of: Math.log2, scale: even([ends[0], drawing.colour("--soft"), ends[1]]), zmin: -most, zmax: most, bar: ticks(marks, told, Math.log2) };
    }
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    if (!charts.isLog(numbers)) return { of: (number) => number, scale: even(shades), zmin: low, zmax: high, bar: {} };
    const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => low * (high / low) ** share);
    return { of: Math.log10, scale: even(shades), zmin: Math.log10(low), zmax: Math.log10(high), bar: ticks(marks, (value) => significant(value, 2), Math.log10) };
  };

  // The values of both axes that the rows have, and a cell for each pair of them.
  const gridOf = (rows) => {
    const axes = [across.value, down.value];
    const [columns, lines] = axes.map((axis) => [...new Set(rows.map((row) => row.at[axis]))].filter((place) => place >= 0).sort((a, b) => a - b));
    const byPlace = new Map(charts.along(rows, axes).map((list) => [axes.map((axis) => list[0].at[axis]).join(), list]));
    const cells = lines.map((line) => columns.map((column) => reduced(byPlace.get([column, line].join()) ?? [])));
    const texts = (axis, places) => places.map((place) => data.axes[axis].values[place]);
    return { cells, columns: texts(axes[0], columns), lines: texts(axes[1], lines) };
  };

  const heatOf = ({ cells, columns, lines }, fullest, hovers) => {
    const numbers = cells.flat().flatMap((cell) => (cell.number === null ? [] : [cell.number]));
    const { of, scale, bar = {}, ...range } = colours(numbers);
    const each = (make) => cells.map((line) => line.map(make));
    const fits = columns.length * lines.length <= MOST_TEXTS && (drawing.width(plot) - 220) / Math.max(1, columns.length) >= NARROWEST;
    return {
      type: "heatmap", x: columns.map((_, place) => place), y: lines.map((_, place) => place), z: each((cell) => (cell.number === null ? null : of(cell.number))),
      customdata: each((cell) => [cell.number, cell.n]), hovertext: hovers, hoverinfo: "text", hoverongaps: false, xgap: 2, ygap: 2,
      text: each((cell) => (cell.number === null ? "" : told(cell.number) + (cell.n < fullest ? "*" : ""))), ...(fits ? { texttemplate: "%{text}" } : {}),
      ...range, zauto: false, colorscale: scale,
      colorbar: { ...bar, title: { text: plain(show.value ? "ratio" : data.metrics[metric.value].unit), side: "top" }, thickness: 12, outlinewidth: 0 },
    };
  };
  const gapsOf = (cells, hovers) => {
    const empty = cells.flatMap((line, y) => line.flatMap((cell, x) => (cell.number === null ? [[x, y]] : [])));
    return {
      type: "scatter", mode: "markers", x: empty.map(([x]) => x), y: empty.map(([, y]) => y), text: empty.map(([x, y]) => hovers[y][x]),
      hovertemplate: "%{text}<extra></extra>", marker: { symbol: "x-thin", size: 9, line: { width: 1.5, color: drawing.colour("--dim") } },
    };
  };
  const axisOf = (axis, texts, limit, range) => ({
    title: { text: plain(charts.spelled(axis)), font: { size: 13 } }, type: "linear", showgrid: false, showline: false, ticks: "", range,
    tickvals: texts.map((_, place) => place), ticktext: texts.map((text) => plain(short(text, limit))),
  });

  const noteOf = (rows, cells, fullest) => {
    const { better } = data.metrics[metric.value];
    const ratio = show.value ? `, over the baseline's${better ? "; blue is better, orange worse" : ""}` : "";
    const held = [...fixed].filter(([, one]) => !one.around.hidden && one.value !== ALL).map(([axis, one]) => `${charts.spelled(axis)} ${short(data.axes[axis].values[one.value])}`);
    const empty = cells.filter((cell) => cell.number === null).length;
    const parts = [
      charts.described(metric.value) + ratio,
      held.length && `at ${held.join(", ")}`,
      fullest > 1 && `a cell is the geometric mean of ${fullest} combinations`,
      cells.some((cell) => cell.n && cell.n < fullest) && "* marks a mean of fewer",
      empty && `× no value, ${plural(empty, "cell")}; point at it to see why`,
    ];
    return `${parts.filter(Boolean).join("; ")}.${charts.missing(rows, [metric.value])}`;
  };

  return (rows) => {
    unlike();
    const [x, y] = [across.value, down.value];
    for (const [axis, one] of fixed) one.around.hidden = axis === x || axis === y;
    const kept = rows.filter((row) => [...fixed].every(([axis, one]) => one.around.hidden || one.value === ALL || one.value === row.at[axis]));
    const grid = gridOf(kept), { cells, columns, lines } = grid;
    const fullest = Math.max(0, ...cells.flat().map((cell) => cell.n));
    const limit = drawing.width(plot) < drawing.narrow ? 14 : 28;
    const hovers = cells.map((line, j) => line.map((cell, i) => hover(cell, short(lines[j]), short(columns[i]))));
    return {
      height: Math.min(1200, Math.max(220, 150 + CELL * lines.length)),
      data: [heatOf(grid, fullest, hovers), gapsOf(cells, hovers)],
      layout: {
        showlegend: false, xaxis: axisOf(x, columns, limit, [-0.5, columns.length - 0.5]), yaxis: axisOf(y, lines, limit, [lines.length - 0.5, -0.5]),
      },
      note: noteOf(kept, cells.flat(), fullest),
    };
  };
});
