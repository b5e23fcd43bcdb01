"""ProxGT-SA, ProxGT-SR-O and ProxGT-SR-E: decentralized proximal gradient tracking with batches or recursion.

R. Xin, S. Das, U. A. Khan, S. Kar: "A Stochastic Proximal Gradient Framework for Decentralized Non-Convex Composite
Optimization: Topology-Independent Sample Complexity and Communication Efficiency", arXiv 2110.01594. With K mixing
rounds, plain or Chebyshev,

    y^{t+1} = W^K ( y^t + v^t − v^{t−1} )                                              (PG.1)
    x^{t+1} = W^K P_{αβ}( x^t − α y^{t+1} )                                            (PG.2)
    SA:   v^t = g(x^t), of a large batch                                               (PG.3)
    SR-O: v^t = g(x^t), of a very large batch B0, if t mod q = 0,
          v^t = v^{t−1} + g(x^t;ξ) − g(x^{t−1};ξ) otherwise                            (PG.4)
    SR-E: as SR-O, with full local gradients if t mod q = 0                            (PG.5)

from x_i^0 = x_0, y^0 = v^{−1} = 0. With a period, W^K is the identity in local steps. A step here begins with its
tracker not yet mixed, ỹ^t = y^t + v^t − v^{t−1}, and ends with the gradient at the new models, so that in every state
v^t belongs to x^t and J ỹ^t = J v^t; ỹ^0 = v^0.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from depositum.algorithms.base import ALGORITHMS, About, Mix, Oracle
from depositum.algorithms.rounds import repeated
from depositum.algorithms.stepping import Stepping, check_count, iteration_zero

_CITATION = (
    "Xin, Das, Khan, Kar: A Stochastic Proximal Gradient Framework for Decentralized Non-Convex Composite "
    "Optimization: Topology-Independent Sample Complexity and Communication Efficiency, arXiv 2110.01594"
)


class ProxGTState(NamedTuple):
    """ProxGT's variables, each `[rows, d]` but t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average of ν, before their mixing: ỹ
    nu: Tensor  # gradient estimates at x: v


@dataclass(frozen=True)
class _ProxGT(Stepping):
    """(PG.1) and (PG.2); how v is made is the variants' own."""

    rounds: int = 1
    chebyshev: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rounds", self.rounds)

    @abstractmethod
    def _first(self, x: Tensor, oracle: Oracle) -> Tensor:
        """v^0, and v^t wherever it is made anew."""

    def _next(self, s: ProxGTState, x: Tensor, oracle: Oracle, kind: str) -> Tensor:
        """v^{t+1} at the new models x."""
        return self._first(x, oracle)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ProxGTState:
        v = self._first(x0, oracle)
        return ProxGTState(t=iteration_zero(x0), x=x0, y=v, nu=v)

    def step(self, s: ProxGTState, oracle: Oracle, mix: Mix, kind: str) -> ProxGTState:
        alpha = self._alpha(s)
        y = repeated(mix, s.y, self.rounds, self.chebyshev)  # (PG.1)
        x = repeated(mix, oracle.prox(s.x - alpha * y, alpha), self.rounds, self.chebyshev)  # (PG.2)
        v = self._next(s, x, oracle, kind)
        return ProxGTState(t=s.t + 1, x=x, y=y + v - s.nu, nu=v)

    def vectors(self) -> int:
        return 2 * self.rounds


@ALGORITHMS.register("proxgt-sa")
@dataclass(frozen=True)
class ProxGTSA(_ProxGT):
    """ProxGT-SA; its large batch is the run's.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    rounds
        K, mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    """

    name: ClassVar[str] = "proxgt-sa"
    about: ClassVar[About] = About(
        title="ProxGT-SA",
        citation=_CITATION,
        mean_squared_smoothness=False,
        bounded_heterogeneity=False,
        batch="O(1/(n ε))",
        communication="Õ(1/ε)",
        gradients="O(1/(n ε²))",
        mega_batch=True,
        linear_speedup=True,
        mixing="2K",
    )

    def _first(self, x: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(x, oracle.sample())  # (PG.3)


@dataclass(frozen=True)
class _Recursive(_ProxGT):
    """SR: v is made anew every q iterations, and recursive in between."""

    q: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("q", self.q)

    def kind(self, t: int, period: int) -> str:
        """Iteration t makes v^{t+1}: anew in a refresh. It may be local at the same time."""
        mixing = super().kind(t, period)
        if (t + 1) % self.q:
            return mixing
        return "refresh" if mixing == "exchange" else "refresh-local"

    def communicates(self, kind: str) -> bool:
        return kind in ("exchange", "refresh")

    def _next(self, s: ProxGTState, x: Tensor, oracle: Oracle, kind: str) -> Tensor:
        if kind.startswith("refresh"):
            return self._first(x, oracle)
        batch = oracle.sample()
        return s.nu + oracle.grad(x, batch) - oracle.grad(s.x, batch)  # (PG.4)


@ALGORITHMS.register("proxgt-sr-o")
@dataclass(frozen=True)
class ProxGTSRO(_Recursive):
    """ProxGT-SR-O, for the online setting: it refreshes by a very large batch.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    rounds
        K, mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    q
        Iterations from one refresh to the next.
    refresh_batch
        B0, the batch size of a refresh; the recursion's is the run's.
    """

    name: ClassVar[str] = "proxgt-sr-o"
    about: ClassVar[About] = About(
        title="ProxGT-SR-O",
        citation=_CITATION,
        mean_squared_smoothness=True,
        bounded_heterogeneity=False,
        batch="O(1/(n ε))",
        communication="Õ(1/ε)",
        gradients="O(1/(n ε^{3/2}))",
        mega_batch=True,
        linear_speedup=True,
        mixing="2K",
        notes="The batch is that of a refresh. Circulating re-implementations freeze v between refreshes, and leave "
        "a permanent bias in the tracker.",
    )

    refresh_batch: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("refresh_batch", self.refresh_batch)

    def _first(self, x: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(x, oracle.sample(self.refresh_batch))  # (PG.4)


@ALGORITHMS.register("proxgt-sr-e")
@dataclass(frozen=True)
class ProxGTSRE(_Recursive):
    """ProxGT-SR-E, for empirical risks: it refreshes by full local gradients.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    rounds
        K, mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    q
        Iterations from one refresh to the next; the theory's is about the root of a client's number of samples.
    """

    name: ClassVar[str] = "proxgt-sr-e"
    about: ClassVar[About] = About(title="ProxGT-SR-E", citation=_CITATION, mixing="2K")

    def _first(self, x: Tensor, oracle: Oracle) -> Tensor:
        return oracle.full_grad(x)  # (PG.5)
