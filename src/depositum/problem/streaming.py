"""Samples that do not fit on the GPU stay in the host's memory, and a mini-batch is read from there when it is drawn.

The host's memory is pinned and read by a kernel of ours, so that nothing waits for the host and iterations are
captured as ever; the bus, not the GPU, then sets the pace.
"""

import importlib.util

import torch
from torch import Tensor

from depositum.errors import ConfigError
from depositum.problem.numbered import Numbered

#: The share of the GPU's memory that samples may take; the rest is for models and activations.
RESIDENT_SHARE = 0.4


def place(samples: Tensor, device: torch.device) -> "Tensor | Streamed":
    """Samples `[N, ...]` on a device, or `Streamed` to it where they are too many."""
    if device.type == "cuda" and samples.device.type == "cpu":
        memory = torch.cuda.get_device_properties(device).total_memory
        if samples.nbytes > RESIDENT_SHARE * memory:
            return Streamed(samples, device)
    return samples.to(device)


class Streamed:
    """Samples in pinned host memory; indexed like a tensor, it gives tensors on the device."""

    def __init__(self, samples: Tensor, device: torch.device) -> None:
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "run.device",
                f"the samples take {samples.nbytes / 2**30:.1f} GiB, too many for {device}, and reading them from the "
                "host's memory needs Triton, which is not installed; use 'cpu'",
            )
        self.host = samples.contiguous().pin_memory()
        self.device, self.dtype, self.shape = device, samples.dtype, samples.shape
        self._number = HELD.add(self)

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, index: "Tensor | slice | list[int] | int") -> Tensor:
        if isinstance(index, Tensor):
            gathered: Tensor = _gather(self._number, index)
            return gathered
        return self.host[index].to(self.device, non_blocking=True)

    def element_size(self) -> int:
        return self.host.element_size()

    def is_floating_point(self) -> bool:
        return self.host.is_floating_point()

    def to(self, dtype: torch.dtype) -> "Streamed":
        """The same in another dtype."""
        return self if dtype == self.dtype else Streamed(self.host.to(dtype), self.device)


#: By which the operation finds its samples: whoever traces it need not know of memory on another device.
HELD = Numbered[Streamed]()


@torch.library.custom_op("depositum::gather", mutates_args=())
def _gather(number: int, indices: Tensor) -> Tensor:
    from depositum.kernels.gather import gather

    return gather(HELD[number].host, indices)


@_gather.register_fake
def _(number: int, indices: Tensor) -> Tensor:
    host = HELD[number].host
    return indices.new_empty(*indices.shape, *host.shape[1:], dtype=host.dtype)
