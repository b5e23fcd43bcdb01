"""BlazeFL's benchmark (arXiv 2604.03606): CIFAR-10, 100 clients with two classes each, FedAvg with all of them.

    python benchmarks/published_blazefl.py [--model lenet|resnet18] [--rounds 5] [--epochs 5] [--clients 100]
                                           [--test-images 10000] [--compile auto] [--out blazefl.json]

5 rounds of 5 local epochs, batches of 50, SGD with stepsize 0.1, LeNet (62,006 parameters) or the package's ResNet-18.
It trains twice in the same process: the first time is cold (with imports, data and compilation, which may be in the
user's cache already), the second warm. It prints both, client steps per second and the accuracy, and writes JSON.
CIFAR-10 is read from `DEPOSITUM_DATA`, or downloaded. BlazeFL's paper prints 30 s (LeNet) and 115 s (ResNet-18) on a
GPU that it does not name; it does not say whether that includes start-up.
"""

import argparse
import time
from pathlib import Path

BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet", choices=["lenet", "resnet18"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="local epochs of a round")
    parser.add_argument("--clients", type=int, default=100, help="with 500 images each")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    marks = [time.perf_counter()]
    import torch
    from benchmark_models import CASES
    from published_results import device_name, report

    import depositum as dp
    from depositum import data
    from depositum.provenance import describe_versions

    marks.append(time.perf_counter())
    dataset = data.load("cifar10")
    test = dataset.test
    assert test is not None
    parts = data.partition({"shards": {"per_client": 2}}, dataset, 100, 0)[: options.clients]
    clients = [(dataset.train.inputs[own], dataset.train.targets[own]) for own in map(torch.as_tensor, parts)]
    model, kept = CASES[options.model].model(), options.test_images
    period = len(parts[0]) // BATCH * options.epochs
    marks.append(time.perf_counter())
    for _ in range(2):
        result = dp.fit(
            model,
            clients,
            algorithm={"fedavg": {"alpha": options.alpha}},
            period=period,
            steps=options.rounds * period,
            batch_size=BATCH,
            sampling="epochs",
            test=(test.inputs[:kept], test.targets[:kept]),
            compile=options.compile,
            evaluate_every=period,
            progress=False,
        )
        marks.append(time.perf_counter())
    last = result.history.iloc[-1]
    record = {
        "benchmark": f"BlazeFL, CIFAR-10, {options.model}",
        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "versions": describe_versions(),
        "clients": options.clients,
        "rounds": options.rounds,
        "epochs": options.epochs,
        "parameters": sum(z.numel() for z in model.parameters()),
        "imports_s": marks[1] - marks[0],
        "data_s": marks[2] - marks[1],
        "training_s": marks[3] - marks[2],
        "cold_s": marks[3] - marks[0],
        "warm_s": marks[4] - marks[3],
        "client_steps_per_s": options.clients * options.rounds * period / (marks[4] - marks[3]),
        "test_accuracy": 100 * float(last["test_accuracy"]),
        "train_loss": float(last["train_loss"]),
    }
    report(record, options.out)


if __name__ == "__main__":
    main()
