"""Samples on a device; those that do not fit on a GPU stay in host memory, from which mini-batches are read.

The host memory is pinned and read by a kernel of this package, so that nothing waits for the host and iterations can
be captured in CUDA graphs as usual. The bus then limits the speed, rather than the GPU.
"""

import importlib.util
import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from depositum.errors import ConfigError
from depositum.problem.handles import Handles

#: Share of the GPU's memory that samples may take; the rest is for models and activations.
RESIDENT_SHARE = 0.4


class Streamed:
    """Samples `[N, ...]` in pinned host memory; indexing returns tensors on the device."""

    def __init__(self, samples: Tensor, device: torch.device) -> None:
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "device",
                f"the samples take {samples.nbytes / 2**30:.1f} GiB, too much for {device}, and reading them from "
                "host memory needs Triton, which is not installed; use 'cpu'",
            )
        self.host = samples.contiguous().pin_memory()
        self.device, self.dtype, self.shape = device, samples.dtype, samples.shape
        self._handle = _STREAMED.add(self)

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, index: "Tensor | slice | list[int] | int") -> Tensor:
        if isinstance(index, Tensor):
            gathered: Tensor = _gather(self._handle, index)
            return gathered
        return self.host[index].to(self.device, non_blocking=True)


#: Found by handle: the memory of another device cannot be an argument of a traced operator.
_STREAMED = Handles[Streamed]()
#: Copies by original, then by device and dtype, by weak references to both.
_COPIES: WeakIdKeyDictionary = WeakIdKeyDictionary()


def samples_on_device(
    samples: Tensor, device: torch.device, dtype: torch.dtype, *, may_stream: bool = True
) -> Tensor | Streamed:
    """Samples `[N, ...]` on a device, floating-point ones in a dtype; `Streamed` to it if they are too large.

    Problems that share their samples share the copies too.
    """
    dtype = dtype if samples.is_floating_point() else samples.dtype
    if samples.dtype == dtype and samples.device == device:
        return samples
    copies = _COPIES.setdefault(samples, weakref.WeakValueDictionary())  # type: ignore[no-untyped-call]
    key = device, dtype, may_stream, None if samples.is_inference() else samples._version
    found: Tensor | Streamed | None = copies.get(key)
    if found is None:
        found = copies[key] = _copied(samples.to(dtype), device, may_stream)
    return found


def _copied(samples: Tensor, device: torch.device, may_stream: bool) -> Tensor | Streamed:
    if may_stream and device.type == "cuda" and samples.device.type == "cpu":
        memory = torch.cuda.get_device_properties(device).total_memory
        if samples.nbytes > RESIDENT_SHARE * memory:
            return Streamed(samples, device)
    return samples.to(device)


@torch.library.custom_op("depositum::gather", mutates_args=())
def _gather(handle: int, indices: Tensor) -> Tensor:
    from depositum.kernels.gather import gather

    return gather(_STREAMED[handle].host, indices)


@_gather.register_fake
def _(handle: int, indices: Tensor) -> Tensor:
    host = _STREAMED[handle].host
    return indices.new_empty(*indices.shape, *host.shape[1:], dtype=host.dtype)
