"""pfl-research's benchmark (arXiv 2404.06430): CIFAR-10, 1000 users with 50 images each, FedAvg with cohorts of 50.

    python benchmarks/published_pfl.py [--rounds 1500] [--users 1000] [--cohort 50] [--out pfl.json]

1500 rounds of one local epoch without replacement (5 steps of 10 images), client stepsize 0.1, server step 1, a CNN of
1,626,442 parameters with dropout, an evaluation on all test images every 10 rounds. Images are dealt out at random.
CIFAR-10 is read from `DEPOSITUM_DATA`, or downloaded. It prints, and writes as JSON, the time of each part, the time of
the complete run with and without start-up (imports, data, compilation: what comes before the second evaluation), client
steps per second and the accuracy.
"""

import argparse
import time
from pathlib import Path

IMAGES, BATCH, LOCAL_STEPS, EVERY = 50, 10, 5, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    began = time.perf_counter()
    import torch
    from benchmark_models import pfl_cnn
    from published_results import device_name, report

    import depositum as dp
    from depositum import data
    from depositum.engines import EngineSettings, Simulator
    from depositum.networks import Participation
    from depositum.problem import from_client_data
    from depositum.provenance import describe_versions

    imported = time.perf_counter()
    dataset = data.load("cifar10")
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))
    own = order[: options.users * IMAGES].view(options.users, IMAGES)
    inputs, targets = torch.as_tensor(dataset.train.inputs), torch.as_tensor(dataset.train.targets)
    test = dataset.test
    assert test is not None
    kept = options.test_images
    torch.manual_seed(0)
    problem = from_client_data(
        pfl_cnn(dropout=True), [(inputs[i], targets[i]) for i in own], test=(test.inputs[:kept], test.targets[:kept])
    )
    loaded = time.perf_counter()

    steps = options.rounds * LOCAL_STEPS
    simulator = Simulator(
        problem,
        None,
        dp.algorithm("fedavg", alpha=options.alpha),
        period=LOCAL_STEPS,
        batch_size=BATCH,
        settings=EngineSettings(
            sampling="epochs", compile=options.compile, participation=Participation(cohort=options.cohort)
        ),
    )
    simulator.steps = steps
    simulator.start()
    simulator.watch(EVERY * LOCAL_STEPS)
    marks, accuracies, losses = [], [], []
    while simulator.t < steps:
        simulator.advance(min(EVERY * LOCAL_STEPS, steps - simulator.t))
        # The server's model is equal in all rows.
        found = simulator.oracle.evaluate_test(simulator.state.x[:1], {})
        losses.append(float(found["test_loss"][0]))
        accuracies.append(100 * float(found["test_accuracy"][0]))
        marks.append(time.perf_counter())
        print(f"round {simulator.t // LOCAL_STEPS}: test accuracy {accuracies[-1]:.2f} %", flush=True)

    # Iterations of each kind are compiled before the first evaluation, and captured before the second.
    warm = marks[-1] - marks[1] if len(marks) > 2 else None
    warm_rounds = options.rounds - 2 * EVERY
    record = {
        "benchmark": "pfl-research, CIFAR-10",
        "device": device_name(simulator.device),
        "versions": describe_versions(),
        "users": options.users,
        "cohort": options.cohort,
        "rounds": options.rounds,
        "parameters": problem.layout.size,
        "imports_s": imported - began,
        "data_s": loaded - imported,
        "training_s": marks[-1] - loaded,
        "cold_s": marks[-1] - began,
        "warm_s": None if warm is None else warm * options.rounds / warm_rounds,
        "client_steps_per_s": None if warm is None else warm_rounds * LOCAL_STEPS * options.cohort / warm,
        "test_accuracy": accuracies[-1],
        "test_loss": losses[-1],
    }
    report(record, options.out)


if __name__ == "__main__":
    main()
