"""From a configuration to a problem: data loaded, partitioned, and an initial model per seed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depositum import data, models
from depositum.data import Dataset, Samples
from depositum.engines import Simulator
from depositum.errors import ConfigError, DataError
from depositum.layout import Layout
from depositum.problem import Problem, Trial, as_loss
from depositum.registry import Spec
from depositum.runs.config import Config


def build_problem(config: Config, base: Path | None = None) -> Problem:
    """The problem of a configuration, one trial per seed.

    Within a seed every method sees the same partition and the same initial model, whatever the algorithm.
    """
    dataset, section = load_data(config, base), config.problem

    def parts(seed: int) -> Sequence[NDArray[np.int64]]:
        chosen = seed if section.partition_seed is None else section.partition_seed
        return data.partition(section.partition, dataset, section.clients, chosen)

    return problem_of(config, dataset, parts, base)


def problem_of(
    config: Config, dataset: Dataset, parts: Callable[[int], Sequence[NDArray[np.int64]]], base: Path | None = None
) -> Problem:
    """The problem of a configuration with this data, of which each seed's clients have these parts."""
    section = config.problem
    train, test = _prepared(dataset, section.model)
    shape = tuple(train.inputs.shape[1:])
    outputs = dataset.classes or 1
    trials = []
    for seed in config.run.seeds:
        own = models.build(section.model, shape, outputs, seed, base)
        start = Layout.of(own).row({k: p.detach() for k, p in own.named_parameters()})
        trials.append(Trial(seed, start, parts(seed)))
    # What is not trained (frozen parameters, first buffers) is shared by all seeds, so it must not depend on them.
    model = models.build(section.model, shape, outputs, 0, base)
    loss = section.loss or ("cross-entropy" if dataset.classes else "mse")
    return Problem(
        model=model,
        loss=as_loss(loss),
        train=train,
        trials=tuple(trials),
        test=test,
        regularizer=config.make_regularizer(),
        beta=section.beta,
        weighting=section.weighting,
    )


def load_data(config: Config, base: Path | None = None) -> Dataset:
    """The dataset of a configuration."""
    try:
        return data.load(config.problem.dataset, base, config.problem.clients)
    except DataError as error:
        raise DataError(f"problem.dataset: {error}") from None


def build_simulator(config: Config, base: Path | None = None, backend: str = "auto") -> Simulator:
    """The simulator of a configuration, ready to start.

    `backend` is the one that an earlier sitting found fastest, which a run that leaves it open keeps.
    """
    network = config.make_network(base)
    settings = config.engine_settings()
    if settings.backend == "auto" and settings.resolve_device().type == "cpu":
        settings = replace(settings, backend=backend)  # type: ignore[arg-type]
    return Simulator(
        build_problem(config, base),
        network,
        config.make_algorithm(),
        period=config.run.period,
        batch_size=config.run.batch_size,
        settings=settings,
    )


def _prepared(dataset: Dataset, model: Spec) -> tuple[Samples, Samples | None]:
    """The samples as the model takes them (the CNN's images are resized once, here)."""

    def prepare(samples: Samples) -> Samples:
        return Samples(models.prepare(model, samples.inputs), samples.targets)

    if not len(dataset.train.targets):
        raise ConfigError("problem.dataset", "has no training samples")
    return prepare(dataset.train), prepare(dataset.test) if dataset.test is not None else None
