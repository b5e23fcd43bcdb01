"""The configuration of a run as the user writes it: sections of a TOML file, with a default for every key.

Whatever is chosen by name (a dataset, a topology, a regularizer, …) follows the grammar of `depositum.registry`. What
the sections stand for is built, and checked, by `depositum.runs.resolved`.
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from depositum.engines import EarlyStopping, EngineSettings
from depositum.engines.distributed import ProcessSettings
from depositum.errors import ConfigError, listing, nearest, renamed_keys
from depositum.metrics import Evaluations, MetricFunction, MetricSettings, Sharing
from depositum.networks import as_participation
from depositum.problem import Weighting

Named = str | dict[str, Any]


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
    """Who communicates with whom, with which weights, through which channel."""

    topology: Named = "ring"
    mixing: Named = "metropolis"
    drop: float = 0.0
    lost: float = 0.0
    late: int = 0
    channel: Named = "exact"

    @property
    def losses(self) -> dict[str, Any]:
        """What links and messages are lost, as arguments of `networks.build`."""
        return {"drop": self.drop, "lost": self.lost, "late": self.late}


class AlgorithmSection(BaseModel):
    """The method's name; the keys beside it are its hyper-parameters."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = "depositum"


class RunSection(Section):
    """How long, how often, on which device."""

    steps: int = 500
    period: int = 1
    batch_size: int | Literal["full"] = 32
    sampling: Literal["replacement", "epochs"] = "replacement"
    participation: float | dict[str, Any] | None = None
    seeds: list[int] = [0]
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    backend: Literal["auto", "loop", "channels-last", "vmap"] = "auto"
    compile: Literal["auto", "always", "never"] = "auto"
    evaluate_every: int = 10
    evaluate_from: int = 0
    checkpoint_every: int = 100
    stop: dict[str, Any] | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _one_seed(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    def evaluations(self) -> Evaluations:
        """Which iterations are evaluated."""
        return Evaluations(self.evaluate_every, self.evaluate_from)

    def early_stopping(self) -> EarlyStopping | None:
        """When the run stops before its last iteration, if it may."""
        if self.stop is None:
            return None
        known = list(signature(EarlyStopping).parameters)
        for key in self.stop:
            if key not in known:
                raise ConfigError(f"stop.{key}", f"unknown key; it can be {listing(known)}{nearest(key, known)}")
        with renamed_keys("stop.{}".format):
            return EarlyStopping(**self.stop)

    def engine_settings(self) -> EngineSettings:
        """How an engine computes."""
        participation = as_participation(self.participation)
        return EngineSettings(
            self.device, self.dtype, self.precision, self.backend, self.compile, self.sampling, participation
        )


class MetricsSection(Section):
    """Which measures that read much data, how often."""

    costly_every: int = 0
    alpha: float | None = None
    smoothness: float | Literal["measure"] | None = None
    train_every: int | None = None
    functions: dict[str, str] | None = None

    def settings(self, functions: Mapping[str, MetricFunction] | None = None) -> MetricSettings:
        """As the loop takes them, with the functions that are named here."""
        return MetricSettings(**self.model_dump(exclude={"functions"}), functions=functions or {})


class ProcessesSection(Section):
    """How processes communicate, where there are several."""

    timeout: float = 30.0
    evaluate: Sharing = "scalars"

    def settings(self) -> ProcessSettings:
        """As the distributed engine takes them."""
        return ProcessSettings(**self.model_dump())


class Config(Section):
    """A complete run."""

    problem: ProblemSection = ProblemSection()
    network: NetworkSection = NetworkSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    run: RunSection = RunSection()
    metrics: MetricsSection = MetricsSection()
    processes: ProcessesSection = ProcessesSection()
