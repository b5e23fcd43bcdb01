"""`depositum federation demo`: a complete federation on one machine, by the commands that organisations use."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from depositum.cli.federation.status_table import federation_table
from depositum.errors import ConfigError, DepositumError, RunError
from depositum.federation.member_folder import RUN
from depositum.federation.status import Status

NAME = "demo"
MEMBERS = ("hospital-a", "hospital-b", "laboratory", "university")
#: Of every member's state after training, how far it may be from the simulator's.
TOLERANCE = 1e-10
#: Seconds that a command may take, and that a member may need to stop.
PATIENCE, STOP_PATIENCE = 300.0, 10.0

#: What the members train: float64, so that rounding does not hide a difference.
RUN_CONFIG = """[problem]
dataset = "{client}.npz"
model = "mlp"
regularizer = "l1"
beta = 1e-4

[algorithm]
name = "depositum"
momentum = "polyak"
alpha = 0.2
gamma = 0.5

[run]
steps = 300
period = 5
batch_size = 32
seeds = [0]
dtype = "float64"
device = "cpu"
compile = "never"
evaluate_every = 20
checkpoint_every = 100
"""


def command(
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where everything is written. Default: a new folder, federation-demo."),
    ] = None,
) -> None:
    """Show a complete federation at work: four members as four processes on this machine.

    An organiser and four members enrol by the real commands, each in a folder of its own. Each member has other
    handwritten digits, which stay with it. The members then train over mutual TLS on the loopback address. At the end,
    every member's state is compared with that of a simulator that has all data.
    """
    folder = _new_folder(out)
    console = Console()
    demo = Demo(folder, console)
    console.print(
        Text("Four organisations train one model, without a server. ", "bold").append(
            f"Everything is in the folder {folder}.\n", "not bold"
        ),
        soft_wrap=True,
    )
    demo.write_data()
    demo.enrol()
    demo.train()
    if not demo.compare():
        raise typer.Exit(1)
    console.print("\nnext, look at what one member has, and at what left it:", highlight=False)
    console.print(f"  depositum federation status {demo.member_folder(MEMBERS[0])}", highlight=False, soft_wrap=True)
    console.print(f"  {demo.member_folder(MEMBERS[0]) / RUN / 'sent.csv'}", highlight=False, soft_wrap=True)
    console.print("or make a federation of your own: depositum federation new NAME", highlight=False)


@dataclass(frozen=True)
class Demo:
    """A federation in a folder: `organiser`, a folder of each member, and `simulator`."""

    folder: Path
    console: Console

    def home(self, name: str) -> Path:
        """The folder of an organisation, in which it runs its commands."""
        return self.folder / name

    def member_folder(self, name: str) -> Path:
        """The folder that accepting the invitation makes."""
        return self.home(name) / NAME

    def write_data(self) -> None:
        """Give each member its own digits, of which it lacks some almost entirely."""
        import numpy as np

        from depositum import data

        digits = data.load("digits")
        parts = data.partition({"dirichlet": 0.5}, digits, len(MEMBERS), seed=0)
        for folder in ("organiser", "simulator", *MEMBERS):
            self.home(folder).mkdir()
        self._say("Each member has its own handwritten digits; they stay with it:")
        for client, (name, part) in enumerate(zip(MEMBERS, parts, strict=True)):
            samples = digits.train.take(part)
            images, labels = samples.inputs.flatten(1).numpy(), samples.targets.numpy()
            for file in (self.home(name) / "digits.npz", self.home("simulator") / f"{client}.npz"):
                np.savez(file, x=images, y=labels)
            counts = " ".join(f"{count:3}" for count in np.bincount(labels, minlength=10))
            self._say(f"  {name:12} {len(part):4} images; of the digits 0 to 9: {counts}")
        (self.home("organiser") / "run.toml").write_text(RUN_CONFIG, encoding="utf-8")

    def enrol(self) -> None:
        """Everything from the federation to the members' folders, by the commands."""
        self._say("")
        listed = [option for name in MEMBERS for option in ("--member", name)]
        self._run("organiser", "federation", "new", NAME, "--config", "run.toml", "--classes", "10", *listed)
        ports = _free_ports(len(MEMBERS) - 1)
        places = [["--listen", f"127.0.0.1:{port}"] for port in ports] + [["--dials-only"]]
        self._run_each([("federation", "request", "--name", name, *places[i]) for i, name in enumerate(MEMBERS)])
        requests = [f"../{name}/{name}.request" for name in MEMBERS]
        printed = self._run("organiser", "federation", "approve", *requests)
        found = re.search(r"fingerprint of the authority: ([0-9a-f ]+)", printed)
        if found is None:
            raise RunError("the organiser's command printed no fingerprint")
        fingerprint = found[1].strip()
        invitations = [f"../organiser/{NAME}/invitations/{name}.invitation" for name in MEMBERS]
        self._run_each([("federation", "accept", file, "--fingerprint", fingerprint) for file in invitations])

    def train(self) -> None:
        """Start the four members, and show them until they have finished."""
        self._say("")
        for name in MEMBERS:
            self._show(name, ("peer", NAME, "--data", "digits.npz"))
        began = time.monotonic()
        with _members([self.home(name) for name in MEMBERS]) as processes:
            with Live(console=self.console, refresh_per_second=8) as live:
                while any(process.poll() is None for process in processes):
                    self._check(processes)
                    live.update(self._table())
                    time.sleep(0.2)
                live.update(self._table())
            self._check(processes)
        self._say(f"trained in {time.monotonic() - began:.1f} s")

    def compare(self) -> bool:
        """Train the same with all data in one process, and compare every member's variables with it."""
        from depositum.runs import checkpoint

        home = self.home("simulator")
        config = RUN_CONFIG.replace("[problem]", f'[network]\ntopology = "ring"\n\n[problem]\nclients = {len(MEMBERS)}')
        (home / "run.toml").write_text(config, encoding="utf-8")
        self._say("\nThe same run in one simulator, with all data in one place:")
        self._run("simulator", "run", "run.toml", "--out", RUN)
        simulated = checkpoint.read(home / RUN / checkpoint.CURRENT)
        self._say("The largest difference between a member's variables and the simulator's:")
        agreed = True
        for client, name in enumerate(MEMBERS):
            own = checkpoint.read(self.member_folder(name) / RUN / "clients" / f"{client}.safetensors")
            rows = {key: z for key, z in simulated.tensors.items() if z.dim() == 2 and len(z) == len(MEMBERS)}
            worst = max(float((own.tensors[key][0] - z[client]).abs().max()) for key, z in rows.items())
            same = own.t == simulated.t and worst <= TOLERANCE
            agreed &= same
            verdict = Text(
                "the same" if same else f"differs by more than {TOLERANCE:g}", "green" if same else "bold red"
            )
            self.console.print(Text(f"  {name:12} {worst:.1e}  ({', '.join(rows)})  ").append(verdict))
        return agreed

    def _table(self) -> Table:
        statuses: list[tuple[str, Status | None]] = []
        for name in MEMBERS:
            try:
                statuses.append((name, Status.read(self.member_folder(name) / RUN)))
            except DepositumError:
                statuses.append((name, None))
        return federation_table(statuses, time.time())

    def _check(self, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
        """Stop as soon as a member has failed, and say why."""
        for name, process in zip(MEMBERS, processes, strict=True):
            if process.poll():
                log = (self.home(name) / "peer.log").read_text(encoding="utf-8", errors="replace")
                last = (log.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
                raise RunError(f"{name} ended with exit code {process.returncode}: {last}")

    def _run_each(self, commands: Sequence[tuple[str, ...]]) -> None:
        """Run one command of each member, all at once."""
        for name, arguments in zip(MEMBERS, commands, strict=True):
            self._show(name, arguments)
        started = [_start(self.home(name), arguments) for name, arguments in zip(MEMBERS, commands, strict=True)]
        for process in started:
            _output(process)

    def _run(self, name: str, *arguments: str) -> str:
        self._show(name, arguments)
        return _output(_start(self.home(name), arguments))

    def _show(self, name: str, arguments: Sequence[str]) -> None:
        shown = " ".join(f'"{text}"' if " " in text else text for text in arguments)
        self.console.print(Text(f"{name + ' $':14}", "cyan").append(f"depositum {shown}", "default"), soft_wrap=True)

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _new_folder(out: Path | None) -> Path:
    """A folder that did not exist."""
    if out is None:
        candidates = (Path(f"federation-demo{f'-{i}' if i > 1 else ''}") for i in range(1, 1000))
        out = next(path for path in candidates if not path.exists())
    try:
        out.mkdir(parents=True)
    except OSError as error:
        reason = "it exists" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError("--out", f"{str(out)!r} given, but a new folder cannot be made there ({reason})") from None
    return out


def _environment() -> dict[str, str]:
    """One thread for each process: four members share this machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _start(home: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "depositum", *arguments]
    return subprocess.Popen(
        command, cwd=home, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _output(process: "subprocess.Popen[str]") -> str:
    try:
        printed, _ = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise RunError(f"{' '.join(map(str, process.args[3:]))}: {printed.strip()}")  # type: ignore[index]
    return printed


@contextmanager
def _members(homes: Sequence[Path]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The processes of the members; none of them is left behind, whatever happens inside."""
    processes: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-m", "depositum", "peer", NAME, "--data", "digits.npz"]
    try:
        for home in homes:
            with (home / "peer.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(command, cwd=home, env=_environment(), stdout=log, stderr=subprocess.STDOUT)
                )
        yield processes
    finally:
        _stop(processes)


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask what still runs to stop, and end what does not; a further Ctrl-C must not interrupt this."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.terminate()
        end = time.monotonic() + STOP_PATIENCE
        for process in running:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _free_ports(count: int) -> list[int]:
    """Ports of the loopback address on which nobody listens now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
