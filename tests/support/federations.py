"""Small federations for tests: an agreement, and organisations that were enrolled by the functions of the package."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from depositum.cli.federation.new import plan_text
from depositum.federation.agreement import Agreement, Member
from depositum.federation.joining import accept, make_request
from depositum.federation.organiser_folder import OrganiserFolder

#: A run of a few steps on arrays, for members that each have a file.
RUN: dict[str, Any] = {
    "problem": {"dataset": "{client}.npz", "model": "linear", "regularizer": "l1", "beta": 1e-3},
    "algorithm": {"name": "depositum", "alpha": 0.1, "gamma": 0.5},
    "run": {"steps": 12, "period": 3, "batch_size": 4, "device": "cpu", "evaluate_every": 4},
}


def agreement(count: int = 4, **changes: Any) -> Agreement:
    """A ring of members `m0`, `m1`, …, of which the last one dials only."""
    listed = tuple(Member(f"m{i}", f"m{i}.example.org:{7000 + i}" if i < count - 1 else None) for i in range(count))
    edges = tuple((f"m{i}", f"m{(i + 1) % count}") for i in range(count if count > 2 else 1))
    return Agreement(**{"name": "study", "members": listed, "edges": edges, "config": RUN, **changes})


def organiser(folder: Path, members: Sequence[str] = (), run: Mapping[str, Any] = RUN, **own: Any) -> OrganiserFolder:
    """The folder of an organiser, as `depositum federation new` makes it; `own` are keys of `[federation]`."""
    text = plan_text(folder.name, list(members), "ring", tomli_w.dumps(run))
    for key, value in own.items():
        assert f"\n{key} = " in text or key in ("classes", "edges")
        lines = [line for line in text.splitlines() if not line.startswith(f"{key} = ")]
        if key == "edges":
            lines = [line for line in lines if not line.startswith("topology = ")]
        at = lines.index("[federation]") + 1
        text = "\n".join([*lines[:at], f"{key} = {_toml(value)}", *lines[at:]]) + "\n"
    return OrganiserFolder.create(folder, text)


def enrolled(
    root: Path, addresses: Mapping[str, str | None], run: Mapping[str, Any] = RUN, **own: Any
) -> dict[str, Path]:
    """Enrol members by name with their addresses (None: dials only); return their folders, below `root`."""
    study = organiser(root / "study", list(addresses), run, **own)
    requests = []
    for name, address in addresses.items():
        (root / name).mkdir()
        requests.append(make_request(name, address, root / name).request)
    study.approve(requests)
    fingerprint = study.authority.fingerprint
    folders = {}
    for name in addresses:
        folders[name] = root / name / "study"
        key = root / name / f"{name}.key"
        accept(study.invitations / f"{name}.invitation", fingerprint, key, folders[name])
    return folders


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    code = (
        "import json, socket\n"
        f"s = [socket.create_server(('127.0.0.1', 0)) for _ in range({count})]\n"
        "print(json.dumps([x.getsockname()[1] for x in s]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    ports: list[int] = json.loads(out)
    return ports


def _toml(value: Any) -> str:
    return tomli_w.dumps({"x": value}).partition("= ")[2].strip()
