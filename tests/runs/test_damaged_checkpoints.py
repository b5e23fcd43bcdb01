"""A checkpoint whose bytes changed, or that a stranger made, is reported in one line and not used; nothing is lost."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from depositum.errors import MAX_MESSAGE, RunError
from depositum.runs import checkpoint, client_checkpoints, tensor_file
from depositum.runs.checkpoint import CURRENT, PREVIOUS
from depositum.runs.folder import read_history
from tests.benchmarks.test_peers import BENCHMARKS, load
from tests.support.small_runs import KillAt, Killed, StopAt, cli, files, outcome, train, write_config

corruption = load(BENCHMARKS / "corruption.py", "benchmark_corruption")

#: Of the campaign's cases, one of each kind of damage, and both files and a client's among them.
SLICE = {3, 5, 8, 10, 12, 13, 15, 16, 19, 20, 24, 35}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return corruption.Campaign(tmp_path_factory.mktemp("campaign"))


@pytest.mark.parametrize(
    ("case", "source"),
    [pair for number, pair in enumerate(corruption.cases(max(SLICE) + 1, seed=0)) if number in SLICE],
    ids=lambda value: f"{value.which}-{value.damage.__name__}-{value.part}" if hasattr(value, "which") else "",
)
def test_a_damaged_checkpoint_is_detected_and_the_run_ends_in_the_same_bytes(
    campaign: Any, case: Any, source: Any
) -> None:
    """Breaks if a checkpoint without a matching checksum were used, or pushed out a good one."""
    assert campaign.run(case, source) is None


def flip(path: Path, position: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def edit_metadata(path: Path, change: Callable[[dict[str, Any]], object], signed: bool = True) -> None:
    """Change the metadata of a checkpoint as someone who knows the format would: with a checksum that matches."""
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        table = json.loads(file.metadata()["depositum"])
    change(table)
    if signed:
        table = {k: v for k, v in table.items() if k not in (tensor_file.OF_TENSORS, tensor_file.OF_METADATA)}
        tensor_file.write_part(path, tensors, table).replace(path)
    else:
        save_file(tensors, path, metadata={"depositum": json.dumps(table)})


def test_every_flipped_bit_of_a_tensor_is_found(tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    tensor_file.write_part(path, {"x": torch.zeros(2, 2)}, {}).replace(path)
    intact = path.read_bytes()
    for position in range(len(intact) - 16, len(intact)):
        for bit in range(8):
            content = bytearray(intact)
            content[position] ^= 1 << bit
            path.write_bytes(content)
            with pytest.raises(RunError, match=r"is damaged \(the bytes of 'x' have changed"):
                tensor_file.read(path)


@pytest.mark.parametrize("change", ["swap", "rename", "reshape", "retype", "remove", "add", "iteration"])
def test_tensors_and_metadata_belong_together(tmp_path: Path, change: str) -> None:
    """Files that the library reads without complaint: the checksums are of other contents."""
    path = tmp_path / "tensors.safetensors"
    x, y = torch.arange(4.0).reshape(2, 2), torch.ones(2, 2)
    tensor_file.write_part(path, {"x": x, "y": y}, {"iteration": 3}).replace(path)
    with safe_open(path, "pt") as file:
        text = file.metadata()["depositum"]
    tensors = {
        "swap": {"x": y, "y": x},
        "rename": {"x": x, "z": y},
        "reshape": {"x": x.reshape(4, 1), "y": y},
        "retype": {"x": x.view(torch.int32), "y": y},
        "remove": {"x": x},
        "add": {"x": x, "y": y, "z": y.clone()},
        "iteration": {"x": x, "y": y},
    }[change]
    if change == "iteration":
        text = text.replace('"iteration": 3', '"iteration": 4')
    save_file(tensors, path, metadata={"depositum": text})
    with pytest.raises(RunError, match="is damaged"):
        tensor_file.read(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_every_type_and_shape_is_read_as_it_was_written(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "tensors.safetensors"
    tensors = {str(shape): torch.ones(shape).to(dtype) for shape in ((), (0,), (3,), (2, 3))}
    tensor_file.write_part(path, tensors, {"a": 1}).replace(path)
    found, metadata = tensor_file.read(path)
    assert metadata == {"a": 1}
    assert all(torch.equal(found[name], tensor) and found[name].dtype == dtype for name, tensor in tensors.items())


def test_a_checkpoint_of_an_earlier_release_has_no_checksums_and_is_resumed(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    train(config, tmp_path / "run", StopAt(12))
    without = (tensor_file.OF_TENSORS, tensor_file.OF_METADATA)
    for name in (CURRENT, PREVIOUS):
        edit_metadata(tmp_path / "run" / name, lambda table: [table.pop(key) for key in without], signed=False)
    _, lines = train(config, tmp_path / "run")
    assert lines == [f"{tmp_path / 'run'}: resuming from iteration 12"]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "uninterrupted")


def test_a_damaged_checkpoint_is_kept_under_another_name(tmp_path: Path) -> None:
    """Also a second one: whatever is in these files may be all that is left of something."""
    config = write_config(tmp_path / "c.toml")
    folder, damaged = tmp_path / "run", []
    train(config, folder)
    for _ in range(2):
        flip(folder / CURRENT)
        damaged.append((folder / CURRENT).read_bytes())
        train(config, folder)
    assert damaged == [(folder / f"state.damaged{number}.safetensors").read_bytes() for number in ("", "-2")]


def test_a_damaged_checkpoint_of_a_run_with_nothing_to_do_is_reported(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run")
    flip(tmp_path / "run" / CURRENT)
    _, lines = train(config, tmp_path / "run", overrides=("run.steps=18",))
    assert len(lines) == 1
    assert "is damaged (the bytes of " in lines[0]
    assert lines[0].endswith("nothing to do, 18 iterations are done")


def test_checkpoints_of_clients_replace_a_damaged_one_of_all(tmp_path: Path) -> None:
    """Those that processes left are as good; the damaged file is kept, and does not become the previous one."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "uninterrupted")
    folder = tmp_path / "run"
    train(config, folder, StopAt(6))
    client_checkpoints.write(folder, checkpoint.read(folder / CURRENT), range(4))
    (folder / PREVIOUS).unlink(missing_ok=True)
    flip(folder / CURRENT)
    with pytest.raises(Killed):
        train(config, folder, KillAt(13))
    assert checkpoint.read(folder / CURRENT).t == 12
    assert (folder / "state.damaged.safetensors").exists()
    _, lines = train(config, folder)
    assert lines == [f"{folder}: resuming from iteration 12"]
    ends = {name: content for name, content in outcome(folder).items() if not name.startswith("clients")}
    assert ends == outcome(tmp_path / "uninterrupted")


def with_header(header: bytes, size: int | None = None, data: bytes = b"") -> Callable[[Path], object]:
    length = struct.pack("<Q", len(header) if size is None else size)
    return lambda path: path.write_bytes(length + header + data)


def sparse(path: Path) -> None:
    """A file of a petabyte, or the most that the file system can hold, of which no byte is stored."""
    for exponent in range(50, 38, -1):
        try:
            with path.open("wb") as file:
                file.truncate(1 << exponent)
            return
        except OSError:
            continue


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def metadata(**changes: Any) -> Callable[[Path], object]:
    return lambda path: edit_metadata(path, lambda table: table.update(changes))


def raw_metadata(text: str) -> Callable[[Path], object]:
    return lambda path: save_file(load_file(path), path, metadata={"depositum": text})


HUGE = json.dumps({"x": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 4 * 10**15]}}).encode()
NESTED = "[" * 100_000 + "]" * 100_000
INFINITE = '{"iteration": 6, "seeds": [0], "diverged": [], "costs": {"phases": NaN}}'
HOSTILE: dict[str, Callable[[Path], object]] = {
    "a header of 10^18 bytes": with_header(b"{}", size=10**18),
    "a header of 50 MB": with_header(b" " * 50_000_000),
    "an array of 10^15 entries": with_header(HUGE, data=b"1234"),
    "shapes that overflow": with_header(HUGE.replace(b"[1000000000000000]", b"[9223372036854775807, 4294967296]")),
    "a nested header": with_header(f'{{"x": {NESTED}}}'.encode()),
    "nested metadata": raw_metadata(NESTED),
    "nested metadata of a table": raw_metadata('{"seeds":' * 50_000 + "0" + "}" * 50_000),
    "metadata that are a list": raw_metadata("[1, 2]"),
    "metadata that are a long text": raw_metadata(json.dumps("x" * 10**6)),
    "an iteration of 10,000 digits": raw_metadata(f'{{"iteration": {"9" * 10_000}}}'),
    "a large iteration": metadata(iteration=10**30),
    "a negative iteration": metadata(iteration=-1),
    "an iteration that is a text": metadata(iteration="x" * 10_000),
    "costs that are not finite": raw_metadata(INFINITE),
    "other costs": metadata(costs={"x" * 10_000: 1}),
    "no seeds": metadata(seeds=[]),
    "seeds that repeat": metadata(seeds=[0, 0]),
    "seeds that are not rows": metadata(seeds=list(range(3))),
    "a divergence that is a number": metadata(diverged=[3]),
    "an unknown key": metadata(**{"k" * 10_000: 1}),
    "a FIFO": fifo,
    "a sparse file of a petabyte": sparse,
    "an empty file": lambda path: path.write_bytes(b""),
    "a folder": folder,
}


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run stopped at 12, with checkpoints at 6 and 12."""
    folder = tmp_path_factory.mktemp("hostile")
    train(write_config(folder / "c.toml"), folder / "run", StopAt(12))
    return folder


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_checkpoint_of_a_stranger_is_one_line(two_checkpoints: Path, tmp_path: Path, make: Any) -> None:
    """Quick, without reading more than the machine has; the checkpoint before is found."""
    for name in (CURRENT, PREVIOUS):
        (tmp_path / name).write_bytes((two_checkpoints / "run" / name).read_bytes())
    make(tmp_path / CURRENT)
    with pytest.raises(RunError) as error:
        checkpoint.read(tmp_path / CURRENT)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / CURRENT}: is not a complete checkpoint (")
    assert len(message) <= MAX_MESSAGE
    assert message.isprintable()
    latest = checkpoint.read_latest(tmp_path)
    assert latest is not None
    assert (latest.snapshot.t, latest.problem) == (6, message)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop("y"), "'y' is missing in the checkpoint"),
        (lambda tensors: tensors.update(y=tensors["y"][:1].clone()), r"'y' is torch.float32 of shape \(1, 15\)"),
        (lambda tensors: tensors.update(y=tensors["y"].double()), r"'y' is torch.float64 of shape \(4, 15\)"),
        (lambda tensors: tensors.update(extra=torch.ones(3)), r"'extra' is torch.float32 .* not used in this run"),
    ],
)
def test_a_checkpoint_with_other_variables_is_refused(tmp_path: Path, change: Any, problem: str) -> None:
    """A row of another shape would broadcast to all clients without a word."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run", StopAt(12))
    path = tmp_path / "run" / CURRENT
    tensors, table = tensor_file.read(path)
    change(tensors)
    tensor_file.write_part(path, tensors, table).replace(path)
    with pytest.raises(RunError, match=problem):
        train(config, tmp_path / "run")


def test_a_checkpoint_of_other_seeds_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run", StopAt(12))
    edit_metadata(tmp_path / "run" / CURRENT, lambda table: table.update(seeds=[7]))
    before = files(tmp_path / "run")
    with pytest.raises(RunError, match="holds other seeds than the configuration"):
        train(config, tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_the_command_line_reports_damage_and_refuses_two_damaged_checkpoints(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run", StopAt(12))
    flip(tmp_path / "run" / CURRENT)
    code, _, err = cli("compare", tmp_path / "run", "--out", tmp_path / "compare.png")
    assert code == 0
    assert err.splitlines()[0].startswith(f"warning: {tmp_path / 'run' / CURRENT}: is damaged (the bytes of ")
    code, _, err = cli("run", config, "--out", tmp_path / "run")
    assert code == 0
    assert err.splitlines()[0].startswith(f"{tmp_path / 'run' / CURRENT}: is damaged (the bytes of ")
    for name in (CURRENT, PREVIOUS):
        flip(tmp_path / "run" / name)
    code, _, err = cli("run", config, "--out", tmp_path / "run", "--set", "run.steps=30")
    assert code == 2
    assert err.startswith("error: ")
    assert err.endswith("and the one before is damaged too; remove the folder to start again\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace("0", "\0"),
        lambda line: line.replace(".", "�"),
        lambda line: line + ",1",
        lambda line: line.rpartition(",")[0].rpartition(",")[0],
        lambda line: "9" * 5000 + line,
        lambda line: '"' + "x" * 200_000 + '"',
    ],
    ids=["zeros", "bytes", "one more", "fewer", "digits", "a huge field"],
)
def test_a_complete_line_of_the_history_that_cannot_be_read_is_reported(tmp_path: Path, damage: Any) -> None:
    """It was left out without a word, and the file replaced by one without it when the run was resumed."""
    config = write_config(tmp_path / "c.toml")
    folder = tmp_path / "run"
    train(config, folder, StopAt(12))
    history = folder / "history.csv"
    lines = history.read_text().splitlines()
    lines[2] = damage(lines[2])
    history.write_text("\n".join(lines) + "\n")
    damaged = history.read_bytes()
    with pytest.warns(RuntimeWarning, match=r"history.csv: damaged; line 3 is left out$"):
        assert read_history(folder)["iteration"].tolist() == [0, 8, 12]
    with pytest.warns(RuntimeWarning, match=r"left out; the file is kept as history.damaged.csv"):
        train(config, folder)
    assert (folder / "history.damaged.csv").read_bytes() == damaged
    assert read_history(folder)["iteration"].tolist() == [0, 8, 12, 16, 20]


def test_a_history_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """Reading it would wait for ever."""
    config = write_config(tmp_path / "c.toml")
    train(config, tmp_path / "run", StopAt(12))
    (tmp_path / "run" / "history.csv").unlink()
    os.mkfifo(tmp_path / "run" / "history.csv")
    with pytest.raises(RunError, match=r"history.csv: is not a file"):
        train(config, tmp_path / "run")


@pytest.mark.slow
def test_methods_that_are_compared_report_damage(tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", problem={"regularizer": "zero"})
    arguments = ("compare", config, "--methods", "dsgt", "--out", tmp_path / "runs")
    assert cli(*arguments).code == 0
    flip(tmp_path / "runs" / "dsgt" / CURRENT)
    code, _, err = cli(*arguments)
    assert code == 0
    assert f"warning: {tmp_path / 'runs' / 'dsgt' / CURRENT}: is damaged" in err
