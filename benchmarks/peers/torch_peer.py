"""Time plain torch: a loop over clients, each a module with its SGD, averaged every PERIOD steps."""

import torch
from timed_settings import BATCH_SIZE, PERIOD, STEP_SIZE, Clock, Setting, main
from torch.nn.functional import cross_entropy
from torch_model import client_tensors, model_of


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    torch.set_num_threads(threads)
    data = [client_tensors(setting, i) for i in range(setting.n)]
    models = [model_of(setting) for _ in range(setting.n)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=STEP_SIZE) for model in models]
    while not clock.done:
        for (inputs, labels), model, optimizer in zip(data, models, optimizers, strict=True):
            for _ in range(PERIOD):
                batch = torch.randint(len(labels), (BATCH_SIZE,))
                optimizer.zero_grad()
                cross_entropy(model(inputs[batch]), labels[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            for copies in zip(*(model.parameters() for model in models), strict=True):
                average = torch.stack(copies).mean(0)
                for copy in copies:
                    copy.copy_(average)
        clock.tick()
    return f"torch {torch.__version__}, a loop over modules, FedAvg"


if __name__ == "__main__":
    main("torch", measure)
