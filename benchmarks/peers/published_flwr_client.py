"""Client of flwr for BlazeFL's benchmark, in a module that Ray's actors import, so that their caches persist."""

from functools import cache

import torch
from benchmark_models import CASES
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from published_peer import BATCH, client_data, device
from torch import nn
from torch.nn.functional import cross_entropy

app = ClientApp()


@cache
def model_for(name: str) -> nn.Module:
    """The actor's module, into which the parameters of each client are loaded."""
    torch.set_num_threads(1)
    return CASES[name].model().to(device())


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client from the received model for the configured epochs."""
    config = message.content["config"]
    inputs, labels = client_data(str(config["folder"]), int(context.node_config["partition-id"]))
    model = model_for(str(config["model"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["alpha"]))
    for _ in range(int(config["epochs"])):
        for batch in torch.randperm(len(labels), device=labels.device).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
