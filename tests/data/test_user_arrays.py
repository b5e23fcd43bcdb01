"""The user's arrays: every form they may have, and every way in which they may be wrong."""

import pickle
import zipfile

import numpy as np
import pytest
import torch

from depositum.data import load, partition
from depositum.errors import DataError
from tests.support.small_runs import cli, write_config

RNG = np.random.default_rng(0)


def xy(rows: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((rows, 3)), "y": np.arange(rows) % 3}


def test_a_file_with_all_arrays(tmp_path):
    """Fails if an array is ignored, types are not the package's, or a client gets another's rows."""
    arrays = xy() | {"x_test": np.ones((2, 3)), "y_test": np.array([0, 4]), "client": np.array([1, 0, 1, 2, 0, 1])}
    np.savez(tmp_path / "all.npz", **arrays)
    data = load("all.npz", base=tmp_path)
    assert torch.equal(data.train.inputs, torch.from_numpy(arrays["x"]).float())
    assert data.train.targets.tolist() == arrays["y"].tolist()
    assert data.train.targets.dtype == torch.int64
    assert data.test.inputs.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert data.classes == 5  # a label that occurs in the test data only is a class too
    assert [part.tolist() for part in data.clients] == [[1, 4], [0, 2, 5], [3]]
    assert data.name == "all.npz"


def test_a_file_without_clients_or_test_data(tmp_path):
    np.savez_compressed(tmp_path / "plain.npz", **xy())
    data = load(tmp_path / "plain.npz")
    assert data.test is None
    assert data.clients is None
    assert data.classes == 3


def test_a_folder_is_one_file_per_client_in_natural_order(tmp_path):
    """Fails if client10 comes before client2, or if test.npz is read as a client."""
    for i in (0, 2, 10):
        np.savez(tmp_path / f"client{i}.npz", x=np.full((i + 1, 2), i), y=np.full(i + 1, 1))
    np.savez(tmp_path / "test.npz", x=np.zeros((4, 2)), y=np.zeros(4, int))
    (tmp_path / "notes.txt").write_text("not data")
    data = load(str(tmp_path))
    assert [len(part) for part in data.clients] == [1, 3, 11]
    assert [float(data.train.inputs[part[0], 0]) for part in data.clients] == [0, 2, 10]
    assert np.array_equal(np.concatenate(data.clients), np.arange(15))
    assert len(data.test) == 4
    assert [len(part) for part in partition("natural", data, 3, seed=0)] == [1, 3, 11]


def test_the_name_of_an_existing_folder_is_a_path(tmp_path):
    (tmp_path / "hospitals").mkdir()
    np.savez(tmp_path / "hospitals" / "0.npz", **xy())
    assert len(load("hospitals", base=tmp_path).clients) == 1


def test_a_pattern_is_filled_in_with_the_index_of_each_client(tmp_path):
    """Fails if counting starts at 1 or stops before the number of clients, or if the test file is not found."""
    for i in range(12):
        (tmp_path / str(i)).mkdir()
        np.savez(tmp_path / str(i) / "data.npz", x=np.full((2, 2), i), y=[0, 1])
    (tmp_path / "test").mkdir()
    np.savez(tmp_path / "test" / "data.npz", x=np.zeros((3, 2)), y=[0, 1, 1])
    pattern = "{client}/data.npz"
    assert [float(load(pattern, tmp_path).train.inputs[part[0], 0]) for part in load(pattern, tmp_path).clients] == [
        *range(12)
    ]
    assert len(load(pattern, base=tmp_path, clients=5).clients) == 5
    assert len(load(pattern, base=tmp_path).test) == 3
    with pytest.raises(DataError, match="12/data.npz: no such file"):
        load(pattern, base=tmp_path, clients=13)


def test_floating_point_targets_are_regression(tmp_path):
    np.savez(tmp_path / "r.npz", x=np.zeros((3, 2)), y=np.array([[0.5], [1.0], [-2.0]]))
    data = load(tmp_path / "r.npz")
    assert data.classes is None
    assert data.train.targets.dtype == torch.float32
    assert data.train.targets.tolist() == [0.5, 1.0, -2.0]


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 1, 4, 6), (5, 3, 4, 6)])
def test_bytes_in_three_or_four_dimensions_are_images(tmp_path, shape):
    """Fails if pixels are not scaled to [0, 1], or an image without channels does not get one."""
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "i.npz", x=pixels, y=np.zeros(5, int))
    inputs = load(tmp_path / "i.npz").train.inputs
    assert inputs.shape == (5, shape[1] if len(shape) == 4 else 1, 4, 6)
    assert np.allclose(inputs.numpy().reshape(shape), pixels / 255, atol=1e-7)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.uint16, np.float16, np.float32, np.float64, ">f8"])
def test_tables_of_any_type_become_float32_unscaled(tmp_path, dtype):
    x = np.array([[0, 1], [1, 1]]).astype(dtype)
    np.savez(tmp_path / "t.npz", x=x, y=np.array([0, 1], dtype=np.uint8))
    data = load(tmp_path / "t.npz")
    assert data.train.inputs.dtype == torch.float32
    assert data.train.inputs.tolist() == [[0, 1], [1, 1]]


def changed(**arrays) -> dict[str, np.ndarray]:
    """Valid arrays with some changes; None removes an array."""
    return {name: array for name, array in (xy() | arrays).items() if array is not None}


def with_bad(value: float, row: int) -> np.ndarray:
    x = xy()["x"]
    x[row, 1] = value
    return x


BAD = {
    "nan in x": (changed(x=with_bad(np.nan, 4)), "x has a value that is not finite, first in row 4"),
    "inf in x": (changed(x=with_bad(-np.inf, 2)), "x has a value that is not finite, first in row 2"),
    "beyond float32": (changed(x=with_bad(1e300, 3)), "x has a value that is too large for float32, first in row 3"),
    "nan in y": (changed(y=np.array([0, 1, np.nan, 1, 1, 1])), "y has a value that is not finite, first in row 2"),
    "nan in x_test": (changed(x_test=with_bad(np.nan, 1), y_test=xy()["y"]), "x_test has a value .* first in row 1"),
    "lengths": (changed(y=np.zeros(5, int)), "x has 6 rows, but .*y has 5"),
    "negative label": (changed(y=np.array([0, 1, -1, 1, 1, 1])), "y has -1 in row 2; labels are whole numbers"),
    "fractional label": (
        changed(x_test=np.zeros((2, 3)), y_test=np.array([1.0, 0.5])),
        "y_test has 0.5 in row 1; labels are whole numbers",
    ),
    "no y": (changed(y=None), "no array 'y'; the file contains 'x'"),
    "no arrays": ({}, "no array 'x'; the file contains none"),
    "unknown array": (changed(clients=np.zeros(6, int)), "unknown array 'clients'.* did you mean 'client'"),
    "no y_test": (changed(x_test=np.zeros((2, 3))), "no array 'y_test'"),
    "no x_test": (changed(y_test=np.zeros(2)), "no array 'x_test'"),
    "flat x": (changed(x=np.zeros(6)), r"x has shape \(6,\)"),
    "wide y": (changed(y=np.zeros((6, 2), int)), r"y has shape \(6, 2\)"),
    "scalar y": (changed(y=np.array(3)), r"y has shape \(\)"),
    "no rows": (changed(x=np.zeros((0, 3)), y=np.zeros(0, int)), "x has no rows"),
    "words": (changed(x=np.array([["a", "b"]] * 6)), "x has type <U1; it must contain numbers"),
    "complex": (changed(x=np.zeros((6, 3), complex)), "x has type complex128"),
    "test of another width": (changed(x_test=np.zeros((2, 4)), y_test=np.zeros(2, int)), r"x_test has .*\(4,\)"),
    "client too short": (changed(client=np.zeros(5, int)), r"client has shape \(5,\)"),
    "client gap": (
        changed(client=np.array([0, 0, 2, 2, 3, 3])),
        "client goes from 0 to 3 without 1; n clients are numbered 0 … n−1 without gaps",
    ),
    "client from 1": (changed(client=np.array([1, 1, 2, 2, 3, 3])), "client goes from 1 to 3 without 0"),
    "client negative": (
        changed(client=np.array([-1, 0, 1, 1, 1, 1])),
        "client goes from -1 to 1; n clients are numbered 0 … n−1 without gaps",
    ),
    "client names": (changed(client=np.array(list("aabbcc"))), "client has .* type <U1"),
    "objects": (changed(x=np.array([[{}]] * 6, dtype=object)), "contains Python objects .* never loaded"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_invalid_arrays_are_rejected_in_one_line(case, tmp_path):
    """Each message names the file, the array and the row."""
    arrays, message = BAD[case]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / "bad.npz")
    assert str(tmp_path / "bad.npz") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_client_s_file(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", **xy(seed=i))
    np.savez(tmp_path / "1.npz", x=with_bad(np.nan, 5), y=xy()["y"])
    with pytest.raises(DataError, match=r"1\.npz: x has .* row 5"):
        load(tmp_path)
    np.savez(tmp_path / "1.npz", x=np.zeros((6, 4)), y=xy()["y"])
    with pytest.raises(DataError, match=r"1\.npz: x has samples of shape \(4,\), but .*0\.npz: x of \(3,\)"):
        load(tmp_path)
    np.savez(tmp_path / "1.npz", x=xy()["x"], y=np.linspace(0, 1, 6))
    with pytest.raises(DataError, match=r"1\.npz: y has 0\.2 in row 1"):
        load(tmp_path)
    np.savez(tmp_path / "1.npz", **xy(), client=np.zeros(6, int))
    with pytest.raises(DataError, match=r"1\.npz: unknown array 'client'"):
        load(tmp_path)


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_truncated_file_is_rejected(tmp_path, save, cut):
    path = tmp_path / "cut.npz"
    save(path, **xy(1000))
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(DataError, match=r"cut\.npz: is damaged or not a \.npz file"):
        load(path)


def test_a_flipped_byte_in_the_values_is_rejected(tmp_path):
    """Fails if the archive's checksum is ignored: a number would be wrong without any error."""
    path = tmp_path / "flipped.npz"
    np.savez(path, x=np.ones((100, 10)), y=np.zeros(100, int))
    content = bytearray(path.read_bytes())
    content[2000] ^= 0x10
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="damaged"):
        load(path)


class Trap:
    """Unpickling this creates a file."""

    def __init__(self, mark) -> None:
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize("form", ["pickle", "member", "object array"])
def test_no_pickle_is_ever_loaded(tmp_path, form):
    """Fails if the pickle is executed in any form: its file would exist."""
    path, mark = tmp_path / "trap.npz", tmp_path / "mark"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Trap(mark)))
    elif form == "member":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", pickle.dumps(Trap(mark)))
            archive.writestr("y", pickle.dumps(Trap(mark)))
    else:
        np.savez(path, x=np.array([[Trap(mark)]], dtype=object), y=np.array([0]))
    with pytest.raises(DataError):
        load(path)
    assert not mark.exists()


def test_a_single_array_named_npz_is_rejected(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros((2, 2)))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(DataError, match="contains a single array"):
        load(tmp_path / "one.npz")


def test_empty_folders_and_other_file_types_are_rejected(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no \.npz file in this folder"):
        load(tmp_path / "empty")
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(DataError, match=r"data\.csv: a dataset is a \.npz file.*; for a table, use { table = {"):
        load(tmp_path / "data.csv")
    (tmp_path / "data.mat").write_text("1,2")
    with pytest.raises(DataError, match=r"data\.mat: .*; convert the file to \.npz: docs/data\.md$"):
        load(tmp_path / "data.mat")
    (tmp_path / "data.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"data\.jsonl: a dataset is .*; for text, use { instructions = … }$"):
        load(tmp_path / "data.jsonl")
    with pytest.raises(DataError, match=r"data\.csv: .*; for a table, use"):  # given as a name
        load("data.csv", base=tmp_path)


# Labels, and files that a run does not use


def small_run(tmp_path, y, **problem):
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).normal(size=(len(y), 3)), y=y)
    problem = {"dataset": "mine.npz", "model": "linear", "partition": "iid", **problem}
    return cli("run", str(write_config(tmp_path / "c.toml", problem=problem)), "--out", str(tmp_path / "out"))


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2019])
def test_labels_that_do_not_start_from_0(tmp_path, first):
    """A missing label is a warning; a year or an id as a label would make a model with thousands of outputs."""
    result = small_run(tmp_path, np.arange(60) % 3 + first)
    found = f"has 3 different labels, from {first} to {first + 2}, but none is 0; "
    if first == 1:
        assert result.code == 0
        assert found + "the model has an output for each number from 0" in result.err
    else:
        assert result.code == 2
        assert result.err.startswith("error: problem.dataset: ")
        assert result.err.endswith(found + "labels are class indices: number them 0 … 2\n")
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_warning_about_the_file_of_a_further_client(tmp_path):
    """If `clients` is too small, an organisation's data would be ignored silently."""
    for i in range(5):
        np.savez(tmp_path / f"{i}.npz", x=np.full((4, 2), i), y=[0, 1, 2, 0])
    problem = {"dataset": "{client}.npz", "model": "linear", "partition": "natural"}
    result = cli("run", str(write_config(tmp_path / "c.toml", problem=problem)), "--out", str(tmp_path / "out"))
    assert result.code == 0
    assert f"warning: {tmp_path / '4.npz'} is not used: problem.clients is 4\n" in result.err


def test_a_warning_about_images_with_channels_last(tmp_path):
    """Their height would be read as the number of channels."""
    np.savez(tmp_path / "last.npz", x=np.zeros((4, 8, 8, 3), dtype=np.uint8), y=[0, 1, 0, 1])
    with pytest.warns(RuntimeWarning, match=r"\[samples, channels, height, width\]; if channels are last, save"):
        load("last.npz", tmp_path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("texts", 'contains text files; use { instructions = "texts/{client}.jsonl" }'),
        ("tables", "contains tables; use { table = { path = …, target = … } }"),
        ("texts/{client}.jsonl", "for text, use { instructions = … }"),
        ("texts/{client}.csv", "for a table, use { table = { path = …, target = … } }"),
        ("texts/{client}.txt", "convert the file to .npz: docs/data.md"),
    ],
)
def test_errors_for_other_file_types_name_the_alternative(tmp_path, given, expected):
    for name in ("texts/0.jsonl", "texts/0.csv", "tables/0.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError) as caught:
        load(given, tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
