"""Partitions: properties that all share, those that distinguish them, their heterogeneity, and the figure."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from depositum.data import PARTITIONS, Dataset, Samples, draw_partition, heterogeneity, load, partition
from depositum.errors import ConfigError

SPECS = [
    "iid",
    {"dirichlet": 0.1},
    {"dirichlet": 1.0},
    {"dirichlet": 1e6},
    {"dirichlet": 1e-6},
    {"dirichlet-clients": 0.1},
    {"dirichlet-clients": 1e6},
    {"dirichlet-clients": 1e-6},
    {"shards": 1},
    {"shards": 3},
    {"quantity": 0.1},
    {"quantity": 1e-6},
]


def labelled(targets, classes=None, clients=None) -> Dataset:
    targets = torch.as_tensor(np.asarray(targets), dtype=torch.int64)
    return Dataset("toy", Samples(torch.zeros(len(targets), 1), targets), None, int(targets.max()) + 1, clients)


def balanced(classes: int, each: int) -> Dataset:
    return labelled(np.repeat(np.arange(classes), each))


def shares_of_classes(parts, targets) -> np.ndarray:
    """p_ki `[classes, clients]`: the share of class k that client i has, counted naively."""
    return np.array([[np.mean(np.isin(np.flatnonzero(targets == k), part)) for part in parts] for k in set(targets)])


def shares_within_clients(parts, targets) -> np.ndarray:
    """q_ik `[clients, classes]`: the share of client i's samples that are of class k, counted naively."""
    return np.array([[np.mean(targets[part] == k) for k in np.unique(targets)] for part in parts])


@settings(deadline=None, max_examples=200)
@given(
    spec=st.sampled_from(SPECS),
    targets=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_every_sample_has_one_owner_and_every_client_has_a_sample(spec, targets, share, seed):
    """Fails if a sample is lost or duplicated, a client is empty, or indices are unsorted or of another type.

    Includes the extremes: as many clients as samples, one client, and concentrations at which nearly all samples go to
    one client.
    """
    n = 1 + int(share * (len(targets) - 1))
    parts = partition(spec, labelled(targets), n, seed)
    assert len(parts) == n
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(targets)))
    for part in parts:
        assert len(part) >= 1
        assert part.dtype == np.int64
        assert np.all(np.diff(part) > 0)


@settings(deadline=None, max_examples=50)
@given(
    spec=st.sampled_from(["iid", {"dirichlet-clients": 0.3}]),
    samples=st.integers(1, 200),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_sizes_differ_by_one_at_most(spec, samples, share, seed):
    n = 1 + int(share * (samples - 1))
    sizes = [len(part) for part in partition(spec, labelled(np.arange(samples) % 7), n, seed)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_partitions_depend_on_the_seed_only(spec):
    """Fails if samples are drawn from a shared generator, or not at random."""
    data = balanced(classes=4, each=50)
    first, again = (partition(spec, data, 8, seed=3) for _ in range(2))
    np.random.seed(1)  # noqa: NPY002 (the state of the global generator must not matter)
    later = partition(spec, data, 8, seed=3)
    other = partition(spec, data, 8, seed=4)
    for a, b, c in zip(first, again, later, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.slow
def test_dirichlet_has_the_moments_of_the_paper_s_definition():
    """For p_k ~ Dir(θ 1_n): mean 1/n and variance (1/n)(1-1/n)/(nθ+1), and classes independent of each other.

    Fails for the other definition, whose shares have another variance here (n ≠ K) and equal client sizes.
    """
    n, classes, theta = 5, 3, 0.5
    data = balanced(classes, each=300)
    targets = data.train.targets.numpy()

    def draws(spec) -> np.ndarray:
        return np.stack([shares_of_classes(partition(spec, data, n, seed), targets) for seed in range(500)])

    expected = (1 / n) * (1 - 1 / n) / (n * theta + 1)
    p = draws({"dirichlet": theta})
    assert np.abs(p.mean(axis=0) - 1 / n).max() < 4 * np.sqrt(expected / 500)
    assert p.var(axis=0).mean() == pytest.approx(expected, rel=0.06)
    assert abs(np.corrcoef(p[:, 0, 0], p[:, 1, 0])[0, 1]) < 4 / np.sqrt(500)
    other = draws({"dirichlet-clients": theta})
    assert abs(other.var(axis=0).mean() / expected - 1) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1], [6, 3, 2, 2, 2]], ids=["balanced", "unbalanced"])
def test_dirichlet_clients_has_the_moments_of_the_other_definition(weights):
    """For q_i ~ Dir(θ K π): variance π_k(1-π_k)/(Kθ+1) within clients of equal size.

    With many clients, few of them are affected by exhausted classes. The sizes fail for the paper's definition, and the
    variances for Dir(θ 1_K) on unbalanced classes.
    """
    n, theta, classes = 800, 0.5, len(weights)
    targets = np.repeat(np.arange(classes), np.array(weights) * 2_000)
    prior = np.bincount(targets) / len(targets)
    data = labelled(targets)
    variances = []
    for seed in range(10):
        parts = partition({"dirichlet-clients": theta}, data, n, seed)
        assert len({len(part) for part in parts}) <= 2
        variances.append(((shares_within_clients(parts, targets) - prior) ** 2).mean(axis=0))
    expected = prior * (1 - prior) / (classes * theta + 1)
    assert np.mean(variances, axis=0) == pytest.approx(expected, rel=0.12)


def test_dirichlet_clients_tends_to_iid_on_unbalanced_classes():
    """Fails if proportions are drawn around the uniform distribution instead of the data's."""
    targets = np.repeat([0, 1, 2], [700, 200, 100])
    parts = partition({"dirichlet-clients": 1e6}, labelled(targets), 10, seed=0)
    assert np.abs(shares_within_clients(parts, targets) - [0.7, 0.2, 0.1]).max() <= 0.011


def test_dirichlet_sizes_vary_and_a_large_theta_is_even():
    """The definition does not fix the sizes: they vary at θ = 0.5, and shares tend to 1/n as θ grows."""
    data = balanced(classes=10, each=500)
    targets = data.train.targets.numpy()
    sizes = [len(part) for part in partition({"dirichlet": 0.5}, data, 10, seed=0)]
    assert max(sizes) > 1.3 * min(sizes)
    even = shares_of_classes(partition({"dirichlet": 1e6}, data, 10, seed=0), targets)
    assert np.abs(even - 0.1).max() < 0.01


def test_quantity_skews_sizes_but_not_labels():
    """Shares of the samples ~ Dir(θ 1_n), by their variance; the largest client has labels as in all data."""
    n, theta = 5, 1.0
    data = balanced(classes=2, each=1000)
    parts = [partition({"quantity": theta}, data, n, seed) for seed in range(500)]
    shares = np.array([[len(part) for part in one] for one in parts]) / 2000
    assert shares.var(axis=0).mean() == pytest.approx((1 / n) * (1 - 1 / n) / (n * theta + 1), rel=0.08)
    largest = [max(one, key=len) for one in parts]
    halves = [float(data.train.targets[part].float().mean()) for part in largest]
    assert np.mean(halves) == pytest.approx(0.5, abs=0.005)
    assert np.std(halves) < 0.03


@pytest.mark.parametrize("per_client", [1, 2, 5])
def test_shards_give_each_client_few_classes(per_client):
    """If shards fit into classes (here 50, 25 or 10 samples of 100), a client has at most per_client classes."""
    data = balanced(classes=6, each=100)
    parts = partition({"shards": per_client}, data, 12, seed=0)
    assert {len(part) for part in parts} == {50}
    seen = [len(set(data.train.targets[part].tolist())) for part in parts]
    assert max(seen) == per_client  # which some client has


def test_an_empty_client_is_given_one_sample_of_the_largest():
    """The only departure from the definitions; fails if more is moved, or not from the largest client."""
    owned = [np.arange(2), np.arange(2, 6), np.arange(0), np.arange(6, 9), np.arange(0)]
    parts = PARTITIONS["natural"](owned, 5, np.random.default_rng(0))
    assert [len(part) for part in parts] == [2, 2, 1, 3, 1]
    assert {*parts[2], *parts[4], *parts[1]} == {2, 3, 4, 5}
    skewed = partition({"quantity": 1e-6}, balanced(classes=1, each=50), 10, seed=0)
    assert sorted(len(part) for part in skewed) == [1] * 9 + [41]


def test_natural_is_the_assignment_of_the_data():
    owners = (np.array([0, 3]), np.array([1, 2, 4]))
    data = labelled([0, 1, 0, 1, 1], clients=owners)
    for spec in ("natural", None):
        parts = partition(spec, data, 2, seed=0)
        assert [part.tolist() for part in parts] == [[0, 3], [1, 2, 4]]
    assert [len(part) for part in partition("iid", data, 5, seed=0)] == [1] * 5


def test_the_default_is_iid():
    data = balanced(2, 10)
    for a, b in zip(partition(None, data, 3, seed=5), partition("iid", data, 3, seed=5), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("spec", "n", "key", "message"),
    [
        ("iid", 21, "n", "21 given.* the 20 training samples"),
        ("iid", 0, "n", "0 given"),
        ("iid", "3", "n", "'3' given; it must be a whole number from 1 to 20$"),
        ("iid", 2.5, "n", "2.5 given; it must be a whole number from 1 to 20$"),
        ("natural", 4, "partition", "'toy' does not"),
        ("dirichle", 4, "partition", "did you mean 'dirichlet'"),
        ("dirichlet", 4, "partition.dirichlet.theta", "missing"),
        ({"dirichlet": 0.0}, 4, "partition.dirichlet.theta", "given; it must be a number > 0$"),
        ({"dirichlet-clients": -1}, 4, "partition.dirichlet-clients.theta", "given; it must be a number > 0$"),
        ({"quantity": float("nan")}, 4, "partition.quantity.theta", "nan given"),
        ({"quantity": float("inf")}, 4, "partition.quantity.theta", "inf given"),
        ({"shards": 0}, 4, "partition.shards.per_client", "0 given"),
        ({"shards": 1.5}, 4, "partition.shards.per_client", "1.5 given"),
        ({"dirichlet": {"tehta": 1.0}}, 4, "partition.dirichlet.tehta", "did you mean 'theta'"),
        ({"iid": 3}, 4, "partition.iid", "takes no arguments"),
        ({}, 4, "partition", "must be a name"),
    ],
)
def test_an_invalid_partition_is_rejected(spec, n, key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        partition(spec, balanced(2, 10), n, seed=0)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_natural_needs_as_many_owners_as_clients():
    data = labelled([0, 1, 0], clients=(np.array([0]), np.array([1, 2])))
    with pytest.raises(ConfigError, match=r"^n: 3 given, but 'toy' has the data of 2 clients"):
        partition("natural", data, 3, seed=0)


@pytest.mark.parametrize("spec", [{"dirichlet": 1.0}, {"dirichlet-clients": 1.0}, "shards"], ids=str)
def test_partitions_by_class_reject_regression_targets(spec):
    data = Dataset("prices", Samples(torch.zeros(9, 1), torch.rand(9)))
    with pytest.raises(
        ConfigError,
        match=r"^partition: .*divides classes, but 'prices' has neither integer labels nor categories",
    ):
        partition(spec, data, 3, seed=0)


@pytest.mark.parametrize("spec", ["iid", {"quantity": 1.0}], ids=str)
def test_other_partitions_accept_regression_targets(spec):
    data = Dataset("prices", Samples(torch.zeros(9, 1), torch.rand(9)))
    parts = partition(spec, data, 3, seed=0)
    assert sorted(np.concatenate(parts)) == list(range(9))
    assert np.isnan(heterogeneity(parts, data.train.targets.numpy()))


def test_every_registered_partition_is_tested_here():
    """Fails if a partition is registered for which the properties above are not tested."""
    assert {next(iter(spec)) if isinstance(spec, dict) else spec for spec in SPECS} | {"natural"} == set(PARTITIONS)


def test_heterogeneity_is_zero_for_equal_distributions():
    targets = np.tile([0, 0, 1, 2], 30)
    assert heterogeneity(np.split(np.arange(120), [40, 48]), targets) == pytest.approx(0, abs=1e-12)


def test_heterogeneity_of_one_class_per_client_is_the_maximum():
    """1 - Σ π_k²: 0.98 for fifty balanced classes, however the samples of a class are divided."""
    data = balanced(classes=50, each=20)
    parts = partition({"shards": 1}, data, 100, seed=0)
    assert heterogeneity(parts, data.train.targets.numpy()) == pytest.approx(0.98)
    assert heterogeneity([np.array([0]), np.array([1, 2, 3])], np.array([7, 9, 9, 9])) == pytest.approx(1 - 10 / 16)


@settings(deadline=None, max_examples=100)
@given(
    targets=st.lists(st.integers(0, 4), min_size=2, max_size=40),
    cuts=st.lists(st.integers(1, 39), max_size=6, unique=True),
)
def test_heterogeneity_is_the_weighted_total_variation(targets, cuts):
    """Against the definition; fails if clients are not weighted by their samples. The value is within its bounds."""
    targets = np.array(targets)
    parts = np.split(np.arange(len(targets)), sorted(cut for cut in cuts if cut < len(targets)))
    pi = {k: np.mean(targets == k) for k in set(targets.tolist())}
    expected = 0.0
    for part in parts:
        distance = sum(abs(np.mean(targets[part] == k) - share) for k, share in pi.items()) / 2
        expected += len(part) / len(targets) * distance
    value = heterogeneity(parts, targets)
    assert value == pytest.approx(expected, abs=1e-12)
    assert -1e-12 <= value <= 1 - sum(share**2 for share in pi.values()) + 1e-12


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-clients"])
def test_heterogeneity_decreases_with_theta(name):
    data = load("digits")
    targets = data.train.targets.numpy()
    means = [
        np.mean([heterogeneity(partition({name: theta}, data, 10, seed), targets) for seed in range(10)])
        for theta in (0.05, 0.2, 1.0, 5.0, 100.0)
    ]
    assert all(larger > smaller + 0.03 for larger, smaller in pairwise(means))
    assert means[0] > 0.6
    assert means[-1] < 0.1


def test_a_thousand_clients():
    """Every partition handles as many clients as one machine simulates, on as many samples as MNIST has."""
    data = balanced(classes=10, each=6000)
    for spec in SPECS:
        assert len(partition(spec, data, 1000, seed=0)) == 1000


def test_figure_segments_are_shares_of_classes():
    """Fails if a bar shows counts or shares within a client, segments overlap, or two classes share a colour."""
    targets = np.array([0, 0, 0, 0, 2, 2])
    ax = Figure().subplots()
    draw_partition([np.array([0, 4]), np.array([1, 2, 3, 5])], targets, ax)
    heights = [[bar.get_height() for bar in container] for container in ax.containers]
    bottoms = [[bar.get_y() for bar in container] for container in ax.containers]
    assert heights == [[0.25, 0.75], [0.5, 0.5]]
    assert bottoms == [[0, 0], [0.25, 0.75]]
    assert ax.get_legend_handles_labels()[1] == ["0", "2"]
    assert len({container[0].get_facecolor() for container in ax.containers}) == 2


@pytest.mark.parametrize("classes", [2, 10, 11, 60])
def test_every_class_has_its_own_colour(classes):
    targets = np.arange(classes)
    ax = Figure().subplots()
    draw_partition([targets], targets, ax)
    assert len({container[0].get_facecolor() for container in ax.containers}) == classes
    assert sum(container[0].get_height() for container in ax.containers) == pytest.approx(classes)
