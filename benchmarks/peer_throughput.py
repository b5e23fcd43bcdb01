"""The time of a phase with long rows between two members, compared with the same bytes over gRPC and over gloo.

    python benchmarks/peer_throughput.py [--megabytes 100] [--repeats 10] [--rounds 5] [--neighbours 4]

Two processes on this machine exchange a message in each direction at once, over the loopback interface:

- peers: the edge between two members of a federation: TLS 1.3 with certificates at both ends, and the accounts with the
  SHA-256 hash of every message at both ends;
- the same TLS, but neither an edge nor hashes;
- gRPC: a bare stream in both directions with mutual TLS, in pieces of 1 MiB;
- gloo: `torch.distributed`, which encrypts nothing.

They alternate. Printed are the seconds of an exchange (of several in a row; the median of all rounds), processor
seconds of both processes per GB sent, and how much memory a process has taken at most beyond what it had before its
message existed; then what the hashes of these messages take by themselves, and the memory of a member with 1 neighbour
and with more. On a machine that does other work, raise its priority (`nice -n -20`).
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import queue
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.peer_federations import free_ports, make_agreement, run_config, write_folders  # noqa: E402

from depositum.engines.distributed import BufferPool, Subject  # noqa: E402
from depositum.federation.agreement import server_name  # noqa: E402
from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.peers import PeerCommunicator  # noqa: E402
from depositum.peers.connecting import Identity, keep_alive  # noqa: E402
from depositum.peers.conversation import Bell, converse  # noqa: E402
from depositum.peers.frames import Refused  # noqa: E402
from depositum.peers.resumption import START, Candidate  # noqa: E402
from depositum.peers.secure_connection import PIECE, SecureConnection  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

#: Exchanges before the clock starts: memory that was never used before takes as long to get as a row takes to send.
WARM_UP = 3
#: Bytes of a message of gRPC.
GRPC_PIECE = 1 << 20
#: Seconds that one way may take in a round, and attempts: a stream of gRPC sometimes does not end.
LONGEST, ATTEMPTS = 60.0, 3
#: The pause before another attempt to dial, and the most attempts.
RETRY, RETRIES = 0.1, 300


class Measured(NamedTuple):
    """What one process measures: seconds of an exchange, its processor seconds, its additional memory in bytes."""

    seconds: float
    processor: float
    memory: int


def measured(exchange: Callable[[int], None], repeats: int, memory_before: int) -> Measured:
    """Exchange a few times to warm up, then several times."""
    for k in range(WARM_UP):
        exchange(k)
    processor, began = time.process_time(), time.perf_counter()
    for k in range(WARM_UP, WARM_UP + repeats):
        exchange(k)
    seconds = (time.perf_counter() - began) / repeats
    return Measured(seconds, time.process_time() - processor, peak_memory() - memory_before)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def random_bytes(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def over_peers(rank: int, path: str, size: int, repeats: int) -> Measured:
    """A member of a federation, which sends the same row to each of its neighbours."""
    before = peak_memory()
    folder = MemberFolder.open(path)
    communicator = PeerCommunicator(folder, torch.device("cpu"), lambda _: None)
    communicator.largest = size
    counts = dict.fromkeys(folder.agreement.neighbours(folder.name), 0)
    communicator.start(communicator.connect([Candidate(START, counts, counts)]), counts)
    message, pool = random_bytes(size), BufferPool(communicator.wire)

    def exchange(k: int) -> None:
        neighbours = list(communicator.edges)
        buffers = {peer: pool.empty(size, torch.uint8) for peer in neighbours}
        transfer = communicator.post(dict.fromkeys(neighbours, message), buffers, k, Subject(k, "x"))
        for peer in neighbours:
            transfer.receive(peer)
        communicator.saved(communicator.counts[1])  # as if a checkpoint covered it: nothing is kept

    found = measured(exchange, repeats, before)
    communicator.ended()
    communicator.finish()
    communicator.close()
    return found


def over_tls(rank: int, path: str, size: int, repeats: int) -> Measured:
    """The connection of two members by itself."""
    before = peak_memory()
    folder, bell = MemberFolder.open(path), Bell()
    connection = _connection(folder, rank)
    message, buffer = random_bytes(size).numpy().data, torch.empty(size, dtype=torch.uint8).numpy().data

    def exchange(_: int) -> None:
        finished = set()

        def pieces(of: memoryview, what: str) -> Generator[memoryview | None, None, None]:
            for begin in range(0, size, PIECE):
                yield of[begin : begin + PIECE]
            finished.add(what)
            bell.ring()
            while True:
                yield None

        converse(connection, bell, pieces(buffer, "read"), pieces(message, "written"), lambda: len(finished) == 2)

    found = measured(exchange, repeats, before)
    connection.part(b"", 5.0)
    connection.close()
    return found


def _connection(folder: MemberFolder, rank: int) -> SecureConnection:
    identity, first = Identity(folder), folder.agreement.members[0]
    assert first.address is not None
    host, _, port = first.address.rpartition(":")
    if rank == 0:
        with socket.create_server((host, int(port))) as server:
            sock, _ = server.accept()
        keep_alive(sock)
        return identity.greet(sock)[1]
    for _ in range(RETRIES):
        try:
            return identity.dial(first.name, (host, int(port)))
        except Refused:  # it does not listen yet
            time.sleep(RETRY)
    raise TimeoutError(f"{first.name} does not listen")


def over_grpc(rank: int, path: str, size: int, repeats: int) -> Measured:
    """A bare stream in both directions, with mutual TLS."""
    return asyncio.run(_over_grpc(rank, MemberFolder.open(path), size, repeats))


async def _over_grpc(rank: int, folder: MemberFolder, size: int, repeats: int) -> Measured:
    import grpc

    memory_before = peak_memory()
    message, buffer = memoryview(os.urandom(size)), bytearray(size)
    address = folder.agreement.members[0].address
    assert address is not None

    async def exchange(write: Any, read: Any) -> None:
        async def send() -> None:
            for begin in range(0, size, GRPC_PIECE):
                await write(bytes(message[begin : begin + GRPC_PIECE]))

        async def receive() -> None:
            got = 0
            while got < size:
                piece = await read()
                buffer[got : got + len(piece)] = piece
                got += len(piece)

        await asyncio.gather(send(), receive())

    async def repeat(write: Any, read: Any) -> Measured:
        for _ in range(WARM_UP):
            await exchange(write, read)
        processor, began = time.process_time(), time.perf_counter()
        for _ in range(repeats):
            await exchange(write, read)
        seconds = (time.perf_counter() - began) / repeats
        return Measured(seconds, time.process_time() - processor, peak_memory() - memory_before)

    if rank == 0:
        ended: asyncio.Future[Measured] = asyncio.get_running_loop().create_future()

        async def talk(_: Any, context: Any) -> None:
            ended.set_result(await repeat(context.write, context.read))

        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(talk)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("edge", {"Talk": handler}),))
        pair = [(folder.key_pem, folder.certificate_pem)]
        credentials = grpc.ssl_server_credentials(pair, folder.authority_pem, require_client_auth=True)
        server.add_secure_port(address, credentials)
        await server.start()
        found = await ended
        await server.stop(5)
        return found
    credentials = grpc.ssl_channel_credentials(folder.authority_pem, folder.key_pem, folder.certificate_pem)
    name = server_name(folder.agreement.name, folder.agreement.names[0])
    options = [("grpc.ssl_target_name_override", name)]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        await channel.channel_ready()
        call = channel.stream_stream("/edge/Talk")()
        found = await repeat(call.write, call.read)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:  # closed earlier, it would be cut while the other end still reads
            pass
    return found


def over_gloo(rank: int, path: str, size: int, repeats: int) -> Measured:
    """`torch.distributed`, without encryption."""
    import torch.distributed as dist

    before = peak_memory()
    port = MemberFolder.open(path).agreement.members[0].address.rpartition(":")[2]  # type: ignore[union-attr]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    message, buffer = random_bytes(size), torch.empty(size, dtype=torch.uint8)

    def exchange(_: int) -> None:
        operations = [dist.P2POp(dist.irecv, buffer, 1 - rank), dist.P2POp(dist.isend, message, 1 - rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    found = measured(exchange, repeats, before)
    dist.barrier()
    dist.destroy_process_group()
    return found


PEERS, GRPC = "peers", "gRPC, mutual TLS"
WAYS = {PEERS: over_peers, "the same TLS alone": over_tls, GRPC: over_grpc, "gloo, no TLS": over_gloo}


def run_one(way: str, rank: int, path: str, size: int, repeats: int, results: Any) -> None:
    torch.set_num_threads(1)
    results.put((rank, WAYS[way](rank, path, size, repeats)))


def run_all(way: str, graph: nx.Graph, folder: Path, size: int, repeats: int) -> list[Measured]:
    """What each process of a federation measures, by rank."""
    context = multiprocessing.get_context("spawn")
    for attempt in range(ATTEMPTS):
        agreement = make_agreement(graph, run_config(), free_ports(len(graph)))
        folders, results = write_folders(folder / str(attempt), agreement), context.Queue()
        processes = [
            context.Process(target=run_one, args=(way, i, str(f.path), size, repeats, results))
            for i, f in enumerate(folders)
        ]
        for process in processes:
            process.start()
        try:
            found = dict(results.get(timeout=LONGEST) for _ in processes)
            return [found[i] for i in range(len(folders))]
        except queue.Empty:
            print(f"{way}: has not ended", file=sys.stderr, flush=True)
        finally:
            for process in processes:
                process.join(5)
                process.kill()
    raise TimeoutError(f"{way}: has not ended in {ATTEMPTS} attempts")


def hashing(size: int) -> float:
    """Processor seconds per GB sent for the hash of a message at its sender and at its receiver."""
    content, began = bytes(size), time.process_time()
    for begin in range(0, size, PIECE):
        hashlib.sha256(content[begin : begin + PIECE])
    return 2 * (time.process_time() - began) / (size / 1e9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--neighbours", type=int, default=4, help="most neighbours of a member whose memory is measured"
    )
    arguments = parser.parse_args()
    size = arguments.megabytes * 10**6
    measurements: dict[str, list[list[Measured]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.rounds):
            for k, way in enumerate(WAYS):
                found = run_all(way, nx.path_graph(2), Path(temporary) / f"{number}-{k}", size, arguments.repeats)
                measurements[way].append(found)
                print(f"{way}: {max(one.seconds for one in found):.3f} s", file=sys.stderr, flush=True)
        counts = sorted({1, 2, arguments.neighbours})
        hub = {
            count: run_all(PEERS, nx.star_graph(count), Path(temporary) / f"star-{count}", size // 5, 2)[0].memory
            for count in counts
        }
    seconds = {
        way: statistics.median(max(one.seconds for one in found) for found in rounds)
        for way, rounds in measurements.items()
    }
    sent = 2 * size * arguments.repeats / 1e9
    print(f"{arguments.megabytes} MB in each direction at once, {arguments.repeats} × {arguments.rounds} exchanges")
    print("| way | seconds | compared with gRPC | processor s per GB | memory |")
    print("|---|---|---|---|---|")
    for way, rounds in measurements.items():
        cost = statistics.median(sum(one.processor for one in found) / sent for found in rounds)
        taken = max(one.memory for found in rounds for one in found) / 1e6
        print(f"| {way} | {seconds[way]:.3f} | {seconds[way] / seconds[GRPC]:.2f} | {cost:.2f} | {taken:.0f} MB |")
    print(f"the hashes at both ends by themselves: {hashing(size):.2f} processor s per GB")
    print(f"memory of a member with rows of {size / 5e6:g} MB and", end=" ")
    each = [f"{count} neighbour{'s' * (count > 1)}: {taken / 1e6:.0f} MB" for count, taken in hub.items()]
    print(", ".join(each))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(describe_versions())
    return 0


if __name__ == "__main__":
    sys.exit(main())
