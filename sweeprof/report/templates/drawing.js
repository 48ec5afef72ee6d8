"use strict";
// Figures come without colours of their own for text and grid: those are the page's, light, dark or on paper.
const drawn = new Map();
const draw = (element, figure) => {
  drawn.set(element, figure);
  Plotly.react(element, figure.data, drawing.layout(figure, element), drawing.config);
};
const forget = (element) => {
  drawn.delete(element);
  Plotly.purge(element);
};
const drawing = {
  narrow: 720,
  config: {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    plotlyServerURL: "",
    showSendToCloud: false,
  },

  themed: (element) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--dim"), tickcolor: colour("--dim"), zeroline: false, automargin: true };
    const wide = element.clientWidth >= drawing.narrow;
    return {
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      hoverlabel: { bgcolor: colour("--soft"), bordercolor: colour("--rule"), font: { color: colour("--ink") }, align: "left" },
      modebar: { color: colour("--dim"), activecolor: colour("--ink"), bgcolor: "rgba(0,0,0,0)" },
      legend: wide ? { x: 1.02, y: 1 } : { orientation: "h", x: 0, y: -0.3, yanchor: "top", font: { size: 11 } },
      axis,
    };
  },

  layout: (figure, element) => {
    const { axis, ...theme } = drawing.themed(element);
    return {
      ...theme,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest",
      showlegend: true,
      margin: { l: 64, r: 16, t: 24, b: 52 },
      // A name that does not fit into its part is left out rather than shrunk or laid over others.
      uniformtext: { minsize: 10, mode: "hide" },
      ...figure.layout,
      legend: { ...theme.legend, ...figure.layout.legend },
      xaxis: { ...axis, ...figure.layout.xaxis, showline: true, ticks: "outside" },
      yaxis: { ...axis, ...figure.layout.yaxis },
    };
  },
};
for (const query of ["(prefers-color-scheme: dark)", "print", `(max-width: ${drawing.narrow}px)`]) {
  matchMedia(query).addEventListener("change", () => {
    for (const [element, figure] of drawn) draw(element, figure);
  });
}
