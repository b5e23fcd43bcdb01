"""Errors that a user can cause, and the helpers that phrase their one-line messages.

A bug inside the package raises an assertion or a plain Python exception, never one of these.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

#: The most characters that the message of an error has, the key in it, and a list of names.
MAX_MESSAGE, MAX_KEY, MAX_LISTING = 300, 120, 150


class DepositumError(Exception):
    """Base class of all user errors: the message is one line, and the command line exits with `exit_code`.

    A message that would be longer than `MAX_MESSAGE` characters is cut in the middle: the beginning says what it is
    about, and the end what to do.
    """

    exit_code = 2

    def __str__(self) -> str:
        return one_line(self._text(), MAX_MESSAGE)

    def _text(self) -> str:
        return super().__str__()


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

    def _text(self) -> str:
        return self.reporter + (f"{one_line(self.key, MAX_KEY)}: {self.problem}" if self.key else self.problem)


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
    """Training produced non-finite values; the last finite state is saved.

    `result` is what `fit` would have returned: the history, and models and state at the last finite iteration that was
    saved.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


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
    close = difflib.get_close_matches(name[:MAX_KEY].lower(), list(lower), n=1, cutoff=0.5)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""


def listing(names: Iterable[str], command: str = "") -> str:
    """Return names as one readable list; of a long one the first names, and the command that lists them all.

    >>> listing(["a", "b", "c"])
    "'a', 'b' or 'c'"
    >>> listing(f"method-{i}" for i in range(100))  # doctest: +ELLIPSIS
    "'method-0', 'method-1', ..., … (100 in all)"
    """
    quoted = [short_repr(name) for name in names]
    shown = list(quoted)
    while len(shown) > 1 and sum(len(name) + 2 for name in shown) > MAX_LISTING:
        shown.pop()
    if len(shown) < len(quoted):
        return f"{', '.join(shown)}, … ({len(quoted)} in all{f': {command}' if command else ''})"
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f" or {quoted[-1]}"


def with_article(noun: str) -> str:
    """Return `"a model"` for `"model"` and `"an algorithm"` for `"algorithm"`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def short_repr(value: object, max_length: int = 60) -> str:
    """Return the repr of a value if it is one short line, otherwise its beginning, or its type (and shape).

    The work is bounded however large the value is.

    >>> short_repr("ring"), short_repr(list(range(100))), short_repr(10**5000)
    ("'ring'", 'a list', 'a whole number of more than 60 digits')
    >>> short_repr("abc" * 10**6)
    "'abcabcabcabcabcabca…' (3000000 characters)"
    """
    if _has_few_parts(value, max_length):
        try:
            text = repr(value)
        except Exception:  # a user-defined repr
            text = ""
        if text and text.isprintable() and len(text) <= max_length:
            return text
    if isinstance(value, str):
        start = ascii(value[:19])
        return f"{start[:-1]}…{start[-1]} ({len(value)} characters)"
    if type(value) is int:
        return f"a whole number of more than {max_length} digits"
    shape = getattr(value, "shape", None)
    return with_article(type(value).__name__) + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")


def _has_few_parts(value: object, most: int) -> bool:
    """Whether a value can have a repr of at most so many characters, by counting its items, characters and digits."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str | bytes | list | tuple | dict | set | frozenset):
            most -= len(part)
        elif isinstance(part, int):
            most -= abs(part).bit_length() // 4  # a decimal digit has 3.3 bits
        if most < 0:
            return False
        if isinstance(part, dict):
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += part
    return True


def one_line(text: str, max_length: int) -> str:
    r"""Return a text as one line of printable characters; of a long one the beginning and the end.

    >>> one_line("tab\tand\nline\x1b[2J", 300), one_line("0123456789" * 100, 11)
    ('tab and line\\x1b[2J', '0123456…789')
    """
    if len(text) > 4 * max_length:  # bounds the work
        text = f"{text[: 2 * max_length]}…{text[-2 * max_length :]}"
    text = " ".join(text.split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    if len(text) <= max_length:
        return text
    end = max_length // 3
    return f"{text[: max_length - end - 1]}…{text[-end:]}"


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception in one line."""
    return one_line(f"{type(error).__name__}: {error}", MAX_MESSAGE)


def check_choice(key: str, value: object, choices: Sequence[str]) -> None:
    """Reject a value that is not one of these names.

    >>> check_choice("weighting", "sample", ["uniform", "samples"])
    Traceback (most recent call last):
    depositum.errors.ConfigError: weighting: 'sample' given; it can be 'uniform' or 'samples'; did you mean 'samples'?
    """
    if not isinstance(value, str):  # whatever else it is, an array for instance, may not be comparable with names
        raise ConfigError(key, f"{short_repr(value)} given; it can be {listing(choices)}")
    if value not in choices:
        raise ConfigError(key, f"{short_repr(value)} given; it can be {listing(choices)}{nearest(value, choices)}")


def is_number(value: object) -> bool:
    """Whether a value is a real number that a float can hold, including NumPy scalars.

    >>> is_number(3), is_number(10**400), is_number("3")
    (True, False, False)
    """
    try:
        return isinstance(value, Real) and isinstance(float(value), float)
    except Exception:  # too large, or of a class of the user
        return False


def is_integer(value: object) -> bool:
    """Whether a value is an integer, including NumPy integers."""
    return isinstance(value, Integral)
