"""Where results come from: the version and commit of the package, the libraries that compute, and the device.

Whatever is written down as a result (run folders, results of experiments, output of benchmarks) has these.
"""

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import depositum

#: Names the commit where it cannot be found: in a copy of a source tree without its history.
COMMIT_VARIABLE = "DEPOSITUM_COMMIT"
#: What is appended to a commit if files of the package differ from it.
CHANGED = "+changes"
#: Seconds that git may take; it answers in hundredths.
GIT_TIMEOUT = 10.0


@cache
def commit(package: Path = Path(depositum.__file__).parent) -> str | None:
    """The commit that the package's code is of, with `+changes` if files of it differ; None if it is not known.

    Only of a checkout that the package belongs to: an installation inside of another repository is not of its commit.
    """
    known = os.environ.get(COMMIT_VARIABLE)
    if known:
        return known
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    changes = _git(package, "status", "--porcelain", "--", ".")
    return head and head + CHANGED * bool(changes)


def versions() -> dict[str, str]:
    """The package's version and commit (if it is known), and the versions of what it computes with."""
    import numpy
    import torch

    own = commit()
    return {
        "depositum": depositum.__version__,
        **({"commit": own} if own else {}),
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def describe_versions() -> str:
    """The same in one line, for the output of a benchmark."""
    return ", ".join(f"{name} {version}" for name, version in versions().items())


def describe_device(kind: str) -> str:
    """The name of the GPU, or the CPU's architecture and number of cores; `kind` is that of a `torch.device`."""
    if kind.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(kind)
    return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, or if there is no git. Nothing in the checkout is changed."""
    # A hook of another repository sets GIT_DIR and others, which are not meant for this one.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
