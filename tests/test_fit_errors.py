"""Invalid arguments of `depositum.fit` are rejected in one line, before any work."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import depositum as dp
from depositum.runs import problems
from tests.support.small_fits import small_fit

X, Y = torch.randn(6, 5), torch.arange(6) % 3
NAN = X.clone()
NAN[4, 2] = float("nan")


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], r"clients: no client given; it must be a list of \(inputs, targets\), one per client"),
        ((X, Y), r"clients\[0\]: a Tensor given; it must be a pair \(inputs, targets\)"),
        ([(X, Y), (X,)], r"clients\[1\]: a tuple given; it must be a pair"),
        ([(X, Y), (X, Y[:5])], r"clients\[1\]: 6 inputs but 5 targets"),
        ([(X, Y), (X[:0], Y[:0])], r"clients\[1\]: has no samples; every client needs at least one"),
        ([(X, Y), (NAN, Y)], r"clients\[1\]: inputs of sample 4 are not finite"),
        ([(X, Y / Y)], r"clients\[0\]: targets of sample 0 are not finite"),
        (
            [(X, Y), (X[:, :4], Y)],
            r"clients\[1\]: inputs have shape \(4,\) per sample, but those of clients\[0\] \(5,\)",
        ),
        ([(X, Y), (X, Y[:, None])], r"clients\[1\]: targets have shape \(1,\) per sample"),
        (
            [(X, Y), (X, Y.float())],
            r"clients\[1\]: targets are torch.float32, but those of clients\[0\] are torch.int64",
        ),
        ([(np.array(["a", "b"]), Y[:2])], r"clients\[0\]: must be two arrays of numbers"),
        ([(X.to_sparse(), Y)], r"clients\[0\]: inputs are sparse \(torch.sparse_coo\); .* with .to_dense\(\)"),
        ([(X, Y), (X, Y.to_sparse())], r"clients\[1\]: targets are sparse"),
        ([(1.0, 2.0)], r"clients\[0\]: must be arrays of samples, not single numbers"),
        ([(X, Y + 1)], r"^model: it has 3 outputs, but there is a label 3; labels are 0 … 2"),
        ([(X[:, :4], Y)], r"^model: fails on \[2, 4\] of torch.float32"),
        ([(X.to(torch.uint8), Y)], r"^model: fails on \[2, 5\] of torch.uint8"),
        (
            [(X, Y.float())],
            r"loss: targets that are not whole numbers mean regression, but a sample has 1 target and 3 outputs; "
            r"class labels must be integers$",
        ),
    ],
)
def test_invalid_clients_are_rejected(clients, message):
    """The error names the client, what was given and what it must be."""
    with pytest.raises(dp.ConfigError, match=message) as error:
        small_fit(clients=clients)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": dp.ring(5)}, "network: it has 5 clients, but the problem has 4"),
        ({"network": "rang"}, r"network: 'rang' is not a topology; .* did you mean 'ring'"),
        ({"network": {"ring": {"hops": 0}}}, r"network.ring.hops: 0 given"),
        ({"network": "hypercube", "clients": [(X, Y)] * 3}, r"network: 'hypercube' of 3 clients given"),
        ({"network": np.eye(40)}, r"network: a ndarray of shape \(40, 40\) given; it must be of type Network"),
        ({"algorithm": "depositun"}, "algorithm: 'depositun' is not an algorithm; .* did you mean 'depositum'"),
        ({"algorithm": {"fedavg": {"alpha": -1.0}}}, r"algorithm.fedavg.alpha: -1.0 given"),
        ({"algorithm": {"fedavg": {"alpa": 1.0}}}, r"algorithm.fedavg.alpa: unknown key; .* did you mean 'alpha'"),
        ({"algorithm": 3}, "algorithm: 3 given; it must be of type Algorithm, .* or a name such as 'fedavg'"),
        ({"regularizer": "l11", "beta": 1.0}, r"regularizer: 'l11' is not a regularizer; .* did you mean 'l1'"),
        ({"regularizer": {"mcp": {"theta": 0.0}}, "beta": 1.0}, "regularizer.mcp.theta: 0.0 given"),
        ({"regularizer": 1.0, "beta": 1.0}, r"regularizer: 1.0 given; it must be of type Regularizer, such as dp.L1"),
        ({"seeds": 3}, "seeds: 3 given; it must be a list of whole numbers"),
        ({"seeds": [1, 1]}, r"seeds: \[1, 1\] given; it must be a list of different whole numbers"),
        ({"seeds": [1], "seed": 2}, "seeds: given beside seed = 2"),
        ({"out": 3}, "out: 3 given; it must be the path of a folder"),
        ({"compile": "sometimes"}, "compile: 'sometimes' given"),
        ({"on_divergence": "ignore"}, "on_divergence: 'ignore' given; it can be 'raise' or 'warn'"),
        ({"checkpoint_every": 0}, "checkpoint_every: 0 given; it must be a whole number ≥ 1"),
        ({"regularizer": dp.L1()}, r"beta: missing; it weights L1\(\): give a number > 0, or 0 to switch it off"),
        ({"beta": -1.0, "regularizer": dp.L1()}, "^beta: -1.0 given"),
        ({"beta": 0.1}, "beta: 0.1 given, but no regularizer that it could weigh"),
        ({"beta": float("nan")}, "beta: nan given, but no regularizer"),
        (
            {"metrics": dp.MetricSettings(costly_every=7), "evaluate_every": 10},
            "^costly_every: 7 given; it must be a multiple of evaluate_every = 10",
        ),
        (
            {"metrics": {"costly_every": 1}},
            r"metrics: {'costly_every': 1} given; it must be of type MetricSettings, such as dp.MetricSettings",
        ),
        ({"processes": 60}, "processes: 60 given; it must be of type ProcessSettings, such as dp.ProcessSettings"),
        ({"callbacks": [print]}, r"callbacks: \[<built-in .*\] given; it must be a list of dp.Callback objects"),
        ({"callbacks": dp.Callback()}, "callbacks: .* given; it must be a list of dp.Callback objects"),
        ({"model": nn.LSTM(5, 3)}, "^model: returned a tuple, but 'cross-entropy' takes one tensor"),
        ({"regularizer": dp.MCP(), "beta": 200.0}, "^alpha: αβρ = .* single-valued only below 1"),
        ({"test": (X[:, :3], Y)}, r"test: inputs have shape \(3,\) per sample"),
        ({"test": (X, Y.float())}, "test: targets are torch.float32"),
        ({"test": (X, Y + 2)}, "^model: it has 3 outputs, but there is a label 3"),
        ({"loss": "cross-entropi"}, "^loss: .* did you mean 'cross-entropy'"),
        ({"loss": lambda o, y: nn.functional.cross_entropy(o, y)}, "loss: .* one value per sample"),
        ({"weighting": "size"}, "^weighting: 'size' given; it can be 'uniform' or 'samples'"),
        ({"batch_size": 0}, "^batch_size: 0 given"),
        ({"batch_size": "all"}, "^batch_size: 'all' given; it must be a whole number or 'full'"),
        ({"period": 0}, "^period: 0 given"),
        ({"steps": -1}, "^steps: -1 given"),
        ({"steps": 2.5}, "^steps: 2.5 given; it must be a whole number"),
        ({"period": 1.5}, "^period: 1.5 given; it must be a whole number"),
        ({"evaluate_every": "often"}, "^evaluate_every: 'often' given; it must be a whole number"),
        ({"beta": "a", "regularizer": dp.L1()}, "beta: 'a' given; it must be a number"),
        ({"evaluate_every": 0}, "^evaluate_every: 0 given"),
        ({"evaluate_from": 4}, "^evaluate_from: 4 given; it must be a whole number from 0 to .* = 3"),
        ({"evaluate_from": 10**5000}, "^evaluate_from: a whole number of more than 60 digits given; .* = 3"),
        ({"seed": 1.5}, "seed: 1.5 given; it must be a whole number"),
        ({"dtype": "float16"}, "dtype: 'float16' given; it must be 'float32' or 'float64'"),
        ({"precision": "fp16"}, "^precision: 'fp16' given"),
        ({"precision": "bf16", "dtype": "float64"}, "^precision: 'bf16' given with dtype float64"),
        ({"device": "gpu"}, "^device: 'gpu' given"),
        ({"model": torch.tanh}, "model: a builtin_function_or_method given; it must be a torch.nn.Module"),
        ({"model": nn.ReLU()}, "^model: the model has no trainable parameters"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    """Each with its own error."""
    with pytest.raises(dp.ConfigError, match=message) as error:
        small_fit(**settings)
    assert "\n" not in str(error.value)


class _WithLock(nn.Linear):
    """Cannot be copied."""

    def __init__(self):
        super().__init__(5, 3)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": _WithLock()}, "^model: it cannot be copied: TypeError"),
        ({"model": nn.Linear(5, 3, device="meta")}, "^model: 'weight' is on the device 'meta', which holds no values"),
        ({"model": nn.Linear(5, 3, dtype=torch.complex64)}, "^model: 'weight' is of torch.complex64"),
        ({"clients": [(X.to("meta"), Y)]}, r"^clients\[0\]: inputs are on the device 'meta'"),
        ({"clients": [(X * 1j, Y)]}, r"^clients\[0\]: inputs are torch.complex64; they must be real numbers"),
        ({"clients": [(np.ma.masked_less(X.numpy(), 0), Y)]}, r"^clients\[0\]: must be two arrays .* masked array"),
        ({"clients": [(X.double() * 1e300, Y)]}, "^dtype: 'float32' given, but the data have values above 3.4e.38"),
        ({"clients": itertools.count()}, "^clients: more than 1000000 items given; it must be a list"),
        ({"clients": "abc" * 2000}, r"^clients: 'abc.*\(File name too long\)"),
        ({"clients": "nowhere.csv", "target": "y"}, "^clients: nowhere.csv: no such file"),
        ({"seeds": itertools.count()}, "^seeds: more than 1000 items given"),
        ({"seeds": (1 // 0 for _ in [1])}, "^seeds: .* given, which cannot be read .ZeroDivisionError"),
        ({"seed": torch.ones(2)}, "^seed: tensor.* given; it must be a whole number"),
        ({"weighting": np.ones(2)}, "^weighting: array.* given; it can be 'uniform' or 'samples'"),
        ({"on_divergence": np.ones(2)}, "^on_divergence: array.* given; it can be"),
        ({"loss": "tokens"}, r"^loss: 'tokens' given, but targets have shape \[126\]; it needs several terms"),
        ({"steps": 2**63}, "^steps: 9223372036854775808 given; it must be a whole number from 0 to 2⁶³ − 1"),
        ({"batch_size": 2**63}, "^batch_size: 9223372036854775808 given"),
        ({"batch_size": 2**40}, "^batch_size: 1099511627776 given, but batches take .* of memory"),
        ({"evaluate_every": 10**30}, "^evaluate_every: 1000000000000000000000000000000 given"),
        ({"network": "abc" * 2000}, "^network: 'abc.* is not a topology"),
        ({"metrics": {"f1": lambda outputs, targets: "good"}}, "^metrics.f1: returned 'good'; it must return one num"),
        ({"algorithm": "d2", "network": {"ring": {}}}, "^network: the smallest eigenvalue of W is"),
    ],
)
def test_what_random_calls_found(settings, message, tmp_path):
    """Each ended in an exception from inside, without the argument's name, or never (benchmarks/wrong_calls.py)."""
    with pytest.raises(dp.DepositumError, match=message) as error:
        small_fit(out=tmp_path / "run", **settings)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["~nobody-here/run", "a\0b", "x" * 5000, ""])
def test_paths_that_cannot_exist_are_rejected(out):
    with pytest.raises(dp.ConfigError, match=r"^out: '.* given; it must be the path of a folder"):
        small_fit(out=out)
    with pytest.raises(dp.ConfigError, match=r"^folder: '.* given; it must be the path of a run's folder"):
        dp.load(out)


def test_callbacks_of_a_generator_are_called():
    """They were read once to be checked, and then there were none left."""
    seen = []

    class Record(dp.Callback):
        def on_step(self, loop):
            seen.append(loop.t)

    small_fit(callbacks=(Record() for _ in range(1)), steps=2)
    assert seen == [1, 2]


def test_read_only_and_reversed_arrays_are_data(recwarn):
    """Without a warning of torch's about them."""
    inputs = np.broadcast_to(np.float32(1), (6, 5))
    small_fit(clients=[(inputs, Y), (X.numpy()[::-1], Y)], steps=1)
    assert not [w for w in recwarn if "writable" in str(w.message)]


@pytest.fixture
def backend(monkeypatch):
    """A function that chooses the backend of the runs that follow."""
    build = problems.make_engine

    def choose(name):
        monkeypatch.setattr(
            problems, "make_engine", lambda *a, settings, **k: build(*a, settings=replace(settings, backend=name), **k)
        )

    return choose


def test_a_module_that_is_used_twice_is_trained(backend):
    """Under vmap, torch left a row's parameters in the module, and the next call failed."""
    layer = nn.Linear(5, 5)
    model = nn.Sequential(layer, layer, nn.Linear(5, 3))
    backend("loop")
    expected = small_fit(model, steps=3).state["x"]
    backend("vmap")
    torch.testing.assert_close(small_fit(model, steps=3).state["x"], expected)


def test_a_rare_evaluation_does_not_take_memory():
    """Consensus errors between evaluations were given memory for all of `evaluate_every` iterations."""
    assert small_fit(steps=2, evaluate_every=2**40).iterations == 2


def test_none_instead_of_clients_is_rejected():
    with pytest.raises(dp.ConfigError, match=r"^clients: None given; it must be a list of \(inputs, targets\), one"):
        dp.fit(nn.Linear(5, 3), None, progress=False)
