"""What a person did wrong, said in one line; every error a person can cause is one of these.

An internal mistake of the package is an assertion or a plain Python exception, never one of these.
"""

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral, Real


class DepositumError(Exception):
    """Base of all errors a person can cause: its text is one line, and the command line exits with `exit_code`."""

    exit_code = 2


class ConfigError(DepositumError, ValueError):
    """A setting that cannot be used.

    The text names the key, the value, what is allowed and, for a misspelt name, the nearest one.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class RegularizerError(ConfigError):
    """Parameters for which a regularizer, or its prox, is not defined."""


class NetworkError(ConfigError):
    """A graph or mixing matrix that does not satisfy Assumption 2 of the paper."""


class DataError(DepositumError):
    """A data file that is missing, corrupted or holds values that cannot be trained on."""


class RunError(DepositumError):
    """A run's folder that cannot be used: foreign, unwritable, or with no readable checkpoint."""


class DivergedError(DepositumError):
    """Training left the finite numbers; the last finite state is kept."""


class GroupError(DepositumError):
    """A group of processes that could not come together, or of which another one stopped before any work."""


class PeerLost(DepositumError):
    """Another process died or hangs: it did not answer within the time-out.

    `ranks` are those that are to blame. What this process holds is whole; a restart goes on from the last checkpoint
    that all of them have.
    """

    #: What a process exits with that lost a peer: sysexits' "try again later".
    exit_code = 75

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the choice nearest to `name`, or nothing if none is near.

    >>> nearest("alhpa", ["alpha", "gamma"])
    "; did you mean 'alpha'?"
    >>> nearest("MCP", ["mcp", "scad"])
    "; did you mean 'mcp'?"
    >>> nearest("zzz", ["alpha", "gamma"])
    ''
    """
    lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.5)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""


def listing(names: Iterable[str]) -> str:
    """Return names as one readable list: `'a', 'b' or 'c'`."""
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" or {quoted[-1]}"


def in_short(value: object, most: int = 60) -> str:
    """What a person gave, in one line; of an array or anything else that is long, what it is.

    >>> in_short("ring"), in_short(list(range(100)))
    ("'ring'", 'a list')
    """
    text = repr(value)
    if "\n" not in text and len(text) <= most:
        return text
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")


def is_number(value: object) -> bool:
    """Whether it is one, whatever types a person's code has been told of."""
    return isinstance(value, Real)


def is_whole(value: object) -> bool:
    """Whether it is a whole number, such as numpy's."""
    return isinstance(value, Integral)
