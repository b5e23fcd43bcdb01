"""How much memory can be used, asked before something large is read or built."""

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that are available now, to this process and its container."""
    available = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [1 << 33]
    available += [*_available_to_machine(), *_available_to_process()]
    return max(0, min(available))


def format_bytes(size: int) -> str:
    """A size in the largest unit that makes it at least one.

    >>> format_bytes(3 << 30), format_bytes(700), format_bytes(10**40)
    ('3.0 GiB', '700 B', 'more than 1024 PiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = next((i for i in range(len(units)) if size < 1 << 10 * (i + 1)), None)
    if power is None:
        return "more than 1024 PiB"
    return f"{size / (1 << 10 * power):.1f} {units[power]}" if power else f"{size} B"


def _available_to_machine() -> list[int]:
    """What Linux estimates to be available without swapping."""
    try:
        with open("/proc/meminfo") as lines:
            return [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return []


def _available_to_process() -> list[int]:
    """What remains of the limits of this process and of its container, where they are set."""
    out = []
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        out.append(limit - int(used[used.index("anon") + 1]))
    except (OSError, ValueError):  # not in a container, or one without a limit ("max")
        pass
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            out.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    except (ImportError, OSError, ValueError):
        pass
    return out
