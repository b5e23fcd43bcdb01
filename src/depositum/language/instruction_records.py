"""Instructions with their responses, read from JSON lines: one object per line, validated before training."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from depositum.bounded_reading import read_file
from depositum.data import Indices
from depositum.errors import ConfigError, DataError, listing, nearest, short_repr, with_article
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
    return parse_records(read_file(path), str(path), fields)


def parse_records(content: bytes, name: str, fields: Mapping[str, str] | None = None) -> list[InstructionRecord]:
    """The records of JSON lines; an invalid line is rejected with its number. Empty lines are ignored."""
    names = {field: (fields or {}).get(field, field) for field in FIELDS}
    records = [_parse_line(line, f"{name}, line {number}", names) for number, line in _numbered_lines(content)]
    if not records:
        raise DataError(f"{name}: is empty; it must contain one JSON object per line")
    return records


def _numbered_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from 1; nothing is done for each of a million empty lines.

    Lines end at newlines only: JSON strings may contain other separators that `splitlines` would split at.
    """
    number, end = 1, 0
    for match in re.finditer(rb"\S[^\n]*", content):
        number += content.count(b"\n", end, match.start())
        end = match.start()
        yield number, match[0]


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
            found = ", ".join(map(short_repr, list(table)[:5])) or "no fields"
            advice = f'if the field has another name, set fields = {{ {field} = "…" }}'
            raise DataError(f"{where}: has no {name!r}; it has {found}; {advice}")
        if not isinstance(value, str):
            raise DataError(f"{where}: {name!r} is {short_repr(value)}; it must be a string")
        if not _is_unicode(value):
            raise DataError(f"{where}: {name!r} contains half of a surrogate pair, which is not a character")
        if field not in OPTIONAL and not value.strip():
            raise DataError(f"{where}: {name!r} is empty")
        values[field] = value
    return InstructionRecord(**values)


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded; JSON can also contain halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
