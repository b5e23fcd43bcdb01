"""Instructions with their responses, read from JSON lines: one object per line, validated before training."""

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depositum.data import Indices
from depositum.errors import ConfigError, DataError, listing, nearest, with_article
from depositum.randomness import numpy_generator

#: The fields of a record, and those that a line may omit.
FIELDS = ("instruction", "response", "context", "category")
OPTIONAL = ("context", "category")

#: The prompt of a record. A paragraph whose field is empty is omitted. The response and the end-of-text token follow.
TEMPLATE = "Instruction:\n{instruction}\n\nContext:\n{context}\n\nResponse:\n"
#: A valid line, for error messages.
EXAMPLE = '{"instruction": …, "response": …}'
_FIELD = re.compile(r"\{(instruction|context)\}")


@dataclass(frozen=True)
class InstructionRecord:
    """One line of a file: a task, optionally with a text that it refers to, and the response to learn."""

    instruction: str
    response: str
    context: str = ""
    category: str = ""

    def prompt(self, template: str = TEMPLATE) -> str:
        r"""The text before the response.

        >>> InstructionRecord("Add 2 and 3.", "5").prompt()
        'Instruction:\nAdd 2 and 3.\n\nResponse:\n'
        """
        values = {"instruction": self.instruction, "context": self.context}
        paragraphs = [
            _FIELD.sub(lambda field: values[field[1]], paragraph)
            for paragraph in template.split("\n\n")
            if all(values[name] for name in _FIELD.findall(paragraph))
        ]
        return "\n\n".join(paragraphs)


def check_template(template: str, key: str) -> None:
    """Reject a template without the instruction, or with a misspelt field."""
    if "{instruction}" not in template:
        raise ConfigError(key, f"{template!r} given; it must contain {{instruction}}, and may contain {{context}}")
    for name in re.findall(r"\{(\w+)\}", template):
        if name not in ("instruction", "context") and (near := nearest(name, ("instruction", "context"))):
            raise ConfigError(key, f"contains {{{name}}}; it may contain {{instruction}} and {{context}}{near}")


def check_fields(fields: Mapping[str, str], key: str) -> None:
    """Reject names that are not fields of a record."""
    for name in fields:
        if name not in FIELDS:
            raise ConfigError(f"{key}.{name}", f"unknown field; it can be {listing(FIELDS)}{nearest(name, FIELDS)}")


def read_records(path: Path, fields: Mapping[str, str] | None = None) -> list[InstructionRecord]:
    """The records of a `.jsonl` or `.jsonl.gz` file.

    `fields` maps the fields of a record to the names that the file uses for them: `{"response": "answer"}`.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise DataError(f"{path}: is damaged") from None
    return parse_records(content, str(path), fields)


def parse_records(content: bytes, name: str, fields: Mapping[str, str] | None = None) -> list[InstructionRecord]:
    """The records of JSON lines; an invalid line is rejected with its number. Empty lines are ignored."""
    # Split at newlines only: JSON strings may contain other separators that `splitlines` would split at.
    lines = enumerate(content.split(b"\n"), start=1)
    names = {field: (fields or {}).get(field, field) for field in FIELDS}
    records = [_parse_line(line, f"{name}, line {number}", names) for number, line in lines if line.strip()]
    if not records:
        raise DataError(f"{name}: is empty; it must contain one JSON object per line")
    return records


def _parse_line(line: bytes, where: str, names: Mapping[str, str]) -> InstructionRecord:
    try:
        table = json.loads(line)
    except json.JSONDecodeError as error:  # its line number is relative to this line
        problem = f"is not a JSON object on one line ({error.msg}, column {error.colno})"
        raise DataError(f"{where}: {problem}; write one {EXAMPLE} per line") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({' '.join(str(error).split())})") from None
    if not isinstance(table, dict):
        given = with_article(type(table).__name__)
        raise DataError(f"{where}: is {given}; it must be an object with {listing(names.values())}")
    values = {}
    for field, name in names.items():
        value = table.get(name)
        if value is None and field in OPTIONAL:
            value = ""
        if name not in table and field not in OPTIONAL:
            found = ", ".join(map(repr, table)) or "no fields"
            advice = f'if the field has another name, set fields = {{ {field} = "…" }}'
            raise DataError(f"{where}: has no {name!r}; it has {found}; {advice}")
        if not isinstance(value, str):
            raise DataError(f"{where}: {name!r} is {value!r}; it must be a string")
        if field not in OPTIONAL and not value.strip():
            raise DataError(f"{where}: {name!r} is empty")
        values[field] = value
    return InstructionRecord(**values)


def stratified_split(categories: Sequence[str] | NDArray[np.str_], shares: Sequence[float], seed: int) -> list[Indices]:
    """Indices of the records in parts with these shares of every category, to the nearest record, and of the rest.

    The result depends on the seed only; each part is sorted.

    >>> [len(part) for part in stratified_split(["a"] * 80 + ["b"] * 20, [0.1, 0.2], seed=0)]
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
