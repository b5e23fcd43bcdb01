"""Samples on a device: problems that share their samples share the copies, as long as those are in use."""

import gc
from weakref import ref

import torch
from torch import nn

from depositum.problem import Oracle
from depositum.problem.streaming import samples_on_device
from tests.support.oracle_problems import make_problem

CPU = torch.device("cpu")


def test_oracles_of_the_same_data_share_one_copy() -> None:
    """Trials that run in groups would otherwise need the data in memory once per group."""
    problem = make_problem(nn.Linear(6, 3), seeds=(0, 1))
    first, second = (Oracle(problem.restricted_to([seed]), 2, dtype=torch.float32) for seed in (0, 1))
    assert problem.train.inputs.dtype == torch.float64
    assert first.inputs is second.inputs
    assert first.targets is second.targets is problem.train.targets
    assert Oracle(problem, 2, dtype=torch.float64).inputs is problem.train.inputs


def test_a_copy_is_not_shared_after_the_original_has_changed() -> None:
    samples = torch.arange(6.0, dtype=torch.float64)
    before = samples_on_device(samples, CPU, torch.float32)
    samples += 1
    after = samples_on_device(samples, CPU, torch.float32)
    assert after[:].tolist() == samples.tolist()
    assert before[:].tolist() == (samples - 1).tolist()


def test_a_copy_is_freed_when_nobody_uses_it() -> None:
    """The memory of the device is needed for the next group of trials."""
    samples = torch.arange(6.0, dtype=torch.float64)
    copy = samples_on_device(samples, CPU, torch.float32)
    alive = ref(copy)
    assert samples_on_device(samples, CPU, torch.float32) is copy
    del copy
    gc.collect()
    assert alive() is None
