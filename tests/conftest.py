"""Shared by all tests: one thread per process (tests run in parallel), and the real datasets where they are."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    # Processes that tests start are counted too.
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def real_data() -> Path:
    """The folder of the real datasets; a test that needs it is skipped, saying so, where it is not set."""
    folder = os.environ.get("DEPOSITUM_DATA")
    if not folder:
        pytest.skip("DEPOSITUM_DATA is not set: the real datasets are not here")
    return Path(folder)
