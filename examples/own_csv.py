"""Train on a CSV file with a column that names the client of each row.

    python examples/own_csv.py [FILE TARGET BY]

Without a file, a small one about patients of five hospitals is written to a temporary folder. Features must be numbers
or truth values; other columns are made categories here.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import depositum as dp


def write_example(folder: Path) -> Path:
    """Write a table of 600 patients, of which each hospital treats another age group."""
    rng = np.random.default_rng(0)
    hospital = rng.integers(0, 5, 600)
    age = rng.normal(30 + 8 * hospital, 5).round()
    smoker = rng.random(600) < 0.3
    risk = 0.08 * (age - 50) + 1.5 * smoker + rng.normal(0, 0.5, 600)
    table = pd.DataFrame({"age": age, "smoker": smoker, "blood": rng.choice(["0", "A", "B", "AB"], 600)})
    table = table.assign(hospital=[f"hospital {k}" for k in hospital], outcome=np.where(risk > 0, "ill", "well"))
    table.to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


def main(file: Path, target: str, by: str) -> dp.FitResult:
    """Train a small network on the table and print how well it predicts rows that were not trained on."""
    table = pd.read_csv(file)
    text = [c for c in table.columns if c not in (target, by) and table[c].dtype in (object, "str")]
    table = table.astype(dict.fromkeys(text, "category"))
    numbers = [c for c in table.columns if c not in (target, by) and pd.api.types.is_float_dtype(table[c])]
    table[numbers] = (table[numbers] - table[numbers].mean()) / table[numbers].std()  # nothing is scaled for you
    shuffled = table.sample(frac=1, random_state=0)
    test, train = shuffled[: len(table) // 5], shuffled[len(table) // 5 :]
    torch.manual_seed(0)
    classes = table[target].nunique()
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, classes))
    result = dp.fit(model, train, by=by, target=target, test=test, steps=300, evaluate_every=50, progress=False)
    print(result.history[["iteration", "train_loss", "test_loss", "test_accuracy"]].to_string(index=False))
    print("classes:", ", ".join(result.problem.class_names))
    return result


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]), *sys.argv[2:4])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(write_example(Path(scratch)), "outcome", "hospital")
