"""Optional methods of a model, which user-defined models may define too."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from depositum.models import ExportableModel, frozen_digest, prepare_samples
from depositum.runs import build_problem, load
from tests.support.small_runs import train, write_config

MODULE = """
import json
from torch import nn

class Doubling(nn.Sequential):
    def prepare_samples(self, inputs, targets):
        return 2 * inputs, targets

    def frozen_digest(self):
        return "abc"

class Exported(nn.Sequential):
    export_folder = "exported"
    exports_clients = True

    def export(self, folder, row, *, iterations, perplexities, settings):
        record = {"iterations": iterations, "perplexities": perplexities, "settings": settings, "row": row.tolist()}
        (folder / "average.json").write_text(json.dumps(record))

    def export_client(self, folder, row):
        (folder / "client.json").write_text(json.dumps(row.tolist()))

def doubling(shape, classes):
    return Doubling(nn.Linear(shape[0], classes))

def exported(shape, classes):
    return Exported(nn.Linear(shape[0], classes))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hooked.py").write_text(MODULE)
    return tmp_path


def test_a_model_without_hooks_changes_nothing() -> None:
    model, inputs, targets = nn.Linear(2, 2), torch.rand(3, 2), torch.zeros(3)
    prepared = prepare_samples(model, inputs, targets)
    assert prepared[0] is inputs
    assert prepared[1] is targets
    assert frozen_digest(model) == ""
    assert not isinstance(model, ExportableModel)


def test_prepare_samples_is_applied_to_training_and_test_data(folder: Path) -> None:
    """Fails if a part is not prepared, or is prepared twice."""
    plain = build_problem([load(write_config(folder / "a.toml", problem={"model": "linear"}))])
    doubled = build_problem([load(write_config(folder / "b.toml", problem={"model": "hooked:doubling"}))])
    assert torch.equal(doubled.train.inputs, 2 * plain.train.inputs)
    assert torch.equal(doubled.test.inputs, 2 * plain.test.inputs)
    assert torch.equal(doubled.train.targets, plain.train.targets)
    assert frozen_digest(doubled.model) == "abc"


def test_an_exportable_model_is_exported_instead_of_saved(folder: Path) -> None:
    """Every seed has a folder with the average and each client's model; there is no state dictionary."""
    config = write_config(folder / "c.toml", problem={"model": "hooked:exported"}, run={"seeds": [0, 3]})
    result, _ = train(config, folder / "out")
    assert not list((folder / "out").glob("model*"))
    rows = result.snapshot.tensors["x"].view(2, 4, -1)
    for name, x in zip(("exported", "exported.seed-3"), rows, strict=True):
        record = json.loads((folder / "out" / name / "average.json").read_text())
        assert record["iterations"] == 20
        assert record["perplexities"] == {}
        assert record["settings"] == (folder / "out" / "config.toml").read_text()
        assert torch.allclose(torch.tensor(record["row"]), x.mean(0), atol=1e-6)
        for client, row in enumerate(x):
            written = json.loads((folder / "out" / name / "clients" / str(client) / "client.json").read_text())
            assert torch.equal(torch.tensor(written), row)
    assert not list((folder / "out").rglob("*.part"))
