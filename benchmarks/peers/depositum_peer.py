"""depositum itself: DEPOSITUM on a ring, through its simulator."""

import torch
from common import BATCH_SIZE, PERIOD, STEP_SIZE, Clock, Setting, main
from torch_model import client_tensors, model_of

import depositum
from depositum.algorithms import Depositum
from depositum.engines import EngineSettings, Simulator
from depositum.networks import ring
from depositum.problem import from_client_data


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    torch.set_num_threads(threads)
    problem = from_client_data(model_of(setting), [client_tensors(setting, i) for i in range(setting.n)])
    simulator = Simulator(
        problem,
        ring(setting.n),
        Depositum(alpha=STEP_SIZE),
        period=PERIOD,
        batch_size=BATCH_SIZE,
        settings=EngineSettings(device="cpu"),
    )
    simulator.start()
    while not clock.done:
        if hasattr(simulator, "advance"):
            simulator.advance(PERIOD)
        else:
            for _ in range(PERIOD):
                simulator.step()
        clock.tick()
    return f"depositum {depositum.__version__}, torch {torch.__version__}, DEPOSITUM on a ring"


if __name__ == "__main__":
    main("depositum", measure)
