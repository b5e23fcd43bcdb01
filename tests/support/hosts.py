"""Several hosts on one machine: network namespaces on one bridge, whose links are slow and lose packets."""

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType

SIOCETHTOOL, SET_TX_CHECKSUMS = 0x8946, 0x17


class NamespacesUnavailable(Exception):
    """Network namespaces cannot be created here (by this user), and why."""


def _run(*command: str) -> str:
    """Run a command and return its output; its failure is the reason why there are no namespaces."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError as error:
        raise NamespacesUnavailable(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise NamespacesUnavailable(f"{' '.join(command[:4])} …: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """`count` hosts 10.77.0.1, 10.77.0.2, … on one bridge; a context manager that removes them.

    Packets from each are delayed and a share of them is lost: by the kernel's netem or, where it is missing, by
    `lossy_bridge.py`.
    """

    def __init__(self, count: int, folder: Path, delay: float = 0.004, loss: float = 0.02) -> None:
        self.count, self.folder, self.delay, self.loss = count, folder, delay, loss
        self.hub, self.names = f"dp{os.getpid()}hub", [f"dp{os.getpid()}h{i}" for i in range(count)]
        self.processes: list[subprocess.Popen[str]] = []
        self._bridge: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Hosts":
        try:
            self._create()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _create(self) -> None:
        for name in (self.hub, *self.names):
            _run("ip", "netns", "add", name)
        netem = True
        for i, name in enumerate(self.names):
            _run("ip", "link", "add", "e0", "netns", name, "type", "veth", "peer", "name", f"p{i}", "netns", self.hub)
            _run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "e0")
            for device in ("lo", "e0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("ip", "-n", self.hub, "link", "set", f"p{i}", "up")
            try:
                rule = ("delay", f"{self.delay * 1e3}ms", "loss", f"{self.loss:.2%}")
                _run("tc", "-n", name, "qdisc", "add", "dev", "e0", "root", "netem", *rule)
            except NamespacesUnavailable:
                netem = False
        if netem:
            _run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
            for i in range(self.count):
                _run("ip", "-n", self.hub, "link", "set", f"p{i}", "master", "bridge")
            _run("ip", "-n", self.hub, "link", "set", "bridge", "up")
            return
        for name in self.names:
            _run("ip", "netns", "exec", name, sys.executable, __file__)  # complete checksums, as on a real wire
        script = Path(__file__).with_name("lossy_bridge.py")
        arguments = (str(script), str(self.delay), str(self.loss), str(self.folder / "counts"))
        in_hub = ("ip", "netns", "exec", self.hub, sys.executable)
        self._bridge = subprocess.Popen([*in_hub, *arguments, *(f"p{i}" for i in range(self.count))], text=True)

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def start(self, host: int, *command: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a command on a host, with the host name `host-N`."""
        script = f'hostname host-{host} && exec "$0" "$@"'
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", script, *command],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "e0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def packets_lost(self) -> int:
        """The number of packets lost so far; `lossy_bridge.py` forwards nothing after this call."""
        if self._bridge is None:
            outputs = [_run("tc", "-n", name, "-s", "qdisc", "show", "dev", "e0") for name in self.names]
            return sum(int(found[1]) for text in outputs if (found := re.search(r"dropped (\d+)", text)))
        self._bridge.send_signal(signal.SIGTERM)
        self._bridge.wait(10)
        return int((self.folder / "counts").read_text(encoding="utf-8").split()[1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in [*self.processes, *([self._bridge] if self._bridge else [])]:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        for name in (self.hub, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def compute_checksums(device: str = "e0") -> None:
    """Have a device compute the checksums of its packets, which nothing else does for a veth."""
    value = bytearray(struct.pack("II", SET_TX_CHECKSUMS, 0))
    # The request contains the address of the value.
    import ctypes

    buffer = (ctypes.c_char * len(value)).from_buffer(value)
    request = struct.pack("16sP", device.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCETHTOOL, request)


if __name__ == "__main__":
    compute_checksums()
