"""The paper's table of language models: all seven methods, in quick mode, on a model and instructions made here."""

from pathlib import Path

import pandas as pd
import pytest

from depositum.errors import ConfigError
from depositum.experiments import Options
from depositum.experiments.perform import plan
from tests.small_experiments import perform, read_experiment, small
from tests.small_runs import cli

CATEGORIES = ("brainstorming", "classification", "closed_qa", "creative_writing", "general_qa",
              "information_extraction", "open_qa", "summarization")  # fmt: skip


def test_all_methods_in_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuned, trained on two splits, and shown together: perplexities before and after, overall and by category."""
    pytest.importorskip("peft")
    from tests.language_models import make_base, records, write_lines

    lines = [{**record, "category": CATEGORIES[i % 8]} for i, record in enumerate(records(160))]
    file = write_lines(tmp_path / "own.jsonl", lines)
    base = make_base(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    said = cli(
        "reproduce", "llm", "--quick",
        "--set", f"problem.dataset={{instructions={{file='{file}', max_length=96}}}}",
        "--set", f"problem.model.lora.base='{base}'",
    )  # fmt: skip
    assert said.code == 0, said.err
    results = tmp_path / "results" / "quick" / "llm"
    frame = pd.read_csv(results / "runs.csv")
    assert set(frame["method"]) == {
        "DEPOSITUM-Polyak", "DEPOSITUM-Nesterov", "DEEPSTORM", "Prox-DASA-GT", "GUT", "D-PSGD", "DSGT",
    }  # fmt: skip
    assert set(frame["split"]) == {1, 2}
    wanted = [f"perplexity:{name}" for name in ("overall", *CATEGORIES)]
    assert (frame[wanted] > 1).all().all()
    # All start from the base.
    start = frame[frame["iteration"] == 0]
    assert (start.groupby("split")["perplexity:overall"].nunique() == 1).all()
    rows = [line.split("|") for line in (results / "table.md").read_text().splitlines() if line.startswith("| D")]
    assert len(rows) == 5 + 1 + 5
    assert all(row[-2].strip() == "2" for row in rows)
    assert "not run" not in (results / "claims.md").read_text()


def test_pooled_cells_are_told_apart_by_their_seeds(tmp_path: Path) -> None:
    """Two values of a pooled axis with the same seed would count one run twice."""
    table = small()
    table["sweep"][0]["pooled"] = True
    table["figure"]["series"], table["table"], table["claim"] = ["alpha"], [], []
    with pytest.raises(ConfigError, match="seed 0 is of two values of 'period', which are pooled"):
        plan(read_experiment(table), Options())
    for place, value in enumerate(table["sweep"][0]["values"]):
        value["set"]["run.seeds"] = [2 * place, 2 * place + 1]
    table["table"] = [{"title": "Loss", "rows": ["alpha"], "measures": ["train_loss"]}]
    results = perform(table, tmp_path)[0].pooled(["period"])
    assert [cell.labels for cell in results] == [{"alpha": "small"}, {"alpha": "large"}]
    assert all(len(cell.values("train_loss")) == 4 for cell in results)
