"""The tables of docs/performance.md, from the measurements in results/performance.

    python benchmarks/performance_tables.py [--write]

`--write` puts the tables into the page, between `<!-- table: NAME -->` and `<!-- end -->`. The files are those that the
benchmarks write: `simulator.json` by `simulator.py`, `kernels.json` by `iteration.py`, `start-up*.json` by
`start_up.py`, `mixing.json` by `mixing.py`, `published-*.json` and `peer-*.json` by the published benchmarks here and
in peers, `peers.json` by `peers.py`, `processes.json` by `processes.py`.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "results" / "performance"
#: Shown where the repository has no measurements for a table.
NOT_MEASURED = "Not measured yet.\n"
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read(name: str) -> Any:
    """What a benchmark has written."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def show(value: float | None, form: str = ".3f") -> str:
    """A number, or a dash where nothing was measured."""
    return "–" if value is None else format(value, form)


def table(script: str, caption: str, columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table below its caption, which begins with the command that measures."""
    lines = [" | ".join(cells) for cells in (columns, ["---"] * len(columns), *rows)]
    return f"`python benchmarks/{script}`, {caption}" + "\n\n" + "".join(f"| {line} |\n" for line in lines)


def simulator() -> str:
    """The engine against a loop over clients and centralized SGD."""
    found = read("simulator.json")
    rows = []
    for case in found["cases"]:
        engine = case.get("engine") or {}
        ours, loop, central = engine.get("ms"), case.get("loop_ms"), case.get("central_compiled_ms")
        rows_held = case["clients"] * case["seeds"]
        memory = engine.get("vectors") and engine["vectors"] * 4 * rows_held * case["d"] / 2**30
        cells = [
            show(ours), show(loop, ".1f"), show(case.get("central_ms")), show(central),
            show(loop / ours if ours and loop else None, ".0f"),
            show(ours / central if ours and central else None, ".2f"),
            show(memory, ".2f"), show(case.get("first_iteration_s"), ".1f"),
        ]  # fmt: skip
        seeds = f" × {case['seeds']}" if case["seeds"] > 1 else ""
        rows.append([f"{case['model']}, {case['clients']}{seeds}", f"{case['d']:,}", *cells])
    columns = [
        "model, clients (× seeds)", "d", "this engine", "eager loop", "SGD eager", "SGD compiled", "loop / engine",
        "engine / SGD compiled", "peak memory GiB", "first iteration s",
    ]  # fmt: skip
    copy, product = found["limits"]
    caption = (
        f"{found['machine']}. A copy moves {copy / 1e12:.2f} TB/s, a product runs at {product / 1e12:.0f} TFLOP/s."
    )
    return table("simulator.py", caption, columns, rows) + "".join(f"\n{line}" for line in _scaling(found["cases"]))


def _scaling(cases: list[dict[str, Any]]) -> list[str]:
    """What more seeds in a batch, and more clients, cost relative to fewer."""
    ms = {(c["model"], c["clients"], c["seeds"]): c["engine"]["ms"] for c in cases if c.get("engine")}
    seeds = [
        f"{model} {many * ms[model, n, 1] / own:.1f} ({many} seeds)"
        for (model, n, many), own in ms.items()
        if many > 1 and (model, n, 1) in ms
    ]
    clients = [
        f"{model} {100 * ms[model, 1000, 1] / 1000 / ms[model, 100, 1]:.2f}"
        for model in dict.fromkeys(model for model, _, _ in ms)
        if (model, 1000, 1) in ms and (model, 100, 1) in ms
    ]
    texts = (
        ("Seeds in one batch have this many times the throughput of consecutive runs: ", seeds),
        ("A client among 1,000 costs this many times as much as one among 100: ", clients),
    )
    return [f"{text}{', '.join(found)}.\n" for text, found in texts if found]


def simulator_cpu() -> str:
    """The same on a CPU, where centralized SGD is eager."""
    found = read("simulator-cpu.json")
    rows = [
        [
            f"{case['model']}, {case['clients']}",
            *(show(time, ".1f") for time in (case["engine"]["ms"], case["loop_ms"], case["central_ms"])),
        ]
        for case in found["cases"]
    ]
    columns = ["model, clients", "this engine", "eager loop", "SGD eager"]
    return table("simulator.py", f"{found['machine']}; milliseconds per iteration.", columns, rows)


def published() -> str:
    """Benchmarks that others publish, in this package and in theirs."""
    rows, versions = [], {}
    for file in PUBLISHED:
        found = read(file)
        who = found.get("peer", "depositum")
        if "mode" in found:
            who += f", {found['processes']} {'threads' if found['mode'] == 'thread' else 'processes'}"
        projected = f"{found['rounds_done']} of {found['rounds']}, projected" if found.get("projected") else "all"
        cells = [show(found.get(key), ".1f") for key in ("cold_s", "training_s", "warm_s")]
        cells += [show(found.get("client_steps_per_s"), ",.0f"), projected, show(found["test_accuracy"], ".1f")]
        rows.append([found["benchmark"], who, found["device"], *cells])
        versions[found["versions"]] = None
    rows.sort(key=lambda cells: (cells[0], cells[1] != "depositum"))
    columns = [
        "benchmark", "run by", "device", "s from the start of the process", "training s", "again, in the same process",
        "client steps per s", "rounds", "test accuracy (%)",
    ]  # fmt: skip
    scripts = "published_blazefl.py`, `python benchmarks/published_pfl.py` and `python benchmarks/peers/published_*.py"
    return table(scripts, f"{'; '.join(versions)}.", columns, rows)


def peers() -> str:
    """Other packages on the CPU, in milliseconds per iteration."""
    found = read("peers.json")
    records = found["records"]
    settings = list(dict.fromkeys(record["setting"] for record in records))
    times = {(record["peer"], record["setting"]): record for record in records}
    rows = []
    for peer in dict.fromkeys(record["peer"] for record in records):
        own = [times.get((peer, setting)) for setting in settings]
        notes = dict.fromkeys(record["note"] for record in own if record)
        cells = [show(record and record["ms_per_iteration"], ".3g") for record in own]
        rows.append([peer, *cells, "; ".join(notes)])
    return table("peers.py", f"{found['machine']}; milliseconds per iteration.", ["", *settings, "what was run"], rows)


def processes() -> str:
    """Iterations of processes, uncompiled and compiled, and of a simulator."""
    found = read("processes.json")
    rows = [
        [
            case["model"], case["where"], "yes" if case["compile"] == "always" else "no",
            *(show(case[key]) for key in ("local", "exchange", "iteration")), show(case["ready"], ".1f"),
        ]
        for case in found["compiled"]
    ]  # fmt: skip
    columns = [
        "model", "8 clients in", "compiled", "local iteration, ms", "with an exchange, ms",
        "per iteration, T0 = 10, ms", "until compiled, s",
    ]  # fmt: skip
    return table("processes.py", f"{found['machine']}.", columns, rows)


def start_up(*labels: str) -> str:
    """Seconds to the first iteration of versions, each in a file `start-up-LABEL.json`."""
    files = {label: read(f"start-up-{label}.json") for label in labels}
    rows, machines = [], []
    for label, file in files.items():
        for case in file["cases"]:
            cells = []
            for state in ("cold", "warm"):
                times = case[state] or {}
                cells += [show(times.get(key), ".1f") for key in ("first iteration", "other kind", "processor")]
            times = case["warm"] or {}
            cells += [show(times.get(key), ".1f") for key in ("imports", "problem", "engine", "first")]
            rows.append([case["case"], label, *cells])
        machines.append(f"{label}: {next(case['warm'] or case['cold'] for case in file['cases'])['machine']}")
    rows.sort(key=lambda cells: cells[0])
    at_once = "The cases of a version ran at the same time. " * any(file["together"] for file in files.values())
    columns = [
        "model:clients:seeds", "version", "cold: first iteration", "other kind", "processor", "warm: first iteration",
        "other kind", "processor", "of it imports", "problem", "engine", "iteration",
    ]  # fmt: skip
    return table("start_up.py", f"{at_once}{'. '.join(machines)}.", columns, rows)


def roofline() -> str:
    """The kernels of an iteration, by name, against the limits of the machine."""
    return "\n".join(_roofline(case) for case in read("kernels.json"))


def _roofline(case: dict[str, Any], most: int = 14) -> str:
    groups: dict[str, list[dict[str, Any]]] = {}
    for kernel in case["kernels"]:
        groups.setdefault(_base_name(kernel["name"]), []).append(kernel)
    order = sorted(groups.items(), key=lambda item: -sum(k["microseconds"] for k in item[1]))
    bandwidth, arithmetic = case["limits"]
    rows, total, bounds = [], 0.0, 0.0
    for name, kernels in order:
        time = sum(k["microseconds"] for k in kernels)
        traffic, operations = (sum(k[key] or 0.0 for k in kernels) for key in ("bytes", "operations"))
        bound = sum(1e6 * max((k["bytes"] or 0.0) / bandwidth, (k["operations"] or 0.0) / arithmetic) for k in kernels)
        total, bounds = total + time, bounds + bound
        shares = [1e8 * amount / limit / time for amount, limit in ((traffic, bandwidth), (operations, arithmetic))]
        cells = [f"{len(kernels)}", f"{time:.0f}", f"{traffic / 1e6:.0f}", f"{shares[0]:.0f} %"]
        rows.append([f"`{name}`", *cells, f"{operations / 1e9:.1f}", f"{shares[1]:.0f} %", f"{bound:.0f}"])
    caption = (
        f"{case['case']}, {case['machine']}: {1e3 * case['iteration_ms']:.0f} µs per iteration, {total:.0f} in its "
        f"{len(case['kernels'])} kernels, at least {bounds:.0f} by the bounds of each kernel, and "
        f"{case['state_us']:.0f} for nine passes over the state alone. The {most} kernels that take longest:"
    )
    columns = ["kernel", "launches", "µs", "MB", "of bandwidth", "GFLOP", "of arithmetic", "bound µs"]
    return table("iteration.py", caption, columns, rows[:most])


def _base_name(name: str) -> str:
    """A kernel's name without its number and template arguments."""
    name = re.sub(r"^void |[<(].*$|_\d+$", "", name)
    return name[:60].rstrip("_:")


def mixing() -> str:
    """The cost of mixing by the edges of the graph."""
    found = read("mixing.json")
    rows = [
        [case["graph"], str(case["neighbours"]), show(case["ms"]), show(case["copies"], ".1f"), show(case["each"])]
        for case in found["cases"]
    ]
    columns = ["graph", "neighbours", "ms", "copies of the rows", "ns per additional edge end and 1,000 numbers"]
    return table("mixing.py", f"{found['machine']}; n = {found['n']:,}, d = {found['d']:,}.", columns, rows)


#: What the published benchmarks wrote, here and in peers.
PUBLISHED = tuple(sorted(path.name for who in ("published", "peer") for path in RESULTS.glob(f"{who}-*.json")))
#: The tables by name, and the files that they are made from.
TABLES: dict[str, tuple[Callable[[], str], tuple[str, ...]]] = {
    "simulator": (simulator, ("simulator.json",)),
    "start-up": (lambda: start_up("before", "now"), ("start-up-before.json", "start-up-now.json")),
    "roofline": (roofline, ("kernels.json",)),
    "mixing": (mixing, ("mixing.json",)),
    "simulator-cpu": (simulator_cpu, ("simulator-cpu.json",)),
    "published": (published, PUBLISHED),
    "peers": (peers, ("peers.json",)),
    "processes": (processes, ("processes.json",)),
}


def text_of(name: str) -> str:
    """A table; empty if its measurements are not in the repository."""
    make, files = TABLES[name]
    return make() if all((RESULTS / file).exists() for file in files) else ""


def with_tables(page: str) -> str:
    """The page with every table made anew."""
    return MARKED.sub(lambda match: f"{match[1]}\n{text_of(match[2]) or NOT_MEASURED}\n{match[3]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if options.write:
        PAGE.write_text(with_tables(page), encoding="utf-8")
        return
    for _, name, _ in MARKED.findall(page):
        print(text_of(name))


if __name__ == "__main__":
    main()
