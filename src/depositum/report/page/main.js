// The page: its header, the sections of the chosen view, and the theme.

const page = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const PARTS = [["claims", "Claims", claimsSection], ["paper", "Paper's numbers", paperSection], ["results", "Results", resultsSection],
  ["curves", "Curves", curvesSection], ["cost", "Cost", costSection], ["network", "Network", networkSection], ["data", "Data", dataSection],
  ["clients", "Clients", clientsSection], ["settings", "Settings", settingsSection], ["remarks", "Remarks", remarksSection]];

function showTheme() {
  const chosen = getState("theme", "auto");
  document.documentElement.dataset.theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
}

/** Build the page for the chosen view, with what the address says. */
function showView() {
  watchers.length = 0;
  observers.splice(0).forEach((observer) => observer.disconnect());
  const view = page.views[Number(getState("view", "0"))] ?? page.views[0];
  watch(["theme"], showTheme);
  const parts = PARTS.map(([id, title, build]) => [id, title, build(view)]).filter(([, , element]) => element);
  const links = [...parts, ["about", "About"]].map(([id, title]) => h("a", { href: `#${id}`, onclick: (event) => {
    event.preventDefault(); // the fragment holds the state
    document.getElementById(id).scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  } }, title));
  const several = page.views.length > 1 && chooser("", "view", page.views.map((one, k) => [String(k), one.title]), "0");
  if (several) several.querySelector("select").setAttribute("aria-label", "what is shown");
  document.getElementById("top").replaceChildren(h("div", { class: "bar" }, h("span", { class: "brand" }, "depositum"), several || "",
    h("nav", { "aria-label": "sections" }, links), switches("", "theme", [["auto", "auto", "as the system"], ["light", "light"], ["dark", "dark"]], "auto")));
  document.getElementById("main").replaceChildren(summarySection(view), ...parts.map(([, , element]) => element), aboutSection(view, page.version));
  parts.forEach(([, , element]) => element.connected?.());
  let current = getState("view", "0");
  watch(["view"], () => {
    if (getState("view", "0") === current) return;
    current = getState("view", "0");
    // Another view has other runs, clients and tables.
    const kept = ["view", "theme", "x", "scale", "band"];
    for (const key of [...new Set(parameters.keys())]) if (!kept.includes(key)) parameters.delete(key);
    setState({});
    showView();
  });
}

dark.addEventListener("change", showTheme);
showView();
document.documentElement.dataset.ready = "true";
