"""What takes minutes on one connection between two members: nothing at all, and one long row over a slow link.

    python benchmarks/peer_patience.py idle [--minutes 10] [--cut-after 240]
    python benchmarks/peer_patience.py slow [--megabytes 130] [--rate 1e6]

The two members' connection passes through a proxy. `idle`: a row goes each way, nothing for some minutes, and another
row; the proxy cuts what has been idle for four minutes, as the load balancers of clouds do. `slow`: a long row goes
each way at a bounded rate, while the program asks for it from the start. In both cases there must have been one
connection, every row must arrive as it was, and no byte of one may be sent twice. Exits with 1 otherwise. Neither uses
the processor, so both can run beside other work.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.faulty_proxy import FaultyProxy  # noqa: E402
from tests.support.peer_federations import free_ports, make_agreement, run_config, write_folders  # noqa: E402

from depositum.engines.distributed import Subject  # noqa: E402
from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.peers import PeerCommunicator  # noqa: E402
from depositum.peers.resumption import START, Candidate  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

#: Bytes beyond the rows' own that a connection may take: TLS, pings, introductions.
OVERHEAD = 1.02, 1 << 18


class Pair:
    """Two members, connected through a proxy, each in a thread of this process."""

    def __init__(self, folder: Path, size: int, cut_after: float | None = None) -> None:
        public, private = free_ports(2), free_ports(1)[0]
        self.proxy = FaultyProxy(public[0], private)
        self.proxy.idle_limit = cut_after
        agreement = make_agreement(nx.path_graph(2), run_config(), public)
        self.size = size
        self.lines: list[str] = []
        listen = [f"127.0.0.1:{private}", None]
        self.members = [self._member(f, at) for f, at in zip(write_folders(folder, agreement), listen, strict=True)]
        self._both(self._connect)

    def _member(self, folder: MemberFolder, listen: str | None) -> PeerCommunicator:
        def log(line: str) -> None:
            self.lines.append(f"{folder.name}: {line}")

        member = PeerCommunicator(folder, torch.device("cpu"), log, listen=listen)
        member.largest = self.size
        return member

    def _both(self, work: Callable[[PeerCommunicator], None]) -> None:
        threads = [threading.Thread(target=work, args=(member,)) for member in self.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _connect(self, member: PeerCommunicator) -> None:
        counts = dict.fromkeys(member.agreement.neighbours(member.name), 0)
        member.start(member.connect([Candidate(START, counts, counts)]), counts)

    def exchange(self, phase: int) -> list[bool]:
        """A row in each direction at once; whether each arrived as it was."""
        rows = [torch.randint(0, 256, (self.size,), dtype=torch.uint8) for _ in self.members]
        equal = [False, False]

        def one(member: PeerCommunicator) -> None:
            other = 1 - member.rank
            buffer = torch.empty(self.size, dtype=torch.uint8)
            transfer = member.post({other: rows[member.rank]}, {other: buffer}, phase, Subject(phase, "x"))
            equal[member.rank] = torch.equal(transfer.receive(other), rows[other])

        self._both(one)
        return equal

    def end(self) -> None:
        def one(member: PeerCommunicator) -> None:
            member.ended()
            member.finish()
            member.close()

        self._both(one)
        self.proxy.close()


def judge(pair: Pair, arrived: list[bool], rows: int) -> int:
    """Print what happened, and whether it is what must hold."""
    most = OVERHEAD[0] * rows * pair.size + OVERHEAD[1]
    good = all(arrived) and pair.proxy.connections == 1 and pair.proxy.passed <= most
    print(f"connections: {pair.proxy.connections}; rows that arrived as they were: {sum(arrived)} of {len(arrived)}")
    print(f"bytes through the proxy: {pair.proxy.passed}, of which rows {rows * pair.size}")
    for line in pair.lines:
        print(f"  {line}")
    print("holds" if good else "does NOT hold")
    print(describe_versions())
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    idle = modes.add_parser("idle")
    idle.add_argument("--minutes", type=float, default=10.0)
    idle.add_argument("--cut-after", type=float, default=240.0, help="seconds that the proxy lets a connection idle")
    slow = modes.add_parser("slow")
    slow.add_argument("--megabytes", type=float, default=130.0)
    slow.add_argument("--rate", type=float, default=1e6, help="bytes per second in each direction")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.mode == "idle":
            pair = Pair(Path(temporary), 1 << 16, arguments.cut_after)
            arrived = pair.exchange(0)
            time.sleep(60 * arguments.minutes)
            began = time.monotonic()
            arrived += pair.exchange(1)
            print(f"{arguments.minutes:g} idle minutes; the row after them took {time.monotonic() - began:.2f} s")
        else:
            pair = Pair(Path(temporary), int(arguments.megabytes * 1e6))
            pair.proxy.rate = arguments.rate
            began = time.monotonic()
            arrived = pair.exchange(0)
            seconds = time.monotonic() - began
            print(f"{arguments.megabytes:g} MB each way at {arguments.rate / 1e6:g} MB/s: {seconds:.0f} s")
            pair.proxy.rate = None
        rows = len(arrived)
        pair.end()
        return judge(pair, arrived, rows)


if __name__ == "__main__":
    sys.exit(main())
