"""Topologies and mixing matrices as the user specifies them: a name, a table, a file, or the object itself.

A string is read as a file if it is not a registered name and looks like a path (it has a suffix or a folder, or the
file exists); paths are relative to `base`, the folder of the configuration.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from depositum.bounded_reading import check_size, open_regular_file, read_array
from depositum.errors import DataError, NetworkError, is_integer, nearest, short_repr
from depositum.networks.graphs import MAX_CLIENTS, TOPOLOGIES, Graph, as_client_graph, check_graph_size
from depositum.networks.mixing_matrices import MIXINGS, Matrix, Sparse
from depositum.registry import Registry, Spec

#: A name or table (`"ring"`, `{"ring": {"hops": 2}}`), the path of an edge list, or a networkx graph.
Topology = Spec | Path | Graph
#: A name (`"metropolis"`), the path of a `.npy`, `.csv` or `.txt` file, or a matrix `[n, n]`, dense or SciPy sparse.
Mixing = Spec | Path | ArrayLike | Sparse


def topology_graph(topology: Topology, n: int, base: Path | None = None, all_linked: bool = True) -> tuple[str, Graph]:
    """The name of a topology, and its graph on n clients, each of which a file must link if `all_linked`."""
    if isinstance(topology, nx.Graph):
        graph = as_client_graph(topology)
        if len(graph) != n:
            raise NetworkError("topology", f"a graph of {len(graph)} nodes given for {n} clients")
        return "graph", graph
    if isinstance(n, bool) or not is_integer(n) or n < 1:
        raise NetworkError("n", f"a network of {short_repr(n)} clients requested; it must have 1 client or more")
    if n > MAX_CLIENTS:
        raise NetworkError("n", f"{short_repr(n)} given; a network can have at most {MAX_CLIENTS} clients")
    if (file := _file(topology, TOPOLOGIES, base)) is not None:
        return file.name, read_edges(file, n, all_linked=all_linked)
    assert not isinstance(topology, Path)
    choice = TOPOLOGIES.parse(topology, "topology")
    check_graph_size(choice.name, int(n), choice.arguments)
    default = {name: parameter.default for name, parameter in TOPOLOGIES.parameters(choice.name).items()}
    chosen = ", ".join(f"{name}={value}" for name, value in choice.arguments.items() if value != default[name])
    # Nothing else refers to the graph: freezing it avoids a copy.
    return f"{choice.name}({chosen})" if chosen else choice.name, nx.freeze(choice.make(int(n)))


def mixing_matrix(mixing: Mixing, graph: Graph, base: Path | None = None) -> tuple[str, Matrix | Sparse]:
    """The name of a mixing rule or matrix, and its W on a graph with nodes 0 … n-1."""
    if isinstance(mixing, str | Path) and (file := _file(mixing, MIXINGS, base)) is not None:
        return file.name, read_matrix(file)
    if isinstance(mixing, str | Mapping):
        choice = MIXINGS.parse(mixing, "mixing")
        return choice.name, choice.make(graph)
    return "matrix", real_matrix(mixing, "the given matrix")


def real_matrix(values: Any, what: str) -> Matrix | Sparse:
    """A float64 copy of a matrix of real numbers, dense or sparse as given; anything else raises a `NetworkError`."""
    try:
        array: Any = values if sparse.issparse(values) else np.asarray(values)
    except Exception:  # whatever the conversion of a user's object raises
        raise NetworkError(
            "mixing", f"{what} cannot be read as a matrix; it needs rows of equal length, all real numbers"
        ) from None
    if array.dtype.kind not in "biuf":
        raise NetworkError("mixing", f"{what} contains {array.dtype} values; weights must be real numbers")
    copy: Matrix | Sparse = array.astype(np.float64)
    return copy


def read_edges(file: Path, n: int, directed: bool = False, all_linked: bool = True, key: str = "topology") -> Graph:
    """The graph of an edge-list file: one edge `i j` per line, clients numbered from 0, comments after `#`.

    `all_linked` refuses clients without an edge, which a graph of a sequence can have. Errors name `key`.
    """
    graph = nx.empty_graph(n, nx.DiGraph if directed else None)
    for line, fields in _fields(file, key):
        try:
            i, j = (int(field) for field in fields)
        except ValueError:
            raise NetworkError(
                key, f"{file}, line {line}: {_excerpt(fields)} is not an edge; a line has two client numbers 'i j'"
            ) from None
        for client in (i, j):
            if not 0 <= client < n:
                raise NetworkError(
                    key, f"{file}, line {line}: client {client} does not exist; {n} clients are numbered 0 to {n - 1}"
                )
        graph.add_edge(i, j)
    graph = graph if directed else as_client_graph(graph)
    isolated = sorted(nx.isolates(graph))
    if isolated and n > 1 and all_linked:
        named = ", ".join(map(str, isolated[:5])) + (", …" if len(isolated) > 5 else "")
        raise NetworkError(
            key, f"{file}: no edge for {len(isolated)} of {n} clients ({named}); each needs one, or set fewer clients"
        )
    return graph


def read_matrix(file: Path) -> Matrix | Sparse:
    """The matrix in a `.npy` file, or in a text file with one row per line and comments after `#`."""
    key = "mixing"
    if file.suffix == ".npy":
        with _opened(file, key, "a NumPy array of numbers") as content:
            try:
                loaded = read_array(content, str(file), os.fstat(content.fileno()).st_size)
            except DataError:
                raise
            except Exception:  # NumPy parses the header as Python, which raises errors of many types
                raise DataError("it is damaged or another file; write it with np.save") from None
        return real_matrix(loaded, str(file))
    if file.suffix not in (".csv", ".txt"):
        raise NetworkError(key, f"{file} given; a matrix is read from a '.npy', '.csv' or '.txt' file")
    rows: list[list[float]] = []
    for line, fields in _fields(file, key):
        try:
            rows.append([float(field) for field in fields])
        except ValueError:
            raise NetworkError(key, f"{file}, line {line}: {_excerpt(fields)} is not a row of numbers") from None
        if len(rows[-1]) != len(rows[0]):
            raise NetworkError(key, f"{file}, line {line}: {len(fields)} numbers, but {len(rows[0])} in the first row")
    return np.array(rows, dtype=np.float64)


def _file(given: object, registry: Registry[Any], base: Path | None) -> Path | None:
    """The file that the user specified, or None for a name or a table."""
    if not isinstance(given, str | Path) or (isinstance(given, str) and given in registry):
        return None
    try:
        file = (base or Path()) / Path(given).expanduser()
        looks_like_path = isinstance(given, Path) or file.suffix or "/" in given or file.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, of a user who does not exist, with a NUL
        return given if isinstance(given, Path) else None
    return file if looks_like_path else None


def _fields(file: Path, key: str) -> list[tuple[int, list[str]]]:
    """Number and fields of each nonempty line, split at blanks and commas, without comments."""
    with _opened(file, key, "text") as content:
        check_size(str(file), os.fstat(content.fileno()).st_size)
        try:
            text = content.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(str(error)) from None
    lines = (line.partition("#")[0].replace(",", " ").split() for line in text.splitlines())
    return [(number, fields) for number, fields in enumerate(lines, 1) if fields]


@contextmanager
def _opened(file: Path, key: str, kind: str) -> Iterator[BinaryIO]:
    """A file for reading as what `kind` says; whatever is wrong with it is an error about `key`."""
    if not file.exists():
        raise _missing(file, key)
    try:
        with open_regular_file(file) as content:
            yield content
    except DataError as error:
        reason = str(error).removeprefix(f"{file}: ")
        raise NetworkError(key, f"{file} cannot be read as {kind}: {reason}") from None


def _excerpt(fields: list[str]) -> str:
    return repr(" ".join(fields[:4]) + (" …" if len(fields) > 4 else ""))


def _missing(file: Path, key: str) -> NetworkError:
    if key not in ("topology", "mixing"):  # of which only a file can be given
        return NetworkError(key, f"{file} does not exist")
    names = TOPOLOGIES if key == "topology" else MIXINGS
    return NetworkError(
        key, f"{file} does not exist; give a file or one of {', '.join(names)}{nearest(file.stem, names)}"
    )
