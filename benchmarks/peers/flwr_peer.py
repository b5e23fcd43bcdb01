"""Time flwr: FedAvg in a simulation on Ray, with one single-threaded actor per core."""

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import logging
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr_client import app as client
from timed_settings import Clock, Setting, main
from torch_model import model_of


def measure(setting: Setting, clock: Clock, threads: int) -> str:
    logging.disable(logging.WARNING)
    server = ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        """Repeat what `FedAvg.start` does in a round until the clock is done."""
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=setting.n, min_available_nodes=setting.n)
        arrays, number = ArrayRecord(model_of(setting).state_dict()), 0
        while not clock.done:
            number += 1
            config = ConfigRecord({"setting": setting.name})
            replies = list(grid.send_and_receive(strategy.configure_train(number, arrays, config, grid)))
            failures = [reply.error for reply in replies if reply.has_error()]
            if failures or len(replies) != setting.n:
                raise RuntimeError(f"{len(replies)} of {setting.n} clients replied; errors: {failures[:1]}")
            averaged, _ = strategy.aggregate_train(number, replies)
            assert averaged is not None
            arrays = averaged
            clock.tick()

    resources = {"init_args": {"num_cpus": threads, "logging_level": "error"}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client, num_supernodes=setting.n, backend_config=resources)
    return f"flwr {version('flwr')}, ray {version('ray')}, torch {torch.__version__}, FedAvg, {threads} Ray actors"


if __name__ == "__main__":
    main("flwr", measure)
