"""Where a member that restarts continues, so that the federation ends as if nothing had happened.

A member can continue from any of its checkpoints, and from the start. A checkpoint knows how many messages were sent to
each neighbour by then, and received from it; whatever comes after is computed again, to the bit. A neighbour that runs
needs messages from some number on and can repeat those that it still keeps: so a member may not continue from where it
had already sent more than the neighbour has, nor from where it had received less than the neighbour keeps. Of two
neighbours that restart at once, neither may continue from where it had sent what the other one will need again.

Members that restart tell each other their checkpoints, along the edges between them. When a member knows all that could
matter, it computes the newest consistent choice for all of them, and so do the others, from the same facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from depositum.errors import RunError
from depositum.peers.frames import Kind, Refused, read_count

#: The iteration of the checkpoint that every member has: nothing was sent or received.
START = -1


@dataclass(frozen=True)
class Candidate:
    """A checkpoint from which a member can continue.

    Attributes
    ----------
    t
        Its iteration; −1 stands for the start.
    sent, received
        How many messages had been sent to each neighbour, and received from it.
    """

    t: int
    sent: Mapping[str, int]
    received: Mapping[str, int]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {"t": self.t, "sent": dict(self.sent), "received": dict(self.received)}


@dataclass(frozen=True)
class Position:
    """A neighbour that runs, as seen from this end.

    Attributes
    ----------
    needs
        The number of the next message that it needs.
    first
        The first message that it can still send.
    covered
        The messages before this one are covered by its previous checkpoint: it will never ask for them again.
    """

    needs: int
    first: int
    covered: int


@dataclass(frozen=True)
class Starting:
    """A member that is starting: its possible checkpoints, newest first, and its neighbours that are starting too.

    `version` grows whenever the member changes its mind, or is restarted.
    """

    version: int
    candidates: tuple[Candidate, ...]
    neighbours: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        candidates = [candidate.facts() for candidate in self.candidates]
        return {"version": self.version, "candidates": candidates, "neighbours": list(self.neighbours)}


def read_starting(facts: Any, linked: Sequence[str]) -> Starting:
    """What `Starting.facts` wrote, from a neighbour; `linked` are the agreed neighbours of the member that it is of."""
    if not isinstance(facts, dict):
        raise Refused("sent a CHECKPOINTS that is not an object")
    candidates, neighbours = facts.get("candidates"), facts.get("neighbours")
    if not isinstance(candidates, list) or not 1 <= len(candidates) <= 10 or not isinstance(neighbours, list):
        raise Refused("sent a CHECKPOINTS without candidates")
    if not all(name in linked for name in neighbours):
        raise Refused("sent a CHECKPOINTS with neighbours that were not agreed")
    found = tuple(_read_candidate(candidate, linked) for candidate in candidates)
    return Starting(read_count(facts, "version", Kind.CHECKPOINTS), found, tuple(neighbours))


def _read_candidate(facts: Any, linked: Sequence[str]) -> Candidate:
    if not isinstance(facts, dict) or not isinstance(t := facts.get("t"), int) or t < START:
        raise Refused("sent a CHECKPOINTS with a candidate that is not one")
    counts = []
    for key in ("sent", "received"):
        table = facts.get(key)
        if not isinstance(table, dict) or set(table) != set(linked):
            raise Refused("sent a CHECKPOINTS with a candidate that is not one")
        counts.append({name: read_count(table, name, Kind.CHECKPOINTS) for name in table})
    return Candidate(t, *counts)


def possible(candidates: Sequence[Candidate], running: Mapping[str, Position]) -> list[Candidate]:
    """Those candidates from which a member can continue beside these neighbours, which run.

    Preferably so that it will keep all that they could ask for if they lost their newest checkpoint.
    """

    def fits(candidate: Candidate, needed: Mapping[str, int]) -> bool:
        return all(
            candidate.sent[name] <= needed[name] and position.first <= candidate.received[name]
            for name, position in running.items()
        )

    covered = {name: position.covered for name, position in running.items()}
    careful = [candidate for candidate in candidates if fits(candidate, covered)]
    needs = {name: position.needs for name, position in running.items()}
    return careful or [candidate for candidate in candidates if fits(candidate, needs)]


def describe_impossible(candidates: Sequence[Candidate], running: Mapping[str, Position]) -> RunError:
    """Why no candidate is possible, and what to restore."""
    newest = candidates[0]
    have = f"its newest readable checkpoint is of iteration {newest.t}" if newest.t > START else "it has no checkpoint"
    for name, position in running.items():
        if position.first > newest.received[name]:
            lost = f"{name!r} no longer keeps the messages that would follow"
            return RunError(f"this member cannot continue: {have}, and {lost}; restore clients/*.safetensors")
    return RunError(f"this member cannot continue: {have}, from which its neighbours cannot; restore the one before")


def choose(member: str, known: Mapping[str, Starting]) -> Candidate | None:
    """The newest candidate from which a member can continue consistently with all that are starting.

    None if something that could matter is not known yet. A member with one candidate cannot be made to go back any
    further, so what lies behind it does not matter.
    """
    component, waiting = {member}, [member]
    while waiting:
        here = known[waiting.pop()]
        for name in here.neighbours:
            if name not in known:
                return None
            if name not in component:
                component.add(name)
                if len(known[name].candidates) > 1:
                    waiting.append(name)
    chosen = dict.fromkeys(component, 0)

    def candidate(name: str) -> Candidate:
        if chosen[name] == len(known[name].candidates):
            raise RunError(
                f"members that restart have no consistent checkpoints: {name!r} would have to go back further than its "
                f"oldest one, of iteration {known[name].candidates[-1].t}; restore clients/*.safetensors there"
            )
        return known[name].candidates[chosen[name]]

    changed = True
    while changed:
        changed = False
        for name in sorted(component):
            for other in known[name].neighbours:
                # What `name` had sent by then, `other` will not get again.
                if other in component and candidate(name).sent[other] > candidate(other).received[name]:
                    chosen[name] += 1
                    changed = True
                    break
    return candidate(member)
