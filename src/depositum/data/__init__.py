"""Datasets, and their partition among clients.

`load` returns a `Dataset`; `partition` decides which client owns which of its training samples.
"""

from depositum.data.client_files import CLIENT_PLACEHOLDER, client_file, shared_test_file, unused_file
from depositum.data.clients_in_memory import from_clients
from depositum.data.dataset import Dataset, Indices, Samples, encoding_digest, hold_out
from depositum.data.datasets import DATASETS
from depositum.data.downloads import PUBLISHED, DownloadStatus, data_folder, fetch, status
from depositum.data.loading import (
    arguments_without_paths,
    check,
    client_pattern,
    explicit_test_file,
    for_one_file,
    is_user_data,
    load,
    needs_tokenizer,
)
from depositum.data.partitions import PARTITIONS, class_counts, draw_partition, heterogeneity, partition
from depositum.data.user_arrays import check_labels, observed_labels, with_integer_labels

__all__ = [
    "CLIENT_PLACEHOLDER",
    "DATASETS",
    "PARTITIONS",
    "PUBLISHED",
    "Dataset",
    "DownloadStatus",
    "Indices",
    "Samples",
    "arguments_without_paths",
    "check",
    "check_labels",
    "class_counts",
    "client_file",
    "client_pattern",
    "data_folder",
    "draw_partition",
    "encoding_digest",
    "explicit_test_file",
    "fetch",
    "for_one_file",
    "from_clients",
    "heterogeneity",
    "hold_out",
    "is_user_data",
    "load",
    "needs_tokenizer",
    "observed_labels",
    "partition",
    "shared_test_file",
    "status",
    "unused_file",
    "with_integer_labels",
]
