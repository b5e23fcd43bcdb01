"""Throw random bytes, and mutated messages of a neighbour, at a member of a federation that trains meanwhile.

    python benchmarks/peer_strangers.py [--strangers 10000] [--neighbours 1000] [--seed 0]

Two members of three train as processes and wait for the third. `--strangers` random byte strings are sent to the
listening port of one of them, some beginning as TLS does; then `--neighbours` times someone with the third member's
certificate says what that member would say, with bytes changed, removed or inserted. In the end the real third member
is started: the federation must end in the bytes of an undisturbed one. Printed are the growth of the member's memory,
and the lines in its log. Exits with 1 if anything else happens.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import networkx as nx
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.peer_federations import dirichlet_problem, make_agreement, run_config, write_folders  # noqa: E402
from tests.support.peer_processes import Ending, Processes, wait_for  # noqa: E402
from tests.support.peer_strangers import Neighbour, place_of, sent_raw  # noqa: E402

from depositum.engines.distributed import Subject  # noqa: E402
from depositum.peers.frames import Envelope, Kind, frame, message_frame  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

N = 3


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, removed, inserted or repeated."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[where] = rng.randrange(256)
        elif kind == 1:
            del changed[where : where + rng.randint(1, 20)]
        elif kind == 2:
            changed[where:where] = rng.randbytes(rng.randint(1, 20))
        else:
            changed[where:where] = changed[where : where + rng.randint(1, 200)]
        changed = changed or bytearray(1)
    return bytes(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strangers", type=int, default=10_000)
    parser.add_argument("--neighbours", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, processes = random.Random(arguments.seed), Processes()
    config = run_config(steps=30)
    config["algorithm"]["start"] = "local"
    with tempfile.TemporaryDirectory() as temporary:

        def folders_of(name: str):  # type: ignore[no-untyped-def]
            agreement = make_agreement(nx.path_graph(N), config, evaluate="none")
            return write_folders(Path(temporary) / name, agreement)

        undisturbed, folders = folders_of("undisturbed"), folders_of("attacked")
        assert wait_for([processes.start(folder) for folder in undisturbed], 120) == [0] * N
        running = [processes.start(folder) for folder in folders[:2]]
        place = place_of(folders[1])
        neighbour = _connect(folders, place)
        hello = {**neighbour.hello, "member": "m2", "starting": False}
        neighbour.close()
        member = psutil.Process(running[1].pid)
        sent_raw(place, b"warm up")
        before, began = member.memory_info().rss, time.monotonic()
        for k in range(arguments.strangers):
            start = rng.choice([b"", b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n"])
            sent_raw(place, start + rng.randbytes(rng.choice([0, 1, 5, 50, 500, 5000])))
            if k % 1000 == 999:
                print(f"{k + 1} byte strings, {time.monotonic() - began:.0f} s", flush=True)
        after_strangers = member.memory_info().rss
        # Not finite wherever it is cut: shifted by a byte, another NaN is a number, which a member may well send.
        row = b"\xff" * (8 * dirichlet_problem(N).layout.size)
        parts = [
            frame(Kind.HELLO, hello),
            frame(Kind.POSITION, {"needs": 0, "first": 0, "covered": 0, "done": False}),
            frame(Kind.COVERED, {"before": 0, "done": False}),
            frame(Kind.PING),
            message_frame(Envelope(0, len(row), Subject(0, "x"))) + row,
        ]
        for _ in range(arguments.neighbours):
            with (
                contextlib.suppress(OSError, json.JSONDecodeError),
                contextlib.closing(_connect(folders, place)) as one,
            ):
                chosen = rng.randrange(len(parts))
                one.socket.sendall(b"".join(parts[:chosen]) + mutated(parts[chosen], rng))
                one.socket.settimeout(0.05)
                one.socket.recv(1 << 16)
        after_neighbours = member.memory_info().rss
        print(f"{arguments.neighbours} mutated conversations, {time.monotonic() - began:.0f} s in all", flush=True)
        codes = wait_for([*running, processes.start(folders[2])], 120)
        differing = [
            f"{folder.name}: {part}"
            for folder, other in zip(folders, undisturbed, strict=True)
            for part in ("state", "model", "history")
            if getattr(Ending.of(folder), part) != getattr(Ending.of(other), part)
        ]
        same = codes == [0] * N and not differing
        log = (folders[1].runs / "logs" / "m1.log").read_text().splitlines()
        refused = [line for line in log if "refused" in line]
        print(f"memory of the member: {(after_strangers - before) / 1e6:+.1f} MB after the byte strings, ", end="")
        print(f"{(after_neighbours - before) / 1e6:+.1f} MB after the mutated conversations")
        print(f"{len(log)} lines in its log, {len(refused)} about refusals, among them:")
        for line in refused[-3:]:
            print("   ", line)
        print(f"exit codes {codes}; {'the undisturbed bytes' if same else f'other bytes: {differing}'}")
        print(describe_versions())
        return 0 if same else 1


def _connect(folders, place) -> Neighbour:  # type: ignore[no-untyped-def]
    """As the third member, as soon as the second one listens."""
    while True:
        try:
            return Neighbour(folders[2], place)
        except (ConnectionError, OSError):
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
