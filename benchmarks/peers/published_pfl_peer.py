"""pfl-research's benchmark (see `benchmarks/published_pfl.py`) in pfl, on its simulated backend.

    PYTHONPATH=src:benchmarks python benchmarks/peers/published_pfl_peer.py [--rounds 1500] [--users 1000]
        [--cohort 50] [--test-images 10000] [--limit SECONDS] [--out pfl-peer.json]

One process, on the GPU if there is one, where the images are beforehand. pfl takes a user's batches in the same order
in each round. It evaluates the test images every 10 rounds and in the last; users are evaluated in the first round
alone. `training_s` begins with the first round; client steps per second are without it.
"""

import time
from argparse import ArgumentParser, Namespace

IMAGES, BATCH, LOCAL_STEPS = 50, 10, 5


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--alpha", type=float, default=0.1)


def main() -> None:
    began = time.perf_counter()
    from published_peer import parse

    run(parse(__doc__, 1500, add_options), began)


def run(options: Namespace, began: float) -> None:
    import logging
    from importlib.metadata import version

    import torch
    from benchmark_models import pfl_cnn
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from published_peer import Clock, device, finish, lapses
    from published_pfl_client import Client, Ticking

    from depositum import data

    logging.disable(logging.WARNING)
    marks = [began, time.perf_counter()]
    dataset = data.load("cifar10")
    test, kept = dataset.test, options.test_images
    assert test is not None
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))
    own = order[: options.users * IMAGES].view(options.users, IMAGES)
    inputs, labels = torch.as_tensor(dataset.train.inputs)[own], torch.as_tensor(dataset.train.targets)[own]
    pairs = zip(inputs.to(device()), labels.to(device()), strict=True)
    users = [Dataset(pair, user_id=str(i)) for i, pair in enumerate(pairs)]
    federated = FederatedDataset(users.__getitem__, get_user_sampler("random", list(range(options.users))))
    torch.manual_seed(0)
    module = Client(pfl_cnn(dropout=True))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock(began, options.rounds, options.limit)
    shown = [torch.as_tensor(z)[:kept].to(device()) for z in (test.inputs, test.targets)]
    ticking = Ticking(clock, *shown)
    local = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=options.alpha)
    marks.append(time.perf_counter())
    clock.start()
    endless = 10**9  # as the frequency of evaluations of users: pfl makes one in the first round
    FederatedAveraging().run(
        NNAlgorithmParams(options.rounds, endless, train_cohort_size=options.cohort, val_cohort_size=0),
        SimulatedBackend(federated, federated),
        model,
        local,
        callbacks=[ticking],
        send_metrics_to_platform=False,
    )
    fields = {
        "users": options.users,
        "clients": options.users,
        "cohort": options.cohort,
        "parameters": sum(z.numel() for z in module.parameters()),
        **lapses(["imports_s", "data_s"], marks),
        **clock.times(options.cohort * LOCAL_STEPS),
        "test_accuracy": ticking.evaluate(module),
    }
    finish("pfl-research, CIFAR-10", f"pfl {version('pfl')}", clock, fields, options.out)


if __name__ == "__main__":
    main()
