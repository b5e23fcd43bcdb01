"""Decentralized composite federated learning.

n clients, each with data that never leaves it, train one model together with no server, talking only to their
neighbours on a graph, while a regularizer makes the model sparse, low-rank or constrained:

    min_x  φ(x) = (1/n) Σ_i f_i(x) + β h(x)

`fit` trains a person's own model on their own data; the command `depositum run` runs a configuration file.
"""

from importlib.metadata import PackageNotFoundError, version

from depositum.algorithms import Algorithm, Depositum, algorithm
from depositum.engines import Callback
from depositum.engines.processes import ProcessSettings
from depositum.errors import (
    ConfigError,
    DataError,
    DepositumError,
    DivergedError,
    GroupError,
    NetworkError,
    PeerLost,
    RegularizerError,
)
from depositum.fit import FitResult, fit
from depositum.metrics import MetricSettings
from depositum.networks import (
    Network,
    complete,
    erdos_renyi,
    exponential,
    geometric,
    grid,
    hypercube,
    network,
    one_peer_exponential,
    path,
    ring,
    star,
    torus,
)
from depositum.regularizers import (
    L1,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    L2Norm,
    Nonnegative,
    NuclearNorm,
    Regularizer,
    Simplex,
    SquaredL2,
    Zero,
)
from depositum.report import TensorBoard

try:
    __version__ = version("depositum")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "L1",
    "MCP",
    "SCAD",
    "Algorithm",
    "Box",
    "Callback",
    "ConfigError",
    "DataError",
    "Depositum",
    "DepositumError",
    "DivergedError",
    "ElasticNet",
    "FitResult",
    "GroupError",
    "GroupLasso",
    "L1Ball",
    "L2Ball",
    "L2Norm",
    "MetricSettings",
    "Network",
    "NetworkError",
    "Nonnegative",
    "NuclearNorm",
    "PeerLost",
    "ProcessSettings",
    "Regularizer",
    "RegularizerError",
    "Simplex",
    "SquaredL2",
    "TensorBoard",
    "Zero",
    "__version__",
    "algorithm",
    "complete",
    "erdos_renyi",
    "exponential",
    "fit",
    "geometric",
    "grid",
    "hypercube",
    "network",
    "one_peer_exponential",
    "path",
    "ring",
    "star",
    "torus",
]
