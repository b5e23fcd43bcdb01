"""The time of a phase with long rows between two members, compared with the same bytes over gRPC and over gloo.

    python benchmarks/peer_throughput.py [--megabytes 100] [--repeats 5]

Two processes on this machine exchange a message in each direction at once: through the edge between two members of a
federation (TLS 1.3 with certificates at both ends, the accounts with their hashes included), through a bare gRPC stream
in both directions with mutual TLS and pieces of 1 MiB, and through `torch.distributed` with gloo, which encrypts
nothing. The three alternate. Printed are the median seconds of an exchange, processor seconds of both processes per GB,
and how much memory a member has taken at most beyond what it began with.
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.peer_federations import free_ports, make_agreement, run_config, write_folders  # noqa: E402

from depositum.engines.distributed import Subject  # noqa: E402
from depositum.federation.agreement import server_name  # noqa: E402
from depositum.federation.member_folder import MemberFolder  # noqa: E402
from depositum.peers import PeerCommunicator  # noqa: E402
from depositum.peers.resumption import START, Candidate  # noqa: E402
from depositum.provenance import describe_versions  # noqa: E402

PIECE = 1 << 20

#: What one way of exchanging measures: seconds of each exchange, processor seconds of all, peak memory in bytes.
Measured = tuple[list[float], float, int]


def measured(exchange: Callable[[int], None], repeats: int) -> Measured:
    """Exchange once to warm up, then several times."""
    exchange(0)
    before, began = peak_memory(), time.process_time()
    seconds = []
    for k in range(1, repeats + 1):
        start = time.perf_counter()
        exchange(k)
        seconds.append(time.perf_counter() - start)
    return seconds, time.process_time() - began, max(0, peak_memory() - before)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def over_peers(rank: int, path: str, size: int, repeats: int) -> Measured:
    """Two members of a federation."""
    folder = MemberFolder.open(path)
    communicator = PeerCommunicator(folder, torch.device("cpu"), lambda _: None)
    communicator.largest = size
    counts = dict.fromkeys(folder.agreement.neighbours(folder.name), 0)
    communicator.start(communicator.connect([Candidate(START, counts, counts)]), counts)
    message = torch.randint(0, 256, (size,), dtype=torch.uint8)

    def exchange(k: int) -> None:
        buffer = torch.empty(size, dtype=torch.uint8)
        transfer = communicator.post({1 - rank: message}, {1 - rank: buffer}, k, Subject(k, "x"))
        transfer.receive(1 - rank)
        communicator.saved(communicator.counts[1])  # as if a checkpoint covered it: nothing is kept

    found = measured(exchange, repeats)
    communicator.ended()
    communicator.finish()
    return found


def over_grpc(rank: int, path: str, size: int, repeats: int) -> Measured:
    """A bare stream in both directions, with mutual TLS."""
    return asyncio.run(_over_grpc(rank, MemberFolder.open(path), size, repeats))


async def _over_grpc(rank: int, folder: MemberFolder, size: int, repeats: int) -> Measured:
    import grpc

    message = memoryview(os.urandom(size))
    address = folder.agreement.members[0].address
    assert address is not None

    async def exchange(write: Any, read: Any) -> None:
        async def send() -> None:
            for begin in range(0, size, PIECE):
                await write(bytes(message[begin : begin + PIECE]))

        async def receive() -> None:
            buffer, got = bytearray(size), 0
            while got < size:
                piece = await read()
                buffer[got : got + len(piece)] = piece
                got += len(piece)

        await asyncio.gather(send(), receive())

    async def repeat(write: Any, read: Any) -> Measured:
        await exchange(write, read)
        before, began = peak_memory(), time.process_time()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            await exchange(write, read)
            seconds.append(time.perf_counter() - start)
        return seconds, time.process_time() - began, max(0, peak_memory() - before)

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
    return found


def over_gloo(rank: int, path: str, size: int, repeats: int) -> Measured:
    """`torch.distributed`, without encryption."""
    import torch.distributed as dist

    port = MemberFolder.open(path).agreement.members[0].address.rpartition(":")[2]  # type: ignore[union-attr]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    message = torch.randint(0, 256, (size,), dtype=torch.uint8)

    def exchange(k: int) -> None:
        buffer = torch.empty(size, dtype=torch.uint8)
        operations = [dist.P2POp(dist.irecv, buffer, 1 - rank), dist.P2POp(dist.isend, message, 1 - rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    found = measured(exchange, repeats)
    dist.barrier()
    dist.destroy_process_group()
    return found


WAYS = {"peers": over_peers, "gRPC, mutual TLS": over_grpc, "gloo, no TLS": over_gloo}


def run_one(way: str, rank: int, path: str, size: int, repeats: int, results: Any) -> None:
    torch.set_num_threads(1)
    results.put((rank, WAYS[way](rank, path, size, repeats)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    size = arguments.megabytes * 10**6
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    memory: dict[str, list[int]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(arguments.rounds):
            for way in WAYS:
                agreement = make_agreement(nx.path_graph(2), run_config(), free_ports(2))
                folders = write_folders(Path(temporary) / f"{number}-{list(WAYS).index(way)}", agreement)
                results = context.Queue()
                processes = [
                    context.Process(target=run_one, args=(way, i, str(f.path), size, arguments.repeats, results))
                    for i, f in enumerate(folders)
                ]
                for process in processes:
                    process.start()
                found = [results.get(timeout=300)[1] for _ in processes]
                for process in processes:
                    process.join(10)
                    process.kill()  # gRPC sometimes does not end
                seconds[way] += [max(pair) for pair in zip(*(one[0] for one in found), strict=True)]
                gigabytes = 2 * size * arguments.repeats / 1e9
                processor[way].append(sum(one[1] for one in found) / gigabytes)
                memory[way].append(max(one[2] for one in found))
                print(f"{way}: {statistics.median(seconds[way]):.3f} s", file=sys.stderr, flush=True)
    bare = statistics.median(seconds["gRPC, mutual TLS"])
    print(f"{arguments.megabytes} MB in each direction at once, {arguments.repeats} × {arguments.rounds} exchanges")
    print("| way | seconds (median) | compared with gRPC | processor s per GB | memory beyond the first exchange |")
    print("|---|---|---|---|---|")
    for way in WAYS:
        median = statistics.median(seconds[way])
        cost, taken = statistics.median(processor[way]), max(memory[way]) / 1e6
        print(f"| {way} | {median:.3f} | {median / bare:.2f} | {cost:.2f} | {taken:.0f} MB |")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(describe_versions())
    return 0


if __name__ == "__main__":
    sys.exit(main())
