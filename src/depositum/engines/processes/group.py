"""The processes of one run: joining, agreeing at the start, and the few collectives there are.

Processes find each other by torchrun's environment. Whatever can go wrong before work, on whichever rank, ends all of
them: the rank concerned says what, in one line, and the others say which rank that was.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from depositum.engines.processes.placement import Placement
from depositum.engines.processes.watch import GRACE, Watch
from depositum.engines.simulator import EngineSettings
from depositum.errors import ConfigError, GroupError, PeerLost

#: Numbers the groups that this process has joined, one after the other: each has a part of the store for itself.
_joined = count()
#: Seconds between two looks into the store, at the start.
LOOK = 0.02
#: What torchrun, or whoever starts the processes, sets.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether this process was started as one of several, or by torchrun."""
    size = os.environ.get("WORLD_SIZE", "")
    return size.isdigit() and (int(size) > 1 or "LOCAL_RANK" in os.environ)


@dataclass(frozen=True)
class Address:
    """Where this process stands among the others, from torchrun's environment."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    meeting: str

    @classmethod
    def from_environment(cls) -> "Address":
        missing = [name for name in VARIABLES if name not in os.environ]
        if missing:
            raise GroupError(f"{', '.join(missing)} not set; start the processes by torchrun --nproc-per-node N")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(
            rank,
            size,
            int(os.environ.get("LOCAL_RANK", rank)),
            int(os.environ.get("LOCAL_WORLD_SIZE", size)),
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        )


class Group:
    """The processes of a run, as one of them sees them; made by `join`.

    Attributes
    ----------
    rank, size
        Which of how many processes this is.
    device
        Where this process's rows live.
    wire
        Where rows are when they travel: the device itself for NCCL, the CPU for gloo.
    hosts
        The host of every rank.
    first_of_host
        Whether this is the first process of its host: it fetches for the others.
    """

    def __init__(self, store: Store, address: Address, device: torch.device, nccl: bool, timeout: float) -> None:
        self.store, self.rank, self.size, self.timeout = store, address.rank, address.size, timeout
        self.device, self.nccl = device, nccl
        self.first_of_host = address.local_rank == 0
        self.wire = device if nccl else torch.device("cpu")
        self._meetings = 0
        store.set(f"host/{self.rank}", socket.gethostname())
        hosts = store.multi_get([f"host/{r}" for r in range(self.size)])
        self.hosts = [host.decode() for host in hosts]
        # torchrun keeps the store itself; without it, the first rank does.
        self._keeper = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
        self.watch = Watch(store, self.rank, [self.name(r) for r in range(self.size)], timeout, self._keeper)

    def name(self, rank: int, placement: Placement | None = None) -> str:
        """What a rank is called in a message."""
        clients = ""
        if placement is not None:
            held = placement.clients(rank)
            clients = f"client {held[0]}, " if len(held) == 1 else f"clients {held[0]}–{held[-1]}, "
        return f"rank {rank} ({clients}host {self.hosts[rank]})"

    def place(self, placement: Placement) -> None:
        """Say from now on which clients a rank holds, when it is named."""
        self.watch.names = [self.name(r, placement) for r in range(self.size)]

    # Before work

    @contextmanager
    def together(self, what: str, patience: float = 600.0) -> Iterator[None]:
        """Do something on every rank, and go on only if all of them could.

        An error inside is raised again on its own rank; the others raise a `GroupError` that tells which rank it was
        and why. `patience` is how many seconds the slowest may take longer than this one.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as found:
            error = found
        told = "" if error is None else " ".join(str(error).split()) or type(error).__name__
        try:
            answers = self.tell(told, what, patience)
        except PeerLost:
            if error is not None:
                raise error from None
            raise
        if error is not None:
            raise error
        for rank, answer in enumerate(answers):
            if answer:
                raise GroupError(f"{self.name(rank)} stopped: {answer}")

    def tell(self, value: Any, what: str, patience: float = 600.0) -> list[Any]:
        """Tell all ranks something that JSON can say, and return what each of them told, by rank.

        `what` names it in the error that says who did not come within `patience` seconds.
        """
        self._meetings += 1
        place = f"meeting {self._meetings}"
        keys = [f"{place}/{r}" for r in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(value))
        end = time.monotonic() + patience
        # By looking, not by the store's own wait: a signal is noticed in between.
        while not self.store.check(keys):
            if time.monotonic() > end:
                absent = [r for r, key in enumerate(keys) if not self.store.check([key])]
                names = ", ".join(self.watch.names[r] for r in absent)
                raise PeerLost(f"{names} did not get through {what!r} within {patience:g} s", absent)
            time.sleep(LOOK)
        answers = [json.loads(answer) for answer in self.store.multi_get(keys)]
        self._all_have_read(place)
        return answers

    def check_alike(self, settings: Mapping[str, Any]) -> None:
        """Refuse, on this rank, settings or package versions that differ from those of rank 0.

        Nested tables are compared key by key. Call it inside `together`, so that the other ranks hear of it.
        """
        mine = {**_flat(settings), **_versions()}
        if self.rank == 0:
            self.store.set("settings", json.dumps(mine))
            return
        first: dict[str, Any] = json.loads(self.store.get("settings"))
        mine = json.loads(json.dumps(mine))  # tuples as lists, as they arrive
        for key in [*first, *(k for k in mine if k not in first)]:
            here, there = (json.dumps(s[key]) if key in s else "not set" for s in (mine, first))
            if here != there:
                raise ConfigError(
                    key,
                    f"{here} on {self.name(self.rank)}, but {there} on {self.name(0)}; every rank needs the same",
                )

    def _all_have_read(self, place: str) -> None:
        """The keeper of the store stays until everyone has read what was told."""
        if self.store.add(f"{place}/read", 1) == self.size:
            self.store.set(f"{place}/done", "1")
        if self._keeper == self.rank:
            try:
                self.store.wait([f"{place}/done"], timedelta(seconds=self.timeout))
            except RuntimeError:
                return

    # Collectives: start-up, servers, evaluation

    def sum(self, z: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, the same bits on each."""
        return self._reduced(z, dist.ReduceOp.SUM)

    def minimum(self, z: Tensor) -> Tensor:
        """The elementwise minimum of a tensor over all ranks."""
        return self._reduced(z, dist.ReduceOp.MIN)

    def broadcast(self, z: Tensor, source: int) -> Tensor:
        """The tensor of rank `source`; z gives its shape, dtype and device."""
        there = z.detach().to(self.wire, copy=True).contiguous()
        if self.size > 1:
            with self._everyone():
                self.complete(dist.broadcast(there, source, async_op=True))
        return there.to(z.device)

    def _reduced(self, z: Tensor, operation: Any) -> Tensor:
        there = z.detach().to(self.wire, copy=True).contiguous()
        if self.size > 1:
            with self._everyone():
                self.complete(dist.all_reduce(there, operation, async_op=True))
        return there.to(z.device)

    @contextmanager
    def _everyone(self) -> Iterator[None]:
        with self.watch.waiting_for(r for r in range(self.size) if r != self.rank):
            yield

    def complete(self, work: Any) -> None:
        """Wait for a transfer; whoever hangs makes it raise a RuntimeError, a second after the time-out."""
        if self.nccl:
            # NCCL's own wait does not make the host wait, and so would not notice anything.
            end = time.monotonic() + self.timeout + GRACE
            while not work.is_completed():
                if time.monotonic() > end:
                    raise RuntimeError("timed out")
                time.sleep(1e-5)
        work.wait()

    def meet(self) -> None:
        """Wait until every rank has come here."""
        self.sum(torch.zeros(1))

    def leave(self) -> None:
        """Part in peace, after the last exchange, once everyone is there: a connection that is closed may lose rows."""
        self.meet()
        self.watch.close()
        dist.destroy_process_group()


def join(timeout: float = 60.0, device: str = "auto") -> Group:
    """Meet the other processes, at the place that torchrun's environment names.

    Parameters
    ----------
    timeout
        Seconds within which all must have come and, later, within which a peer must answer.
    device
        `"auto"`: this process's own GPU if there is one for each process of this host, else the CPU; `"cpu"`;
        `"cuda"` or `"cuda:1"`, which processes may share (their rows then travel through the CPU).
    """
    address = Address.from_environment()
    if not timeout > 0:
        raise ConfigError("processes.timeout", f"{timeout!r} given; it must be a number of seconds > 0")
    chosen, nccl = _choose(device, address)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        # Left to itself, NCCL ends the process when it notices something; who is lost is to be named first.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    limit = timedelta(seconds=timeout)
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=limit)))
        store.set_timeout(limit)
        # torchrun may keep one store for all its restarts: what an earlier attempt left there is not for this one.
        store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_joined)}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=PrefixStore("transport", store),
            rank=rank,
            world_size=size,
            timeout=limit + timedelta(seconds=GRACE),
        )
        group = Group(PrefixStore("depositum", store), address, chosen, nccl, timeout)
    except (RuntimeError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise GroupError(
            f"rank {address.rank} of {address.size} (host {socket.gethostname()}) met no others at {address.meeting} "
            f"within {timeout:g} s; is that address right, reachable, and has every process been started? ({reason})"
        ) from None
    if nccl:
        group.sum(torch.zeros(1, device=chosen))  # NCCL wants everyone at its first exchange
    return group


def _choose(device: str, address: Address) -> tuple[torch.device, bool]:
    """The device of this process, and whether its rows travel by NCCL."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = gpus >= address.local_size and dist.is_nccl_available()
    if device == "auto" and not own:
        return torch.device("cpu"), False
    chosen = EngineSettings(device).resolve_device()
    if chosen.type == "cuda" and ":" not in device:
        return torch.device("cuda", address.local_rank % gpus), own
    return chosen, False


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            out |= _flat(value, f"{above}{key}.")
        else:
            out[f"{above}{key}"] = value
    return out


def _versions() -> dict[str, str]:
    """What must be the same on every rank for one trajectory."""
    try:
        own = version("depositum")
    except PackageNotFoundError:
        own = "0+unknown"
    return {
        "version of depositum": own,
        "version of torch": torch.__version__.split("+")[0],
    }
