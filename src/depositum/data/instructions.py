"""Instructions with their answers: JSON lines, one object each, checked before anything is trained on them."""

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depositum.data.dataset import Indices
from depositum.errors import ConfigError, DataError, listing, nearest
from depositum.randomness import numpy_generator

#: What a record has, and which of it a line may leave out.
FIELDS = ("instruction", "response", "context", "category")
OPTIONAL = ("context", "category")

#: How a prompt is made of a record. A paragraph whose field is empty is left out. The response follows, and its end.
TEMPLATE = "Instruction:\n{instruction}\n\nContext:\n{context}\n\nResponse:\n"
#: What a line looks like, for messages.
EXAMPLE = '{"instruction": …, "response": …}'
_MARK = re.compile(r"\{(instruction|context)\}")


@dataclass(frozen=True)
class Record:
    """One line of a file: a task, perhaps with a text that it is about, and the answer that is to be learnt."""

    instruction: str
    response: str
    context: str = ""
    category: str = ""

    def prompt(self, template: str = TEMPLATE) -> str:
        r"""What stands before the response.

        >>> Record("Add 2 and 3.", "5").prompt()
        'Instruction:\nAdd 2 and 3.\n\nResponse:\n'
        """
        values = {"instruction": self.instruction, "context": self.context}
        paragraphs = [
            _MARK.sub(lambda mark: values[mark[1]], paragraph)
            for paragraph in template.split("\n\n")
            if all(values[name] for name in _MARK.findall(paragraph))
        ]
        return "\n\n".join(paragraphs)


def check_template(template: str, key: str) -> None:
    """Refuse a template that would leave the instruction out."""
    if "{instruction}" not in template:
        raise ConfigError(key, f"{template!r} given; it must have {{instruction}} in it, and may have {{context}}")
    for mark in re.findall(r"\{(\w+)\}", template):
        if mark not in ("instruction", "context") and (near := nearest(mark, ("instruction", "context"))):
            raise ConfigError(key, f"has {{{mark}}} in it; it can have {{instruction}} and {{context}}{near}")


def check_fields(fields: Mapping[str, str], key: str) -> None:
    """Refuse names of fields that a record does not have."""
    for name in fields:
        if name not in FIELDS:
            raise ConfigError(f"{key}.{name}", f"unknown field; it can be {listing(FIELDS)}{nearest(name, FIELDS)}")


def read(path: Path, fields: Mapping[str, str] | None = None) -> list[Record]:
    """The records of a `.jsonl` file, or of one packed as `.jsonl.gz`.

    `fields` says by which names a file has them, where they are others: `{"response": "answer"}`.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise DataError(f"{path}: is damaged") from None
    return parse(content, str(path), fields)


def parse(content: bytes, name: str, fields: Mapping[str, str] | None = None) -> list[Record]:
    """The records of JSON lines; a line that is none is named, with what it lacks. Empty lines are passed over."""
    # By newlines alone: JSON text may hold other separators that Python would split at.
    lines = enumerate(content.split(b"\n"), start=1)
    names = {field: (fields or {}).get(field, field) for field in FIELDS}
    records = [_record(line, f"{name}, line {number}", names) for number, line in lines if line.strip()]
    if not records:
        raise DataError(f"{name}: has no lines; it should hold one JSON object per line")
    return records


def _record(line: bytes, where: str, names: Mapping[str, str]) -> Record:
    try:
        table = json.loads(line)
    except json.JSONDecodeError as error:  # which counts lines anew
        said = f"is no JSON object of one line ({error.msg}, column {error.colno})"
        raise DataError(f"{where}: {said}; a file has one {EXAMPLE} per line") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is no JSON ({' '.join(str(error).split())})") from None
    if not isinstance(table, dict):
        raise DataError(f"{where}: is a {type(table).__name__}; it must be an object with {listing(names.values())}")
    values = {}
    for field, name in names.items():
        value = table.get(name)
        if value is None and field in OPTIONAL:
            value = ""
        if name not in table and field not in OPTIONAL:
            there = ", ".join(map(repr, table)) or "nothing"
            way = f'fields = {{ {field} = "…" }} says what it is called there'
            raise DataError(f"{where}: has no {name!r}; it has {there}; {way}")
        if not isinstance(value, str):
            raise DataError(f"{where}: {name!r} is {value!r}; it must be a text")
        if field not in OPTIONAL and not value.strip():
            raise DataError(f"{where}: {name!r} is empty")
        values[field] = value
    return Record(**values)


def split(categories: Sequence[str] | NDArray[np.str_], shares: Sequence[float], seed: int) -> list[Indices]:
    """Places of the records in parts of these shares of every category alike, to the nearest record; then the rest.

    The same for the same seed, each part in the order of the file.

    >>> [len(part) for part in split(["a"] * 80 + ["b"] * 20, [0.1, 0.2], seed=0)]
    [10, 20, 70]
    """
    rng = numpy_generator(seed, purpose="split")
    names = np.asarray(categories)
    parts: list[list[Indices]] = [[] for _ in range(len(shares) + 1)]
    for name in np.unique(names):
        members = rng.permutation(np.flatnonzero(names == name))
        ends = np.rint(np.cumsum(shares) * len(members)).astype(np.int64)
        for part, members_of_part in zip(parts, np.split(members, ends), strict=True):
            part.append(members_of_part)
    return [np.sort(np.concatenate(part)) for part in parts]
