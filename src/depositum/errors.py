"""Errors that a user can cause, and the helpers that phrase their one-line messages.

A bug inside the package raises an assertion or a plain Python exception, never one of these.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real


class DepositumError(Exception):
    """Base class of all user errors: the message is one line, and the command line exits with `exit_code`."""

    exit_code = 2


class _KeyedError(DepositumError):
    """An error about a setting, whose key callers can rename by `renamed_keys`."""

    def __init__(self, key: str, problem: str, mentions: Sequence[str] = (), reporter: str = "") -> None:
        super().__init__(key, problem)
        self.key, self.problem, self.mentions, self.reporter = key, problem, tuple(mentions), reporter

    def rename(self, new_name: Callable[[str], str]) -> None:
        """Rename the key, and the other settings that the text mentions."""
        self.key = new_name(self.key)
        for name in self.mentions:
            self.problem = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", new_name(name), self.problem)
        self.mentions = tuple(map(new_name, self.mentions))
        self.args = (self.key, self.problem)

    def __str__(self) -> str:
        return self.reporter + (f"{self.key}: {self.problem}" if self.key else self.problem)


class ConfigError(_KeyedError, ValueError):
    """A setting that cannot be used.

    The message names the key, the value, what is allowed and, for a misspelt name, the nearest valid one.

    Parameters
    ----------
    key
        What the user wrote: an argument in Python (`period`), a key in a file (`run.period`). All parts of the package
        below `runs` use the name of the argument, which `runs` translates for the user of a file.
    problem
        The value, and what is allowed.
    mentions
        The names of other arguments in `problem`, which are translated as well.
    """

    def __init__(self, key: str, problem: str, mentions: Sequence[str] = ()) -> None:
        super().__init__(key, problem, mentions)


class RegularizerError(ConfigError):
    """Parameters for which a regularizer, or its prox, is not defined."""


class NetworkError(ConfigError):
    """A graph or mixing matrix that does not satisfy Assumption 2 of the paper."""


class DataError(DepositumError):
    """A data file that is missing, corrupted or contains values that cannot be trained on."""


class RunError(DepositumError):
    """A run folder that cannot be used: not a run of ours, not writable, or without a readable checkpoint."""


class DivergedError(DepositumError):
    """Training produced non-finite values; the last finite state is saved."""


class GroupError(_KeyedError):
    """A group of processes that could not be formed, or in which another process stopped before any work was done.

    In the second case, `reporter` names that process, and `key` the setting if its error is a `ConfigError`.
    """

    def __init__(self, problem: str, *, key: str = "", mentions: Sequence[str] = (), reporter: str = "") -> None:
        super().__init__(key, problem, mentions, reporter)


class PeerLost(DepositumError):
    """Another process died or hangs: it did not answer within the time-out.

    `ranks` are the processes that did not answer. The state of this process is consistent; a restart resumes from the
    last checkpoint that all processes have.
    """

    #: Exit code of a process that lost a peer: `EX_TEMPFAIL` of sysexits.h, "try again later".
    exit_code = 75

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


@contextmanager
def renamed_keys(new_name: Callable[[str], str]) -> Iterator[None]:
    """Rename the keys of errors that are raised inside: from the argument of a function to what its caller was given.

    >>> with renamed_keys(lambda key: f"alpha.step.{key}"):
    ...     raise ConfigError("factor", "2 given; it must be at most 1")
    Traceback (most recent call last):
    depositum.errors.ConfigError: alpha.step.factor: 2 given; it must be at most 1
    """
    try:
        yield
    except _KeyedError as error:
        error.rename(new_name)
        raise


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the choice nearest to `name`, or an empty string if none is close.

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


def with_article(noun: str) -> str:
    """Return `"a model"` for `"model"` and `"an algorithm"` for `"algorithm"`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def short_repr(value: object, max_length: int = 60) -> str:
    """Return the repr of a value if it is one short line, otherwise its type (and shape).

    >>> short_repr("ring"), short_repr(list(range(100)))
    ("'ring'", 'a list')
    """
    text = repr(value)
    if "\n" not in text and len(text) <= max_length:
        return text
    shape = getattr(value, "shape", None)
    return with_article(type(value).__name__) + (f" of shape {tuple(shape)}" if shape is not None else "")


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def is_number(value: object) -> bool:
    """Whether a value is a real number, including NumPy scalars and values whose annotation promises otherwise."""
    return isinstance(value, Real)


def is_integer(value: object) -> bool:
    """Whether a value is an integer, including NumPy integers."""
    return isinstance(value, Integral)
