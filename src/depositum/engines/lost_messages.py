"""Links that lose messages in one direction, or deliver them late: what both engines compute with what has arrived.

Of models, which are averaged by R, a client uses the newest one that it has of each neighbour, and its own while it has
none. Of what has to add up, which is divided by C, every sender sends the running sum s ← s + v of all that it has ever
divided, and a receiver adds c_ij (s_j − s_j'), the difference to the newest sum that it had before. A lost message is
then part of the next one that arrives, and what is in flight, Σ c_ij (s_j − s_j'), is all that is missing (R-FAST,
arXiv 2307.11617). Messages that are overtaken by newer ones are ignored.

The memory of a mixing, `[rows, …]`, is part of the channel's state:

- `sent`, `[rows, kept, d]`: what a client has sent, the newest first; as many as may still be on their way
- `heard`, `[rows, width, d]`: the newest that a client has of each neighbour, in the order of their ids
- `known`, `[rows, width]`: 1 where it has one (of models; sums start from 0)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depositum.channels import Memory
from depositum.networks import DirectedNetwork, LostMessages, Network
from depositum.networks.mixing_matrices import Sparse


class ReceiverWeights(NamedTuple):
    """The entries of R or C by receiver: own `[S·k, 1]`, and of each sender `[S·k, width]`, 0 where there is none."""

    own: Tensor
    senders: Tensor


class LossyLinks:
    """The links that end at the clients held here, of which each has up to `width` senders.

    Attributes
    ----------
    lost
        Which messages are lost or late.
    senders
        Client numbers, int64 `[k, width]`; a client with fewer senders is its own sender in the rest.
    """

    def __init__(
        self,
        network: Network,
        lost: LostMessages,
        clients: Sequence[int],
        trials: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.lost, self._trials = lost, trials
        self._clients = torch.tensor(list(clients), dtype=torch.int64, device=device)[:, None]
        self.width = int(np.diff(network.weights.indptr).max()) - 1
        senders, R = self._by_receiver(network.weights, clients)
        C = self._by_receiver(network.push_weights, clients)[1] if isinstance(network, DirectedNetwork) else R
        self.senders = torch.from_numpy(senders).to(device)
        split = ((matrix[:, :1], matrix[:, 1:]) for matrix in (R, C))
        self._weights = [
            ReceiverWeights(*(torch.tensor(z, dtype=dtype, device=device).repeat(trials, 1) for z in pair))
            for pair in split
        ]

    def begin(self, phase: Tensor) -> None:
        """Find out which messages have arrived in a communication phase, an int64 tensor on the device."""
        linked = self.senders != self._clients
        ages = range(self.lost.late + 1)
        arrived = (self.lost.arrived(phase, self.senders, self._clients, age) & linked for age in ages)
        #: For each age of a message, whether those of that age have arrived: bool `[S·k, width]`, newest first.
        self._arrived = [now.repeat(self._trials, 1) for now in arrived]

    def shapes(self, pushed: bool, d: int) -> Mapping[str, tuple[int, ...]]:
        """The memory of a mixing by R, or of one by C (`pushed`), of rows of d numbers: by name, without the rows."""
        kept = max(self.lost.late, int(pushed))
        sent = {"sent": (kept, d)} if kept else {}
        return {**sent, "heard": (self.width, d), **({} if pushed else {"known": (self.width,)})}

    def outgoing(self, z: Tensor, memory: Memory, pushed: bool) -> tuple[Tensor, Memory]:
        """What clients send for rows z `[rows, d]`, and the new `sent`."""
        kept = memory.get("sent")
        if kept is None:
            return z, {}
        new = kept[:, 0] + z if pushed else z
        return new, {"sent": torch.cat([new[:, None], kept[:, :-1]], dim=1)}

    def earlier(self, memory: Memory) -> list[Tensor]:
        """What clients sent one phase before, two phases before, …, as far as it may still arrive: each `[rows, d]`."""
        return [memory["sent"][:, age] for age in range(self.lost.late)]

    def mixed(
        self, z: Tensor, sent: Tensor, messages: Sequence[Tensor], memory: Memory, pushed: bool
    ) -> tuple[Tensor, Memory]:
        """The rows `[rows, d]` after a mixing, and the new `heard` and `known`.

        `sent` is what `outgoing` returned; `messages`, `[rows, width, d]` each, are what the senders of each row sent
        in this phase, the phase before, …
        """
        weights, heard = self._weights[pushed], memory["heard"]
        for message, now in zip(reversed(messages), reversed(self._arrived), strict=True):  # the newest counts
            heard = torch.where(now[..., None], message, heard)
        if pushed:
            new, given = heard - memory["heard"], sent - memory["sent"][:, 0]
            # Not own·z: the sum s + z is rounded, and what rounding takes from receivers has to stay with the sender.
            out = z - (1 - weights.own) * given + (weights.senders[..., None] * new).sum(1)
            return out, {"heard": heard}
        known = memory["known"].bool()
        for now in self._arrived:
            known = known | now
        models = torch.where(known[..., None], heard, z[:, None])
        out = weights.own * z + (weights.senders[..., None] * models).sum(1)
        return out, {"heard": heard, "known": known.to(z.dtype)}

    def _by_receiver(self, matrix: Sparse, clients: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The senders `[k, width]`, and the weights `[k, 1 + width]` of the client itself and of each sender."""
        senders = np.array(clients, dtype=np.int64)[:, None].repeat(self.width, 1)
        weights = np.zeros((len(senders), 1 + self.width))
        for k, i in enumerate(clients):
            entries = slice(int(matrix.indptr[i]), int(matrix.indptr[i + 1]))
            j, values = matrix.indices[entries], matrix.data[entries]
            others = j != i
            weights[k, 0], weights[k, 1 : 1 + others.sum()] = values[~others][0], values[others]
            senders[k, : others.sum()] = j[others]
        return senders, weights
