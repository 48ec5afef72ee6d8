"use strict";
// The figures come without colours of their own for text and grid: those are the page's, light, dark or on paper.
{
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = 720;
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    plotlyServerURL: "",
    showSendToCloud: false,
  };

  const themed = (element) => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--dim"), tickcolor: colour("--dim"), zeroline: false, automargin: true };
    const wide = element.clientWidth >= narrow;
    return {
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      hoverlabel: { bgcolor: colour("--soft"), bordercolor: colour("--rule"), font: { color: colour("--ink") }, align: "left" },
      modebar: { color: colour("--dim"), activecolor: colour("--ink"), bgcolor: "rgba(0,0,0,0)" },
      legend: wide ? { x: 1.02, y: 1 } : { orientation: "h", x: 0, y: -0.3, yanchor: "top", font: { size: 11 } },
      axis,
    };
  };

  const layout = (figure, element) => {
    const { axis, ...theme } = themed(element);
    return {
      ...theme,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest",
      showlegend: true,
      margin: { l: 64, r: 16, t: 24, b: 52 },
      xaxis: { ...axis, ...figure.layout.xaxis, showline: true, ticks: "outside" },
      yaxis: { ...axis, ...figure.layout.yaxis },
    };
  };

  const draw = () => {
    for (const figure of figures) {
      const element = document.getElementById(`plot-${figure.key}`);
      Plotly.react(element, figure.data, layout(figure, element), config);
    }
  };

  draw();
  for (const query of ["(prefers-color-scheme: dark)", "print", `(max-width: ${narrow}px)`]) {
    matchMedia(query).addEventListener("change", draw);
  }
}
