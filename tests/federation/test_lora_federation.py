"""The example of three organisations that fine-tune one adapter, with a tiny language model in place of the real."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
import tomllib

import torch
from safetensors.torch import load_file

from tests.support.federations import enrolled, free_ports
from tests.support.language_models import make_base
from tests.support.mentions import ROOT
from tests.support.small_runs import cli

EXAMPLE = ROOT / "examples" / "lora-federation"
MEMBERS = ("bank", "clinic", "school")


@pytest.mark.slow
def test_three_organisations_end_with_one_adapter(tmp_path: Path) -> None:
    """The adapter of every member is that of a simulation with all three files, and not the start."""
    base = make_base(tmp_path / "base")
    run = tomllib.loads((EXAMPLE / "run.toml").read_text())
    run["run"] |= {"steps": 10, "device": "cpu", "evaluate_every": 10}
    run["problem"]["model"]["lora"] |= {"rank": 2, "targets": ["q_proj", "v_proj"], "base": str(base)}
    ports = free_ports(3)
    folders = enrolled(tmp_path, {name: f"127.0.0.1:{port}" for name, port in zip(MEMBERS, ports, strict=True)}, run)
    for name in MEMBERS:  # a base that each member has elsewhere
        os.symlink(base, tmp_path / name / "base")
    command = [sys.executable, "-m", "depositum", "peer", "study"]
    processes = [
        subprocess.Popen(
            [*command, "--data", str(EXAMPLE / f"{name}.jsonl"), "--set", "problem.model.lora.base=base"],
            cwd=tmp_path / name,
        )
        for name in MEMBERS
    ]
    try:
        assert [process.wait(timeout=200) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    together = [load_file(folders[name] / "run" / "adapter" / "adapter_model.safetensors") for name in MEMBERS]
    for client, name in enumerate(MEMBERS):
        (tmp_path / f"{client}.jsonl").write_bytes((EXAMPLE / f"{name}.jsonl").read_bytes())
    import tomli_w

    run["problem"]["clients"] = 3
    (tmp_path / "run.toml").write_text(tomli_w.dumps(run))
    done = cli("run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "simulated"))
    assert done.code == 0, done.err
    expected = load_file(tmp_path / "simulated" / "adapter" / "adapter_model.safetensors")
    for own in together:
        assert own.keys() == expected.keys()
        for key, value in expected.items():
            assert torch.allclose(own[key], value, atol=1e-5)
    assert any(bool(value.abs().sum() > 0) for key, value in expected.items() if "lora_B" in key)
