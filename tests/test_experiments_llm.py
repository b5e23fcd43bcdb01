"""The paper's table of language models: all seven methods, in quick mode, on a model and instructions made here."""

from pathlib import Path

import pandas as pd
import pytest

from tests.small_runs import cli

CATEGORIES = ("brainstorming", "classification", "closed_qa", "creative_writing", "general_qa",
              "information_extraction", "open_qa", "summarization")  # fmt: skip


def test_all_methods_in_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuned, and trained on two splits: perplexities before and after, overall and by category."""
    pytest.importorskip("peft")
    from tests.language_models import make_base, records, write_lines

    lines = [{**record, "category": CATEGORIES[i % 8]} for i, record in enumerate(records(160))]
    file = write_lines(tmp_path / "own.jsonl", lines)
    base = make_base(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    said = cli(
        "reproduce", "llm", "--quick",
        "--set", f"problem.dataset={{instructions={{file='{file}', max_length=96, split_seed='run'}}}}",
        "--set", f"problem.model.lora.base='{base}'",
    )  # fmt: skip
    assert said.code == 0, said.err
    results = tmp_path / "results" / "quick" / "llm"
    frame = pd.read_csv(results / "runs.csv")
    assert set(frame["method"]) == {
        "DEPOSITUM-Polyak", "DEPOSITUM-Nesterov", "DEEPSTORM", "Prox-DASA-GT", "GUT", "D-PSGD", "DSGT",
    }  # fmt: skip
    assert set(frame["seed"]) == {0, 1}
    wanted = [f"perplexity:{name}" for name in ("overall", *CATEGORIES)]
    assert (frame[wanted] > 1).all().all()
    # All start from the base, and each seed is tested on other texts.
    start = frame[frame["iteration"] == 0].groupby("seed")["perplexity:overall"]
    assert (start.nunique() == 1).all()
    assert start.first().nunique() == 2
    rows = [line.split("|") for line in (results / "table.md").read_text().splitlines() if line.startswith("| D")]
    assert len(rows) == 5 + 4 + 1 + 5  # after training, gaps to the first, the base, the adapters
    assert all(row[-2].strip() == "2" for row in rows)
    assert "not run" not in (results / "claims.md").read_text()
