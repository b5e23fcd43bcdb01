"""Time gossipy-dfl: push gossip on a ring; a node that receives a model merges it and trains."""

import logging
import sys
from contextlib import suppress
from importlib.metadata import version
from types import ModuleType

import networkx as nx
import torch
from timed_settings import BATCH_SIZE, PERIOD, STEP_SIZE, Clock, Setting, main
from torch import Tensor, nn
from torch_model import client_tensors, model_of

# gossipy imports torchvision, for downloads, without requiring it; this script downloads nothing.
sys.modules.setdefault("torchvision", ModuleType("torchvision"))

from gossipy.core import AntiEntropyProtocol, CreateModelMode, Message, StaticP2PNetwork  # noqa: E402
from gossipy.data import DataDispatcher  # noqa: E402
from gossipy.data.handler import ClassificationDataHandler  # noqa: E402
from gossipy.model import TorchModel  # noqa: E402
from gossipy.model.handler import TorchModelHandler  # noqa: E402
from gossipy.node import GossipNode  # noqa: E402
from gossipy.simul import GossipSimulator, SimulationEventReceiver  # noqa: E402


class Net(TorchModel):
    """The setting's model with gossipy's interface."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def init_weights(self) -> None:
        """Keep the weights: all nodes start from the same model."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)


class TenSteps(TorchModelHandler):
    """Takes PERIOD steps on random batches per update; the base class takes one step, or passes over all data."""

    def _update(self, data: tuple[Tensor, Tensor]) -> None:
        inputs, labels = data
        for _ in range(PERIOD):
            batch = torch.randint(len(labels), (BATCH_SIZE,))
            self._local_step(inputs[batch], labels[batch])
        self.n_updates += 1


class Enough(Exception):
    """Ends a simulation when the clock is done; gossipy has no other way to end it early."""


class Ticking(SimulationEventReceiver):
    """Ticks the clock at the end of each round, which is one time step here."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def update_message(self, failed: bool, msg: Message | None = None) -> None:
        pass

    def update_end(self) -> None:
        pass

    def update_timestep(self, t: int) -> None:
        self.clock.tick()
        if self.clock.done:
            raise Enough


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    parts = [client_tensors(setting, i) for i in range(setting.n)]
    inputs, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    handler = ClassificationDataHandler(inputs, labels, inputs[:0], labels[:0], test_size=0)
    simulator = GossipSimulator(
        nodes=GossipNode.generate(
            data_dispatcher=(dispatcher := DataDispatcher(handler, n=setting.n, eval_on_user=False)),
            p2p_net=StaticP2PNetwork(setting.n, nx.to_numpy_array(nx.cycle_graph(setting.n))),
            model_proto=TenSteps(
                net=Net(model_of(setting)),
                optimizer=torch.optim.SGD,
                optimizer_params={"lr": STEP_SIZE},
                criterion=nn.CrossEntropyLoss(),
                batch_size=BATCH_SIZE,
                create_model_mode=CreateModelMode.MERGE_UPDATE,
            ),
            round_len=1,
            sync=True,
        ),
        data_dispatcher=dispatcher,
        delta=1,
        protocol=AntiEntropyProtocol.PUSH,
    )
    simulator.add_receiver(Ticking(clock))
    simulator.init_nodes()
    with suppress(Enough):
        simulator.start(n_rounds=1_000_000)
    return f"gossipy-dfl {version('gossipy-dfl')}, torch {torch.__version__}, push gossip SGD on a ring"


if __name__ == "__main__":
    main("gossipy-dfl", measure)
