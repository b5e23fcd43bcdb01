"""The engine of one process among many: the rows of its own clients, and links to those of their neighbours.

The algorithm's code is the simulator's, and so is its trajectory, to rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isfinite
from typing import get_args

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, Mix
from depositum.channels import Channel, Exact
from depositum.engines.compilation import Accelerator
from depositum.engines.distributed.async_tensor import awaited
from depositum.engines.distributed.awaiting_oracle import AwaitingOracle
from depositum.engines.distributed.clients import Placement, restrict_data
from depositum.engines.distributed.communicator import Communicator
from depositum.engines.distributed.link_iteration import LinkIteration
from depositum.engines.distributed.links import LinkMix, SilentMix
from depositum.engines.distributed.resting import LinkCohortIteration
from depositum.engines.engine import Costs, Engine, EngineSettings
from depositum.engines.monitor import Monitor
from depositum.engines.snapshot import LINK, reinstate
from depositum.errors import ConfigError, check_choice, is_number, short_repr
from depositum.metrics import Sharing
from depositum.networks import Network
from depositum.problem import BatchSize, Oracle, Problem


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
        if not (is_number(self.timeout) and isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError("timeout", f"{short_repr(self.timeout)} given; it must be a number of seconds > 0")
        check_choice("evaluate", self.evaluate, get_args(Sharing))


class DistributedEngine(Engine):
    """The engine of one process among many, which holds the rows of its own clients.

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
        placement = Placement(problem.n, communicator.size)
        communicator.describe_clients([placement.clients(rank) for rank in range(communicator.size)])
        clients = placement.clients(communicator.rank)
        super().__init__(
            restrict_data(problem, clients),
            network,
            algorithm,
            clients=clients,
            device=communicator.device,
            reduction=communicator.reduction(evaluate),
            sharing=evaluate,
            period=period,
            batch_size=batch_size,
            settings=settings or EngineSettings(),
            channel=channel or Exact(),
        )
        self.communicator = communicator
        self.oracle = self._choose_oracle()
        trials, d = len(problem.trials), problem.layout.size
        seeds = [trial.seed for trial in problem.trials]
        self.links = LinkMix(self.network, communicator, trials, self.dtype, self.channel, d, seeds)
        self.channel_state = self.links.channel_state
        self.iteration = LinkIteration(self.algorithm, self.oracle, self.links, period)
        if (participation := self.network.participation) is not None:
            self.iteration = LinkCohortIteration(self.oracle, self.links, period, participation, self.merged)
        self._accelerator: Accelerator | None = None
        self._evaluations: dict[str, float] = {}

    def _choose_oracle(self) -> Oracle:
        if self.settings.backend != "auto":
            return self._make_oracle(self.settings.backend)
        # By a rule, not by measuring: a resumed run ends in the same bytes only with the same backend.
        if len(self.clients) * len(self.problem.trials) == 1:
            return self._make_oracle("loop")
        try:
            return self._make_oracle("vmap")
        except ConfigError:
            return self._make_oracle("loop")

    def start(self) -> None:
        """Create the state at t = 0."""
        self._start(self.links)
        self.costs = Costs(0, self.links.bytes_sent, self.oracle.evaluations)

    def step(self) -> None:
        """One iteration for every row held here, as the algorithm's code defines it: the reference for `advance`."""
        if self._stands_still():
            return
        kind = self._begin()
        self.state = self.iteration.advanced(self.state, kind)
        self.monitor.observe(self.state)
        self._count(kind)

    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `count` iterations, the same as by `step` but faster; the state is updated in place.

        All of them, even if this process was asked to stop, since the others continue. `announce` is called before any
        are compiled.
        """
        accelerator = self._accelerated()
        accelerator.announce = announce
        end = self.t + count
        while self.t < end:
            if self._stands_still():
                continue
            kinds = (self._begin(), *self._local_steps(end))
            if accelerator.may_compile and not accelerator.is_prepared(kinds[0]):
                # Some may compile for longer than the others would wait for a message.
                with self.communicator.all_or_none("compile the iterations"):
                    accelerator.prepare(kinds[0])
            for kind in kinds[: accelerator.run(kinds)]:
                self._count(kind)

    def _stands_still(self) -> bool:
        """Whether this iteration leaves the rows held here as they are; if so, it is done."""
        if not self.communicator.stands_still(self.t, self.period, self.algorithm.vectors()):
            return False
        self.state.t.add_(1)
        self.t += 1
        return True

    def _begin(self) -> str:
        """Begin an iteration; return its kind."""
        kind = self.algorithm.kind(self.t, self.period)
        self.links.reset_counts()
        if self.algorithm.communicates(kind):
            self.links.begin(self.t // self.period, self.algorithm.mixes)
        return kind

    def _local_steps(self, end: int) -> list[str]:
        """The kinds of the iterations after this one that can be captured with it: those of this phase."""
        if self.device.type != "cuda" or self.algorithm.communicates(self.algorithm.kind(self.t, self.period)):
            return []
        phase_end = min(end, self.t - self.t % self.period + self.period)
        kinds = (self.algorithm.kind(t, self.period) for t in range(self.t + 1, phase_end))
        return list(takewhile(lambda kind: not self.algorithm.communicates(kind), kinds))

    def _accelerated(self) -> Accelerator:
        """The accelerator, holding the present state."""
        if self._accelerator is None or self.state is not self.iteration.state:
            self.iteration.hold(self.state)
            self.state = self.iteration.state
            precision, compile = self.oracle.model.precision, self.settings.compile
            self._accelerator = Accelerator(self.iteration, precision, self.device, compile, self.steps)
        return self._accelerator

    def _count(self, kind: str) -> None:
        # Gradients are counted when a step is run or traced, the same in every step of a kind unless clients rest.
        evaluations = self.oracle.evaluations
        if self.network.participation is None:
            evaluations = self._evaluations.setdefault(kind, evaluations)
        self.costs += Costs(int(self.algorithm.communicates(kind)), self.links.bytes_sent, evaluations)
        self.t += 1

    def watch(self, capacity: int) -> None:
        """Attach a new monitor of the rows held here; the consensus error at every iteration is not known."""
        self.monitor = Monitor(self.problem.labels, self.clients, self.problem.n, 0, self.state)
        self.iteration.monitor = self.monitor
        self._accelerator = None  # what was captured shows the state to another monitor
        self.monitor.observe(self.state)

    # Complete states, for checkpoints

    def snapshot(self) -> dict[str, Tensor]:
        """As of any engine; where processes resume alone, with what is known of the links as `link.NAME`."""
        known = {} if self.communicator.stops_together else self.links.named() | self.communicator.position()
        return super().snapshot() | {f"{LINK}{name}": tensor for name, tensor in known.items()}

    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Resume from a snapshot; nothing is sent."""
        self._start(SilentMix(self.links))
        self.state, channel = reinstate(self.state, self.oracle, tensors, t)
        self.channel_state.replace(channel)
        self.links.reset(resumed=True)
        if not self.communicator.stops_together:
            self.links.reinstate({k.removeprefix(LINK): v for k, v in tensors.items() if k.startswith(LINK)})
        self.t, self.costs = t, costs
        self.watch(0)

    @property
    def awaited(self) -> list[str]:
        return self.communicator.awaited

    def with_trials(self, labels: Sequence[int]) -> "DistributedEngine":
        """An engine like this one for the trials with these labels, not yet started."""
        return DistributedEngine(
            self.problem.restricted_to(labels),
            None if self.algorithm.server else self.network,
            self._methods_of(labels),
            self.communicator,
            period=self.period,
            batch_size=self.batch_size,
            settings=self.settings,
            channel=self.channel,
            evaluate=self.sharing,
        )

    def _start(self, mix: Mix) -> None:
        self.channel_state.clear()
        self.links.reset_counts()
        self.links.begin(0)
        self.oracle.begin(torch.zeros((), dtype=torch.int64, device=self.device))
        new = self.algorithm.init(self.oracle.start(), AwaitingOracle(self.oracle), mix)
        self.links.wait()
        self.state = awaited(new)
        self.channel_state.memory.clear()  # the first step mixes other variables than the start
        self.links.reset(resumed=False)
        self.t = 0
        self.watch(0)
