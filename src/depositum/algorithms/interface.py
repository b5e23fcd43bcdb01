"""The interface of an algorithm, and its two doors to the world: `oracle` to data, `mix` to other clients.

An algorithm is a frozen dataclass of hyper-parameters with two pure functions on rows: `init` returns the first state
and `step` the next one. It knows nothing about devices, graphs, processes, seeds or batches. A state is a NamedTuple
of tensors with one row per client, and has at least the fields

- `t`: the iteration, a 0-dimensional int64 tensor (anything that changes with t is computed from it, on the device);
- `x`: the models, `[rows, d]`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from depositum.algorithms.hyperparameters import AUTO, check_choices
from depositum.errors import ConfigError, renamed_keys
from depositum.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor as Tensor

    from depositum.channels import Channel, Memory
else:  # Methods use it in annotations only, so that they can be listed and checked without loading torch.
    Tensor = Any


class Oracle(Protocol):
    """The problem as seen from the rows (see `depositum.problem.Oracle`)."""

    @property
    def weights(self) -> Tensor:
        """What the gradient of each row is multiplied by: n N_i/N, or 1 if clients have equal weights, `[rows, 1]`."""
        ...

    def sample(self, size: Any = None) -> Any: ...

    def grad(self, x: Tensor, batch: Any) -> Tensor: ...

    def full_grad(self, x: Tensor) -> Tensor: ...

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor: ...

    def normal(self, like: Tensor) -> Tensor: ...


class Mix(Protocol):
    """The paper's W^t: W in an exchange, the identity otherwise."""

    #: λ = ‖W − J‖₂, and the second largest and the smallest eigenvalue of W
    lam: float
    lam2: float
    lam_min: float
    #: The share of the clients that take part in a phase; 1 unless the run has `participation`.
    share: float

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of each row, `[rows, 1]`."""
        ...

    def __call__(self, z: Tensor) -> Tensor:
        """Mix rows `[rows, d]` with W^t, through the network's channel."""
        ...

    def average(self, z: Tensor) -> Tensor:
        """Return the exact mean over all clients, in every row: for initialization and servers."""
        ...

    def neighbours(self, z: Tensor) -> Tensor:
        """Return the unweighted sum over the neighbours of each row."""
        ...

    def pull(self, z: Tensor) -> Tensor:
        """Mix rows with R, row-stochastic, on a directed network; W on an undirected one."""
        ...

    def push(self, z: Tensor) -> Tensor:
        """Mix rows with C, column-stochastic, on a directed network; W on an undirected one."""
        ...

    def push_weights(self, phi: Tensor) -> Tensor:
        """C φ of the push-sum weights `[rows, 1]`, as they are; φ itself on an undirected network, where W 1 = 1."""
        ...

    def transmit(self, z: Tensor, channel: "Channel", memory: "Memory") -> "tuple[Tensor, Tensor, Memory]":
        """Send rows `[rows, d]` through a channel of the method's own; return W q, q and the channel's new memory.

        q is what the sender and all receivers take z for. The method keeps the memory, which is zero at the start.
        """
        ...


class State(Protocol):
    """The fields that every state has; each algorithm adds its own."""

    @property
    def t(self) -> Tensor: ...

    @property
    def x(self) -> Tensor: ...

    def _asdict(self) -> dict[str, Any]: ...

    @property
    def _replace(self) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class About:
    """Description of a method: its source and its row in the paper's complexity table.

    Complexities are written as in the paper's table, or "" if the table does not have the method.
    """

    title: str
    citation: str
    #: Whether the analysis assumes mean-squared smoothness and bounded gradient heterogeneity; None if unknown.
    mean_squared_smoothness: bool | None = None
    bounded_heterogeneity: bool | None = None
    batch: str = ""
    communication: str = ""
    gradients: str = ""
    mega_batch: bool | None = None
    linear_speedup: bool | None = None
    #: Iterations per communication phase, and mixing operations per phase, as written in the table (`"2K"`).
    interval: str = "1"
    mixing: str = ""
    #: What a user should know before using it: limits, and departures of released code from the paper.
    notes: str = ""


class Algorithm(ABC):
    """Base class of all methods: hyper-parameters, `init`, `step`, and declared properties."""

    #: The name used in configurations.
    name: ClassVar[str]
    about: ClassVar[About]
    #: The regularizers it supports: none ("smooth"), convex ones, or weakly convex ones as well.
    handles: ClassVar[Literal["smooth", "convex", "weakly convex"]] = "weakly convex"
    #: Why, of a method for convex ones, for an error message.
    needs_convex: ClassVar[str] = "its prox steps grow until the prox of a weakly convex h is not single-valued"
    #: Whether clients communicate with a server instead of neighbours: `mix.average` only, and no topology.
    server: ClassVar[bool] = False
    #: Whether it is right on a directed network: it mixes by `mix.pull` and `mix.push` only.
    directed: ClassVar[bool] = False
    #: Of a method with a server whose cohorts may change: the variables that are the server's, or that a client sets
    #: to them when a round begins. After an exchange they are equal in all rows, those of absent clients included.
    served: ClassVar[tuple[str, ...]] = ()
    #: The variables that depend on the iteration alone: those of clients that are absent change too.
    clocks: ClassVar[tuple[str, ...]] = ()
    #: Why a method with a server needs all clients in every round, if it has no `served`, for an error message.
    needs_all: ClassVar[str] = "does not declare what the server sends to clients that were absent"
    #: Whether it compresses what it sends, by `mix.transmit`: the network then cannot have a channel as well.
    compresses: ClassVar[bool] = False
    #: The hyper-parameter that sets how long the steps are, and whether they shrink as it grows (a weight, not a step).
    stepsize_key: ClassVar[str] = "alpha"
    stepsize_inverse: ClassVar[bool] = False
    #: The hyper-parameter that determines the largest prox step, and the formula of that step, for error messages.
    prox_key: ClassVar[str] = "alpha"
    prox_formula: ClassVar[str] = "α"
    #: The state variable that estimates the gradient, for the gradient-estimation error.
    estimate: ClassVar[str] = "nu"
    #: The variables that a step mixes, in order, for accounts of what was sent.
    mixes: ClassVar[tuple[str, ...]] = ()
    #: Hyper-parameters of type float that `init` and `step` need as plain Python numbers (to branch on them, or to
    #: compute a shape from them). The others may be columns `[rows, 1]` with one value per row, see `merge_methods`.
    scalar_parameters: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Check the hyper-parameters whose type is a `Literal`; methods check their numbers after calling this."""
        check_choices(self)

    @abstractmethod
    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> State:
        """Return the state at t = 0 for the common initial models `[rows, d]`; `mix` is W here."""

    @abstractmethod
    def step(self, s: Any, oracle: Oracle, mix: Mix, kind: str) -> State:
        """Return the state at t + 1."""

    @abstractmethod
    def vectors(self) -> int:
        """Return how many vectors a client sends in one phase, to each neighbour or to the server."""

    @property
    def periods(self) -> Sequence[int] | None:
        """The supported periods T0; None means any."""
        return None

    def kind(self, t: int, period: int) -> str:
        """Return which of its few kinds of step iteration t is; evaluated on the host."""
        return "exchange" if t % period == 0 else "local"

    def communicates(self, kind: str) -> bool:
        """Return whether `mix` is W in steps of this kind (and not the identity)."""
        return kind != "local"

    def largest_prox_step(self, period: int) -> float:
        """Return the largest step that it ever passes to `oracle.prox`."""
        return 0.0

    @property
    def automatic(self) -> bool:
        """Whether the stepsize is `"auto"`: it has to be chosen by `depositum.tuning` before the method can run."""
        return isinstance(value := getattr(self, self.stepsize_key, None), str) and value == AUTO

    def stepsize(self, t: int) -> float | None:
        """Return the stepsize α at iteration t with which G^α is measured; None if the method does not have one."""
        return None

    @classmethod
    def shorter_steps(cls, section: str = "") -> str:
        """Return which change of a hyper-parameter makes the steps shorter, for messages: `"a smaller alpha"`.

        `section` is what the key is in: `"algorithm."` in a file.
        """
        # A user-defined method may not have a hyper-parameter of that name.
        if cls.stepsize_key not in getattr(cls, "__dataclass_fields__", {}):
            return "a smaller stepsize"
        return f"a {'larger' if cls.stepsize_inverse else 'smaller'} {section}{cls.stepsize_key}"

    def check(self, period: int, *, composite: bool, prox_modulus: float) -> None:
        """Reject, before any work, a period or a regularizer that the method does not support.

        Parameters
        ----------
        period
            T0.
        composite
            Whether there is a regularizer: β > 0 and h ≠ 0.
        prox_modulus
            βρ, the weak-convexity modulus of βh; 0 if h is convex.
        """
        if period < 1:
            raise ConfigError("period", f"{period} given; T0 must be a whole number ≥ 1")
        if self.periods is not None and period not in self.periods:
            allowed = ", ".join(map(str, self.periods))
            raise ConfigError("period", f"{period} given, but {self.name!r} supports only {allowed}")
        if composite and self.handles == "smooth":
            raise ConfigError(
                "regularizer",
                f"{self.name!r} is for smooth problems: it has no prox step, so it would ignore h; "
                "use regularizer = \"zero\" or beta = 0, or a composite method such as 'depositum'",
            )
        if prox_modulus > 0 and self.handles == "convex":
            raise ConfigError(
                "regularizer",
                f"{self.name!r} needs a convex h: {self.needs_convex}",
            )
        step = 0.0 if self.automatic else self.largest_prox_step(period)
        if step * prox_modulus >= 1:
            product = f"{self.prox_formula}βρ" if len(self.prox_formula) == 1 else f"({self.prox_formula})·βρ"
            raise ConfigError(
                self.prox_key,
                f"{product} = {step:g}·{prox_modulus:g} = {step * prox_modulus:g}, but the prox is single-valued only "
                f"below 1, for prox steps < {1 / prox_modulus:g}; change {self.prox_key}, or use a smaller beta",
            )


class RoundBased(Algorithm):
    """A method that works in rounds of `period` local steps, the last of which ends with the exchange."""

    def kind(self, t: int, period: int) -> str:
        return "exchange" if (t + 1) % period == 0 else "local"


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", listed_by="depositum methods")


def algorithm(name: str, **hyperparameters: Any) -> Algorithm:
    """Create a method by its registered name.

    >>> algorithm("depositum", alpha=0.1).alpha
    0.1
    >>> algorithm("depositun")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    depositum.errors.ConfigError: name: 'depositun' is ... did you mean 'depositum'?
    """
    if name not in ALGORITHMS:
        ALGORITHMS.parse(name, "name")
    # The hyper-parameters are arguments beside the name, not in a table under it.
    with renamed_keys(lambda key: key.removeprefix(f"algorithm.{name}.")):
        return ALGORITHMS.parse({name: hyperparameters}, "algorithm").make()
