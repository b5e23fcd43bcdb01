"""The configuration of a run: a TOML file, checked in full before any work.

Every key has a default that is written out in a run's own `config.toml`. Whatever is chosen by name (a dataset, a
topology, a regularizer, …) follows the grammar of `depositum.registry`.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from depositum import data, models, networks, regularizers
from depositum.algorithms import Algorithm, algorithm
from depositum.data import CLIENT_PLACEHOLDER
from depositum.engines import EngineSettings
from depositum.engines.processes import EncodingName, ProcessSettings
from depositum.engines.processes.measures import Evaluate
from depositum.errors import ConfigError, DataError
from depositum.metrics import NOT_AMONG_PROCESSES, Evaluations, MetricSettings
from depositum.networks import Network
from depositum.problem import LOSSES, Weighting
from depositum.problem.precision import resolve
from depositum.regularizers import Regularizer

Named = str | dict[str, Any]
#: The clients that a process among many holds, given how many there are.
Held = Callable[[int], range]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ProblemSection(Section):
    """What is minimised, and whose data it is."""

    dataset: Named = "digits"
    model: Named = "linear"
    loss: str | None = None
    clients: int = 10
    partition: Named | None = None
    partition_seed: int | None = None
    weighting: Weighting = "uniform"
    regularizer: Named | list[dict[str, Any]] = "zero"
    beta: float = 1e-5
    holdout: float = 0.0


class NetworkSection(Section):
    """Who talks to whom, and with which weights."""

    topology: Named = "ring"
    mixing: Named = "metropolis"
    drop: float = 0.0


class AlgorithmSection(BaseModel):
    """The method's name; its hyper-parameters stand beside it and are the method's own."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = "depositum"


class RunSection(Section):
    """How long, how often, on what."""

    steps: int = 500
    period: int = 1
    batch_size: int | Literal["full"] = 32
    seeds: list[int] = [0]
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    backend: Literal["auto", "loop", "channels-last", "vmap"] = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    evaluate_every: int = 10
    evaluate_from: int = 0
    checkpoint_every: int = 100

    @field_validator("seeds", mode="before")
    @classmethod
    def _one_seed(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    def evaluations(self) -> Evaluations:
        """Which iterations are evaluated."""
        return Evaluations(self.evaluate_every, self.evaluate_from)


class MetricsSection(Section):
    """Which measures that read much data, how often."""

    costly_every: int = 0
    alpha: float | None = None
    smoothness: float | Literal["measure"] | None = None
    train_every: int | None = None

    def settings(self) -> MetricSettings:
        """As the loop takes them."""
        return MetricSettings(**self.model_dump())


class ProcessesSection(Section):
    """How processes talk to each other, where there are several."""

    timeout: float = 30.0
    send: EncodingName = "float32"
    evaluate: Evaluate = "scalars"


class Config(Section):
    """A run, in full."""

    problem: ProblemSection = ProblemSection()
    network: NetworkSection = NetworkSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    run: RunSection = RunSection()
    metrics: MetricsSection = MetricsSection()
    processes: ProcessesSection = ProcessesSection()

    # What the sections make; each checks what it is given

    def make_algorithm(self) -> Algorithm:
        return algorithm(self.algorithm.name, **(self.algorithm.model_extra or {}))

    def make_network(self, base: Path | None = None) -> Network | None:
        """Who talks to whom; None for a method with a server, which must be given no network."""
        method = self.make_algorithm()
        if not method.server:
            section = self.network
            return networks.build(section.topology, section.mixing, self.problem.clients, base, drop=section.drop)
        for key in self.network.model_fields_set:
            raise ConfigError(
                f"network.{key}",
                f"{getattr(self.network, key)!r} given, but {method.name!r} has a server: every client talks to it "
                "alone; leave the section out",
            )
        return None

    def make_regularizer(self) -> Regularizer:
        return regularizers.build(self.problem.regularizer, key="problem.regularizer")

    def engine_settings(self) -> EngineSettings:
        run = self.run
        return EngineSettings(run.device, run.dtype, run.precision, run.backend, run.compile)

    def process_settings(self) -> ProcessSettings:
        return ProcessSettings(**self.processes.model_dump())

    @property
    def files_of_clients(self) -> str | None:
        """The pattern by which each client has a file of its own, where the dataset is one."""
        return data.client_pattern(self.problem.dataset)

    def with_file(self, file: str) -> Named:
        """The dataset that one file is, of those that the pattern stands for."""
        return data.for_one_file(self.problem.dataset, file)

    def check(self, base: Path | None = None, held: Held | None = None) -> None:
        """Refuse whatever can be refused before data is loaded; of a process among many, that can be refused there."""
        problem, run = self.problem, self.run
        _at_least("problem.clients", problem.clients, 1)
        _at_least("run.steps", run.steps, 0)
        for key in ("period", "checkpoint_every"):
            _at_least(f"run.{key}", getattr(run, key), 1)
        run.evaluations()
        if run.batch_size != "full":
            _at_least("run.batch_size", run.batch_size, 1)
        if not run.seeds or len(set(run.seeds)) < len(run.seeds) or not all(map(_is_seed, run.seeds)):
            raise ConfigError(
                "run.seeds", f"{run.seeds} given; it must be a list of different whole numbers from 0 to 2⁶³ − 1"
            )
        if problem.partition_seed is not None and not _is_seed(problem.partition_seed):
            raise ConfigError(
                "problem.partition_seed", f"{problem.partition_seed} given; it must be a whole number from 0 to 2⁶³ − 1"
            )
        if problem.beta < 0:
            raise ConfigError("problem.beta", f"{problem.beta!r} given; it must be a number ≥ 0")
        if not 0 <= problem.holdout < 1:
            raise ConfigError("problem.holdout", f"{problem.holdout!r} given; it must be a number in [0, 1)")
        if problem.loss is not None:
            LOSSES.parse(problem.loss, "problem.loss")
        self._check_data(base, held)
        if problem.partition is not None:
            data.PARTITIONS.parse(problem.partition, "problem.partition")
        models.check(problem.model, "problem.model", base)
        self._check_text(base)
        method = self.make_algorithm()
        regularizer = self.make_regularizer()
        composite = problem.beta > 0 and not isinstance(regularizer, regularizers.Zero)
        method.check(run.period, composite=composite, prox_modulus=problem.beta * regularizer.rho)
        self._check_metrics(problem.beta * regularizer.rho)
        self.process_settings()
        if held is not None:
            self._check_among_processes()
        self.make_network(base)
        resolve(run.precision, getattr(torch, run.dtype), self.engine_settings().resolve_device())

    def _check_data(self, base: Path | None, held: Held | None) -> None:
        problem = self.problem
        files: list[Named] = [problem.dataset]
        if held is not None:
            clients = held(problem.clients)  # refuses what cannot be shared
            if self.files_of_clients is not None:
                files = [
                    self.with_file(self.files_of_clients.replace(CLIENT_PLACEHOLDER, str(client))) for client in clients
                ]
        try:
            for file in files:
                data.check(file, "problem.dataset", base, problem.clients)
        except DataError as error:
            raise DataError(f"problem.dataset: {error}") from None

    def _check_text(self, base: Path | None) -> None:
        """Refuse a language model without texts, or texts without one, and what texts have another setting for."""
        problem, reads = self.problem, models.tokenizer_path(self.problem.model, base) is not None
        text = data.needs_tokenizer(problem.dataset)
        if text and not reads:
            raise ConfigError("problem.model", f"{problem.model!r} given, but the dataset is text; use {{ lora = … }}")
        if reads and not text:
            raise ConfigError(
                "problem.dataset",
                f"{problem.dataset!r} given, but 'lora' needs text: 'dolly' or {{ instructions = … }}",
            )
        if not text:
            if problem.loss == "tokens":
                raise ConfigError("problem.loss", f"'tokens' given, but the dataset is no text: {problem.dataset!r}")
            return
        if problem.loss not in (None, "tokens"):
            raise ConfigError("problem.loss", f"{problem.loss!r} given; of a language model it is 'tokens'")
        if problem.holdout:
            raise ConfigError("problem.holdout", "given; texts have parts of their own: write evaluate = 'validation'")
        if self.metrics.smoothness == "measure":
            raise ConfigError("metrics.smoothness", "'measure' given; of a language model it is not measured")

    def _check_among_processes(self) -> None:
        """Refuse what needs all data in one place."""
        if self.metrics.smoothness == "measure":
            raise ConfigError("metrics.smoothness", NOT_AMONG_PROCESSES)
        if self.files_of_clients is not None and self.problem.partition not in (None, "natural"):
            raise ConfigError(
                "problem.partition",
                f"{self.problem.partition!r} given, but each process loads its own clients' files only; leave it out",
            )
        if self.files_of_clients is not None and self.problem.holdout:
            raise ConfigError(
                "problem.holdout",
                f"{self.problem.holdout!r} given, but each process loads its own clients' files only; leave it out",
            )

    def _check_metrics(self, prox_modulus: float) -> None:
        metrics = self.metrics
        metrics.settings().check(self.run.evaluations())
        if metrics.alpha is not None and metrics.alpha * prox_modulus >= 1:
            raise ConfigError(
                "metrics.alpha",
                f"{metrics.alpha:g} given; G^α needs αβρ < 1, so it must be below {1 / prox_modulus:g}",
            )

    def complete(self) -> dict[str, Any]:
        """Everything that makes the run, every default written out (a key whose default is "not set" is left out)."""
        table = self.model_dump(exclude_none=True)
        method = self.make_algorithm()
        hyper = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
        table["algorithm"] = {"name": self.algorithm.name, **{k: v for k, v in hyper.items() if v is not None}}
        if method.server:
            del table["network"]
        return table


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(key, f"{value} given; it must be a whole number ≥ {least}")


def _is_seed(value: int) -> bool:
    return 0 <= value < 1 << 63
