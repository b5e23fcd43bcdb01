"""Settings in errors by the names that the user wrote: arguments of a Python function, or keys of a configuration.

All parts of the package below `runs` name the argument (`period`). What is done on behalf of a configuration is done
within `config_keys()`, which translates the name to the key in the file (`run.period`). What is done on behalf of a
call from Python is done within `argument_names()`, which translates the other way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial

from pydantic import BaseModel

from depositum.algorithms import ALGORITHMS
from depositum.errors import RunError, renamed_keys
from depositum.runs.config import Config, MetricsSection

#: Whether the user called a function from Python: settings are then arguments, whatever is done inside.
_from_python: ContextVar[bool] = ContextVar("from_python", default=False)


@contextmanager
def config_keys(section: str = "") -> Iterator[None]:
    """Name the settings in errors that are raised inside by their configuration keys; also a decorator.

    Parameters
    ----------
    section
        The section to search first, where a name is not unique: `alpha` is `algorithm.alpha` except among `metrics`.

    >>> from depositum.metrics import MetricSettings
    >>> with config_keys("metrics"):
    ...     MetricSettings(alpha=-1.0)
    Traceback (most recent call last):
    depositum.errors.ConfigError: metrics.alpha: -1.0 given; it must be a number > 0
    """
    if _from_python.get():
        yield
        return
    with renamed_keys(partial(config_key, section=section)):
        yield


@contextmanager
def argument_names() -> Iterator[None]:
    """Name the settings in errors that are raised inside by the arguments of the Python function that was called.

    >>> from depositum.errors import ConfigError
    >>> with argument_names(), config_keys():
    ...     raise ConfigError("run.period", "0 given; it must be a whole number ≥ 1")
    Traceback (most recent call last):
    depositum.errors.ConfigError: period: 0 given; it must be a whole number ≥ 1
    """
    token = _from_python.set(True)
    try:
        with renamed_keys(argument_name):
            yield
    except RunError as error:
        raise RunError(str(error).replace("--out ", "out: ", 1)) from None
    finally:
        _from_python.reset(token)


def setting_name(key: str) -> str:
    """How the user knows a setting: by its key in the configuration, or by the argument of a call from Python."""
    return argument_name(key) if _from_python.get() else key


def argument_name(key: str) -> str:
    """The argument that a key of a configuration stands for; any other name is returned unchanged."""
    section, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if section == "network" and name == "topology":
        return f"network{rest.removeprefix('topology')}"
    if key == "mixing":  # a network is passed with its weights
        return "network"
    if (
        section == "algorithm" and rest
    ):  # beside the name of a method stand its hyper-parameters, below it those of a table
        return key if name in ALGORITHMS else rest
    known = section in Config.model_fields and name in type(Config.model_fields[section].default).model_fields
    return rest if known else key


def config_key(argument: str, section: str = "") -> str:
    """The key of a configuration for an argument, or an item below one; any other name is returned unchanged.

    >>> config_key("topology.ring.hops"), config_key("alpha"), config_key("alpha", "metrics"), config_key("--out")
    ('network.topology.ring.hops', 'algorithm.alpha', 'metrics.alpha', '--out')
    """
    name = argument.partition(".")[0].partition("[")[0]
    if name in Config.model_fields:  # already a key, or a section as a whole
        return argument
    if section == "algorithm" or (section == "metrics" and name in MetricsSection.model_fields):
        return f"{section}.{argument}"
    key = _keys().get(name)
    if key is None:
        key = f"algorithm.{name}" if any(name in ALGORITHMS.parameters(method) for method in ALGORITHMS) else name
    return key + argument.removeprefix(name)


@cache
def _keys() -> dict[str, str]:
    """The keys of all arguments but hyper-parameters: that of the same name, with one exception."""
    keys = {"n": "problem.clients"}
    for section, field in Config.model_fields.items():
        assert isinstance(field.default, BaseModel)
        keys |= {name: f"{section}.{name}" for name in type(field.default).model_fields}
    del keys["alpha"]  # a hyper-parameter; that of the measures is found by its section
    return keys
