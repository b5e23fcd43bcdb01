"""Clients' data in Python: arrays, frames, torch datasets and loaders become the same dataset."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import depositum as dp
from depositum import bounded_reading
from depositum.data import from_clients
from depositum.errors import ConfigError, DataError, DepositumError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)), np.arange(12) % 3


def patients() -> pd.DataFrame:
    """Twelve rows of three hospitals, with features of every kind that is accepted."""
    return pd.DataFrame(
        {
            "age": [31, 45, 28, 60, 52, 39, 70, 22, 41, 66, 35, 58],
            "weight": np.linspace(50, 90, 12),
            "smoker": [True, False] * 6,
            "sex": pd.Categorical(["f", "m", "m"] * 4),
            "hospital": ["Rome", "Bern", "Oslo"] * 4,
            "outcome": ["ill", "well", "dead", "well"] * 3,
        }
    )


# Arrays


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray, np.ndarray.tolist])
def test_pairs_keep_their_rows(kind):
    """Fails if pairs are reordered, mixed or rounded to float32."""
    pairs = [(kind(X[:4]), kind(Y[:4])), (kind(X[4:7]), kind(Y[4:7]))]
    data = from_clients(pairs, test=pairs[1])
    rounded = np.float32 if kind is np.ndarray.tolist else np.float64  # torch's own type for Python numbers
    assert np.array_equal(data.train.inputs.numpy(), X[:7].astype(rounded))
    assert np.array_equal(data.test.inputs.numpy(), X[4:7].astype(rounded))
    assert [part.tolist() for part in data.clients] == [[0, 1, 2, 3], [4, 5, 6]]
    assert (data.classes, data.client_names) == (3, ())


def test_a_mapping_names_the_clients():
    data = from_clients({"Rome": (X[:4], Y[:4]), "Bern": (X[4:], Y[4:])})
    assert data.client_names == ("Rome", "Bern")
    with pytest.raises(ConfigError, match=r"^clients\['Bern'\]: 8 inputs but 7 targets"):
        from_clients({"Rome": (X[:4], Y[:4]), "Bern": (X[4:], Y[5:])})


# Frames


def test_one_frame_is_divided_by_a_column():
    """Clients are in the order of their names, and labels in that of theirs; categories become columns."""
    frame = patients()
    data = from_clients(frame, by="hospital", target="outcome")
    assert data.client_names == ("Bern", "Oslo", "Rome")
    assert [part.tolist() for part in data.clients] == [[1, 4, 7, 10], [2, 5, 8, 11], [0, 3, 6, 9]]
    assert data.class_names == ("dead", "ill", "well")
    assert data.classes == 3
    assert [data.class_names[k] for k in data.train.targets] == frame["outcome"].tolist()
    assert data.feature_names == ("age", "weight", "smoker", "sex=f", "sex=m")
    assert np.array_equal(data.train.inputs[:, 0], frame["age"])
    assert np.array_equal(data.train.inputs[:, 1], frame["weight"])
    assert np.array_equal(data.train.inputs[:, 2], frame["smoker"].astype(float))
    assert np.array_equal(data.train.inputs[:, 3], frame["sex"] == "f")
    assert np.array_equal(data.train.inputs[:, 3] + data.train.inputs[:, 4], np.ones(12))


def test_a_frame_per_client_has_one_encoding_for_all():
    """Fails if a client's labels or categories are numbered by that client's rows alone, or columns are not matched."""
    frame = patients().drop(columns="hospital")
    first, second = frame.iloc[[1, 3]], frame.iloc[[0, 2]][["outcome", "sex", "smoker", "weight", "age"]]
    data = from_clients({"a": first, "b": second}, test=frame.iloc[4:6], target="outcome")
    assert data.class_names == ("dead", "ill", "well")
    assert data.train.targets.tolist() == [2, 2, 1, 0]
    assert data.test.targets.tolist() == [1, 2]
    assert data.train.inputs[:, 0].tolist() == [45, 60, 31, 28]
    assert [part.tolist() for part in data.clients] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("column", "classes", "names"),
    [
        ([2, 0, 1] * 4, 3, ()),
        (["b", "a", "b"] * 4, 2, ("a", "b")),
        (pd.Categorical(["lo", "hi", "lo"] * 4, categories=["lo", "hi", "never"]), 3, ("lo", "hi", "never")),
        ([True, True, True] * 4, 2, ("False", "True")),
        (pd.array([1, 0, 1] * 4, dtype="Int64"), 2, ()),
        (["10", "2", "1"] * 4, 3, ("1", "2", "10")),
        ([0.5, 1.0, 2.0] * 4, None, ()),
        (pd.array([0.5, 1.0, 2.0] * 4, dtype="Float64"), None, ()),
    ],
)
def test_the_target_column_decides_between_classes_and_regression(column, classes, names):
    data = from_clients(patients().assign(outcome=column), by="hospital", target="outcome")
    assert (data.classes, data.class_names) == (classes, names)
    assert data.train.targets.is_floating_point() == (classes is None)


def test_pairs_of_a_frame_and_a_column():
    """The habit of scikit-learn: X and y apart."""
    frame = patients()
    features = frame[["age", "sex"]]
    data = from_clients([(features[:6], frame["outcome"][:6]), (features[6:], frame["outcome"][6:])])
    assert data.class_names == ("dead", "ill", "well")
    assert data.feature_names == ("age", "sex=f", "sex=m")
    assert len(data.clients[1]) == 6


def with_missing(rows: list[int], column: str) -> pd.DataFrame:
    frame = patients()
    frame[column] = frame[column].astype(object)
    frame.loc[rows, column] = None
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (with_missing([4, 7], "age"), "column 'age' has 2 missing values, first in row 4 ('hospital' is 'Bern'); fill"),
        (with_missing([2], "sex"), "column 'sex' has 1 missing value, first in row 2 ('hospital' is 'Oslo')"),
        (with_missing([2], "smoker"), "column 'smoker' has 1 missing value"),
        (with_missing([0], "outcome"), "column 'outcome' has 1 missing value"),
        (with_missing([3], "hospital"), "column 'hospital' has 1 missing value"),
        (
            patients().assign(note=["a b"] * 12),
            "column 'note' contains text, such as 'a b'; convert it with .astype('category'), or drop it",
        ),
        (patients().assign(day=pd.Timestamp("2026-01-01")), "column 'day' contains dates or times; convert them"),
        (patients().assign(day=pd.Timestamp("2026-01-01").date()), "column 'day' contains dates or times"),
        (patients().assign(span=pd.Timedelta("1D")), "column 'span' contains dates or times"),
        (patients().assign(z=1j), "column 'z' contains values that are not numbers, such as 1j"),
        (patients().assign(z=[[1]] * 12), "column 'z' contains values that are not numbers, such as [1]"),
        (patients().assign(z=[1, "a"] * 6), "column 'z' contains values that are not numbers, such as 1"),
        (
            patients().assign(z=[1.0, np.inf] * 6),
            "column 'z' has a value that is not finite in float64, first in row 1",
        ),
        (patients().assign(z=10**400), "column 'z' has a value that is not finite"),
        (
            patients().assign(outcome=[-1, 1] * 6),
            "column 'outcome' has -1; labels are whole numbers from 0: convert them with .astype(str), or for "
            "regression convert them with .astype(float), first in row 0",
        ),
        (patients()[["hospital", "outcome"]], "has no column besides 'outcome'; a model needs features"),
        (pd.concat([patients(), patients()[["age"]]], axis=1), "has two columns called 'age'"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_by_name(frame, message):
    """Never guessed, filled or dropped: the error names the column, the count, the row and the client."""
    with pytest.raises(DataError) as error:
        from_clients(frame, by="hospital", target="outcome")
    assert str(error.value).startswith("clients: ")
    assert message in str(error.value)
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        (patients(), {"target": "outcome"}, "^by: missing; it names the column of the table"),
        (
            patients(),
            {"by": "hospital"},
            "^target: missing; it names the column to predict; clients has 'age', 'weight'",
        ),
        (patients(), {"by": "hospitl", "target": "outcome"}, "^by: 'hospitl' given, .* did you mean 'hospital'"),
        (patients(), {"by": "hospital", "target": "outcom"}, "^target: 'outcom' given, .* did you mean 'outcome'"),
        (patients(), {"by": "outcome", "target": "outcome"}, "^by: 'outcome' given, which is the target"),
        (patients(), {"by": 3, "target": "outcome"}, "^by: 3 given; it must be the name of a column"),
        ([patients()], {"by": "hospital", "target": "outcome"}, "^by: 'hospital' given, but the data is not one table"),
        ([(X, Y)], {"target": "outcome"}, "^target: 'outcome' given, but the clients' data are not tables"),
        ([(X, Y)], {"by": "outcome"}, "^by: 'outcome' given, but the data is not one table"),
        ([patients(), (X, Y)], {"target": "age"}, r"^clients\[1\]: a tuple given, but other clients' data are tables"),
        (
            [patients(), patients().drop(columns="weight")],
            {"target": "age"},
            r"^clients\[1\]: no column 'weight', which clients\[0\] has",
        ),
        (
            [patients().drop(columns="weight"), patients()],
            {"target": "age"},
            r"^clients\[1\]: has a column 'weight', which clients\[0\] does not have",
        ),
        ([patients()[:0]], {"target": "age"}, r"^clients\[0\]: has no samples; every client needs at least one"),
        ([(patients(), Y[:5])], {}, r"^clients\[0\]: 12 inputs but 5 targets"),
    ],
)
def test_wrong_columns_and_mixtures_are_refused(clients, settings, message):
    with pytest.raises(DepositumError, match=message) as error:
        from_clients(clients, **settings)
    assert len(str(error.value)) <= 300


def test_the_test_data_must_be_a_table_too():
    with pytest.raises(ConfigError, match="^test: a tuple given, but the clients' data are tables"):
        from_clients(patients(), test=(X, Y), by="hospital", target="outcome")


def test_a_column_of_identifiers_is_not_a_class():
    frame = pd.DataFrame({"a": np.arange(300.0), "who": np.arange(300) % 3, "name": [f"p{i}" for i in range(300)]})
    with pytest.raises(DataError, match="column 'name' has 300 different values in 300 rows"):
        from_clients(frame, by="who", target="name")


class HuggingFace:
    """What is used of `datasets.Dataset`: its integer labels have names in `features`."""

    class ClassLabel:
        names = ("cat", "dog")

    features = {"image": object(), "label": ClassLabel()}  # noqa: RUF012
    column_names = ("x", "who", "label")

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame({"x": [0.5, 1.5, 2.5], "who": [10, 9, 9], "label": [1, 0, 1]})


def test_tables_of_other_libraries_are_converted():
    """`datasets` of Hugging Face declare the names of integer labels; numeric clients are in numeric order."""
    data = from_clients(HuggingFace(), by="who", target="label")
    assert data.class_names == ("cat", "dog")
    assert data.train.targets.tolist() == [1, 0, 1]
    assert data.client_names == ("9", "10")


def test_a_collection_of_splits_is_not_clients():
    """A `DatasetDict` would train on its test data as a client called `test`."""

    class DatasetDict(dict):
        column_names = {"train": ("x",), "test": ("x",)}  # noqa: RUF012

    with pytest.raises(ConfigError, match="^clients: a DatasetDict with the splits 'train', 'test' given; give one of"):
        from_clients(DatasetDict(train=HuggingFace(), test=HuggingFace()), by="who", target="label")


# Torch


class Squares(Dataset):
    """A dataset that counts how often each sample is read."""

    def __init__(self, n: int) -> None:
        self.n, self.reads = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        if not 0 <= i < self.n:
            raise IndexError(i)
        self.reads += 1
        return torch.full((2,), float(i)), i % 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0)])


def test_torch_datasets_and_loaders_are_read_once():
    """A loader stands for its dataset: neither its batches nor its order change what is trained on."""
    dataset = Squares(6)
    tensors = TensorDataset(torch.ones(3, 2), torch.tensor([1, 0, 1]))
    loader = DataLoader(Squares(5), batch_size=2, shuffle=True, drop_last=True)
    data = from_clients([dataset, tensors, loader], test=DataLoader(Squares(2)))
    assert [len(part) for part in data.clients] == [6, 3, 5]
    assert data.train.inputs[:6, 0].tolist() == list(range(6))
    assert data.train.inputs[9:, 0].tolist() == list(range(5))
    assert data.train.targets[:6].tolist() == [0, 1] * 3
    assert len(data.test) == 2
    assert dataset.reads == 7  # the first sample twice, to know the memory that all need


def test_random_split_gives_each_client_its_part():
    parts = random_split(Squares(10), [0.5, 0.5])
    data = from_clients(parts)
    rows = [data.train.inputs[part, 0].tolist() for part in data.clients]
    assert rows == [list(map(float, part.indices)) for part in parts]


def test_a_sampler_of_some_samples_is_respected():
    """Fails if every client of a split by samplers gets all the data."""
    data = from_clients([DataLoader(Squares(6), sampler=SubsetRandomSampler([4, 1]))])
    assert data.train.inputs[:, 0].tolist() == [4, 1]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (Squares(4), r"^clients: a Squares given, one for all; give one per client, as .*random_split"),
        (DataLoader(Squares(4)), r"^clients: a DataLoader given, one for all"),
        ([Stream()], r"^clients\[0\]: a Stream given, which has no length"),
        ([DataLoader(Stream())], r"^clients\[0\]: a Stream given, which has no length"),
        ([Squares(0)], r"^clients\[0\]: has no samples"),
        ([DataLoader(Squares(4), sampler=WeightedRandomSampler([1.0] * 4, 4))], r"chosen by a WeightedRandomSampler"),
        ([DataLoader(Squares(4), batch_sampler=[[0], [1]])], r"chosen by a list"),
        ([DataLoader(Squares(4), collate_fn=list)], r"its collate_fn is not the default one"),
        ([Subset(Squares(4), [1, 99])], r"^clients\[0\]: reading sample 1 fails: IndexError: 99"),
        ([TensorDataset(torch.ones(3, 2))], r"^clients\[0\]: sample 0 is a tuple; it must be a pair"),
    ],
)
def test_torch_datasets_that_cannot_be_used_are_refused(clients, message):
    with pytest.raises(ConfigError, match=message) as error:
        from_clients(clients)
    assert "\n" not in str(error.value)


def test_a_dataset_that_does_not_fit_into_memory_is_refused_before_it_is_read(monkeypatch):
    dataset = Squares(10**6)
    monkeypatch.setattr(bounded_reading, "memory_limit", lambda: 10**6)
    with pytest.raises(DataError, match=r"^clients\[0\]: 1000000 samples: takes 15.3 MiB of memory, but at most 976"):
        from_clients([dataset])
    assert dataset.reads == 1


# Files, and training


def test_paths_are_accepted(tmp_path):
    frame = patients()
    frame.to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(DataError, match=r"all\.csv: column 'sex' contains text, such as 'f'"):
        from_clients(tmp_path / "all.csv", by="hospital", target="outcome")
    numbers = frame.drop(columns="sex")
    numbers.to_csv(tmp_path / "all.csv", index=False)
    data = from_clients(str(tmp_path / "all.csv"), by="hospital", target="outcome")
    assert data.client_names == ("Bern", "Oslo", "Rome")
    (tmp_path / "each").mkdir()
    for name, rows in numbers.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(tmp_path / "each" / f"{name}.csv", index=False)
    same = from_clients(tmp_path / "each", target="outcome")
    assert same.client_names == ("Bern.csv", "Oslo.csv", "Rome.csv")
    assert torch.equal(same.train.inputs[same.clients[2]], data.train.inputs[data.clients[2]])
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(DataError, match="no array 'client'"):
        from_clients(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=X, y=Y, client=Y)
    assert len(from_clients(tmp_path / "a.npz").clients) == 3


def test_fit_trains_on_a_frame():
    """The result knows what its outputs and inputs are called."""
    settings = {"by": "hospital", "target": "outcome", "algorithm": dp.Depositum(alpha=1e-5)}
    result = dp.fit(torch.nn.LazyLinear(3), patients(), test=patients(), steps=3, progress=False, **settings)
    assert result.problem.class_names == ("dead", "ill", "well")
    assert result.problem.feature_names == ("age", "weight", "smoker", "sex=f", "sex=m")
    assert result.state["x"].shape == (3, 18)
    assert np.isfinite(result.history["test_loss"]).all()


def test_a_problem_from_a_frame():
    problem = dp.problem.from_client_data(torch.nn.Linear(5, 3), patients(), by="hospital", target="outcome")
    assert problem.n == 3
    assert [len(part) for part in problem.trials[0].parts] == [4, 4, 4]
