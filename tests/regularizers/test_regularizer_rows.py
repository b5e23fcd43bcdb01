"""Every regularizer on rows: independence, dtypes, devices, constraints, and invalid parameters."""

from math import inf, sqrt

import pytest
import torch

from depositum.errors import RegularizerError
from depositum.regularizers import (
    L1,
    MCP,
    REGULARIZERS,
    SCAD,
    Box,
    ElasticNet,
    L1Ball,
    L2Ball,
    Nonnegative,
    NuclearNorm,
    Simplex,
    build,
)
from tests.support.regularizer_cases import (
    CASES,
    DEFINITIONS,
    LAYOUT,
    D,
    both_dtypes,
    draw,
    every,
    every_indicator,
    only,
)

# --- rows, shapes, types, devices -------------------------------------------------------------------------------------


@every
def test_rows_are_independent(case):
    """Breaks if anything is reduced over clients: stacked rows, in any shape, equal the rows one by one."""
    z, v, tau = draw(6, D), draw(6, D, seed=1), 0.5 * case.largest_step
    p = case.h.prox(z, tau)
    torch.testing.assert_close(p, torch.stack([case.h.prox(row, tau) for row in z]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(case.h.value(p), torch.stack([case.h.value(row) for row in p]), rtol=1e-12, atol=1e-13)
    distance = case.h.subdifferential_distance(p, v)
    alone = torch.stack([case.h.subdifferential_distance(*pair) for pair in zip(p, v, strict=True)])
    torch.testing.assert_close(distance, alone, rtol=1e-10, atol=1e-12)
    folded = case.h.prox(z.view(2, 3, D), tau)
    torch.testing.assert_close(folded.view(6, D), p, rtol=1e-12, atol=1e-13)
    assert case.h.value(folded).shape == case.h.subdifferential_distance(folded, folded).shape == (2, 3)
    assert case.h.value(z[0]).shape == case.h.subdifferential_distance(p[0], v[0]).shape == ()


@every
@both_dtypes
def test_tensor_step_equals_number(case, dtype):
    """A step per row, or one for all, of any float dtype, equals the number, in the dtype of z."""
    z, taus = draw(4, D, dtype=dtype), [share * case.largest_step for share in (0.1, 0.4, 0.7, 0.9)]
    tight = {"rtol": 2e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    for tau_dtype in (dtype, torch.float64):
        common = case.h.prox(z, torch.tensor(taus[1], dtype=tau_dtype))
        torch.testing.assert_close(common, case.h.prox(z, taus[1]), **tight)
        per_row = case.h.prox(z, torch.tensor(taus, dtype=tau_dtype).unsqueeze(-1))
        expected = torch.stack([case.h.prox(row, tau) for row, tau in zip(z, taus, strict=True)])
        torch.testing.assert_close(per_row, expected, **tight)


@every
def test_float32_agrees_with_float64(case):
    """Breaks if float32 rows lose more than rounding, or if the dtype changes."""
    z, v, tau = draw(5, D), draw(5, D, seed=1), 0.5 * case.largest_step
    p = case.h.prox(z, tau)
    low = case.h.prox(z.float(), tau)
    results = (low, case.h.value(low), case.h.subdifferential_distance(low, v.float()))
    assert {result.dtype for result in results} == {torch.float32}
    torch.testing.assert_close(low.double(), p, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(results[1].double(), case.h.value(p), rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(results[2].double(), case.h.subdifferential_distance(p, v), rtol=1e-4, atol=1e-4)


@only(lambda case: case.name != "sum")
@both_dtypes
def test_a_step_of_zero_is_the_identity_or_the_projection(case, dtype):
    """P_0 is the identity bit for bit, or the projection, as methods with a decaying step require."""
    z = draw(4, D, dtype=dtype)
    expected = case.h.prox(z, 1.0) if case.h.indicator else z
    for tau in (0.0, torch.zeros((), dtype=dtype), torch.zeros(4, 1, dtype=dtype)):
        assert torch.equal(case.h.prox(z, tau), expected)


@every
def test_prox_does_not_synchronize_with_the_device(case):
    """The meta device stands in for a GPU: reading a value back, or mixing in a CPU tensor, raises."""
    z = torch.empty(4, D, device="meta")
    tau = torch.empty(4, 1, device="meta")
    assert case.h.prox(z, tau).device == case.h.prox(z, 0.5 * case.largest_step).device == z.device
    assert case.h.prox(z, torch.tensor(0.5 * case.largest_step)).device == z.device  # a 0-dim step may be on the host
    assert case.h.value(z).device == case.h.subdifferential_distance(z, z).device == z.device
    assert case.h.value(torch.zeros(D)).device.type == "cpu"  # and back again


@pytest.mark.slow
@every
def test_prox_compiles_to_one_graph(case):
    """Breaks if the prox would break the graph of a compiled step (a Python branch on a tensor)."""
    torch._dynamo.reset()  # the other cases compiled the same method, and its recompilations are limited
    compiled = torch.compile(case.h.prox, backend="eager", fullgraph=True)
    z, tau = draw(3, D), torch.full((3, 1), 0.5 * case.largest_step, dtype=torch.float64)
    torch.testing.assert_close(compiled(z, tau), case.h.prox(z, tau))


@every
def test_a_diverged_row_does_not_affect_others(case):
    """A NaN row neither raises nor changes the others, and does not become finite."""
    z, tau = draw(3, D), 0.5 * case.largest_step
    expected = case.h.prox(z, tau)
    z[1] = torch.nan
    p = case.h.prox(z, tau)
    torch.testing.assert_close(p[[0, 2]], expected[[0, 2]], rtol=1e-12, atol=1e-13)
    assert p[1].isnan().all()
    assert case.h.value(p)[[0, 2]].isfinite().all()
    if case.name not in ("zero", "none"):
        assert not case.h.value(p)[1].isfinite()
        assert not case.h.subdifferential_distance(p, expected)[1].isfinite()


# --- constraints ------------------------------------------------------------------------------------------------------


@every_indicator
@both_dtypes
@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["near", "far"])
def test_projection_is_feasible_and_idempotent(case, dtype, scale):
    """Breaks if cancellation moves far points off the set, or if projecting twice moves a point."""
    p = case.h.prox(draw(20, D, dtype=dtype, scale=scale), 1.0)
    assert (case.h.value(p) == 0).all()
    torch.testing.assert_close(case.h.prox(p, 0.3), p, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@every_indicator
@both_dtypes
def test_averages_of_projected_rows_stay_feasible(case, dtype):
    """φ must not become ∞ after mixing: a thousand clients on the boundary, summed in the worst order."""
    p = case.h.prox(draw(1000, D, dtype=dtype, scale=5.0) + 3, 1.0)
    p = torch.cat([p, p[:1].expand(1000, D)])  # equal rows, whose rounding errors all have one sign
    for block in (p[:1000], p[1000:]):
        one_by_one = torch.zeros(D, dtype=dtype)
        for row in block:
            one_by_one += 1e-3 * row
        ring = (block + block.roll(1, 0) + block.roll(-1, 0)) / 3
        assert case.h.value(one_by_one) == case.h.value(block.mean(0)) == 0
        assert (case.h.value(ring) == 0).all()
        assert case.h.subdifferential_distance(one_by_one, torch.zeros(D, dtype=dtype)) == 0


def test_simplex_in_a_million_dimensions():
    """In float32 the sum of a million coordinates, before or after the projection, errs by more than the tolerance."""
    z = 1 + 1e-6 * draw(2, 1_000_000, dtype=torch.float32)
    z[1, 1:] = 0.01
    assert (Simplex().value(Simplex().prox(z, 1.0)) == 0).all()
    assert (L1Ball(5.0).value(L1Ball(5.0).prox(z, 1.0)) == 0).all()


# --- traits and invalid parameters ------------------------------------------------------------------------------------


def test_traits():
    """ρ is 1/θ for MCP, 1/(a − 1) for SCAD and 0 for convex functions; separable and indicator as listed."""
    assert MCP(lam=2.0, theta=4.0).rho == 0.25
    assert SCAD(lam=2.0, a=3.0).rho == 0.5
    assert not MCP().convex
    assert not SCAD().convex
    separable = {"zero", "none", "l1", "squared-l2", "elastic-net", "mcp", "scad", "box", "nonnegative"}
    indicators = {"box", "nonnegative", "l2-ball", "l1-ball", "simplex"}
    for case in CASES:
        if case.name in DEFINITIONS:
            assert case.h.separable == (case.name in separable)
            assert case.h.indicator == (case.name in indicators)
            assert case.h.convex == (case.name not in ("mcp", "scad"))


@every
def test_regularizers_are_immutable_and_hashable(case):
    """Two with the same parameters are equal and have equal hashes."""
    twin = build(case.spec).bind(LAYOUT)
    assert case.h == twin
    assert hash(case.h) == hash(twin)
    with pytest.raises(AttributeError):
        case.h.lam = 2.0


@every
@pytest.mark.parametrize("tau", [-1e-3, inf, float("nan")])
def test_an_invalid_step_is_rejected(case, tau):
    with pytest.raises(RegularizerError, match="finite and >= 0"):
        case.h.prox(draw(2, D), tau)


@only(lambda case: not case.h.convex)
def test_a_step_beyond_weak_convexity_is_rejected(case):
    """At τρ ≥ 1 the prox may be set-valued; the message has the caller's key, the condition and both numbers."""
    for tau in (1 / case.h.rho, 1.5 / case.h.rho):
        with pytest.raises(RegularizerError, match=r"^prox: the prox needs tau \* rho < 1") as error:
            case.h.prox(draw(2, D), tau)
        assert repr(tau) in str(error.value)
        assert f"{case.h.rho:.6g}" in str(error.value)
        with pytest.raises(RegularizerError, match="^alpha: "):
            case.h.check_step(tau, "alpha")
    case.h.check_step(0.999 / case.h.rho)


def test_a_step_is_rejected_where_the_reciprocal_rounds_down():
    """49 · (1/49) is below 1 in floating point, but there is no prox for τ = θ."""
    assert 49 * (1 / 49) < 1
    with pytest.raises(RegularizerError, match="tau"):
        MCP(theta=49.0).check_step(49.0)


INVALID_PARAMETERS = [
    (ElasticNet, {"k": -0.1}, "k", "k >= 0"),
    (MCP, {"lam": 0.0}, "lam", "lam > 0"),
    (MCP, {"lam": -1.0}, "lam", "lam > 0"),
    (MCP, {"theta": 0.0}, "theta", "theta > 0"),
    (MCP, {"theta": float("nan")}, "theta", "finite theta > 0"),
    (SCAD, {"lam": -1.0}, "lam", "lam > 0"),
    (SCAD, {"a": 2.0}, "a", "a > 2"),
    (SCAD, {"a": inf}, "a", "finite a > 2"),
    (Box, {"low": 1.0, "high": 0.0}, "low", "low <= high"),
    (Box, {"low": -inf, "high": 0.0}, "low", "finite low"),
    (Box, {"low": 0.0, "high": float("nan")}, "high", "finite high"),
    (L2Ball, {"radius": 0.0}, "radius", "radius > 0"),
    (L1Ball, {"radius": -2.0}, "radius", "radius > 0"),
    (Simplex, {"total": 0.0}, "total", "total > 0"),
]


@pytest.mark.parametrize(("make", "parameters", "key", "condition"), INVALID_PARAMETERS, ids=str)
def test_an_invalid_parameter_is_rejected(make, parameters, key, condition):
    """The message names the parameter, its value, the regularizer and the condition."""
    with pytest.raises(RegularizerError) as error:
        make(**parameters)
    text = str(error.value)
    assert text.startswith(f"{key}: {parameters[key]!r} given")
    assert make.__name__ in text
    assert condition in text


def test_every_numeric_parameter_rejects_non_finite_values():
    """Every parameter of every registered regularizer is tested with NaN and ∞."""
    tested = 0
    for case in CASES:
        if case.name not in DEFINITIONS or "on" in case.spec or "scale" in case.spec:
            continue
        for parameter in REGULARIZERS.parameters(case.name):
            for value in (float("nan"), inf):
                given_ = {**case.spec[case.name], parameter: value}
                with pytest.raises(RegularizerError, match=parameter):
                    build({case.name: given_})
                tested += 1
    assert tested >= 16


def test_small_weights_are_not_on_a_boundary_at_zero():
    """In float32 the tolerance is 1e-4, but a weight of 1e-5 is positive: its normal cone is {0}."""
    x = torch.full((D,), 1e-5)
    push_down = -torch.ones(D)
    for h in (Nonnegative(), Box(0.0, 1.0)):
        assert h.subdifferential_distance(x, push_down) == pytest.approx(sqrt(D))
        assert h.subdifferential_distance(0 * x, push_down) == 0
    assert L1().subdifferential_distance(x, torch.zeros(D)) == pytest.approx(sqrt(D))


@both_dtypes
@pytest.mark.parametrize("h", [Box(-0.1, 0.7), L2Ball(0.7), L1Ball(0.7)], ids=str)
def test_averages_of_boundary_points_are_on_the_boundary(h, dtype):
    """A thousand clients agree on a boundary point; their rounded average still has its normal cone."""
    x = h.prox(torch.full((D,), 100.0, dtype=dtype), 1.0)
    average = torch.zeros(D, dtype=dtype)
    for _ in range(1000):
        average += 1e-3 * x
    assert not torch.equal(average, x)
    assert h.subdifferential_distance(average, torch.ones(D, dtype=dtype)) < 1e-3
    assert h.subdifferential_distance(average, -torch.ones(D, dtype=dtype)) == pytest.approx(sqrt(D))


def test_nuclear_prox_gives_exact_zeros():
    """All singular values below τ: exactly zero, not rounding noise, so that sparsity counts it."""
    h = NuclearNorm().bind(LAYOUT)
    p = h.prox(draw(3, D, scale=0.1), 10.0)
    assert p[:, :12].eq(0).all()
    assert p[:, 15:].eq(0).all()
