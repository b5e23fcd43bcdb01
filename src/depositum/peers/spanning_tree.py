"""The tree along which everything travels that concerns all members: no message goes anywhere but along an agreed edge.

Every member derives the same tree from the agreement: the breadth-first tree of client 0, neighbours in the order of
their ids.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Branches:
    """The tree as one member sees it, when it hangs from some root.

    Attributes
    ----------
    parent
        The neighbour towards the root; None at the root.
    children
        The neighbours away from it, in ascending order.
    """

    parent: int | None
    children: tuple[int, ...]


class SpanningTree:
    """The breadth-first spanning tree of a connected graph.

    >>> tree = SpanningTree([(0, 1), (0, 2), (1, 2), (2, 3)])
    >>> tree.branches(2), tree.branches(0)
    (Branches(parent=0, children=(3,)), Branches(parent=None, children=(1, 2)))
    >>> tree.branches(2, root=3)
    Branches(parent=3, children=(0,))
    """

    def __init__(self, edges: Iterable[tuple[int, int]]) -> None:
        links: dict[int, list[int]] = {0: []}
        for a, b in edges:
            links.setdefault(a, []).append(b)
            links.setdefault(b, []).append(a)
        self._links: dict[int, set[int]] = {client: set() for client in links}
        reached, waiting = {0}, deque([0])
        while waiting:
            here = waiting.popleft()
            for there in sorted(links[here]):
                if there not in reached:
                    reached.add(there)
                    waiting.append(there)
                    self._links[here].add(there)
                    self._links[there].add(here)
        assert len(reached) == len(links), "an agreement's graph is connected"

    def branches(self, client: int, root: int = 0) -> Branches:
        """The neighbours of a client in the tree when it hangs from `root`."""
        parent = self._towards(client, root)
        return Branches(parent, tuple(sorted(self._links[client] - {parent})))

    def _towards(self, client: int, root: int) -> int | None:
        came_from: dict[int, int | None] = {root: None}
        waiting = deque([root])
        while waiting:
            here = waiting.popleft()
            for there in self._links[here]:
                if there not in came_from:
                    came_from[there] = here
                    waiting.append(there)
        return came_from[client]
