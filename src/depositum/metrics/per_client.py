"""Measures of each client: how the averaged model, and the client's own, do on the client's own training data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from depositum.metrics.functions import MetricFunction, call_or_nan
from depositum.metrics.measures import mean_buffers, mean_row
from depositum.problem import Oracle


def per_client(
    x: Tensor, oracle: Oracle, functions: Mapping[str, MetricFunction], trials: Sequence[int]
) -> dict[str, Tensor]:
    """Measures of every client of some trials, each `[trials, n]`, of rows `[S·n, d]` that are all here.

    `samples` is how many samples a client has; `averaged_loss` and `averaged_accuracy` are those of the averaged model
    x̄ on the client's samples, `own_loss` and `own_accuracy` those of its own model x_i. All samples of a client count
    the same, whatever the weighting. User-defined measures are `averaged_NAME` and `own_NAME`, NaN where one is not
    defined for a client. Without an accuracy, the loss does not define one.
    """
    n, all_trials = oracle.problem.n, oracle.trials
    assert len(oracle.clients) == n, "measured where all rows are"
    mean = mean_row(x, all_trials, n).repeat_interleave(n, 0)
    buffers = {
        name: buffer.repeat_interleave(n, 0) for name, buffer in mean_buffers(oracle.buffers, all_trials, n).items()
    }
    rows = [trial * n + client for trial in trials for client in range(n)]
    out = {"samples": oracle.sizes[rows]}
    for prefix, models, own in (("averaged", mean, buffers), ("own", x, oracle.buffers)):
        loss, accuracy = oracle.evaluate_rows(models, own, rows)
        out[f"{prefix}_loss"] = loss
        if oracle.problem.loss.correct is not None:
            out[f"{prefix}_accuracy"] = accuracy
        for name, values in _functions_of_rows(functions, models, own, oracle, rows).items():
            out[f"{prefix}_{name}"] = values
    return {name: values.cpu().view(len(trials), n) for name, values in out.items()}


def client_records(
    x: Tensor, oracle: Oracle, functions: Mapping[str, MetricFunction], seeds: Mapping[int, int]
) -> list[dict[str, Any]]:
    """`per_client` as one record per seed and client; `seeds` are the seeds of the chosen trials, by their labels.

    A value that is not defined is left out.
    """
    labels = oracle.problem.labels
    chosen = {label: seed for label, seed in seeds.items() if label in labels}
    table = per_client(x, oracle, functions, [labels.index(label) for label in chosen])
    return [
        {
            "seed": seed,
            "client": client,
            **{name: v for name, values in table.items() if (v := values[row, client].item()) == v},
        }
        for row, seed in enumerate(chosen.values())
        for client in range(oracle.problem.n)
    ]


def _functions_of_rows(
    functions: Mapping[str, MetricFunction],
    x: Tensor,
    buffers: Mapping[str, Tensor],
    oracle: Oracle,
    rows: Sequence[int],
) -> dict[str, Tensor]:
    """User-defined measures of some rows' models on the rows' own samples, float64 `[rows]` by name."""
    values = torch.full((len(functions), len(rows)), float("nan"), dtype=torch.float64)
    for column, row in enumerate(rows if functions else ()):
        own = {name: buffer[row] for name, buffer in buffers.items()}
        outputs, targets = oracle.outputs(x[row], own, "train", oracle.samples_of(row))
        for k, (name, function) in enumerate(functions.items()):
            values[k, column] = call_or_nan(name, function, outputs, targets)
    return dict(zip(functions, values, strict=True))
