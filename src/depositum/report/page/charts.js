// Figures of runs, drawn by Observable Plot as SVG: curves, cost against quality, clients' measures.

const COLOURS = 10;
const DASHES = ["none", "8 4", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "4 4"];
const SYMBOLS = ["circle", "square", "triangle", "diamond", "star", "cross", "wye"];
const HEIGHT = 262;

/** How the k-th run of those shown is drawn: by colour, dashes and symbol, so that it is known without colours. */
function styleOf(k) {
  return { colour: `var(--c${k % COLOURS})`, dash: DASHES[k % DASHES.length], symbol: SYMBOLS[k % SYMBOLS.length] };
}

function swatch(k, width = 34) {
  const { colour, dash } = styleOf(k);
  return h("svg:svg", { class: "swatch", width, height: 10, viewBox: `0 0 ${width} 10`, "aria-hidden": "true" },
    h("svg:line", { x1: 1, x2: width - 1, y1: 5, y2: 5, stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash }));
}

/** The unit in which an axis of costs is labelled, so that its ticks are round numbers. */
function axisUnit(axis, largest) {
  if (axis.key === "bytes_sent") {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log2(largest || 1) / 10)));
    return { divisor: 1024 ** power, label: `${axis.title} (${UNITS[power]})` };
  }
  if (axis.key === "seconds") {
    const [divisor, name] = largest > 7200 ? [3600, "hours"] : largest > 600 ? [60, "minutes"] : [1, "seconds"];
    return { divisor, label: name };
  }
  return { divisor: 1, label: axis.title };
}

/**
 * A measure of a run: at each evaluation the mean over the seeds that have it, and a band. On a logarithmic axis both
 * are of the logarithms (seed_statistics.py), so that a band is neither cut off nor reaches below zero.
 */
function pointsOf(run, key, axis, logarithmic, band) {
  const series = run.history.series[key], x = run.history[axis];
  if (!series || !x) return [];
  const points = [];
  for (let k = 0; k < series.y[0].length; k += 1) {
    const index = series.at ? series.at[k] : k;
    const all = series.y.map((values) => values[k]);
    const values = all.filter((v) => v !== null && (!logarithmic || v > 0));
    if (!values.length || x[index] === null) continue;
    const mean = d3.mean(values), scaled = logarithmic ? values.map(Math.log) : values;
    const shown = logarithmic ? Math.exp(d3.mean(scaled)) : mean;
    let low = shown, high = shown;
    if (band === "sd" && values.length > 1) {
      const deviation = d3.deviation(scaled);
      [low, high] = logarithmic ? [shown * Math.exp(-deviation), shown * Math.exp(deviation)] : [shown - deviation, shown + deviation];
    } else if (band === "range") [low, high] = d3.extent(values);
    points.push({ run, x: x[index], t: run.history.iteration[index], mean, shown, low, high, all, n: values.length, sd: d3.deviation(values) });
  }
  return points;
}

/** The figure of one measure. `runs`: [{run, k}], k being the position that the style follows. */
function curveFigure(measure, runs, options) {
  const { axis, scale, band, width } = options;
  const every = runs.flatMap(({ run }) => (run.history.series[measure.key]?.y ?? []).flat()).filter((v) => v !== null);
  const positive = every.some((v) => v > 0);
  const logarithmic = positive && (scale === "log" || (scale === "auto" && measure.log));
  const curves = runs.map(({ run, k }) => ({ run, k, points: pointsOf(run, measure.key, axis.key, logarithmic, band) }));
  const notes = [];
  const zero = curves.filter(({ run }) => run.history.series[measure.key]?.y.flat().every((v) => v === null || v === 0));
  if (every.length && !positive && every.every((v) => v === 0)) return { empty: "0 throughout" };
  if (logarithmic && zero.length) notes.push(`0 throughout: ${zero.map(({ run }) => run.name).join(", ")}`);
  if (logarithmic && every.some((v) => v <= 0)) notes.push("values ≤ 0 are not shown on the logarithmic axis");
  const drawn = curves.filter(({ points }) => points.length);
  if (!drawn.length) return { empty: runs.length ? "no values of the runs shown" : "all runs are hidden" };
  const lacking = runs.filter(({ run }) => !run.history[axis.key]);
  if (lacking.length) notes.push(`without ${axis.title}: ${lacking.map(({ run }) => run.name).join(", ")}`);

  const unit = axisUnit(axis, d3.max(drawn, ({ points }) => d3.max(points, (p) => p.x)));
  const percent = measure.form === "percent" ? 100 : 1;
  const x = (p) => p.x / unit.divisor, y = (p) => p.shown * percent;
  const everyPoint = drawn.flatMap(({ points }) => points);
  // What diverges must not hide the others: the axis is theirs.
  const sound = drawn.filter(({ run }) => !run.diverged).flatMap(({ points }) => points);
  const [from, to] = d3.extent(everyPoint, y);
  let domain;
  if (sound.length && sound.length < everyPoint.length) {
    const shown = sound.flatMap((p) => (band === "seeds" ? p.all.filter((v) => v !== null && (!logarithmic || v > 0)) : [p.low, p.high]));
    domain = d3.extent(shown, (v) => v * percent);
    if (domain[0] === domain[1]) domain = undefined;
    else if (from < domain[0] || to > domain[1]) notes.push("curves that diverged are cut off where they leave the range of the others");
  }
  const inside = (p) => !domain || (y(p) >= domain[0] && y(p) <= domain[1]);
  const marks = [];
  let fewer = false;
  for (const { run, k, points } of drawn) {
    const { colour, dash } = styleOf(k);
    const most = d3.max(points, (p) => p.n);
    const cut = points.findLastIndex((p) => p.n === most);
    const parts = [[points.slice(0, cut + 1), 2], [points.slice(cut), 1]];
    if (run.diverged && drawn.some((other) => !other.run.diverged)) {
      // Without a band: it would say nothing, and fill the panel.
    } else if (band === "sd" || band === "range") {
      marks.push(Plot.areaY(points, { x, y1: (p) => p.low * percent, y2: (p) => p.high * percent, fill: colour, fillOpacity: 0.15 }));
    } else if (band === "seeds") {
      for (let seed = 0; seed < run.history.seeds.length; seed += 1) {
        const own = points.filter((p) => p.all[seed] !== null && (!logarithmic || p.all[seed] > 0));
        marks.push(Plot.lineY(own, { x, y: (p) => p.all[seed] * percent, stroke: colour, strokeWidth: 0.8, strokeOpacity: 0.55 }));
      }
    }
    for (const [part, strokeWidth] of parts) {
      if (part.length > 1) {
        marks.push(Plot.lineY(part, { x, y, stroke: colour, strokeWidth, strokeDasharray: dash, clip: true, ariaLabel: () => run.name }));
      }
    }
    if (points.length === 1) marks.push(Plot.dot(points, { x, y, fill: colour, r: 4 }));
    if (cut < points.length - 1) {
      fewer = true;
      marks.push(Plot.dot([points[cut]].filter(inside), { x, y, stroke: colour, symbol: "times", r: 5, strokeWidth: 2 }));
    }
    if (run.diverged) marks.push(Plot.dot(points.slice(-1).filter(inside), { x, y, stroke: colour, symbol: "times", r: 6, strokeWidth: 2.5 }));
  }
  if (fewer) notes.push("×: from there on fewer seeds, drawn thinner");
  const decades = logarithmic ? Math.log10((domain?.[1] ?? to) / (domain?.[0] ?? from)) : 0;
  marks.push(Plot.tip(everyPoint.filter(inside), Plot.pointer({
    x, y, title: (p) => describePoint(p, measure, axis), fill: "var(--paper)", stroke: "var(--line)", fontSize: 12, lineHeight: 1.25 })));
  const svg = Plot.plot({
    width, height: HEIGHT, marginLeft: 52, marginRight: 12, marginTop: 12, marginBottom: 40,
    ariaLabel: `${measure.title} against ${unit.label}: ${drawn.map(({ run, points }) => `${run.name} ends at ${formatMeasure(points.at(-1).mean, measure.form)}`).join("; ")}`,
    style: { fontFamily: "inherit", fontSize: "11.5px", background: "transparent", color: "var(--ink)" },
    x: { label: unit.label, labelAnchor: "center", labelArrow: "none", ticks: Math.max(3, Math.floor(width / 85)), tickFormat: wholeTicks(axis) },
    y: { type: logarithmic ? "log" : "linear", label: null, grid: true, nice: !logarithmic, domain,
      ...(logarithmic ? { tickFormat: (v) => formatPower(v, decades) } : { ticks: 5 }),
      ...(percent === 100 ? { tickFormat: (v) => `${d3.format("~g")(+v.toFixed(6))} %` } : {}) },
    marks: [Plot.ruleY([]), ...marks],
  });
  return { svg, notes };
}

function wholeTicks(axis) {
  const short = d3.format("~s"), plain = d3.format("~g");
  return (v) => (axis.key !== "seconds" && axis.key !== "bytes_sent" && v % 1 ? "" : Math.abs(v) >= 1e5 ? short(v) : plain(+v.toFixed(6)));
}

function describePoint(p, measure, axis) {
  const unit = measure.form === "percent" ? " %" : "";
  const deviation = p.n > 1 && p.sd > 1e-12 * Math.abs(p.mean) ? ` ± ${formatMeasure(p.sd, measure.form)}` : "";
  const seeds = p.all.length > 1 ? ` (${p.n < p.all.length ? `${p.n} of ` : ""}${p.all.length} seeds)` : "";
  const at = axis.key === "iteration" ? "" : `, ${axis.title} ${formatMeasure(p.x, axis.form)}`;
  return `${p.run.label}\niteration ${p.t}${at}\n${formatMeasure(p.mean, measure.form)}${deviation}${unit}${seeds}`;
}

/** Final values: a cost against a measure of quality, with the standard deviation over seeds. */
function costFigure(measure, axis, runs, width) {
  const points = runs.map(({ run, k }) => ({ run, k, quality: run.final[measure.key], cost: lastCost(run, axis.key) }))
    .filter((p) => p.run.kind !== "diverged" && typeof p.quality?.value === "number" && p.cost !== null);
  if (!points.length) return { empty: "no run that is shown has both" };
  const unit = axisUnit(axis, d3.max(points, (p) => p.cost)), percent = measure.form === "percent" ? 100 : 1;
  const x = (p) => p.cost / unit.divisor, y = (p) => p.quality.value * percent;
  const deviation = (p) => (p.quality.sd ?? 0) * percent;
  const marks = points.flatMap((p) => {
    const { colour, symbol } = styleOf(p.k);
    return [
      Plot.ruleX(p.quality.sd ? [p] : [], { x, y1: (q) => y(q) - deviation(q), y2: (q) => y(q) + deviation(q), stroke: colour, strokeWidth: 1.5 }),
      Plot.dot([p], { x, y, symbol, r: 6, stroke: colour, strokeWidth: 2, fill: p.run.kind === "ranked" ? colour : "var(--paper)" }),
    ];
  });
  const most = d3.max(points, x);
  // Names beside the points, moved apart where points are at nearly the same height.
  const height = 340, spread = d3.extent(points.flatMap((p) => [y(p) - deviation(p), y(p) + deviation(p)]));
  const pixels = (height - 60) / ((spread[1] - spread[0]) || 1);
  const used = [];
  for (const p of [...points].sort((a, b) => y(b) - y(a))) {
    const left = x(p) > 0.6 * most;
    let shift = 0;
    while (used.some((u) => u.left === left && Math.abs(u.at - (-y(p) * pixels + shift)) < 14 && Math.abs(u.x - x(p)) < most * 0.3)) shift += 7;
    used.push({ left, at: -y(p) * pixels + shift, x: x(p) });
    marks.push(Plot.text([p], { x, y, text: (q) => q.run.name, dx: left ? -11 : 11, dy: shift, textAnchor: left ? "end" : "start", fill: "var(--ink)", stroke: "var(--paper)", strokeWidth: 3 }));
  }
  marks.push(Plot.tip(points, Plot.pointer({ x, y, fill: "var(--paper)", stroke: "var(--line)", fontSize: 12,
    title: (p) => `${p.run.label}\n${measure.title}: ${p.quality.text}\n${axis.title}: ${formatMeasure(p.cost, axis.form)}` })));
  const svg = Plot.plot({
    width, height, marginLeft: 56, marginRight: 20, marginTop: 18, marginBottom: 42,
    ariaLabel: `${measure.title} against ${unit.label} at the end: ${points.map((p) => `${p.run.name} ${p.quality.text} at ${formatMeasure(p.cost, axis.form)}`).join("; ")}`,
    style: { fontFamily: "inherit", fontSize: "11.5px", background: "transparent", color: "var(--ink)" },
    x: { label: unit.label, labelAnchor: "center", labelArrow: "none", zero: true, nice: true, grid: true, ticks: Math.max(3, Math.floor(width / 110)), tickFormat: wholeTicks(axis) },
    y: { label: null, grid: true, nice: true, ticks: 6, ...(percent === 100 ? { tickFormat: (v) => `${d3.format("~g")(+v.toFixed(6))} %` } : {}) },
    marks,
  });
  return { svg, notes: [] };
}

function lastCost(run, key) {
  return run.history[key]?.at(-1) ?? null;
}

/** One dot per client and run. */
function clientsFigure(column, runs, width) {
  const dots = runs.flatMap(({ run, k }) => {
    const own = run.clients?.columns.find((one) => one.key === column.key);
    return own ? own.values.map((value, index) => ({ run, k, value, client: run.clients.clients[index] })).filter((d) => d.value !== null) : [];
  });
  if (!dots.length) return { empty: "no run that is shown has it" };
  const percent = column.form === "percent" ? 100 : 1, x = (d) => d.value * percent, y = (d) => d.run.name;
  const names = [...new Set(dots.map(y))], longest = d3.max(names, (name) => name.length);
  const left = Math.min(Math.max(60, 7 * longest), width * 0.42);
  const marks = names.flatMap((name) => {
    const own = dots.filter((d) => d.run.name === name), { colour, symbol } = styleOf(own[0].k);
    return [
      Plot.ruleY(own.slice(0, 1), { y, x1: d3.min(own, x), x2: d3.max(own, x), stroke: colour, strokeOpacity: 0.5 }),
      Plot.dot(own, { x, y, symbol, stroke: colour, fill: colour, fillOpacity: 0.3, r: 4.5 }),
      Plot.tickX(own.slice(0, 1), { x: d3.mean(own, x), y, stroke: colour, strokeWidth: 2.5 }),
    ];
  });
  marks.push(Plot.tip(dots, Plot.pointer({ x, y, fill: "var(--paper)", stroke: "var(--line)", fontSize: 12,
    title: (d) => `${d.run.name}, client ${d.client}\n${column.heading.replace(/ %$/, "")}: ${formatMeasure(d.value, column.form)}${percent === 100 ? " %" : ""}` })));
  const svg = Plot.plot({
    width, height: 60 + 30 * names.length, marginLeft: left, marginRight: 16, marginTop: 8,
    marginBottom: 40, ariaLabel: `${column.heading} of each client by run`,
    style: { fontFamily: "inherit", fontSize: "11.5px", background: "transparent", color: "var(--ink)" },
    x: { label: column.heading, labelAnchor: "center", labelArrow: "none", grid: true, nice: true, ticks: Math.max(3, Math.floor(width / 110)) },
    y: { label: null, domain: names, tickSize: 0, tickFormat: (name) => (7 * name.length > left ? name.slice(0, Math.floor(left / 7) - 1) + "…" : name) },
    marks,
  });
  return { svg, notes: ["dots: clients; bar: their mean"] };
}

// Saving figures

/** A figure as a file of its own: with its title and a legend of the runs that it shows, and without variables. */
function standalone(svg, title, legend) {
  const root = getComputedStyle(document.documentElement);
  const [width, height] = ["width", "height"].map((key) => +svg.getAttribute(key));
  const perRow = Math.max(1, Math.floor(width / 190)), rows = Math.ceil(legend.length / perRow);
  const total = height + 34 + 20 * rows + 8;
  const inner = svg.cloneNode(true);
  inner.setAttribute("y", 30);
  inner.querySelectorAll('[aria-label="tip"]').forEach((tip) => tip.remove());
  const picture = h("svg:svg", { xmlns: "http://www.w3.org/2000/svg", width, height: total, viewBox: `0 0 ${width} ${total}`,
    "font-family": "system-ui, Helvetica, Arial, sans-serif", "font-size": 12, color: "var(--ink)", fill: "var(--ink)" },
  h("svg:rect", { width, height: total, fill: "var(--paper)" }),
  h("svg:text", { x: 8, y: 20, "font-size": 14, "font-weight": 600 }, title), inner,
  legend.map(({ label, k }, index) => {
    const left = 8 + (index % perRow) * (width - 16) / perRow, top = height + 40 + 20 * Math.floor(index / perRow);
    const { colour, dash } = styleOf(k);
    return h("svg:g", {}, h("svg:line", { x1: left, x2: left + 34, y1: top, y2: top, stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash }),
      h("svg:text", { x: left + 40, y: top + 4 }, label));
  }));
  const text = new XMLSerializer().serializeToString(picture);
  return { text: text.replace(/var\((--[\w-]+)\)/g, (_, name) => root.getPropertyValue(name).trim()), width, height: total };
}

function savePng(name, { text, width, height }, factor = 2) {
  const image = new Image();
  image.onload = () => {
    const canvas = h("canvas", { width: width * factor, height: height * factor });
    canvas.getContext("2d").drawImage(image, 0, 0, width * factor, height * factor);
    canvas.toBlob((blob) => saveBlob(`${name}.png`, blob));
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
}
