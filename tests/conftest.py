"""Fixtures of all tests: one thread per process (tests run in parallel), real datasets, small language models."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


@pytest.fixture
def real_data() -> Path:
    """Folder of the real datasets; tests that need it are skipped where DEPOSITUM_DATA is not set."""
    folder = os.environ.get("DEPOSITUM_DATA")
    if not folder:
        pytest.skip("DEPOSITUM_DATA is not set: the real datasets are not available")
    return Path(folder)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of small language models, by architecture; tests must not change them."""
    from tests.support.language_models import ADAPTED, make_base

    folder = tmp_path_factory.mktemp("bases")
    return {name: make_base(folder / name, name) for name in ADAPTED}


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of forty instructions of three categories; tests must not change it."""
    from tests.support.language_models import records, write_lines

    return write_lines(tmp_path_factory.mktemp("lines") / "mine.jsonl", records(40))
