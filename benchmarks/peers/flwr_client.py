"""flwr's client. A module of its own, which Ray's actors import: what it keeps then lives from message to message."""

from functools import cache

import torch
from common import BATCH_SIZE, PERIOD, SETTINGS, STEP_SIZE
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_model import client_tensors, model_of

app = ClientApp()


@cache
def data_of(setting: str, client: int) -> tuple[Tensor, Tensor]:
    """A client's data, made once by each actor."""
    return client_tensors(SETTINGS[setting], client)


@cache
def model_for(setting: str) -> nn.Module:
    """The actor's one module, which takes each client's parameters in turn."""
    torch.set_num_threads(1)
    return model_of(SETTINGS[setting])


@app.train()
def train(message: Message, context: Context) -> Message:
    """PERIOD steps of one client from the model received."""
    setting = str(message.content["config"]["setting"])
    inputs, labels = data_of(setting, int(context.node_config["partition-id"]))
    model = model_for(setting)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
    for _ in range(PERIOD):
        batch = torch.randint(len(labels), (BATCH_SIZE,))
        optimizer.zero_grad()
        cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
