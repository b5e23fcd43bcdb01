"""The one way from a problem, a network and a method to an engine: a simulator, or one process among many."""

from collections.abc import Sequence

from depositum.algorithms import Algorithm
from depositum.channels import Channel
from depositum.engines.distributed import Communicator, DistributedEngine, check_consistency
from depositum.engines.engine import Engine, EngineSettings
from depositum.engines.simulator import Simulator
from depositum.metrics import Sharing
from depositum.networks import Network
from depositum.problem import BatchSize, Problem


def make_engine(
    problem: Problem,
    network: Network | None,
    algorithm: Algorithm | Sequence[Algorithm],
    *,
    period: int,
    batch_size: BatchSize,
    settings: EngineSettings,
    channel: Channel,
    communicator: Communicator | None = None,
    evaluate: Sharing = "scalars",
) -> Engine:
    """The engine of a run, ready to start: of this process's clients, given a communicator, else of all clients.

    Given a communicator this is a collective call: models, starts, networks and code that differ are refused.
    """
    if communicator is None:
        return Simulator(
            problem,
            network,
            algorithm,
            period=period,
            batch_size=batch_size,
            settings=settings,
            channel=channel,
        )
    check_consistency(communicator, problem, network, algorithm if isinstance(algorithm, Algorithm) else algorithm[0])
    with communicator.all_or_none("create the engine"):
        return DistributedEngine(
            problem,
            network,
            algorithm,
            communicator,
            period=period,
            batch_size=batch_size,
            settings=settings,
            channel=channel,
            evaluate=evaluate,
        )
