"""Datasets of instructions: records become token sequences in which the response is to be learnt.

A sequence is the prompt, the response and the end-of-text token, truncated to `max_length` tokens. If truncation
removes the entire response there is nothing to learn: the sequence is dropped, and a warning reports how many are.
"""

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from depositum.data import CLIENT_PLACEHOLDER, Dataset, Indices, downloads, shared_test_file
from depositum.data.client_files import client_files
from depositum.errors import ConfigError, DataError
from depositum.language.instruction_records import (
    TEMPLATE,
    InstructionRecord,
    check_fields,
    check_template,
    parse_records,
    read_records,
    stratified_split,
)
from depositum.language.pretrained import load_tokenizer, quiet
from depositum.language.tokens import IGNORED, TokenSamples
from depositum.validation import Description

#: The paper's maximal length of a sequence, in tokens.
MAX_LENGTH = 192
#: Sequences are padded to a multiple of this length, for which products on a GPU are faster.
ALIGNMENT = 8

#: Names that a category cannot have, because other columns of `perplexity.csv` have them.
RESERVED_CATEGORIES = ("seed", "iteration", "overall")
#: The category of records without one, if other records have one.
OTHER_CATEGORY = "other"

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class RecordSets:
    """The records that a dataset consists of."""

    train: Sequence[InstructionRecord]
    test: Sequence[InstructionRecord] | None = None  #: None: parts of `train` are held out
    client_sizes: Sequence[int] | None = None  #: how many of `train` belong to each client, in order


@dataclass(frozen=True, kw_only=True)
class InstructionDataset(ABC):
    """Instructions and responses, and how they are split and tokenized.

    Parameters
    ----------
    max_length
        The maximal number of tokens of a sequence.
    template
        The prompt, with `{instruction}` and optionally `{context}` in it.
    validation, test
        The shares of every category that are held out for validation and for testing.
    evaluate
        Which of the two parts models are evaluated on.
    split_seed
        The seed of the split; with `"run"`, each seed of a run draws its own split.
    samples
        Use only this many records, with the same share of every category.
    """

    max_length: Annotated[int, Field(ge=2)] = MAX_LENGTH
    template: str = TEMPLATE
    validation: Share = 0.1
    test: Share = 0.1
    evaluate: Literal["validation", "test"] = "test"
    split_seed: int | Literal["run"] = 0
    samples: Annotated[int, Field(ge=1)] | None = None

    needs_tokenizer: ClassVar[bool] = True
    default_loss: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        check_template(self.template, "template")
        if self.validation + self.test >= 1:
            given = f"{self.validation:g} and test = {self.test:g}"
            raise ConfigError("validation", f"{given} given; their sum must be below 1")

    @property
    @abstractmethod
    def name(self) -> str:
        """The dataset's name in messages."""

    @abstractmethod
    def read(self) -> RecordSets:
        """Read the records."""

    def tokenize(self, tokenizer: str) -> Dataset:
        """The samples as token ids of the tokenizer with this name or path."""
        records = self.read()
        every = [*records.train, *(records.test or ())]
        samples = self._tokenize(every, load_tokenizer(tokenizer))
        kept = (samples.terms > 0).numpy()
        self._warn_about_dropped(kept)
        train, test = np.split(np.arange(len(kept)), [len(records.train)])
        train_samples, test_samples = (samples.take(part[kept[part]]) for part in (train, test))
        split_here = records.test is None and records.client_sizes is None
        self._check_not_empty(len(train_samples), split_here)
        if not split_here:
            test_samples = test_samples.without_unused_categories()  # the others are not measured
            clients = None if records.client_sizes is None else self._client_indices(kept, records.client_sizes)
            return Dataset(self.name, train_samples, test_samples if len(test_samples) else None, clients=clients)
        categories = np.asarray([record.category for record, keep in zip(every, kept, strict=True) if keep])

        def split(seed: int) -> tuple[Indices, Indices]:
            trained, evaluated = self._split(categories, seed)
            self._check_not_empty(len(trained), split_here)
            return trained, evaluated

        if self.split_seed == "run":  # the number of evaluated samples does not depend on the seed
            return Dataset(self.name, train_samples, train_samples if len(split(0)[1]) else None, split=split)
        trained, evaluated = split(self.split_seed)
        test_samples = train_samples.take(evaluated).without_unused_categories()
        return Dataset(self.name, train_samples.take(trained), test_samples if len(test_samples) else None)

    def _client_indices(self, kept: NDArray[np.bool_], sizes: Sequence[int]) -> tuple[Indices, ...]:
        """Each client's sequences among those that are kept."""
        ends = np.cumsum(sizes)
        counts = [int(part.sum()) for part in np.split(kept[: ends[-1]], ends[:-1])]
        for client, count in enumerate(counts):
            if not count:
                raise DataError(f"{self.name}: client {client} has no sequence whose response fits into max_length")
        return tuple(np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1]))

    def _split(self, categories: NDArray[np.str_], seed: int) -> tuple[Indices, Indices]:
        """Indices of the training part and of the evaluated part, given the category of every sequence."""
        indices = np.arange(len(categories))
        if self.samples is not None and self.samples < len(indices):
            indices, _ = stratified_split(categories, [self.samples / len(indices)], seed)
        validation, test, train = stratified_split(categories[indices], (self.validation, self.test), seed)
        return indices[train], indices[validation if self.evaluate == "validation" else test]

    def _check_not_empty(self, sequences: int, split_here: bool) -> None:
        if not sequences:
            advice = "increase max_length" + (", or decrease validation and test" if split_here else "")
            raise DataError(f"{self.name}: no sequence is left to train on; {advice}")

    def _tokenize(self, records: Sequence[InstructionRecord], tokenizer: Any) -> TokenSamples:
        """All records as token ids, truncated; a response may be truncated to nothing."""
        prompts, responses = _token_ids(
            tokenizer, tuple(record.prompt(self.template) for record in records), tuple(r.response for r in records)
        )
        end = tokenizer.eos_token_id
        # Some tokenizers append the end-of-text token to every text.
        prompts = [prompt[:-1] if prompt and prompt[-1] == end else prompt for prompt in prompts]
        suffix = [] if end is None else [end]
        pairs = zip(prompts, responses, strict=True)
        sequences = [[*prompt, *response, *suffix][: self.max_length] for prompt, response in pairs]
        # As long as the longest sequence, whose last token is predicted and predicts nothing.
        length = -(-max(1, max(map(len, sequences)) - 1) // ALIGNMENT) * ALIGNMENT
        inputs = np.full((len(records), length), 0 if end is None else end)
        targets = np.full((len(records), length), IGNORED)
        for i, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True)):
            inputs[i, : len(sequence) - 1] = sequence[:-1]
            first = max(len(prompt), 1)  # the very first token is not predicted
            targets[i, first - 1 : len(sequence) - 1] = sequence[first:]
        names, category = self._categories(records)
        return TokenSamples(torch.from_numpy(inputs), torch.from_numpy(targets), names, category)

    def _categories(self, records: Sequence[InstructionRecord]) -> tuple[tuple[str, ...], torch.Tensor | None]:
        """The names of the categories, and the index of every record's category `[N]`; none if no record has one."""
        names = tuple(sorted({record.category for record in records if record.category}))
        for name in names:
            if name in RESERVED_CATEGORIES:
                raise DataError(f"{self.name}: a category is called {name!r}, which is a column of perplexity.csv")
        if not names:
            return (), None
        if OTHER_CATEGORY not in names and any(not record.category for record in records):
            names = (*names, OTHER_CATEGORY)
        return names, torch.tensor([names.index(record.category or OTHER_CATEGORY) for record in records])

    def _warn_about_dropped(self, kept: NDArray[np.bool_]) -> None:
        if dropped := int((~kept).sum()):
            warnings.warn(
                f"{self.name}: {dropped} of {len(kept)} sequences are dropped, because their prompts alone fill the "
                f"max_length of {self.max_length} tokens",
                RuntimeWarning,
                stacklevel=4,
            )


@dataclass(frozen=True, kw_only=True)
class Dolly(InstructionDataset):
    """Dolly-15k: 15,011 instructions of eight categories, written by people."""

    @property
    def name(self) -> str:
        """The registered name."""
        return "dolly"

    def read(self) -> RecordSets:
        """Read the published file."""
        (content,) = downloads.read("dolly").values()
        return RecordSets(parse_records(content, "dolly"))


@dataclass(frozen=True)
class InstructionFiles(InstructionDataset):
    """The user's instructions: one file, or one per client.

    From a single file, parts are held out for validation and testing unless there is a `test_file`. If every client
    has a file, all of it is trained on.

    Parameters
    ----------
    file
        A `.jsonl` or `.jsonl.gz` file, or a list with one per client. `load` also accepts a pattern with `{client}`.
    test_file
        What to evaluate on, instead of a held-out part.
    fields
        The names that the files use for the fields of a record, if they are different.
    """

    file: Annotated[str | list[str], Description("a file, or a list of one file per client")]
    test_file: str | None = None
    fields: dict[str, str] | None = None

    path_arguments: ClassVar[tuple[str, ...]] = ("file", "test_file")

    def __post_init__(self) -> None:
        if not self.file:
            raise ConfigError("file", f"{self.file!r} given; it must be a file, or one file per client")
        check_fields(self.fields or {}, "fields")
        super().__post_init__()
        if self.test_file is not None or not isinstance(self.file, str):
            self._check_no_split("a test_file" if isinstance(self.file, str) else "one file per client")

    @staticmethod
    def resolve_arguments(arguments: Mapping[str, Any], base: Path | None, clients: int | None) -> dict[str, Any]:
        """The arguments with absolute paths of existing files; a pattern becomes a list with one file per client."""
        resolved = dict(arguments)
        file = resolved["file"]
        paths = [(base or Path()) / Path(path).expanduser() for path in ([file] if isinstance(file, str) else file)]
        if isinstance(file, str) and CLIENT_PLACEHOLDER in file:
            test = shared_test_file(paths[0])
            paths = client_files(paths[0], clients)
            resolved.setdefault("test_file", None if test is None else str(test))
            file = [file]
        if resolved.get("test_file") is not None:
            resolved["test_file"] = str((base or Path()) / Path(resolved["test_file"]).expanduser())
        for path in (*paths, *([Path(resolved["test_file"])] if resolved.get("test_file") else [])):
            if not path.is_file():
                raise DataError(f"{path}: no such file")
        resolved["file"] = str(paths[0]) if isinstance(file, str) else [str(path) for path in paths]
        return resolved

    @property
    def name(self) -> str:
        """The path, or the first path and the number of others."""
        if isinstance(self.file, str):
            return self.file
        return f"{self.file[0]} and {len(self.file) - 1} more" if self.file[1:] else self.file[0]

    def read(self) -> RecordSets:
        """Read all files."""
        files = [self.file] if isinstance(self.file, str) else self.file
        parts = [read_records(Path(file), self.fields) for file in files]
        return RecordSets(
            [record for part in parts for record in part],
            None if self.test_file is None else read_records(Path(self.test_file), self.fields),
            None if isinstance(self.file, str) else [len(part) for part in parts],
        )

    def _check_no_split(self, reason: str) -> None:
        """Reject settings of the split, where they are not the defaults, because there is no split."""
        for field in dataclasses.fields(InstructionDataset):
            value = getattr(self, field.name)
            if field.name not in ("max_length", "template") and value != field.default:
                problem = f"{value!r} given, but with {reason} nothing is split: everything is trained on"
                raise ConfigError(field.name, f"{problem}; remove it")


@lru_cache(maxsize=1)
def _token_ids(
    tokenizer: Any, prompts: tuple[str, ...], responses: tuple[str, ...]
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of prompts and responses; the last result is cached, because the cells of a sweep share their texts."""
    with quiet():
        return tokenizer(list(prompts))["input_ids"], tokenizer(list(responses), add_special_tokens=False)["input_ids"]
