"""From a configuration to a problem: data loaded, partitioned, and an initial model per seed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from depositum import data, models
from depositum.data import Dataset, Indices, Samples, hold_out
from depositum.engines import Simulator
from depositum.errors import ConfigError, DataError
from depositum.layout import Layout
from depositum.problem import Problem, Trial, as_loss
from depositum.runs.config import Config
from depositum.runs.own_names import regularizers_of_ones_own
from depositum.runs.own_tried import try_method, try_regularizer

#: Each client's samples, given the seed, and those of the test data to evaluate on; None: all.
Parts = Callable[[int], tuple[Sequence[Indices], Indices | None]]


def build_problem(config: Config, base: Path | None = None) -> Problem:
    """The problem of a configuration, one trial per seed.

    Within a seed every method sees the same partition and the same initial model, whatever the algorithm.
    """
    dataset = load_data(config, base)
    return problem_of(config, dataset, partial(partition, config, dataset), base)


def build_side_by_side(configs: Sequence[Config], base: Path | None = None) -> Problem:
    """One problem of configurations that differ in β, partition, weighting and seeds alone: the trials of all.

    Trials are in the order of configurations and their seeds, and their labels are their places.
    """
    dataset = load_data(configs[0], base)
    first = problem_of(configs[0], dataset, partial(partition, configs[0], dataset), base)
    starts = {trial.seed: trial.start for trial in first.trials}
    trials: list[Trial] = []
    for config in configs:
        section = config.problem
        for seed in config.run.seeds:
            if seed not in starts:
                starts[seed] = _start(config, dataset, seed, base)
            own, tested = partition(config, dataset, seed)
            trials.append(Trial(seed, starts[seed], own, len(trials), section.beta, section.weighting, tested))
    # Of a first configuration with β = 0, the problem has forgotten h.
    return replace(first, trials=tuple(trials), regularizer=configs[0].make_regularizer())


def problem_of(config: Config, dataset: Dataset, parts: Parts, base: Path | None = None) -> Problem:
    """The problem of a configuration with this data, of which each seed's clients have these parts."""
    section = config.problem
    if not len(dataset.train):
        raise ConfigError("problem.dataset", "has no training samples")
    trials = []
    for seed in config.run.seeds:
        own, tested = parts(seed)
        trials.append(Trial(seed, _start(config, dataset, seed, base), own, test_indices=tested))
    # What is not trained (frozen parameters, initial buffers) is shared by all seeds, so it must not depend on them.
    model = _build_model(config, dataset, 0, base)
    return Problem(
        model=model,
        loss=as_loss(section.loss or _default_loss(config, dataset)),
        train=_prepared(model, dataset.train),
        trials=tuple(trials),
        test=None if dataset.test is None else _prepared(model, dataset.test),
        regularizer=config.make_regularizer(),
        beta=section.beta,
        weighting=section.weighting,
    )


def load_data(config: Config, base: Path | None = None) -> Dataset:
    """The dataset of a configuration; a held-out part of the training samples takes the place of the test data."""
    section = config.problem
    try:
        tokenizer = models.tokenizer_path(section.model, base)
        dataset = data.load(section.dataset, base, section.clients, tokenizer)
        if isinstance(section.dataset, str) and section.dataset not in data.DATASETS:
            data.check_labels(section.dataset, data.observed_labels(dataset))
        if config.files_of_clients is not None:
            data.warn_about_unused_file((base or Path()) / config.files_of_clients, section.clients)
    except DataError as error:
        raise DataError(f"problem.dataset: {error}") from None
    if not section.holdout:
        return dataset
    try:
        return hold_out(dataset, section.holdout, section.partition_seed or 0)
    except DataError as error:
        raise DataError(f"problem.holdout: {error}") from None


def build_simulator(config: Config, base: Path | None = None, backend: str = "auto") -> Simulator:
    """The simulator of a configuration, ready to start.

    `backend` is the one that an earlier sitting found fastest, which a run that leaves it open keeps.
    """
    return simulator_of([config], build_problem(config, base), base, backend)


def simulator_of(configs: Sequence[Config], problem: Problem, base: Path | None, backend: str = "auto") -> Simulator:
    """The simulator of a problem that these configurations make: one, or several side by side."""
    config = configs[0]
    network = config.make_network(base)
    settings = config.engine_settings()
    if settings.backend == "auto" and settings.resolve_device().type == "cpu":
        settings = replace(settings, backend=backend)  # type: ignore[arg-type]
    simulator = Simulator(
        problem,
        network,
        [config.make_algorithm() for config in configs for _ in config.run.seeds],
        period=config.run.period,
        batch_size=config.run.batch_size,
        settings=settings,
    )
    if problem.composite and any(regularizers_of_ones_own(config.problem.regularizer)):
        try_regularizer(problem.regularizer, torch.stack([problem.trials[0].start] * 2))
    if ":" in config.algorithm.name:
        try_method(simulator)
    return simulator


def _outputs(config: Config, dataset: Dataset) -> int:
    """How many outputs a model is asked for: one per class, or one alone of a regression or the logistic loss.

    A person's own model is told the number of classes whatever the loss.
    """
    section, classes = config.problem, dataset.classes or 1
    if section.loss != "logistic" or not models.is_built_in(section.model):
        return classes
    if classes > 2:
        given = f"'logistic' given, but {dataset.name!r} has {classes} classes"
        raise ConfigError("problem.loss", f"{given}; it is for two: use 'cross-entropy'")
    return 1


def _default_loss(config: Config, dataset: Dataset) -> str:
    declared: str | None = data.DATASETS.attribute(config.problem.dataset, "default_loss", None)
    return declared or ("cross-entropy" if dataset.classes else "mse")


def partition(config: Config, dataset: Dataset, seed: int) -> tuple[Sequence[Indices], Indices | None]:
    """Each client's training samples in a run with this seed, and the test samples it is evaluated on; None: all."""
    section = config.problem
    chosen = seed if section.partition_seed is None else section.partition_seed
    if dataset.split is None:
        return data.partition(section.partition, dataset, section.clients, chosen), None
    train, tested = dataset.split(seed)
    own = data.partition(section.partition, replace(dataset, train=dataset.train.take(train)), section.clients, chosen)
    return [train[part] for part in own], tested


def _start(config: Config, dataset: Dataset, seed: int, base: Path | None) -> Tensor:
    """The initial model of a seed, `[d]`."""
    model = _build_model(config, dataset, seed, base)
    layout = Layout.of(model)  # a model without parameters is rejected by the problem
    return layout.row({k: p.detach() for k, p in model.named_parameters()}) if layout.size else torch.empty(0)


def _build_model(config: Config, dataset: Dataset, seed: int, base: Path | None) -> nn.Module:
    shape = tuple(dataset.train.inputs.shape[1:])
    return models.build(config.problem.model, shape, _outputs(config, dataset), seed, base)


def _prepared(model: nn.Module, samples: Samples) -> Samples:
    """The samples in the form that the model takes, prepared once."""
    inputs, targets = models.prepare_samples(model, samples.inputs, samples.targets)
    return replace(samples, inputs=inputs, targets=targets)
