"""What an engine is: it holds the rows of some clients and advances them by an algorithm, iteration by iteration.

There are two: the simulator holds the rows of all clients in one process, the distributed engine those of one process
among many. The loop, the measures and the run folder know this protocol only. What concerns all clients is asked
through the engine's reduction, which in a simulator is a group of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State
from depositum.channels import Channel
from depositum.engines.monitor import Monitor
from depositum.errors import ConfigError
from depositum.metrics import Reduction, Sharing
from depositum.networks import Network, complete, ring
from depositum.problem import Oracle, Problem
from depositum.problem.row_model import Backend

Compile = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class Costs:
    """What a run has cost so far, per client."""

    phases: int = 0
    bytes_sent: float = 0.0
    gradient_evaluations: float = 0.0

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            self.phases + other.phases,
            self.bytes_sent + other.bytes_sent,
            self.gradient_evaluations + other.gradient_evaluations,
        )


@dataclass(frozen=True)
class EngineSettings:
    """How an engine computes: on which device, in which numbers.

    Attributes
    ----------
    device
        `"auto"` (a GPU if there is one), `"cpu"`, `"cuda"`, `"cuda:1"`, …
    dtype
        `"float32"` or `"float64"`: of the state and all its arithmetic.
    precision
        Of the model's forward and backward passes only: `"auto"`, `"float32"`, `"tf32"`, `"bf16"`.
    backend
        How gradients of all rows are computed: `"auto"` (on a CPU, the fastest as measured), `"loop"`,
        `"channels-last"`, `"vmap"`.
    compile
        Whether iterations are compiled: `"auto"` (if the run is long enough to repay it), `"always"`, `"never"`.
    """

    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    backend: Backend | Literal["auto"] = "auto"
    compile: Compile = "auto"

    def resolve_dtype(self) -> torch.dtype:
        if self.dtype not in ("float32", "float64"):
            raise ConfigError("dtype", f"{self.dtype!r} given; it can be 'float32' or 'float64'")
        return torch.float64 if self.dtype == "float64" else torch.float32

    def resolve_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        allowed = "it can be 'auto', 'cpu', 'cuda' or 'cuda:1', …"
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError):
            raise ConfigError("device", f"{self.device!r} given; {allowed}") from None
        if device.type not in ("cpu", "cuda"):
            raise ConfigError("device", f"{self.device!r} given; {allowed}")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device", f"{self.device!r} given, but no GPU is available; use 'auto' or 'cpu'")
        if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
            raise ConfigError("device", f"{self.device!r} given, but there are {count} GPUs, from 'cuda:0' on")
        return device


class Engine(Protocol):
    """Advances the rows of the clients held here, `[S·k, d]` for k clients of S trials.

    Among several processes, every process calls the same methods in the same order.
    """

    problem: Problem
    network: Network
    #: Each trial's method.
    algorithms: Sequence[Algorithm]
    #: The clients whose rows are held here.
    clients: Sequence[int]
    #: Sums and minima over all processes of the run.
    reduction: Reduction
    #: What may be sent between processes for measures.
    sharing: Sharing
    #: Iterations of the complete run, where known: compilation has to repay itself in them.
    steps: int
    #: Iterations done.
    t: int
    #: What they cost the clients held here, on average, but for messages whose sizes depend on values (`bytes_by_row`).
    costs: Costs
    state: State
    monitor: Monitor

    @property
    def oracle(self) -> Oracle: ...

    @property
    def bytes_by_row(self) -> Tensor | None:
        """The bytes of messages of varying size that each row's client has sent so far, float64 `[rows]`."""
        ...

    def start(self) -> None:
        """Create the state at t = 0."""
        ...

    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `count` iterations; an engine of all rows ends early once `stopped` returns True.

        `announce` is called before iterations are compiled.
        """
        ...

    def watch(self, capacity: int) -> None:
        """Attach a new monitor, which is read at least every `capacity` iterations."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """Copies on the host of everything that makes up the run here, by name."""
        ...

    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Resume from a snapshot."""
        ...

    def with_trials(self, labels: Sequence[int]) -> Self:
        """An engine like this one for the trials with these labels, not yet started."""
        ...


def restricted(engine: Engine, labels: Sequence[int]) -> Engine:
    """An engine with the rows of these trials only, at the same iteration."""
    smaller = engine.with_trials(labels)
    keep = [engine.problem.labels.index(label) for label in smaller.problem.labels]
    rows, clients = engine.oracle.rows, len(engine.clients)
    tensors = {name: select_trials(z, keep, rows, clients) for name, z in engine.snapshot().items()}
    smaller.restore(tensors, engine.t, engine.costs)
    return smaller


def select_trials(tensor: Tensor, keep: Sequence[int], rows: int, clients: int) -> Tensor:
    """The rows of some trials of a variable `[rows, ...]`; a variable without rows belongs to all trials."""
    if tensor.dim() == 0 or len(tensor) != rows:
        return tensor
    return tensor.view(-1, clients, *tensor.shape[1:])[list(keep)].flatten(0, 1)


def network_for(algorithm: Algorithm, network: Network | None, n: int, channel: Channel) -> Network:
    """The network that a method runs on: the given one, or a ring; a method with a server takes none.

    A network, a channel or a number of clients that does not fit is refused.
    """
    if algorithm.server:
        for key, given in (("network", network is not None), ("channel", channel.name != "exact")):
            if given:
                raise ConfigError(
                    key,
                    f"given, but {algorithm.name!r} has a server: every client communicates with it alone; leave the "
                    "network out",
                )
        return complete(n, "uniform")
    if algorithm.compresses and channel.name != "exact":
        raise ConfigError(
            "channel", f"{channel.name!r} given, but {algorithm.name!r} compresses what it sends; leave it out"
        )
    network = network or ring(n)
    if network.n != n:
        raise ConfigError("network", f"it has {network.n} clients, but the problem has {n}")
    return network
