"""Positions of parameters in a row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from depositum.errors import ConfigError
from depositum.layout import Layout, ParameterSlot

shapes = st.dictionaries(
    st.text("abc.", min_size=1, max_size=6), st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=6
)


def small():
    """Columns [0, 12) and [12, 16): weight and bias of the first layer; [16, 24) and [24, 26): of the second."""
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@settings(deadline=None, max_examples=50)
@given(shapes)
def test_slots_tile_the_row(shapes):
    """In the order given, without gap or overlap, scalars included."""
    layout = Layout.from_shapes(shapes)
    assert layout.names == list(shapes)
    assert [slot.start for slot in layout] == [0, *[slot.stop for slot in layout][:-1]]
    assert layout.size == sum(torch.Size(shape).numel() for shape in shapes.values())


@settings(deadline=None, max_examples=50)
@given(shapes, st.sampled_from([(), (3,), (2, 3)]))
def test_views_and_row_are_inverse(shapes, lead):
    """Splitting a row into views and joining them gives the row back, also for rows of any leading shape."""
    layout = Layout.from_shapes(shapes)
    rows = torch.randn(*lead, layout.size)
    views = layout.views(rows)
    for name, view in views.items():
        assert view.shape == (*lead, *shapes[name])
    for index in torch.cartesian_prod(*[torch.arange(k) for k in lead]).view(-1, len(lead)).tolist() if lead else [()]:
        parameters = {name: view[tuple(index)] for name, view in views.items()}
        assert torch.equal(layout.row(parameters), rows[tuple(index)])


def test_views_share_memory():
    """Writing to a view changes the row."""
    layout = Layout.of(small())
    rows = torch.zeros(2, layout.size)
    layout.views(rows)["2.bias"][1] = torch.tensor([5.0, 6.0])
    assert rows[1, 24:].tolist() == [5.0, 6.0]
    assert rows.count_nonzero() == 2


def test_a_row_follows_the_order_of_the_model_parameters():
    """It equals torch's `parameters_to_vector`, and `functional_call` with its views equals the model."""
    model = small()
    layout = Layout.of(model)
    row = layout.row(dict(model.named_parameters()))
    assert torch.equal(row, nn.utils.parameters_to_vector(model.parameters()))
    inputs = torch.randn(5, 3)
    assert torch.equal(torch.func.functional_call(model, layout.views(row), (inputs,)), model(inputs))


def test_frozen_tied_and_scalar_parameters():
    """Frozen parameters are not in a row, tied ones occur once, a scalar occupies one column."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.frozen = nn.Linear(3, 3).requires_grad_(False)
            self.encode = nn.Linear(3, 3, bias=False)
            self.decode = nn.Linear(3, 3, bias=False)
            self.decode.weight = self.encode.weight

    layout = Layout.of(Odd())
    assert layout.slots == (ParameterSlot("scale", (), 0), ParameterSlot("encode.weight", (3, 3), 1))
    assert layout.size == 10
    assert layout.views(torch.zeros(4, 10))["scale"].shape == (4,)


def test_a_model_without_parameters_has_an_empty_row():
    assert Layout.of(nn.ReLU()).size == 0


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("*", ["0.weight", "0.bias", "2.weight", "2.bias"]),
        ("*.weight", ["0.weight", "2.weight"]),
        ("0.*", ["0.weight", "0.bias"]),
        (["2.bias", "0.weight"], ["0.weight", "2.bias"]),
        ("!*.bias", ["0.weight", "2.weight"]),
        (["2.*", "!*.bias"], ["2.weight"]),
        (["!*.bias", "2.*"], ["2.weight"]),
        (["!0.*", "!2.bias"], ["2.weight"]),
        ("[02].bias", ["0.bias", "2.bias"]),
    ],
)
def test_select_by_patterns(patterns, names):
    """The selected columns in the order of the row, and a layout that fits x[:, columns]."""
    model = small()
    layout = Layout.of(model)
    columns, chosen = layout.select(patterns)
    assert chosen.names == names
    row = layout.row(dict(model.named_parameters()))
    views = chosen.views(row[columns])
    for name in names:
        assert torch.equal(views[name], model.get_parameter(name))


@pytest.mark.parametrize("patterns", ["weight", "*.WEIGHT", ["0.*", "!*"], [], "!*"])
def test_patterns_that_select_nothing_are_rejected(patterns):
    """The message lists the names, so that the user can write the right pattern."""
    with pytest.raises(
        ConfigError, match=r"matches no parameter; the names are 0\.weight, 0\.bias, 2\.weight, 2\.bias"
    ):
        Layout.of(small()).select(patterns)
