"""DProxSGT and CDProxSGT: decentralized proximal stochastic gradient tracking, plain and with compressed exchanges.

Y. Yan, J. Chen, P.-Y. Chen, X. Cui, S. Lu, Y. Xu: "Compressed Decentralized Proximal Stochastic Gradient Method for
Nonconvex Composite Problems with Heterogeneous Data", ICML 2023. From x_i^0 = x_0, y^{−1} = g^{−1} = 0,

    paper:    y^t = W ( y^{t−1} + g^t − g^{t−1} ),   x^{t+1} = W P_{αβ}( x^t − α y^t )      (DX.1)
    released: y^t = W y^{t−1} + g^t − g^{t−1},       x^{t+1} = W P_{αβ}( x^t − α y^t )      (DX.2)

and, with a compressor Q and x̂, ŷ that start at 0,

    y ← y + g^t − g^{t−1};   ŷ ← ŷ + Q(y − ŷ);   y ← y + γ_y ( W ŷ − ŷ )                    (CD.1)
    x ← P_{αβ}( x − α y );   x̂ ← x̂ + Q(x − x̂);   x ← x + γ_x ( W x̂ − x̂ )                    (CD.2)

Here a step begins with a y that already includes g^t and ends with the gradient at the new models, so that in every
state g^t belongs to x^t and J y^t = J g^t; y^0 = g^0. (DX.1) and (DX.2) then differ only in whether the step on x uses
the mixed y. With a period, W is the identity in local steps, and x̂, ŷ (what the neighbours know) do not change.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import StepsizeMethod, iteration_zero, zeros_like
from depositum.errors import ConfigError, is_integer, short_repr

if TYPE_CHECKING:
    from depositum.channels import Channel

_CITATION = (
    "Yan, Chen, Chen, Cui, Lu, Xu: Compressed Decentralized Proximal Stochastic Gradient Method for Nonconvex "
    "Composite Problems with Heterogeneous Data, ICML 2023"
)


class DProxSGTState(NamedTuple):
    """The variables of DProxSGT, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average gradient, including the gradient at x
    nu: Tensor  # gradients at x


class CDProxSGTState(NamedTuple):
    """The variables of CDProxSGT, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # trackers of the average gradient, including the gradient at x
    nu: Tensor  # gradients at x
    x_hat: Tensor  # what neighbours know of x
    y_hat: Tensor  # what neighbours know of y


@ALGORITHMS.register("dproxsgt")
@dataclass(frozen=True)
class DProxSGT(StepsizeMethod):
    """DProxSGT.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    form
        `"paper"` (DX.1) or `"released"` (DX.2), which steps with the trackers before mixing.
    """

    name = "dproxsgt"
    about = About(
        title="DProxSGT",
        citation=_CITATION,
        mean_squared_smoothness=False,
        bounded_heterogeneity=False,
        batch="O(1)",
        communication="O(1/ε²)",
        gradients="O(1/ε²)",
        mega_batch=False,
        linear_speedup=False,
        mixing="2",
        notes='The released code steps with the trackers before mixing (form = "released"); it also clips gradients '
        "to norm 10, which is not done here.",
    )

    form: Literal["paper", "released"] = "paper"

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DProxSGTState:
        g = oracle.grad(x0, oracle.sample())
        return DProxSGTState(t=iteration_zero(x0), x=x0, y=g, nu=g)

    def step(self, s: DProxSGTState, oracle: Oracle, mix: Mix, kind: str) -> DProxSGTState:
        alpha = self._alpha(s)
        mixed = mix(s.y)
        y = mixed if self.form == "paper" else s.y  # (DX.1) or (DX.2)
        x = mix(oracle.prox(s.x - alpha * y, alpha))
        g = oracle.grad(x, oracle.sample())
        return DProxSGTState(t=s.t + 1, x=x, y=mixed + g - s.nu, nu=g)

    def vectors(self) -> int:
        return 2


@ALGORITHMS.register("cdproxsgt")
@dataclass(frozen=True)
class CDProxSGT(StepsizeMethod):
    """CDProxSGT: clients send compressed differences.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    compressor
        What is sent of differences: `"top-k"` (each row's entries of largest magnitude), `"random-k"`, `"quantize"`,
        `"sign"`, `"float16"`, as the channels of these names; `"none"` sends all.
    keep
        The fraction of a row's entries that top-k and random-k keep, in (0, 1]; at least one entry.
    bits
        The bits per number of quantize, from 2 to 8.
    gamma_x, gamma_y
        Gossip steps γ_x and γ_y, in (0, 1].
    """

    name = "cdproxsgt"
    compresses = True
    about = About(
        title="CDProxSGT",
        citation=_CITATION,
        mixing="2",
        notes="Top-k is over a client's complete row; the released code takes it per tensor, has no prox, and stores "
        "trackers in float64.",
    )

    scalar_parameters = ("keep",)  # the number of entries that top-k selects is a shape

    compressor: Literal["top-k", "random-k", "quantize", "sign", "float16", "none"] = "top-k"
    keep: float = 0.3
    bits: int = 4
    gamma_x: float = 0.5
    gamma_y: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("keep", "gamma_x", "gamma_y"):
            check_interval(key, getattr(self, key), "(0, 1]")
        if not (is_integer(self.bits) and 2 <= self.bits <= 8):
            raise ConfigError("bits", f"{short_repr(self.bits)} given; it must be a whole number from 2 to 8")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> CDProxSGTState:
        g = oracle.grad(x0, oracle.sample())
        return CDProxSGTState(t=iteration_zero(x0), x=x0, y=g, nu=g, x_hat=zeros_like(x0), y_hat=zeros_like(x0))

    def step(self, s: CDProxSGTState, oracle: Oracle, mix: Mix, kind: str) -> CDProxSGTState:
        alpha = self._alpha(s)
        x_hat, y_hat, y = s.x_hat, s.y_hat, s.y
        if self.communicates(kind):
            y, y_hat = self._gossip(y, y_hat, self.gamma_y, mix)  # (CD.1)
        x = oracle.prox(s.x - alpha * y, alpha)
        if self.communicates(kind):
            x, x_hat = self._gossip(x, x_hat, self.gamma_x, mix)  # (CD.2)
        g = oracle.grad(x, oracle.sample())
        return CDProxSGTState(t=s.t + 1, x=x, y=y + g - s.nu, nu=g, x_hat=x_hat, y_hat=y_hat)

    def vectors(self) -> int:
        return 2

    def _gossip(self, z: Tensor, hat: Tensor, gamma: float, mix: Mix) -> tuple[Tensor, Tensor]:
        """Return z + γ(W − I)ẑ and ẑ, after adding the compressed difference, the only thing sent, to ẑ."""
        mixed, hat, _ = mix.transmit(z, self._channel(), {"estimate": hat})
        return z + gamma * (mixed - hat), hat

    def _channel(self) -> "Channel":
        from depositum.channels import as_channel  # imports torch

        if self.compressor == "none":
            return as_channel("exact")
        arguments: dict[str, dict[str, float | bool]] = {
            "top-k": {"share": self.keep},
            "random-k": {"share": self.keep},
            "quantize": {"bits": self.bits},
            "float16": {"feedback": True},
        }
        return as_channel({self.compressor: arguments.get(self.compressor, {})})
