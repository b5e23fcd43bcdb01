"""Client of flwr, in a module that Ray's actors import, so that its caches persist between messages."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from timed_settings import BATCH_SIZE, PERIOD, SETTINGS, STEP_SIZE
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_model import client_tensors, model_of

app = ClientApp()


@cache
def data_of(setting: str, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's data; each actor makes it once."""
    return client_tensors(SETTINGS[setting], client)


@cache
def model_for(setting: str) -> nn.Module:
    """Return the actor's module, into which the parameters of each client are loaded."""
    torch.set_num_threads(1)
    return model_of(SETTINGS[setting])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take PERIOD steps for one client from the received model."""
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
