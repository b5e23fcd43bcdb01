"""The simulator: all clients of all trials in one process, as the rows of one matrix."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from depositum.algorithms import Algorithm
from depositum.channels import Channel, Exact
from depositum.engines.cohorts import CohortIteration
from depositum.engines.compilation import CAPTURE_LENGTH, Accelerator
from depositum.engines.engine import Costs, Engine, EngineSettings
from depositum.engines.iteration import MatrixIteration
from depositum.engines.mixing import MatrixMix
from depositum.engines.monitor import Monitor
from depositum.engines.snapshot import reinstate
from depositum.metrics import SINGLE_PROCESS
from depositum.networks import Network
from depositum.problem import BatchSize, Problem


class Simulator(Engine):
    """The engine of one process that holds the rows of all clients.

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
        settings = settings or EngineSettings()
        super().__init__(
            problem,
            network,
            algorithm,
            clients=range(problem.n),
            device=settings.resolve_device(),
            reduction=SINGLE_PROCESS,
            sharing="gather",
            period=period,
            batch_size=batch_size,
            settings=settings,
            channel=channel or Exact(),
        )
        trials, d = len(problem.trials), problem.layout.size
        self.oracle = self._make_oracle(settings.backend)
        seeds = [trial.seed for trial in problem.trials]
        self.exchange = MatrixMix(self.network, trials, self.device, self.dtype, self.channel, d, seeds)
        self.channel_state = self.exchange.channel_state
        self.iteration = MatrixIteration(self.algorithm, self.oracle, self.exchange, period)
        if (participation := self.network.participation) is not None:
            of_cohort = self.merged(self.cohort)
            self.iteration = CohortIteration(
                self.algorithm, self.oracle, self.exchange, period, participation, of_cohort
            )
        self._cost_of: dict[str, tuple[int, float, float, float]] = {}
        self._accelerator: Accelerator | None = None
        self._stride = period * max(1, CAPTURE_LENGTH // period) if self.device.type == "cuda" else 1

    def start(self) -> None:
        """Create the state at t = 0."""
        self.channel_state.clear()
        self.exchange.reset_counts()
        self.oracle.begin(torch.zeros((), dtype=torch.int64, device=self.device))
        self.state = self.algorithm.init(self.oracle.start(), self.oracle, self.exchange)
        self.channel_state.memory.clear()  # the first step mixes other variables than the start
        self.t = 0
        self.costs = Costs(0, self._bytes_sent(self.exchange.to_each, self.exchange.to_all), self.oracle.evaluations)

    def step(self) -> None:
        """One iteration for every row, as the algorithm's code defines it: the reference for `advance`."""
        kind = self.algorithm.kind(self.t, self.period)
        self.exchange.reset_counts()
        self.state = self.iteration.advanced(self.state, kind)
        self._count(kind)
        self.iteration.observe(self.state)

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
        self.costs += Costs(phases, self._bytes_sent(to_each, to_all), evaluations)
        self.t += 1

    def _bytes_sent(self, to_each: float, to_all: float) -> float:
        """What a client sends in iteration t, on average: to each neighbour, and to a server or for an average."""
        return to_all + (to_each * self.exchange.mean_degree(self.t // self.period) if to_each else 0.0)

    # Complete states, for checkpoints

    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Resume from a snapshot."""
        self.start()
        self.state, channel = reinstate(self.state, self.oracle, tensors, t)
        self.channel_state.replace(channel)
        self.t, self.costs = t, costs

    def with_trials(self, labels: Sequence[int]) -> "Simulator":
        """A simulator like this one for the trials with these labels, not yet started."""
        return Simulator(
            self.problem.restricted_to(labels),
            None if self.algorithm.server else self.network,
            self._methods_of(labels),
            period=self.period,
            batch_size=self.batch_size,
            # The backend that was found fastest for all rows: another would round differently within a run.
            settings=replace(self.settings, backend=self.oracle.model.backend),
            channel=self.channel,
        )
