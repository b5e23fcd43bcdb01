"""Memory for rows that come and go with every mixing.

What the system hands out fresh it makes page by page, at the first touch. For rows of megabytes that takes as long as
sending them over a fast link. So what was freed is kept here, and given out again.
"""

import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

#: Below so many bytes memory is never returned to the system anyway, and torch's own is as quick.
LEAST = 1 << 17


class Memory:
    """Gives out empty tensors, and takes their memory back when nothing refers to it any more, views included.

    Sizes are rounded up to powers of 2, so that messages of many lengths share their memory. It never shrinks: what is
    kept is the most that was in use at one time. On a GPU, torch's own allocator does all of this.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: dict[int, list[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = defaultdict(list)

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor `[count]` of any values."""
        size = count * dtype.itemsize
        if self.device.type != "cpu" or size < LEAST:
            return torch.empty(count, dtype=dtype, device=self.device)
        free = self._free[1 << (size - 1).bit_length()]
        block = free.pop() if free else np.empty(1 << (size - 1).bit_length(), np.uint8)
        lent = block[:size]
        # The tensor's storage holds `lent` for as long as any view of it lives.
        weakref.finalize(lent, free.append, block).atexit = False
        return torch.from_numpy(lent).view(dtype)
