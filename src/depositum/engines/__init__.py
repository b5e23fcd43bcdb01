"""Who holds which rows, what `mix` is, and the loop."""

from depositum.engines.loop import Callback, Loop, Snapshot
from depositum.engines.monitor import Divergence, Monitor
from depositum.engines.simulator import Costs, EngineSettings, Simulator

__all__ = ["Callback", "Costs", "Divergence", "EngineSettings", "Loop", "Monitor", "Simulator", "Snapshot"]
