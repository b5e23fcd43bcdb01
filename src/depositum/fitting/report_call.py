"""`write_report`: one HTML page about runs, comparisons and reproduced experiments."""

import os
from collections.abc import Sequence
from pathlib import Path

from depositum.errors import RunError
from depositum.report.compared_runs import Table
from depositum.report.page_file import check_page_file, render_page, write_page
from depositum.report.run_folders import run_folders_in

PAGE = "report.html"


def write_report(
    *folders: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, force: bool = False
) -> Path:
    """Write a self-contained HTML page about folders, to be opened in any browser, and return its path.

    The page shows curves, the network, who holds what, per-client results, settings, and cost against quality; of an
    experiment's results also the claims and the paper's numbers. It loads nothing from a network.

    Parameters
    ----------
    folders
        Folders of runs, folders that contain those (as `depositum compare CONFIG.toml` makes them), and results of
        `depositum reproduce`. All runs are compared with each other; results have a view of their own.
    out
        The file. Default: `report.html` in the folder or, for several, in the working directory.
    force
        Whether to overwrite a file that is not a report.
    """
    given = [Path(folder) for folder in folders]
    if not given:
        raise RunError("no folder given; give the folder of a run, of a comparison, or of an experiment's results")
    path = page_path(given) if out is None else Path(out)
    check_page_file(path, force, "out")
    write_page(page_of(given), path)
    return path


def page_path(folders: Sequence[Path]) -> Path:
    """Where a page is written by default."""
    return folders[0] / PAGE if len(folders) == 1 else Path(PAGE)


def page_of(folders: Sequence[Path], title: str = "", reference: Table | None = None) -> str:
    """The page of some folders as HTML; `reference` is a configuration whose problem is in question."""
    # With matplotlib and pandas, which `depositum.fit` does not need.
    from depositum import __version__
    from depositum.experiments.results_view import is_results_folder, results_view
    from depositum.report.page_data import folders_view

    results = [folder for folder in folders if is_results_folder(folder)]
    runs: dict[Path, Path] = {}
    for folder in folders:
        if folder in results:
            continue
        found = run_folders_in(folder)
        if not found:
            raise RunError(f"{folder}: holds no run, no comparison and no results of an experiment")
        for each in found:
            if each.resolve() in runs:
                raise RunError(f"{each}: given twice; give the folder of each run once")
            runs[each.resolve()] = each
    plain = [folder for folder in folders if folder not in results]
    alone = len(plain) == 1
    title = title or (plain[0].resolve().name if alone else "")
    views = [folders_view(list(runs.values()), title, reference, of_a_comparison=alone)] if runs else []
    views += [results_view(folder) for folder in results]
    return render_page(views, __version__)
