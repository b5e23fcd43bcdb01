"""The simulator: all clients of all trials in one process, as the rows of one matrix."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State, merge_methods
from depositum.channels import Channel, Exact
from depositum.engines.compilation import CAPTURE_LENGTH, Accelerator
from depositum.engines.engine import Costs, EngineSettings, network_for
from depositum.engines.iteration import Iteration
from depositum.engines.mixing import MatrixMix
from depositum.engines.monitor import Monitor
from depositum.engines.snapshot import capture, reinstate
from depositum.metrics import SINGLE_PROCESS, Reduction, Sharing
from depositum.networks import Network
from depositum.problem import BatchSize, Oracle, Problem
from depositum.problem.model_copy import has_frozen_base
from depositum.problem.precision import resolve


class Simulator:
    """Advances the rows of a problem by an algorithm; the engine of one process that holds all clients.

    `state` is the algorithm's, `t` the iterations done, `costs` what they cost. Nothing is random but what the oracle
    draws from (seed, client, iteration), so the state after t iterations does not depend on how they were run.

    Parameters
    ----------
    algorithm
        One for all trials, or one for each: the same method, with other numbers.
    channel
        What happens to rows between clients; as they are, by default.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network | None,
        algorithm: Algorithm | Sequence[Algorithm],
        *,
        period: int = 1,
        batch_size: BatchSize = "full",
        settings: EngineSettings | None = None,
        channel: Channel | None = None,
    ) -> None:
        settings, channel = settings or EngineSettings(), channel or Exact()
        methods = [algorithm] * len(problem.trials) if isinstance(algorithm, Algorithm) else list(algorithm)
        network = network_for(methods[0], network, problem.n, channel)
        for method, beta, modulus in zip(methods, problem.betas, problem.prox_moduli, strict=True):
            method.check(period, composite=problem.composite and beta > 0, prox_modulus=modulus)
        self.problem, self.network, self.channel = problem, network, channel
        self.algorithms: Sequence[Algorithm] = methods
        self.clients: Sequence[int] = range(problem.n)
        self.reduction: Reduction = SINGLE_PROCESS
        self.sharing: Sharing = "gather"
        self.period, self.batch_size, self.settings = period, batch_size, settings
        self.device = settings.resolve_device()
        self.dtype = settings.resolve_dtype()
        #: All trials' methods merged into one that acts on all rows.
        self.algorithm = merge_methods(methods, problem.n, self.device, self.dtype)
        oracle = Oracle(
            problem,
            batch_size,
            device=self.device,
            dtype=self.dtype,
            precision=resolve(settings.precision, self.dtype, self.device, has_frozen_base(problem.model)),
            backend=settings.backend,
        )
        trials, d = len(problem.trials), problem.layout.size
        self.exchange = MatrixMix(network, trials, self.device, self.dtype, channel, d)
        self.iteration = Iteration(self.algorithm, oracle, self.exchange, period)
        self._cost_of: dict[str, tuple[int, float, float, float]] = {}
        self._accelerator: Accelerator | None = None
        self.steps = 0
        self._stride = period * max(1, CAPTURE_LENGTH // period) if self.device.type == "cuda" else 1
        self.t = 0
        self.costs = Costs()
        self.state: State
        self.monitor: Monitor

    @property
    def oracle(self) -> Oracle:
        return self.iteration.oracle

    @property
    def bytes_by_row(self) -> Tensor | None:
        return self.exchange.channel_state.bytes_by_row

    def start(self) -> None:
        """Create the state at t = 0."""
        self.exchange.channel_state.clear()
        self.exchange.reset_counts()
        self.oracle.begin(torch.zeros((), dtype=torch.int64, device=self.device))
        self.state = self.algorithm.init(self.oracle.start(), self.oracle, self.exchange)
        self.exchange.channel_state.memory.clear()  # the first step mixes other variables than the start
        self.t = 0
        sent = self.exchange.to_all + self.exchange.to_each * self.exchange.mean_degree(0)
        self.costs = Costs(0, sent, self.oracle.evaluations)

    def step(self) -> None:
        """One iteration for every row, as the algorithm's code defines it: the reference for `advance`."""
        kind = self.algorithm.kind(self.t, self.period)
        self.exchange.reset_counts()
        self.state = self.iteration.advanced(self.state, kind)
        self._count(kind)
        if self.iteration.monitor is not None:
            self.iteration.monitor.observe(self.state)

    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `count` iterations, the same as by `step` but faster; the state is updated in place.

        `stopped` is asked between a few of them, and ends early. `announce` is called before any are compiled.
        """
        accelerator = self._accelerated()
        accelerator.announce = announce
        end = self.t + count
        while self.t < end and not stopped():
            # Complete rounds are captured; where the first begins, or the last ends, within a round, its part is.
            last = min(end, self.t - self.t % self._stride + self._stride)
            kinds = tuple(self.algorithm.kind(t, self.period) for t in range(self.t, last))
            self.exchange.reset_counts()
            for kind in kinds[: accelerator.run(kinds)]:
                self._count(kind)

    def watch(self, capacity: int) -> None:
        """Attach a new monitor, which is read at least every `capacity` iterations, and show it the present state."""
        self.monitor = Monitor(self.problem.labels, self.clients, self.problem.n, capacity, self.state)
        self.iteration.monitor = self.monitor
        self._accelerator = None  # what was captured shows the state to another monitor
        self.monitor.observe(self.state)

    def _accelerated(self) -> Accelerator:
        """The accelerator, holding the present state."""
        if self._accelerator is None or self.state is not self.iteration.state:
            self.iteration.hold(self.state)
            self.state = self.iteration.state
            precision, compile = self.oracle.model.precision, self.settings.compile
            self._accelerator = Accelerator(self.iteration, precision, self.device, compile, self.steps)
        return self._accelerator

    def _count(self, kind: str) -> None:
        if kind not in self._cost_of:  # the same at every step of a kind
            talks, exchange = int(self.algorithm.communicates(kind)), self.exchange
            self._cost_of[kind] = talks, exchange.to_each, exchange.to_all, self.oracle.evaluations
        phases, to_each, to_all, evaluations = self._cost_of[kind]
        sent = to_all + (to_each * self.exchange.mean_degree(self.t // self.period) if to_each else 0.0)
        self.costs += Costs(phases, sent, evaluations)
        self.t += 1

    # Complete states, for checkpoints

    def snapshot(self) -> dict[str, Tensor]:
        """Copies on the host of the state's variables, the buffers as `buffer.NAME`, the channel's `channel.NAME`."""
        return capture(self.state, self.oracle, self.exchange.channel_state.named())

    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Resume from a snapshot."""
        self.start()
        self.state, channel = reinstate(self.state, self.oracle, tensors, t)
        self.exchange.channel_state.replace(channel)
        self.t, self.costs = t, costs

    def with_trials(self, labels: Sequence[int]) -> "Simulator":
        """A simulator like this one for the trials with these labels, not yet started."""
        own = zip(self.problem.labels, self.algorithms, strict=True)
        return Simulator(
            self.problem.restricted_to(labels),
            None if self.algorithm.server else self.network,
            [method for label, method in own if label in labels],
            period=self.period,
            batch_size=self.batch_size,
            # The backend that was found fastest for all rows: another would round differently within a run.
            settings=replace(self.settings, backend=self.oracle.model.backend),
            channel=self.channel,
        )
