// Tables that sort within their groups, and that are saved as CSV (all digits) or LaTeX (as they are shown).

/**
 * columns: [{key, heading, numeric, wrap}]; groups: [{title, rows: [{key: {text, value, sd, node, best}}]}].
 * Rows are ordered by the parameter `sort.ID`, "column:ascending"; without it, as given.
 */
function sortableTable(id, caption, columns, groups, { tall = false, wrap = "" } = {}) {
  const body = h("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-label": caption });
  const save = (suffix, text) => saveText(`${fileName(id)}.${suffix}`, text);
  const element = h("div", { class: `data ${wrap}`, id: `table-${id}` }, body,
    h("div", { class: "tabletools" },
      h("button", { class: "tool", type: "button", onclick: () => save("csv", asCsv(columns, ordered())) }, "CSV"),
      h("button", { class: "tool", type: "button", onclick: () => save("tex", asLatex(caption, columns, ordered())) }, "LaTeX")));
  const order = () => getState(`sort.${id}`, "").split(/:(?=[^:]*$)/);

  function ordered() {
    const [key, direction] = order();
    const column = columns.find((one) => one.key === key);
    if (!column) return groups;
    const sign = direction === "descending" ? -1 : 1;
    const last = (value) => value === null || value === undefined || Number.isNaN(value) || value === "";
    const compare = (a, b) => {
      const [x, y] = [a, b].map((row) => (column.numeric ? row[key]?.value : row[key]?.text));
      if (last(x) || last(y)) return last(x) - last(y);
      return sign * (column.numeric ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true }));
    };
    return groups.map((group) => ({ ...group, rows: [...group.rows].sort(compare) }));
  }

  function sort(key) {
    const [before, direction] = order();
    const next = before !== key ? "ascending" : direction === "ascending" ? "descending" : null;
    setState({ [`sort.${id}`]: next && `${key}:${next}` });
    body.querySelector(`button[data-key="${CSS.escape(key)}"]`)?.focus();
  }

  watch([`sort.${id}`], () => {
    const [key, direction] = order();
    const head = h("tr", {}, columns.map((column) =>
      h("th", { scope: "col", class: column.numeric ? null : "text", "aria-sort": column.key === key ? direction : "none" },
        h("button", { class: "sort", type: "button", "data-key": column.key, onclick: () => sort(column.key) }, column.heading.replace(" %", "\u00a0%")))));
    const rows = ordered().flatMap((group) => [
      group.title && h("tr", {}, h("th", { class: "group text", scope: "rowgroup", colspan: columns.length }, group.title)),
      ...group.rows.map((row) => h("tr", { class: row.differs ? "differs" : null }, columns.map((column, k) => cell(column, row[column.key], k === 0)))),
    ]);
    body.replaceChildren(h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, rows)));
  });
  return element;
}

function cell(column, content, first) {
  const names = [column.numeric ? "" : "text", column.wrap ? "wrap" : "", content?.best ? "best" : ""].join(" ").trim();
  const shown = content?.node?.() ?? content?.text ?? "–";
  return first ? h("th", { scope: "row", class: names || null }, shown) : h("td", { class: names || null }, shown);
}

function asCsv(columns, groups) {
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const titled = groups.length > 1;
  const withDeviation = (column) => column.numeric && groups.some((g) => g.rows.some((row) => typeof row[column.key]?.sd === "number"));
  const head = columns.flatMap((c) => [c.heading, ...(withDeviation(c) ? [`${c.heading} (standard deviation)`] : [])]);
  const lines = groups.flatMap((group) => group.rows.map((row) => [
    ...(titled ? [group.title] : []),
    ...columns.flatMap((column) => {
      const content = row[column.key] ?? {};
      const value = column.numeric ? content.value ?? "" : content.text ?? "";
      return [value, ...(withDeviation(column) ? [content.sd ?? ""] : [])];
    }),
  ]));
  return [[...(titled ? ["group"] : []), ...head], ...lines].map((line) => line.map((v) => quoted(String(v))).join(",")).join("\n") + "\n";
}

const LATEX = {
  "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "#": "\\#", _: "\\_", $: "\\$", "{": "\\{", "}": "\\}", "~": "\\textasciitilde{}",
  "^": "\\textasciicircum{}", "±": "$\\pm$", "–": "--", "−": "$-$", "‖": "$\\Vert$", "·": "$\\cdot$", "√": "$\\surd$", "≤": "$\\le$",
  "≥": "$\\ge$", "×": "$\\times$", "∞": "$\\infty$", "²": "$^2$", "³": "$^3$", "¹": "$^1$", "⁰": "$^0$", "⁴": "$^4$", "⁵": "$^5$",
  "⁶": "$^6$", "⁻": "$^-$", "ᵅ": "$^\\alpha$", "₀": "$_0$", "₁": "$_1$", "₂": "$_2$", "x̄": "$\\bar{x}$",
  α: "$\\alpha$", β: "$\\beta$", γ: "$\\gamma$", δ: "$\\delta$", η: "$\\eta$", θ: "$\\theta$", λ: "$\\lambda$", ν: "$\\nu$",
  ρ: "$\\rho$", σ: "$\\sigma$", τ: "$\\tau$", φ: "$\\phi$", ζ: "$\\zeta$",
};

function escapeLatex(text) {
  return [...String(text).replaceAll("x̄", "\u0001")].map((c) => (c === "\u0001" ? LATEX["x̄"] : LATEX[c] ?? c)).join("").replace(/\s*\n\s*/g, " ");
}

function asLatex(caption, columns, groups) {
  const row = (cells) => cells.map(escapeLatex).join(" & ") + " \\\\";
  const lines = groups.flatMap((group, k) => [
    ...(k ? ["\\midrule"] : []),
    ...(group.title ? [`\\multicolumn{${columns.length}}{l}{${escapeLatex(group.title)}} \\\\`] : []),
    ...group.rows.map((one) => row(columns.map((column) => one[column.key]?.text ?? "–"))),
  ]);
  return ["\\begin{table}", "\\centering", `\\caption{${escapeLatex(caption)}}`,
    `\\begin{tabular}{${columns.map((column) => (column.numeric ? "r" : "l")).join("")}}`, "\\toprule",
    row(columns.map((column) => column.heading)), "\\midrule", ...lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""].join("\n");
}

function fileName(text) {
  return text.normalize("NFKD").replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "report";
}

function saveText(name, text, type = "text/plain") {
  saveBlob(name, new Blob([text], { type: `${type};charset=utf-8` }));
}

function saveBlob(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
