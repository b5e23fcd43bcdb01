"""Every registered method, and simulators that run it with its default hyper-parameters."""

import depositum as dp
from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.engines import EngineSettings, Simulator
from tests.support.seeded_problems import N, seeded_problem

METHODS = list(ALGORITHMS)


def method_class(name: str) -> type[Algorithm]:
    found = ALGORITHMS[name]
    assert isinstance(found, type)
    return found


def supported_period(name: str) -> int:
    """3, or the first period that the method supports."""
    periods = dp.algorithm(name).periods
    return 3 if periods is None or 3 in periods else periods[0]


def beta_for(method: Algorithm) -> float:
    return 0.0 if method.handles == "smooth" else 1e-3


def network_for(method: Algorithm) -> dp.Network | None:
    return None if method.server else dp.ring(N, mixing="lazy-metropolis")


def started(name: str, seeds: tuple[int, ...], dtype: str = "float64", **hyperparameters: object) -> Simulator:
    """A simulator of the method at t = 0, with mini-batches."""
    method = dp.algorithm(name, **hyperparameters)
    simulator = Simulator(
        seeded_problem(seeds, beta=beta_for(method)),
        network_for(method),
        method,
        period=supported_period(name),
        batch_size=4,
        settings=EngineSettings("cpu", dtype),
    )
    simulator.start()
    return simulator


def advanced(simulator: Simulator, steps: int) -> Simulator:
    """The same simulator after some steps, one at a time."""
    for _ in range(steps):
        simulator.step()
    return simulator
