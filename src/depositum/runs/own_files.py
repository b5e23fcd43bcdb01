"""The data of one process among many, where each client has a file of its own: no other client's file is opened.

What the ranks must know of each other's data to build the same model is told through the store: the shape of a sample,
the number of classes and, where clients are weighted by samples, how many each has.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depositum import data, models
from depositum.data import CLIENT_PLACEHOLDER, Dataset, Samples
from depositum.engines.processes import Group
from depositum.engines.processes.own_data import placeholder
from depositum.errors import DataError
from depositum.problem import Problem
from depositum.runs.build import problem_of
from depositum.runs.config import Config


def build_own_problem(config: Config, group: Group, held: range, base: Path | None = None) -> Problem:
    """The problem with the samples of the clients held here alone; all ranks must ask."""
    assert config.files_of_clients is not None
    pattern = config.files_of_clients
    with group.together("load the data"):
        files = [_load(config, pattern.replace(CLIENT_PLACEHOLDER, str(client)), base) for client in held]
        beside = _test_file(config, (base or Path()) / pattern)
        test = _load(config, str(beside), base) if beside is not None else None
    facts = _told(config, group, files, test)
    if any(fact["classes"] is not None for told in facts for fact in told):
        # One file of labels says what the others must be, as it does where one process loads them all.
        with group.together("load the data"):
            files = [_labelled(file) for file in files]
            test = _labelled(test) if test else None
        facts = _told(config, group, files, test)
    if data.needs_tokenizer(config.problem.dataset):
        length = max(fact["shape"][0] for told in facts for fact in told)
        files = [_filled(file, length) for file in files]
        test = _filled(test, length) if test else None
        facts = _told(config, group, files, test)
    with group.together("compare the data"):
        _check_alike(group, facts)
    with group.together("share the data"):
        everyone = [fact for told in facts for fact in told]
        data.check_labels(
            f"problem.dataset: {pattern}",
            {label for fact in everyone for label in fact["labels"]},
            quiet=group.rank > 0,
        )
        classes = None if everyone[0]["classes"] is None else max(fact["classes"] for fact in everyone)
        sizes = [fact["samples"] for told in facts for fact in told[: len(held)]]
        ends = np.cumsum([len(file.train) for file in files])
        mine = dict(zip(held, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        # How many samples others have matters only where clients are weighted by it.
        told = config.problem.weighting == "samples"
        parts = [mine[i] if i in mine else placeholder(sizes[i] if told else 1) for i in range(config.problem.clients)]
        train = Samples(
            torch.cat([file.train.inputs for file in files]), torch.cat([file.train.targets for file in files])
        )
        dataset = Dataset(pattern, train, test.train if test else None, classes)
        return problem_of(config, dataset, lambda seed: (parts, None), base)


def _test_file(config: Config, pattern: Path) -> str | Path | None:
    """The test data: of texts the file that is named, else the one beside the clients'."""
    return data.explicit_test_file(config.problem.dataset) or data.shared_test_file(pattern)


def _load(config: Config, file: str, base: Path | None) -> Dataset:
    try:
        return data.load(config.with_file(file), base, tokenizer=models.tokenizer_path(config.problem.model, base))
    except DataError as error:
        raise DataError(f"problem.dataset: {error}") from None


def _labelled(dataset: Dataset) -> Dataset:
    try:
        return data.with_integer_labels(dataset)
    except DataError as error:
        raise DataError(f"problem.dataset: {error}") from None


def _filled(dataset: Dataset, length: int) -> Dataset:
    """A text whose sequences are as long as the longest of all ranks."""
    return replace(dataset, train=dataset.train.padded_to(length))


def _told(config: Config, group: Group, files: list[Dataset], test: Dataset | None) -> list[list[dict[str, Any]]]:
    """What every rank says of its files and of the test data, by rank."""
    return group.tell([_facts(config, file) for file in [*files, *([test] if test else [])]], "load the data")


def _facts(config: Config, dataset: Dataset) -> dict[str, Any]:
    return {
        "settings": data.arguments_without_paths(config.problem.dataset),
        "shape": list(dataset.train.inputs.shape[1:]),
        "classes": dataset.classes,
        "labels": data.observed_labels(dataset),
        "samples": len(dataset.train),
    }


def _check_alike(group: Group, facts: list[list[dict[str, Any]]]) -> None:
    """Refuse, on this rank, data that no common model can have with rank 0's."""
    mine, first = facts[group.rank], facts[0]
    where = f"on {group.name(group.rank)}, but"
    if len(mine) != len(first):
        here, there = ("is" if len(part) > len(min(mine, first, key=len)) else "is not" for part in (mine, first))
        raise DataError(f"problem.dataset: the test file {here} there {where} {there} on {group.name(0)}")
    for fact in mine:
        if fact["settings"] != first[0]["settings"]:
            settings = f"{fact['settings']} {where} {first[0]['settings']}"
            raise DataError(f"problem.dataset: the settings of texts are {settings} on {group.name(0)}")
        if fact["shape"] != first[0]["shape"]:
            shapes = f"{tuple(fact['shape'])} {where} {tuple(first[0]['shape'])}"
            raise DataError(f"problem.dataset: samples have shape {shapes} on {group.name(0)}")
