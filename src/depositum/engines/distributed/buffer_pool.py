"""Memory for rows that come and go with every mixing.

The system creates fresh memory page by page, at the first access. For rows of megabytes that takes as long as sending
them over a fast link. So freed memory is kept here and handed out again.
"""

import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

#: Below this many bytes memory is never returned to the system anyway, and torch's own allocator is as fast.
SMALLEST = 1 << 17


class BufferPool:
    """Hands out empty tensors, and takes their memory back when nothing refers to it any more, views included.

    Sizes are rounded up to powers of 2, so that messages of many lengths share memory. The pool never shrinks: it
    holds the most that was in use at one time. On a GPU, torch's own allocator does all of this.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: dict[int, list[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = defaultdict(list)

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor `[count]` with arbitrary values."""
        size = count * dtype.itemsize
        if self.device.type != "cpu" or size < SMALLEST:
            return torch.empty(count, dtype=dtype, device=self.device)
        free = self._free[1 << (size - 1).bit_length()]
        block = free.pop() if free else np.empty(1 << (size - 1).bit_length(), np.uint8)
        lent = block[:size]
        # The tensor's storage holds `lent` for as long as any view of it lives.
        weakref.finalize(lent, free.append, block).atexit = False
        return torch.from_numpy(lent).view(dtype)
