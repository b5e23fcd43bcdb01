"""One process per client, or per few: the simulator's algorithms over real links."""

from depositum.engines.distributed.buffer_pool import BufferPool
from depositum.engines.distributed.clients import (
    Placement,
    absent_part,
    problem_from_local_clients,
    restrict_data,
)
from depositum.engines.distributed.communicator import (
    Check,
    ClusterCommunicator,
    Communicator,
    Facts,
    Messages,
    Subject,
    Transfer,
)
from depositum.engines.distributed.consistency import check_consistency
from depositum.engines.distributed.distributed_engine import DistributedEngine, ProcessSettings

__all__ = [
    "BufferPool",
    "Check",
    "ClusterCommunicator",
    "Communicator",
    "DistributedEngine",
    "Facts",
    "Messages",
    "Placement",
    "ProcessSettings",
    "Subject",
    "Transfer",
    "absent_part",
    "check_consistency",
    "problem_from_local_clients",
    "restrict_data",
]
