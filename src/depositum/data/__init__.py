"""Datasets, and their division among clients.

`load` gives a `Dataset`, `partition` says which client has which of its training samples.
"""

from depositum.data.dataset import Dataset, Indices, Samples
from depositum.data.files import Status, data_folder, fetch, status
from depositum.data.own import from_clients
from depositum.data.partitions import PARTITIONS, heterogeneity, partition
from depositum.data.sources import DATASETS, check, is_text, load
from depositum.data.text import TokenSamples

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Indices",
    "Samples",
    "Status",
    "TokenSamples",
    "check",
    "data_folder",
    "fetch",
    "from_clients",
    "heterogeneity",
    "is_text",
    "load",
    "partition",
    "status",
]
