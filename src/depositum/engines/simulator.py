"""The simulator: all clients of all seeds in one process, as the rows of one matrix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from depositum.algorithms import Algorithm, State, merge_methods
from depositum.engines.compilation import CAPTURE_LENGTH, Accelerator, Compile
from depositum.engines.iteration import Iteration, Watch
from depositum.engines.mixing import Exchange
from depositum.engines.states import kept, taken_up
from depositum.errors import ConfigError
from depositum.networks import Network, complete, ring
from depositum.problem import BatchSize, Oracle, Problem
from depositum.problem.model_copy import has_frozen_base
from depositum.problem.precision import resolve
from depositum.problem.row_model import Backend


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
    """How the simulator runs: on what, in which numbers.

    Attributes
    ----------
    device
        `"auto"` (a GPU where there is one), `"cpu"`, `"cuda"`, `"cuda:1"`, …
    dtype
        `"float32"` or `"float64"`: of the state and all its arithmetic.
    precision
        Of the model's forward and backward only: `"auto"`, `"float32"`, `"tf32"`, `"bf16"`.
    backend
        How gradients of all rows are made: `"auto"` (on a CPU, the fastest of them, measured), `"loop"`,
        `"channels-last"`, `"vmap"`.
    compile
        Whether iterations are compiled: `"auto"` (where the run is long enough to repay it), `"always"`, `"never"`.
    """

    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    backend: Backend | Literal["auto"] = "auto"
    compile: Compile = "auto"

    def resolve_dtype(self) -> torch.dtype:
        if self.dtype not in ("float32", "float64"):
            raise ConfigError("run.dtype", f"{self.dtype!r} given; it can be 'float32' or 'float64'")
        return torch.float64 if self.dtype == "float64" else torch.float32

    def resolve_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ConfigError("run.device", f"{self.device!r} given; it can be 'auto', 'cpu', 'cuda', …") from None
        if device.type not in ("cpu", "cuda"):
            raise ConfigError("run.device", f"{self.device!r} given; it can be 'auto', 'cpu', 'cuda' or 'cuda:1', …")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("run.device", f"{self.device!r} given, but no GPU can be used here; take 'auto' or 'cpu'")
        if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
            raise ConfigError("run.device", f"{self.device!r} given, but there are {count} GPUs, from 'cuda:0' on")
        return device


class Simulator:
    """Advances the rows of a problem by an algorithm, one iteration at a time.

    `state` is the algorithm's, `t` the iterations done, `costs` what they cost. Nothing is random but what the oracle
    draws from (seed, client, iteration), so the state after t iterations does not depend on how they were run.

    Parameters
    ----------
    algorithm
        One for all trials, or one for each: of one method, with other numbers.
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
    ) -> None:
        settings = settings or EngineSettings()
        methods = [algorithm] * len(problem.trials) if isinstance(algorithm, Algorithm) else list(algorithm)
        network = network_for(methods[0], network, problem.n)
        if network.n != problem.n:
            raise ConfigError("network", f"it has {network.n} clients, but the problem has {problem.n}")
        for method, beta, modulus in zip(methods, problem.betas, problem.prox_moduli, strict=True):
            method.check(period, composite=problem.composite and beta > 0, prox_modulus=modulus)
        self.problem, self.network = problem, network
        #: Each trial's own method.
        self.algorithms = methods
        self.period, self.batch_size, self.settings = period, batch_size, settings
        self.device = settings.resolve_device()
        self.dtype = settings.resolve_dtype()
        #: All trials' algorithms merged into one that acts on all rows.
        self.algorithm = merge_methods(methods, problem.n, self.device, self.dtype)
        oracle = Oracle(
            problem,
            batch_size,
            device=self.device,
            dtype=self.dtype,
            precision=resolve(settings.precision, self.dtype, self.device, has_frozen_base(problem.model)),
            backend=settings.backend,
        )
        self.exchange = Exchange(network, len(problem.trials), self.device, self.dtype)
        self.iteration = Iteration(self.algorithm, oracle, self.exchange, period)
        self._cost_of: dict[str, tuple[int, float, float, float]] = {}
        self._accelerator: Accelerator | None = None
        #: Iterations of the whole run, where known: what compiling has to repay itself in.
        self.steps = 0
        self._stride = period * max(1, CAPTURE_LENGTH // period) if self.device.type == "cuda" else 1
        self.t = 0
        self.costs = Costs()
        self.state: State

    @property
    def oracle(self) -> Oracle:
        return self.iteration.oracle

    def start(self) -> None:
        """Make the state at t = 0."""
        self.exchange.count()
        self.oracle.begin(torch.zeros((), dtype=torch.int64, device=self.device))
        self.state = self.algorithm.init(self.oracle.start(), self.oracle, self.exchange)
        self.t = 0
        sent = self.exchange.to_all + self.exchange.to_each * self.exchange.sent_to(0)
        self.costs = Costs(0, sent, self.oracle.evaluations)

    def step(self) -> None:
        """One iteration for every row, as the algorithm's code says it: the reference for `advance`."""
        kind = self.algorithm.kind(self.t, self.period)
        self.exchange.count()
        self.state = self.iteration.advanced(self.state, kind)
        self._count(kind)
        if self.iteration.watch is not None:
            self.iteration.watch.observe(self.state)

    def advance(
        self,
        count: int,
        stopped: Callable[[], bool] = lambda: False,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """So many iterations, the same as by `step` but faster; the state is updated in place.

        Asked between a few of them, `stopped` ends it early. `announce` is told before any are compiled.
        """
        accelerator = self._accelerated()
        accelerator.announce = announce
        end = self.t + count
        while self.t < end and not stopped():
            # Rounds are captured whole; where the first begins, or the last ends, inside of one, its part is.
            last = min(end, self.t - self.t % self._stride + self._stride)
            kinds = tuple(self.algorithm.kind(t, self.period) for t in range(self.t, last))
            self.exchange.count()
            for kind in kinds[: accelerator.run(kinds)]:
                self._count(kind)

    def watch(self, watch: Watch | None) -> None:
        """Show the state after every iteration to somebody (None: to nobody)."""
        self.iteration.watch = watch
        self._accelerator = None  # what was captured shows it to another

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
        sent = to_all + (to_each * self.exchange.sent_to(self.t // self.period) if to_each else 0.0)
        self.costs += Costs(phases, sent, evaluations)
        self.t += 1

    # Whole states, for checkpoints

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Everything that makes the run, by name: the state's variables, and the buffers as `buffer.NAME`."""
        return kept(self.state, self.oracle)

    def restore(self, tensors: dict[str, torch.Tensor], t: int, costs: Costs) -> None:
        """Take up a snapshot."""
        self.start()
        self.state = taken_up(self.state, self.oracle, tensors, t)
        self.t, self.costs = t, costs

    def with_seeds(self, seeds: Sequence[int]) -> "Simulator":
        """The same simulator for the trials of these seeds (labels, where they have some) only, not yet started."""
        own = zip(self.problem.labels, self.algorithms, strict=True)
        return Simulator(
            self.problem.restricted_to(seeds),
            None if self.algorithm.server else self.network,
            [method for label, method in own if label in seeds],
            period=self.period,
            batch_size=self.batch_size,
            # The backend that was found fastest for all rows: another would round otherwise in the midst of a run.
            settings=replace(self.settings, backend=self.oracle.model.backend),
        )

    def restricted_to(self, seeds: Sequence[int]) -> "Simulator":
        """A simulator with the rows of these seeds only, at the same iteration."""
        smaller = self.with_seeds(seeds)
        keep = [self.problem.labels.index(label) for label in smaller.problem.labels]
        rows = {k: select_trials(v, keep, self.oracle.rows, self.problem.n) for k, v in self.snapshot().items()}
        smaller.restore(rows, self.t, self.costs)
        return smaller


def network_for(algorithm: Algorithm, network: Network | None, n: int) -> Network:
    """The network a method runs on: the one given, a ring if none is; a server method must be given none."""
    if not algorithm.server:
        return network or ring(n)
    if network is not None:
        raise ConfigError(
            "network.topology",
            f"given, but {algorithm.name!r} has a server: every client talks to it alone; leave the network out",
        )
    return complete(n, "uniform")


def select_trials(tensor: torch.Tensor, keep: Sequence[int], rows: int, n: int) -> torch.Tensor:
    """The rows of some trials of a variable `[rows, ...]`; a variable without rows is every trial's, and kept whole."""
    if tensor.dim() == 0 or len(tensor) != rows:
        return tensor
    return tensor.view(-1, n, *tensor.shape[1:])[list(keep)].flatten(0, 1)
