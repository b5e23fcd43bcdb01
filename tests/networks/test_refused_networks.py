"""A network that does not satisfy Assumption 2, and files that cannot be read: each has its own message."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from depositum import networks
from depositum.errors import ConfigError, NetworkError
from depositum.networks import Network

RING = networks.ring(5).W


def changed(*entries: tuple[int, int, float]) -> np.ndarray:
    """The ring's matrix with a few entries replaced."""
    W = RING.copy()
    for i, j, value in entries:
        W[i, j] = value
    return W


def moved(i: int, j: int, amount: float) -> np.ndarray:
    """Weight moved between the link (i, j) and the two diagonal entries: still symmetric, rows still sum to one."""
    W = RING.copy()
    W[[i, j], [j, i]] += amount
    W[[i, j], [i, j]] -= amount
    return W


def cyclic_asymmetric() -> np.ndarray:
    """Rows and columns sum to one, but what goes round one way is more than the other way."""
    shift = np.roll(np.eye(5), 1, axis=1)
    return RING + 0.1 * (shift - shift.T)


BAD = [
    ("asymmetric", cyclic_asymmetric(), r"not symmetric: w\[0, 1\] = 0\.43\d+ but w\[1, 0\] = 0\.23\d+; both clients"),
    ("not stochastic", changed((3, 3, 0.5)), r"row 3 sums to 1\.16\d+ and not to 1; .* w\[3, 3\] = 1 - "),
    ("rounded to four digits", RING.round(4), r"row 0 sums to 0\.9999\d* and not to 1; .* full float64 precision"),
    (
        "weight off the graph",
        moved(0, 2, 0.1),
        r"w\[0, 2\] = 0\.1 given, but clients 0 and 2 are not linked in 'graph'",
    ),
    ("negative off the graph", moved(1, 3, -0.1), r"w\[1, 3\] = -0\.1 given, but clients 1 and 3 are not linked"),
    ("zero weight on an edge", moved(1, 2, -RING[1, 2]), r"w\[1, 2\] = 0\.0 given, but clients 1 and 2 are linked"),
    (
        "negative weight",
        moved(1, 2, -0.5),
        r"w\[1, 2\] = -0\.1\d+ given, but clients 1 and 2 are linked .* is positive",
    ),
    ("zero diagonal", (RING - np.eye(5) / 3) * 1.5, r"w\[0, 0\] = .* given; every client keeps a positive share"),
    ("too small", networks.ring(4).W, r"shape \(4, 4\) given; 5 clients need \(5, 5\)"),
    ("not square", RING[:4], r"shape \(4, 5\) given; W is square"),
    ("flat", RING[0], r"shape \(5,\) given; W is square"),
    ("empty", np.zeros((0, 0)), r"shape \(0, 0\) given; W is square"),
    ("NaN", changed((2, 1, np.nan)), r"w\[2, 1\] = nan is not finite"),
    ("infinite", changed((0, 4, np.inf)), r"w\[0, 4\] = inf is not finite"),
    ("complex", RING.astype(complex), r"holds complex128 values; weights are real numbers"),
    ("ragged", [[1.0], [0.5, 0.5]], r"cannot be read as a matrix; it needs rows of one length"),
]


@pytest.mark.parametrize(("matrix", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_each_bad_matrix_has_its_own_error(matrix, message):
    """Given with a graph: the message says which condition fails, and at which entry."""
    with pytest.raises(NetworkError, match=message) as caught:
        networks.build("ring" if "'graph'" not in message else nx.cycle_graph(5), matrix, 5)
    assert caught.value.key == "network.mixing"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "case", ["asymmetric", "not stochastic", "negative weight", "zero diagonal", "not square", "NaN"]
)
def test_a_bad_matrix_alone_has_the_same_error(case):
    """The graph from the support must not hide what is wrong with W."""
    matrix, message = next((matrix, message) for name, matrix, message in BAD if name == case)
    with pytest.raises(NetworkError, match=message) as caught:
        Network.from_matrix(matrix)
    assert caught.value.key == "network.mixing"


def test_messages_are_distinct():
    """Each condition has a sentence of its own, numbers aside: none is reported as another."""
    seen = set()
    for name in ("asymmetric", "not stochastic", "weight off the graph", "zero weight on an edge", "zero diagonal"):
        matrix = next(matrix for case, matrix, _ in BAD if case == name)
        with pytest.raises(NetworkError) as caught:
            networks.build("ring", matrix, 5)
        seen.add("".join(c for c in caught.value.problem if not (c.isdigit() or c in ".-")))
    assert len(seen) == 5


def test_disconnected_graph_says_how_many_components_and_who_is_cut_off():
    graph = nx.Graph([(0, 1), (1, 2), (3, 4), (5, 6), (6, 3)])
    graph.add_node(7)
    with pytest.raises(NetworkError, match=r"^network.topology: .*3 components: client 3 cannot reach client 0") as e:
        Network.from_graph(graph)
    assert e.value.key == "network.topology"


def test_disconnected_matrix_names_the_mixing():
    """Two pairs that never meet: W is symmetric and stochastic, and λ would be 1."""
    W = np.kron(np.eye(2), np.full((2, 2), 0.5))
    with pytest.raises(NetworkError, match=r"^network.mixing: .*2 components: client 2 cannot reach client 0"):
        Network.from_matrix(W)


def test_the_most_telling_error_comes_first():
    """A graph in pieces is not reported as a bad mixing, nor a one-sided weight as a graph in pieces."""
    with pytest.raises(NetworkError, match="2 components"):
        Network.from_graph(nx.Graph([(0, 1), (2, 3)]), "uniform")
    with pytest.raises(NetworkError, match=r"not symmetric: w\[0, 1\] = 0.0 but w\[1, 0\] = 0.5"):
        Network.from_matrix(np.array([[1.0, 0.0], [0.5, 0.5]]))


def test_the_dataclass_itself_checks():
    """Nobody gets a Network past the checks, whichever way it is made."""
    with pytest.raises(NetworkError, match="not linked"):
        Network(nx.path_graph(5), RING)
    with pytest.raises(NetworkError, match="2 components"):
        Network(nx.Graph([(0, 1), (2, 3)]), np.kron(np.eye(2), np.full((2, 2), 0.5)))


def test_one_way_links_are_refused():
    graph = nx.DiGraph([(0, 1), (1, 0), (1, 2)])
    with pytest.raises(NetworkError, match=r"an edge from 1 to 2 and none back .* both ways"):
        Network.from_graph(graph)


@pytest.mark.parametrize(
    ("spec", "n", "key", "message"),
    [
        ("rnig", 10, "network.topology", "'rnig' is not a topology; it can be 'ring', .*; did you mean 'ring'"),
        ("erdos_renyi", 10, "network.topology", "did you mean 'erdos-renyi'"),
        ({"ring": {"hop": 2}}, 10, "network.topology.ring.hop", "did you mean 'hops'"),
        ({"ring": {"hops": "2"}}, 10, "network.topology.ring.hops", "'2' given"),
        ({"ring": {"hops": 0}}, 10, "network.topology.ring.hops", "0 given; it must be 1 or more"),
        ({"complete": 3}, 10, "network.topology.complete", "takes no arguments"),
        ("hypercube", 10, "network.topology", "of 10 clients given; it needs a power of two, such as 8 or 16"),
        ({"grid": {"rows": 4}}, 10, "network.topology.grid.rows", "4 given, .* 10 clients; .* 1, 2, 5, 10"),
        ({"torus": {"cols": 0}}, 10, "network.topology.torus.cols", "0 given"),
        ({"torus": {"rows": 5, "cols": 5}}, 10, "network.topology.torus", "5 rows × 5 cols given, which is 25"),
        ({"erdos-renyi": {"p": 1.5}}, 10, "network.topology.erdos-renyi.p", "1.5 given; a probability"),
        ({"erdos-renyi": {"p": float("nan")}}, 10, "network.topology.erdos-renyi.p", "nan given"),
        ({"erdos-renyi": {"p": 0.02}}, 10, "network.topology", "none of 100 .* connected, .* components; raise p"),
        ({"geometric": {"radius": -0.1}}, 10, "network.topology.geometric.radius", "-0.1 given; a distance"),
        ({"geometric": {"radius": 0.01}}, 10, "network.topology", "none of 100 .* components; raise radius"),
        ("ring", 0, "network.topology", "a network of 0 clients asked for; it has 1 client or more"),
        ("ring", -3, "network.topology", "a network of -3 clients"),
        ("ring", 2.5, "network.topology", "a network of 2.5 clients"),
        (nx.path_graph(4), 5, "network.topology", "a graph of 4 nodes given for 5 clients"),
        (nx.Graph(), 0, "network.topology", "has no clients"),
    ],
)
def test_bad_topologies(spec, n, key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        networks.build(spec, "metropolis", n)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_bad_mixing_names():
    with pytest.raises(
        ConfigError, match=r"^network.mixing: 'metropols' is not a mixing rule; .*did you mean 'metropolis'"
    ):
        networks.ring(10, mixing="metropolos")
    with pytest.raises(NetworkError, match=r"^network.mixing: 'uniform' given, but clients 0 and 2 are not linked"):
        networks.ring(10, mixing="uniform")


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize("separator", [" ", "\t", ",", " , "])
def test_edge_list(write, tmp_path, separator):
    """Comments, blank lines, repeated and reversed edges, self-loops; the path may be relative to the config."""
    lines = ["# a square", "0 1", "", "1 2  # here too", "2 3", "3 0", "0 3", "2 2"]
    file = write(
        "square.edges", "\n".join(line.replace(" ", separator) if line[:1].isdigit() else line for line in lines)
    )
    for given, base in ((str(file), None), (file, None), ("square.edges", tmp_path), (Path("square.edges"), tmp_path)):
        network = networks.build(given, "metropolis", 4, base)
        assert network.neighbours == ((1, 3), (0, 2), (1, 3), (0, 2))
        assert network.name == "square.edges"


def test_edge_list_without_suffix_and_names_first(write, tmp_path):
    """A file is found whatever it is called, but one that is called `star` does not take the topology's place."""
    write("links", "0 1\n1 2\n")
    write("star", "0 1\n1 2\n")
    assert networks.build("links", "metropolis", 3, tmp_path).neighbours[1] == (0, 2)
    assert networks.build("star", "metropolis", 3, tmp_path).neighbours[0] == (1, 2)


def test_edge_list_of_one_client(write):
    assert networks.network(write("one.txt", "# nobody to talk to\n"), 1).n == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n# fine\n1 two\n", r"bad\.txt, line 3: '1 two' is no edge; a line is two client numbers 'i j'"),
        ("0 1\n1\n", r"bad\.txt, line 2: '1' is no edge"),
        ("0 1 0.5\n", r"bad\.txt, line 1: '0 1 0.5' is no edge"),
        ("0 1\n1 2.0\n", r"bad\.txt, line 2: '1 2.0' is no edge"),
        (" ".join("0" * 40), r"line 1: '0 0 0 0 …' is no edge"),
        ("0 1\n1 2\n2 4\n", r"bad\.txt, line 3: there is no client 4; 4 clients are numbered 0 to 3"),
        ("-1 1\n", r"bad\.txt, line 1: there is no client -1"),
        ("0 1\n1 2\n", r"bad\.txt: no edge for 1 of 4 clients \(3\)"),
        ("0 1\n3 3\n", r"bad\.txt: no edge for 2 of 4 clients \(2, 3\)"),
        ("", r"bad\.txt: no edge for 4 of 4 clients \(0, 1, 2, 3\)"),
        ("0 1\n2 3\n", r"'bad\.txt' has 2 components: client 2 cannot reach client 0"),
    ],
)
def test_bad_edge_lists(write, text, message):
    with pytest.raises(NetworkError, match=message) as caught:
        networks.network(write("bad.txt", text), 4)
    assert caught.value.key == "network.topology"


def test_files_that_cannot_be_read(tmp_path):
    """Missing files name the known names too, as a misspelt name may look like a file."""
    with pytest.raises(NetworkError, match=r"^network.topology: .*rinng\.txt does not exist; .* did you mean 'ring'"):
        networks.build("rinng.txt", "metropolis", 4, tmp_path)
    for name in ("W.csv", "W.npy"):
        with pytest.raises(NetworkError, match=r"^network.mixing: .*W\.\w+ does not exist; .* metropolis"):
            networks.build("ring", name, 4, tmp_path)
    with pytest.raises(NetworkError, match=r"^network.topology: .* cannot be read as text"):
        networks.build(tmp_path, "metropolis", 4)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NetworkError, match=r"^network.topology: .* cannot be read as text"):
        networks.build("bytes.txt", "metropolis", 4, tmp_path)


def test_matrix_files(tmp_path):
    """Each format gives the same W; the name is the file's."""
    np.save(tmp_path / "W.npy", RING)
    np.savetxt(tmp_path / "W.csv", RING, delimiter=",", header="a ring")
    np.savetxt(tmp_path / "W.txt", RING)
    for name in ("W.npy", "W.csv", "W.txt"):
        network = networks.build("ring", name, 5, tmp_path)
        assert np.abs(network.W - RING).max() < 1e-15
        assert network.mixing == name
        assert (Network.from_graph(nx.cycle_graph(5), tmp_path / name).W == network.W).all()


def test_bad_matrix_files(tmp_path, write):
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(NetworkError, match=r"objects\.npy cannot be read as a NumPy array of numbers"):
        networks.build("ring", "objects.npy", 5, tmp_path)
    write("text.npy", "0.5 0.5")
    with pytest.raises(NetworkError, match=r"text\.npy cannot be read as a NumPy array of numbers"):
        networks.build("ring", "text.npy", 5, tmp_path)
    with pytest.raises(NetworkError, match=r"W\.pt given; a matrix is read from a '\.npy', '\.csv' or '\.txt' file"):
        networks.build("ring", write("W.pt", ""), 5)
    with pytest.raises(NetworkError, match=r"W\.csv, line 3: '0.5 x' is no row of numbers"):
        networks.build("ring", write("W.csv", "# two\n0.5,0.5\n0.5,x\n"), 2)
    with pytest.raises(NetworkError, match=r"W\.txt, line 2: 1 numbers, but 2 in the first row"):
        networks.build("ring", write("W.txt", "0.5 0.5\n0.5\n"), 2)
    with pytest.raises(NetworkError, match=r"shape \(0,\) given"):
        networks.build("ring", write("empty.txt", ""), 2)
