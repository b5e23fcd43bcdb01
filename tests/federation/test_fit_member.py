"""`dp.fit(…, federation=…)`: members with models of their own, as the same call in a simulation."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import depositum as dp
from depositum.errors import ConfigError, DepositumError
from tests.support.federations import RUN, enrolled, free_ports

#: What each member runs; the simulation runs the same model.
SCRIPT = """
import sys
import numpy as np, torch, depositum as dp

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
if __name__ == "__main__":
    folder, data, out = sys.argv[1:]
    own = np.load(data)
    result = dp.fit(model, (own["x"], own["y"]), federation=folder, progress=False)
    assert result.finished and result.folder.name == "run"
    row = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    np.savez(out, x=result.state["x"].numpy(), model=row.numpy(), loss=result.history["train_loss"])
"""


@pytest.mark.slow
def test_members_end_where_the_same_call_in_a_simulation_does(tmp_path: Path) -> None:
    """Every member has the averaged model of all, its own row, and the history of the sums."""
    (port,) = free_ports(1)
    run = {**RUN, "run": {**RUN["run"], "dtype": "float64"}}
    folders = enrolled(tmp_path, {"a": f"127.0.0.1:{port}", "b": None}, run)
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in folders]
    (tmp_path / "script.py").write_text(SCRIPT)
    processes = []
    for (name, folder), (x, y) in zip(folders.items(), clients, strict=True):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        arguments = [str(folder), str(tmp_path / f"{name}.npz"), str(tmp_path / f"{name}.out.npz")]
        processes.append(subprocess.Popen([sys.executable, str(tmp_path / "script.py"), *arguments]))
    try:
        assert [process.wait(timeout=200) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    names: dict[str, object] = {}
    exec(compile(SCRIPT, "script.py", "exec"), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    expected = dp.fit(
        model,
        clients,
        network="ring",
        regularizer="l1",
        beta=1e-3,
        algorithm={"depositum": {"alpha": 0.1, "gamma": 0.5}},
        **{key: value for key, value in run["run"].items() if key != "seeds"},
        progress=False,
    )
    row = torch.cat([p.detach().flatten() for p in expected.model.parameters()]).numpy()
    for client, name in enumerate(folders):
        found = np.load(tmp_path / f"{name}.out.npz")
        np.testing.assert_allclose(found["x"][0], expected.state["x"][client].numpy(), atol=1e-10)
        np.testing.assert_allclose(found["model"], row, atol=1e-6)
        np.testing.assert_allclose(found["loss"], expected.history["train_loss"], atol=1e-10)


def test_what_was_agreed_cannot_be_given(tmp_path: Path) -> None:
    """Not even where it is the same; and the data of one member is one client's."""
    folder = enrolled(tmp_path, {"a": "localhost:1", "b": None})["a"]
    model, pair = torch.nn.Linear(3, 2), (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    for settings in (
        {"steps": 12},
        {"network": "ring"},
        {"beta": 1e-3},
        {"seed": 1},
        {"out": "x"},
        {"dtype": "float64"},
    ):
        with pytest.raises(
            ConfigError, match=rf"^{next(iter(settings))}: .* beside federation, whose agreement decides"
        ):
            dp.fit(model, pair, federation=folder, **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"clients: the data of 2 clients given; a member has its own only"):
        dp.fit(model, [pair, pair], federation=folder, progress=False)
    with pytest.raises(DepositumError, match="is not a member's folder"):
        dp.fit(model, pair, federation=tmp_path)
    with pytest.raises(ConfigError, match="federation: 3 given; it must be the folder"):
        dp.fit(model, pair, federation=3)  # type: ignore[arg-type]
