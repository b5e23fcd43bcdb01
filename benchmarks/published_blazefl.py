"""BlazeFL's benchmark (arXiv 2604.03606): CIFAR-10, 100 clients with two classes each, FedAvg with all of them.

    python benchmarks/published_blazefl.py [--model lenet|resnet18] [--rounds 5] [--epochs 5] [--compile auto]

5 rounds of 5 local epochs, batches of 50, SGD with stepsize 0.1, LeNet (62,006 parameters) or the package's ResNet-18.
It prints the time of each part, client steps per second and the accuracy. CIFAR-10 is read from `DEPOSITUM_DATA`, or
downloaded. BlazeFL's paper prints 30 s (LeNet) and 115 s (ResNet-18) on a GPU that it does not name; its time does not
say whether it includes start-up, so here both are printed.
"""

import argparse
import time
from itertools import pairwise

STEPS_PER_EPOCH, CLIENTS, BATCH = 10, 100, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet", choices=["lenet", "resnet18"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="local epochs of a round")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--compile", default="auto", choices=["auto", "always", "never"])
    options = parser.parse_args()

    marks = [time.perf_counter()]
    import torch
    from benchmark_models import CASES

    import depositum as dp
    from depositum import data

    marks.append(time.perf_counter())
    dataset = data.load("cifar10")
    test = dataset.test
    assert test is not None
    parts = data.partition({"shards": {"per_client": 2}}, dataset, CLIENTS, 0)
    clients = [(dataset.train.inputs[own], dataset.train.targets[own]) for own in map(torch.as_tensor, parts)]
    marks.append(time.perf_counter())
    period = STEPS_PER_EPOCH * options.epochs
    result = dp.fit(
        CASES[options.model].model(),
        clients,
        algorithm={"fedavg": {"alpha": options.alpha}},
        period=period,
        steps=options.rounds * period,
        batch_size=BATCH,
        sampling="epochs",
        test=(test.inputs, test.targets),
        compile=options.compile,
        evaluate_every=period,
    )
    marks.append(time.perf_counter())
    imports, loading, training = (after - before for before, after in pairwise(marks))
    steps = CLIENTS * options.rounds * period
    print(f"{options.model}: {options.rounds} rounds of {options.epochs} epochs, {CLIENTS} clients")
    print(f"imports {imports:.1f} s, data {loading:.1f} s, training with start-up and evaluations {training:.1f} s")
    print(f"{steps / training:.0f} client steps per second, {marks[-1] - marks[0]:.1f} s in all")
    last = result.history.iloc[-1]
    print(f"test accuracy {100 * last['test_accuracy']:.2f} %, train loss {last['train_loss']:.4f}")


if __name__ == "__main__":
    main()
