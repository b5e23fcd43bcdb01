"""Run a group of hosts through every fault that is specified, and check what each host does.

    python benchmarks/process_faults.py [--only kill-0 lost …] [--folder DIR]

Three "hosts" are three folders on this machine, each with its own configuration file, code, run folder and shell; they
are started by environment variables alone, in the restart loop of docs/processes.md, unless a scenario says otherwise.
"The same bytes" are those of an undisturbed run: every client's last checkpoint, the averaged model and the history
without wall time, on every host. Prints a table, and exits with 1 if any outcome is not as specified.
"""

import argparse
import contextlib
import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

HOSTS, TIMEOUT = 3, 10.0

CONFIG = f"""
[problem]
dataset = {{ synthetic = {{ samples = 300, features = 20, classes = 5 }} }}
model = "mine:build"
clients = {2 * HOSTS}
partition = {{ dirichlet = 0.5 }}
regularizer = "l1"
beta = 1e-3

[algorithm]
alpha = 0.05

[run]
steps = 200
period = 2
batch_size = 8
seeds = [0, 1]
evaluate_every = 20
checkpoint_every = 25
device = "cpu"
backend = "loop"

[processes]
timeout = {TIMEOUT}
"""

#: The user's code; a pause in every pass leaves time for faults.
MODEL = """
import time
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.002)
        return super().forward(x)

def build(shape, classes):
    return Slow(nn.Linear(shape[0], 32), nn.{activation}(), nn.Linear(32, classes))
"""

#: Restarts a run until it is finished (0), refused (2) or interrupted (130).
RESTART_LOOP = """
while true; do
    {command}
    code=$?
    case $code in 0|2|130) exit $code ;; esac
    sleep 1
done
"""


class Host:
    """One host: a folder with the configuration and the code, a shell, and what it printed."""

    def __init__(self, folder: Path, rank: int, port: int) -> None:
        self.folder, self.rank, self.out, self.output = folder, rank, folder / "out", folder / "output.txt"
        folder.mkdir(parents=True)
        (folder / "run.toml").write_text(CONFIG, encoding="utf-8")
        self.write_code("ReLU")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("LOCAL_", "TORCHELASTIC_"))},
            **{"RANK": str(rank), "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            **{"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        }
        # Processes of one machine count as one host, unless the environment says that each is the only one of its own.
        self.environment |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        self.shell: subprocess.Popen[bytes] | None = None

    def write_code(self, activation: str) -> None:
        (self.folder / "mine.py").write_text(MODEL.format(activation=activation), encoding="utf-8")

    def start(self, loop: bool = True, limit_kb: int | None = None, launcher: Sequence[str] = ()) -> None:
        """Start the run: in the restart loop, with a limit on the size of files, or by torchrun."""
        arguments = ["-m", "depositum", "run", str(self.folder / "run.toml"), "--out", str(self.out)]
        command = " ".join([sys.executable, *launcher, *arguments])
        script = RESTART_LOOP.format(command=command) if loop else command
        if limit_kb is not None:
            script = f"ulimit -f {limit_kb}\n{script}"
        environment = self.environment
        if launcher:  # torchrun sets its own
            environment = {k: v for k, v in environment.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        with self.output.open("ab") as output:
            self.shell = subprocess.Popen(
                ["bash", "-c", script], env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def process(self) -> int | None:
        """The process id of the run, as long as it exists: a descendant of the shell, or the shell's own process."""
        assert self.shell is not None
        found, front = None, [self.shell.pid]
        while front:
            pid = front.pop()
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                front += [
                    int(c) for t in Path(f"/proc/{pid}/task").iterdir() for c in (t / "children").read_text().split()
                ]
            except OSError:
                continue
            if b"depositum" in words and b"bash" not in words[0] and b"torch.distributed.run" not in words:
                found = pid
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the run, not to the loop that restarts it."""
        pid = self.process()
        assert pid is not None, f"host {self.rank} does not run:\n{self.text()}"
        os.kill(pid, number)

    def kill(self) -> None:
        """The host dies: the loop, the launcher and the run."""
        if self.shell is not None and self.shell.poll() is None:
            workers = self.process()  # torchrun gives its workers a session of their own
            os.killpg(self.shell.pid, signal.SIGKILL)
            if workers is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(workers, signal.SIGKILL)
            self.shell.wait()

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""

    def errors(self) -> list[str]:
        return [line for line in self.text().splitlines() if line.startswith("error: ")]

    def log(self) -> str:
        path = self.out / "logs" / f"rank-{self.rank}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.out)): p.read_bytes() for p in sorted(self.out.rglob("*")) if p.is_file()}

    def outcome(self) -> dict[str, object]:
        """What must not depend on faults."""
        wanted = {n: c for n, c in self.files().items() if n.endswith(".safetensors") and "previous" not in n}
        with (self.out / "history.csv").open(newline="") as file:
            history = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
        return {**wanted, "history": history, "curves": (self.out / "curves.png").exists()}


class Cluster(list[Host]):
    """The hosts of one scenario, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        super().__init__(Host(folder / f"host-{rank}", rank, self.port) for rank in range(HOSTS))

    def start(self, **options: object) -> "Cluster":
        for host in self:
            host.start(**options)  # type: ignore[arg-type]
        return self

    def wait(self, limit: float = 180.0) -> list[int]:
        """The exit codes of all hosts."""
        end, codes = time.monotonic() + limit, []
        for host in self:
            assert host.shell is not None
            try:
                codes.append(host.shell.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(-1)
        return codes

    def kill(self) -> None:
        for host in self:
            host.kill()


class NotAsSpecified(Exception):
    """What a host did differs from what is specified."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise NotAsSpecified(what)


def until(condition: Callable[[], bool], what: str, limit: float = 90.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        check(time.monotonic() < end, f"{what}: not within {limit:g} s")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def trained(cluster: Cluster) -> None:
    """Wait until all hosts have saved two checkpoints."""
    until(lambda: all("saved iteration 50" in host.log() for host in cluster), "training")


class Campaign:
    """The scenarios; each returns what was seen, in a few words, or raises `NotAsSpecified`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: list[dict[str, object]] = []

    def check_same(self, cluster: Cluster, codes: Sequence[int]) -> None:
        check(list(codes) == [0] * HOSTS, f"exit codes {list(codes)}")
        for host, expected in zip(cluster, self.expected, strict=True):
            found = host.outcome()
            differing = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
            check(not differing, f"host {host.rank} differs in {differing}")

    def named_by_all(self, cluster: Cluster, victim: int, what: str) -> None:
        """All other hosts named the victim, and nobody else."""
        for host in cluster:
            if host.rank != victim:
                check(bool(host.errors()), f"host {host.rank} reported nothing")
                text = f"error: rank {victim} (clients {2 * victim}–{2 * victim + 1}, host "
                check(
                    all(e.startswith(text) and what in e for e in host.errors()), f"host {host.rank}: {host.errors()}"
                )

    # Scenarios

    def undisturbed(self, cluster: Cluster) -> str:
        """Exit code 0; history, model and curves on every host, the same on all"""
        codes = cluster.start(loop=False).wait()
        check(codes == [0] * HOSTS, f"exit codes {codes}: {[host.text()[-500:] for host in cluster]}")
        self.expected = [host.outcome() for host in cluster]
        for name in ("model.safetensors", "history", "curves"):
            check(all(o[name] == self.expected[0][name] for o in self.expected), f"{name} differs between hosts")
        return "as specified"

    def kill(self, cluster: Cluster, victim: int) -> str:
        """SIGKILL of one process: all others name it and exit with 75; all restart; the same bytes"""
        trained(cluster.start())
        began = time.monotonic()
        cluster[victim].signal(signal.SIGKILL)
        codes = cluster.wait()
        self.check_same(cluster, codes)
        self.named_by_all(cluster, victim, "is gone")
        check("resuming from iteration" in cluster[0].text(), "did not resume")
        return f"same bytes, {time.monotonic() - began:.0f} s"

    def host(self, cluster: Cluster, victim: int) -> str:
        """A host dies with its shell, and is started again alone after 5 s; the same bytes"""
        trained(cluster.start())
        began = time.monotonic()
        cluster[victim].kill()
        time.sleep(5)
        cluster[victim].start()
        self.check_same(cluster, cluster.wait())
        return f"same bytes, {time.monotonic() - began:.0f} s"

    def stop(self, cluster: Cluster, then: signal.Signals) -> str:
        """SIGSTOP: all others name it within the time-out and 2 s; then killed or continued; the same bytes"""
        trained(cluster.start())
        began = time.monotonic()
        pid = cluster[1].process()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: all(cluster[rank].errors() for rank in (0, 2)), "naming the stopped process", TIMEOUT + 5)
        noticed = time.monotonic() - began
        self.named_by_all(cluster, 1, "did not answer within")
        os.kill(pid, then)
        self.check_same(cluster, cluster.wait())
        return f"named after {noticed:.1f} s, same bytes"

    def late(self, cluster: Cluster) -> str:
        """A host starts 7 s late: the others report whom they wait for; the same bytes"""
        for rank in (0, 1):
            cluster[rank].start()
        until(lambda: all("waits for rank 2 (" in cluster[r].text() for r in (0, 1)), "reporting who is awaited", 60)
        cluster[2].start()
        self.check_same(cluster, cluster.wait())
        return "awaited by name, same bytes"

    def never(self, cluster: Cluster) -> str:
        """A host never starts: the others name it after the time-out, and exit with 75"""
        for rank in (0, 1):
            cluster[rank].start(loop=False)
        cluster[2].shell = subprocess.Popen(["true"])
        codes = cluster.wait()
        check(codes == [75, 75, 0], f"exit codes {codes}")
        check(all("error: rank 2 did not come" in cluster[r].text() for r in (0, 1)), "rank 2 is not named")
        return "75, rank 2 named"

    def lost(self, cluster: Cluster) -> str:
        """A host has lost its checkpoints: all refuse with 2 in one line, nothing changes; restored, the same bytes"""
        trained(cluster.start())
        cluster[2].signal(signal.SIGTERM)
        codes = cluster.wait()
        check(codes == [130] * HOSTS, f"exit codes {codes} after SIGTERM")
        clients = cluster[1].out / "clients"
        shutil.move(clients, self.folder / "backup")
        before = [host.files() for host in cluster]
        codes = cluster.start().wait()
        check(codes == [2] * HOSTS, f"exit codes {codes} without checkpoints")
        for host in cluster:
            check("rank 1 (clients 2–3, host " in host.errors()[-1], f"host {host.rank}: {host.errors()}")
            check("has no checkpoint of iteration" in host.errors()[-1], f"host {host.rank}: {host.errors()}")
        check([host.files() for host in cluster] == before, "files were changed")
        shutil.move(self.folder / "backup", clients)
        self.check_same(cluster, cluster.start().wait())
        return "refused, then same bytes"

    def full_disk(self, cluster: Cluster) -> str:
        """A host cannot write its checkpoint: it names the file, the others name it; the same bytes later"""
        for host in cluster:
            host.start(loop=False, limit_kb=8 if host.rank == 1 else None)
        codes = cluster.wait()
        check(codes == [75, 2, 75], f"exit codes {codes}")
        check("cannot be written" in cluster[1].errors()[-1], f"host 1: {cluster[1].errors()}")
        for rank in (0, 2):
            check("stopped: " in cluster[rank].errors()[-1], f"host {rank}: {cluster[rank].errors()}")
            check("rank 1 (" in cluster[rank].errors()[-1], f"host {rank}: {cluster[rank].errors()}")
        self.check_same(cluster, cluster.start().wait())
        return "reported by all, then same bytes"

    def changed_code(self, cluster: Cluster) -> str:
        """A host's model has another activation: all refuse with 2, naming it, and nothing is written"""
        cluster[1].write_code("Tanh")
        codes = cluster.start().wait()
        check(codes == [2] * HOSTS, f"exit codes {codes}")
        for host in cluster:
            check(
                "outputs on the same numbers differ between rank 1 (" in host.text(), f"host {host.rank}: {host.text()}"
            )
            check(not host.out.exists(), "something was written")
        return "refused"

    def torchrun(self, cluster: Cluster, backend: str) -> str:
        """Under torchrun: a host dies with its launcher, and is started again alone; the same bytes"""

        def start(host: Host) -> None:
            where = ["--local-addr", f"127.0.0.{host.rank + 1}"]
            if backend == "static":
                where += ["--master-addr", "127.0.0.1", "--master-port", str(cluster.port)]
                where += ["--node-rank", str(host.rank)]
            else:
                where += ["--rdzv-endpoint", f"127.0.0.1:{cluster.port}"]
                where += ["--rdzv-conf", f"is_host={int(host.rank == 0)}"]
                # Else a new launcher waits in vain for what the others' launchers exchanged when they started.
                host.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            counts = ["--nnodes", str(HOSTS), "--nproc-per-node", "1", "--max-restarts", "5"]
            launcher = ["-m", "torch.distributed.run", *counts, "--rdzv-backend", backend, *where]
            host.start(loop=False, launcher=launcher)

        for host in cluster:
            start(host)
        trained(cluster)
        began = time.monotonic()
        cluster[2].kill()
        time.sleep(5)
        start(cluster[2])
        self.check_same(cluster, cluster.wait())
        return f"same bytes, {time.monotonic() - began:.0f} s"


def scenarios(campaign: Campaign) -> dict[str, tuple[Callable[[Cluster], str], str]]:
    """What is run, in this order, and what is specified."""
    table: list[tuple[str, Callable[..., str], tuple[object, ...]]] = [
        ("undisturbed", campaign.undisturbed, ()),
        ("kill-0", campaign.kill, (0,)),
        ("kill-1", campaign.kill, (1,)),
        ("host-0", campaign.host, (0,)),
        ("host-2", campaign.host, (2,)),
        ("stop-kill", campaign.stop, (signal.SIGKILL,)),
        ("stop-continue", campaign.stop, (signal.SIGCONT,)),
        ("late", campaign.late, ()),
        ("never", campaign.never, ()),
        ("lost", campaign.lost, ()),
        ("full-disk", campaign.full_disk, ()),
        ("changed-code", campaign.changed_code, ()),
        ("torchrun-static", campaign.torchrun, ("static",)),
        ("torchrun-c10d", campaign.torchrun, ("c10d",)),
    ]
    return {name: (lambda c, run=run, more=more: run(c, *more), run.__doc__ or "") for name, run, more in table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=None, help="scenarios to run, besides the undisturbed run")
    parser.add_argument("--folder", type=Path, default=None, help="where to work (default: a temporary folder)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="process-faults-"))
    campaign, violations, rows = Campaign(folder), 0, []
    for name, (run, specified) in scenarios(campaign).items():
        if options.only and name not in ("undisturbed", *options.only):
            continue
        cluster, began = Cluster(folder / name), time.monotonic()
        try:
            seen = run(cluster)
        except NotAsSpecified as error:
            seen, violations = f"VIOLATION: {error}", violations + 1
        finally:
            cluster.kill()
        rows.append((name, specified, seen, f"{time.monotonic() - began:.0f}"))
        print(f"{name}: {seen} ({rows[-1][-1]} s)", flush=True)
    print("\n| scenario | specified | seen | seconds |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(f"\n{len(rows) - violations} of {len(rows)} as specified; files in {folder}")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
