"""Time this package: DEPOSITUM on a ring, on the simulator."""

import os

import torch
from timed_settings import BATCH_SIZE, PERIOD, STEP_SIZE, Clock, Setting, main
from torch_model import client_tensors, model_of

from depositum.algorithms import Depositum
from depositum.engines import EngineSettings, Simulator
from depositum.networks import ring
from depositum.problem import from_client_data
from depositum.provenance import describe_versions

#: Compiled, as in a long run, unless a test sets this variable.
COMPILE = os.environ.get("DEPOSITUM_PEER_COMPILE", "always")


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    torch.set_num_threads(threads)
    problem = from_client_data(model_of(setting), [client_tensors(setting, i) for i in range(setting.n)])
    simulator = Simulator(
        problem,
        ring(setting.n),
        Depositum(alpha=STEP_SIZE),
        period=PERIOD,
        batch_size=BATCH_SIZE,
        settings=EngineSettings(device="cpu", compile=COMPILE),  # type: ignore[arg-type]
    )
    simulator.start()
    simulator.advance(PERIOD + 2)  # compiles a step with and a step without an exchange
    while not clock.done:
        simulator.advance(PERIOD)
        clock.tick()
    how = f"{'compiled' if COMPILE == 'always' else 'not compiled'}, {simulator.oracle.model.backend}"
    return f"{describe_versions()}, DEPOSITUM on a ring, {how}"


if __name__ == "__main__":
    main("depositum", measure)
