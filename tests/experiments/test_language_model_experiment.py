"""The paper's table of language models: all seven methods, in quick mode, on a tiny model and made-up texts."""

from pathlib import Path

import pandas as pd
import pytest

from depositum import experiments
from depositum.experiments import SweepOptions
from tests.support.small_runs import cli

pytestmark = pytest.mark.slow

CATEGORIES = ("brainstorming", "classification", "closed_qa", "creative_writing", "general_qa",
              "information_extraction", "open_qa", "summarization")  # fmt: skip


def test_all_methods_in_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are tuned and trained on two splits; perplexities before and after, overall and by category."""
    pytest.importorskip("peft")
    from tests.support.language_models import make_base, records, write_lines

    lines = [{**record, "category": CATEGORIES[i % 8]} for i, record in enumerate(records(160))]
    file = write_lines(tmp_path / "texts.jsonl", lines)
    base = make_base(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    result = cli(
        "reproduce", "llm", "--quick",
        "--set", f"problem.dataset={{instructions={{file='{file}', max_length=96, split_seed='run'}}}}",
        "--set", f"problem.model.lora.base='{base}'",
    )  # fmt: skip
    assert result.code == 0, result.err
    results = tmp_path / "results" / "quick" / "llm"
    frame = pd.read_csv(results / "runs.csv")
    assert set(frame["method"]) == {
        "DEPOSITUM-Polyak", "DEPOSITUM-Nesterov", "DEEPSTORM", "Prox-DASA-GT", "GUT", "D-PSGD", "DSGT",
    }  # fmt: skip
    assert set(frame["seed"]) == {0, 1}
    wanted = [f"perplexity:{name}" for name in ("overall", *CATEGORIES)]
    assert (frame[wanted] > 1).all().all()
    # All start from the base model, and each seed has its own test texts.
    start = frame[frame["iteration"] == 0].groupby("seed")["perplexity:overall"]
    assert (start.nunique() == 1).all()
    assert start.first().nunique() == 2
    rows = [line.split("|") for line in (results / "table.md").read_text().splitlines() if line.startswith("| D")]
    assert len(rows) == 5 + 4 + 1 + 5  # after training, gaps to the first, the base, the adapters
    assert all(row[-2].strip() == "2" for row in rows)
    assert "not run" not in (results / "claims.md").read_text()


def test_user_defined_texts_are_tuned_on_their_validation_part(tmp_path: Path) -> None:
    """Texts that replace Dolly are not tuned on their test part; their other arguments stay."""
    pytest.importorskip("peft")
    from tests.support.language_models import make_base, records, write_lines

    file, base = write_lines(tmp_path / "texts.jsonl", records(80)), make_base(tmp_path / "base")
    dataset = f"problem.dataset={{instructions={{file='{file}', max_length=96, split_seed='run'}}}}"
    options = SweepOptions(quick=True, overrides=(dataset, f"problem.model.lora.base='{base}'"))
    plan = experiments.make_plan(experiments.load_experiment("llm"), options, ())
    texts = {"file": str(file), "max_length": 96, "split_seed": "run"}
    configs = [cell.config for task in plan.tuning for point in task.points for cell in point.configs]
    assert len(configs) == 5 * 2 * 2 + 2 * 2
    assert all(config.problem.dataset == {"instructions": {**texts, "evaluate": "validation"}} for config in configs)
    assert all(cell.table["problem"]["dataset"] == {"instructions": texts} for cell in plan.cells)
