"use strict";
// Figures come without colours of their own for text and grid: those are the page's, light, dark or on paper.
// A figure is drawn when its place is first seen; what is changed out of sight waits.
const figures = new Map(), seen = new Set(), stale = new Set();
// The library comes compressed. It is unpacked at once, aside, but to run it keeps the page busy: not before a figure is seen, or printed.
let source = null, isBroken = false;
const excuse = (element) => {
  element.removeAttribute("aria-busy");
  element.style.height = "auto";
  element.textContent = "This browser cannot unpack the charts: the tables have the same values.";
};
const giveUp = () => {
  isBroken = true;
  for (const element of figures.keys()) excuse(element);
};
const unpacked = async () => {
  const letters = atob(document.getElementById("plotly-packed").textContent), packed = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at += 1) packed[at] = letters.charCodeAt(at);
  source = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  for (const element of stale) if (seen.has(element)) paint(element);
};
const isReady = () => {
  if (source !== null && !window.Plotly && !isBroken) {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
    source = null;
    if (!window.Plotly) giveUp();
  }
  return Boolean(window.Plotly);
};
const paint = (element) => {
  if (!isReady()) return;
  const figure = figures.get(element)();
  Plotly.react(element, figure.data, drawing.layout(figure, element), drawing.config);
  stale.delete(element);
  element.removeAttribute("aria-busy");
};
unpacked().catch(giveUp);
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) seen.add(target);
    else seen.delete(target);
    if (isIntersecting && stale.has(target)) paint(target);
  }
}, { rootMargin: "300px" });

// Takes a figure, or what makes one once it is needed.
const draw = (element, figure) => {
  figures.set(element, typeof figure === "function" ? figure : () => figure);
  stale.add(element);
  if (isBroken) return excuse(element);
  element.setAttribute("aria-busy", "true");
  if (seen.has(element)) paint(element);
  else watcher.observe(element);
};
const forget = (element) => {
  watcher.unobserve(element);
  for (const known of [figures, seen, stale]) known.delete(element);
  window.Plotly?.purge(element);
};
const redraw = () => { for (const [element, figure] of figures) draw(element, figure); };

const drawing = {
  narrow: 720,
  paper: { width: 680, height: 336 }, // pixels that fit a printed page, A4 or letter, two on each
  config: {
    responsive: true,
    displaylogo: false,
    toImageButtonOptions: { format: "svg", filename: "chart" },
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    plotlyServerURL: "",
    showSendToCloud: false,
  },

  isDark: () => !drawing.isPrinted() && matchMedia("(prefers-color-scheme: dark)").matches,
  isPrinted: () => document.documentElement.dataset.printed !== undefined,
  colour: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
  width: (element) => (drawing.isPrinted() ? drawing.paper.width : element.clientWidth),

  // A title in as many lines as it takes to fit below the plot.
  folded: (text, width) => {
    const lines = [""];
    for (const word of text.split(" ")) {
      if (lines.at(-1) && 7.5 * (lines.at(-1).length + word.length) > width) lines.push(word);
      else lines[lines.length - 1] += (lines.at(-1) && " ") + word;
    }
    return lines.join("<br>");
  },

  // Whether the legend fits beside: it takes no more than two fifths.
  isWide: (element, names = []) => {
    const width = drawing.width(element), longest = Math.max(0, ...names.map((name) => name.length));
    return width >= 600 && 7 * longest + 60 <= 0.4 * width;
  },

  themed: (element, names) => {
    const { colour } = drawing;
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--dim"), tickcolor: colour("--dim"), zeroline: false, automargin: true };
    return {
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      hoverlabel: { bgcolor: colour("--soft"), bordercolor: colour("--rule"), font: { color: colour("--ink") }, align: "left" },
      modebar: { color: colour("--dim"), activecolor: colour("--ink"), bgcolor: "rgba(0,0,0,0)" },
      legend: drawing.isWide(element, names) ? { x: 1.02, y: 1 } : { orientation: "h", x: 0, y: -0.3, yanchor: "top", font: { size: 11 } },
      axis,
    };
  },

  layout: (figure, element) => {
    const across = figure.layout.xaxis?.title?.text;
    const title = across ? { title: { ...figure.layout.xaxis.title, text: drawing.folded(across, drawing.width(element) - 100) } } : {};
    const { axis, ...theme } = drawing.themed(element, figure.data.map((trace) => trace.name ?? ""));
    return {
      ...theme,
      ...(drawing.isPrinted() ? { ...drawing.paper, ...(figure.height ? { height: figure.height } : {}) } : {}),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest",
      showlegend: true,
      margin: { l: 64, r: 16, t: 24, b: 52 },
      // A name that does not fit into its part is left out rather than shrunk or laid over others.
      uniformtext: { minsize: 10, mode: "hide" },
      ...figure.layout,
      legend: { tracegroupgap: 0, ...theme.legend, ...figure.layout.legend },
      xaxis: { ...axis, showline: true, ticks: "outside", ...figure.layout.xaxis, ...title },
      yaxis: { ...axis, ...figure.layout.yaxis },
    };
  },
};
for (const query of ["(prefers-color-scheme: dark)", `(max-width: ${drawing.narrow}px)`]) {
  matchMedia(query).addEventListener("change", redraw);
}

// On paper everything is drawn, in light colours and at the width of the page: what a printer lays out is not told to scripts.
addEventListener("beforeprint", () => {
  document.documentElement.dataset.printed = "";
  for (const element of figures.keys()) paint(element);
});
addEventListener("afterprint", () => {
  delete document.documentElement.dataset.printed;
  for (const element of figures.keys()) { paint(element); window.Plotly?.Plots.resize(element); }
});
