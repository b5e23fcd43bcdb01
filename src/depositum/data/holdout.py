"""A part of the training data that is not trained on: settings are chosen by it, and the test data stays unseen."""

from dataclasses import replace

import numpy as np

from depositum.data.dataset import Dataset, Indices
from depositum.errors import DataError
from depositum.randomness import numpy_generator


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The dataset with `share` of its training samples, of each class alike, in the place of its test data.

    The same samples for the same seed. Clients that the data itself names keep what is left of theirs.

    >>> from depositum.data import load
    >>> part = hold_out(load("digits"), 0.1, seed=0)
    >>> len(part.train), len(part.test)
    (1295, 142)
    """
    taken = _chosen(dataset, share, numpy_generator(seed, purpose="holdout"))
    kept = np.setdiff1d(np.arange(len(dataset.train)), taken)
    if not len(taken) or not len(kept):
        raise DataError(f"{share!r} of {len(dataset.train)} training samples leaves none to train on, or none to test")
    clients = dataset.clients
    if clients is not None:
        place = np.full(len(dataset.train), -1)
        place[kept] = np.arange(len(kept))
        clients = tuple(place[own][place[own] >= 0] for own in clients)
    return replace(dataset, train=dataset.train.take(kept), test=dataset.train.take(taken), clients=clients)


def _chosen(dataset: Dataset, share: float, rng: np.random.Generator) -> Indices:
    """Places of the samples that are taken away, in order."""
    targets = dataset.train.targets.numpy()
    stratified = dataset.classes is not None and targets.ndim == 1
    groups = (
        [np.flatnonzero(targets == label) for label in np.unique(targets)] if stratified else [np.arange(len(targets))]
    )
    return np.sort(np.concatenate([rng.permutation(group)[: round(share * len(group))] for group in groups]))
