"""Integer handles of Python objects, for custom operators: a traced graph can only refer to tensors and numbers."""

import itertools
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class Handles(Generic[T]):
    """Assigns integers to objects, without keeping the objects alive."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, value: T) -> int:
        """The handle of a new object."""
        number = next(self._numbers)
        self._objects[number] = value
        return number

    def __getitem__(self, handle: int) -> T:
        return self._objects[handle]
