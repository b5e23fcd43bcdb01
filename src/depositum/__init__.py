"""Decentralized composite federated learning.

n clients train one model without a server: each keeps its data and talks only to its neighbours on a graph, while a
regularizer makes the model sparse, low-rank or constrained:

    min_x  φ(x) = (1/n) Σ_i f_i(x) + β h(x)

`fit` trains a PyTorch model on in-memory data; the command `depositum run` trains from a configuration file.

Names are imported when they are first used (PEP 562), so that `import depositum` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depositum.algorithms import Algorithm, Depositum, algorithm
    from depositum.channels import Channel
    from depositum.engines import Callback, EarlyStopping
    from depositum.engines.distributed import ProcessSettings
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
    from depositum.fitting import FitResult, fit, load, tune, write_report
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
    from depositum.report.tensorboard import TensorBoard
    from depositum.runs.keep_best import KeepBest
    from depositum.tuning import TuningResult

#: The version of the code that runs, installed or not; pyproject.toml reads it from here.
__version__ = "0.1.0"

#: The public names of each module; the imports above tell the same to type checkers.
_NAMES = {
    "depositum.algorithms": "Algorithm Depositum algorithm",
    "depositum.channels": "Channel",
    "depositum.engines": "Callback EarlyStopping",
    "depositum.engines.distributed": "ProcessSettings",
    "depositum.errors": (
        "ConfigError DataError DepositumError DivergedError GroupError NetworkError PeerLost RegularizerError"
    ),
    "depositum.fitting": "FitResult fit load tune write_report",
    "depositum.metrics": "MetricSettings",
    "depositum.networks": (
        "Network complete erdos_renyi exponential geometric grid hypercube network one_peer_exponential path "
        "ring star torus"
    ),
    "depositum.regularizers": (
        "L1 MCP SCAD Box ElasticNet GroupLasso L1Ball L2Ball L2Norm Nonnegative NuclearNorm Regularizer "
        "Simplex SquaredL2 Zero"
    ),
    "depositum.report.tensorboard": "TensorBoard",
    "depositum.runs.keep_best": "KeepBest",
    "depositum.tuning": "TuningResult",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "L1",
    "MCP",
    "SCAD",
    "Algorithm",
    "Box",
    "Callback",
    "Channel",
    "ConfigError",
    "DataError",
    "Depositum",
    "DepositumError",
    "DivergedError",
    "EarlyStopping",
    "ElasticNet",
    "FitResult",
    "GroupError",
    "GroupLasso",
    "KeepBest",
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
    "TuningResult",
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
    "load",
    "network",
    "one_peer_exponential",
    "path",
    "ring",
    "star",
    "torus",
    "tune",
    "write_report",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = _submodule(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _submodule(name: str) -> Any:
    """Import a submodule, so that `depositum.networks` works after `import depositum`."""
    module = f"{__name__}.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
