"use strict";
// A metric over a numeric axis: a line for every combination of the other axes.
charts.add("scaling", (choices, chosen) => {
  const { data, varying, plain, nameOf, entryOf, valueOf, amount } = charts;
  const { plural } = window.sweeprof;
  const numeric = varying.filter((axis) => data.axes[axis].numbers);
  const metric = charts.select(choices, "metric", charts.metricItems(), chosen.metric);
  const over = charts.select(choices, "over", charts.axisItems(numeric), chosen.axis);
  const colours = varying.filter((axis) => numeric.length > 1 || axis !== chosen.axis);
  const by = charts.select(choices, "colour by", charts.axisItems(colours), charts.setup.colour ?? "");
  const MANY = 60, TICKS = 12;

  const intervals = (row) => {
    const [value, low, high] = entryOf(row, metric.value) ?? [null, null, null];
    return value === null || low === null || high === null ? [0, 0] : [high - value, value - low];
  };

  const label = (row) => {
    const [value, low, high] = entryOf(row, metric.value) ?? [null, null, null];
    if (value === null) return "";
    const lines = [nameOf(row), amount(value, metric.value)];
    if (low !== null && high !== null) lines.push(`${window.sweeprof.isWithinProcess(row, metric.value) ? "95% within one process" : "95% over the rounds"}: ${amount(low, metric.value)} to ${amount(high, metric.value)}`);
    return lines.map(plain).join("<br>");
  };

  // What the bars are: those of one round do not contain the differences between processes.
  const barsNote = (rows) => {
    const within = new Set(rows.filter((row) => entryOf(row, metric.value)?.[1] != null).map((row) => window.sweeprof.isWithinProcess(row, metric.value)));
    if (within.size === 2) return " Bars: 95% intervals over the rounds, or within one process where there is one round.";
    return within.has(true) ? " Bars: 95% intervals of the median within one process, not between processes." : " Bars: 95% intervals over the rounds.";
  };

  // Lines of one look are one trace, with a gap between them.
  const traceOf = (one, numbers, isDense) => {
    const points = one.lines.flatMap((line, place) => (place ? [null, ...line] : line));
    const spread = points.map((row) => (row ? intervals(row) : [0, 0]));
    return {
      type: "scatter", mode: "lines+markers", name: plain(one.name), connectgaps: false, opacity: isDense ? 0.3 : 1, legendgroup: one.name, showlegend: !isDense,
      x: points.map((row) => (row ? numbers[row.at[over.value]] : null)),
      y: points.map((row) => (row ? valueOf(row, metric.value) : null)),
      customdata: points.map((row) => row?.id ?? null),
      text: points.map((row) => (row ? label(row) : "")), hovertemplate: "%{text}<extra></extra>",
      line: { color: one.colour, dash: one.dash, width: isDense ? 1 : 2 },
      marker: { color: one.colour, symbol: points.map((row) => (row ? one.symbol(row) : "circle")), size: isDense ? 5 : 8 },
      error_y: {
        type: "data", visible: !isDense, symmetric: false, array: spread.map(([up]) => up), arrayminus: spread.map(([, down]) => down), thickness: 1, width: 3,
      },
    };
  };

  // Where lines are too many to follow, the geometric mean of those that have a value at every place stands for a colour.
  const meanOf = (one, xs, numbers) => {
    const byPlace = (line) => new Map(line.map((row) => [numbers[row.at[over.value]], valueOf(row, metric.value)]));
    const whole = one.lines.map(byPlace).filter((line) => xs.every((x) => line.get(x) > 0));
    const y = whole.length ? xs.map((x) => Math.exp(whole.reduce((sum, line) => sum + Math.log(line.get(x)), 0) / whole.length)) : [];
    return {
      type: "scatter", mode: "lines+markers", name: plain(one.name), legendgroup: one.name, x: y.length ? xs : [], y, line: { color: one.colour, width: 4 }, marker: { size: 9 },
      text: y.map((value) => [one.name, `${amount(value, metric.value)}, geometric mean of ${plural(whole.length, "line")}`].map(plain).join("<br>")), hovertemplate: "%{text}<extra></extra>",
    };
  };

  return (rows) => {
    const axis = over.value, others = varying.filter((other) => other !== axis);
    for (const option of by.element.options) option.disabled = Number(option.value) === axis;
    by.around.hidden = others.length < 2;
    const colour = by.value !== axis && others.includes(by.value) ? by.value : others[0] ?? null;
    if (colour !== null) by.element.value = colour;
    const { numbers } = data.axes[axis];
    const placed = rows.filter((row) => row.at[axis] >= 0);
    const lines = charts.along(placed, others)
      .map((line) => [...line].sort((a, b) => numbers[a.at[axis]] - numbers[b.at[axis]]))
      .filter((line) => line.some((row) => valueOf(row, metric.value) !== null));
    const drawn = lines.length ? charts.classes(lines, others, colour) : [];
    const xs = [...new Set(placed.map((row) => numbers[row.at[axis]]))].sort((a, b) => a - b);
    const ys = placed.map((row) => valueOf(row, metric.value)).filter((value) => value !== null);
    const ticks = xs.length <= TICKS ? { tickvals: xs, ticktext: xs.map((x) => x.toLocaleString("en", { maximumSignificantDigits: 6 })), dtick: undefined, minor: undefined } : {};
    const isTimed = placed.some((row) => entryOf(row, metric.value)?.[1] != null);
    const isDense = lines.length > MANY;
    const means = isDense ? drawn.map((one) => meanOf(one, xs, numbers)) : [];
    return {
      data: [...drawn.map((one) => traceOf(one, numbers, isDense)), ...means],
      layout: {
        xaxis: charts.scale(charts.spelled(axis), xs, ticks), yaxis: charts.scale(charts.described(metric.value), ys),
        showlegend: others.length > 0,
      },
      note: `${plural(lines.length, "line")} of ${plural(ys.length, "combination")}.${means.length ? " Thick lines: geometric means of the lines of one colour that have all values." : ""}${isTimed && !isDense ? barsNote(placed) : ""}${charts.missing(placed, [metric.value])}`,
    };
  };
});
