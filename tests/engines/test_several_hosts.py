"""Several hosts: torchrun on each, over links that are slow and lose packets."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.hosts import Hosts, NoNamespaces
from tests.support.small_runs import train, write_config

pytestmark = pytest.mark.slow

PORT = 29400


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Hosts(4, tmp_path))
        except NoNamespaces as reason:
            pytest.skip(f"no network namespaces can be made here ({reason})")
        yield made


def test_four_hosts_have_the_simulators_trajectory(tmp_path: Path, hosts: Hosts) -> None:
    """The state after all iterations, in float64, to 1e-10; a row that a lost packet changed would break it."""
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
    said = [process.communicate(timeout=240)[0] for process in hosts.processes]
    assert [process.returncode for process in hosts.processes] == [0] * 4, said
    assert hosts.lost() > 0
    logs = [(tmp_path / "out" / "logs" / f"rank-{r}.log").read_text() for r in range(4)]
    assert {log.split("host ")[1].split(")")[0] for log in logs} == {f"host-{i}" for i in range(4)}
    found, expected = (load_file(tmp_path / which / "state.safetensors") for which in ("out", "simulated"))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.allclose(found[key], value, rtol=1e-10, atol=1e-13), key
