// Numbers as every report spells them (sweeprof/numbers.py and report/columns.py).
const MISSING = "–";
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const DECIMAL = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const SUFFIXES = { MAC: "MAC", FLOP: "FLOP", "FLOP/s": "FLOP/s", "B/s": "B/s", op: "op", params: "" };
for (const unit of ["samples/s", "tokens/s", "images/s", "pixels/s", "frames/s"]) SUFFIXES[unit] = "/s";
const MEASURED = new Set(["s", "samples/s", "FLOP/s", "B/s", "ratio", "abs", "share", ...Object.keys(SUFFIXES).filter((unit) => unit.endsWith("/s"))]);

const grouped = (text) => text.replace(/^(-?\d+)/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));
const significant = (value, digits = 3, isCount = false) => {
  if (isCount && Math.abs(value) < 1e15) return grouped(String(value));
  const rounded = Number(value.toExponential(digits - 1));
  if (rounded === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(rounded)));
  if (exponent >= -4 && exponent < 6) return grouped(rounded.toFixed(Math.max(0, digits - 1 - exponent)));
  return rounded.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
};

const prefixed = (value, prefixes, isCount) => {
  const [factor, name] = prefixes.find(([size]) => Math.abs(value) * 1.0005 >= size) ?? prefixes.at(-1);
  return `${significant(factor === 1 ? value : value / factor, 3, isCount && factor === 1)} ${name}`.trim();
};

const scaled = (value, unit) => {
  // What was divided by its factor: a whole number is one again.
  const whole = Math.round(value), isCount = !MEASURED.has(unit) && Math.abs(value - whole) < 1e-9 * Math.max(1, Math.abs(value));
  const number = isCount ? whole : value;
  if (unit === "s") return prefixed(number, SECONDS, false);
  if (unit === "B") return prefixed(number, BYTES, isCount);
  if (unit in SUFFIXES) return prefixed(number, DECIMAL.map(([factor, name]) => [factor, name + SUFFIXES[unit]]), isCount);
  if (unit === "share") return `${significant(100 * number)}%`;
  return significant(number, unit === "ratio" ? 4 : 3, isCount);
};

const numberText = (metric, number) => scaled(number / metric.factor, metric.base);

// The ends of an interval name their unit only where it differs from the value's.
const intervalText = (metric, [value, low, high]) => {
  if (low === null || high === null) return "";
  const texts = [value, low, high].map((number) => numberText(metric, number));
  const units = new Set(texts.map((text) => text.split(" ")[1] ?? ""));
  const [, from, to] = units.size === 1 ? texts.map((text) => text.split(" ")[0]) : texts;
  return `[${from}–${to}]`;
};

const isWithinProcess = (row, place) => Boolean(row.within?.includes(Number(place)));
const intervalNote = (row, place) => (isWithinProcess(row, place) ? "95% interval of the median within one process, not between processes" : "95% interval over the rounds");

const ratioNumber = (value) => (value >= 0.095 && value < 99.995 ? value.toFixed(2) : significant(value, value < 1 ? 2 : 3));
const ratioInterval = ({ low, high }) => (low === undefined ? "" : `[${ratioNumber(low)}–${ratioNumber(high)}]`);
const verdictText = ({ verdict }) => (verdict ?? "").replace("_", " ");

const MOST_ROUNDS = 1000;
const verdictNote = ({ why, reason, needed }) =>
  (reason === "interval_crosses_threshold" ? `${why}; ${needed === undefined ? `more than ${MOST_ROUNDS}` : `about ${needed}`} rounds would settle it` : why ?? "");

// Both ends of a name are kept, because they tell names apart; its title has the whole name.
const shortened = (text, limit = 60) => {
  const letters = Array.from(text), head = Math.floor((limit - 1) / 2);
  return letters.length <= limit ? text : `${letters.slice(0, head).join("")}…${letters.slice(head + 1 - limit).join("")}`;
};
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const make = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};
const buttonOf = (text, act, name) => {
  const made = make("button", text, name);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
};
