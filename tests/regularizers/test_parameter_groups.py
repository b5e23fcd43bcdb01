"""Regularizers of some of the parameters, sums over groups of parameters, and their configuration."""

import copy

import numpy as np
import pytest
import torch

from depositum.errors import ConfigError, RegularizerError
from depositum.layout import Layout
from depositum.regularizers import (
    L1,
    MCP,
    REGULARIZERS,
    SCAD,
    Box,
    ElasticNet,
    Group,
    GroupLasso,
    Groups,
    L1Ball,
    L2Norm,
    Nonnegative,
    NuclearNorm,
    Regularizer,
    Simplex,
    SquaredL2,
    Zero,
    build,
)

LAYOUT = Layout.from_shapes({"conv.weight": (2, 1, 3), "conv.bias": (2,), "head.weight": (3, 4), "head.bias": (3,)})
CONV, CONV_BIAS, HEAD, HEAD_BIAS = slice(0, 6), slice(6, 8), slice(8, 20), slice(20, 23)
D = LAYOUT.size
TAU = 0.4


def draw(*shape, seed=0, dtype=torch.float64):
    return 2 * torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


#: Elementwise ones (which use a mask), one that gathers, ones that need the layout of the selection, and constraints.
KINDS = [L1(), MCP(), L2Norm(), GroupLasso(), NuclearNorm(), Box(-0.1, 0.2), Simplex()]


# --- a regularizer of selected parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("inner", KINDS, ids=str)
def test_only_the_selected_columns_change(inner, dtype):
    """Other columns are bit-identical, including −0; the selected ones equal the prox of those columns alone."""
    z = draw(3, D, dtype=dtype)
    z[0, 6] = -0.0
    h = inner.on("head.weight").bind(LAYOUT)
    p = h.prox(z, TAU)
    rest = [i for i in range(D) if not 8 <= i < 20]
    assert p[:, rest].numpy().tobytes() == z[:, rest].numpy().tobytes()
    alone = inner.bind(Layout.from_shapes({"head.weight": (3, 4)}))
    torch.testing.assert_close(p[:, HEAD], alone.prox(z[:, HEAD], TAU))
    torch.testing.assert_close(h.value(p), alone.value(p[:, HEAD]))
    assert not torch.equal(p, z)


@pytest.mark.parametrize("inner", KINDS, ids=str)
def test_scale_multiplies_h(inner):
    """c·h has c times the value and ρ, the prox with step cτ, ∂(ch) = c ∂h, and 1/c of the largest step."""
    h, scaled = inner.bind(LAYOUT), inner.scaled(3.0).bind(LAYOUT)
    z, v = draw(4, D), draw(4, D, seed=1)
    p = h.prox(z, 3 * TAU)
    torch.testing.assert_close(scaled.prox(z, TAU), p)
    torch.testing.assert_close(scaled.value(p), 3 * h.value(p))
    torch.testing.assert_close(
        scaled.subdifferential_distance(p, v), 3 * h.subdifferential_distance(p, v / 3), rtol=1e-9, atol=1e-9
    )
    assert scaled.rho == pytest.approx(3 * h.rho)
    assert (scaled.convex, scaled.separable, scaled.indicator) == (h.convex, h.separable, h.indicator)


def test_scale_reduces_the_largest_step():
    """τ·c·ρ < 1: 1.9·0.5 passes and 2.1·0.5 does not, with ρ = 1/5 and c = 2.5."""
    h = MCP(theta=5.0).scaled(2.5).on("*.weight").bind(LAYOUT)
    h.prox(draw(2, D), 1.9)
    with pytest.raises(RegularizerError, match=r"tau \* rho < 1"):
        h.prox(draw(2, D), 2.1)


def test_equivalent_specifications_are_equal():
    """`scaled` and `on` commute and do not nest groups, so that separable ones keep the fast path."""
    expected = Group(L1(), "*.weight", 2.0)
    assert L1().on("*.weight").scaled(2.0) == L1().scaled(2.0).on("*.weight") == expected
    assert build({"l1": {}, "on": "*.weight", "scale": 2.0}) == expected
    assert L1().scaled(2.0).scaled(3.0) == Group(L1(), scale=6.0)
    assert L1().on(["a", "b"]) == Group(L1(), ("a", "b"))


def test_patterns_select_columns():
    """Shell patterns, lists of patterns, and `!` for exclusion."""
    z = draw(2, D)
    for patterns, selected in [
        ("*.bias", [6, 7, 20, 21, 22]),
        (["conv.*", "head.bias"], [*range(8), 20, 21, 22]),
        ("!*.bias", [*range(6), *range(8, 20)]),
        (["head.*", "!*.bias"], [*range(8, 20)]),
    ]:
        changed = (SquaredL2().on(patterns).bind(LAYOUT).prox(z, TAU) != z).all(0)
        assert changed.nonzero().flatten().tolist() == selected


def test_selection_within_a_selection():
    """A group can be restricted further: the inner patterns apply to the selection of the outer ones."""
    z = draw(2, D)
    nested = Group(L1().on("*.weight"), "head.*").bind(LAYOUT)
    torch.testing.assert_close(nested.prox(z, TAU), L1().on("head.weight").bind(LAYOUT).prox(z, TAU))
    both = (L1().on("*.weight") + SquaredL2().on("*.bias")).on("head.*").bind(LAYOUT)
    expected = (L1().on("head.weight") + SquaredL2().on("head.bias")).bind(LAYOUT)
    torch.testing.assert_close(both.prox(z, TAU), expected.prox(z, TAU))
    torch.testing.assert_close(both.value(z), expected.value(z))


# --- sums over disjoint groups ----------------------------------------------------------------------------------------


def test_a_sum_equals_its_groups_computed_separately():
    """Value, prox and distance, block of columns by block of columns."""
    h = L1().on("conv.weight") + Nonnegative().on("conv.bias") + NuclearNorm().on("head.weight").scaled(0.5)
    h = h.bind(LAYOUT)
    z, v = draw(3, D), draw(3, D, seed=1)
    p = h.prox(z, TAU)
    expected = z.clone()
    expected[:, CONV] = z[:, CONV].sign() * (z[:, CONV].abs() - TAU).clamp(min=0)
    expected[:, CONV_BIAS] = z[:, CONV_BIAS].clamp(min=0)
    for row in range(3):
        u, s, vt = np.linalg.svd(z[row, HEAD].reshape(3, 4).numpy(), full_matrices=False)
        expected[row, HEAD] = torch.from_numpy(u @ np.diag((s - 0.5 * TAU).clip(min=0)) @ vt).flatten()
    torch.testing.assert_close(p, expected)
    nuclear = torch.stack([torch.linalg.svdvals(row.reshape(3, 4)).sum() for row in p[:, HEAD]])
    torch.testing.assert_close(h.value(p), p[:, CONV].abs().sum(-1) + 0.5 * nuclear)
    assert torch.isinf(h.value(z)).equal((z[:, CONV_BIAS] < -1e-9).any(-1))

    squares = [
        L1().subdifferential_distance(p[:, CONV], v[:, CONV]).square(),
        Nonnegative().subdifferential_distance(p[:, CONV_BIAS], v[:, CONV_BIAS]).square(),
        NuclearNorm().on("head.weight").scaled(0.5).bind(LAYOUT).distance_within(p, v).square(),
        v[:, HEAD_BIAS].square().sum(-1),  # in no group: ∂h = {0}
    ]
    torch.testing.assert_close(h.subdifferential_distance(p, v), sum(squares).sqrt())
    assert (h.subdifferential_distance(p, (z - p) / TAU) < 1e-12).all()


def test_traits_of_a_sum():
    """ρ is the largest c·ρ of the groups; the other traits hold if they hold for all groups."""
    mixed = MCP(theta=5.0).on("conv.*").scaled(2.0) + SCAD(a=3.7).on("head.weight") + L1().on("head.bias")
    assert mixed.rho == pytest.approx(0.4)
    assert (mixed.convex, mixed.separable, mixed.indicator) == (False, True, False)
    constraints = Simplex().on("conv.*") + Box(0.0, 1.0).on("head.*")
    assert (constraints.rho, constraints.convex, constraints.separable, constraints.indicator) == (0, True, False, True)
    with pytest.raises(RegularizerError, match=r"tau \* rho < 1"):
        mixed.bind(LAYOUT).prox(draw(1, D), 2.6)


def test_constraints_in_a_sum_are_projected_at_step_zero():
    """At τ = 0 the penalties leave z unchanged and the constraints still hold."""
    h = (L1().on("conv.*") + Nonnegative().on("head.*")).bind(LAYOUT)
    z = draw(3, D)
    p = h.prox(z, 0.0)
    assert torch.equal(p[:, :8], z[:, :8])
    assert torch.equal(p[:, 8:], z[:, 8:].clamp(min=0))


def test_a_scaled_sum_scales_its_groups():
    """c (h₁ + h₂) = c h₁ + c h₂."""
    z = draw(3, D)
    total = (L1().on("conv.*") + L2Norm().on("head.*").scaled(2.0)).scaled(3.0)
    assert total == L1().on("conv.*").scaled(3.0) + L2Norm().on("head.*").scaled(6.0)
    torch.testing.assert_close(
        total.bind(LAYOUT).value(z), 3 * z[:, :8].abs().sum(-1) + 6 * z[:, 8:].square().sum(-1).sqrt()
    )


def test_sums_are_flattened():
    """(a + b) + c = a + (b + c) = Groups([a, b, c])."""
    a, b, c = L1().on("conv.*"), MCP().on("head.weight"), SquaredL2().on("head.bias")
    assert (a + b) + c == a + (b + c) == Groups([a, b, c])


def test_bind_returns_a_copy():
    """Binding to two layouts gives two regularizers, and a copy of a bound one is equivalent to it."""
    unbound = GroupLasso().on("*.weight") + L1().on("*.bias")
    other = Layout.from_shapes({"x.weight": (2, 2), "x.bias": (2,)})
    first, second = unbound.bind(LAYOUT), unbound.bind(other)
    assert first.value(draw(2, D)).shape == second.value(draw(2, 6)).shape == (2,)
    assert first != second
    torch.testing.assert_close(copy.deepcopy(first).prox(draw(2, D), TAU), first.prox(draw(2, D), TAU))
    torch.testing.assert_close(second.bind(LAYOUT).prox(draw(2, D), TAU), first.prox(draw(2, D), TAU))
    with pytest.raises(RegularizerError, match="bind"):
        unbound.value(draw(2, D))


# --- weights and biases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("h", [GroupLasso(), NuclearNorm()], ids=str)
def test_biases_are_not_regularized(h):
    """One-dimensional parameters are unchanged, bit for bit; a filter is one row of the matrix."""
    z = draw(3, D)
    p = h.bind(LAYOUT).prox(z, 1.5)
    assert torch.equal(p[:, CONV_BIAS], z[:, CONV_BIAS])
    assert torch.equal(p[:, HEAD_BIAS], z[:, HEAD_BIAS])
    as_matrix = h.bind(Layout.from_shapes({"weight": (2, 3)}))
    torch.testing.assert_close(p[:, CONV], as_matrix.prox(z[:, CONV], 1.5))


def test_group_lasso_removes_entire_output_units():
    """A group is one index of the first dimension: its columns vanish jointly or not at all."""
    z = draw(20, D)
    p = GroupLasso().bind(LAYOUT).prox(z, 3.0)
    zero = p[:, HEAD].reshape(20, 3, 4) == 0
    assert torch.equal(zero.any(-1), zero.all(-1))
    assert torch.equal(zero.all(-1), z[:, HEAD].reshape(20, 3, 4).norm(dim=-1) <= 3.0)
    assert zero.any()
    assert not zero.all()


def test_nuclear_norm_lowers_the_rank():
    """The singular values of the prox are those of z reduced by τ."""
    z = draw(20, D)
    p = NuclearNorm().bind(LAYOUT).prox(z, 2.0)
    before, after = (torch.linalg.svdvals(x[:, HEAD].reshape(20, 3, 4)) for x in (z, p))
    torch.testing.assert_close(after, (before - 2).clamp(min=0))


# --- invalid input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("h", "parameter"),
    [
        (L1().on("*.weight") + MCP().on("head.*"), "head.weight"),
        (L1() + MCP(), "conv.weight"),
        (L1().on("*.bias") + NuclearNorm(), "conv.bias"),
    ],
    ids=str,
)
def test_overlapping_groups_are_rejected(h, parameter):
    """Where parts share columns, the prox of a sum is not a composition; the message names the parameter."""
    with pytest.raises(RegularizerError, match=f"^on: parameter '{parameter}' is in both .*disjoint"):
        h.bind(LAYOUT)


def test_a_pattern_without_a_match_is_rejected():
    """A misspelt pattern would silently disable the regularizer; the message lists the names."""
    with pytest.raises(RegularizerError, match="'heed.\\*' matches no parameter; the names are conv.weight, conv.bias"):
        L1().on("heed.*").bind(LAYOUT)
    with pytest.raises(RegularizerError, match="^on: "):
        L1().on([])


@pytest.mark.parametrize("h", [GroupLasso(), NuclearNorm(), L1().on("*"), L1().on("a") + L1().on("b")], ids=str)
@pytest.mark.parametrize("use", ["value", "prox", "subdifferential_distance"])
def test_use_without_a_layout_is_rejected(h, use):
    arguments = {"value": (), "prox": (TAU,), "subdifferential_distance": (draw(2, D),)}[use]
    with pytest.raises(RegularizerError, match="has no layout.*bind"):
        getattr(h, use)(draw(2, D), *arguments)


def test_a_layout_without_weights_is_rejected():
    """GroupLasso on biases alone would silently be h = 0."""
    with pytest.raises(RegularizerError, match="GroupLasso acts on parameters with two or more dimensions.*head.bias"):
        GroupLasso().on("*.bias").bind(LAYOUT)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_out_of_range_is_rejected(scale):
    with pytest.raises(RegularizerError, match="scale: .*finite scale > 0"):
        L1().scaled(scale)


def test_an_empty_sum_is_rejected():
    with pytest.raises(RegularizerError, match="Zero"):
        Groups([])


# --- the configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("l1", L1()),
        ("none", Zero()),
        ("zero", Zero()),
        ("l2", L2Norm()),
        ("squared-l2", SquaredL2()),
        ("mcp", MCP(lam=1.0, theta=5.0)),
        ("scad", SCAD(lam=1e-4, a=3.7)),
        ("elastic-net", ElasticNet(k=1.0)),
        ("simplex", Simplex(total=1.0)),
        ("nuclear", NuclearNorm()),
        ("group-lasso", GroupLasso()),
        ({"mcp": {"lam": 2, "theta": 3.0}}, MCP(2.0, 3.0)),
        ({"l1-ball": 4.0}, L1Ball(4.0)),
        ({"box": {"low": -1, "high": 1.0}}, Box(-1.0, 1.0)),
        ({"l1": {}, "on": ["*.weight", "!head.*"]}, L1().on(["*.weight", "!head.*"])),
        ({"nuclear": {}, "scale": 2}, NuclearNorm().scaled(2)),
        ([{"l1": {}, "on": "a"}], L1().on("a")),
        (
            [{"l1": {}, "on": "a"}, {"mcp": {"theta": 3.0}, "on": "b", "scale": 0.5}],
            L1().on("a") + MCP(theta=3.0).on("b").scaled(0.5),
        ),
        (MCP(theta=7.0), MCP(theta=7.0)),
    ],
    ids=str,
)
def test_configurations_build_the_expected_regularizer(spec, expected):
    """Names, tables, options and lists, including defaults."""
    assert build(spec) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("l11", "^regularizer: 'l11' is not a regularizer.*did you mean 'l1'"),
        ({"mcp": {"theta": 0.0}}, r"^regularizer.mcp.theta: 0.0 given; MCP needs a finite theta > 0"),
        ({"mcp": {"tehta": 1.0}}, "^regularizer.mcp.tehta: unknown key.*did you mean 'theta'"),
        ({"mcp": {"theta": "5"}}, "^regularizer.mcp.theta: '5' given"),
        ({"l1": {"lam": 1.0}}, "^regularizer.l1.lam: unknown key"),
        ({"group-lasso": {"layout": None}}, "^regularizer.group-lasso.layout: unknown key"),
        ("box", "^regularizer.box.low: missing"),
        ({"l2-ball": {"radius": -1.0}}, "^regularizer.l2-ball.radius: -1.0 given.*radius > 0"),
        ({"l1": {}, "onn": "*"}, "^regularizer.onn: unknown key.*'on' or 'scale'; did you mean 'on'"),
        ({"l1": {}, "mcp": {}}, "^regularizer: 'l1' or 'mcp' given in one table; write a list"),
        ({"on": "*"}, "^regularizer: .*with one name"),
        ({"l1": {}, "on": 3}, "^regularizer.on: 3 given"),
        ({"l1": {}, "on": []}, r"^regularizer.on: \[\] given"),
        ({"l1": {}, "scale": -2.0}, "^regularizer.scale: -2.0 given.*scale > 0"),
        ({"l1": {}, "scale": "2"}, "^regularizer.scale: '2' given"),
        ({"l1": {}, "scale": True}, "^regularizer.scale: True given"),
        ([], r"^regularizer: \[\] given"),
        (3, "^regularizer: 3 given"),
        ([{"l1": {}, "on": "a"}, {"mcp": {}}], r"^regularizer\[1\].on: missing"),
        ([{"l1": {}, "on": "a"}, 3], r"^regularizer\[1\]: 3 given"),
        ([{"l1": {}, "on": "a"}, {"mcp": {"lam": -1.0}, "on": "b"}], r"^regularizer\[1\].mcp.lam: -1.0 given"),
    ],
    ids=str,
)
def test_invalid_configurations_are_rejected(spec, message):
    """One line, with the key, the value, what is allowed and the nearest name."""
    with pytest.raises(ConfigError, match=f"^{message}") as error:
        build(spec)
    assert "\n" not in str(error.value)


def test_a_user_defined_regularizer_can_be_registered(monkeypatch):
    """It is then selected by name like the others."""
    monkeypatch.setattr(REGULARIZERS, "_factories", dict(REGULARIZERS._factories))

    @REGULARIZERS.register("twice-l1")
    def twice_l1() -> Regularizer:
        return L1().scaled(2.0)

    assert build("twice-l1") == L1().scaled(2.0)
