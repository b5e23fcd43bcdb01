"""BlazeFL's benchmark (see `benchmarks/published_blazefl.py`) in flwr, in a simulation on Ray.

    PYTHONPATH=src:benchmarks python benchmarks/peers/published_flwr_peer.py [--model lenet|resnet18]
        [--gpu-share 0.1] [--cpus 16] [--rounds 5] [--epochs 5] [--clients 100]
        [--test-images 10000] [--limit SECONDS] [--out flwr-peer.json]

Each actor has one core and a share of the GPU; there are as many as fit. Images are read from files and stay on the
device. The server evaluates in each round. `training_s` begins with flwr's server, before Ray has started: the first
round, `first_round_s`, contains the start of Ray and of its actors. Client steps per second are without it.
"""

import os
import time
from argparse import ArgumentParser, Namespace

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def add_options(parser: ArgumentParser) -> None:
    from published_peer import add_blazefl_options

    add_blazefl_options(parser)
    parser.add_argument("--gpu-share", type=float, default=0.1, help="of an actor, where there is a GPU")
    parser.add_argument("--cpus", type=int, default=os.cpu_count(), help="the greatest number of actors")


def main() -> None:
    began = time.perf_counter()
    from published_peer import parse

    run(parse(__doc__, 5, add_options), began)


def run(options: Namespace, began: float) -> None:
    import logging
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    from benchmark_models import CASES
    from flwr.app import ArrayRecord, ConfigRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from published_flwr_client import app as client
    from published_peer import BATCH, Clock, accuracy, device, finish, lapses, save_clients

    logging.disable(logging.WARNING)
    marks, accuracies, server = [began, time.perf_counter()], [], ServerApp()
    clock = Clock(began, options.rounds, options.limit)
    model = CASES[options.model].model().to(device())

    with tempfile.TemporaryDirectory() as folder:
        samples, inputs, labels = save_clients(Path(folder), options.clients, options.test_images)
        inputs, labels = inputs.to(device()), labels.to(device())
        marks.append(time.perf_counter())

        @server.main()
        def rounds(grid: Grid, context: Context) -> None:
            """Repeat what `FedAvg.start` does in a round, with an evaluation, until the clock is done."""
            # Without `min_train_nodes`, the first round takes only the clients that have registered when it begins.
            strategy = FedAvg(
                fraction_evaluate=0.0, min_train_nodes=options.clients, min_available_nodes=options.clients
            )
            arrays = ArrayRecord(model.state_dict())
            settings = {"model": options.model, "epochs": options.epochs, "alpha": options.alpha, "folder": folder}
            clock.start()
            while not clock.done:
                number, config = clock.completed + 1, ConfigRecord(dict(settings))
                replies = list(grid.send_and_receive(strategy.configure_train(number, arrays, config, grid)))
                failures = [reply.error for reply in replies if reply.has_error()]
                if failures or len(replies) != options.clients:
                    raise RuntimeError(f"{len(replies)} of {options.clients} clients replied; errors: {failures[:1]}")
                averaged, _ = strategy.aggregate_train(number, replies)
                assert averaged is not None
                arrays = averaged
                model.load_state_dict(arrays.to_torch_state_dict())
                accuracies.append(accuracy(model, inputs, labels))
                clock.tick(f"test accuracy {accuracies[-1]:.2f} %")

        gpu = device().type == "cuda"
        resources = {
            "init_args": {"num_cpus": options.cpus, "num_gpus": int(gpu), "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": options.gpu_share if gpu else 0.0},
        }
        run_simulation(server, client, num_supernodes=options.clients, backend_config=resources)
    period = -(-samples // BATCH) * options.epochs
    fields = {
        "ray": version("ray"),
        "cpus": options.cpus,
        "gpu_share": options.gpu_share if gpu else None,
        "clients": options.clients,
        "epochs": options.epochs,
        "parameters": sum(z.numel() for z in model.parameters()),
        **lapses(["imports_s", "data_s"], marks),
        **clock.times(options.clients * period),
        "test_accuracy": accuracies[-1],
    }
    finish(f"BlazeFL, CIFAR-10, {options.model}", f"flwr {version('flwr')}", clock, fields, options.out)


if __name__ == "__main__":
    main()
