"""Runs on several hosts: torchrun on each, over links that are slow and lose packets."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.hosts import Hosts, NamespacesUnavailable
from tests.support.small_runs import train, write_config

pytestmark = pytest.mark.slow

PORT = 29400


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            created = stack.enter_context(Hosts(4, tmp_path))
        except NamespacesUnavailable as reason:
            pytest.skip(f"network namespaces cannot be created here ({reason})")
        yield created


def test_four_hosts_have_the_simulators_trajectory(tmp_path: Path, hosts: Hosts) -> None:
    """The final state in float64, to 1e-10. Fails if a lost packet changes a row."""
    config = write_config(tmp_path / "c.toml", run={"dtype": "float64", "backend": "loop"}, processes={"timeout": 60.0})
    train(config, tmp_path / "simulated")
    for i in range(4):
        hosts.start(
            i,
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "4", "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.address(0)}:{PORT}"),
            *("--rdzv-conf", f"is_host={int(i == 0)}", "--local-addr", hosts.address(i)),
            *("-m", "depositum", "run", str(config), "--out", str(tmp_path / "out")),
            OMP_NUM_THREADS="1",
        )
    outputs = [process.communicate(timeout=240)[0] for process in hosts.processes]
    assert [process.returncode for process in hosts.processes] == [0] * 4, outputs
    assert hosts.packets_lost() > 0
    logs = [(tmp_path / "out" / "logs" / f"rank-{r}.log").read_text() for r in range(4)]
    assert {log.split("host ")[1].split(")")[0] for log in logs} == {f"host-{i}" for i in range(4)}
    found, expected = (load_file(tmp_path / which / "state.safetensors") for which in ("out", "simulated"))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-10, atol=1e-13), key
