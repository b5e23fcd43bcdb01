"""Time pfl: federated averaging on the simulated backend, in one process, with torch modules."""

import logging
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from timed_settings import BATCH_SIZE, PERIOD, STEP_SIZE, Clock, Setting, main
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_model import client_tensors, model_of


class Client(nn.Module):
    """A module with the two methods that pfl requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.model(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted.from_unweighted(self.loss(inputs, labels).item())}


class Ticking(TrainingProcessCallback):
    """Ticks the clock at the end of each round and stops training when it is done."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.clock.tick()
        return self.clock.done, Metrics()


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    users = list(range(setting.n))
    data = {i: Dataset(client_tensors(setting, i), user_id=str(i)) for i in users}
    federated = FederatedDataset(data.__getitem__, MinimizeReuseUserSampler(users))
    module = Client(model_of(setting))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    # An epoch is one batch where a client has 32 samples, and more than ten where it has thousands.
    one_batch = setting.samples == BATCH_SIZE
    local = NNTrainHyperParams(
        local_batch_size=BATCH_SIZE,
        local_num_epochs=PERIOD if one_batch else None,
        local_num_steps=None if one_batch else PERIOD,
        local_learning_rate=STEP_SIZE,
    )
    endless = 10**9  # as the evaluation frequency: only the first round evaluates, which is part of the warm-up
    FederatedAveraging().run(
        NNAlgorithmParams(endless, endless, train_cohort_size=setting.n, val_cohort_size=0),
        SimulatedBackend(federated, federated),
        model,
        local,
        callbacks=[Ticking(clock)],
        send_metrics_to_platform=False,
    )
    return f"pfl {version('pfl')}, torch {torch.__version__}, FedAvg, simulated backend"


if __name__ == "__main__":
    main("pfl", measure)
