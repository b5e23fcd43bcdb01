"""A bridge in user space that delays and loses frames, for kernels without `tc netem`.

    python lossy_bridge.py SECONDS SHARE COUNTS INTERFACE…

forwards every frame to all other interfaces SECONDS later, except for a random SHARE that is lost. On SIGTERM it writes
the numbers of forwarded and lost frames to the file COUNTS.
"""

import heapq
import random
import select
import signal
import socket
import sys
import time
from pathlib import Path

ETH_P_ALL = 0x0003


def main(delay: float, loss: float, counts: Path, names: list[str]) -> None:
    ports = []
    for name in names:
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        port.bind((name, 0))
        ports.append(port)
    dice, forwarded, lost, number = random.Random(0), 0, 0, 0
    waiting: list[tuple[float, int, int, bytes]] = []  # due time, sequence number, index of the source port, frame
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    counts.write_text("0 0", encoding="utf-8")
    while not ended:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
        ready, _, _ = select.select(ports, [], [], min(pause, 0.2))
        for port in ready:
            frame, origin = port.recvfrom(1 << 16)
            if origin[2] == socket.PACKET_OUTGOING:  # sent by this bridge itself
                continue
            if dice.random() < loss:
                lost += 1
                continue
            forwarded, number = forwarded + 1, number + 1
            heapq.heappush(waiting, (time.monotonic() + delay, number, ports.index(port), frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(waiting)
            for index, port in enumerate(ports):
                if index != source:
                    port.send(frame)
    counts.write_text(f"{forwarded} {lost}", encoding="utf-8")


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
