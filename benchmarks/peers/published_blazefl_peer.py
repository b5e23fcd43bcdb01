"""BlazeFL's benchmark (see `benchmarks/published_blazefl.py`) in blazefl.

    PYTHONPATH=src:benchmarks python benchmarks/peers/published_blazefl_peer.py [--model lenet|resnet18]
        [--mode process|thread|serial] [--processes 10] [--rounds 5] [--epochs 5] [--clients 100]
        [--test-images 10000] [--limit SECONDS] [--out blazefl-peer.json]

blazefl offers processes that exchange models in shared memory (it starts a new pool in each round), threads, and a
loop in one process. Its own benchmark uses threads on a Python without a global interpreter lock; with the lock,
which of the three is the fastest depends on the model. Images are on the device beforehand, and the loader takes a
batch at a time. As in its own benchmark, the server evaluates in each round. `training_s` has no start-up of this
process in it; client steps per second are without the first round.
"""

import os
import time
from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    from published_peer import add_blazefl_options

    add_blazefl_options(parser)
    parser.add_argument("--mode", default="process", choices=["process", "thread", "serial"])
    parser.add_argument("--processes", type=int, default=10, help="or threads")


def main() -> None:
    began = time.perf_counter()
    os.environ |= {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    from published_peer import parse

    run(parse(__doc__, 5, add_options), began)


def run(options: Namespace, began: float) -> None:
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    import torch.multiprocessing
    from blazefl.contrib import (
        FedAvgBaseClientTrainer,
        FedAvgBaseServerHandler,
        FedAvgProcessPoolClientTrainer,
        FedAvgThreadPoolClientTrainer,
    )
    from blazefl.core import IPCMode
    from published_blazefl_client import ModelName, Models, Partitioned, on_device
    from published_peer import BATCH, Clock, device, finish, lapses, save_clients

    torch.multiprocessing.set_start_method("spawn")
    marks = [began, time.perf_counter()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples, inputs, labels = save_clients(folder, options.clients, options.test_images)
        dataset, models, kind = Partitioned(name, on_device(inputs, labels)), Models(), device().type
        handler = FedAvgBaseServerHandler(
            model_selector=models,
            model_name=ModelName(options.model),
            dataset=dataset,
            global_round=options.rounds,
            num_clients=options.clients,
            sample_ratio=1.0,
            device=kind,
            batch_size=2000,  # of the evaluation
            seed=0,
        )
        shared = {
            "model_selector": models,
            "model_name": ModelName(options.model),
            "dataset": dataset,
            "device": kind,
            "num_clients": options.clients,
            "epochs": options.epochs,
            "batch_size": BATCH,
            "lr": options.alpha,
            "seed": 0,
        }
        if options.mode == "process":
            trainer = FedAvgProcessPoolClientTrainer(
                share_dir=folder / "share",
                state_dir=folder / "state",
                num_parallels=options.processes,
                ipc_mode=IPCMode.SHARED_MEMORY,
                **shared,
            )
        elif options.mode == "thread":
            trainer = FedAvgThreadPoolClientTrainer(num_parallels=options.processes, **shared)
        else:
            trainer = FedAvgBaseClientTrainer(**shared)
        marks.append(time.perf_counter())
        clock = Clock(began, options.rounds, options.limit)
        clock.start()
        while not clock.done:
            trainer.local_process(handler.downlink_package(), handler.sample_clients())
            for package in trainer.uplink_package():
                handler.load(package)
            summary = handler.get_summary()
            clock.tick(f"test accuracy {100 * summary['server_acc']:.2f} %")
    period = -(-samples // BATCH) * options.epochs
    fields = {
        "mode": options.mode,
        "processes": 1 if options.mode == "serial" else options.processes,
        "clients": options.clients,
        "epochs": options.epochs,
        "parameters": sum(z.numel() for z in handler.model.parameters()),
        **lapses(["imports_s", "data_s"], marks),
        **clock.times(options.clients * period),
        "test_accuracy": 100 * summary["server_acc"],
    }
    peer = f"blazefl {version('blazefl')}"
    finish(f"BlazeFL, CIFAR-10, {options.model}", peer, clock, fields, options.out)


if __name__ == "__main__":
    main()
