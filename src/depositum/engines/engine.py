"""What an engine is: it holds the rows of some clients and advances them by an algorithm, iteration by iteration.

There are two: the simulator holds the rows of all clients in one process, the distributed engine those of one process
among many. The loop, the measures and the run folder know this interface only. What concerns all clients is asked
through the engine's reduction, which in a simulator is a group of one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State, check_server_weights, merge_methods
from depositum.channels import Channel
from depositum.engines.mixing import ChannelState
from depositum.engines.monitor import Monitor
from depositum.engines.snapshot import capture, select_trials
from depositum.errors import ConfigError, short_repr
from depositum.metrics import Reduction, Sharing
from depositum.networks import LostMessages, Network, Participation, ring, server_network
from depositum.problem import BatchSize, Oracle, Problem, Sampling
from depositum.problem.model_copy import has_frozen_base
from depositum.problem.precision import resolve
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
    """How an engine computes: on which device, in which numbers, from which samples.

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
    sampling
        How mini-batches are drawn: `"replacement"` or `"epochs"`.
    participation
        Which clients take part in a phase; None means all.
    """

    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    backend: Backend | Literal["auto"] = "auto"
    compile: Compile = "auto"
    sampling: Sampling = "replacement"
    participation: Participation | None = None

    def resolve_dtype(self) -> torch.dtype:
        if self.dtype not in ("float32", "float64"):
            raise ConfigError("dtype", f"{short_repr(self.dtype)} given; it can be 'float32' or 'float64'")
        return torch.float64 if self.dtype == "float64" else torch.float32

    def resolve_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        allowed = "it can be 'auto', 'cpu', 'cuda' or 'cuda:1', …"
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError):
            raise ConfigError("device", f"{short_repr(self.device)} given; {allowed}") from None
        if device.type not in ("cpu", "cuda"):
            raise ConfigError("device", f"{short_repr(self.device)} given; {allowed}")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                "device", f"{short_repr(self.device)} given, but no GPU is available; use 'auto' or 'cpu'"
            )
        if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
            raise ConfigError(
                "device", f"{short_repr(self.device)} given, but there are {count} GPUs, from 'cuda:0' on"
            )
        return device


class Engine(ABC):
    """Advances the rows of the clients held here, `[S·k, d]` for k clients of S trials.

    `state` is the algorithm's, `t` the iterations done. Nothing is random but what the oracle draws from (seed, client,
    iteration), so the state after t iterations does not depend on how they were run. Among several processes, every
    process calls the same methods in the same order.

    Parameters
    ----------
    algorithm
        One for all trials, or one for each: the same method, with other numbers.
    clients
        The clients whose rows are held here.
    reduction
        Sums and minima over all processes of the run.
    sharing
        What may be sent between processes for measures.
    """

    oracle: Oracle
    state: State
    monitor: Monitor
    #: The state of the network's channel.
    channel_state: ChannelState

    def __init__(
        self,
        problem: Problem,
        network: Network | None,
        algorithm: Algorithm | Sequence[Algorithm],
        *,
        clients: Sequence[int],
        device: torch.device,
        reduction: Reduction,
        sharing: Sharing,
        period: int,
        batch_size: BatchSize,
        settings: EngineSettings,
        channel: Channel,
    ) -> None:
        methods = [algorithm] * len(problem.trials) if isinstance(algorithm, Algorithm) else list(algorithm)
        self.network = network_for(methods[0], network, problem.n, channel, settings.participation)
        for method in methods:
            if method.automatic:
                raise ConfigError(
                    method.stepsize_key, "'auto' given, but a number is needed here: `depositum tune` finds one"
                )
        trials = zip(methods, problem.betas, problem.prox_moduli, problem.weightings, strict=True)
        for method, beta, modulus, weighting in trials:
            method.check(period, composite=problem.composite and beta > 0, prox_modulus=modulus)
            check_server_weights(method, weighting)
        self.problem, self.clients, self.channel = problem, clients, channel
        self.reduction, self.sharing = reduction, sharing
        self.period, self.batch_size, self.settings = period, batch_size, settings
        self.device, self.dtype = device, settings.resolve_dtype()
        #: Each trial's method, and all of them merged into one that acts on all rows.
        self.algorithms: Sequence[Algorithm] = methods
        self.algorithm = self.merged(len(clients))
        #: Iterations done, and those of the complete run, where known: compilation has to repay itself in them.
        self.t = self.steps = 0
        #: What the iterations cost the clients held here, on average, but for messages whose sizes depend on values.
        self.costs = Costs()

    @property
    def cohort(self) -> int:
        """How many clients take part in a phase."""
        participation = self.network.participation
        return self.problem.n if participation is None else participation.size(self.problem.n)

    def merged(self, clients: int) -> Algorithm:
        """The trials' methods merged into one that acts on the rows of so many clients of each."""
        return merge_methods(self.algorithms, clients, self.device, self.dtype)

    @abstractmethod
    def start(self) -> None:
        """Create the state at t = 0."""

    @abstractmethod
    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `count` iterations; an engine of all rows ends early once `stopped` returns True.

        `announce` is called before iterations are compiled.
        """

    @abstractmethod
    def watch(self, capacity: int) -> None:
        """Attach a new monitor, which is read at least every `capacity` iterations, and show it the present state."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Resume from a snapshot."""

    @abstractmethod
    def with_trials(self, labels: Sequence[int]) -> "Engine":
        """An engine like this one for the trials with these labels, not yet started."""

    @property
    def awaited(self) -> list[str]:
        """The names of the processes that this one waits for at the moment, if any; any thread may ask."""
        return []

    @property
    def bytes_by_row(self) -> Tensor | None:
        """The bytes of messages of varying size that each row's client has sent so far, float64 `[rows]`."""
        return self.channel_state.bytes_by_row

    def snapshot(self) -> dict[str, Tensor]:
        """Copies on the host of the state's variables, the buffers as `buffer.NAME`, the channel's `channel.NAME`."""
        return capture(self.state, self.oracle, self.channel_state.named())

    def _make_oracle(self, backend: Backend | Literal["auto"]) -> Oracle:
        frozen = has_frozen_base(self.problem.model)
        return Oracle(
            self.problem,
            self.batch_size,
            device=self.device,
            dtype=self.dtype,
            precision=resolve(self.settings.precision, self.dtype, self.device, frozen),
            backend=backend,
            clients=self.clients,
            sampling=self.settings.sampling,
        )

    def _methods_of(self, labels: Sequence[int]) -> list[Algorithm]:
        """The methods of the trials with these labels."""
        return [m for label, m in zip(self.problem.labels, self.algorithms, strict=True) if label in labels]


def restricted(engine: Engine, labels: Sequence[int]) -> Engine:
    """An engine with the rows of these trials only, at the same iteration."""
    smaller = engine.with_trials(labels)
    keep = [engine.problem.labels.index(label) for label in smaller.problem.labels]
    rows, clients = engine.oracle.rows, len(engine.clients)
    tensors = {name: select_trials(z, keep, rows, clients) for name, z in engine.snapshot().items()}
    smaller.restore(tensors, engine.t, engine.costs)
    return smaller


def network_for(
    algorithm: Algorithm,
    network: Network | None,
    n: int,
    channel: Channel,
    participation: Participation | None = None,
) -> Network:
    """The network that a method runs on: the given one, or a ring; a method with a server is given none."""
    check_network(algorithm, network, n, channel, participation)
    if algorithm.server:
        network = server_network(n)
    return with_participation(network or ring(n), participation)


def with_participation(network: Network, participation: Participation | None) -> Network:
    """The network with the clients that take part in each phase, if not all do."""
    if participation is None or participation.size(network.n) == network.n:
        return network
    return replace(network, participation=participation)


def check_network(
    algorithm: Algorithm,
    network: Network | None,
    n: int,
    channel: Channel,
    participation: Participation | None = None,
) -> None:
    """Refuse a network, a channel, a number of clients or a participation that does not fit a method."""
    given = participation
    if participation is not None and participation.size(n) == n:
        if participation.share is not None and participation.share < 1:
            problem = f"a share of {participation.share:g} given, which is all of {n} clients"
            raise ConfigError("participation", f"{problem}; leave it out, or give a smaller one")
        participation = None
    if algorithm.server:
        for key, wrong in (("network", network is not None), ("channel", channel.name != "exact")):
            if wrong:
                raise ConfigError(
                    key,
                    f"given, but {algorithm.name!r} has a server: every client communicates with it alone; leave the "
                    "network out",
                )
        if participation is not None and not algorithm.served:
            raise ConfigError("participation", f"given, but {algorithm.name!r} {algorithm.needs_all}; leave it out")
        return
    if algorithm.compresses and channel.name != "exact":
        raise ConfigError(
            "channel",
            f"{short_repr(channel.name)} given, but {algorithm.name!r} compresses what it sends; leave it out",
        )
    varies = participation is not None
    if network is not None:
        _check_graph(algorithm, network, n, channel)
        varies = varies or network.varies
        if network.participation is not None and given not in (None, network.participation):
            raise ConfigError("participation", "given, but the network has another one; give one of them")
        if participation is not None and (network.directed or network.lost is not None or network.sequence is not None):
            raise ConfigError(
                "participation",
                "given, but the network is directed, loses messages or is a sequence: the weights of links to clients "
                "that rest return to both ends, which is for one undirected graph; use another network, or leave it "
                "out",
            )
    if channel.memory and varies:
        raise ConfigError(
            "channel",
            f"{short_repr(channel.name)} given, but the links of this network come and go: both ends of a link keep "
            "copies, which needs links that are there in every phase; use one that keeps none, such as 'float16'",
        )


def _check_graph(algorithm: Algorithm, network: Network, n: int, channel: Channel) -> None:
    """Refuse a graph of another number of clients, or with links that a method or a channel cannot have."""
    if network.n != n:
        raise ConfigError("network", f"it has {network.n} clients, but the problem has {n}")
    if network.directed and not algorithm.directed:
        raise ConfigError(
            "network",
            f"directed, but {algorithm.name!r} mixes with a W that is symmetric or doubly stochastic: with R or C in "
            "its place it would converge to another point; use 'depositum-directed' (or 'push-pull' without h)",
        )
    if network.lost is not None:
        _check_lossy(algorithm, network.lost, channel)


def _check_lossy(algorithm: Algorithm, lost: LostMessages, channel: Channel) -> None:
    """Refuse methods and channels that links which lose messages in one direction would make wrong."""
    key = "lost" if lost.p else "late"
    if not algorithm.directed:
        raise ConfigError(
            key,
            f"given, but {algorithm.name!r} needs W^t 1 = 1 and 1ᵀ W^t = 1ᵀ in every phase, and a message that is lost "
            "or late in one direction breaks one of them; use 'depositum-directed', or drop, by which both directions "
            "are lost together",
        )
    if not channel.exact:
        raise ConfigError(
            "channel",
            f"{short_repr(channel.name)} given, but messages can be lost: running sums, of which receivers take "
            "differences, have to arrive as they are; use 'exact' or 'sparse'",
        )
