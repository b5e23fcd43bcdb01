"""Publishers' file formats: bytes in, arrays out.

The bytes come from `files.read`, which has checked them against the published checksums: what does not parse here is
a mistake of this module, not of the person.
"""

import io

import numpy as np
from numpy.typing import NDArray


def idx(content: bytes) -> NDArray[np.uint8]:
    """Unsigned bytes in the idx format of MNIST: two zero bytes, type 8, the rank, big-endian sizes, the values.

    >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)
    """
    assert content[:3] == b"\0\0\x08", "not an idx file of unsigned bytes"
    rank = content[3]
    shape = np.frombuffer(content, ">u4", count=rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def cifar(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One file of CIFAR-10's binary version: pixels `[N, 3, 32, 32]` and labels `[N]`.

    A record is one label byte and 3,072 pixel bytes: the red plane, then green, then blue, each row by row.
    """
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def libsvm(content: bytes, features: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    r"""LIBSVM text with labels ±1: inputs `[N, features]`, dense, and labels `[N]`, 0 for -1 and 1 for +1.

    `features` is given because a file need not mention the last ones (`a9a.t` stops at 122 of 123).

    >>> libsvm(b"-1 1:1 3:1\n+1 2:0.5\n", features=4)
    (array([[1. , 0. , 1. , 0. ],
           [0. , 0.5, 0. , 0. ]], dtype=float32), array([0, 1]))
    """
    from sklearn.datasets import load_svmlight_file  # slow to import, and few runs need it

    x, y = load_svmlight_file(io.BytesIO(content), n_features=features, dtype=np.float32, zero_based=False)
    return x.toarray(), (y > 0).astype(np.int64)
