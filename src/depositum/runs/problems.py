"""From resolved configurations to a problem and its engine: data loaded and partitioned, an initial model per seed."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depositum import data, models
from depositum.data import Dataset, Indices, Samples, hold_out
from depositum.engines import Engine, Simulator, make_engine
from depositum.engines.distributed import ClusterCommunicator, Communicator, Placement, absent_part, restrict_data
from depositum.errors import ConfigError, DataError
from depositum.layout import Layout
from depositum.memory import available_memory, format_bytes
from depositum.problem import BatchSize, Problem, Trial, as_loss, materialized
from depositum.runs.config_keys import config_keys, setting_name
from depositum.runs.resolved import ResolvedConfig
from depositum.runs.user_extensions import try_method, try_regularizer, user_defined_regularizers

#: Each client's samples for a seed, and those of the test data to evaluate on (None: all).
Parts = Callable[[int], tuple[Sequence[Indices], Indices | None]]
#: More classes than a model has outputs; which of them occur is exchanged as one byte for each.
MOST_CLASSES = 1 << 20
#: Vectors of a row's length that every method has in memory per row, at the least.
LEAST_VECTORS_PER_ROW = 3
#: Seconds that downloading data may take.
DOWNLOAD_PATIENCE = 7200.0


@config_keys()
def build_engine(
    specs: Sequence[ResolvedConfig], backend: str = "auto", communicator: ClusterCommunicator | None = None
) -> Engine:
    """The engine of a configuration, or of several side by side, ready to start.

    Parameters
    ----------
    backend
        The backend that an earlier session of the run chose, which is kept unless the configuration names one.
    communicator
        Given one, the engine of this process among many, and this is a collective call.
    """
    problem = build_problem(specs) if communicator is None else build_local_problem(specs[0], communicator)
    return engine_of(specs, problem, backend, communicator)


@config_keys()
def engine_of(
    specs: Sequence[ResolvedConfig],
    problem: Problem,
    backend: str = "auto",
    communicator: Communicator | None = None,
) -> Engine:
    """The engine of a problem that was built from these configurations; see `build_engine`."""
    spec, run = specs[0], specs[0].config.run
    settings = spec.engine_settings
    if communicator is None and settings.backend == "auto" and settings.resolve_device().type == "cpu":
        settings = replace(settings, backend=backend)  # type: ignore[arg-type]
    if communicator is None and settings.resolve_device().type == "cpu":
        _check_memory(problem, settings.resolve_dtype().itemsize, run.batch_size)
    engine = make_engine(
        problem,
        spec.network,
        spec.algorithm if len(specs) == 1 else [one.algorithm for one in specs for _ in one.config.run.seeds],
        period=run.period,
        batch_size=run.batch_size,
        settings=settings,
        channel=spec.channel,
        communicator=communicator,
        evaluate=spec.config.processes.evaluate,
    )
    if isinstance(engine, Simulator):
        if problem.composite and any(user_defined_regularizers(spec.config.problem.regularizer)):
            try_regularizer(problem.regularizer, torch.stack([problem.trials[0].start] * 2))
        if ":" in spec.config.algorithm.name:
            try_method(engine)
    return engine


def _check_memory(problem: Problem, itemsize: int, batch_size: BatchSize) -> None:
    """Refuse rows, or the batches of one client, that do not fit into this machine's memory."""
    rows, d, available = len(problem.trials) * problem.n, problem.layout.size, available_memory()
    needed = LEAST_VECTORS_PER_ROW * rows * d * itemsize
    if needed > available:
        what = f"{rows} models of {d} parameters (clients × seeds) take {format_bytes(needed)} of memory"
        raise ConfigError("clients", f"{problem.n} given, but {what}; {format_bytes(available)} are available")
    if batch_size != "full":
        # Which samples, for every row, and the samples of one row.
        needed = 8 * rows * batch_size + problem.train.inputs[:1].nbytes * batch_size
        if needed > available:
            what = f"batches take {format_bytes(needed)} of memory; {format_bytes(available)} are available"
            raise ConfigError("batch_size", f"{batch_size} given, but {what}")


@config_keys()
def build_problem(specs: Sequence[ResolvedConfig]) -> Problem:
    """The problem of a configuration, one trial per seed; or of several that differ in β, partition, weighting, seeds.

    Within a seed every method has the same partition and the same initial model, whatever the algorithm. Of several
    configurations, trials are in the order of configurations and their seeds, and labelled by their position.
    """
    first = specs[0]
    dataset = load_data(first)
    problem = _problem_of(first, dataset, lambda seed: partition(first, dataset, seed))
    if len(specs) == 1:
        return problem
    starts = {trial.seed: trial.start for trial in problem.trials}
    trials: list[Trial] = []
    for spec in specs:
        section = spec.config.problem
        for seed in spec.config.run.seeds:
            if seed not in starts:
                starts[seed] = _initial_row(spec, dataset, seed)
            parts, tested = partition(spec, dataset, seed)
            trials.append(Trial(seed, starts[seed], parts, len(trials), section.beta, section.weighting, tested))
    # If the first configuration has β = 0, its problem does not hold h.
    return replace(problem, trials=tuple(trials), regularizer=first.regularizer)


@config_keys()
def load_data(spec: ResolvedConfig) -> Dataset:
    """The dataset of a configuration; with a holdout, a part of the training samples replaces the test data."""
    section, base = spec.config.problem, spec.base
    if spec.given is not None:
        return _held_out(spec, _given_dataset(spec.given))
    try:
        tokenizer = models.tokenizer_path(section.model, base)
        dataset = data.load(section.dataset, base, section.clients, tokenizer)
        if data.is_user_data(section.dataset) and not dataset.class_names:
            data.check_labels(dataset.name, data.observed_labels(dataset))
        if spec.client_files is not None:
            unused = data.unused_file(base / spec.client_files, section.clients)
            if unused is not None:
                warnings.warn(
                    f"{unused} is not used: problem.clients is {section.clients}", RuntimeWarning, stacklevel=2
                )
    except DataError as error:
        raise DataError(f"{setting_name('problem.dataset')}: {error}") from None
    return _held_out(spec, dataset)


def _given_dataset(given: Problem) -> Dataset:
    """The data that the user passed in memory: every client's samples are its own."""
    targets = given.train.targets
    labels = targets.dim() == 1 and not targets.is_floating_point() and len(targets) > 0 and int(targets.min()) >= 0
    classes = 1 + int(targets.max()) if labels else None
    return Dataset("in memory", given.train, given.test, classes, tuple(given.trials[0].parts))


def _held_out(spec: ResolvedConfig, dataset: Dataset) -> Dataset:
    """The dataset, with a part of the training samples in place of the test data if the configuration asks for it."""
    section = spec.config.problem
    if not section.holdout:
        return dataset
    try:
        return hold_out(dataset, section.holdout, section.partition_seed or 0)
    except DataError as error:
        raise DataError(f"{setting_name('problem.holdout')}: {error}") from None


@config_keys()
def partition(spec: ResolvedConfig, dataset: Dataset, seed: int) -> tuple[Sequence[Indices], Indices | None]:
    """Each client's training samples in a run with this seed, and the test samples it is evaluated on (None: all)."""
    section = spec.config.problem
    if spec.given is not None:
        assert dataset.clients is not None
        return dataset.clients, None
    chosen = seed if section.partition_seed is None else section.partition_seed
    if dataset.split is None:
        return data.partition(section.partition, dataset, section.clients, chosen), None
    train, tested = dataset.split(seed)
    own = data.partition(section.partition, replace(dataset, train=dataset.train.take(train)), section.clients, chosen)
    return [train[part] for part in own], tested


def _problem_of(spec: ResolvedConfig, dataset: Dataset, parts: Parts) -> Problem:
    """The problem of a configuration with this data, of which each seed's clients have these parts."""
    section = spec.config.problem
    if not len(dataset.train):
        raise ConfigError("problem.dataset", "has no training samples")
    trials = []
    for seed in spec.config.run.seeds:
        own, tested = parts(seed)
        trials.append(Trial(seed, _initial_row(spec, dataset, seed), own, test_indices=tested))
    if spec.given is not None:
        return replace(
            spec.given,
            train=dataset.train,
            test=dataset.test,
            trials=tuple(trials),
            regularizer=spec.regularizer,
            beta=section.beta,
            weighting=section.weighting,
        )
    # What is not trained (frozen parameters, initial buffers) is shared by all seeds, so it must not depend on them.
    model = _build_model(spec, dataset, 0)
    declared: str | None = data.DATASETS.attribute(section.dataset, "default_loss", None)
    return Problem(
        model=model,
        loss=as_loss(section.loss or declared or ("cross-entropy" if dataset.classes else "mse")),
        train=_prepared(model, dataset.train),
        trials=tuple(trials),
        test=None if dataset.test is None else _prepared(model, dataset.test),
        regularizer=spec.regularizer,
        beta=section.beta,
        weighting=section.weighting,
        class_names=dataset.class_names,
        feature_names=dataset.feature_names,
    )


def _initial_row(spec: ResolvedConfig, dataset: Dataset, seed: int) -> Tensor:
    """The initial model of a seed, `[d]`; the user's own model is every seed's."""
    if spec.given is not None:
        return spec.given.trials[0].start
    model = _build_model(spec, dataset, seed)
    layout = Layout.of(model)  # a model without parameters is rejected by the problem
    return layout.row({k: p.detach() for k, p in model.named_parameters()}) if layout.size else torch.empty(0)


def _build_model(spec: ResolvedConfig, dataset: Dataset, seed: int) -> nn.Module:
    inputs = dataset.train.inputs
    model = models.build(spec.config.problem.model, tuple(inputs.shape[1:]), _outputs(spec, dataset), seed, spec.base)
    return materialized(model, inputs, seed)


def _outputs(spec: ResolvedConfig, dataset: Dataset) -> int:
    """How many outputs a model has: one per class, or a single one for a regression or the logistic loss.

    A user-defined model is given the number of classes whatever the loss.
    """
    section, classes = spec.config.problem, dataset.classes or 1
    if section.loss != "logistic" or not models.is_built_in(section.model):
        return classes
    if classes > 2:
        given = f"'logistic' given, but {dataset.name!r} has {classes} classes"
        raise ConfigError("problem.loss", f"{given}; it is for two: use 'cross-entropy'")
    return 1


def _prepared(model: nn.Module, samples: Samples) -> Samples:
    """The samples in the form that the model takes, prepared once."""
    inputs, targets = models.prepare_samples(model, samples.inputs, samples.targets)
    return replace(samples, inputs=inputs, targets=targets)


# One process among many


@config_keys()
def build_local_problem(spec: ResolvedConfig, communicator: ClusterCommunicator) -> Problem:
    """The problem with the samples of this process's clients alone; a collective call."""
    section = spec.config.problem
    if spec.given is not None:  # it has no others
        return build_problem([spec])
    held = Placement(section.clients, communicator.size).clients(communicator.rank)
    with communicator.all_or_none("download the data", patience=DOWNLOAD_PATIENCE):
        by_name = isinstance(section.dataset, dict) or section.dataset in data.DATASETS
        name = data.DATASETS.parse(section.dataset, "problem.dataset").name if by_name else ""
        if communicator.first_of_host and name in data.PUBLISHED:
            data.fetch(name)
    if spec.client_files is not None:
        problem = _problem_of_client_files(spec, communicator, held)
    else:
        with communicator.all_or_none("build the problem"):
            problem = restrict_data(build_problem([spec]), held)
    digest = models.frozen_digest(problem.model)
    digests = communicator.exchange_values(digest, "compare the models")
    with communicator.all_or_none("compare the models"):
        if digest != digests[0]:
            ranks = f"{communicator.names[communicator.rank]} and {communicator.names[0]}"
            raise DataError(f"problem.model.lora.base: the weights differ between {ranks}; all ranks need the same")
    return problem


def _problem_of_client_files(spec: ResolvedConfig, communicator: ClusterCommunicator, held: range) -> Problem:
    """The problem where each client has its own file: no other client's file is opened.

    Ranks learn of each other's data what they need to build the same model, and no more: the shape of a sample, whether
    there is a test file and, only where clients are weighted by samples, how many each has. The number of classes,
    which labels occur and the length of the longest text are known of all ranks together, by reductions.
    """
    pattern = spec.client_files
    assert pattern is not None
    section, texts = spec.config.problem, data.needs_tokenizer(spec.config.problem.dataset)
    with communicator.all_or_none("load the data"):
        files = [_load_file(spec, pattern.replace(data.CLIENT_PLACEHOLDER, str(client))) for client in held]
        shared = data.explicit_test_file(section.dataset) or data.shared_test_file(spec.base / pattern)
        test = _load_file(spec, str(shared)) if shared is not None else None
    everything = [*files, *([test] if test else [])]
    if _largest(communicator, max(file.classes is not None for file in everything)):
        # One file of labels determines what the others must be, as it does where one process loads them all.
        with communicator.all_or_none("load the data"):
            everything = [_with_integer_labels(file) for file in everything]
    if texts:
        length = _largest(communicator, max(file.train.inputs.shape[1] for file in everything))
        everything = [replace(file, train=file.train.padded_to(length)) for file in everything]
    files, test = everything[: len(held)], everything[len(held)] if test else None
    facts = communicator.exchange_values(_facts(spec, files, test), "load the data")
    with communicator.all_or_none("compare the data"):
        _check_same_data(communicator, facts)
    classes = _largest(communicator, max(file.classes or 0 for file in everything)) or None
    _check_all_labels(f"problem.dataset: {pattern}", communicator, everything, classes)
    with communicator.all_or_none("build the problem"):
        ends = np.cumsum([len(file.train) for file in files])
        own = dict(zip(held, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        sizes = [size for rank in facts for size in rank.get("samples", [1] * len(held))]
        parts = [own[i] if i in own else absent_part(sizes[i]) for i in range(section.clients)]
        train = Samples(
            torch.cat([file.train.inputs for file in files]), torch.cat([file.train.targets for file in files])
        )
        dataset = Dataset(pattern, train, test.train if test else None, classes)
        return _problem_of(spec, dataset, lambda seed: (parts, None))


@config_keys()
def build_own_problem(spec: ResolvedConfig, client: int, classes: int | None) -> Problem:
    """The problem of a member of a federation: with its own file's samples, and nothing of the other members.

    `classes` is how many all members' labels have, if it was agreed; otherwise those of this member.
    """
    section = spec.config.problem
    if section.weighting == "samples":
        raise ConfigError("weighting", "'samples' given; members do not learn how many samples each has: use 'uniform'")
    assert spec.own_file is not None
    file = _load_file(spec, spec.own_file)
    _check_unused_arrays(spec.own_file, file)
    if classes is not None:
        file = _with_integer_labels(file)
        if (found := file.classes or 0) > classes:
            raise DataError(f"problem.dataset: the largest label is {found - 1}, but {classes} classes are agreed")
    own = np.arange(len(file.train))
    parts = [own if i == client else absent_part(1) for i in range(section.clients)]
    dataset = replace(file, classes=classes or file.classes, test=None)
    return _problem_of(spec, dataset, lambda seed: (parts, None))


def _check_unused_arrays(path: str, file: Dataset) -> None:
    """Refuse arrays of a member's `.npz` file that would be left unused without a word."""
    unused = {"'x_test' and 'y_test'": file.test is not None, "'client'": file.clients is not None}
    if path.endswith(".npz") and any(unused.values()):
        names = " and ".join(name for name, there in unused.items() if there)
        reason = "a member trains on all its samples as one client, and members do not share test data"
        raise DataError(f"problem.dataset: {path}: has {names}; leave them out: {reason}")


def _load_file(spec: ResolvedConfig, file: str) -> Dataset:
    section, base = spec.config.problem, spec.base
    try:
        tokenizer = models.tokenizer_path(section.model, base)
        return data.load(data.for_one_file(section.dataset, file), base, tokenizer=tokenizer)
    except DataError as error:
        raise DataError(f"problem.dataset: {error}") from None


def _with_integer_labels(dataset: Dataset) -> Dataset:
    try:
        return data.with_integer_labels(dataset)
    except DataError as error:
        raise DataError(f"problem.dataset: {error}") from None


def _facts(spec: ResolvedConfig, files: Sequence[Dataset], test: Dataset | None) -> dict[str, Any]:
    """What a rank tells the others about its files."""
    everything = [*files, *([test] if test else [])]
    facts = {
        "settings": data.arguments_without_paths(spec.config.problem.dataset),
        "shapes": sorted({tuple(file.train.inputs.shape[1:]) for file in everything}),
        "encodings": sorted({data.encoding_digest(file.class_names, file.feature_names) for file in everything}),
        "test": test is not None,
    }
    if spec.config.problem.weighting == "samples":
        facts["samples"] = [len(file.train) for file in files]
    return facts


def _check_same_data(communicator: ClusterCommunicator, facts: Sequence[dict[str, Any]]) -> None:
    """Refuse, on this rank, data for which no model can be common with rank 0's."""
    own, first = facts[communicator.rank], facts[0]
    here, there = f"on {communicator.names[communicator.rank]}", f"on {communicator.names[0]}"
    if own["test"] != first["test"]:
        exists, missing = (here, there) if own["test"] else (there, here)
        raise DataError(f"problem.dataset: the test file exists {exists}, but not {missing}")
    if own["settings"] != first["settings"]:
        settings = f"{own['settings']} {here}, but {first['settings']} {there}"
        raise DataError(f"problem.dataset: the settings of texts are {settings}")
    if any(encoding != first["encodings"][0] for encoding in own["encodings"]):
        problem = f"the columns, their categories or the classes {here} are not those {there}"
        raise DataError(f"problem.dataset: {problem}; list all classes in 'classes', and encode categories as numbers")
    for shape in own["shapes"]:
        if shape != first["shapes"][0]:
            shapes = f"{tuple(shape)} {here}, but {tuple(first['shapes'][0])} {there}"
            raise DataError(f"problem.dataset: samples have shape {shapes}")


def _largest(communicator: ClusterCommunicator, number: int) -> int:
    """The largest of a number of each rank, without whose it is; a collective call."""
    return -int(communicator.minimum(torch.tensor([-int(number)])))


def _check_all_labels(
    name: str, communicator: ClusterCommunicator, files: Sequence[Dataset], classes: int | None
) -> None:
    """Check the labels that occur in any rank's files, without learning in whose; a collective call."""
    if classes is None:
        return
    with communicator.all_or_none("compare the labels"):
        if classes > MOST_CLASSES:
            raise DataError(f"{name}: the largest label is {classes - 1}; labels are class indices: number them from 0")
    absent = torch.ones(classes, dtype=torch.uint8)
    for file in files:
        absent[data.observed_labels(file)] = 0
    labels = (communicator.minimum(absent) == 0).nonzero().flatten().tolist()
    with communicator.all_or_none("compare the labels"):
        data.check_labels(name, labels, quiet=communicator.rank > 0)
