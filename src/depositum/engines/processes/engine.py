"""The engine of one process among many: the rows of its own clients, and links to those of their neighbours.

The algorithm's code is the simulator's, and so is its trajectory, to rounding.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, Mix, State
from depositum.engines.monitor import Divergence
from depositum.engines.processes.encoding import EncodingName
from depositum.engines.processes.finite import FirstNonFinite
from depositum.engines.processes.group import Group
from depositum.engines.processes.links import Links, Local, Silent
from depositum.engines.processes.measures import Evaluate, GlobalMeasures
from depositum.engines.processes.own_data import own_data
from depositum.engines.processes.placement import Placement
from depositum.engines.processes.promise import settled
from depositum.engines.simulator import Costs, EngineSettings, network_for, select_trials
from depositum.engines.states import kept, taken_up
from depositum.errors import ConfigError, listing, nearest
from depositum.networks import Network
from depositum.problem import Batch, BatchSize, Oracle, Problem
from depositum.problem.model_copy import has_frozen_base
from depositum.problem.precision import resolve
from depositum.problem.row_model import Backend


class ProcessEngine:
    """Advances the rows of the clients held here, one iteration at a time, together with the other ranks.

    `state` is the algorithm's, with rows `[S·k, d]` for k clients held; `t` the iterations done, `costs` what they
    cost these clients on average. Every rank calls the same methods in the same order.

    Parameters
    ----------
    problem
        The whole problem, of which the data of other clients is not kept; or one that `own_data` made.
    send
        What rows look like on a link: `"float32"` as they are (in the state's dtype), `"float16"`, `"bfloat16"`,
        `"sparse"`.
    evaluate
        What may be sent for measures: `"scalars"` and the averaged model, `"gather"` rows too, or `"none"`.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network | None,
        algorithm: Algorithm,
        group: Group,
        *,
        period: int = 1,
        batch_size: BatchSize = "full",
        settings: EngineSettings | None = None,
        send: EncodingName = "float32",
        evaluate: Evaluate = "scalars",
    ) -> None:
        settings = settings or EngineSettings()
        network = network_for(algorithm, network, problem.n)
        if network.n != problem.n:
            raise ConfigError("network", f"it has {network.n} clients, but the problem has {problem.n}")
        choices = ("scalars", "gather", "none")
        if evaluate not in choices:
            key = "processes.evaluate"
            raise ConfigError(key, f"{evaluate!r} given; it can be {listing(choices)}{nearest(evaluate, choices)}")
        algorithm.check(period, composite=problem.composite, prox_modulus=problem.prox_modulus)
        self.placement = Placement(problem.n, group.size)
        group.place(self.placement)
        self.clients = self.placement.clients(group.rank)
        self.problem = own_data(problem, self.clients)
        self.network, self.algorithm, self.group = network, algorithm, group
        self.period, self.batch_size, self.settings = period, batch_size, settings
        self.send, self.evaluate = send, evaluate
        self.device, self.dtype = group.device, settings.resolve_dtype()
        self.oracle = self._make_oracle()
        self.links = Links(network, group, len(problem.trials), self.dtype, send)
        self.local = Local(self.links)
        self.measures = GlobalMeasures(self.oracle, group)
        self._waits = Waiting(self.oracle)
        self.t = self.steps = 0
        self.costs = Costs()
        self.state: State
        self.finite: FirstNonFinite

    def _make_oracle(self) -> Oracle:
        def made(backend: Backend | Literal["auto"]) -> Oracle:
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
            return made(self.settings.backend)
        # By a rule, not by a stopwatch: a run that is taken up again ends in the same bytes only with the same one.
        if len(self.clients) * len(self.problem.trials) == 1:
            return made("loop")
        try:
            return made("vmap")
        except ConfigError:
            return made("loop")

    def start(self) -> None:
        """Make the state at t = 0."""
        self._begin(self.links)
        self.costs = Costs(0, self.links.bytes, self.oracle.evaluations)

    def step(self) -> None:
        """One iteration for every row held here."""
        kind = self.algorithm.kind(self.t, self.period)
        talks = self.algorithm.communicates(kind)
        self.links.bytes = 0.0
        if talks:
            self.links.enter(self.t // self.period)
        self.oracle.begin(self.state.t + 1)
        new = self.algorithm.step(self.state, self._waits, self.links if talks else self.local, kind)
        self.links.settle()
        self.state = settled(new)
        self.finite.observe(self.state)
        self.costs += Costs(int(talks), self.links.bytes, self.oracle.evaluations)
        self.t += 1

    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """So many iterations; all of them, whoever wants to stop, since the other ranks go on (`stops`).

        None are compiled: nothing is announced.
        """
        for _ in range(count):
            self.step()

    # What is known of all ranks together (`engines.whole`); every rank must ask

    def read_errors(self, t: int) -> list[tuple[int, int, float]]:
        """Nothing: the consensus error of every iteration would need all ranks to meet at every iteration."""
        return []

    def stops(self, asked: bool, due: bool) -> bool:
        """Whether any rank was asked to stop, so that all stop at the same iteration, one that is `due`."""
        return due and bool(self.group.sum(torch.tensor([float(asked)])) > 0)

    def measure_cheap(self, train: bool = True) -> dict[str, Tensor]:
        """Loss, objective, accuracy, consensus errors, sparsity, each `[S]`; nothing with `evaluate = "none"`."""
        return {} if self.evaluate == "none" else self.measures.cheap(self.state, train)

    def measure_costly(self, alpha: float | None, smoothness: Sequence[float]) -> dict[str, Tensor]:
        """The clients' accuracy; with `evaluate = "gather"`, ‖G^α‖², estimation error, s and ζ² too. Each `[S]`."""
        if self.evaluate == "none":
            return {}
        out = self.measures.clients(self.state)
        if self.evaluate == "gather":
            out |= self.measures.gathered(self.state, alpha, smoothness, self.algorithm.estimate)
        return out

    def diverged(self) -> list[Divergence]:
        """The first non-finite value of each seed that has one, on whichever rank."""
        return self.finite.agreed(self.group)

    def mean_costs(self) -> Costs:
        """What a client of the whole run has cost on average."""
        own = torch.tensor([self.costs.bytes_sent, self.costs.gradient_evaluations], dtype=torch.float64)
        sent, evaluations = (self.group.sum(own) / self.group.size).tolist()
        return Costs(self.costs.phases, sent, evaluations)

    def averaged(self, rows: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """x̄ `[d]` of one seed and its buffers averaged, over all ranks' clients, from a snapshot's rows of it."""
        buffers = {}
        for name, buffer in rows.items():
            if name.startswith("buffer."):
                mean = self.group.sum(buffer.to(torch.float64).sum(0)) / self.problem.n
                mean = mean if buffer.is_floating_point() else mean.round()
                buffers[name.removeprefix("buffer.")] = mean.to(buffer.dtype)
        return self.group.sum(rows["x"].sum(0)) / self.problem.n, buffers

    # Whole states, for checkpoints

    def snapshot(self) -> dict[str, Tensor]:
        """Everything that makes these clients' part of the run, by name, as the simulator's."""
        return kept(self.state, self.oracle)

    def restore(self, tensors: dict[str, Tensor], t: int, costs: Costs) -> None:
        """Take up a snapshot; nothing is sent."""
        self._begin(Silent(self.links))
        self.state = taken_up(self.state, self.oracle, tensors, t)
        self.t, self.costs = t, costs

    def with_seeds(self, seeds: Sequence[int]) -> "ProcessEngine":
        """The same engine for these seeds only, not yet started."""
        return ProcessEngine(
            self.problem.restricted_to(seeds),
            None if self.algorithm.server else self.network,
            self.algorithm,
            self.group,
            period=self.period,
            batch_size=self.batch_size,
            settings=self.settings,
            send=self.send,
            evaluate=self.evaluate,
        )

    def restricted_to(self, seeds: Sequence[int]) -> "ProcessEngine":
        """An engine with the rows of these seeds only, at the same iteration."""
        smaller = self.with_seeds(seeds)
        keep = [self.problem.seeds.index(seed) for seed in smaller.problem.seeds]
        rows = {k: select_trials(v, keep, self.oracle.rows, len(self.clients)) for k, v in self.snapshot().items()}
        smaller.restore(rows, self.t, self.costs)
        return smaller

    def _begin(self, mix: Mix) -> None:
        self.links.bytes = 0.0
        self.links.enter(0)
        self.oracle.begin(torch.zeros((), dtype=torch.int64, device=self.device))
        new = self.algorithm.init(self.oracle.start(), self._waits, mix)
        self.links.settle()
        self.state = settled(new)
        self.t = 0
        self.finite = FirstNonFinite(self.problem.seeds, self.clients, self.problem.n, self.state)
        self.finite.observe(self.state)


class Waiting:
    """The oracle, for rows that may still be on their way: it waits for them where it needs them, and only there.

    In `grad(mix(x), sample())`, the mini-batch is drawn while x travels.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def sample(self, size: BatchSize | None = None) -> Batch:
        return self._oracle.sample(size)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        return self._oracle.grad(settled(x), batch)

    def full_grad(self, x: Tensor) -> Tensor:
        return self._oracle.full_grad(settled(x))

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        return self._oracle.prox(settled(z), settled(step))

    def normal(self, like: Tensor) -> Tensor:
        return self._oracle.normal(like)
