"""Who holds which rows, what `mix` is, and the loop."""

from depositum.engines.assemble import make_engine
from depositum.engines.early_stopping import Criterion, EarlyStopping, Mode
from depositum.engines.engine import Costs, Engine, EngineSettings, check_network, with_participation
from depositum.engines.loop import Callback, Loop
from depositum.engines.monitor import Divergence, Monitor, describe_divergences
from depositum.engines.simulator import Simulator
from depositum.engines.snapshot import Snapshot, average

__all__ = [
    "Callback",
    "Costs",
    "Criterion",
    "Divergence",
    "EarlyStopping",
    "Engine",
    "EngineSettings",
    "Loop",
    "Mode",
    "Monitor",
    "Simulator",
    "Snapshot",
    "average",
    "check_network",
    "describe_divergences",
    "make_engine",
    "with_participation",
]
