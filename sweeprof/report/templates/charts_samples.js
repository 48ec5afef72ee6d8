"use strict";
// The raw samples of a few combinations beside each other, each round apart: what shifts between rounds is seen.
charts.add("samples", (choices, chosen) => {
  const { data, varying, plain, nameOf, groupedBy } = charts;
  const { hasValues, plural } = window.sweeprof;
  const MOST = 12;
  const known = data.rows.filter((row) => hasValues(row) && row.samples?.some((round) => round.length));
  const side = charts.select(choices, "side by side", charts.axisItems(varying), chosen.axis);
  const others = () => varying.filter((axis) => axis !== side.value);
  const keyOf = (row) => others().map((axis) => row.at[axis]).join();
  const group = charts.select(choices, "of", [], "");
  const first = charts.select(choices, "part", [], "");

  // What may be chosen follows from the axis and from what is shown; the choice stays where it still is there.
  const refill = (one, items) => {
    const before = one.element.value;
    one.element.replaceChildren(...items.map(([value, text]) => new Option(text, value)));
    one.element.value = items.some(([value]) => String(value) === before) ? before : items[0]?.[0] ?? "";
    one.around.hidden = items.length < 2;
  };

  const boxOf = (row, place, colour) => {
    const rounds = row.samples.flatMap((samples, number) => (samples.length ? [[number, samples]] : []));
    const step = 0.8 / rounds.length;
    return rounds.map(([number, samples], at) => ({
      type: "box", y: samples, x: samples.map(() => place + (at - (rounds.length - 1) / 2) * step), width: 0.78 * step,
      name: plain(`${nameOf(row)}, round ${number + 1}`), customdata: samples.map(() => row.id),
      boxpoints: "all", jitter: 0.6, pointpos: 0, marker: { color: colour, size: 4, opacity: 0.55 }, line: { color: colour, width: 1.2 }, fillcolor: `${colour}22`,
      hoveron: "points+boxes", whiskerwidth: 0.4, hoverinfo: "y+name", hoverlabel: { namelength: -1 },
    }));
  };

  const label = (row) => charts.short(charts.textOf(row, side.value), 22);

  return (rows) => {
    const ids = new Set(rows.map((row) => row.id));
    const groups = groupedBy(known.filter((row) => ids.has(row.id)), keyOf);
    refill(group, groups.map((list) => [keyOf(list[0]), nameOf(list[0], others())]));
    const members = groups.find((list) => keyOf(list[0]) === group.element.value) ?? [];
    const parts = Array.from({ length: Math.ceil(members.length / MOST) }, (_, place) => place);
    refill(first, parts.map((place) => [place, `${place * MOST + 1} to ${Math.min(members.length, (place + 1) * MOST)} of ${members.length}`]));
    const drawn = members.slice(first.value * MOST, (first.value + 1) * MOST);
    const values = drawn.flatMap((row) => row.samples.flat());
    const rounds = Math.max(0, ...drawn.map((row) => row.samples.filter((round) => round.length).length));
    return {
      data: drawn.flatMap((row, place) => boxOf(row, place, charts.colourOf(side.value, row.at[side.value]))),
      layout: {
        showlegend: false, boxmode: "overlay",
        xaxis: { title: { text: plain(charts.spelled(side.value)), font: { size: 13 } }, type: "linear", tickvals: drawn.map((_, place) => place), ticktext: drawn.map((row) => plain(label(row))), range: [-0.6, drawn.length - 0.4], showgrid: false },
        yaxis: charts.scale("time of a step (ms) – lower is better", values),
      },
      note: `${plural(values.length, "sample")} of ${plural(drawn.length, "combination")}${drawn.length && others().length ? ` (${nameOf(drawn[0], others())})` : ""}, ${plural(rounds, "round")}. Each round has its own box, from the lower to the upper quartile, with a line at the median. If there are many samples, evenly spaced ones of the sorted samples are shown.`,
    };
  };
});
