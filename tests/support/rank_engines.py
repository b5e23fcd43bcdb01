"""What ranks do with an engine in tests: each function runs on every rank and returns plain numbers and arrays."""

import signal
import time
import warnings
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
from tests.support.channel_cases import CHANNEL_CASES, CHANNEL_METHODS

D_IN, CLASSES, SAMPLES, STEPS = 5, 3, 96, 11
ROW = (D_IN + 1) * CLASSES
SEEDS = (3, 11)
SETTINGS = EngineSettings("cpu", "float64", backend="loop")

Array = np.ndarray[Any, Any]


def problem(n: int, *, composite: bool = True, model: nn.Module | None = None, weighting: Any = "uniform") -> Problem:
    """A problem of n clients with unequal numbers of samples, and two seeds with different partitions and starts."""
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
    """Every method with T0 = 1 and, where it supports it, T0 = 5."""
    return [
        (name, period)
        for name in ALGORITHMS
        for period in (1, 5)
        if (supported := dp.algorithm(name).periods) is None or period in supported
    ]


def setting(name: str, n: int) -> tuple[Problem, dp.Network | None, dp.Algorithm]:
    """A method with a problem and a network that it supports."""
    method = dp.algorithm(name)
    network = None if method.server else dp.ring(n, mixing="lazy-metropolis")
    return problem(n, composite=method.handles != "smooth"), network, method


def simulated(name: str, period: int, n: int) -> Simulator:
    """The same case in a simulator, after all steps."""
    sim = Simulator(*setting(name, n), period=period, batch_size=4, settings=SETTINGS)
    sim.start()
    for _ in range(STEPS):
        sim.step()
    return sim


def trajectories(n: int) -> dict[tuple[str, int], tuple[dict[str, Array], tuple[float, ...]]]:
    """The final state and the costs of every case."""
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


def channel_cases() -> list[tuple[str, int]]:
    """Each of some methods with every channel, by its position."""
    return [(name, index) for name in CHANNEL_METHODS for index in range(len(CHANNEL_CASES))]


def channel_trajectories(n: int) -> list[tuple[dict[str, Array], float]]:
    """The final state of every method and channel, and the bytes that a client sent."""
    group = join(30, "cpu")
    out = []
    for name, index in channel_cases():
        channel = CHANNEL_CASES[index]
        engine = DistributedEngine(*setting(name, n), group, period=2, batch_size=4, settings=SETTINGS, channel=channel)
        engine.start()
        for _ in range(STEPS):
            engine.step()
        tensors = {key: tensor.numpy() for key, tensor in engine.snapshot().items()}
        out.append((tensors, mean_costs(engine).bytes_sent))
    group.leave()
    return out


def mean_costs(engine: Simulator | DistributedEngine) -> Costs:
    """The mean costs of a client over all ranks, as the history records them."""
    return Loop(engine, STEPS)._costs()[0]


def measures(engine: Simulator | DistributedEngine, train: bool = True) -> dict[str, Tensor]:
    """All measures of a state that may be shared, each `[S]`."""
    if engine.sharing == "none":
        return {}
    values = cheap(engine.state, engine.oracle, train, engine.reduction)
    return values | costly(engine.state, engine.oracle, 0.1, [2.0] * len(SEEDS), "nu", engine.reduction, engine.sharing)


# Links


def networks(n: int) -> dict[str, dp.Network]:
    """Fixed and time-varying networks by name."""
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
    """Rows of all clients and seeds, `[S, n, ROW]`, with a share of zeros that grows with the client's index."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(len(SEEDS), n, ROW, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows.shape, generator=generator) < zeros * torch.linspace(0, 1.4, n)[:, None]
    return rows.masked_fill(mask, 0.0).to(dtype)


Posted = list[tuple[str, int, int]]
#: The channels that keep no copies at the ends of a link, and so do without links that are there in every phase.
CHANNEL_NAMES = [name for name in CHANNELS if not as_channel(name).memory]


def count_posted() -> Posted:
    """Record every transfer that is passed to torch from now on: ("isend" or "irecv", peer, bytes)."""
    posted: Posted = []
    post = dist.batch_isend_irecv

    def recording(operations: list[dist.P2POp]) -> Any:
        posted.extend((op.op.__name__, op.peer, op.tensor.numel() * op.tensor.element_size()) for op in operations)
        return post(operations)

    dist.batch_isend_irecv = recording
    return posted


def exchanges(n: int) -> dict[tuple[str, str, str, int], Any]:
    """W z and the sum over neighbours for every network and channel in three phases, and what was sent for them."""
    group, posted = join(30, "cpu"), count_posted()
    out = {}
    for name, network in networks(n).items():
        for channel in CHANNEL_NAMES:
            for dtype in (torch.float64, torch.float32):
                links = LinkMix(network, group, len(SEEDS), dtype, as_channel(channel), ROW)
                z = some_rows(n, dtype)[:, list(links.held)].flatten(0, 1)
                for phase in range(3):
                    posted.clear()
                    before = {peer: (t.messages, t.bytes) for peer, t in links.traffic.items()}
                    links.begin(phase)
                    mixed, neighbours = links(z), links.neighbours(z)
                    shape = (len(SEEDS), len(links.held), ROW)
                    out[name, channel, str(dtype), phase] = {
                        "mixed": (mixed + 0).view(shape).numpy(),
                        "neighbours": (neighbours + 0).view(shape).numpy(),
                        "degree": links.degree.numpy(),
                        "posted": list(posted),
                        "counted": {
                            peer: tuple(np.subtract((t.messages, t.bytes), before.get(peer, (0, 0))))
                            for peer, t in links.traffic.items()
                        },
                    }
    group.leave()
    return out


#: Longer than what is summed at once, by a length that is not a multiple of any vector's.
LONG = CACHED + 1_003


def long_rows(n: int) -> Tensor:
    """Rows of all clients, `[n, LONG]`, whose values are mostly zero."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(n, LONG, generator=generator)
    return rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.8, 0.0)


def long_exchanges(n: int) -> dict[str, list[Array]]:
    """Mixings of long rows times 1, 2, 4, …; alternately the complete result and a view of it are returned."""
    group = join(30, "cpu")
    out = {}
    for channel in ("exact", "sparse"):
        links = LinkMix(dp.ring(n), group, 1, torch.float32, as_channel(channel), LONG)
        z = long_rows(n)[list(links.held)]
        results = []
        for power in range(6):
            mixed = awaited(links(z * 2**power))
            awaited(links.neighbours(z))
            results.append(mixed if power % 2 == 0 else mixed[:, 5:])
            del mixed
        out[channel] = [rows.numpy() for rows in results]
    group.leave()
    return out


TIME_VARYING = [
    ("dropped", "depositum", 2),
    ("one peer", "depositum", 2),
    ("dropped", "sppdm", 1),
    ("one peer", "prox-dasa-gt", 1),
]


def time_varying_trajectories(n: int) -> list[Array]:
    """x after all steps on time-varying networks."""
    group = join(30, "cpu")
    out = []
    for network, name, period in TIME_VARYING:
        parts = problem(n), networks(n)[network], dp.algorithm(name)
        engine = DistributedEngine(*parts, group, period=period, batch_size=4, settings=SETTINGS)
        engine.start()
        for _ in range(STEPS):
            engine.step()
        out.append(engine.state.x.view(len(SEEDS), -1, ROW).numpy())
    group.leave()
    return out


# Compiled iterations

COMPILED_STEPS = 7


def small_network(name: str, compile: Any, n: int, group: Any = None) -> Simulator | DistributedEngine:
    """A method on a model with buffers, with an exchange every third iteration, at t = 0."""
    torch.manual_seed(0)
    parts = problem(n, model=batch_norm_model()), dp.ring(n), dp.algorithm(name)
    settings = replace(SETTINGS, compile=compile)
    engine: Simulator | DistributedEngine
    if group is None:
        engine = Simulator(*parts, period=3, batch_size=4, settings=settings)
    else:
        engine = DistributedEngine(*parts, group, period=3, batch_size=4, settings=settings)
    engine.start()
    engine.watch(20)
    return engine


def compiled_trajectories(
    n: int, name: str, device: str = "cpu"
) -> tuple[dict[str, Array], dict[str, Array], bool, list[int]]:
    """Final states of uncompiled and of compiled iterations, whether these cost the same, and what was announced.

    Iterations that cannot be compiled or captured are an error.
    """
    warnings.simplefilter("error", RuntimeWarning)
    announced: list[int] = []
    group = join(30, device)
    plain, compiled = small_network(name, "never", n, group), small_network(name, "always", n, group)
    plain.advance(COMPILED_STEPS)
    compiled.advance(COMPILED_STEPS, announce=lambda: announced.append(compiled.t))
    group.leave()
    states = [{key: tensor.numpy() for key, tensor in engine.snapshot().items()} for engine in (plain, compiled)]
    return states[0], states[1], plain.costs == compiled.costs, announced


def resumes_compiled(n: int, name: str, device: str = "cpu") -> bool:
    """Whether a compiled run that another engine resumes in the middle of a phase ends in the same bytes."""
    group = join(30, device)
    uninterrupted, resumed = (small_network(name, "always", n, group) for _ in range(2))
    uninterrupted.advance(5)
    halfway, costs = uninterrupted.snapshot(), uninterrupted.costs
    uninterrupted.advance(4)
    resumed.restore(halfway, 5, costs)
    resumed.advance(4)
    group.leave()
    a, b = uninterrupted.snapshot(), resumed.snapshot()
    return all(torch.equal(a[key], b[key]) for key in a) and uninterrupted.costs == resumed.costs


# Measures and complete states


def batch_norm_model() -> nn.Module:
    """A model with buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D_IN, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def measured(n: int, evaluate: Any) -> tuple[dict[str, list[float]], int]:
    """All measures after a few steps, and the number of point-to-point messages that measuring took."""
    group, posted = join(30, "cpu"), count_posted()
    engine = DistributedEngine(
        problem(n, model=batch_norm_model(), weighting="samples"),
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


def resumes_exactly(n: int) -> bool:
    """Whether a run that another engine resumes half-way ends in the same bytes at the same cost."""
    group = join(30, "cpu")

    def engine(steps: int) -> DistributedEngine:
        created = DistributedEngine(
            problem(n, model=batch_norm_model()), dp.ring(n), dp.Depositum(0.1), group, batch_size=6, settings=SETTINGS
        )
        created.start()
        for _ in range(steps):
            created.step()
        return created

    uninterrupted, half, other = engine(9), engine(4), engine(0)
    other.restore(half.snapshot(), half.t, half.costs)
    for _ in range(5):
        other.step()
    one_seed = restricted(half, SEEDS[1:])
    for _ in range(5):
        one_seed.step()
    group.leave()
    a, b, c = uninterrupted.snapshot(), other.snapshot(), one_seed.snapshot()
    share = len(uninterrupted.clients)
    same = all(torch.equal(a[key], b[key]) and torch.allclose(a[key][share:], c[key], atol=1e-12) for key in a)
    return same and other.costs == uninterrupted.costs


def divergences(n: int) -> list[tuple[Any, ...]]:
    """What all ranks agree on when a variable of one client of the second seed is set to NaN."""
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
    """Run until a peer is lost; return the error, the ranks that it names, and when it was raised."""
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
    group = join(timeout, "cpu")
    engine = DistributedEngine(*setting(name, n), group, batch_size=4, settings=SETTINGS)
    engine.start()
    try:
        while True:
            engine.step()
            if signals:
                time.sleep(60)  # hangs, although its other threads continue
            if engine.t == 5:
                (Path(folder) / str(group.rank)).touch()
    except PeerLost as lost:
        return str(lost), lost.ranks, time.monotonic()


def agree_on_settings(settings: dict[str, Any]) -> str:
    """The error of this rank when each rank has these settings; "" if there is none."""
    try:
        group = join(10, "cpu")
        with group.all_or_none("start"):
            if version := settings.pop("version", None):
                communicator._versions = lambda: {"version of depositum": version}
            if missing := settings.pop("missing", None):
                raise dp.DataError(f"{missing}: no such file")
        group.check_same(settings)
        with group.all_or_none("share the clients"):
            Placement(settings["problem"]["clients"], group.size)
    except dp.DepositumError as error:
        return f"{type(error).__name__}: {error}"
    group.leave()
    return ""


def join_without_peers(timeout: float) -> str:
    """The error of a process that no other one joins."""
    try:
        join(timeout, "cpu")
    except dp.DepositumError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def late_once(n: int, timeout: float, folder: str) -> tuple[str, tuple[int, ...]]:
    """Rank 1 answers late, after notes about it but before an error; return the later error and the ranks it names."""
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
