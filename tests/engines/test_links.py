"""What crosses a link: the right rows, in the right bytes, and nothing else."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import depositum as dp
from depositum.channels import as_channel
from depositum.engines.distributed.buffer_pool import SMALLEST, BufferPool
from tests.support.rank_engines import ROW, SEEDS, exchanges, long_exchanges, long_rows, networks, some_rows
from tests.support.rank_processes import launch

SIZE, N = 4, 8
SHARE = N // SIZE
NETWORKS = ["ring", "star", "complete", "random", "dropped", "one peer", "one peer, dropped"]
SENDS = ["exact", "float16", "bfloat16", "sparse"]


@cache
def ranks() -> list[dict[tuple[str, str, str, int], Any]]:
    """One launch for all tests of this file."""
    return launch(exchanges, SIZE, N)


def found(key: str, name: str, send: str, dtype: str, phase: int) -> np.ndarray[Any, Any]:
    """A result of all clients, `[S, n, d]`."""
    return np.concatenate([rank[name, send, dtype, phase][key] for rank in ranks()], axis=1)


def crossing(W: np.ndarray[Any, Any], sender: int, receiver: int) -> list[int]:
    """The sender's clients with a neighbour at the receiver."""
    there = slice(receiver * SHARE, (receiver + 1) * SHARE)
    return [i for i in range(sender * SHARE, (sender + 1) * SHARE) if W[i, there].any()]


@pytest.mark.parametrize("phase", range(3))
@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_mixed_by_the_phases_own_matrix(name: str, phase: int) -> None:
    """W(phase) z by one dense product: a link too many, a weight at the wrong end, or one phase late would break it."""
    z, W = some_rows(N, torch.float64).numpy(), networks(N)[name].matrix(phase)
    adjacency = (W != 0) & ~np.eye(N, dtype=bool)
    for send in ("exact", "sparse"):
        case = (name, send, "torch.float64", phase)
        assert np.abs(found("mixed", *case) - W @ z).max() <= 1e-14
        assert np.abs(found("around", *case) - adjacency @ z).max() <= 1e-13
        degree = np.concatenate([rank[case]["degree"].reshape(len(SEEDS), SHARE) for rank in ranks()], axis=1)
        assert (degree == adjacency.sum(1)).all()


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_sparse_messages_are_exact(name: str, dtype: str) -> None:
    """The same bits as whole rows give: dropping, rounding or misplacing a value would break it."""
    for key in ("mixed", "around"):
        assert np.array_equal(found(key, name, "sparse", dtype, 1), found(key, name, "exact", dtype, 1))


@given(st.data())
def test_a_sparse_message_is_the_smallest_and_tells_its_own_form(data: st.DataObject) -> None:
    """Any share of zeros, around the two borders between forms too: a form mistaken for another would break it."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    total = data.draw(st.integers(1, 300))
    border = (total + 7) // 8 // 4
    count = min(total, data.draw(st.integers(0, total) | st.integers(max(0, border - 1), border + 2)))
    flat = torch.zeros(total, dtype=dtype)
    flat[torch.tensor(data.draw(st.permutations(range(total)))[:count], dtype=torch.int64)] = torch.nan
    flat[flat.isnan()] = torch.arange(1, count + 1, dtype=dtype)
    sparse, rows = as_channel("sparse"), torch.stack([flat, flat.flip(0)])
    message, sizes, size = sparse.encode(rows), sparse.sizes(rows).tolist(), dtype.itemsize
    assert sizes == [min(total * size, count * size + min(4 * count, (total + 7) // 8))] * 2
    assert message.numel() == sum(sizes)
    assert torch.equal(sparse.decode(message, sizes, total, dtype), rows)


@pytest.mark.parametrize("send", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_keeps_averages(name: str, send: str) -> None:
    """z + (W − I) Q(z), so that the mean over clients is kept to rounding of the state: plain W Q(z) would lose it."""
    z, W = some_rows(N, torch.float64), networks(N)[name].matrix(2)
    Q = z.to(getattr(torch, send)).double()
    mixed = found("mixed", name, send, "torch.float64", 2)
    assert np.abs(mixed - (z + torch.tensor(W - np.eye(N)) @ Q).numpy()).max() <= 1e-14
    assert np.abs(mixed.mean(1) - z.numpy().mean(1)).max() <= 1e-15
    assert np.abs((torch.tensor(W) @ Q - z).numpy().mean(1)).max() > 1e-6  # what the plain form would do
    single = found("mixed", name, send, "torch.float32", 2).astype(np.float64)
    assert np.abs(single.mean(1) - z.float().double().numpy().mean(1)).max() <= 1e-7


@pytest.mark.parametrize("send", ["float16", "bfloat16"])
def test_half_precision_keeps_the_sum_of_differences(send: str) -> None:
    """Σ_i Σ_j (z_i − z_j) is 0 as the neighbours' sum sees it: what SPPDM's dual variables add up to."""
    for name in NETWORKS:
        z, W = some_rows(N, torch.float64).numpy(), networks(N)[name].matrix(0)
        degree = ((W != 0).sum(1) - 1)[:, None]
        difference = degree * z - found("around", name, send, "torch.float64", 0)
        assert np.abs(difference.sum(1)).max() <= 1e-13


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float64"])
@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_only_rows_cross_a_link_and_every_byte_is_counted(name: str, send: str, dtype: str) -> None:
    """What torch is given to send to each rank, in bytes: rows that a neighbour needs, once, and ≤ 16 bytes more.

    A row sent to a rank without a neighbour, twice, or counted other than sent would break it.
    """
    width = {"float16": 2, "bfloat16": 2}.get(send, getattr(torch, dtype.removeprefix("torch.")).itemsize)
    z = some_rows(N, getattr(torch, dtype.removeprefix("torch."))).numpy()
    for phase in range(3):
        W = networks(N)[name].matrix(phase)
        for sender, rank in enumerate(ranks()):
            case = rank[name, send, dtype, phase]
            for receiver in set(range(SIZE)) - {sender}:
                clients = crossing(W, sender, receiver)
                sizes = [size for op, peer, size in case["posted"] if op == "isend" and peer == receiver]
                messages, counted = case["counted"].get(receiver, (0, 0))
                assert counted == sum(sizes)
                assert messages == (2 if clients else 0)  # one for W z, one for the neighbours' sum
                rows = len(SEEDS) * len(clients) * ROW * width
                if send == "sparse":
                    values = np.count_nonzero(z[:, clients], axis=2)
                    positions = np.minimum(4 * values, (ROW + 7) // 8)
                    bodies = np.minimum(values * width + positions, ROW * width)
                    assert counted == 2 * (int(bodies.sum()) + 8 * values.size)
                else:
                    assert rows * messages <= counted <= (rows + 16) * messages


@pytest.mark.parametrize("processes", [2, 4])
def test_long_rows_are_summed_in_the_same_order_and_stay_as_they_are(processes: int) -> None:
    """To the bit: the first neighbour's term, one's own, then the others' by id, on any number of processes.

    Another order, columns summed twice or not at all, or memory that is given out again while a result, or a view of
    it, is still in use would break it.
    """
    n = 4
    found, z, W = launch(long_exchanges, processes, n), long_rows(n), dp.ring(n).matrix(0)
    for send in ("exact", "sparse"):
        for power in range(6):
            rows = np.concatenate([rank[send][power] for rank in found])
            for i in range(n):
                first, second = sorted({(i - 1) % n, (i + 1) % n})
                expected = z[first] * float(W[i, first])
                expected.add_(z[i], alpha=float(W[i, i])).add_(z[second], alpha=float(W[i, second]))
                assert np.array_equal(rows[i], expected.numpy()[5 * (power % 2) :] * 2**power)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_memory_is_used_again_when_nothing_refers_to_it(dtype: torch.dtype) -> None:
    """Taken back too early, two tensors would share it; never taken back, every mixing would pay for fresh memory."""
    memory = BufferPool(torch.device("cpu"))
    first = memory.empty(2 * SMALLEST, dtype)
    place, view = first.data_ptr(), first[7:].view(torch.uint8)[3:]
    del first
    second = memory.empty(2 * SMALLEST, dtype)
    assert second.shape == (2 * SMALLEST,)
    assert second.dtype == dtype
    assert second.data_ptr() != place
    del view
    assert memory.empty(2 * SMALLEST, dtype).data_ptr() == place
    # A message of another length, in the same memory.
    assert memory.empty(2 * SMALLEST - 5, dtype).data_ptr() == place
