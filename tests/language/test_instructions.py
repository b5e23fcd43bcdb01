"""Instruction datasets: valid lines, the tokens that are learnt, splits and partitions."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depositum import data
from depositum.errors import ConfigError, DataError
from depositum.language import IGNORED, TokenSamples
from depositum.language.instruction_records import (
    TEMPLATE,
    InstructionRecord,
    parse_records,
    read_records,
    stratified_split,
)

pytest.importorskip("transformers")
from tests.support.language_models import END, make_tokenizer, records, write_lines


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def load(tokenizer: str, **arguments: Any) -> data.Dataset:
    return data.load({"instructions": {"max_length": 64, **arguments}}, tokenizer=tokenizer)


# Lines of a file


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"instruction": "a", "response": ', "is not a JSON object on one line"),
        ("[", 'write one {"instruction": …, "response": …} per line'),
        (
            '{"question": "a", "answer": "b"}',
            "'question', 'answer'; if the field has another name, set fields = { instruction = \"…\" }",
        ),
        ('["a", "b"]', "is a list; it must be an object"),
        ("3", "is an int; it must be an object"),
        ('{"instruction": "a"}', "has no 'response'; it has 'instruction'"),
        ("{}", "has no 'instruction'; it has no fields"),
        ('{"instruction": "a", "response": 5}', "'response' is 5; it must be a string"),
        ('{"instruction": "a", "response": null}', "'response' is None; it must be a string"),
        ('{"instruction": " ", "response": "b"}', "'instruction' is empty"),
        ('{"instruction": "a", "response": "b", "context": ["c"]}', "'context' is ['c']; it must be a string"),
    ],
)
def test_an_invalid_line_is_rejected(tmp_path: Path, line: str, message: str) -> None:
    """The error names the file, the line number and the problem, in one line."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"instruction": "a", "response": "b"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_records(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing, an empty and a damaged file have different messages."""
    empty, damaged = tmp_path / "empty.jsonl", tmp_path / "damaged.jsonl.gz"
    empty.touch()
    damaged.write_bytes(gzip.compress(b'{"instruction": "a", "response": "b"}')[:-9])
    for path, message in ((tmp_path / "no.jsonl", "cannot be read"), (empty, "is empty"), (damaged, "is damaged")):
        with pytest.raises(DataError, match=message):
            read_records(path)


def test_renamed_fields_and_packed_files(tmp_path: Path) -> None:
    """`fields` maps the file's names to the package's; a Unicode line separator does not end a line."""
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"q": "a\u2028b", "a": "c"}, ensure_ascii=False).encode()))
    assert read_records(path, {"instruction": "q", "response": "a"}) == [InstructionRecord("a\u2028b", "c")]


def test_the_template_omits_empty_fields() -> None:
    """The text of a record is not interpreted as part of the template."""
    with_context = InstructionRecord("Sum up {context}.", "…", context="{instruction}")
    assert with_context.prompt() == "Instruction:\nSum up {context}.\n\nContext:\n{instruction}\n\nResponse:\n"
    assert InstructionRecord("Hi", "…").prompt("Q: {instruction} A: ") == "Q: Hi A: "
    assert "{context}" in TEMPLATE


# Tokens


def test_only_response_tokens_are_predicted(tokenizer: str, tmp_path: Path) -> None:
    """Each byte is one token here, so that positions can be counted."""
    lines = [{"instruction": "ab", "response": "xyz"}, {"instruction": "abcd", "response": "w"}]
    file = write_lines(tmp_path / "mine.jsonl", lines)
    dataset = load(tokenizer, file=str(file), template="{instruction}:", max_length=7, test=0.0, validation=0.0)
    ids = make_tokenizer().get_vocab()
    a, b, c, d, w, x, y, z = (ids[letter] for letter in "abcdwxyz")
    colon, end, no = ids[":"], ids[END], IGNORED
    # "ab:" and "xyz<end>" are seven tokens, "abcd:" and "w<end>" too: six inputs, and two of padding.
    assert dataset.train.inputs.tolist() == [[a, b, colon, x, y, z, end, end], [a, b, c, d, colon, w, end, end]]
    assert dataset.train.targets.tolist() == [[no, no, x, y, z, end, no, no], [no, no, no, no, w, end, no, no]]
    assert isinstance(dataset.train, TokenSamples)
    assert dataset.train.terms.tolist() == [4, 2]
    # A sequence that is too long is truncated.
    cut = load(tokenizer, file=str(file), template="{instruction}:", max_length=6, test=0.0, validation=0.0)
    assert cut.train.targets.tolist() == [[no, no, x, y, z, no, no, no], [no, no, no, no, w, no, no, no]]
    # A large max_length costs nothing: sequences are padded to the longest.
    long = load(tokenizer, file=str(file), template="{instruction}:", max_length=500, test=0.0, validation=0.0)
    assert long.train.inputs.tolist() == dataset.train.inputs.tolist()
    padded = dataset.train.padded_to(16)
    assert padded.targets.tolist() == [[*row, *[no] * 8] for row in dataset.train.targets.tolist()]
    assert padded.inputs[:, :8].tolist() == dataset.train.inputs.tolist()


def test_sequences_without_a_response_are_dropped_with_a_warning(tokenizer: str, tmp_path: Path) -> None:
    """A prompt that fills max_length leaves nothing to learn; if no sequence is left, the dataset is rejected."""
    lines = [{"instruction": "a" * size, "response": "xyz"} for size in (1, 4, 5, 50)]
    file = str(write_lines(tmp_path / "mine.jsonl", lines))
    shares = {"template": "{instruction}", "test": 0.0, "validation": 0.0}
    with pytest.warns(RuntimeWarning, match="2 of 4 sequences are dropped"):
        dataset = load(tokenizer, file=file, max_length=5, **shares)
    assert (dataset.train.targets != IGNORED).sum(1).tolist() == [4, 1]
    with pytest.raises(DataError, match="no sequence is left"), pytest.warns(RuntimeWarning, match="4 of 4"):
        load(tokenizer, file=file, max_length=2, **shares | {"template": "{instruction}!"})


# Splits, clients and categories


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    shares=st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)),
    seed=st.integers(0, 1000),
)
def test_splits_are_stratified(sizes: list[int], shares: tuple[float, float], seed: int) -> None:
    """Every record is in one part, and parts have their share of every category, to the nearest record."""
    categories = [f"kind {i}" for i, size in enumerate(sizes) for _ in range(size)]
    parts = stratified_split(categories, shares, seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(categories)))
    wanted = (*shares, 1 - sum(shares))
    for i, size in enumerate(sizes):
        for part, share in zip(parts, wanted, strict=True):
            mine = sum(categories[index] == f"kind {i}" for index in part)
            assert abs(mine - share * size) <= 1.0 + 1e-9
    assert all(np.array_equal(a, b) for a, b in zip(parts, stratified_split(categories, shares, seed), strict=True))


def test_one_file_is_split_and_a_test_file_is_not(tokenizer: str, tmp_path: Path) -> None:
    """Training, validation and test parts are disjoint, and depend on the seed."""
    file = str(write_lines(tmp_path / "mine.jsonl", records(60)))
    test, validation = (load(tokenizer, file=file, evaluate=part) for part in ("test", "validation"))
    assert (len(test.train), len(test.test), len(validation.test)) == (48, 6, 6)
    assert torch.equal(test.train.inputs, validation.train.inputs)
    seen = [{tuple(row) for row in part.inputs.tolist()} for part in (test.train, test.test, validation.test)]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 60
    assert test.test.category.bincount().tolist() == [2, 2, 2]
    assert test.test.categories == ("arithmetic", "naming", "spelling")
    other = load(tokenizer, file=file, split_seed=1)
    assert not torch.equal(other.test.inputs, test.test.inputs)
    few = load(tokenizer, file=file, samples=30)
    assert (len(few.train), len(few.test)) == (24, 3)
    apart = load(tokenizer, file=file, test_file=str(write_lines(tmp_path / "t.jsonl", records(4, first=100))))
    assert (len(apart.train), len(apart.test)) == (60, 4)


def test_every_seed_may_have_its_own_split(tokenizer: str, tmp_path: Path) -> None:
    """With `split_seed = "run"`, the parts of a seed are those of a run with that `split_seed`."""
    file = str(write_lines(tmp_path / "mine.jsonl", records(60)))
    for chosen in ({}, {"evaluate": "validation"}, {"samples": 30}):
        every = load(tokenizer, file=file, split_seed="run", **chosen)
        assert every.split is not None
        for seed in (0, 5):
            alone, (train, tested) = load(tokenizer, file=file, split_seed=seed, **chosen), every.split(seed)
            assert alone.split is None
            assert torch.equal(every.train.take(train).inputs, alone.train.inputs)
            assert torch.equal(every.test.take(tested).targets, alone.test.targets)
            assert torch.equal(every.test.take(tested).category, alone.test.category)
    assert load(tokenizer, file=file, split_seed="run", test=0.0).test is None
    with pytest.raises(ConfigError, match=r"split_seed: 'never' given; it must be a whole number or 'run'"):
        load(tokenizer, file=file, split_seed="never")


def test_names_of_categories(tokenizer: str, tmp_path: Path) -> None:
    """Names of other columns are rejected; records without a category are counted as `other`."""
    for name in ("seed", "iteration", "overall"):
        lines = [{**record, "category": name} for record in records(6)]
        with pytest.raises(DataError, match=f"a category is called '{name}', which is a column of perplexity.csv"):
            load(tokenizer, file=str(write_lines(tmp_path / "mine.jsonl", lines)))
    lines = [{**record, "category": name} for record, name in zip(records(6), ("phases", "other", "") * 2, strict=True)]
    train = load(tokenizer, file=str(write_lines(tmp_path / "mine.jsonl", lines)), test=0.0, validation=0.0).train
    assert train.categories == ("other", "phases")
    assert train.category.tolist() == [1, 0, 0] * 2


def test_one_file_per_client(tokenizer: str, tmp_path: Path) -> None:
    """Each client has all records of its file; the pattern's file for `test` is the test data."""
    for client, size in enumerate((3, 5, 4)):
        write_lines(tmp_path / f"{client}.jsonl", records(size, first=10 * client))
    write_lines(tmp_path / "test.jsonl", records(6, first=90))
    pattern = {"instructions": {"file": "{client}.jsonl", "max_length": 64}}
    dataset = data.load(pattern, base=tmp_path, clients=3, tokenizer=tokenizer)
    assert [part.tolist() for part in dataset.clients] == [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(dataset.test) == 6
    with pytest.raises(DataError, match=r"3\.jsonl: no such file"):
        data.check(pattern, base=tmp_path, clients=4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ConfigError, "dataset.instructions.file: missing"),
        ({"file": "no.jsonl"}, DataError, "no.jsonl: no such file"),
        ({"file": "mine.jsonl", "max_length": 1}, ConfigError, "max_length: 1 given"),
        (
            {"file": "mine.jsonl", "template": "Q:"},
            ConfigError,
            "dataset.instructions.template: 'Q:' given; it must contain {instruction}",
        ),
        ({"file": "mine.jsonl", "fields": {"respones": "a"}}, ConfigError, "did you mean 'response'?"),
        (
            {"file": "mine.jsonl", "test": 0.5, "validation": 0.5},
            ConfigError,
            "dataset.instructions.validation: 0.5 and test = 0.5 given; their sum must be below 1",
        ),
        ({"file": "mine.jsonl", "maximum": 3}, ConfigError, "unknown key"),
        ({"file": []}, ConfigError, "dataset.instructions.file: [] given; it must be a file"),
        ({"file": ["mine.jsonl"], "samples": 5}, ConfigError, "samples: 5 given, but with one file per client nothing"),
        (
            {"file": "mine.jsonl", "test_file": "mine.jsonl", "evaluate": "validation"},
            ConfigError,
            "evaluate: 'validation' given, but with a test_file nothing is split",
        ),
        (
            {"file": "mine.jsonl", "template": "{instruction} {contxt}"},
            ConfigError,
            "template: contains {contxt}; it may contain {instruction} and {context}; did you mean 'context'?",
        ),
    ],
)
def test_invalid_settings_are_rejected(
    tokenizer: str, tmp_path: Path, arguments: dict[str, Any], error: type, message: str
) -> None:
    """The error is one line and names the key."""
    write_lines(tmp_path / "mine.jsonl", records(10))
    with pytest.raises(error) as caught:
        data.load({"instructions": arguments}, base=tmp_path, tokenizer=tokenizer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("template", "Q:"), ("validation", 0.95)])
def test_errors_name_the_full_key(monkeypatch: pytest.MonkeyPatch, key: str, value: Any) -> None:
    """The settings of Dolly are reported under its name, as the user wrote them."""
    lines = "\n".join(map(json.dumps, records(10))).encode()
    monkeypatch.setattr(data.downloads, "read", lambda name: {"dolly": lines})
    with pytest.raises(ConfigError, match=rf"^dataset\.dolly\.{key}: {value!r} "):
        data.load({"dolly": {key: value}}, tokenizer="never read")


def test_texts_are_partitioned_by_category(tokenizer: str, tmp_path: Path) -> None:
    """As images by label: the records of a category are divided in Dirichlet shares, or in shards."""
    made = [{**record, "category": "ab"[i % 2]} for i, record in enumerate(records(200))]
    texts = load(tokenizer, file=str(write_lines(tmp_path / "mine.jsonl", made)))
    labels = texts.class_labels
    assert labels is not None
    assert texts.train.categories == ("a", "b")
    one, other = data.partition({"shards": 1}, texts, n=2, seed=0)
    assert {*labels[one]} | {*labels[other]} == {0, 1}
    assert len({*labels[one]}) == len({*labels[other]}) == 1
    apart = {
        str(spec): data.heterogeneity(data.partition(spec, texts, n=4, seed=0), labels)
        for spec in ("iid", {"dirichlet": 0.1}, {"dirichlet-clients": 0.1})
    }
    assert 3 * apart.pop("iid") < min(apart.values())


def test_texts_without_categories_cannot_be_partitioned_by_class(tokenizer: str, tmp_path: Path) -> None:
    """The partitions that the error recommends work."""
    made = [{k: v for k, v in record.items() if k != "category"} for record in records(20)]
    texts = load(tokenizer, file=str(write_lines(tmp_path / "mine.jsonl", made)))
    for spec in ({"dirichlet": 0.3}, {"dirichlet-clients": 0.3}, "shards"):
        message = r"has neither integer labels nor categories; use 'iid' or 'quantity', or one file per client$"
        with pytest.raises(ConfigError, match=message):
            data.partition(spec, texts, n=3, seed=0)
    for spec in ("iid", {"quantity": 0.3}):
        assert sum(map(len, data.partition(spec, texts, n=3, seed=0))) == len(texts.train)


def test_only_categories_of_the_test_data_are_measured(tokenizer: str, tmp_path: Path) -> None:
    """Fails if perplexity.csv has empty columns, which differ from those of processes that read the test file only."""
    train = [{**record, "category": "ab"[i % 2]} for i, record in enumerate(records(6))]
    files = {"file": str(write_lines(tmp_path / "mine.jsonl", train))}
    tested = [{**record, "category": "b"} for record in records(2)]
    texts = load(tokenizer, **files, test_file=str(write_lines(tmp_path / "test.jsonl", tested)))
    assert texts.test is not None
    assert (texts.train.categories, texts.test.categories) == (("a", "b"), ("b",))
    assert texts.test.category.tolist() == [0, 0]
    few = load(
        tokenizer, file=str(write_lines(tmp_path / "few.jsonl", [*train * 10, {**train[0], "category": "rare"}]))
    )
    assert few.test is not None
    assert few.train.categories == ("a", "b", "rare")
    assert few.test.categories == ("a", "b")


def test_text_needs_a_language_model(tmp_path: Path) -> None:
    """The error says that a tokenizer is missing."""
    write_lines(tmp_path / "mine.jsonl", records(3))
    with pytest.raises(ConfigError, match="is text, for a language model"):
        data.load({"instructions": "mine.jsonl"}, base=tmp_path)


def test_a_file_without_lines_is_rejected() -> None:
    with pytest.raises(DataError, match="one JSON object per line"):
        parse_records(b"\n \n", "mine")


def test_dolly(tokenizer: str, real_data: Path) -> None:
    """All 15,011 published records of eight categories, of which each has its share of the test part."""
    if not (real_data / "dolly").is_dir():
        pytest.skip(f"{real_data} has no dolly")
    with pytest.warns(RuntimeWarning, match="dolly: .* of 15011 sequences are dropped"):
        dataset = data.load("dolly", tokenizer=tokenizer)
    assert len(dataset.test.categories) == 8
    trained, tested = (torch.bincount(part.category, minlength=8) for part in (dataset.train, dataset.test))
    assert torch.allclose(tested / trained, torch.full((8,), 1 / 8.0), atol=0.15)
