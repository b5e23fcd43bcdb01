"""An iteration of the rows of one process: compiled but for its exchanges with other processes.

A local step communicates nothing: it is traced, compiled and captured as in the simulator. A step that communicates is
traced with its exchanges as operators, and cut: at every exchange, and where the result of one is first needed. The
pieces are compiled. Rows travel while the piece in between is computed, as they do in the uncompiled step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from depositum.algorithms import Algorithm, State
from depositum.channels import Channel, Exact, Memory
from depositum.engines.compiler import Compiled, Compiler
from depositum.engines.distributed.async_tensor import awaited
from depositum.engines.distributed.awaiting_oracle import AwaitingOracle
from depositum.engines.distributed.links import LinkMix
from depositum.engines.graph_passes import writes_to_input
from depositum.engines.iteration import Iteration, same_memory, state_tensors
from depositum.engines.mixing import ChannelState, IdentityMix
from depositum.problem import Oracle

#: An operation of a mix, by its name, on rows.
Exchange = Callable[[str, Tensor], Tensor]


class LinkIteration(Iteration):
    """An algorithm's step on the rows held here.

    The state of the links' channel is not part of what is advanced in place: the links keep it.

    Parameters
    ----------
    links
        `mix` in the steps that communicate, whose phase has begun; in the others it is the identity.
    """

    def __init__(self, algorithm: Algorithm, oracle: Oracle, links: LinkMix, period: int) -> None:
        super().__init__(algorithm, oracle, period, ChannelState(Exact(), 0, 0, oracle.device, oracle.dtype))
        self.links, self.local = links, IdentityMix(links)
        self._awaiting_oracle = AwaitingOracle(oracle)
        self._exchange: Exchange = self._on_links
        self._held: list[Tensor] = []

    def hold(self, state: State) -> None:
        super().hold(state)
        self._held = list(state_tensors(self.state).values())

    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""
        self.oracle.begin(state.t + 1)
        mix = ForwardingMix(self.links, self._exchange) if self.sends(kind) else self.local
        new = self.algorithm.step(state, self._awaiting_oracle, mix, kind)
        self.links.wait()
        held: State = awaited(new)
        return held

    def sends(self, kind: str) -> bool:
        return self.algorithm.communicates(kind)

    def can_be_compiled(self, kind: str) -> bool:
        """All but a step that sends through a channel of the method's own, and its memory with the rows."""
        return not (self.algorithm.compresses and self.sends(kind))

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Nothing is sent; every exchange returns a copy of its rows."""
        with self._exchanging_by(lambda name, z: z.clone(memory_format=torch.contiguous_format)):
            yield

    @contextmanager
    def tracing(self) -> Iterator[None]:
        with self._exchanging_by(exchange_operator):
            yield

    def assembled(self, graph: GraphModule, compiler: Compiler) -> Compiled:
        return cut_at_exchanges(graph, compiler, lambda name, z: self._exchange(name, z), self.links.wait)

    @contextmanager
    def _exchanging_by(self, exchange: Exchange) -> Iterator[None]:
        before, self._exchange = self._exchange, exchange
        try:
            yield
        finally:
            self._exchange = before

    def _on_links(self, name: str, z: Tensor) -> Tensor:
        if name == "degree":
            return self.links.degree
        z = awaited(z)
        # What is advanced in place would change what was sent, which may be read for longer than the step.
        if any(same_memory(z, value) for value in self._held):
            z = z.clone()
        result: Tensor = getattr(self.links, name)(z)
        return result


class ForwardingMix:
    """A mix whose operations on rows are those of a function of their names."""

    def __init__(self, links: LinkMix, exchange: Exchange) -> None:
        self.lam, self.lam2, self.lam_min, self.share = links.lam, links.lam2, links.lam_min, links.share
        self._links, self._exchange = links, exchange

    @property
    def degree(self) -> Tensor:
        return self._exchange("degree", self._links.degree)

    def __call__(self, z: Tensor) -> Tensor:
        return self._exchange("__call__", z)

    def average(self, z: Tensor) -> Tensor:
        return self._exchange("average", z)

    def neighbours(self, z: Tensor) -> Tensor:
        return self._exchange("neighbours", z)

    def pull(self, z: Tensor) -> Tensor:
        return self._exchange("pull", z)

    def push(self, z: Tensor) -> Tensor:
        return self._exchange("push", z)

    def push_weights(self, phi: Tensor) -> Tensor:
        return self._exchange("push_weights", phi) if self._links.network.has_push_weights else phi

    def transmit(self, z: Tensor, channel: Channel, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        return self._links.transmit(z, channel, memory)


@torch.library.custom_op("depositum::exchange", mutates_args=())
def exchange_operator(name: str, z: Tensor) -> Tensor:
    """Stands for an exchange in what is traced; it is never run."""
    raise NotImplementedError


@exchange_operator.register_fake
def _(name: str, z: Tensor) -> Tensor:
    return z.new_empty(z.shape)


def cut_at_exchanges(
    graph: GraphModule, compiler: Compiler, exchange: Exchange, wait: Callable[[], None]
) -> GraphModule:
    """A traced step whose exchanges are calls of `exchange`, and whose pieces between are compiled.

    A piece ends where an exchange begins, where the result of one that is under way is needed, and before an input is
    written to: if an exchange fails, the state is still what it was.
    """
    piece_of, waiting, exchanges = _pieces(graph)
    cut = split_module(graph, nn.Module(), piece_of.__getitem__, keep_original_order=True)
    for number in set(piece_of.values()):
        name = f"submod_{number}"
        piece = cut.get_submodule(name)
        assert isinstance(piece, GraphModule)
        if number in exchanges:
            setattr(cut, name, _ExchangeCall(exchange, exchanges[number]))
        else:
            setattr(cut, name, _Piece(piece, compiler, wait if number in waiting else None))
    return cut


def _pieces(graph: GraphModule) -> tuple[dict[Node, int], set[int], dict[int, str]]:
    """The number of each node's piece, the pieces that wait for all exchanges, and what is exchanged in which."""
    piece_of: dict[Node, int] = {}
    waiting: set[int] = set()
    exchanges: dict[int, str] = {}
    under_way: set[Node] = set()
    number = 0
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is torch.ops.depositum.exchange.default:
            exchanges[number + 1] = node.args[0]
            piece_of[node] = number + 1
            under_way.add(node)
            number += 2
            continue
        if under_way and writes_to_input(node):
            number += 1
            waiting.add(number)
            under_way.clear()
        elif needed := under_way.intersection(node.all_input_nodes):
            number += 1
            under_way -= needed
        piece_of[node] = number
    return piece_of, waiting, exchanges


class _Piece(nn.Module):
    """What is computed between exchanges; compiled when it is first called."""

    def __init__(self, graph: GraphModule, compiler: Compiler, wait: Callable[[], None] | None) -> None:
        super().__init__()
        self._graph, self._compiler, self._wait = graph, compiler, wait
        self._compiled: Compiled | None = None

    def forward(self, *arguments: Tensor) -> object:
        if self._wait is not None:
            self._wait()
        arguments = awaited(arguments)
        if self._compiled is None:
            self._compiled = self._compiler(self._graph, arguments)
        return self._compiled(*arguments)


class _ExchangeCall(nn.Module):
    """An exchange."""

    def __init__(self, exchange: Exchange, name: str) -> None:
        super().__init__()
        self._exchange, self._name = exchange, name

    def forward(self, z: Tensor) -> Tensor:
        return self._exchange(self._name, z)
