"""Snapshots: a run at one iteration as named tensors on the host, which is what a checkpoint stores."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from depositum.algorithms import State
from depositum.engines.monitor import Divergence
from depositum.errors import RunError, short_repr
from depositum.metrics import Reduction, mean_buffers, mean_row
from depositum.problem import Oracle

if TYPE_CHECKING:
    from depositum.engines.engine import Costs, Engine

#: Prefixes of what is not a variable of the algorithm: the model's buffers, the memory of the channel, and what a
#: process that is resumed alone must know of its links.
BUFFER, CHANNEL, LINK = "buffer.", "channel.", "link."


def select_trials(tensor: Tensor, keep: Sequence[int], rows: int, clients: int) -> Tensor:
    """The rows of some trials of a variable `[rows, ...]`; a variable without rows belongs to all trials."""
    if tensor.dim() == 0 or len(tensor) != rows:
        return tensor
    return tensor.view(-1, clients, *tensor.shape[1:])[list(keep)].flatten(0, 1)


def capture(state: State, oracle: Oracle, channel: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the state's variables by name, the model's buffers as `buffer.NAME` and a channel's `channel.NAME`."""
    tensors = {k: v for k, v in state._asdict().items() if isinstance(v, Tensor) and k != "t"}
    tensors |= {f"{BUFFER}{k}": v for k, v in oracle.buffers.items()}
    tensors |= {f"{CHANNEL}{k}": v for k, v in channel.items()}
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}


def reinstate(state: State, oracle: Oracle, tensors: dict[str, Tensor], t: int) -> tuple[State, dict[str, Tensor]]:
    """The state of iteration t that `capture` copied, in the form of another state, and the channel's tensors.

    The model's buffers are written to the oracle's. Tensors that are not those of this state are a RunError.
    """
    apart = (CHANNEL, LINK)
    _check_same_kind(capture(state, oracle, {}), {k: v for k, v in tensors.items() if not k.startswith(apart)})
    own = {k: v for k, v in tensors.items() if not k.startswith((BUFFER, *apart))}
    fields: dict[str, Any] = {k: v.to(oracle.device) for k, v in own.items()}
    fields["t"] = torch.tensor(t, dtype=torch.int64, device=oracle.device)
    for name, buffer in oracle.buffers.items():
        buffer.copy_(tensors[f"{BUFFER}{name}"])
    channel = {k.removeprefix(CHANNEL): v.to(oracle.device) for k, v in tensors.items() if k.startswith(CHANNEL)}
    replaced: State = state._replace(**fields)
    return replaced, channel


def _check_same_kind(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Refuse variables of other names, types or shapes, which might broadcast unnoticed."""
    for name in sorted(expected.keys() | found.keys()):
        kinds = [(tensors[name].dtype, tuple(tensors[name].shape)) for tensors in (expected, found) if name in tensors]
        if len(kinds) < 2 or kinds[0] != kinds[1]:
            here = f"{kinds[-1][0]} of shape {kinds[-1][1]}" if name in found else "missing"
            there = f"{kinds[0][0]} of shape {kinds[0][1]}" if name in expected else "not used"
            problem = f"{short_repr(name)} is {here} in the checkpoint, and {there} in this run"
            raise RunError(f"{problem}; it is the checkpoint of another run")


@dataclass
class Snapshot:
    """A run at one iteration, on the host; of one process among many, the rows of its clients.

    The rows of a trial that diverged are its last finite ones, from the checkpoint before. `seeds` are the labels of
    the trials, which are their seeds in a run of one configuration.
    """

    seeds: tuple[int, ...]
    t: int
    costs: "Costs"
    tensors: dict[str, Tensor]
    diverged: dict[int, Divergence] = field(default_factory=dict)
    #: How gradients were computed. Chosen by measuring if not configured, and then kept: another backend rounds
    #: differently.
    backend: str = "auto"

    @property
    def live(self) -> list[int]:
        """Trials that continue."""
        return [seed for seed in self.seeds if seed not in self.diverged]

    def rows_of(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """The tensors with the rows of these trials only."""
        rows = len(self.tensors["x"])
        keep = [self.seeds.index(seed) for seed in seeds]
        return {k: select_trials(v, keep, rows, rows // len(self.seeds)) for k, v in self.tensors.items()}

    def of_trials(self, seeds: Sequence[int]) -> "Snapshot":
        """The snapshot of these trials alone."""
        diverged = {seed: found for seed, found in self.diverged.items() if seed in seeds}
        return replace(self, seeds=tuple(seeds), tensors=self.rows_of(seeds), diverged=diverged)

    def relabelled(self, labels: Sequence[int]) -> "Snapshot":
        """The same trials in order, under other labels."""
        new = dict(zip(self.seeds, labels, strict=True))
        diverged = {new[seed]: found._replace(seed=new[seed]) for seed, found in self.diverged.items()}
        return replace(self, seeds=tuple(labels), diverged=diverged)

    @staticmethod
    def joined(parts: "Sequence[Snapshot]") -> "Snapshot":
        """One snapshot of the trials of all parts, in order, at the last iteration that one of them has reached."""
        furthest = max(parts, key=lambda part: part.t)

        def join(name: str) -> Tensor:
            tensor = furthest.tensors[name]
            if tensor.dim() == 0 or len(tensor) != len(furthest.tensors["x"]):
                return tensor  # common to all rows
            return torch.cat([part.tensors[name] for part in parts])

        return replace(
            furthest,
            seeds=tuple(seed for part in parts for seed in part.seeds),
            tensors={name: join(name) for name in furthest.tensors},
            diverged={seed: found for part in parts for seed, found in part.diverged.items()},
        )

    def update(self, engine: "Engine") -> None:
        """Copy the iteration, and the rows of the trials that the engine still advances."""
        self.t, self.costs = engine.t, engine.costs
        clients, new = len(engine.clients), engine.snapshot()
        indices = [self.seeds.index(label) for label in engine.problem.labels]
        rows = torch.tensor([index * clients + i for index in indices for i in range(clients)])
        for name, tensor in new.items():
            if len(indices) < len(self.seeds) and tensor.dim() and len(tensor) == len(rows):
                everyone = tensor.new_zeros(len(self.seeds) * clients, *tensor.shape[1:])
                self.tensors.setdefault(name, everyone)[rows] = tensor
            else:
                self.tensors[name] = tensor


def average(rows: dict[str, Tensor], n: int, reduction: Reduction) -> tuple[Tensor, dict[str, Tensor]]:
    """x̄ `[d]` of one trial and its buffers averaged over all n clients, from a snapshot's rows of it.

    A collective call among processes.
    """
    buffers = {name.removeprefix(BUFFER): z for name, z in rows.items() if name.startswith(BUFFER)}
    means = mean_buffers(buffers, 1, n, reduction)
    return mean_row(rows["x"], 1, n, reduction)[0], {name: mean[0] for name, mean in means.items()}
