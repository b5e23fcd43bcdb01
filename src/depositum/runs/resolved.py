"""A configuration checked in full and built once: everything that does not need data.

`fit`, `run`, sweeps and processes all start a run from the objects that are built here or, for `fit`, given by the
user.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from depositum import data, models, networks, regularizers
from depositum.algorithms import Algorithm, algorithm, check_server_weights
from depositum.algorithms.schedules import SCHEDULES, stored_stepsize
from depositum.channels import CHANNELS, Channel, as_channel
from depositum.engines import EngineSettings, check_network, with_participation
from depositum.errors import ConfigError, DataError, is_integer, is_number, short_repr
from depositum.metrics import NOT_AMONG_PROCESSES, Evaluations, MetricSettings
from depositum.networks import Network
from depositum.problem import LOSSES, Problem
from depositum.problem.precision import resolve as resolve_precision
from depositum.registry import Registry
from depositum.regularizers import Regularizer
from depositum.runs.config import Config, Named
from depositum.runs.config_keys import config_keys
from depositum.user_code import import_user_object

#: The clients that a process among many holds, given how many there are.
Held = Callable[[int], range]

#: Where something is chosen by its name alone. (Beside a regularizer's name stand other keys.)
_CHOSEN_BY_NAME: tuple[tuple[str, str, Registry[Any]], ...] = (
    ("problem", "dataset", data.DATASETS),
    ("problem", "model", models.MODELS),
    ("problem", "partition", data.PARTITIONS),
    ("network", "topology", networks.TOPOLOGIES),
    ("network", "mixing", networks.MIXINGS),
    ("network", "channel", CHANNELS),
)


@dataclass(frozen=True, eq=False)
class ResolvedConfig:
    """A checked configuration with what was built from it; made by `resolve`.

    Attributes
    ----------
    base
        The folder that relative paths in the configuration start from.
    network
        None for a method with a server.
    metrics
        Which measures are evaluated, and how often, with the user's own functions.
    given
        The problem of a run that was started from Python with the user's model and data: it takes the place of the
        dataset, the model and the loss that a configuration names. Of its trials, only the first one's start and parts
        are used; β, the weighting and the seeds are the configuration's.
    own_file
        Of a member of a federation: the path of its own data, in place of the `{client}` of the configuration, which
        is the same for all members.
    """

    config: Config
    base: Path
    algorithm: Algorithm
    regularizer: Regularizer
    network: Network | None
    channel: Channel
    engine_settings: EngineSettings
    metrics: MetricSettings
    given: Problem | None = None
    own_file: str | None = None

    @cached_property
    def table(self) -> dict[str, Any]:
        """Everything that defines the run, every default included (a key whose default is "not set" is left out)."""
        return complete_table(self.config, self.algorithm)

    def dump(self) -> str:
        """The complete configuration as TOML, with all arguments of what is chosen by name."""
        return tomli_w.dumps(with_default_arguments(self.table))

    @property
    def client_files(self) -> str | None:
        """The pattern of file names, where each client has its own file."""
        return data.client_pattern(self.config.problem.dataset)


def complete_table(config: Config, method: Algorithm) -> dict[str, Any]:
    """The sections of a configuration with every default, and all hyper-parameters of its method."""
    table = config.model_dump(exclude_none=True)
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    hyper = {field.name: _stored(getattr(method, field.name)) for field in fields}
    table["algorithm"] = {"name": config.algorithm.name, **{k: v for k, v in hyper.items() if v is not None}}
    if method.server:
        del table["network"]
    return table


def _stored(value: Any) -> Any:
    """A hyper-parameter as TOML can store it: numbers of other types than Python's as plain ones."""
    if isinstance(value, bool) or not is_number(value):
        return stored_stepsize(value)
    return int(value) if is_integer(value) else float(value)


def with_default_arguments(table: Mapping[str, Any]) -> dict[str, Any]:
    """A complete table in which everything that is chosen by name has all its arguments."""
    out = {section: dict(keys) for section, keys in table.items()}
    for section, key, registry in _CHOSEN_BY_NAME:
        if key in out.get(section, {}):
            out[section][key] = registry.with_defaults(out[section][key])
    out["problem"]["regularizer"] = regularizers.with_defaults(out["problem"]["regularizer"])
    for key, value in out["algorithm"].items():
        if isinstance(value, dict):  # a schedule: all else is numbers and names
            out["algorithm"][key] = SCHEDULES.with_defaults(value)
    return out


@config_keys("algorithm")
def build_method(config: Config) -> Algorithm:
    """The method of a configuration."""
    return algorithm(config.algorithm.name, **(config.algorithm.model_extra or {}))


@config_keys()
def resolve(
    config: Config, base: Path | None = None, held: Held | None = None, own_file: str | None = None
) -> ResolvedConfig:
    """Check whatever can be checked before data is loaded, and build what does not need data.

    `held` is for a process among many, which need not have the files of other clients; `own_file` replaces the file of
    the only client that it holds.
    """
    base = base or Path()
    check_numbers(config)
    problem, run = config.problem, config.run
    if problem.loss is not None:
        LOSSES.parse(problem.loss, "problem.loss")
    _check_data(config, base, held, own_file)
    if problem.partition is not None:
        data.PARTITIONS.parse(problem.partition, "problem.partition")
    models.check(problem.model, base)
    _check_text(config, base)
    method = build_method(config)
    regularizer = regularizers.build(problem.regularizer)
    metrics = _build_metrics(config, base)
    check_together(config, method, regularizer, metrics)
    if held is not None:
        _check_among_processes(config)
        if method.automatic:
            raise ConfigError(
                method.stepsize_key,
                "'auto' given, but processes do not search for a stepsize; find one in a simulation: depositum tune",
            )
    channel, settings = as_channel(config.network.channel), run.engine_settings()
    network = checked_network(_build_network(config, method, base), channel, settings, method, problem.clients)
    return ResolvedConfig(config, base, method, regularizer, network, channel, settings, metrics, own_file=own_file)


def _build_metrics(config: Config, base: Path) -> MetricSettings:
    """The measures, with the functions that the configuration names as `"package.module:name"`."""
    named = config.metrics.functions or {}
    functions = {
        name: import_user_object(path, f"metrics.functions.{name}", "measure", base) for name, path in named.items()
    }
    with config_keys("metrics"):
        return config.metrics.settings(functions)


def check_together(config: Config, method: Algorithm, regularizer: Regularizer, metrics: MetricSettings) -> None:
    """Refuse what each is allowed, but not together: a period, a regularizer, measures, a precision, a device."""
    problem, run = config.problem, config.run
    prox_modulus = problem.beta * regularizer.rho
    composite = problem.beta > 0 and not isinstance(regularizer, regularizers.Zero)
    method.check(run.period, composite=composite, prox_modulus=prox_modulus)
    check_server_weights(method, problem.weighting)
    _check_metrics(metrics, run.evaluations(), prox_modulus)
    config.processes.settings()
    settings = run.engine_settings()
    resolve_precision(run.precision, settings.resolve_dtype(), settings.resolve_device())


def _build_network(config: Config, method: Algorithm, base: Path) -> Network | None:
    """Who communicates with whom; None for a method with a server, for which no network can be given."""
    section = config.network
    if not method.server:
        return networks.build(section.topology, section.mixing, config.problem.clients, base, **section.losses)
    for key in section.model_fields_set:
        raise ConfigError(
            f"network.{key}",
            f"{getattr(section, key)!r} given, but {method.name!r} has a server: every client communicates with it "
            "alone; leave the section out",
        )
    return None


def checked_network(
    network: Network | None, channel: Channel, settings: EngineSettings, method: Algorithm, n: int
) -> Network | None:
    """The network with the clients that take part in each phase; what does not fit is refused before data is read."""
    check_network(method, network, n, channel, settings.participation)
    return None if network is None else with_participation(network, settings.participation)


def check_numbers(config: Config) -> None:
    """Refuse numbers that are out of range."""
    problem, run = config.problem, config.run
    _check_least("problem.clients", problem.clients, 1)
    _check_least("run.steps", run.steps, 0)
    for key in ("period", "evaluate_every", "checkpoint_every"):
        _check_least(f"run.{key}", getattr(run, key), 1)
    run.evaluations()
    run.early_stopping()
    if run.batch_size != "full":
        _check_least("run.batch_size", run.batch_size, 1)
    if not run.seeds or len(set(run.seeds)) < len(run.seeds) or not all(map(_is_seed, run.seeds)):
        allowed = "a list of different whole numbers from 0 to 2⁶³ − 1"
        raise ConfigError("run.seeds", f"{short_repr(run.seeds)} given; it must be {allowed}")
    if problem.partition_seed is not None and not _is_seed(problem.partition_seed):
        raise ConfigError(
            "problem.partition_seed",
            f"{short_repr(problem.partition_seed)} given; it must be a whole number from 0 to 2⁶³ − 1",
        )
    if problem.beta < 0:
        raise ConfigError("problem.beta", f"{problem.beta!r} given; it must be a number ≥ 0")
    if not 0 <= problem.holdout < 1:
        raise ConfigError("problem.holdout", f"{problem.holdout!r} given; it must be a number in [0, 1)")


def _check_data(config: Config, base: Path, held: Held | None, own_file: str | None) -> None:
    problem, why = config.problem, ""
    files: list[Named] = [problem.dataset]
    if own_file is not None:
        files = [data.for_one_file(problem.dataset, own_file)]
    elif held is not None:
        clients = held(problem.clients)  # refuses numbers that processes cannot share
        pattern = data.client_pattern(problem.dataset)
        if pattern is not None:
            names = [pattern.replace(data.CLIENT_PLACEHOLDER, str(client)) for client in clients]
            files = [data.for_one_file(problem.dataset, name) for name in names]
            if clients:
                share = f"client {clients[0]}" if len(clients) == 1 else f"clients {clients[0]}–{clients[-1]}"
                order = "torchrun numbers hosts in the text order of their addresses (.10 before .8), or by --node-rank"
                why = f"; this process holds {share}: {order}"
    try:
        for file in files:
            data.check(file, base, problem.clients)
    except DataError as error:
        raise DataError(f"problem.dataset: {error}{why}") from None


def _check_text(config: Config, base: Path) -> None:
    """Refuse a language model without texts, texts without one, and settings that texts replace by others."""
    problem, reads_text = config.problem, models.tokenizer_path(config.problem.model, base) is not None
    is_text = data.needs_tokenizer(problem.dataset)
    if is_text and not reads_text:
        raise ConfigError("problem.model", f"{problem.model!r} given, but the dataset is text; use {{ lora = … }}")
    if reads_text and not is_text:
        raise ConfigError(
            "problem.dataset",
            f"{problem.dataset!r} given, but 'lora' needs text: 'dolly' or {{ instructions = … }}",
        )
    if not is_text:
        if problem.loss == "tokens":
            raise ConfigError("problem.loss", f"'tokens' given, but the dataset is not text: {problem.dataset!r}")
        return
    if problem.loss not in (None, "tokens"):
        raise ConfigError("problem.loss", f"{problem.loss!r} given; for a language model it is 'tokens'")
    if problem.holdout:
        raise ConfigError("problem.holdout", "given; texts have their own splits: use evaluate = 'validation'")
    if config.metrics.smoothness == "measure":
        raise ConfigError("metrics.smoothness", "'measure' given; it is not measured for a language model")


def _check_metrics(metrics: MetricSettings, evaluations: Evaluations, prox_modulus: float) -> None:
    with config_keys("metrics"):
        metrics.check(evaluations)
    if metrics.alpha is not None and metrics.alpha * prox_modulus >= 1:
        raise ConfigError(
            "metrics.alpha", f"{metrics.alpha:g} given; G^α needs αβρ < 1, so it must be below {1 / prox_modulus:g}"
        )


def _check_among_processes(config: Config) -> None:
    """Refuse what needs all data in one process."""
    problem = config.problem
    if config.metrics.smoothness == "measure":
        raise ConfigError("metrics.smoothness", NOT_AMONG_PROCESSES)
    if data.client_pattern(problem.dataset) is None:
        return
    own_files = "but each process loads only the files of its own clients; leave it out"
    if problem.partition not in (None, "natural"):
        raise ConfigError("problem.partition", f"{problem.partition!r} given, {own_files}")
    if problem.holdout:
        raise ConfigError("problem.holdout", f"{problem.holdout!r} given, {own_files}")


def _check_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(key, f"{short_repr(value)} given; it must be a whole number ≥ {least}")
    if value >= 1 << 63:  # iterations and samples are counted in 64 bits
        raise ConfigError(key, f"{short_repr(value)} given; it must be a whole number from {least} to 2⁶³ − 1")


def _is_seed(value: int) -> bool:
    return 0 <= value < 1 << 63
