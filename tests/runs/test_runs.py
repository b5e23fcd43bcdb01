"""The files that a run writes, and the order in which its callbacks are called."""

import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from depositum import models
from depositum.engines import Callback, Loop
from depositum.runs import build_problem, load, parse, resolve
from tests.support.small_runs import KillAt, Killed, outcome, train, write_config

# Files


def test_config_toml_is_complete_and_reproduces_the_run(tmp_path: Path) -> None:
    """It contains every default and is the same configuration; running it gives the same bytes."""
    config = tmp_path / "c.toml"
    config.write_text(
        '[problem]\ndataset = "digits"\n'
        "[run]\nsteps = 3\n"
        "[algorithm]\nalpha = { cosine = { start = 0.1, steps = 3 } }\n"
    )
    train(config, tmp_path / "first")
    written = tomllib.loads((tmp_path / "first" / "config.toml").read_text())
    assert written == {
        "problem": {
            "dataset": "digits",
            "model": {"linear": {"bias": True}},
            "clients": 10,
            "weighting": "uniform",
            "regularizer": "zero",
            "beta": 1e-5,
            "holdout": 0.0,
        },
        "network": {
            "topology": {"ring": {"hops": 1}},
            "mixing": "metropolis",
            "drop": 0.0,
            "lost": 0.0,
            "late": 0,
            "channel": "exact",
        },
        "algorithm": {
            "name": "depositum",
            "alpha": {"cosine": {"start": 0.1, "steps": 3, "end": 0.0}},
            "gamma": 0.5,
            "momentum": "polyak",
            "start": "average",
        },
        "run": {
            "steps": 3,
            "period": 1,
            "batch_size": 32,
            "sampling": "replacement",
            "seeds": [0],
            "device": "auto",
            "dtype": "float32",
            "precision": "auto",
            "backend": "auto",
            "compile": "auto",
            "evaluate_every": 10,
            "evaluate_from": 0,
            "checkpoint_every": 100,
        },
        "metrics": {"costly_every": 0},
        "processes": {"timeout": 30.0, "evaluate": "scalars"},
    }
    assert load(tmp_path / "first" / "config.toml").dump() == load(config).dump()
    train(tmp_path / "first" / "config.toml", tmp_path / "second")
    assert outcome(tmp_path / "second") == outcome(tmp_path / "first")
    assert (tmp_path / "second" / "config.toml").read_text() == (tmp_path / "first" / "config.toml").read_text()


def test_config_toml_has_the_default_arguments_of_choices_by_name(tmp_path: Path) -> None:
    """The short and the full form are the same run, so a later version that changes a default is noticed."""
    short = {
        "problem": {
            "dataset": {"synthetic": 80},
            "model": "mlp",
            "partition": {"dirichlet": 0.5},
            "regularizer": [{"mcp": 2.0, "on": "*weight"}, {"l1": {}, "on": "*bias"}],
        },
        "network": {"topology": "ring"},
        "algorithm": {"alpha": {"power": 0.3}},
    }
    full = {
        "problem": {
            "dataset": {"synthetic": {"samples": 80, "features": 20, "classes": 10, "separation": 4.0, "seed": 0}},
            "model": {"mlp": {"hidden": [128, 64]}},
            "partition": {"dirichlet": {"theta": 0.5}},
            "regularizer": [{"mcp": {"lam": 2.0, "theta": 5.0}, "on": "*weight"}, {"l1": {}, "on": "*bias"}],
        },
        "network": {"topology": {"ring": {"hops": 1}}},
        "algorithm": {"alpha": {"power": {"start": 0.3, "power": 0.5, "offset": 1.0}}},
    }
    written = tomllib.loads(resolve(parse(short)).dump())
    for section, keys in full.items():
        assert {key: written[section][key] for key in keys} == keys
    assert len({resolve(parse(table)).dump() for table in (full, short, written)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "user_model:normalised"])
def test_averaged_model_gives_the_recorded_accuracy(tmp_path: Path, model: str) -> None:
    """The file of each seed loads strictly into the plain module and has the recorded accuracy and loss."""
    config = write_config(
        tmp_path / "c.toml", problem={"model": model}, run={"seeds": [2, 5], "dtype": "float64", "checkpoint_every": 50}
    )
    result, _ = train(config, tmp_path / "run")
    problem = build_problem([load(config)])
    test = problem.test
    assert test is not None
    names = {2: "model.safetensors", 5: "model.seed-5.safetensors"}
    assert {p.name for p in (tmp_path / "run").glob("model*")} == set(names.values())
    for seed, name in names.items():
        plain = models.build(model, (4,), 3, seed=9, base=tmp_path).double().eval()
        plain.load_state_dict(load_file(tmp_path / "run" / name), strict=True)
        with torch.no_grad():
            outputs = plain(test.inputs.double())
        accuracy = (outputs.argmax(1) == test.targets).double().mean()
        loss = torch.nn.functional.cross_entropy(outputs, test.targets)
        last = result.history.last(seed)
        assert last is not None
        assert last["iteration"] == 20
        assert float(accuracy) == pytest.approx(last["test_accuracy"], abs=1e-12)
        assert float(loss) == pytest.approx(last["test_loss"], rel=1e-9)


def test_a_run_with_its_last_checkpoint_has_its_models(tmp_path: Path) -> None:
    """A run that is killed after its last checkpoint is finished and not run again, so nothing may be missing."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    with pytest.raises(Killed):
        train(config, tmp_path / "killed", KillAt(20, "on_checkpoint"))
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "uninterrupted")


def test_all_files_have_the_same_permissions(tmp_path: Path) -> None:
    """Users who can read the history can read the tensors too."""
    config = write_config(tmp_path / "c.toml", run={"steps": 1})
    train(config, tmp_path / "run")
    assert len({path.stat().st_mode for path in (tmp_path / "run").iterdir()}) == 1


@pytest.mark.slow
def test_frozen_parameters_do_not_depend_on_the_seeds(tmp_path: Path) -> None:
    """All seeds share random frozen parameters, so seed 1 alone must have those of seeds 1 and 0 in one run."""
    config = write_config(tmp_path / "c.toml", problem={"model": "frozen:features"}, run={"dtype": "float64"})
    (tmp_path / "frozen.py").write_text(
        "from torch import nn\n"
        "def features(shape, classes):\n"
        "    model = nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, classes))\n"
        "    model[0].requires_grad_(False)\n"
        "    return model\n"
    )
    both, _ = train(config, tmp_path / "both", overrides=("run.seeds=[1, 0]",))
    alone, _ = train(config, tmp_path / "alone", overrides=("run.seeds=[1]",))
    torch.testing.assert_close(both.snapshot.rows_of([1])["x"], alone.snapshot.tensors["x"], rtol=1e-12, atol=1e-14)


def test_stationarity_is_left_out_where_the_schedule_is_zero(tmp_path: Path) -> None:
    """G^α is not defined for α = 0; such an iteration does not count in the running mean."""
    config = write_config(tmp_path / "c.toml", algorithm={"alpha": {"cosine": {"start": 0.2, "steps": 20}}})
    result, _ = train(config, tmp_path / "run")
    frame = result.history.frame
    measured = frame[frame["gradient_error"].notna()]
    assert measured["iteration"].tolist() == [0, 8, 16, 20]
    assert measured["stationarity"].notna().tolist() == [True, True, True, False]
    assert "nan" not in (tmp_path / "run" / "history.csv").read_text()
    assert frame["stationarity"].dropna().mean() == pytest.approx(frame["stationarity_mean"].dropna().iloc[-1])


# Callbacks


def test_callbacks_are_called_in_order(tmp_path: Path) -> None:
    moments: list[tuple[str, int]] = []

    class Recorder(Callback):
        def on_start(self, loop: Loop) -> None:
            moments.append(("start", loop.t))

        def on_step(self, loop: Loop) -> None:
            moments.append(("step", loop.t))

        def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
            assert [r["iteration"] for r in records] == [loop.t] * 2
            assert [r["seed"] for r in records] == [0, 1]
            moments.append(("evaluation", loop.t))

        def on_trace(self, loop: Loop, errors: list[tuple[int, int, float]]) -> None:
            moments.extend(("trace", t) for seed, t, _ in errors if seed == 0)

        def on_checkpoint(self, loop: Loop) -> None:
            assert loop.snapshot.t == loop.t
            moments.append(("checkpoint", loop.t))

        def on_end(self, loop: Loop) -> None:
            moments.append(("end", loop.t))

    changes = {"steps": 4, "evaluate_every": 2, "checkpoint_every": 3, "seeds": [0, 1]}
    train(write_config(tmp_path / "c.toml", run=changes), tmp_path / "run", Recorder())
    assert moments == [
        ("start", 0),
        ("evaluation", 0),
        ("step", 1),
        ("step", 2),
        ("trace", 1),
        ("trace", 2),
        ("evaluation", 2),
        ("step", 3),
        ("trace", 3),
        ("checkpoint", 3),
        ("step", 4),
        ("trace", 4),
        ("evaluation", 4),
        ("checkpoint", 4),
        ("end", 4),
    ]


def test_on_end_is_called_even_if_a_callback_fails(tmp_path: Path) -> None:
    """A progress bar must restore the terminal, and a tracker must write its last lines."""
    ended: list[int] = []

    class EndRecorder(Callback):
        def on_end(self, loop: Loop) -> None:
            ended.append(loop.t)

    with pytest.raises(Killed):
        train(write_config(tmp_path / "c.toml"), tmp_path / "run", KillAt(3), EndRecorder())
    assert ended == [3]
