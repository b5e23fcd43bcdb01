"""What crosses a link: the rows that neighbours need, in the counted bytes, and nothing else."""

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
CHANNEL_NAMES = ["exact", "float16", "bfloat16", "sparse"]


@cache
def ranks() -> list[dict[tuple[str, str, str, int], Any]]:
    """The results of all ranks: the processes are started once for all tests of this file."""
    return launch(exchanges, SIZE, N)


def gathered(key: str, name: str, channel: str, dtype: str, phase: int) -> np.ndarray[Any, Any]:
    """A result for all clients, `[S, n, d]`."""
    return np.concatenate([rank[name, channel, dtype, phase][key] for rank in ranks()], axis=1)


def clients_to_send(W: np.ndarray[Any, Any], sender: int, receiver: int) -> list[int]:
    """The sender's clients with a neighbour at the receiver."""
    remote = slice(receiver * SHARE, (receiver + 1) * SHARE)
    return [i for i in range(sender * SHARE, (sender + 1) * SHARE) if W[i, remote].any()]


@pytest.mark.parametrize("phase", range(3))
@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_mixed_by_the_matrix_of_the_phase(name: str, phase: int) -> None:
    """W(phase) z by a dense product. Fails for an extra link, a wrong weight or the weights of another phase."""
    z, W = some_rows(N, torch.float64).numpy(), networks(N)[name].matrix(phase)
    adjacency = (W != 0) & ~np.eye(N, dtype=bool)
    for channel in ("exact", "sparse"):
        case = (name, channel, "torch.float64", phase)
        assert np.abs(gathered("mixed", *case) - W @ z).max() <= 1e-14
        assert np.abs(gathered("neighbours", *case) - adjacency @ z).max() <= 1e-13
        degree = np.concatenate([rank[case]["degree"].reshape(len(SEEDS), SHARE) for rank in ranks()], axis=1)
        assert (degree == adjacency.sum(1)).all()


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_sparse_messages_are_exact(name: str, dtype: str) -> None:
    """The same bits as dense rows. Fails if a value is dropped, rounded or put at another position."""
    for key in ("mixed", "neighbours"):
        assert np.array_equal(gathered(key, name, "sparse", dtype, 1), gathered(key, name, "exact", dtype, 1))


@given(st.data())
def test_a_sparse_message_has_the_smallest_form_and_its_size_determines_the_form(data: st.DataObject) -> None:
    """For any share of zeros, near the two thresholds between forms too. Fails if a form is mistaken for another."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    total = data.draw(st.integers(1, 300))
    threshold = (total + 7) // 8 // 4
    count = min(total, data.draw(st.integers(0, total) | st.integers(max(0, threshold - 1), threshold + 2)))
    flat = torch.zeros(total, dtype=dtype)
    flat[torch.tensor(data.draw(st.permutations(range(total)))[:count], dtype=torch.int64)] = torch.nan
    flat[flat.isnan()] = torch.arange(1, count + 1, dtype=dtype)
    sparse, rows = as_channel("sparse"), torch.stack([flat, flat.flip(0)])
    words = torch.zeros(2, 1, dtype=torch.int64)
    message, sizes, size = sparse.encode(rows, words), sparse.sizes(rows).tolist(), dtype.itemsize
    assert sizes == [min(total * size, count * size + min(4 * count, (total + 7) // 8))] * 2
    assert message.numel() == sum(sizes)
    assert torch.equal(sparse.decode(message, sizes, total, dtype, words), rows)


@pytest.mark.parametrize("channel", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_preserves_averages(name: str, channel: str) -> None:
    """z + (W − I) Q(z) preserves the mean over clients to the rounding of the state; W Q(z) would not."""
    z, W = some_rows(N, torch.float64), networks(N)[name].matrix(2)
    Q = z.to(getattr(torch, channel)).double()
    mixed = gathered("mixed", name, channel, "torch.float64", 2)
    assert np.abs(mixed - (z + torch.tensor(W - np.eye(N)) @ Q).numpy()).max() <= 1e-14
    assert np.abs(mixed.mean(1) - z.numpy().mean(1)).max() <= 1e-15
    assert np.abs((torch.tensor(W) @ Q - z).numpy().mean(1)).max() > 1e-6  # W Q(z)
    single = gathered("mixed", name, channel, "torch.float32", 2).astype(np.float64)
    assert np.abs(single.mean(1) - z.float().double().numpy().mean(1)).max() <= 1e-7


@pytest.mark.parametrize("channel", ["float16", "bfloat16"])
def test_half_precision_preserves_the_sum_of_differences(channel: str) -> None:
    """Σ_i Σ_j (z_i − z_j) = 0 for sums over neighbours through the channel, so that SPPDM's dual variables sum to 0."""
    for name in NETWORKS:
        z, W = some_rows(N, torch.float64).numpy(), networks(N)[name].matrix(0)
        degree = ((W != 0).sum(1) - 1)[:, None]
        difference = degree * z - gathered("neighbours", name, channel, "torch.float64", 0)
        assert np.abs(difference.sum(1)).max() <= 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.float64"])
@pytest.mark.parametrize("channel", CHANNEL_NAMES)
@pytest.mark.parametrize("name", NETWORKS)
def test_only_rows_cross_a_link_and_every_byte_is_counted(name: str, channel: str, dtype: str) -> None:
    """The bytes that torch is given to send to each rank are the rows that a neighbour needs, once, and ≤ 16 more.

    Fails if a row is sent to a rank without a neighbour or twice, or if the count differs from what is sent.
    """
    width = {"float16": 2, "bfloat16": 2}.get(channel, getattr(torch, dtype.removeprefix("torch.")).itemsize)
    z = some_rows(N, getattr(torch, dtype.removeprefix("torch."))).numpy()
    for phase in range(3):
        W = networks(N)[name].matrix(phase)
        for sender, rank in enumerate(ranks()):
            case = rank[name, channel, dtype, phase]
            for receiver in set(range(SIZE)) - {sender}:
                clients = clients_to_send(W, sender, receiver)
                sizes = [size for op, peer, size in case["posted"] if op == "isend" and peer == receiver]
                messages, counted = case["counted"].get(receiver, (0, 0))
                assert counted == sum(sizes)
                assert messages == (2 if clients else 0)  # one for W z, one for the sum over neighbours
                rows = len(SEEDS) * len(clients) * ROW * width
                if channel == "sparse":
                    values = np.count_nonzero(z[:, clients], axis=2)
                    positions = np.minimum(4 * values, (ROW + 7) // 8)
                    bodies = np.minimum(values * width + positions, ROW * width)
                    assert counted == 2 * (int(bodies.sum()) + 8 * values.size)
                else:
                    assert rows * messages <= counted <= (rows + 16) * messages


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_long_rows_are_summed_in_a_fixed_order_and_their_memory_is_not_reused_early(processes: int) -> None:
    """To the bit: the first neighbour's term, the client's own, then the others' by id, on any number of processes.

    Fails for another order, columns that are summed twice or not at all, or memory that is reused while a result or a
    view of it is in use.
    """
    n = 4
    results, z, W = launch(long_exchanges, processes, n), long_rows(n), dp.ring(n).matrix(0)
    for channel in ("exact", "sparse"):
        for power in range(6):
            rows = np.concatenate([rank[channel][power] for rank in results])
            for i in range(n):
                first, second = sorted({(i - 1) % n, (i + 1) % n})
                expected = z[first] * float(W[i, first])
                expected.add_(z[i], alpha=float(W[i, i])).add_(z[second], alpha=float(W[i, second]))
                assert np.array_equal(rows[i], expected.numpy()[5 * (power % 2) :] * 2**power)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_buffer_is_reused_once_nothing_refers_to_it(dtype: torch.dtype) -> None:
    """Reused too early, two tensors would share it; never reused, every mixing would allocate memory."""
    pool = BufferPool(torch.device("cpu"))
    first = pool.empty(2 * SMALLEST, dtype)
    address, view = first.data_ptr(), first[7:].view(torch.uint8)[3:]
    del first
    second = pool.empty(2 * SMALLEST, dtype)
    assert second.shape == (2 * SMALLEST,)
    assert second.dtype == dtype
    assert second.data_ptr() != address
    del view
    assert pool.empty(2 * SMALLEST, dtype).data_ptr() == address
    # A message of another length, in the same memory.
    assert pool.empty(2 * SMALLEST - 5, dtype).data_ptr() == address
