"""Errors name what the user wrote: an argument in Python (`period`), a key in a configuration file (`run.period`)."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import depositum as dp
from depositum.engines import EngineSettings
from depositum.errors import ConfigError, GroupError, renamed_keys
from depositum.runs.config import Config
from depositum.runs.config_file import from_table
from depositum.runs.config_keys import config_key, config_keys

CLIENTS = [(torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64)) for _ in range(3)]

#: The sections of a configuration, which are no part of a Python user's vocabulary.
SECTION = re.compile(r"\b(problem|network|algorithm|run|metrics|processes)\.[a-z_]")


def fit(**settings: Any) -> object:
    return dp.fit(nn.Linear(5, 3), CLIENTS, **{"steps": 1, "progress": False, "device": "cpu", **settings})


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: fit(steps=-1), "steps"),
        (lambda: fit(period=0), "period"),
        (lambda: fit(batch_size=0), "batch_size"),
        (lambda: fit(evaluate_every=0), "evaluate_every"),
        (lambda: fit(evaluate_every=4, evaluate_from=4), "evaluate_from"),
        (lambda: fit(evaluate_every=10, metrics=dp.MetricSettings(costly_every=7)), "costly_every"),
        (lambda: fit(evaluate_every=10, metrics=dp.MetricSettings(train_every=7)), "train_every"),
        (lambda: fit(loss="cross-entropi"), "loss"),
        (lambda: fit(weighting="size"), "weighting"),
        (lambda: fit(device="gpu"), "device"),
        (lambda: fit(dtype="float16"), "dtype"),
        (lambda: fit(precision="fp16"), "precision"),
        (lambda: fit(channel="float17"), "channel"),
        (lambda: fit(channel="float16", algorithm=dp.algorithm("cdproxsgt")), "channel"),
        (lambda: fit(network=dp.ring(4)), "network"),
        (lambda: fit(network=dp.ring(3), algorithm=dp.algorithm("fedavg")), "network"),
        (lambda: fit(period=2, algorithm=dp.algorithm("extra")), "period"),
        (lambda: fit(regularizer=dp.L1(), beta=-1.0), "beta"),
        (lambda: fit(regularizer=dp.L1(), beta=1.0, algorithm=dp.algorithm("dsgt")), "regularizer"),
        (lambda: fit(regularizer=dp.L1().on("none*"), beta=1.0), "regularizer.on"),
        (lambda: fit(regularizer=dp.MCP(), beta=200.0), "alpha"),
        (lambda: dp.fit(nn.LSTM(5, 3), CLIENTS, progress=False), "model"),
        (lambda: dp.fit(nn.ReLU(), CLIENTS, progress=False), "model"),
        (lambda: dp.Depositum(alpha=0.0), "alpha"),
        (lambda: dp.Depositum(gamma=1.0), "gamma"),
        (lambda: dp.Depositum(momentum="heavy"), "momentum"),  # type: ignore[arg-type]
        (lambda: dp.Depositum(alpha={"cosine": {"start": 0.1, "steps": 5, "end": 0.2}}), "alpha.cosine.end"),
        (lambda: dp.algorithm("depositun"), "name"),
        (lambda: dp.algorithm("depositum", alpha=-1.0), "alpha"),
        (lambda: dp.algorithm("depositum", alhpa=1.0), "alhpa"),
        (lambda: dp.algorithm("depositum", gamma="much"), "gamma"),
        (lambda: dp.algorithm("prox-dasa", a={"step": {"start": 0.1, "factor": 2.0, "every": 3}}), "a.step.factor"),
        (lambda: dp.MetricSettings(costly_every=-1), "costly_every"),
        (lambda: dp.MetricSettings(alpha=0.0), "alpha"),
        (lambda: dp.MetricSettings(smoothness="mesure"), "smoothness"),  # type: ignore[arg-type]
        (lambda: dp.ProcessSettings(timeout=0.0), "timeout"),
        (lambda: dp.ProcessSettings(evaluate="scalar"), "evaluate"),  # type: ignore[arg-type]
        (lambda: EngineSettings(device="gpu").resolve_device(), "device"),
        (lambda: dp.ring(0), "n"),
        (lambda: dp.ring(10, hops=0), "hops"),
        (lambda: dp.ring(10, hops="2"), "hops"),  # type: ignore[arg-type]
        (lambda: dp.ring(10, mixing="metropolos"), "mixing"),
        (lambda: dp.ring(4, mixing=np.full((4, 4), 0.25)), "mixing"),
        (lambda: dp.grid(10, rows=4), "rows"),
        (lambda: dp.grid(10, rows=5, cols=5), "n"),
        (lambda: dp.hypercube(10), "n"),
        (lambda: dp.one_peer_exponential(10), "n"),
        (lambda: dp.erdos_renyi(10, p=1.5), "p"),
        (lambda: dp.geometric(10, radius=-0.1), "radius"),
        (lambda: dp.network("rnig", 10), "topology"),
        (lambda: dp.network({"ring": {"hops": 0}}, 10), "topology.ring.hops"),
        (lambda: dp.network("ring", 10, drop=1.0), "drop"),
        (lambda: dp.network("ring", -1), "n"),
        (lambda: dp.L1().scaled(-1.0), "scale"),
        (lambda: dp.L1().on([]), "on"),
        (lambda: dp.MCP(theta=0.0), "theta"),
        (lambda: dp.SCAD(lam=-1.0), "lam"),
        (lambda: dp.Box(2.0, 1.0), "low"),
        (lambda: dp.L2Ball(radius=-1.0), "radius"),
    ],
)
def test_an_error_in_python_begins_with_the_argument(call: Callable[[], object], argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert caught.value.key == argument
    assert message.startswith(f"{argument}: ")
    assert not SECTION.search(message), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("run", {"period": 0}, "run.period: 0 given"),
        ("run", {"device": "gpu"}, "run.device: 'gpu' given"),
        ("run", {"evaluate_from": 10}, "run.evaluate_from: 10 given; .* from 0 to run.evaluate_every − 1 = 9"),
        ("problem", {"regularizer": {"mcp": {"theta": 0.0}}}, "problem.regularizer.mcp.theta: 0.0 given"),
        ("problem", {"regularizer": "mcp", "beta": 200.0}, "algorithm.alpha: αβρ = "),
        ("problem", {"model": "linaer"}, "problem.model: 'linaer' is not a model"),
        ("problem", {"dataset": {"synthetic": {"samples": 0}}}, "problem.dataset.synthetic.samples: 0 given"),
        ("network", {"topology": {"ring": {"hops": 0}}}, "network.topology.ring.hops: 0 given"),
        ("network", {"topology": "hypercube"}, "network.topology: 'hypercube' of 10 clients given"),
        ("network", {"topology": "one-peer-exponential"}, "network.topology: 'one-peer-exponential' of 10 clients"),
        ("network", {"drop": 1.0}, "network.drop: 1.0 given"),
        ("network", {"mixing": "metropolos"}, "network.mixing: 'metropolos' is not a mixing rule"),
        ("network", {"channel": "float17"}, "network.channel: 'float17' is not a channel"),
        ("algorithm", {"name": "depositun"}, "algorithm.name: 'depositun' is not an algorithm"),
        ("algorithm", {"alpha": 0.0}, "algorithm.alpha: 0.0 given"),
        ("algorithm", {"gama": 0.5}, "algorithm.gama: unknown key"),
        ("algorithm", {"alpha": {"cosine": {"start": 0.1, "steps": 5, "end": 0.2}}}, "algorithm.alpha.cosine.end: 0.2"),
        ("metrics", {"alpha": -1.0}, "metrics.alpha: -1.0 given"),
        ("metrics", {"costly_every": 7}, "metrics.costly_every: 7 given; .* a multiple of run.evaluate_every = 10"),
        ("processes", {"timeout": 0.0}, "processes.timeout: 0.0 given"),
    ],
)
def test_the_error_of_a_configuration_begins_with_the_key(section: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        from_table({section: settings})


def test_every_key_of_a_configuration_is_found_by_its_name() -> None:
    """A key of two sections would be attributed to one of them; only that of a hyper-parameter may be."""
    for section, field in Config.model_fields.items():
        for name in type(field.default).model_fields:
            expected = "algorithm.alpha" if (section, name) == ("metrics", "alpha") else f"{section}.{name}"
            assert config_key(name) == expected
            assert config_key(name, section) == f"{section}.{name}"


@pytest.mark.parametrize("name", ["", "--out", "run.period", "network", "results/run: no such folder", "tau"])
def test_other_names_are_not_translated(name: str) -> None:
    assert config_key(name) == name


def test_names_are_translated_once_and_keep_the_type_of_the_error() -> None:
    with pytest.raises(dp.NetworkError) as caught, config_keys(), config_keys():
        dp.network({"ring": {"hops": 0}}, 10)
    assert str(caught.value) == "network.topology.ring.hops: 0 given; it must be 1 or more"


def test_a_mentioned_argument_is_translated_where_it_is_a_word() -> None:
    with pytest.raises(ConfigError) as caught, renamed_keys(lambda name: f"run.{name}"):
        raise ConfigError("steps", "steps, all_steps, steps_more and run.steps", mentions=("steps",))
    assert str(caught.value) == "run.steps: run.steps, all_steps, steps_more and run.steps"


def test_the_error_of_another_process_is_translated() -> None:
    """Breaks if the other ranks of a distributed run report the argument where this one reports the key."""
    with pytest.raises(GroupError) as caught, config_keys():
        raise GroupError("0 given", key="period", reporter="rank 1 (host a) stopped: ")
    assert str(caught.value) == "rank 1 (host a) stopped: run.period: 0 given"
