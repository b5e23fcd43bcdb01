"""Objects that an operator finds by a number: what is traced can name no other."""

import itertools
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class Numbered(Generic[T]):
    """Gives numbers to objects, and keeps none of them alive."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> int:
        """The number of a new one."""
        number = next(self._numbers)
        self._objects[number] = thing
        return number

    def __getitem__(self, number: int) -> T:
        return self._objects[number]
