// Numbers as the package's tables show them: history_tables.format_measure and units.py.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function formatBytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(unit ? 1 : 0)} ${UNITS[unit]}`;
}

function formatDuration(seconds) {
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const total = Math.round(seconds), minutes = Math.floor(total / 60);
  const hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${total % 60} s`;
}

/** A number in one of Python's forms: "percent", "bytes", "seconds", "{:.4f}", "{:.1e}". */
function formatMeasure(value, form) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (form === "bytes") return formatBytes(value);
  if (form === "seconds") return formatDuration(value);
  if (form === "percent") return (100 * value).toFixed(2);
  if (form === "{:.4f}" && Math.abs(value) >= 1e5) form = "{:.1e}";
  const [, digits, kind] = /\.(\d+)([ef])/.exec(form);
  if (kind === "f") return value.toFixed(digits);
  return value.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");
}

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** A tick of a logarithmic axis: powers of ten only, unless the axis spans little more than one. */
function formatPower(value, decades) {
  const exponent = Math.round(Math.log10(value));
  if (Math.abs(value / 10 ** exponent - 1) < 1e-9) {
    return exponent >= -2 && exponent <= 3
      ? String(10 ** exponent < 1 ? (10 ** exponent).toFixed(-exponent) : 10 ** exponent)
      : "10" + [...String(exponent)].map((digit) => SUPERSCRIPTS[digit]).join("");
  }
  return decades < 1.5 ? d3.format("~g")(value) : "";
}

/** An element with attributes (functions are listeners) and children; text is never parsed as HTML. */
function h(tag, attributes = {}, ...children) {
  const [name, space] = tag.startsWith("svg:") ? [tag.slice(4), "http://www.w3.org/2000/svg"] : [tag, null];
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
