"""What a new user does first: from a clone to a CSV file trained, tuned and compared, with the time of each command.

    python benchmarks/new_user.py > docs/first-steps.md                 (installs everything; minutes)
    python benchmarks/new_user.py --venv .venv > docs/first-steps.md    (uses an installed environment)

The checkout is cloned into a temporary folder, and every command is run there, as it is printed. It ends with an error
if a command does.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Columns of the terminal, and lines of output that are shown of each command.
WIDTH, LINES = 90, 45

INTRODUCTION = """\
# First steps: from a clone to your own CSV file

The session of a new user, as `python benchmarks/new_user.py` recorded it{where}: every command, what it printed,
and how long it took. [The command line](cli.md), [Data](data.md) and [Tuning](tuning.md) explain the commands.
"""

MAKE_CSV = """\
import pandas as pd
from sklearn.datasets import load_breast_cancer

table = load_breast_cancer(as_frame=True).frame
features = table.columns[:-1]
table[features] = (table[features] - table[features].mean()) / table[features].std()
# Three hospitals whose patients differ: by the size of the tumour.
table["hospital"] = pd.qcut(table["mean radius"], 3, labels=["Basel", "Bern", "Zug"])
table["target"] = table["target"].map({0: "malignant", 1: "benign"})
table.to_csv("patients.csv", index=False)
print(table.groupby("hospital", observed=True)["target"].value_counts())
"""

CONFIG = """\
[problem]
dataset = { table = { path = "patients.csv", by = "hospital", target = "target", test = 0.2 } }
model = { mlp = { hidden = [16] } }
clients = 3
regularizer = "l1"
beta = 1e-3

[network]
topology = "complete"

[run]
steps = 300
period = 5
seeds = [0, 1, 2]

[override.smooth.problem]           # methods without a prox step: without the regularizer
beta = 0.0
"""

USE_MODEL = """\
import depositum as dp

result = dp.load("runs/auto")
print(result.model)
print(result.history.groupby("iteration").test_accuracy.mean().iloc[[0, -1]])
"""

METHODS = "depositum,prox-dasa,deepstorm,fedmid,d-psgd,fedavg"


class Session:
    """Runs commands in a folder, and writes what they print as Markdown."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.total = 0.0

    def say(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def file(self, name: str, content: str, language: str) -> None:
        """Write a file, and show it."""
        (self.folder / name).write_text(content, encoding="utf-8")
        print(f"\n`{name}`:\n\n```{language}\n{content}```", flush=True)

    def run(self, command: str) -> None:
        """Run one command, and show it with its output and time."""
        began = time.perf_counter()
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        self.total += seconds
        lines = done.stdout.replace(str(self.folder), "~").rstrip().splitlines()
        if len(lines) > LINES:
            lines = [*lines[: LINES // 3], f"… ({len(lines) - LINES} more lines)", *lines[LINES // 3 - LINES :]]
        output = "\n".join(line.rstrip() for line in lines)
        print(f"\n```console\n$ {command}\n{output}\n```\n\n*{seconds:.1f} s*", flush=True)
        if done.returncode:
            sys.exit(f"{command} ended with {done.returncode}")


def record(checkout: str, folder: Path, venv: Path | None) -> None:
    """Run the session, and print it."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONWARNINGS": "ignore", "GIT_ADVICE": "0"}
    executables = folder / "depositum" / ".venv" / "bin" if venv is None else venv.resolve() / "bin"
    environment["PATH"] = f"{executables}{os.pathsep}{environment['PATH']}"
    if venv is not None:
        environment["PYTHONPATH"] = str(folder / "depositum" / "src")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(INTRODUCTION.format(where=f" on {cores} cores"), end="")
    session = Session(folder, environment)
    print("\n## Install")
    # The address is that of this checkout; a user has that of a server.
    subprocess.run(["git", "clone", "--quiet", checkout, str(folder / "source.git"), "--bare"], check=True)
    session.run("git clone --quiet source.git depositum")
    if venv is None:
        session.run("make -C depositum .venv/.ready && export PATH=$PWD/depositum/.venv/bin:$PATH")
    else:
        session.say("`make -C depositum .venv/.ready` installs everything; here an environment was there already.")
    session.run("depositum --version")
    print("\n## A CSV file")
    session.say(
        "Yours; here, one that comes with scikit-learn is divided among three hospitals. Inputs are standardised."
    )
    session.file("make_csv.py", MAKE_CSV, "python")
    session.run("python make_csv.py && head -c 200 patients.csv")
    session.file("patients.toml", CONFIG, "toml")
    session.run("depositum show patients.toml")
    print("\n## Train")
    session.say("With the default stepsize, α = 0.05:")
    session.run("depositum run patients.toml --out runs/default")
    print("\n## Tune")
    session.say("Which stepsizes to try:")
    session.run("depositum theory patients.toml | tail -n 4")
    session.run("depositum tune patients.toml")
    session.say('The same choice before a run, with `alpha = "auto"`; it is stored in the run\'s folder.')
    session.run("depositum run patients.toml --set algorithm.alpha=auto --out runs/auto")
    print("\n## Compare")
    session.run("depositum compare runs/default runs/auto")
    session.say("Six methods, each with its own best stepsize:")
    session.run(f"depositum compare patients.toml --methods {METHODS} --tune --out runs/methods")
    print("\n## Use")
    session.file("use.py", USE_MODEL, "python")
    session.run("python use.py")
    session.say(f"All commands: {session.total / 60:.1f} minutes.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, help="an environment with depositum's dependencies, which is then reused")
    parser.add_argument("--checkout", default=str(ROOT), help="what to clone (default: this checkout)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record(given.checkout, Path(folder).resolve(), given.venv)


if __name__ == "__main__":
    main()
