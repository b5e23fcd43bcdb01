// The sections of the page, each a function from a view to an element (or null, if there is nothing to show).

const shownRuns = (view) => view.runs
  .filter((run) => view.filters.every(({ axis, first }) => {
    const chosen = getState(`axis.${axis}`, first ?? "*");
    return chosen === "*" || run.labels[axis] === chosen;
  }))
  .map((run, k) => ({ run, k }));
const drawnRuns = (view) => {
  const hidden = new Set(getList("hide"));
  return shownRuns(view).filter(({ run }) => !hidden.has(run.name));
};
const filterKeys = (view) => view.filters.map(({ axis }) => `axis.${axis}`);

function section(id, title, ...content) {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...content);
}

function chooser(label, key, options, otherwise) {
  const select = h("select", { "data-state": key, onchange: () => setState({ [key]: select.value === otherwise ? null : select.value }) },
    options.map(([value, text]) => h("option", { value }, text)));
  watch([key], () => {
    const value = getState(key, otherwise);
    select.value = options.some(([known]) => known === value) ? value : otherwise;
  });
  return h("label", {}, label, select);
}

function switches(label, key, options, otherwise) {
  const buttons = options.map(([value, text, title]) => h("button", { type: "button", "data-state": key, "data-value": value, title,
    onclick: () => setState({ [key]: value === otherwise ? null : value }) }, text));
  watch([key], () => buttons.forEach((button) => button.setAttribute("aria-pressed", button.dataset.value === getState(key, otherwise))));
  return h("fieldset", { class: "control" }, h("legend", {}, label), h("div", { class: "switch" }, buttons));
}

/** A figure with its title, buttons that save it, and a caption; `draw(width)` gives {svg, notes} or {empty}. */
function figureBox(title, legend, draw, { wide = false, low = false } = {}) {
  const plot = h("div", { class: "plot" }), caption = h("figcaption");
  const name = () => fileName(title);
  const picture = () => standalone(plot.querySelector("svg"), title, legend());
  const tools = ["SVG", "PNG"].map((kind) => h("button", { class: "tool", type: "button", "aria-label": `save ${title} as ${kind}`,
    onclick: () => (kind === "SVG" ? saveText(`${name()}.svg`, picture().text, "image/svg+xml") : savePng(name(), picture())) }, kind));
  const element = h("figure", { class: wide ? "wide" : low ? "low" : null }, h("header", {}, h("h3", {}, title), tools), plot, caption);
  element.redraw = () => {
    const { svg, notes = [], empty } = draw(Math.max(280, plot.clientWidth || 440));
    plot.replaceChildren(empty ? h("div", { class: "empty" }, empty) : svg);
    caption.textContent = notes.join("; ");
    tools.forEach((tool) => { tool.hidden = Boolean(empty); });
  };
  return element;
}

/** Draw figures now, when a parameter changes, and when their width does. */
function keepDrawn(container, figures, keys) {
  let width = 0;
  const redraw = () => figures().forEach((figure) => figure.redraw());
  const observer = new ResizeObserver(() => {
    if (Math.abs(container.clientWidth - width) < 2) return;
    width = container.clientWidth;
    redraw();
  });
  observers.push(observer);
  observer.observe(container);
  width = container.clientWidth;
  watch(keys, redraw);
}
const observers = [];

function runName(run, k) {
  return h("span", {}, swatch(k), " ", run.name, runTags(run));
}

function runTags(run) {
  return [run.diverged && h("span", { class: "tag bad", title: run.diverged }, "diverged"),
    run.unfinished && h("span", { class: "tag", title: run.unfinished }, "not finished"),
    run.worse && h("span", { class: "tag", title: run.worse }, "ended worse")].filter(Boolean);
}

// Summary

function summarySection(view) {
  const { experiment } = view;
  const counts = d3.rollups(view.runs, (runs) => runs.length, (run) => run.kind);
  const words = { ranked: "ranked", apart: experiment ? "sound" : "of another problem", diverged: "diverged" };
  const split = counts.length > 1 ? ` (${counts.map(([kind, n]) => `${n} ${words[kind]}`).join(", ")})` : "";
  const seeds = d3.extent(view.runs, (run) => run.seeds);
  const facts = [
    [experiment ? "cells" : "runs", view.runs.length > 1 ? `${view.runs.length}${split}` : view.runs[0].name],
    ["seeds", seeds[0] === seeds[1] ? seeds[0] : `${seeds[0]} to ${seeds[1]}`],
  ];
  const setting = (key) => {
    const row = view.settings.find((one) => one.key === key);
    return row && !row.differs ? row.values.find((value) => value !== null) : null;
  };
  for (const [name, keys] of [["data", ["problem.dataset", "problem.partition"]], ["model", ["problem.model"]],
    ["clients", ["problem.clients", "network.topology"]], ["steps", ["run.steps"]]]) {
    const values = keys.map(setting).filter(Boolean);
    if (values.length) facts.push([name, values.join(", ")]);
  }
  if (experiment) {
    facts.push(["paper", experiment.paper], ["claims", experiment.verdicts], ["made", experiment.made]);
    if (experiment.set) facts.push(["run with", experiment.set]);
  }
  const warnings = [...(experiment?.quick ? [experiment.quick] : []), ...view.notes.filter((note) => note.startsWith("! ")).map((note) => note.slice(2))];
  const others = view.notes.filter((note) => !note.startsWith("! "));
  return h("section", { class: "lead", id: "summary" }, h("h1", {}, view.title),
    experiment?.about && h("p", {}, experiment.about),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    warnings.length > 0 && h("div", { class: "notice", role: "note" }, warnings.map((text) => h("p", {}, text))),
    others.length > 0 && h("details", { open: others.length <= 6 }, h("summary", { class: "small" }, "notes"),
      h("ul", { class: "plain" }, others.map((text) => h("li", {}, text)))));
}

// Claims and the paper's numbers

const VERDICTS = { holds: "holds", "does not hold": "fails" };

function claimsSection(view) {
  const { experiment } = view;
  if (!experiment) return null;
  const claims = { rows: experiment.claims.map(({ text, verdict, numbers }) => ({
    claim: { text }, verdict: { text: verdict, node: () => h("span", { class: `verdict ${VERDICTS[verdict] ?? "open"}` }, verdict) },
    numbers: { text: numbers.join("; "), node: () => h("div", { class: "numbers" }, numbers.map((line) => h("div", {}, line))) } })) };
  const columns = [["claim", "claim"], ["verdict", "verdict"], ["numbers", "numbers that decide it"]]
    .map(([key, heading]) => ({ key, heading, wrap: key !== "verdict" }));
  return section("claims", "Claims of the paper", h("p", { class: "soft small" }, `${experiment.verdicts}.`),
    experiment.claims.length ? sortableTable("claims", "Each claim, and whether it holds in these results", columns, [claims], { wrap: "claims" }) : h("p", {}, "claims.md is missing."));
}

function paperSection(view) {
  const { experiment } = view;
  if (!experiment?.tables.length) return null;
  return section("paper", "Numbers of the paper", experiment.tables.map((table, k) => {
    const numeric = table.head.map((_, c) => c > 0 && table.rows.every((row) => Number.isNaN(Number.parseFloat(row[c])) === false || /^(–|diverged|not run)/.test(row[c])));
    const columns = table.head.map((heading, c) => ({ key: `c${c}`, heading: heading || " ", numeric: numeric[c] }));
    const rows = table.rows.map((row, r) => Object.fromEntries(row.map((text, c) => {
      const number = Number.parseFloat(text);
      return [`c${c}`, { text, value: Number.isNaN(number) ? null : number, best: table.bold[r][c] }];
    })));
    return h("div", { style: "margin-bottom:1.4rem" }, table.notes.map((note) => h("p", { class: "soft small" }, note)),
      sortableTable(`paper-${k + 1}`, table.title || "table", columns, [{ rows }]));
  }));
}

function remarksSection(view) {
  const { experiment } = view;
  if (!experiment) return null;
  const list = (title, lines) => lines.length > 0 && h("div", {}, h("h3", {}, title), h("ul", { class: "plain" }, lines.map((line) => h("li", {}, line))));
  const content = [list("Remarks", experiment.remarks), list("What the paper does not state", experiment.unstated), list("Not run", experiment.not_run)].filter(Boolean);
  if (experiment.chosen.length) {
    const columns = ["for", "chosen", "at the edge of the grid"].map((heading, c) => ({ key: `c${c}`, heading }));
    content.push(h("h3", {}, "Chosen by tuning"), sortableTable("tuning", "Hyper-parameters chosen on held-out data", columns,
      [{ rows: experiment.chosen.map((row) => Object.fromEntries(row.map((text, c) => [`c${c}`, { text }]))) }]));
  }
  return content.length ? section("remarks", "Remarks", content) : null;
}

// Results

function resultsSection(view) {
  const columns = [{ key: "name", heading: view.experiment ? "cell" : "run" }, ...(view.stepsizes ? [{ key: "stepsize", heading: "stepsize" }] : []),
    { key: "seeds", heading: "seeds", numeric: true }, ...view.columns.map((column) => ({ ...column, numeric: true }))];
  const position = new Map(view.runs.map((run, k) => [run, k]));
  const style = new Map(shownRuns(view).map(({ run, k }) => [run, k]));
  const rowOf = (run) => ({
    name: { text: run.name, node: () => (view.filters.length ? h("span", {}, run.name, runTags(run)) : runName(run, style.get(run) ?? position.get(run))) },
    stepsize: { text: run.stepsize || "–" }, seeds: { text: String(run.seeds), value: run.seeds }, ...run.final });
  const sound = view.groups.filter((group) => group.kind !== "diverged");
  const title = (group) => [group.title, group.by].filter(Boolean).join(", ");
  const tables = sound.length > 0 && sortableTable("results", "Measures at the end of the runs: mean ± sample standard deviation over seeds", columns,
    sound.map((group) => ({ title: title(group), rows: group.runs.map((k) => rowOf(view.runs[k])) })));
  const diverged = view.groups.filter((group) => group.kind === "diverged").map((group) => h("div", { style: "margin-top:1rem" },
    sortableTable("diverged", group.title, [columns[0], ...(view.stepsizes ? [columns[1]] : []), { key: "where", heading: "where", wrap: true }],
      [{ rows: group.runs.map((k) => ({ ...rowOf(view.runs[k]), where: { text: view.runs[k].diverged } })) }])));
  return section("results", "Results", tables || null, diverged);
}

// Curves

function legendOf(view) {
  const element = h("div", { class: "legend", role: "group", "aria-label": "runs: press to hide or show, double click or I to show one alone" });
  watch(["hide", ...filterKeys(view)], () => {
    const focused = document.activeElement?.dataset?.run;
    const hidden = new Set(getList("hide"));
    const shown = shownRuns(view);
    const titles = Object.fromEntries(view.groups.flatMap((group) => group.runs.map((k) => [view.runs[k].name, group])));
    let last = view.groups.length > 1 ? null : "";
    const entries = shown.flatMap(({ run, k }) => {
      const title = view.groups.length > 1 ? titles[run.name].title : "";
      const heading = title !== last && title ? [h("div", { class: "kind" }, title)] : [];
      last = title;
      return [...heading, h("button", { type: "button", class: "entry", "data-run": run.name, "aria-pressed": String(!hidden.has(run.name)),
        title: "click hides or shows it; double click (or the key I) shows it alone", onclick: () => toggle(run.name), ondblclick: () => isolate(view, run.name),
        onkeydown: (event) => { if (event.key.toLowerCase() === "i") isolate(view, run.name); } }, swatch(k), h("span", {}, run.label, runTags(run)))];
    });
    element.replaceChildren(...entries);
    if (hidden.size) element.append(h("button", { type: "button", class: "tool all", onclick: () => setState({ hide: [] }) }, "show all"));
    if (focused) element.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
  });
  return element;
}

function toggle(name) {
  const hidden = getList("hide");
  setState({ hide: hidden.includes(name) ? hidden.filter((other) => other !== name) : [...hidden, name] });
}

/** Show one run alone; all again if it is alone already. */
function isolate(view, name) {
  const names = shownRuns(view).map(({ run }) => run.name), hidden = new Set(getList("hide"));
  const alone = names.every((other) => (other === name) !== hidden.has(other));
  setState({ hide: alone ? [] : names.filter((other) => other !== name) });
}

function curvesSection(view) {
  const axisKey = () => (view.axes.some((axis) => axis.key === getState("x", "iteration")) ? getState("x", "iteration") : "iteration");
  const chosen = () => {
    const given = getList("measure");
    return view.measures.filter((measure) => (given.length ? given.includes(measure.key) : measure.shown));
  };
  const seeds = view.runs.some((run) => run.seeds > 1);
  const menu = h("details", { class: "menu" }, h("summary", {}, "choose"), h("div", {}, view.measures.map((measure) => {
    const box = h("input", { type: "checkbox", "data-measure": measure.key, onchange: () => {
      const now = new Set(chosen().map((one) => one.key));
      box.checked ? now.add(measure.key) : now.delete(measure.key);
      const usual = view.measures.filter((one) => one.shown).map((one) => one.key);
      setState({ measure: usual.length === now.size && usual.every((key) => now.has(key)) || !now.size ? [] : [...now] });
    } });
    watch(["measure"], () => { box.checked = chosen().includes(measure); });
    return h("label", {}, box, measure.title);
  })));
  const controls = h("div", { class: "controls" },
    chooser("horizontal axis", "x", view.axes.map((axis) => [axis.key, axis.title]), "iteration"),
    switches("scale", "scale", [["auto", "as suited", "logarithmic for consensus, stationarity and errors"], ["linear", "linear"], ["log", "log"]], "auto"),
    seeds && switches("band over seeds", "band", [["sd", "± s.d."], ["range", "min–max"], ["seeds", "each seed"], ["none", "none"]], "sd"),
    view.filters.filter(({ labels }) => labels.length > 1).map(({ axis, labels, first }) =>
      chooser(axis, `axis.${axis}`, [["*", "all"], ...labels.map((label) => [label, label])], first ?? "*")),
    h("div", { class: "control" }, h("span", {}, "measures"), menu));
  const panels = h("div", { class: "panels" });
  let boxes = [];
  watch(["measure"], () => {
    boxes = chosen().map((measure) => {
      const box = figureBox(measure.title, () => drawnRuns(view).map(({ run, k }) => ({ label: run.label, k })), (width) => curveFigure(measure, drawnRuns(view), {
        axis: view.axes.find((axis) => axis.key === axisKey()), scale: getState("scale", "auto"), band: seeds ? getState("band", "sd") : "none", width }));
      box.dataset.measure = measure.key;
      hideByPointer(view, box);
      return box;
    });
    panels.dataset.few = [1, 2, 4].includes(boxes.length);
    panels.replaceChildren(...boxes);
    if (panels.isConnected) boxes.forEach((box) => box.redraw());
  });
  const statistic = seeds ? "Lines are means over seeds; a band of ± s.d. is one sample standard deviation; on a logarithmic axis both are of the logarithms, as in the figures of the package. " : "";
  const element = section("curves", "Curves", controls, legendOf(view), panels,
    h("p", { class: "soft small" }, statistic, h("span", { class: "screen" }, "Click a curve or its name to hide it, double click to show it alone. "), view.thinned));
  element.connected = () => keepDrawn(panels, () => boxes, ["x", "scale", "band", "hide", ...filterKeys(view)]);
  return element;
}

/** A click on a curve hides it, a double click shows it alone; a single click waits for the second. */
function hideByPointer(view, box) {
  const plot = box.querySelector(".plot");
  let waiting = null;
  const pointed = () => plot.querySelector("svg")?.value?.run?.name ?? plot.querySelector("svg, figure svg")?.value?.run?.name;
  plot.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") event.stopPropagation(); }, { capture: true });
  plot.addEventListener("click", (event) => {
    const name = event.pointerType === "touch" ? null : pointed();
    if (!name || waiting) return;
    waiting = setTimeout(() => { waiting = null; toggle(name); }, 260);
  });
  plot.addEventListener("dblclick", () => {
    clearTimeout(waiting);
    waiting = null;
    const name = pointed();
    if (name) isolate(view, name);
  });
}

// Cost against quality

function costSection(view) {
  const qualities = view.measures.filter((measure) => measure.quality && view.runs.some((run) => run.final[measure.key]));
  if (!qualities.length || view.axes.length < 2) return null;
  const usual = view.axes.some((axis) => axis.key === "bytes_sent") ? "bytes_sent" : view.axes[1].key;
  const best = (qualities.find((m) => m.key === "test_accuracy") ?? qualities.find((m) => m.key === "perplexity:overall") ?? qualities.find((m) => m.key === "test_loss") ?? qualities[0]).key;
  const pick = (list, key, otherwise) => list.find((one) => one.key === getState(key, otherwise)) ?? list.find((one) => one.key === otherwise);
  const box = figureBox("At the end of each run", () => [], (width) => costFigure(pick(qualities, "quality", best), pick(view.axes, "cost", usual), drawnRuns(view), width), { wide: true });
  const apart = view.groups.some((group) => group.kind === "apart") && view.groups.some((group) => group.kind === "ranked");
  const diverged = view.groups.some((group) => group.kind === "diverged");
  const element = section("cost", "Cost against quality", h("div", { class: "controls" },
    chooser("quality", "quality", qualities.map((measure) => [measure.key, measure.title]), best),
    chooser("cost", "cost", view.axes.map((axis) => [axis.key, axis.title]), usual)), box,
  h("p", { class: "soft small" }, "Vertical lines are ± one standard deviation over seeds. ", apart && "Open symbols solve another problem. ", diverged && "Runs that diverged are left out."));
  element.connected = () => keepDrawn(box, () => [box], ["quality", "cost", "hide", ...filterKeys(view)]);
  return element;
}

// Network, data, clients

/** The runs that share something, as [[text for a chooser, value, runs]]. */
function distinct(view, read) {
  const found = new Map();
  for (const run of view.runs) {
    const value = read(run);
    if (value === undefined) continue;
    const key = JSON.stringify(value);
    if (!found.has(key)) found.set(key, { value, runs: [] });
    found.get(key).runs.push(run.name);
  }
  return [...found.values()];
}

const someNames = (names, all, most = 2) =>
  (names.length === all ? "all runs" : names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : ""));

/** Content that depends on which of several is chosen by a parameter. */
function chosenOf(key, label, options, show) {
  const content = h("div");
  const names = options.map((option, k) => [String(k), option.text]);
  const control = options.length > 1 ? h("div", { class: "controls" }, chooser(label, key, names, "0")) : null;
  watch([key], () => content.replaceChildren(show(options[Number(getState(key, "0"))] ?? options[0])));
  return [control, content];
}

function networkSection(view) {
  const options = distinct(view, (run) => run.participants?.network).map((one) => ({ ...one, text: `${one.value ? one.value.text.split(",")[0] : "a server"}: ${someNames(one.runs, view.runs.length)}` }));
  if (!options.length) return null;
  return section("network", "Who talks to whom", chosenOf("network", "network of", options, ({ value: network, runs }) => {
    if (!network) return h("p", {}, `A method with a server: every client talks to it alone (${someNames(runs, view.runs.length)}).`);
    const lambda = network.lambda;
    const half = lambda > 0 && lambda < 1 ? Math.log(0.1) / Math.log(lambda) : null;
    const facts = [["graph", network.name], ["clients", network.clients], ["links", network.edges], ["weights", network.mixing],
      ["λ", lambda.toFixed(4)], ["gap 1 − λ", (1 - lambda).toFixed(4)], ["runs", someNames(runs, view.runs.length, 12)]];
    return h("div", { class: "split" }, networkFigure(network), h("div", {},
      h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
      h("p", { class: "small soft" }, "One exchange leaves at most the fraction λ of the clients' disagreement. ",
        lambda === 0 ? "Here it is exact averaging." : half && `About ${Math.ceil(half)} exchanges divide it by ten.`),
      network.varies && h("p", { class: "small" }, `${network.text}: not all links exist in every phase; λ is that of the drawn network.`)));
  }));
}

function dataSection(view) {
  const options = distinct(view, (run) => (run.participants?.data?.length ? run.participants.data : undefined)).flatMap(({ value, runs }) =>
    value.map((part) => ({ part, all: value, text: `seed ${part.seed}${runs.length < view.runs.length ? `: ${someNames(runs, view.runs.length)}` : ""}` })));
  if (!options.length) return null;
  return section("data", "Who holds what", chosenOf("partition", "partition of", options, ({ part, all }) => {
    const total = d3.sum(part.samples);
    const head = h("p", { class: "small" }, `${total} samples; ${d3.min(part.samples)} to ${d3.max(part.samples)} per client. `,
      part.heterogeneity !== undefined && [h("strong", {}, `Heterogeneity ${part.heterogeneity.toFixed(3)}`),
        ` (mean total-variation distance between a client's distribution of ${part.kind === "class" ? "labels" : "categories"} and all clients'; 0: equal).`,
        all.length > 1 && ` Of all seeds: ${all.map((one) => one.heterogeneity?.toFixed(3)).join(", ")}.`]);
    const most = d3.max(part.counts?.flat() ?? [1]);
    const columns = [{ key: "client", heading: "client", numeric: true }, { key: "samples", heading: "samples", numeric: true },
      ...(part.classes ?? []).map((name, c) => ({ key: `k${c}`, heading: name, numeric: true }))];
    const rows = part.samples.map((samples, i) => ({ client: { text: String(i), value: i }, samples: { text: String(samples), value: samples },
      ...Object.fromEntries((part.counts?.[i] ?? []).map((count, c) => [`k${c}`, { text: String(count), value: count, node: () => heatCell(count, most) }])) }));
    return h("div", {}, head, sortableTable("data", part.counts ? `Samples of each ${part.kind} that each client holds` : "Samples that each client holds", columns, [{ rows }], { tall: rows.length > 20, wrap: "heat" }));
  }));
}

function heatCell(count, most) {
  const share = most ? count / most : 0;
  return h("span", { style: `display:block;margin:-.32rem -.6rem;padding:.32rem .6rem;background:rgba(var(--heat),${(0.62 * share).toFixed(3)})` }, String(count));
}

function clientsSection(view) {
  const options = view.runs.filter((run) => run.clients).map((run) => ({ run, text: run.name }));
  if (!options.length) return null;
  const columns = options[0].run.clients.columns.filter((column) => column.key !== "samples" && options.some(({ run }) => run.clients.columns.some((c) => c.key === column.key)));
  const usual = (columns.find((column) => column.key === "averaged_accuracy") ?? columns[0]).key;
  const column = () => columns.find((one) => one.key === getState("clients", usual)) ?? columns.find((one) => one.key === usual);
  const box = figureBox("Clients' own training data, by run", () => [], (width) => clientsFigure(column(), drawnRuns(view), width), { low: true });
  const element = section("clients", "Results of each client",
    h("div", { class: "controls" }, chooser("measure", "clients", columns.map((one) => [one.key, one.heading]), usual)), box,
    chosenOf("clients-of", "table of", options, ({ run }) => {
      const shown = [{ key: "client", heading: "client", numeric: true }, ...run.clients.columns.map((one) => ({ key: one.key, heading: one.heading, numeric: true }))];
      const rows = run.clients.clients.map((client, i) => ({ client: { text: String(client), value: client },
        ...Object.fromEntries(run.clients.columns.map((one) => [one.key, { text: one.text[i], value: one.values[i], sd: one.sd[i] }])) }));
      return h("div", {}, h("p", { class: "small" }, `${run.name}: ${run.spread}`),
        sortableTable("clients", `${run.name}: each client at the end, mean ± standard deviation over seeds`, shown, [{ rows }], { tall: rows.length > 20 }));
    }));
  element.connected = () => keepDrawn(box, () => [box], ["clients", "hide", ...filterKeys(view)]);
  return element;
}

// Settings, and what the page is made of

function settingsSection(view) {
  if (!view.settings.length) return null;
  const columns = [{ key: "key", heading: "setting" }, ...view.runs.map((run, k) => ({ key: `r${k}`, heading: run.name, wrap: view.runs.length === 1 }))];
  const differing = view.settings.filter((row) => row.differs).length;
  const content = h("div");
  watch(["settings"], () => {
    const all = view.runs.length === 1 || !differing || getState("settings", "all") === "all";
    const rows = view.settings.filter((row) => all || row.differs).map((row) => ({ differs: row.differs && all, key: { text: row.key },
      ...Object.fromEntries(row.values.map((value, k) => [`r${k}`, { text: value ?? "–" }])) }));
    content.replaceChildren(sortableTable("settings", "The complete configuration of each run", columns, [{ rows }], { tall: true }));
  });
  return section("settings", "Configurations",
    view.runs.length > 1 && differing ? h("div", { class: "controls" }, switches("show", "settings", [["all", "all settings"], ["different", `the ${differing} that differ`]], "all")) : null,
    view.runs.length > 1 ? h("p", { class: "soft small" }, differing ? "Settings that differ between runs are highlighted; – is a setting that a run does not have." : "All runs have the same settings.") : null, content);
}

function aboutSection(view, version) {
  return section("about", "About this page",
    view.missing.length ? h("div", { class: "notice" }, h("p", {}, h("strong", {}, "Not in the folders:")), h("ul", { class: "plain" }, view.missing.map((line) => h("li", {}, line)))) : h("p", { class: "small" }, "Nothing is missing in the folders."),
    h("p", { class: "small soft" }, `Written by depositum ${version} from ${[...new Set(view.runs.map((run) => run.folder).filter(Boolean))].slice(0, 12).join(", ")}. `,
      "The page holds all its data and loads nothing; its address is a link to what it shows. Figures are drawn by Observable Plot and D3 (ISC licence)."));
}
