"""From a configuration to a problem: data loaded, partitioned, and an initial model per seed."""

from pathlib import Path

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
    section = config.problem
    dataset = load_data(config, base)
    train, test = _prepared(dataset, section.model)
    shape = tuple(train.inputs.shape[1:])
    outputs = dataset.classes or 1
    trials = []
    for seed in config.run.seeds:
        chosen = seed if section.partition_seed is None else section.partition_seed
        parts = data.partition(section.partition, dataset, section.clients, chosen)
        own = models.build(section.model, shape, outputs, seed, base)
        start = Layout.of(own).row({k: p.detach() for k, p in own.named_parameters()})
        trials.append(Trial(seed, start, parts))
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


def build_simulator(config: Config, base: Path | None = None) -> Simulator:
    """The simulator of a configuration, ready to start."""
    network = config.make_network(base)
    return Simulator(
        build_problem(config, base),
        network,
        config.make_algorithm(),
        period=config.run.period,
        batch_size=config.run.batch_size,
        settings=config.engine_settings(),
    )


def _prepared(dataset: Dataset, model: Spec) -> tuple[Samples, Samples | None]:
    """The samples as the model takes them (the CNN's images are resized once, here)."""

    def prepare(samples: Samples) -> Samples:
        return Samples(models.prepare(model, samples.inputs), samples.targets)

    if not len(dataset.train.targets):
        raise ConfigError("problem.dataset", "has no training samples")
    return prepare(dataset.train), prepare(dataset.test) if dataset.test is not None else None
