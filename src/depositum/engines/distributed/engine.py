"""The engine of one process among many: the rows of its own clients, and links to those of their neighbours.

The algorithm's code is the simulator's, and so is its trajectory, to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, Mix, State, merge_methods
from depositum.channels import Channel, Exact
from depositum.engines.distributed.async_tensor import awaited
from depositum.engines.distributed.clients import Placement, restrict_data
from depositum.engines.distributed.communicator import Communicator
from depositum.engines.distributed.links import LinkMix, SilentMix
from depositum.engines.engine import Costs, EngineSettings, network_for
from depositum.engines.mixing import IdentityMix
from depositum.engines.monitor import Monitor
from depositum.engines.snapshot import capture, reinstate
from depositum.errors import ConfigError, listing, nearest
from depositum.metrics import Reduction, Sharing
from depositum.networks import Network
from depositum.problem import Batch, BatchSize, Oracle, Problem
from depositum.problem.model_copy import has_frozen_base
from depositum.problem.precision import resolve
from depositum.problem.row_model import Backend


@dataclass(frozen=True)
class ProcessSettings:
    """How processes communicate.

    Attributes
    ----------
    timeout
        Seconds within which all processes must have started and, later, within which a peer must answer.
    evaluate
        What may be sent for measures: `"scalars"` and the averaged model, `"gather"` rows too, or `"none"`.
    """

    timeout: float = 30.0
    evaluate: Sharing = "scalars"

    def __post_init__(self) -> None:
        if not (isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError("timeout", f"{self.timeout!r} given; it must be a number of seconds > 0")
        choices = get_args(Sharing)
        if self.evaluate not in choices:
            near = nearest(str(self.evaluate), choices)
            raise ConfigError("evaluate", f"{self.evaluate!r} given; it can be {listing(choices)}{near}")


class DistributedEngine:
    """Advances the rows of the clients held here, one iteration at a time, together with the other processes.

    `state` is the algorithm's, with rows `[S·k, d]` for k clients held; `t` the iterations done, `costs` what they
    cost these clients on average. Every rank calls the same methods in the same order.

    Parameters
    ----------
    problem
        The problem of all clients, of which only the data of the clients held here is kept.
    algorithm
        One for all trials, or one for each: the same method, with other numbers.
    channel
        What happens to rows between clients; as they are, by default.
    evaluate
        What may be sent for measures: `"scalars"` and the averaged model, `"gather"` rows too, or `"none"`.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network | None,
        algorithm: Algorithm | Sequence[Algorithm],
        communicator: Communicator,
        *,
        period: int = 1,
        batch_size: BatchSize = "full",
        settings: EngineSettings | None = None,
        channel: Channel | None = None,
        evaluate: Sharing = "scalars",
    ) -> None:
        settings, channel = settings or EngineSettings(), channel or Exact()
        methods = [algorithm] * len(problem.trials) if isinstance(algorithm, Algorithm) else list(algorithm)
        network = network_for(methods[0], network, problem.n, channel)
        for method, beta, modulus in zip(methods, problem.betas, problem.prox_moduli, strict=True):
            method.check(period, composite=problem.composite and beta > 0, prox_modulus=modulus)
        placement = Placement(problem.n, communicator.size)
        communicator.describe_clients([placement.clients(rank) for rank in range(communicator.size)])
        self.clients: Sequence[int] = placement.clients(communicator.rank)
        self.problem = restrict_data(problem, self.clients)
        self.network, self.channel, self.communicator = network, channel, communicator
        self.algorithms: Sequence[Algorithm] = methods
        self.reduction: Reduction = communicator
        self.sharing: Sharing = evaluate
        self.period, self.batch_size, self.settings = period, batch_size, settings
        self.device, self.dtype = communicator.device, settings.resolve_dtype()
        #: All trials' methods merged into one that acts on all rows held here.
        self.algorithm = merge_methods(methods, len(self.clients), self.device, self.dtype)
        self.oracle = self._make_oracle()
        trials, d = len(problem.trials), problem.layout.size
        self.links = LinkMix(network, communicator, trials, self.dtype, channel, d)
        self._local = IdentityMix(self.links)
        self._awaiting_oracle = AwaitingOracle(self.oracle)
        self.t = self.steps = 0
        self.costs = Costs()
        self.state: State
        self.monitor: Monitor

    def _make_oracle(self) -> Oracle:
        def make(backend: Backend | Literal["auto"]) -> Oracle:
            return Oracle(
                self.problem,
                self.batch_size,
                device=self.device,
                dtype=self.dtype,
                precision=resolve(
                    self.settings.precision, self.dtype, self.device, has_frozen_base(self.problem.model)
                ),
                backend=backend,
                clients=self.clients,
            )

        if self.settings.backend != "auto":
            return make(self.settings.backend)
        # By a rule, not by measuring: a resumed run ends in the same bytes only with the same backend.
        if len(self.clients) * len(self.problem.trials) == 1:
            return make("loop")
        try:
            return make("vmap")
        except ConfigError:
            return make("loop")

    @property
    def bytes_by_row(self) -> Tensor | None:
        return self.links.channel_state.bytes_by_row

    def start(self) -> None:
        """Create the state at t = 0."""
        self._start(self.links)
        self.costs = Costs(0, self.links.bytes_sent, self.oracle.evaluations)

    def step(self) -> None:
        """One iteration for every row held here."""
        kind = self.algorithm.kind(self.t, self.period)
        talks = self.algorithm.communicates(kind)
        self.links.bytes_sent = 0.0
        if talks:
            self.links.begin(self.t // self.period)
        self.oracle.begin(self.state.t + 1)
        new = self.algorithm.step(self.state, self._awaiting_oracle, self.links if talks else self._local, kind)
        self.links.wait()
        self.state = awaited(new)
        self.monitor.observe(self.state)
        self.costs += Costs(int(talks), self.links.bytes_sent, self.oracle.evaluations)
        self.t += 1

    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `count` iterations; all of them, even if this process was asked to stop, since the others continue.

        None are compiled, so `announce` is not called.
        """
        for _ in range(count):
            self.step()

    def watch(self, capacity: int) -> None:
        """Attach a new monitor of the rows held here; the consensus error at every iteration is not known."""
        self.monitor = Monitor(self.problem.labels, self.clients, self.problem.n, 0, self.state)
        self.monitor.observe(self.state)

    # Complete states, for checkpoints

    def snapshot(self) -> dict[str, Tensor]:
        """Copies on the host of everything that makes up these clients' part of the run, by name."""
        return capture(self.state, self.oracle, self.links.channel_state.named())

    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Resume from a snapshot; nothing is sent."""
        self._start(SilentMix(self.links))
        self.state, channel = reinstate(self.state, self.oracle, tensors, t)
        self.links.channel_state.replace(channel)
        self.links.reset(resumed=True)
        self.t, self.costs = t, costs
        self.watch(0)

    def with_trials(self, labels: Sequence[int]) -> "DistributedEngine":
        """An engine like this one for the trials with these labels, not yet started."""
        own = zip(self.problem.labels, self.algorithms, strict=True)
        return DistributedEngine(
            self.problem.restricted_to(labels),
            None if self.algorithm.server else self.network,
            [method for label, method in own if label in labels],
            self.communicator,
            period=self.period,
            batch_size=self.batch_size,
            settings=self.settings,
            channel=self.channel,
            evaluate=self.sharing,
        )

    def _start(self, mix: Mix) -> None:
        self.links.channel_state.clear()
        self.links.bytes_sent = 0.0
        self.links.begin(0)
        self.oracle.begin(torch.zeros((), dtype=torch.int64, device=self.device))
        new = self.algorithm.init(self.oracle.start(), self._awaiting_oracle, mix)
        self.links.wait()
        self.state = awaited(new)
        self.links.channel_state.memory.clear()  # the first step mixes other variables than the start
        self.links.reset(resumed=False)
        self.t = 0
        self.watch(0)


class AwaitingOracle:
    """The oracle, for rows that may still be on their way: it waits for them where it needs them, and only there.

    In `grad(mix(x), sample())`, the mini-batch is drawn while x travels.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def sample(self, size: BatchSize | None = None) -> Batch:
        return self._oracle.sample(size)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        return self._oracle.grad(awaited(x), batch)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._oracle.full_grad(awaited(x))

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        return self._oracle.prox(awaited(z), awaited(step))

    def normal(self, like: Tensor) -> Tensor:
        return self._oracle.normal(like)
