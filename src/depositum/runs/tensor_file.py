"""Files of named tensors and a table of metadata, with checksums: what is read is what was written, or an error.

The format is safetensors. Its metadata hold a checksum of every tensor (name, type, shape and bytes) and one of the
metadata themselves, these checksums included. They depend on the contents alone, so that equal contents are equal
bytes. Files of earlier releases have no checksums and are read without them.

A file may come from a stranger, so nothing in it is trusted: its parts are bounded before they are read.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from depositum.errors import RunError, short_repr
from depositum.memory import available_memory, format_bytes

#: The only key of a file's metadata (the library writes several in no fixed order); its value is a JSON object.
KEY = "depositum"
#: Keys of that object: the checksum of each tensor, by name, and that of the object without this key.
OF_TENSORS, OF_METADATA = "checksums", "checksum"
#: The largest header, in bytes: about 50,000 tensors.
MAX_HEADER = 10_000_000


def write_part(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Path:
    """Write tensors and metadata to a temporary file beside `path`, safely on disk, and return its path."""
    part = path.with_name(f"{path.name}.part")
    table = {**metadata, OF_TENSORS: {name: _checksum_of_tensor(name, tensor) for name, tensor in tensors.items()}}
    table[OF_METADATA] = _checksum_of_table(table)
    try:
        save_file(dict(tensors), part, metadata={KEY: json.dumps(table, sort_keys=True)})
        # The library creates files that only their owner can read; these get the user's default permissions.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        with part.open("rb") as file:
            os.fsync(file.fileno())
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: cannot be written ({error})") from None
    return part


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and its metadata; one that is incomplete, damaged or not such a file is a RunError."""
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        table = {} if text is None else from_json(text, allow_inf_nan=False)
        if not isinstance(table, dict):
            raise ValueError("its metadata are not a table")
        damage = _find_damage(tensors, table)
    except (SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: is not a complete checkpoint ({error})") from None
    if damage:
        raise RunError(f"{path}: is damaged ({damage})")
    return tensors, {key: value for key, value in table.items() if key not in (OF_TENSORS, OF_METADATA)}


def _check_header(path: Path) -> None:
    """Refuse what is not an ordinary file, or cannot be read into this machine's memory."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a file")
    if status.st_size > (memory := available_memory()):
        raise ValueError(f"it has {format_bytes(status.st_size)}, but {format_bytes(memory)} of memory are available")
    with path.open("rb") as file:
        start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"it has {status.st_size} bytes")
    header = int.from_bytes(start, "little")
    if header > min(MAX_HEADER, status.st_size - 8):
        raise ValueError(f"it has {status.st_size} bytes, and a header of {header:.4g}")


def _find_damage(tensors: Mapping[str, Tensor], table: Mapping[str, Any]) -> str | None:
    """What does not match its checksum, in a few words."""
    if OF_TENSORS not in table and OF_METADATA not in table:
        return None  # written by an earlier release
    rest = {key: value for key, value in table.items() if key != OF_METADATA}
    checksums = table.get(OF_TENSORS)
    if table.get(OF_METADATA) != _checksum_of_table(rest) or not isinstance(checksums, dict):
        return "its metadata have changed since they were written"
    if tensors.keys() != checksums.keys():
        return f"it has other tensors than were written: {short_repr(min(tensors.keys() ^ checksums.keys()))}"
    for name, tensor in tensors.items():
        if _checksum_of_tensor(name, tensor) != checksums[name]:
            return f"the bytes of {short_repr(name)} have changed since they were written"
    return None


def _checksum_of_tensor(name: str, tensor: Tensor) -> str:
    digest = hashlib.sha256(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
    # `contiguous` keeps any stride of a dimension of size 1, of which there can be no view as bytes.
    elements = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    digest.update(elements.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _checksum_of_table(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
