"""How this process was started: the only place that reads the environment of torchrun.

`torchrun`, or whoever starts the processes, sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import os
from dataclasses import dataclass

from depositum.errors import GroupError

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process was started as one of several, or by torchrun."""
    size = os.environ.get("WORLD_SIZE", "")
    return size.isdigit() and (int(size) > 1 or "LOCAL_RANK" in os.environ)


@dataclass(frozen=True)
class Launch:
    """The position of this process among those of a run.

    Attributes
    ----------
    rank, size
        Which of how many processes this is.
    local_rank, local_size
        The same among the processes of this host.
    address
        Host and port at which the processes meet.
    attempt
        How often torchrun has restarted the processes.
    agent_keeps_store
        Whether torchrun's agent keeps the store through which processes meet; without it, the first rank does.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    attempt: int
    agent_keeps_store: bool

    @classmethod
    def from_environment(cls) -> "Launch":
        missing = [name for name in _REQUIRED if name not in os.environ]
        if missing:
            raise GroupError(f"{', '.join(missing)} not set; start the processes with torchrun --nproc-per-node N")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(
            rank,
            size,
            int(os.environ.get("LOCAL_RANK", rank)),
            int(os.environ.get("LOCAL_WORLD_SIZE", size)),
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
            int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
            os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
