"""How this process was started: the only place that reads the environment of torchrun.

`torchrun`, or whoever starts the processes, sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. LOCAL_RANK and
LOCAL_WORLD_SIZE may be left out: processes then find out which of them share a host.
"""

import os
from dataclasses import dataclass

from depositum.errors import GroupError, short_repr

#: More processes than anyone has.
LARGEST = 10**9


def launched() -> bool:
    """Whether the environment describes one of several processes, or one that torchrun started.

    An environment that is only half set counts too, so that `Launch` can report what it lacks.
    """
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return False
    return os.environ.get("WORLD_SIZE") != "1" or "LOCAL_RANK" in os.environ


@dataclass(frozen=True)
class Launch:
    """The position of this process among those of a run.

    Attributes
    ----------
    rank, size
        Which of how many processes this is.
    host, port
        Where the processes meet: the host of rank 0.
    local_rank, local_size
        The same as rank and size among the processes of this host; None if the environment does not have them.
    agent_keeps_store
        Whether torchrun's agent keeps the store through which processes meet; without it, the first rank does.
    """

    rank: int
    size: int
    host: str
    port: int
    local_rank: int | None
    local_size: int | None
    agent_keeps_store: bool

    @property
    def address(self) -> str:
        """Host and port at which the processes meet."""
        return f"{self.host}:{self.port}"

    @classmethod
    def from_environment(cls) -> "Launch":
        """Read the environment; what is missing or is not a number is a `GroupError` that names the variable."""
        size = _number("WORLD_SIZE", 1)
        rank = _number("RANK", 0, size - 1)
        local_rank = local_size = None
        if "LOCAL_WORLD_SIZE" in os.environ:
            local_size = _number("LOCAL_WORLD_SIZE", 1, size)
        if "LOCAL_RANK" in os.environ:
            local_rank = _number("LOCAL_RANK", 0, (local_size or size) - 1)
        elif local_size is not None:
            raise _missing("LOCAL_RANK")
        if not os.environ.get("MASTER_ADDR"):
            raise _missing("MASTER_ADDR")
        return cls(
            rank,
            size,
            os.environ["MASTER_ADDR"],
            _number("MASTER_PORT", 1, 65535),
            local_rank,
            local_size,
            os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def _number(name: str, low: int, high: int = LARGEST) -> int:
    """A variable that is a whole number between two bounds."""
    text = os.environ.get(name, "")
    if not text:
        raise _missing(name)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        bounds = f"≥ {low}" if high == LARGEST else f"from {low} to {high}"
        raise GroupError(f"{name}={short_repr(text)} in the environment; it must be a whole number {bounds}")
    return int(text)


def _missing(name: str) -> GroupError:
    present = [other for other in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") if os.environ.get(other)]
    why = f", although {' and '.join(f'{other}={short_repr(os.environ[other])}' for other in present)}"
    return GroupError(
        f"{name} is not set in the environment{why if present else ''}; start the processes with "
        "torchrun --nproc-per-node N, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each"
    )
