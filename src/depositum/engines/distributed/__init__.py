"""One process per client, or per few: the simulator's algorithms over real links."""

from depositum.engines.distributed.clients import (
    Placement,
    absent_part,
    problem_from_local_clients,
    restrict_data,
)
from depositum.engines.distributed.communicator import Communicator, Messages, Transfer
from depositum.engines.distributed.consistency import check_consistency
from depositum.engines.distributed.distributed_engine import DistributedEngine, ProcessSettings

__all__ = [
    "Communicator",
    "DistributedEngine",
    "Messages",
    "Placement",
    "ProcessSettings",
    "Transfer",
    "absent_part",
    "check_consistency",
    "problem_from_local_clients",
    "restrict_data",
]
