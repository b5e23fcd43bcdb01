"""Precision of the model's passes: the meaning of each name per device, and that torch's settings are restored."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.layout import Layout
from depositum.problem import Oracle, Problem, Trial, as_loss
from depositum.problem.precision import exact, forward_backward, resolve

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BACKENDS = torch.backends
GPU_SWITCHES = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn)
CPU_SWITCHES = (BACKENDS.mkldnn.matmul, BACKENDS.mkldnn.conv, BACKENDS.mkldnn.rnn)


def read():
    return [switch.fp32_precision for switch in (*GPU_SWITCHES, *CPU_SWITCHES)]


@pytest.mark.parametrize(
    ("given", "dtype", "device", "expected"),
    [
        ("auto", torch.float32, CPU, "float32"),
        ("auto", torch.float32, GPU, "tf32"),
        ("auto", torch.float64, CPU, "float64"),
        ("auto", torch.float64, GPU, "float64"),
        ("float32", torch.float32, GPU, "float32"),
        ("tf32", torch.float32, GPU, "tf32"),
        ("bf16", torch.float32, CPU, "bf16"),
    ],
)
def test_precision_is_resolved_by_dtype_and_device(given, dtype, device, expected):
    assert resolve(given, dtype, device) == expected


def test_a_frozen_base_is_in_bf16_on_a_gpu():
    assert resolve("auto", torch.float32, GPU, frozen=True) == "bf16"
    assert resolve("auto", torch.float32, CPU, frozen=True) == "float32"
    assert resolve("tf32", torch.float32, GPU, frozen=True) == "tf32"
    assert resolve("auto", torch.float64, GPU, frozen=True) == "float64"


@pytest.mark.parametrize(
    ("given", "dtype", "device", "message"),
    [
        ("tf32", torch.float32, CPU, "^precision: 'tf32' needs a GPU, and the device is cpu"),
        ("bf16", torch.float64, CPU, "^precision: 'bf16' given with dtype float64; it must be 'auto'"),
        ("float32", torch.float64, GPU, "^precision: 'float32' given with dtype float64"),
        ("bf61", torch.float32, CPU, "^precision: 'bf61' given; it can be 'auto', .* did you mean 'bf16'?"),
    ],
)
def test_invalid_precisions_are_rejected(given, dtype, device, message):
    with pytest.raises(ConfigError, match=message):
        resolve(given, dtype, device)


@pytest.fixture(params=["default", "high", "medium"])
def user_settings(request):
    """Torch's defaults, and with reduced precision of float32 products enabled by the user (on GPU and CPU)."""
    before = torch.get_float32_matmul_precision()
    if request.param != "default":
        torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("user_settings")
def test_settings_apply_inside_and_are_restored_outside():
    """TF32 only in the model's passes; mixing is exact whatever the user set, which is restored, also on errors."""
    before = read()
    with forward_backward("tf32"):
        assert [switch.fp32_precision for switch in GPU_SWITCHES] == ["tf32"] * 3
        with exact():
            assert BACKENDS.cuda.matmul.fp32_precision == "ieee"
        assert [switch.fp32_precision for switch in GPU_SWITCHES] == ["tf32"] * 3
    assert read() == before
    for precision in ("float32", "float64", "bf16"):
        with forward_backward(precision):
            assert read() == ["ieee"] * 6
        assert read() == before
    with exact():
        assert BACKENDS.cuda.matmul.fp32_precision == BACKENDS.mkldnn.matmul.fp32_precision == "ieee"
    assert read() == before
    with pytest.raises(KeyError), exact():
        raise KeyError
    assert read() == before
    assert isinstance(BACKENDS.cuda.matmul.allow_tf32, bool)  # torch's older names still work


def oracle_of(model, precision, backend="auto", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    train = Samples(torch.randn(40, 8, generator=generator), torch.arange(40) % 3)
    start = Layout.of(model).row({k: p.detach() for k, p in model.named_parameters()})
    trial = Trial(0, start, np.array_split(np.arange(40), 4))
    problem = Problem(copy.deepcopy(model), as_loss("cross-entropy"), train, (trial,), test=train)
    return Oracle(problem, 8, precision=precision, backend=backend, dtype=dtype)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_bf16_on_a_cpu_is_close_to_float32(backend):
    """Eight bits of mantissa: gradients differ by about 1 %, not by 0 (no effect) nor 30 %; results are float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    plain, reduced = oracle_of(model, "float32", backend), oracle_of(model, "bf16", backend)
    x = plain.start()
    for found, expected in (
        (reduced.grad(x, reduced.sample()), plain.grad(x, plain.sample())),
        (reduced.full_grad(x), plain.full_grad(x)),
        (reduced.global_grad(x), plain.global_grad(x)),
    ):
        assert found.dtype == torch.float32
        error = float((found - expected).norm() / expected.norm())
        assert 1e-4 < error < 5e-2
    loss, _ = reduced.evaluate(x, {}, "test")
    expected_loss, _ = plain.evaluate(x, {}, "test")
    assert 0 < float((loss - expected_loss).abs().max()) < 1e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_reduced_precision_on_a_gpu_is_close_to_float64(precision):
    """Ten bits of mantissa in TF32, seven in bf16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3))
    exactly = oracle_of(model, "float64", dtype=torch.float64)
    expected = exactly.full_grad(exactly.start())
    problem = exactly.problem
    found = {}
    for name in ("float32", precision):
        oracle = Oracle(problem, 8, device="cuda", precision=name)
        found[name] = float((oracle.full_grad(oracle.start()).cpu() - expected).norm() / expected.norm())
    assert found["float32"] < 1e-5 < found[precision] < 5e-2
