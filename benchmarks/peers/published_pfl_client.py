"""The module and the callback of pfl-research's benchmark in pfl."""

import torch
from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from published_peer import Clock, accuracy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

EVERY = 10


class Client(nn.Module):
    """A module with the two methods that pfl requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return cross_entropy(self.model(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        self.eval()
        return {"loss": Weighted.from_unweighted(cross_entropy(self.model(inputs), labels).item())}


class Ticking(TrainingProcessCallback):
    """Ticks the clock at the end of each round, evaluates every tenth and the last, and stops training when done."""

    def __init__(self, clock: Clock, inputs: Tensor, labels: Tensor) -> None:
        self.clock, self.inputs, self.labels = clock, inputs, labels

    def evaluate(self, module: Client) -> float:
        """The accuracy on the test images, in percent."""
        return accuracy(module.model, self.inputs, self.labels)

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        note, number = "", central_iteration + 1
        if number % EVERY == 0 or number == self.clock.rounds:
            note = f"test accuracy {self.evaluate(model.pytorch_model):.2f} %"
        elif self.inputs.is_cuda:
            torch.cuda.synchronize()
        self.clock.tick(note)
        return self.clock.done, Metrics()
