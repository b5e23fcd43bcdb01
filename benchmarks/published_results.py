"""How the published benchmarks, of this package and of peers, report what they measured. Needs torch alone."""

import json
import platform
from pathlib import Path
from typing import Any

import torch


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor's architecture with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def report(record: dict[str, Any], out: Path | None) -> None:
    """Print a record, one line for each number, and write it as JSON."""
    for key, value in record.items():
        print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")
    if out is not None:
        out.write_text(json.dumps(record, indent=1) + "\n")
