"""Shared by all tests: one thread per process (tests run in parallel), the real datasets, and small language models."""

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


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A language model of each architecture, by its name."""
    from tests.support.language_models import ADAPTED, make_base

    folder = tmp_path_factory.mktemp("bases")
    return {name: make_base(folder / name, name) for name in ADAPTED}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty instructions of three kinds, in a file."""
    from tests.support.language_models import records, write_lines

    return write_lines(tmp_path_factory.mktemp("lines") / "mine.jsonl", records(40))
