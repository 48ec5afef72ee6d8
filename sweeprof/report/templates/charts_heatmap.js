"use strict";
// One metric, or its ratio to the baseline, over two axes; the other axes are fixed, or taken together by the geometric mean.
charts.add("heatmap", (choices, chosen, plot) => {
  const { data, varying, plain, short, valueOf, significant } = charts;
  const base = (row) => (window.sweeprof?.baselineOf ? window.sweeprof.baselineOf(row) : data.rows[row.base]) ?? null;
  const metric = charts.select(choices, "metric", charts.metricItems(), chosen.metric);
  const show = charts.select(choices, "shown as", [[0, "value"], [1, "ratio to the baseline"]], 0);
  const across = charts.select(choices, "across", charts.axisItems(varying), chosen.x);
  const down = charts.select(choices, "down", charts.axisItems(varying), chosen.y);
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
    if (!other) return [null, "no baseline for it"];
    const theirs = valueOf(other, metric.value);
    if (theirs === null) return [null, `the baseline has no value: ${charts.whyOf(other, metric.value)}`];
    return theirs === 0 ? [null, "the baseline is 0"] : [value / theirs, null];
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

  const told = (number) => (show.value ? `×${significant(number)}` : significant(number));
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

  return (rows) => {
    unlike();
    const [x, y] = [across.value, down.value];
    for (const [axis, one] of fixed) one.around.hidden = axis === x || axis === y;
    const kept = rows.filter((row) => varying.every((axis) => axis === x || axis === y || fixed.get(axis).value === ALL || fixed.get(axis).value === row.at[axis]));
    const places = (axis) => [...new Set(kept.map((row) => row.at[axis]))].filter((place) => place >= 0).sort((a, b) => a - b);
    const [columns, lines] = [places(x), places(y)];
    const texts = (axis, found) => found.map((place) => data.axes[axis].values[place]);
    const byPlace = new Map(charts.along(kept, [x, y]).map((list) => [`${list[0].at[x]},${list[0].at[y]}`, list]));
    const cells = lines.map((line) => columns.map((column) => reduced(byPlace.get(`${column},${line}`) ?? [])));
    const flat = cells.flat(), numbers = flat.flatMap((cell) => (cell.number === null ? [] : [cell.number]));
    const fullest = Math.max(0, ...flat.map((cell) => cell.n));
    const { of, scale, bar = {}, ...range } = colours(numbers);
    const wide = drawing.isWide(plot);
    const shown = columns.length * lines.length <= MOST_TEXTS && (drawing.width(plot) - 220) / Math.max(1, columns.length) >= NARROWEST;
    const hovers = cells.map((line, j) => line.map((cell, i) => hover(cell, short(texts(y, lines)[j]), short(texts(x, columns)[i]))));
    const empty = cells.flatMap((line, j) => line.flatMap((cell, i) => (cell.number === null ? [[i, j]] : [])));
    const axisOf = (axis, found, limit) => ({
      title: { text: plain(charts.spelled(axis)), font: { size: 13 } }, type: "linear", showgrid: false, range: [-0.5, found.length - 0.5],
      tickvals: found.map((_, place) => place), ticktext: texts(axis, found).map((text) => plain(short(text, limit))),
    });
    return {
      height: Math.min(1200, Math.max(220, 150 + CELL * lines.length)),
      data: [
        {
          type: "heatmap", x: columns.map((_, place) => place), y: lines.map((_, place) => place), z: cells.map((line) => line.map((cell) => (cell.number === null ? null : of(cell.number)))),
          customdata: cells.map((line) => line.map((cell) => [cell.number, cell.n])), hovertext: hovers, hoverinfo: "text", hoverongaps: false, xgap: 2, ygap: 2,
          text: cells.map((line) => line.map((cell) => (cell.number === null ? "" : told(cell.number) + (cell.n < fullest ? "*" : "")))),
          ...(shown ? { texttemplate: "%{text}" } : {}), ...range, zauto: false, colorscale: scale,
          colorbar: { ...bar, title: { text: plain(show.value ? "ratio" : data.metrics[metric.value].unit), side: wide ? "right" : "top" }, thickness: 12, outlinewidth: 0, ...(wide ? {} : { orientation: "h", y: 1.02, yanchor: "bottom", tickangle: 0 }) },
        },
        {
          type: "scatter", mode: "markers", x: empty.map(([i]) => i), y: empty.map(([, j]) => j), text: empty.map(([i, j]) => hovers[j][i]), hovertemplate: "%{text}<extra></extra>",
          marker: { symbol: "x-thin", size: 9, line: { width: 1.5, color: drawing.colour("--dim") } },
        },
      ],
      layout: {
        showlegend: false, xaxis: { ...axisOf(x, columns, 24), showline: false, ticks: "" },
        yaxis: { ...axisOf(y, lines, 28), range: [lines.length - 0.5, -0.5] }, margin: { l: 64, r: 16, t: wide ? 24 : 64, b: 52 },
      },
      note: notes(kept, flat, fullest, empty.length),
    };
  };

  function notes(kept, cells, fullest, empty) {
    const parts = [charts.described(metric.value) + (show.value ? ", over the baseline's; blue is better, orange worse" : "")];
    if (show.value && !data.metrics[metric.value].better) parts[0] = `${charts.described(metric.value)}, over the baseline's`;
    const held = [...fixed].filter(([, one]) => !one.around.hidden && one.value !== ALL).map(([axis, one]) => `${charts.spelled(axis)} ${short(data.axes[axis].values[one.value])}`);
    if (held.length) parts.push(`at ${held.join(", ")}`);
    if (fullest > 1) parts.push(`a cell is the geometric mean of ${fullest} combinations`);
    if (cells.some((cell) => cell.n && cell.n < fullest)) parts.push("* of fewer than the fullest cell");
    if (empty) parts.push(`× no value, ${charts.counted(empty, "cell")}; pointing at it shows why`);
    return `${parts.join("; ")}.${charts.missing(kept, [metric.value])}`;
  }
});
