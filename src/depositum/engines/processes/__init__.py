"""One process per client, or per few, on `torch.distributed`: the simulator's algorithms over real links."""

from depositum.engines.processes.alike import check_built
from depositum.engines.processes.encoding import EncodingName
from depositum.engines.processes.engine import ProcessEngine
from depositum.engines.processes.group import Group, join, launched
from depositum.engines.processes.own_clients import problem_of_all
from depositum.engines.processes.own_data import own_data
from depositum.engines.processes.placement import Placement
from depositum.engines.processes.settings import ProcessSettings

__all__ = [
    "EncodingName",
    "Group",
    "Placement",
    "ProcessEngine",
    "ProcessSettings",
    "check_built",
    "join",
    "launched",
    "own_data",
    "problem_of_all",
]
