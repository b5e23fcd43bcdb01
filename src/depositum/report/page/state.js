// What is shown, as parameters of the address's fragment: a link to the page restores the view.

let parameters = new URLSearchParams(location.hash.slice(1));
const watchers = [];

function getState(key, otherwise) {
  return parameters.get(key) ?? otherwise;
}

function getList(key) {
  return parameters.getAll(key);
}

/** Change some parameters; an empty value or list removes one. */
function setState(changes) {
  for (const [key, value] of Object.entries(changes)) {
    parameters.delete(key);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") parameters.append(key, one);
    }
  }
  const text = parameters.toString();
  history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  notify(Object.keys(changes));
}

/** Call `update` now, and whenever one of the parameters changes. */
function watch(keys, update) {
  watchers.push({ keys, update });
  update();
}

function notify(keys) {
  for (const { keys: own, update } of [...watchers]) {
    if (!keys || own.some((key) => keys.includes(key))) update();
  }
}

addEventListener("hashchange", () => {
  parameters = new URLSearchParams(location.hash.slice(1));
  showView();
});
