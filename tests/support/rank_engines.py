"""What the processes of the tests do; each function runs on every rank, and returns plain numbers and arrays."""

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import depositum as dp
from depositum.algorithms import ALGORITHMS
from depositum.channels import CHANNELS, as_channel
from depositum.data import Samples
from depositum.engines import Costs, EngineSettings, Loop, Simulator
from depositum.engines.distributed import DistributedEngine, Placement, communicator
from depositum.engines.distributed.async_tensor import awaited
from depositum.engines.distributed.links import CACHED, LinkMix
from depositum.engines.distributed.torch_communicator import join
from depositum.engines.engine import restricted
from depositum.errors import PeerLost
from depositum.layout import Layout
from depositum.metrics import cheap, costly
from depositum.networks import DroppedLinks
from depositum.problem import Problem, Trial, as_loss

D_IN, CLASSES, SAMPLES, STEPS = 5, 3, 96, 11
ROW = (D_IN + 1) * CLASSES
SEEDS = (3, 11)
SETTINGS = EngineSettings("cpu", "float64", backend="loop")

Array = np.ndarray[Any, Any]


def problem(n: int, *, composite: bool = True, model: nn.Module | None = None, weighting: Any = "uniform") -> Problem:
    """n clients with unequal shares of some samples, two seeds with partitions and starts of their own."""
    rng = np.random.default_rng(7)
    inputs, labels = rng.normal(size=(SAMPLES, D_IN)), rng.integers(0, CLASSES, SAMPLES)
    model = model or nn.Linear(D_IN, CLASSES)
    size = Layout.of(model).size
    trials = []
    for seed in SEEDS:
        own = np.random.default_rng(seed)
        ends = np.sort(own.choice(np.arange(4, SAMPLES - 4, 4), n - 1, replace=False))
        parts = [np.sort(part) for part in np.split(own.permutation(SAMPLES), ends)]
        trials.append(Trial(seed, torch.tensor(own.normal(size=size) * 0.1), parts))
    return Problem(
        model,
        as_loss("cross-entropy"),
        Samples(torch.tensor(inputs), torch.tensor(labels)),
        tuple(trials),
        test=Samples(torch.tensor(inputs[:21] + 0.1), torch.tensor(labels[:21])),
        regularizer=dp.L1(),
        beta=1e-3 if composite else 0.0,
        weighting=weighting,
    )


def cases() -> list[tuple[str, int]]:
    """Every method at T0 = 1 and, where it supports it, 5."""
    return [
        (name, period)
        for name in ALGORITHMS
        for period in (1, 5)
        if (supported := dp.algorithm(name).periods) is None or period in supported
    ]


def setting(name: str, n: int) -> tuple[Problem, dp.Network | None, dp.Algorithm]:
    """A method, with a problem and a network that it can have."""
    method = dp.algorithm(name)
    network = None if method.server else dp.ring(n, mixing="lazy-metropolis")
    return problem(n, composite=method.handles != "smooth"), network, method


def simulated(name: str, period: int, n: int) -> Simulator:
    """The same case in the simulator."""
    sim = Simulator(*setting(name, n), period=period, batch_size=4, settings=SETTINGS)
    sim.start()
    for _ in range(STEPS):
        sim.step()
    return sim


def trajectories(n: int) -> dict[tuple[str, int], tuple[dict[str, Array], tuple[float, ...]]]:
    """The last state, and the costs, of every case."""
    group = join(30, "cpu")
    out = {}
    for name, period in cases():
        engine = DistributedEngine(*setting(name, n), group, period=period, batch_size=4, settings=SETTINGS)
        engine.start()
        for _ in range(STEPS):
            engine.step()
        costs = mean_costs(engine)
        tensors = {key: tensor.numpy() for key, tensor in engine.snapshot().items()}
        out[name, period] = tensors, (costs.phases, costs.bytes_sent, costs.gradient_evaluations)
    group.leave()
    return out


def mean_costs(engine: DistributedEngine) -> Costs:
    """What a client has cost on average over all ranks, as the history records it."""
    return Loop(engine, STEPS)._costs()[0]


def measures(engine: Simulator | DistributedEngine, train: bool = True) -> dict[str, Tensor]:
    """All measures of a state, `[S]` each, as far as they may be shared."""
    if engine.sharing == "none":
        return {}
    values = cheap(engine.state, engine.oracle, train, engine.reduction)
    return values | costly(engine.state, engine.oracle, 0.1, [2.0] * len(SEEDS), "nu", engine.reduction, engine.sharing)


# Links


def networks(n: int) -> dict[str, dp.Network]:
    """Fixed and changing ones."""
    return {
        "ring": dp.ring(n),
        "star": dp.star(n),
        "complete": dp.complete(n),
        "random": dp.erdos_renyi(n, p=0.5, seed=3),
        "dropped": replace(dp.ring(n, hops=2), drop=DroppedLinks(0.4, seed=5)),
        "one peer": dp.network("one-peer-exponential", n),
        "one peer, dropped": replace(dp.network("one-peer-exponential", n), drop=DroppedLinks(0.3, seed=1)),
    }


def some_rows(n: int, dtype: torch.dtype, zeros: float = 0.7) -> Tensor:
    """Rows of all clients of all seeds, `[S, n, ROW]`; some of each client's are zero, more or fewer of them."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(len(SEEDS), n, ROW, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows.shape, generator=generator) < zeros * torch.linspace(0, 1.4, n)[:, None]
    return rows.masked_fill(mask, 0.0).to(dtype)


Posted = list[tuple[str, int, int]]


def count_posted() -> Posted:
    """From now on every transfer that is handed to torch is noted: (isend or irecv, peer, bytes)."""
    posted: Posted = []
    post = dist.batch_isend_irecv

    def noting(operations: list[dist.P2POp]) -> Any:
        posted.extend((op.op.__name__, op.peer, op.tensor.numel() * op.tensor.element_size()) for op in operations)
        return post(operations)

    dist.batch_isend_irecv = noting
    return posted


def exchanges(n: int) -> dict[tuple[str, str, str, int], Any]:
    """W z and the sum over neighbours, of every network and encoding, in three phases; and what was sent for it."""
    group, posted = join(30, "cpu"), count_posted()
    out = {}
    for name, network in networks(n).items():
        for send in CHANNELS:
            for dtype in (torch.float64, torch.float32):
                links = LinkMix(network, group, len(SEEDS), dtype, as_channel(send), ROW)
                z = some_rows(n, dtype)[:, list(links.held)].flatten(0, 1)
                for phase in range(3):
                    posted.clear()
                    before = {peer: (t.messages, t.bytes) for peer, t in links.traffic.items()}
                    links.begin(phase)
                    mixed, around = links(z), links.neighbours(z)
                    shape = (len(SEEDS), len(links.held), ROW)
                    out[name, send, str(dtype), phase] = {
                        "mixed": (mixed + 0).view(shape).numpy(),
                        "around": (around + 0).view(shape).numpy(),
                        "degree": links.degree.numpy(),
                        "posted": list(posted),
                        "counted": {
                            peer: tuple(np.subtract((t.messages, t.bytes), before.get(peer, (0, 0))))
                            for peer, t in links.traffic.items()
                        },
                    }
    group.leave()
    return out


#: Longer than what is summed at once, by a length that no vector divides.
LONG = CACHED + 1_003


def long_rows(n: int) -> Tensor:
    """Rows of all clients, `[n, LONG]`; most of their values are zero."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(n, LONG, generator=generator)
    return rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.8, 0.0)


def long_exchanges(n: int) -> dict[str, list[Array]]:
    """Mixings of 1, 2, 4, … times some long rows: of every other one all is kept, of the rest a view."""
    group = join(30, "cpu")
    out = {}
    for send in ("exact", "sparse"):
        links = LinkMix(dp.ring(n), group, 1, torch.float32, as_channel(send), LONG)
        z = long_rows(n)[list(links.held)]
        kept = []
        for power in range(6):
            mixed = awaited(links(z * 2**power))
            awaited(links.neighbours(z))
            kept.append(mixed if power % 2 == 0 else mixed[:, 5:])
            del mixed
        out[send] = [rows.numpy() for rows in kept]
    group.leave()
    return out


CHANGING = [
    ("dropped", "depositum", 2),
    ("one peer", "depositum", 2),
    ("dropped", "sppdm", 1),
    ("one peer", "prox-dasa-gt", 1),
]


def changing(n: int) -> list[Array]:
    """x after some steps on networks that change."""
    group = join(30, "cpu")
    out = []
    for network, name, period in CHANGING:
        parts = problem(n), networks(n)[network], dp.algorithm(name)
        engine = DistributedEngine(*parts, group, period=period, batch_size=4, settings=SETTINGS)
        engine.start()
        for _ in range(STEPS):
            engine.step()
        out.append(engine.state.x.view(len(SEEDS), -1, ROW).numpy())
    group.leave()
    return out


# Measures and whole states


def normed_model() -> nn.Module:
    """A model with buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D_IN, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def measured(n: int, evaluate: Any) -> tuple[dict[str, list[float]], int]:
    """All measures after a few steps, and the messages between ranks that measuring took."""
    group, posted = join(30, "cpu"), count_posted()
    engine = DistributedEngine(
        problem(n, model=normed_model(), weighting="samples"),
        dp.ring(n),
        dp.Depositum(0.1),
        group,
        period=2,
        batch_size=6,
        settings=SETTINGS,
        evaluate=evaluate,
    )
    engine.start()
    for _ in range(7):
        engine.step()
    posted.clear()
    values, sent = measures(engine), len(posted)
    assert measures(engine, train=False).keys() == values.keys() - {"train_loss", "phi"}
    group.leave()
    return {name: value.tolist() for name, value in values.items()}, sent


def resumed(n: int) -> bool:
    """Whether a run that was taken up half-way, by another engine, ends in the same bytes at the same cost."""
    group = join(30, "cpu")

    def engine(steps: int) -> DistributedEngine:
        made = DistributedEngine(
            problem(n, model=normed_model()), dp.ring(n), dp.Depositum(0.1), group, batch_size=6, settings=SETTINGS
        )
        made.start()
        for _ in range(steps):
            made.step()
        return made

    whole, half, other = engine(9), engine(4), engine(0)
    other.restore(half.snapshot(), half.t, half.costs)
    for _ in range(5):
        other.step()
    one_seed = restricted(half, SEEDS[1:])
    for _ in range(5):
        one_seed.step()
    group.leave()
    a, b, c = whole.snapshot(), other.snapshot(), one_seed.snapshot()
    share = len(whole.clients)
    same = all(torch.equal(a[key], b[key]) and torch.allclose(a[key][share:], c[key], atol=1e-12) for key in a)
    return same and other.costs == whole.costs


def poisoned(n: int) -> list[tuple[Any, ...]]:
    """What all ranks agree on when one client of the second seed leaves the finite numbers."""
    group = join(30, "cpu")
    engine = DistributedEngine(problem(n), dp.ring(n), dp.Depositum(0.1), group, batch_size=4, settings=SETTINGS)
    engine.start()
    before = engine.monitor.diverged(group)
    for t in range(6):
        engine.step()
        if t == 2 and group.rank == 1:
            engine.state.y[-1, 3] = float("nan")
            engine.monitor.observe(engine.state)
    found = [tuple(divergence) for divergence in engine.monitor.diverged(group)]
    group.leave()
    return [*before, *found]


# Faults


def until_lost(n: int, name: str, timeout: float, folder: str) -> tuple[str, tuple[int, ...], float]:
    """Run until a peer is lost; say what is said of it, who is named, and when."""
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))
    group = join(timeout, "cpu")
    engine = DistributedEngine(*setting(name, n), group, batch_size=4, settings=SETTINGS)
    engine.start()
    try:
        while True:
            engine.step()
            if asked:
                time.sleep(60)  # it hangs, though its other threads go on
            if engine.t == 5:
                (Path(folder) / str(group.rank)).touch()
    except PeerLost as lost:
        return str(lost), lost.ranks, time.monotonic()


def refused(settings: dict[str, Any]) -> str:
    """What this rank says when ranks come with these settings; "" if it goes on."""
    try:
        group = join(10, "cpu")
        with group.all_or_none("start"):
            if version := settings.pop("version", None):
                communicator._versions = lambda: {"version of depositum": version}
            if missing := settings.pop("missing", None):
                raise dp.DataError(f"{missing}: is not here")
        group.check_same(settings)
        with group.all_or_none("share the clients"):
            Placement(settings["problem"]["clients"], group.size)
    except dp.DepositumError as error:
        return f"{type(error).__name__}: {error}"
    group.leave()
    return ""


def alone(timeout: float) -> str:
    """What a process says that nobody else joins."""
    try:
        join(timeout, "cpu")
    except dp.DepositumError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def slow_once(n: int, timeout: float, folder: str) -> tuple[str, tuple[int, ...]]:
    """Rank 1 answers late, when it has been noted but not given up; later rank 2 ends. Who is named then?"""
    group = join(timeout, "cpu")
    engine = DistributedEngine(*setting("depositum", n), group, batch_size=4, settings=SETTINGS)
    engine.start()
    try:
        while True:
            engine.step()
            if engine.t == 3 and group.rank == 1:
                time.sleep(timeout + 0.4)
            if engine.t == 200:
                (Path(folder) / str(group.rank)).touch()
    except PeerLost as lost:
        return str(lost), lost.ranks
