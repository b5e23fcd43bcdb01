"""Text as samples of a language model: a prompt and its response as token ids, of which the response is to be learnt.

A sequence is the prompt, the response and the end-of-sequence token, cut after `max_length` tokens. One whose response
is cut off entirely has nothing to learn: it is left out, and how many are is said.
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from depositum import pretrained
from depositum.data import files, instructions
from depositum.data.dataset import Dataset, Indices, Samples
from depositum.data.instructions import TEMPLATE, Record
from depositum.errors import ConfigError, DataError
from depositum.validation import Description

#: The target at a position that is to predict nothing: of the prompt, or behind the end.
IGNORED = -100
#: The paper's.
MAX_LENGTH = 192
#: Sequences are filled up to a multiple of this: products on a GPU are faster so.
ALIGNED = 8

#: Names that no category may have: columns beside theirs.
RESERVED = ("seed", "iteration", "overall")
#: What records without a category are called where others have one.
OTHER = "other"

Share = Annotated[float, Field(ge=0, lt=1)]
SplitSeed = int | Literal["run"]


@dataclass(frozen=True, eq=False)
class TokenSamples(Samples):
    """Sequences of token ids `[N, L]`, and `[N, L]` the token that each position is to predict, or `IGNORED`.

    Sequences shorter than L are filled up at their end, where a causal model's earlier positions do not see it.
    """

    @property
    def terms(self) -> Tensor:
        """How many tokens of each sample are to be predicted, `[N]`."""
        return (self.targets != IGNORED).sum(1)

    def filled_to(self, length: int) -> Self:
        """The same sequences, filled up to a greater length."""
        more = (0, length - self.inputs.shape[1])
        inputs, targets = pad(self.inputs, more), pad(self.targets, more, value=IGNORED)
        return replace(self, inputs=inputs, targets=targets)


@dataclass(frozen=True)
class Text:
    """Records to train on and to test with, and how they become tokens; which tokens, the model says.

    Attributes
    ----------
    owners
        How many of `train` each client has, in order, where each has a file of its own.
    shares
        Of `train`, the shares of a validation and a test part, where there is no test file.
    split_seed
        What the parts are drawn with; `"run"`: the seed of each run, so that each has a split of its own.
    """

    name: str
    train: Sequence[Record]
    test: Sequence[Record] | None = None
    owners: Sequence[int] | None = None
    template: str = TEMPLATE
    max_length: int = MAX_LENGTH
    shares: tuple[float, float] = (0.0, 0.0)
    split_seed: SplitSeed = 0
    evaluate: Literal["validation", "test"] = "test"
    samples: int | None = None

    def tokenised(self, tokenizer: str) -> Dataset:
        """The dataset that a model with this tokenizer takes."""
        read = load_tokenizer(tokenizer)
        given = [*self.train, *(self.test or ())]
        names = tuple(sorted({record.category for record in given if record.category}))
        for name in names:
            if name in RESERVED:
                raise DataError(f"{self.name}: a category is called {name!r}; that is a column of perplexity.csv")
        whole = self._samples(given, read, names)
        kept = (whole.terms > 0).numpy()
        self._tell_of_dropped(kept)
        train, test = np.split(np.arange(len(kept)), [len(self.train)])
        learnt, tested = (whole.take(part[kept[part]]) for part in (train, test))
        self._check_left(len(learnt))
        if self.test is not None or self.owners is not None:
            tested = tested.with_own_categories()  # no others are measured
            return Dataset(self.name, learnt, tested if len(tested) else None, None, self._clients(kept))
        categories = np.asarray([record.category for record, stays in zip(given, kept, strict=True) if stays])

        def split(seed: int) -> tuple[Indices, Indices]:
            train, evaluated = self._split(categories, seed)
            self._check_left(len(train))
            return train, evaluated

        if self.split_seed == "run":  # how many are evaluated does not hang on the seed
            return Dataset(self.name, learnt, learnt if len(split(0)[1]) else None, split=split)
        own, evaluated = split(self.split_seed)
        tested = learnt.take(evaluated).with_own_categories()
        return Dataset(self.name, learnt.take(own), tested if len(tested) else None)

    def _clients(self, kept: NDArray[np.bool_]) -> tuple[Indices, ...] | None:
        """Each client's sequences among those that are kept, where it has a file of its own."""
        if self.owners is None:
            return None
        ends = np.cumsum(self.owners)
        sizes = [int(part.sum()) for part in np.split(kept[: ends[-1]], ends[:-1])]
        for client, size in enumerate(sizes):
            if not size:
                raise DataError(f"{self.name}: client {client} has no sequence whose response fits max_length")
        return tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))

    def _split(self, categories: NDArray[np.str_], seed: int) -> tuple[Indices, Indices]:
        """Places of the training part among the sequences of these categories, and of the one that is evaluated."""
        places = np.arange(len(categories))
        if self.samples is not None and self.samples < len(places):
            places, _ = instructions.split(categories, [self.samples / len(places)], seed)
        validation, test, train = instructions.split(categories[places], self.shares, seed)
        return places[train], places[validation if self.evaluate == "validation" else test]

    def _check_left(self, sequences: int) -> None:
        if not sequences:
            shares = "" if self.test is not None or self.owners is not None else ", or lower the shares"
            raise DataError(f"{self.name}: no sequence is left to train on; raise max_length{shares}")

    def _samples(self, records: Sequence[Record], tokenizer: Any, names: tuple[str, ...]) -> TokenSamples:
        """All records as token ids; the response of one that is too long is cut, perhaps to nothing."""
        texts = tuple(r.prompt(self.template) for r in records), tuple(r.response for r in records)
        prompts, responses = _tokens(tokenizer, *texts)
        end = tokenizer.eos_token_id
        # Some tokenizers end whatever they are given.
        prompts = [prompt[:-1] if prompt and prompt[-1] == end else prompt for prompt in prompts]
        after = [] if end is None else [end]
        pairs = zip(prompts, responses, strict=True)
        sequences = [[*prompt, *response, *after][: self.max_length] for prompt, response in pairs]
        # As long as the longest; its last token is predicted, and predicts nothing.
        length = -(-max(1, max(map(len, sequences)) - 1) // ALIGNED) * ALIGNED
        inputs = np.full((len(records), length), 0 if end is None else end)
        targets = np.full((len(records), length), IGNORED)
        for i, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True)):
            inputs[i, : len(sequence) - 1] = sequence[:-1]
            first = max(len(prompt), 1)  # nothing predicts the first token of all
            targets[i, first - 1 : len(sequence) - 1] = sequence[first:]
        if names and OTHER not in names and any(not record.category for record in records):
            names = (*names, OTHER)
        codes = torch.tensor([names.index(r.category or OTHER) if names else 0 for r in records])
        return TokenSamples(torch.from_numpy(inputs), torch.from_numpy(targets), names, codes if names else None)

    def _tell_of_dropped(self, kept: NDArray[np.bool_]) -> None:
        dropped = int((~kept).sum())
        if dropped:
            warnings.warn(
                f"{self.name}: {dropped} of {len(kept)} sequences are left out, since their prompts alone fill the "
                f"max_length of {self.max_length} tokens",
                RuntimeWarning,
                stacklevel=4,
            )


def dolly(
    max_length: Annotated[int, Field(ge=2)] = MAX_LENGTH,
    template: str = TEMPLATE,
    validation: Share = 0.1,
    test: Share = 0.1,
    evaluate: Literal["validation", "test"] = "test",
    split_seed: SplitSeed = 0,
    samples: Annotated[int, Field(ge=1)] | None = None,
) -> Text:
    """Dolly-15k: 15,011 instructions of eight categories, written by people.

    The parts for validation and test take the same share of every category; `evaluate` says on which of them models are
    measured. They are drawn with `split_seed`, or, if it is "run", with each run's own seed. `samples` takes so many
    records only, of every category alike.
    """
    (content,) = files.read("dolly").values()
    records = instructions.parse(content, "dolly")
    return _checked(
        Text(
            "dolly",
            records,
            template=template,
            max_length=max_length,
            shares=(validation, test),
            split_seed=split_seed,
            evaluate=evaluate,
            samples=samples,
        ),
        "problem.dataset.dolly",
    )


def own_instructions(
    file: Annotated[str | list[str], Description("a file, or a list of one file per client")],
    test_file: str | None = None,
    fields: dict[str, str] | None = None,
    max_length: Annotated[int, Field(ge=2)] = MAX_LENGTH,
    template: str = TEMPLATE,
    validation: Share = 0.1,
    test: Share = 0.1,
    evaluate: Literal["validation", "test"] = "test",
    split_seed: SplitSeed = 0,
    samples: Annotated[int, Field(ge=1)] | None = None,
) -> Text:
    """A person's own: one file, or a list of one per client.

    Of one file, parts are kept for validation and test, of every category alike, unless there is a `test_file`.
    Clients' own files are trained on in full. `fields` says by which names a file has them.
    """
    if not file:
        raise ConfigError("problem.dataset.instructions.file", f"{file!r} given; it must be a file, or one per client")
    name = file if isinstance(file, str) else f"{file[0]} and {len(file) - 1} more" if file[1:] else "".join(file)
    instructions.check_fields(fields or {}, "problem.dataset.instructions.fields")
    parts = [instructions.read(Path(path), fields) for path in ([file] if isinstance(file, str) else file)]
    text = _checked(
        Text(
            name,
            [record for part in parts for record in part],
            None if test_file is None else instructions.read(Path(test_file), fields),
            None if isinstance(file, str) else [len(part) for part in parts],
            template=template,
            max_length=max_length,
            shares=(validation, test),
            split_seed=split_seed,
            evaluate=evaluate,
            samples=samples,
        ),
        "problem.dataset.instructions",
    )
    if text.test is not None or text.owners is not None:
        _check_no_split(text, "a test_file" if text.owners is None else "one file per client")
    return text


def _check_no_split(text: Text, given: str) -> None:
    """Refuse settings of parts that are not drawn, where a person has changed them."""
    own: dict[str, object] = {"validation": text.shares[0], "test": text.shares[1], "evaluate": text.evaluate}
    own |= {"split_seed": text.split_seed, "samples": text.samples}
    usual = inspect.signature(own_instructions).parameters
    for key, value in own.items():
        if value != usual[key].default:
            said = f"{value!r} given, but with {given} nothing is split: all of it is trained on"
            raise ConfigError(f"problem.dataset.instructions.{key}", f"{said}; leave it out")


def _checked(text: Text, key: str) -> Text:
    instructions.check_template(text.template, f"{key}.template")
    if sum(text.shares) >= 1:
        given = f"{text.shares[0]:g} and test = {text.shares[1]:g}"
        raise ConfigError(f"{key}.validation", f"{given} given; together they must be below 1")
    return text


@lru_cache(maxsize=1)
def load_tokenizer(name: str) -> Any:
    """The tokenizer of a pretrained model, of Hugging Face's kind."""
    return pretrained.read("AutoTokenizer", name, "problem.model.lora")


@lru_cache(maxsize=1)
def _tokens(
    tokenizer: Any, prompts: tuple[str, ...], responses: tuple[str, ...]
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of prompts and responses; the last are remembered, for the cells of a sweep take the same texts."""
    with pretrained.quiet():
        return tokenizer(list(prompts))["input_ids"], tokenizer(list(responses), add_special_tokens=False)["input_ids"]


def arguments(spec: object) -> dict[str, Any] | None:
    """What a person gave of instructions of their own, `{ instructions = … }`; None if it is something else."""
    if not isinstance(spec, Mapping) or list(spec) != ["instructions"]:
        return None
    given = spec["instructions"]
    return dict(given) if isinstance(given, Mapping) else {"file": given}
