"""Seeds with their own splits in one run, compared with one run per split."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
import torch
from safetensors.torch import load_file

from tests.support.language_models import make_base, records, write_config, write_lines
from tests.support.rank_processes import launch
from tests.support.rank_runs import run
from tests.support.small_runs import LimitedMemory, cli, train

CATEGORIES = ("adding", "naming", "spelling")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = [{**record, "category": CATEGORIES[i % 3]} for i, record in enumerate(records(60))]
    return write_lines(tmp_path_factory.mktemp("lines") / "all.jsonl", given)


def rows(folder: Path, name: str, seed: int) -> list[dict[str, float]]:
    with (folder / name).open(newline="") as file:
        table = [row for row in csv.DictReader(file) if row["seed"] == str(seed)]
    return [{k: float(v) for k, v in row.items() if v and k != "seconds"} for row in table]


@pytest.mark.slow
def test_seeds_with_their_own_splits_equal_one_run_per_split(base: Path, lines: Path, tmp_path: Path) -> None:
    """Measures, perplexities and adapters are those of a run of the seed with `split_seed` set to it.

    Fails if a seed is trained or evaluated on another's samples.
    """
    together = write_config(tmp_path / "c.toml", base, {"file": str(lines), "split_seed": "run"}, run={"seeds": [0, 5]})
    train(together, tmp_path / "out")
    for seed in (0, 5):
        alone = write_config(
            tmp_path / f"{seed}.toml", base, {"file": str(lines), "split_seed": seed}, run={"seeds": [seed]}
        )
        train(alone, tmp_path / f"alone-{seed}")
        for name in ("history.csv", "perplexity.csv"):
            ours, theirs = rows(tmp_path / "out", name, seed), rows(tmp_path / f"alone-{seed}", name, seed)
            assert len(ours) == len(theirs) > 1
            for one, other in zip(ours, theirs, strict=True):
                assert one == pytest.approx(other, rel=1e-4, abs=1e-9)
        adapter = "adapter" if seed == 0 else "adapter.seed-5"
        ours, theirs = (
            load_file(folder / "adapter_model.safetensors")
            for folder in (tmp_path / "out" / adapter, tmp_path / f"alone-{seed}" / "adapter")
        )
        assert all(torch.allclose(ours[key], theirs[key], atol=1e-5) for key in theirs)
    first, other = (rows(tmp_path / "out", "perplexity.csv", seed)[0]["overall"] for seed in (0, 5))
    assert abs(first - other) > 1e-4


@pytest.mark.slow
def test_adapters_of_seeds_that_do_not_fit_together(base: Path, lines: Path, tmp_path: Path) -> None:
    """Run in halves, every seed has its adapter and its perplexities, as at once."""
    path = write_config(tmp_path / "c.toml", base, {"file": str(lines), "split_seed": "run"}, run={"seeds": [0, 5, 2]})
    train(path, tmp_path / "whole")
    train(path, tmp_path / "halves", LimitedMemory(1))
    ours, theirs = ({p.relative_to(tmp_path / how) for p in (tmp_path / how).rglob("*")} for how in ("halves", "whole"))
    assert ours - {Path("state.previous.safetensors")} == theirs - {Path("state.previous.safetensors")}
    for seed in (0, 5, 2):
        for one, other in zip(
            *(rows(tmp_path / how, "perplexity.csv", seed) for how in ("halves", "whole")), strict=True
        ):
            assert one == pytest.approx(other, rel=1e-4)
    for name in ("adapter", "adapter.seed-5", "adapter.seed-2"):
        ones, others = (load_file(tmp_path / how / name / "adapter_model.safetensors") for how in ("halves", "whole"))
        assert all(torch.allclose(ones[key], others[key], atol=1e-5) for key in others)
        cards = [
            (tmp_path / how / name / "README.md").read_text().split("## Settings")[1] for how in ("halves", "whole")
        ]
        assert cards[0] == cards[1]


@pytest.mark.slow
def test_splits_of_seeds_in_processes(base: Path, lines: Path, tmp_path: Path) -> None:
    """Processes evaluate shares of a seed's test data, which add up to the simulator's measures."""
    path = write_config(tmp_path / "c.toml", base, {"file": str(lines), "split_seed": "run"}, run={"seeds": [3]})
    train(path, tmp_path / "simulated")
    results = launch(run, 3, str(path), "--out", str(tmp_path / "together"))
    assert [one.code for one in results] == [0, 0, 0], results
    for name in ("history.csv", "perplexity.csv"):
        ours, theirs = (rows(tmp_path / how, name, 3) for how in ("together", "simulated"))
        for one, other in zip(ours, theirs, strict=True):
            common = one.keys() & other.keys() - {"bytes_sent"}
            assert {k: one[k] for k in common} == pytest.approx({k: other[k] for k in common}, rel=1e-4, abs=1e-7)


def test_show_counts_the_samples_of_the_first_seed(base: Path, lines: Path, tmp_path: Path) -> None:
    path = write_config(tmp_path / "c.toml", base, {"file": str(lines), "split_seed": "run"}, run={"seeds": [3]})
    results = cli("show", str(path), "--out", str(tmp_path / "show.png"))
    assert "samples per client: 16 to 16, 48 in all" in results.out
