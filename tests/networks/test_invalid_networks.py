"""Networks that violate Assumption 2 and files that cannot be read: each has its own error message."""

import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from depositum import networks
from depositum.errors import ConfigError, NetworkError
from depositum.networks import Network
from tests.support.network_cases import INVALID_MATRICES, RING


@pytest.mark.parametrize(
    ("matrix", "message"), [case[1:] for case in INVALID_MATRICES], ids=[case[0] for case in INVALID_MATRICES]
)
def test_each_invalid_matrix_has_its_own_error(matrix, message):
    """Given with a graph: the message names the condition that fails, and the entry."""
    with pytest.raises(NetworkError, match=message) as caught:
        networks.build("ring" if "'graph'" not in message else nx.cycle_graph(5), matrix, 5)
    assert caught.value.key == "mixing"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "case", ["asymmetric", "not stochastic", "negative weight", "zero diagonal", "not square", "NaN"]
)
def test_an_invalid_matrix_without_a_graph_has_the_same_error(case):
    """Deriving the graph from W must not hide what is wrong with W."""
    matrix, message = next((matrix, message) for name, matrix, message in INVALID_MATRICES if name == case)
    with pytest.raises(NetworkError, match=message) as caught:
        Network.from_matrix(matrix)
    assert caught.value.key == "mixing"


def test_messages_are_distinct():
    """Each condition has its own wording, apart from the numbers: none is reported as another."""
    seen = set()
    for name in ("asymmetric", "not stochastic", "weight off the graph", "zero weight on an edge", "zero diagonal"):
        matrix = next(matrix for case, matrix, _ in INVALID_MATRICES if case == name)
        with pytest.raises(NetworkError) as caught:
            networks.build("ring", matrix, 5)
        seen.add("".join(c for c in caught.value.problem if not (c.isdigit() or c in ".-")))
    assert len(seen) == 5


def test_a_disconnected_graph_reports_its_components_and_an_unreachable_client():
    graph = nx.Graph([(0, 1), (1, 2), (3, 4), (5, 6), (6, 3)])
    graph.add_node(7)
    with pytest.raises(NetworkError, match=r"^topology: .*3 components: client 3 cannot reach client 0") as e:
        Network.from_graph(graph)
    assert e.value.key == "topology"


def test_a_disconnected_matrix_is_reported_under_the_mixing_key():
    """Two separate pairs: W is symmetric and stochastic, and λ would be 1."""
    W = np.kron(np.eye(2), np.full((2, 2), 0.5))
    with pytest.raises(NetworkError, match=r"^mixing: .*2 components: client 2 cannot reach client 0"):
        Network.from_matrix(W)


def test_the_most_specific_error_is_reported_first():
    """A disconnected graph is not reported as an invalid mixing, nor a one-sided weight as a disconnected graph."""
    with pytest.raises(NetworkError, match="2 components"):
        Network.from_graph(nx.Graph([(0, 1), (2, 3)]), "uniform")
    with pytest.raises(NetworkError, match=r"not symmetric: w\[0, 1\] = 0.0 but w\[1, 0\] = 0.5"):
        Network.from_matrix(np.array([[1.0, 0.0], [0.5, 0.5]]))


def test_the_dataclass_validates_its_fields():
    """No Network is made without the checks, whichever way it is constructed."""
    with pytest.raises(NetworkError, match="not linked"):
        Network(nx.path_graph(5), RING)
    with pytest.raises(NetworkError, match="2 components"):
        Network(nx.Graph([(0, 1), (2, 3)]), np.kron(np.eye(2), np.full((2, 2), 0.5)))


def test_one_way_links_are_rejected():
    graph = nx.DiGraph([(0, 1), (1, 0), (1, 2)])
    with pytest.raises(NetworkError, match=r"an edge from 1 to 2 but none back .* both ways"):
        Network.from_graph(graph)


@pytest.mark.parametrize(
    ("spec", "n", "key", "message"),
    [
        ("rnig", 10, "topology", "'rnig' is not a topology; it can be 'ring', .*; did you mean 'ring'"),
        ("erdos_renyi", 10, "topology", "did you mean 'erdos-renyi'"),
        ({"ring": {"hop": 2}}, 10, "topology.ring.hop", "did you mean 'hops'"),
        ({"ring": {"hops": "2"}}, 10, "topology.ring.hops", "'2' given"),
        ({"ring": {"hops": 0}}, 10, "topology.ring.hops", "0 given; it must be 1 or more"),
        ({"complete": 3}, 10, "topology.complete", "takes no arguments"),
        ("hypercube", 10, "topology", "of 10 clients given; it needs a power of two, such as 8 or 16"),
        ({"grid": {"rows": 4}}, 10, "topology.grid.rows", "4 given, .* 10 clients; .* 1, 2, 5, 10"),
        ({"torus": {"cols": 0}}, 10, "topology.torus.cols", "0 given"),
        (
            {"torus": {"rows": 5, "cols": 5}},
            10,
            "topology.torus",
            "5 rows × 5 cols given, which is 25 clients",
        ),
        ({"erdos-renyi": {"p": 1.5}}, 10, "topology.erdos-renyi.p", "1.5 given; a probability"),
        ({"erdos-renyi": {"p": float("nan")}}, 10, "topology.erdos-renyi.p", "nan given"),
        ({"erdos-renyi": {"p": 0.02}}, 10, "topology", "none of 100 .* connected, .* components; raise p"),
        ({"geometric": {"radius": -0.1}}, 10, "topology.geometric.radius", "-0.1 given; a distance"),
        ({"geometric": {"radius": 0.01}}, 10, "topology", "none of 100 .* components; raise radius"),
        ("ring", 0, "n", "a network of 0 clients requested; it must have 1 client or more"),
        ("ring", -3, "n", "a network of -3 clients"),
        ("ring", 2.5, "n", "a network of 2.5 clients"),
        (nx.path_graph(4), 5, "topology", "a graph of 4 nodes given for 5 clients"),
        (nx.Graph(), 0, "topology", "has no clients"),
    ],
)
def test_invalid_topologies(spec, n, key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        networks.build(spec, "metropolis", n)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_invalid_mixing_rules():
    message = r"^mixing: 'metropolos' is not a mixing rule; .* did you mean 'metropolis'"
    with pytest.raises(ConfigError, match=message):
        networks.ring(10, mixing="metropolos")
    with pytest.raises(NetworkError, match=r"^mixing: 'uniform' given, but clients 0 and 2 are not linked"):
        networks.ring(10, mixing="uniform")


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize("separator", [" ", "\t", ",", " , "])
def test_edge_list_file(write, tmp_path, separator):
    """Comments, blank lines, repeated and reversed edges, self-loops; the path may be relative to the configuration."""
    lines = ["# a square", "0 1", "", "1 2  # here too", "2 3", "3 0", "0 3", "2 2"]
    file = write(
        "square.edges", "\n".join(line.replace(" ", separator) if line[:1].isdigit() else line for line in lines)
    )
    for given, base in ((str(file), None), (file, None), ("square.edges", tmp_path), (Path("square.edges"), tmp_path)):
        network = networks.build(given, "metropolis", 4, base)
        assert network.neighbours == ((1, 3), (0, 2), (1, 3), (0, 2))
        assert network.name == "square.edges"


def test_registered_names_take_precedence_over_files(write, tmp_path):
    """A file without a suffix is found, but a file called `star` does not replace the topology."""
    write("links", "0 1\n1 2\n")
    write("star", "0 1\n1 2\n")
    assert networks.build("links", "metropolis", 3, tmp_path).neighbours[1] == (0, 2)
    assert networks.build("star", "metropolis", 3, tmp_path).neighbours[0] == (1, 2)


def test_edge_list_of_one_client(write):
    assert networks.network(write("one.txt", "# nobody to talk to\n"), 1).n == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n# fine\n1 two\n", r"bad\.txt, line 3: '1 two' is not an edge; a line has two client numbers 'i j'"),
        ("0 1\n1\n", r"bad\.txt, line 2: '1' is not an edge"),
        ("0 1 0.5\n", r"bad\.txt, line 1: '0 1 0.5' is not an edge"),
        ("0 1\n1 2.0\n", r"bad\.txt, line 2: '1 2.0' is not an edge"),
        (" ".join("0" * 40), r"line 1: '0 0 0 0 …' is not an edge"),
        ("0 1\n1 2\n2 4\n", r"bad\.txt, line 3: client 4 does not exist; 4 clients are numbered 0 to 3"),
        ("-1 1\n", r"bad\.txt, line 1: client -1 does not exist"),
        ("0 1\n1 2\n", r"bad\.txt: no edge for 1 of 4 clients \(3\)"),
        ("0 1\n3 3\n", r"bad\.txt: no edge for 2 of 4 clients \(2, 3\)"),
        ("", r"bad\.txt: no edge for 4 of 4 clients \(0, 1, 2, 3\)"),
        ("0 1\n2 3\n", r"'bad\.txt' has 2 components: client 2 cannot reach client 0"),
    ],
)
def test_invalid_edge_lists(write, text, message):
    with pytest.raises(NetworkError, match=message) as caught:
        networks.network(write("bad.txt", text), 4)
    assert caught.value.key == "topology"


def test_unreadable_files(tmp_path):
    """The error of a missing file lists the registered names too, as a misspelt name may look like a file."""
    with pytest.raises(NetworkError, match=r"^topology: .*rinng\.txt does not exist; .* did you mean 'ring'"):
        networks.build("rinng.txt", "metropolis", 4, tmp_path)
    for name in ("W.csv", "W.npy"):
        with pytest.raises(NetworkError, match=r"^mixing: .*W\.\w+ does not exist; .* metropolis"):
            networks.build("ring", name, 4, tmp_path)
    with pytest.raises(NetworkError, match=r"^topology: .* cannot be read as text"):
        networks.build(tmp_path, "metropolis", 4)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NetworkError, match=r"^topology: .* cannot be read as text"):
        networks.build("bytes.txt", "metropolis", 4, tmp_path)


def test_matrix_files(tmp_path):
    """Each format gives the same W, named after the file."""
    np.save(tmp_path / "W.npy", RING)
    np.savetxt(tmp_path / "W.csv", RING, delimiter=",", header="a ring")
    np.savetxt(tmp_path / "W.txt", RING)
    for name in ("W.npy", "W.csv", "W.txt"):
        network = networks.build("ring", name, 5, tmp_path)
        assert np.abs(network.W - RING).max() < 1e-15
        assert network.mixing == name
        assert (Network.from_graph(nx.cycle_graph(5), tmp_path / name).W == network.W).all()


def test_invalid_matrix_files(tmp_path, write):
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(NetworkError, match=r"objects\.npy cannot be read as a NumPy array of numbers"):
        networks.build("ring", "objects.npy", 5, tmp_path)
    write("text.npy", "0.5 0.5")
    with pytest.raises(NetworkError, match=r"text\.npy cannot be read as a NumPy array of numbers"):
        networks.build("ring", "text.npy", 5, tmp_path)
    with pytest.raises(NetworkError, match=r"W\.pt given; a matrix is read from a '\.npy', '\.csv' or '\.txt' file"):
        networks.build("ring", write("W.pt", ""), 5)
    with pytest.raises(NetworkError, match=r"W\.csv, line 3: '0.5 x' is not a row of numbers"):
        networks.build("ring", write("W.csv", "# two\n0.5,0.5\n0.5,x\n"), 2)
    with pytest.raises(NetworkError, match=r"W\.txt, line 2: 1 numbers, but 2 in the first row"):
        networks.build("ring", write("W.txt", "0.5 0.5\n0.5\n"), 2)
    with pytest.raises(NetworkError, match=r"shape \(0,\) given"):
        networks.build("ring", write("empty.txt", ""), 2)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (5, 5",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 5)}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': " + b"(" * 3000,
    ],
)
def test_damaged_headers_of_matrix_files(tmp_path, header):
    """A truncated header ended in a TokenError, and one of 10^15 entries in a MemoryError."""
    (tmp_path / "W.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(NetworkError, match=r"^mixing: .*W\.npy cannot be read as a NumPy array of numbers") as error:
        networks.build("ring", "W.npy", 5, tmp_path)
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize("name", ["edges.txt", "W.npy", "W.csv"])
def test_a_pipe_is_refused(tmp_path, name):
    """Opening it would wait for a writer."""
    os.mkfifo(tmp_path / name)
    given = (name, "metropolis") if name == "edges.txt" else ("ring", name)
    with pytest.raises(NetworkError, match="cannot be read as .*: is a pipe, socket or device, not a file"):
        networks.build(*given, 5, tmp_path)
