"""Reports as a browser shows them: everything works, nothing is loaded, and nothing misleads.

The pages are opened in a real headless Chromium; what must be known of the data is read from the folders themselves.
"""

import csv
import hashlib
import io
import json
import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import depositum as dp
from depositum.data import class_counts, heterogeneity, load, partition
from depositum.report.curves import COLOURS
from depositum.report.history_tables import format_measure
from depositum.report.page_file import LIBRARIES, embedded_json
from depositum.runs.config_file import load as load_config
from tests.support.headless_chromium import Browser, find_chromium
from tests.support.small_experiments import small, write_experiment
from tests.support.small_runs import cli, write_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (apt-get install chromium)"),
]
METHODS = ("depositum", "prox-dasa", "fedmid", "feddr", "dsgt", "d-psgd")
SMOOTH = ("dsgt", "d-psgd")
PAGE_ASSETS = Path(dp.__file__).parent / "report" / "page"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The browser, which must have met no error and requested nothing but files of this test."""
    browser.errors.clear()
    browser.requests.clear()
    for file in browser.downloads.iterdir():
        file.unlink()
    browser.resize(1280, 900)
    browser.prefer("light")
    yield browser
    assert browser.errors == []
    loaded = [url for url in browser.requests if not url.startswith(("data:", "blob:", "about:"))]
    assert loaded
    assert all(url.split("#")[0].startswith("file:") and url.split("#")[0].endswith(".html") for url in loaded), loaded


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six methods on one configuration, two of which solve another problem, and a run of one that diverges."""
    folder = tmp_path_factory.mktemp("comparison")
    config = write_config(
        folder / "c.toml",
        override={name: {"problem": {"beta": 0.0}} for name in SMOOTH},
        run={"steps": 24, "evaluate_every": 2, "seeds": [0, 1], "period": 2},
    )
    assert cli("compare", config, "--methods", ",".join(METHODS), "--out", folder / "six", "--report").code == 0
    return folder / "six"


def text(page: Browser, selector: str) -> str:
    found = page.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
    assert isinstance(found, str)
    return found


def texts(page: Browser, selector: str) -> list[str]:
    found = page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText.trim())")
    assert isinstance(found, list)
    return found


def drawn(page: Browser, measure: str = "train_loss") -> set[str]:
    """The runs whose curves a panel has."""
    selector = f'#curves figure[data-measure="{measure}"] path[aria-label]'
    return set(page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.ariaLabel)"))


def axis_label(page: Browser, measure: str = "train_loss") -> str:
    return text_content(page, f'#curves figure[data-measure="{measure}"] [aria-label="x-axis label"]')


def text_content(page: Browser, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))


def data_of(path: Path) -> dict[str, Any]:
    """The data that a page has inside."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


# A comparison of six methods


def test_comparison_opens_without_errors_and_is_small(page: Browser, comparison: Path) -> None:
    """All sections are there. The size is the library's and a share for six methods."""
    path = comparison / "report.html"
    page.open(path)
    sections = page.evaluate("[...document.querySelectorAll('main > section')].map((e) => e.id)")
    assert sections == ["summary", "results", "curves", "cost", "network", "data", "clients", "settings", "about"]
    library = sum((PAGE_ASSETS / name).stat().st_size for name in LIBRARIES)
    print(f"report of six methods: {path.stat().st_size} bytes, {library} of them the library")
    assert path.stat().st_size < library + 200_000
    assert drawn(page) == set(METHODS)


def test_results_are_grouped_and_formatted_as_compare_does(page: Browser, comparison: Path) -> None:
    """The ranking of each group, its title and every number are those of `depositum compare`."""
    page.open(comparison / "report.html")
    groups = texts(page, "#table-results tbody th.group")
    assert groups[0].startswith("problem: l1, β = 0.001")
    assert groups[1].startswith("another problem: no regularizer, β = 0")
    names = texts(page, "#table-results tbody tr > th:not(.group)")
    assert set(names[:4]) == set(METHODS) - set(SMOOTH)
    assert set(names[4:]) == set(SMOOTH)
    order = {name: k for k, name in enumerate(names)}
    means = {}
    heads = [head.replace("\xa0", " ") for head in texts(page, "#table-results thead th")]
    for name in METHODS:
        last = pd.read_csv(comparison / name / "history.csv").groupby("seed").tail(1)
        means[name] = last["test_accuracy"].mean()
        row = texts(page, f"#table-results tbody tr:nth-child({1 + order[name] + 1 + (name in SMOOTH)}) > *")
        assert row[heads.index("test accuracy %")] == format_measure(last["test_accuracy"], "percent")
        assert row[heads.index("sent / client")] == format_measure(last["bytes_sent"], "bytes")
    for members in (names[:4], names[4:]):
        ranked = [means[name] for name in members]
        assert ranked == sorted(ranked, reverse=True)


def test_axis_scale_and_band_can_be_switched(page: Browser, comparison: Path) -> None:
    page.open(comparison / "report.html")
    assert axis_label(page) == "iteration t"
    seen = set()
    for axis in ("phases", "bytes_sent", "gradient_evaluations", "seconds"):
        page.choose('[data-state="x"]', axis)
        seen.add(axis_label(page))
        assert f"x={axis}" in page.evaluate("location.hash")
    assert len(seen) == 4
    assert any(label.startswith("bytes sent per client (") for label in seen)
    panel = "document.querySelectorAll('#curves figure[data-measure=train_loss]"
    paths = f"[...{panel} path[aria-label]')].map((e) => e.getAttribute('d')).join()"
    linear = page.evaluate(paths)
    page.click('[data-state="scale"][data-value="log"]')
    assert page.evaluate(paths) != linear
    areas = f"{panel} [aria-label=area] path').length"
    assert page.evaluate(areas) == len(METHODS)
    page.click('[data-state="band"][data-value="none"]')
    assert page.evaluate(areas) == 0
    lines = f"{panel} [aria-label=line] path').length"
    assert page.evaluate(lines) == len(METHODS)
    page.click('[data-state="band"][data-value="seeds"]')
    assert page.evaluate(lines) == 3 * len(METHODS)  # the mean, and two seeds


def test_legend_hides_and_isolates_by_mouse_and_keyboard(page: Browser, comparison: Path) -> None:
    page.open(comparison / "report.html")
    page.click('.legend [data-run="fedmid"]')
    assert drawn(page) == set(METHODS) - {"fedmid"}
    assert page.evaluate("document.querySelector('.legend [data-run=fedmid]').ariaPressed") == "false"
    page.click('.legend [data-run="fedmid"]')
    assert drawn(page) == set(METHODS)
    page.click('.legend [data-run="feddr"]', count=2)
    assert drawn(page) == {"feddr"}
    page.click('.legend [data-run="feddr"]', count=2)
    assert drawn(page) == set(METHODS)
    page.evaluate("document.querySelector('.legend [data-run=dsgt]').focus()")
    page.press("Enter")
    assert drawn(page) == set(METHODS) - {"dsgt"}
    page.press("i", "KeyI")
    assert drawn(page) == {"dsgt"}


def test_curves_hide_and_isolate_by_click(page: Browser, comparison: Path) -> None:
    """A click where a curve is hides it, a double click shows it alone; the tip tells which it is."""
    page.open(comparison / "report.html", "band=none&hide=feddr&hide=fedmid&hide=dsgt&hide=prox-dasa")
    point = """(() => {
        const path = document.querySelector('#curves figure[data-measure=train_loss] path[aria-label=NAME]');
        path.scrollIntoView({block: "center", behavior: "instant"});
        const p = path.getPointAtLength(path.getTotalLength()), m = path.getScreenCTM();
        return [p.x * m.a + m.e, p.y * m.d + m.f]; })()"""
    x, y = page.evaluate(point.replace("NAME", "depositum"))
    page.click_at(x, y, count=2)
    assert drawn(page) == {"depositum"}
    x, y = page.evaluate(point.replace("NAME", "depositum"))
    page.click_at(x, y, count=2)
    page.wait(lambda: drawn(page) == set(METHODS))
    page.open(comparison / "report.html", "hide=feddr&hide=fedmid&hide=dsgt&hide=prox-dasa")
    x, y = page.evaluate(point.replace("NAME", "d-psgd"))
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tip = text_content(page, '#curves figure[data-measure="train_loss"] [aria-label="tip"]')
    assert "d-psgd" in tip
    assert "iteration 24" in tip
    page.click_at(x, y)
    page.wait(lambda: drawn(page) == {"depositum"})


def test_tables_sort_within_their_groups_and_are_exported(page: Browser, comparison: Path) -> None:
    """CSV has all digits and the deviations; LaTeX compiles to the shown table: every row has as many cells."""
    page.open(comparison / "report.html")
    page.click('#table-results button[data-key="train_loss"]')
    assert page.evaluate("document.querySelector('#table-results th[aria-sort=ascending]').innerText") == "train loss"
    losses = {
        name: pd.read_csv(comparison / name / "history.csv").groupby("seed").tail(1)["train_loss"].mean()
        for name in METHODS
    }
    expected = [
        *sorted(set(METHODS) - set(SMOOTH), key=lambda name: losses[name]),
        *sorted(SMOOTH, key=lambda name: losses[name]),
    ]
    assert texts(page, "#table-results tbody tr > th:not(.group)") == expected
    page.click("#table-results .tabletools button:nth-child(1)")
    rows = list(csv.DictReader(io.StringIO(page.downloaded("results.csv").decode())))
    assert [row["run"] for row in rows] == expected
    assert float(rows[0]["train loss"]) == pytest.approx(losses[expected[0]], rel=1e-8)
    assert float(rows[0]["train loss (standard deviation)"]) > 0
    page.click('#table-results button[data-key="train_loss"]')
    descending = texts(page, "#table-results tbody tr > th:not(.group)")
    assert descending == [*expected[:4][::-1], *expected[4:][::-1]]
    page.click("#table-results .tabletools button:nth-child(2)")
    latex = page.downloaded("results.tex").decode()
    body = re.search(r"\\midrule\n(.*)\\bottomrule", latex, re.DOTALL)
    columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", latex)
    assert body is not None
    assert columns is not None
    lines = [line for line in body[1].splitlines() if "&" in line]
    assert len(lines) == len(METHODS)
    assert all(line.replace(r"\&", "").count("&") == len(columns[1]) - 1 for line in lines)
    assert r"$\pm$" in latex
    assert "\\%" in latex


def test_address_restores_the_view(page: Browser, comparison: Path) -> None:
    """What was chosen is in the fragment; loading the address shows it, and so does a change of the fragment."""
    page.open(comparison / "report.html")
    page.choose('[data-state="x"]', "phases")
    page.click('[data-state="scale"][data-value="linear"]')
    page.click('.legend [data-run="d-psgd"]')
    page.click('#table-results button[data-key="sparsity"]')
    page.click(".network .node:nth-of-type(3)")
    page.click('[data-state="theme"][data-value="dark"]')
    fragment = page.evaluate("location.hash").removeprefix("#")
    order = texts(page, "#table-results tbody tr > th:not(.group)")
    chosen = texts(page, ".network p")
    page.open(comparison / "report.html", fragment)
    assert axis_label(page) == "communication phases"
    assert drawn(page) == set(METHODS) - {"d-psgd"}
    assert texts(page, "#table-results tbody tr > th:not(.group)") == order
    assert texts(page, ".network p") == chosen
    assert chosen[0].startswith("Client 2 talks to 2 clients: 1 (0.333), 3 (0.333)")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("location.hash = '#x=bytes_sent'")
    page.wait(lambda: axis_label(page).startswith("bytes"))
    assert drawn(page) == set(METHODS)


def test_figures_are_saved_as_pictures(page: Browser, comparison: Path) -> None:
    """The SVG stands alone: a legend, no variables of the page; the PNG has twice its size."""
    page.open(comparison / "report.html", "hide=fedmid")
    page.click('#curves figure[data-measure="train_loss"] header button:nth-of-type(1)')
    svg = page.downloaded("training-loss-f-x.svg").decode()
    root = ET.fromstring(svg)
    assert "var(" not in svg
    words = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    assert "depositum" in words
    assert "training loss" in words
    assert "fedmid" not in words
    page.click('#curves figure[data-measure="train_loss"] header button:nth-of-type(2)')
    png = page.downloaded("training-loss-f-x.png")
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (2 * int(root.attrib["width"]), 2 * int(root.attrib["height"]))


def test_network_and_data_are_those_of_the_run(page: Browser, comparison: Path) -> None:
    """λ, links and counts, against the network and the partition built anew from the configuration."""
    page.open(comparison / "report.html")
    network = dp.ring(4)
    facts = text(page, "#network dl")
    assert f"{network.lam:.4f}" in facts
    assert f"{network.gap:.4f}" in facts
    assert page.evaluate("document.querySelectorAll('.network line').length") == network.edges
    spec = load_config(comparison / "depositum" / "config.toml")
    dataset = load(spec.config.problem.dataset)
    parts = partition(spec.config.problem.partition, dataset, 4, seed=0)
    targets = dataset.train.targets.numpy()
    shown = [texts(page, f"#table-data tbody tr:nth-child({i + 1}) > *") for i in range(4)]
    counts = class_counts(parts, targets)
    assert shown == [[str(i), str(len(parts[i])), *map(str, counts[i].tolist())] for i in range(4)]
    assert f"Heterogeneity {heterogeneity(parts, targets):.3f}" in text(page, "#data")


def test_settings_that_differ_are_highlighted(page: Browser, comparison: Path) -> None:
    page.open(comparison / "report.html")
    differing = set(texts(page, "#table-settings tr.differs > th"))
    assert {"problem.beta", "algorithm.name"} <= differing
    assert not differing & {"problem.clients", "run.steps", "problem.dataset"}
    page.click('[data-state="settings"][data-value="different"]')
    assert set(texts(page, "#table-settings tbody tr > th")) == differing


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (400, "dark"), (1280, "dark")])
def test_page_fits_its_window_in_both_themes(page: Browser, comparison: Path, width: int, scheme: str) -> None:
    """No sideways scrolling at 400 pixels; text has contrast in both themes (at least 4.5, as WCAG AA asks)."""
    page.resize(width, 900)
    page.prefer(scheme)
    page.open(comparison / "report.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrast = """(() => { const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(channel);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        return [".soft", "td", "h2", "nav a", "caption"].map((s) => {
            const own = light(getComputedStyle(document.querySelector(s)).color);
            return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05); }); })()"""
    assert min(page.evaluate(contrast)) >= 4.5
    assert (page.evaluate("document.documentElement.dataset.theme")) == scheme


def test_every_control_has_a_name_and_curves_differ_without_colours(page: Browser, comparison: Path) -> None:
    page.open(comparison / "report.html")
    nameless = page.evaluate("""
        [...document.querySelectorAll("button, select, input, [role=button], [role=region]")].filter((e) =>
            !(e.innerText || e.getAttribute("aria-label") || e.title || e.closest("label")?.textContent))
        .map((e) => e.outerHTML)""")
    assert nameless == []
    swatches = "[...document.querySelectorAll('.legend .swatch line')]"
    dashes = page.evaluate(f"{swatches}.map((e) => e.getAttribute('stroke-dasharray'))")
    assert len(set(dashes)) == len(METHODS)
    described = "[...document.querySelectorAll('figure svg[aria-label]')].map((e) => e.ariaLabel)"
    assert any(label.startswith("training loss") and "depositum ends at" in label for label in page.evaluate(described))


def test_colours_are_those_of_the_figures(page: Browser, comparison: Path) -> None:
    """A run has the colour in the page that it would have in curves.png."""
    page.open(comparison / "report.html")
    read = "getComputedStyle(document.documentElement).getPropertyValue('--c{}').trim()"
    assert [page.evaluate(read.format(k)).upper() for k in range(len(COLOURS))] == [c.upper() for c in COLOURS]


def test_measures_are_formatted_as_in_python(page: Browser, comparison: Path) -> None:
    """The page's formats against `format_measure`, on numbers at their limits."""
    page.open(comparison / "report.html")
    cases = [("bytes", v) for v in (0, 512, 1023, 1024, 2.5e6, 3e9, 5e12, 1e16)]
    cases += [("seconds", v) for v in (0.04, 5, 59.9, 59.96, 125, 3600, 7260)]
    cases += [("percent", v) for v in (0, 0.5, 0.96391, 1)]
    cases += [("{:.4f}", v) for v in (0.0, 1.23456, -2.5, 99999.5, 123456.0, 1e300)]
    cases += [("{:.1e}", v) for v in (1.0, 3.26e-13, 1.5e10, 1e-300)] + [("{:.0f}", 300)]
    shown = page.evaluate(f"{json.dumps([list(case) for case in cases])}.map(([form, v]) => formatMeasure(v, form))")
    assert shown == [format_measure(pd.Series([float(v)]), form) for form, v in cases]


def test_page_prints_without_its_controls(page: Browser, comparison: Path, tmp_path: Path) -> None:
    page.open(comparison / "report.html", "theme=dark")
    page.print_pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    page.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert page.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        page.call("Emulation.setEmulatedMedia", media="")


# What must not mislead


@pytest.fixture(scope="module")
def troubled(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that diverged, were stopped, ended worse, and of an earlier release; one with a hostile name."""
    folder = tmp_path_factory.mktemp("troubled")
    config = write_config(folder / "c.toml", run={"steps": 24, "evaluate_every": 2, "seeds": [0, 1]})
    assert cli("run", config, "--out", folder / "diverged", "--set", "algorithm.alpha=3e38").code == 2
    assert cli("run", config, "--out", folder / "good").code == 0
    for name in ("stopped", "worse", "old", HOSTILE):
        (folder / name).mkdir()
        for file in (folder / "good").iterdir():
            (folder / name / file.name).write_bytes(file.read_bytes())
    text = (folder / "stopped" / "config.toml").read_text()
    (folder / "stopped" / "config.toml").write_text(text.replace("steps = 24", "steps = 99"))
    history = pd.read_csv(folder / "worse" / "history.csv")
    history["phi"] = 1.0 + history["iteration"]
    history.to_csv(folder / "worse" / "history.csv", index=False)
    for file in (folder / "old").iterdir():
        if file.name not in ("history.csv", "config.toml"):
            file.unlink()
    return folder


HOSTILE = "<img src=x onerror=alert(1)> & $x_1$"


def test_runs_that_must_not_be_ranked_are_labelled(page: Browser, troubled: Path) -> None:
    """Diverged runs are apart, without final numbers; stopped and worse ones have a note and a mark."""
    path = dp.write_report(
        *(troubled / name for name in ("good", "stopped", "worse", "diverged")), out=troubled / "p.html"
    )
    page.open(path)
    assert "diverged" not in " ".join(texts(page, "#table-results tbody tr > th"))
    assert "is not finite at iteration" in text(page, "#table-diverged")
    assert texts(page, "#curves .legend .kind")[-1] == "diverged, not ranked"
    summary = text(page, "#summary")
    assert "stopped: 24 of 99 iterations" in summary
    assert "worse ended worse than it began: φ rose from 1 to 25" in summary
    rows = texts(page, "#table-results tbody tr > th")
    assert any(row.startswith("stopped") and "not finished" in row for row in rows)
    assert any(row.startswith("worse") and "ended worse" in row for row in rows)
    compared = cli(
        "compare", *(troubled / name for name in ("good", "stopped", "worse", "diverged")), "--out", troubled / "c.png"
    ).out
    for note in data_of(path)["views"][0]["notes"]:
        assert " ".join(note.split()) in " ".join(compared.split())


def test_old_folder_says_what_is_missing(page: Browser, troubled: Path) -> None:
    """A folder with a history and a configuration: the network is drawn from its name, the rest is listed."""
    page.open(dp.write_report(troubled / "old"))
    about = text(page, "#about")
    for what in ("whether seeds diverged is not known", "who holds what is not recorded", "clients.csv is missing"):
        assert what in about
    assert page.evaluate("document.querySelectorAll('.network line').length") == 4
    (troubled / "bare").mkdir()
    (troubled / "bare" / "history.csv").write_bytes((troubled / "good" / "history.csv").read_bytes())
    page.open(dp.write_report(troubled / "bare"))
    assert "config.toml is missing" in text(page, "#about")
    assert drawn(page) == {"bare"}


def test_names_of_users_are_text(page: Browser, troubled: Path) -> None:
    """A name with markup is shown as it is, runs nothing, and is escaped in exports."""
    page.open(dp.write_report(troubled / HOSTILE, troubled / "good", out=troubled / "hostile.html"))
    assert any(HOSTILE in row for row in texts(page, "#table-results tbody tr > th"))
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    page.click("#table-results .tabletools button:nth-child(2)")
    assert r"\& \$x\_1\$" in page.downloaded("results.tex").decode()
    assert "</script><!--" not in embedded_json({"x": "</script><!--"})


def test_hostile_participants_are_refused_not_drawn(page: Browser, troubled: Path) -> None:
    """A file with links to clients that do not exist is as good as missing: the network is that of the settings."""
    for content in ('{"network": {"clients": 2, "links": [[0, 9, 1]]}}', "[]", "{", '{"network": 3}'):
        (troubled / "good" / "participants.json").write_text(content)
        page.open(dp.write_report(troubled / "good"))
        assert "who holds what is not recorded" in text(page, "#about")
        assert page.evaluate("document.querySelectorAll('.network line').length") == 4


def test_long_histories_are_thinned_and_keep_their_spikes(page: Browser, troubled: Path, tmp_path: Path) -> None:
    """100,000 evaluations become a few hundred, among them the one evaluation in which the loss was 50."""
    frame = pd.DataFrame({"seed": 0, "iteration": range(100_000), "train_loss": 1.0, "phases": range(100_000)})
    frame.loc[61_803, "train_loss"] = 50.0
    (tmp_path / "long").mkdir()
    frame.to_csv(tmp_path / "long" / "history.csv", index=False)
    path = dp.write_report(tmp_path / "long")
    page.open(path)
    history = data_of(path)["views"][0]["runs"][0]["history"]
    assert len(history["iteration"]) <= 600
    assert 61_803 in history["iteration"]
    assert history["iteration"][-1] == 99_999
    assert max(history["series"]["train_loss"]["y"][0]) == 50
    assert "of up to 100000 evaluations" in text(page, "#curves")


# A language model, and an experiment


def test_report_of_a_language_model(page: Browser, tmp_path: Path) -> None:
    """A LoRA run: perplexities are curves and a column, categories are the classes of the data."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tests.support import language_models

    base = language_models.make_base(tmp_path / "base")
    lines = language_models.write_lines(tmp_path / "lines.jsonl", language_models.records(36))
    config = language_models.write_config(tmp_path / "c.toml", base, {"file": str(lines)})
    assert cli("run", config, "--out", tmp_path / "lora", "--report").code == 0
    path = tmp_path / "lora" / "report.html"
    print(f"report of a LoRA run: {path.stat().st_size} bytes")
    page.open(path)
    panels = page.evaluate("[...document.querySelectorAll('#curves figure')].map((e) => e.dataset.measure)")
    assert "perplexity:overall" in panels
    last = pd.read_csv(tmp_path / "lora" / "perplexity.csv")["overall"].iloc[-1]
    heads = texts(page, "#table-results thead th")
    assert float(texts(page, "#table-results tbody tr > *")[heads.index("perplexity")]) == pytest.approx(last, abs=1e-4)
    assert set(language_models.KINDS) <= set(texts(page, "#table-data thead th"))
    page.evaluate("document.querySelector('[data-measure=\"perplexity:spelling\"]').click()")
    assert "perplexity:spelling" in page.evaluate(
        "[...document.querySelectorAll('#curves figure')].map((e) => e.dataset.measure)"
    )


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's stepsize experiment as a quick run."""
    folder = tmp_path_factory.mktemp("experiment")
    done = cli("reproduce", "stepsize", "--quick", "--out", folder / "out", "--cache", folder / "cache", "--report")
    assert done.code == 0, done.err
    return folder / "out"


def test_report_of_an_experiment(page: Browser, experiment: Path) -> None:
    """Verdicts are those of summary.json; all cells have curves; axes of the sweep choose among them."""
    path = experiment / "report.html"
    print(f"report of `reproduce stepsize --quick`: {path.stat().st_size} bytes")
    page.open(path)
    summary = json.loads((experiment / "summary.json").read_text())
    shown = texts(page, "#table-claims tbody tr > td:nth-child(2)")
    assert {verdict: shown.count(verdict) for verdict in shown} == summary["claims"]
    assert "says nothing about the claims" in text(page, "#summary")
    assert drawn(page) == set(summary["cells"])
    page.choose('[data-state="axis.momentum"]', "Polyak")
    assert drawn(page) == {name for name in summary["cells"] if name.startswith("Polyak")}
    assert "axis.momentum=Polyak" in page.evaluate("location.hash")
    assert "ranked" not in text(page, "#summary")


def test_numbers_of_the_paper_stand_beside_ours(page: Browser, tmp_path: Path) -> None:
    """The table of results/ID has the paper's 1.00 ± 0.10 in brackets; a claim that fails is labelled so."""
    table = small()
    table["claim"].append({**table["claim"][0], "text": "Larger is | higher."})
    table["claim"][1]["check"] = {"ordered": {**table["claim"][0]["check"]["ordered"], "direction": "increasing"}}
    path = write_experiment(tmp_path / "mine.toml", table)
    assert cli("reproduce", path, "--out", tmp_path / "out", "--cache", tmp_path / "cache", "--report").code == 0
    page.open(tmp_path / "out" / "report.html")
    assert "(1.00 ± 0.10" in text(page, "#table-paper-1")
    assert texts(page, "#table-claims tbody tr > td:nth-child(2)") == ["holds", "does not hold"]
    assert texts(page, "#table-claims tbody tr > th")[1] == "Larger is | higher."
    # As a release wrote it that did not name the test.
    (tmp_path / "out" / "claims.md").write_text(
        "| claim | verdict | numbers |\n|---|---|---|\n| Old. | holds | 1 < 2 |\n"
    )
    page.open(dp.write_report(tmp_path / "out"))
    assert texts(page, "#table-claims tbody tr > *") == ["Old.", "holds", "1 < 2"]


@pytest.mark.parametrize(
    "name", ["accuracy", "clients", "llm", "momentum", "period", "sparsity", "stepsize", "topology"]
)
def test_committed_results_have_a_page(page: Browser, tmp_path: Path, name: str) -> None:
    """Results of earlier releases, with diverged cells and without wall times: claims as in claims.md."""
    folder = Path(__file__).parent.parent.parent / "results" / name
    path = dp.write_report(folder, out=tmp_path / "page.html")
    page.open(path)
    claims = (folder / "claims.md").read_text(encoding="utf-8")
    rows = [line for line in claims.splitlines() if line.startswith("| ")][1:]
    assert len(texts(page, "#table-claims tbody tr")) == len(rows)
    assert texts(page, "#table-claims .verdict").count("does not hold") == claims.count("**does not hold**")
    assert page.evaluate("document.querySelectorAll('#curves figure svg').length") > 0


def test_several_folders_are_views_of_one_page(
    page: Browser, comparison: Path, experiment: Path, tmp_path: Path
) -> None:
    page.open(dp.write_report(comparison, experiment, out=tmp_path / "both.html"), "view=1")
    assert "Effect of the stepsize" in text(page, "h1")
    page.choose('[data-state="view"]', "0")
    page.wait(lambda: text(page, "h1") == "six")
    assert drawn(page) == set(METHODS)


def test_libraries_are_the_published_files() -> None:
    """The vendored files have the digests in the README beside them, and each file is below 1 MiB."""
    readme = (PAGE_ASSETS / "README.md").read_text(encoding="utf-8")
    for name in LIBRARIES:
        content = (PAGE_ASSETS / name).read_bytes()
        assert f"{hashlib.sha256(content).hexdigest()}  {name}" in readme
        assert f"{len(content):,}" in readme
        assert len(content) < 1 << 20
