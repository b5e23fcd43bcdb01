// The graph of the clients: who talks to whom, drawn as `depositum show` arranges it.

/** Positions in the unit square: those of the graph, or a circle with client 0 at the top; the hub of a star inside. */
function layout(network, neighbours) {
  const n = network.clients;
  const circle = (count) => d3.range(count).map((i) => [Math.sin((2 * Math.PI * i) / count), -Math.cos((2 * Math.PI * i) / count)]);
  let points;
  if (network.positions?.length) points = network.positions.map(([x, y]) => [x, -y]);
  else {
    const hub = d3.maxIndex(neighbours, (own) => own.length);
    if (n > 2 && network.edges === n - 1 && neighbours[hub].length === n - 1) {
      points = circle(n - 1);
      points.splice(hub, 0, [0, 0]);
    } else points = circle(n);
  }
  const [[x0, x1], [y0, y1]] = [0, 1].map((k) => d3.extent(points, (p) => p[k]));
  const half = Math.max(x1 - x0, y1 - y0) / 2 || 1;
  return points.map(([x, y]) => [200 + (172 * (x - (x0 + x1) / 2)) / half, 200 + (172 * (y - (y0 + y1) / 2)) / half]);
}

/** The drawing, and what is known of the client under the pointer or the one that was chosen (parameter `client`). */
function networkFigure(network) {
  if (!network.links?.length && network.clients > 1) {
    return h("p", { class: "soft" }, `${network.edges} links are too many to draw.`);
  }
  const neighbours = d3.range(network.clients).map(() => []);
  for (const [i, j, weight] of network.links) {
    neighbours[i].push([j, weight]);
    neighbours[j].push([i, weight]);
  }
  neighbours.forEach((own) => own.sort((a, b) => a[0] - b[0]));
  const at = layout(network, neighbours);
  const radius = Math.max(3, Math.min(13, 260 / network.clients));
  const most = d3.max(network.links, ([, , w]) => w), faint = Math.max(0.12, Math.min(0.8, 60 / network.edges));
  const lines = network.links.map(([i, j, w]) => h("svg:line", {
    x1: at[i][0], y1: at[i][1], x2: at[j][0], y2: at[j][1], "stroke-width": 0.6 + (1.6 * w) / most, style: `opacity:${faint}` }));
  const words = h("p", { class: "small words", "aria-live": "polite", style: "min-height: 4.5em" });
  const nodes = at.map(([x, y], i) => h("svg:g", {
    class: "node", tabindex: 0, role: "button", "aria-label": `client ${i}, neighbours ${neighbours[i].map(([j]) => j).join(", ")}`,
    onmouseenter: () => show(i), onmouseleave: () => show(chosen()), onfocus: () => show(i), onblur: () => show(chosen()),
    onclick: () => choose(i), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(i); } },
  }, h("svg:circle", { cx: x, cy: y, r: radius }), network.clients <= 50 && h("svg:text", { x, y }, String(i))));
  const chosen = () => {
    const client = Number.parseInt(getState("client", ""), 10);
    return client >= 0 && client < network.clients ? client : null;
  };
  const choose = (i) => setState({ client: chosen() === i ? null : String(i) });

  function show(client) {
    const near = new Set(client === null ? [] : neighbours[client].map(([j]) => j));
    nodes.forEach((node, i) => {
      node.classList.toggle("chosen", i === client);
      node.classList.toggle("near", near.has(i));
      node.setAttribute("aria-pressed", i === chosen());
    });
    lines.forEach((line, k) => line.classList.toggle("on", client !== null && network.links[k].slice(0, 2).includes(client)));
    if (client === null) {
      words.classList.add("screen");
      words.textContent = "Point at a client, or choose one, to see whom it talks to.";
      return;
    }
    words.classList.remove("screen");
    const own = neighbours[client], self = 1 - d3.sum(own, ([, w]) => w);
    const shown = own.slice(0, 24).map(([j, w]) => `${j} (${w.toFixed(3)})`).join(", ") + (own.length > 24 ? `, and ${own.length - 24} more` : "");
    words.textContent = `Client ${client} talks to ${own.length} ${own.length === 1 ? "client" : "clients"}: ${shown || "nobody"}; its own weight is ${self.toFixed(3)}.`;
  }

  const svg = h("svg:svg", { viewBox: "0 0 400 400", width: 400, height: 400, role: "group",
    "aria-label": `${network.text}; clients are buttons that tell their neighbours` }, lines, nodes);
  watch(["client"], () => show(chosen()));
  return h("div", { class: "network" }, svg, words);
}
