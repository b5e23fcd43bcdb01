"""Publishers' file formats: small files written here byte by byte, loaded packed and unpacked."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest
import torch

from depositum.data import PUBLISHED, load
from depositum.data.datasets import parse_idx
from depositum.data.downloads import PublishedFiles

RNG = np.random.default_rng(0)


def published(folder: str, contents: dict[str, bytes], downloads: dict[str, bytes]) -> PublishedFiles:
    """Published files with the checksums of a test's contents."""
    return PublishedFiles(
        folder=folder,
        url="https://example.invalid/",
        files={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        downloads={name: "md5:" + hashlib.md5(content).hexdigest() for name, content in downloads.items()},
    )


def as_idx(array: np.ndarray) -> bytes:
    """The idx format as its publisher describes it, written independently of the reader."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_files(root, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def packed(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("pack", [packed, dict], ids=["gz", "plain"])
def test_idx_images_load_packed_and_unpacked(name, pack, tmp_path, monkeypatch):
    """Fails if rows and columns or parts are swapped, pixels are not divided by 255, or a file is not found."""
    images = {part: RNG.integers(0, 256, (n, 5, 4), dtype=np.uint8) for part, n in (("train", 7), ("t10k", 3))}
    labels = {part: RNG.integers(0, 10, len(pixels), dtype=np.uint8) for part, pixels in images.items()}
    contents = {f"{part}-images-idx3-ubyte": as_idx(pixels) for part, pixels in images.items()}
    contents |= {f"{part}-labels-idx1-ubyte": as_idx(values) for part, values in labels.items()}
    write_files(tmp_path / name, pack(contents))
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path))
    monkeypatch.setitem(PUBLISHED, name, published(name, contents, packed(contents)))

    data = load(name)

    for samples, part in ((data.train, "train"), (data.test, "t10k")):
        assert samples.inputs.shape == (len(labels[part]), 1, 5, 4)
        assert samples.inputs.dtype == torch.float32
        assert samples.targets.dtype == torch.int64
        assert torch.equal((samples.inputs * 255).round().to(torch.uint8)[:, 0], torch.from_numpy(images[part]))
        assert samples.inputs.max() <= 1
        assert samples.targets.tolist() == labels[part].tolist()
    assert (data.name, data.classes, data.clients) == (name, 10, None)


@pytest.mark.parametrize("form", ["tar.gz", "extracted"])
def test_cifar_loads_from_the_archive_and_extracted(form, tmp_path, monkeypatch):
    """Fails if the label byte, the order of planes or batches, or training and test data are confused.

    The archive lists the test batch first and has irrelevant members, as a real one may.
    """
    names = ["cifar-10-batches-bin/test_batch.bin"]
    names += [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    labels = {name: RNG.integers(0, 10, 4) for name in names}
    pixels = {name: RNG.integers(0, 256, (4, 3, 32, 32)) for name in names}
    contents = {
        name: b"".join(
            bytes([label]) + b"".join(plane.astype(np.uint8).tobytes() for plane in image)
            for label, image in zip(labels[name], pixels[name], strict=True)
        )
        for name in names
    }
    archive = {"cifar-10-binary.tar.gz": tar_gz({"cifar-10-batches-bin/readme.html": b"<html>", **contents})}
    write_files(tmp_path / "cifar-10", contents if form == "extracted" else archive)
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path))
    monkeypatch.setitem(PUBLISHED, "cifar10", published("cifar-10", contents, archive))

    data = load("cifar10")

    expected = np.concatenate([pixels[name] for name in names[1:]])
    assert data.train.inputs.shape == (20, 3, 32, 32)
    assert np.array_equal(np.rint(data.train.inputs.numpy() * 255), expected)
    assert data.train.targets.tolist() == np.concatenate([labels[name] for name in names[1:]]).tolist()
    assert np.array_equal(np.rint(data.test.inputs.numpy() * 255), pixels[names[0]])
    assert data.test.targets.tolist() == labels[names[0]].tolist()
    # Nothing was extracted beside the archive.
    assert form == "extracted" or [path.name for path in (tmp_path / "cifar-10").iterdir()] == list(archive)


@pytest.mark.parametrize("pack", [packed, dict], ids=["gz", "plain"])
def test_a9a_has_123_features_even_if_a_file_mentions_fewer(pack, tmp_path, monkeypatch):
    """Fails if features are counted from 0, widths differ between the files, or -1 and +1 are swapped."""
    contents = {"a9a": b"-1 1:1 123:1 \n+1 2:1 \n-1 3:1 7:1 \n", "a9a.t": b"+1 122:1 \n-1 1:1 \n"}
    write_files(tmp_path / "a9a", pack(contents))
    monkeypatch.setenv("DEPOSITUM_DATA", str(tmp_path))
    monkeypatch.setitem(PUBLISHED, "a9a", published("a9a", contents, contents))

    data = load("a9a")

    assert data.train.inputs.shape == (3, 123)
    assert data.test.inputs.shape == (2, 123)
    assert data.train.inputs.nonzero().tolist() == [[0, 0], [0, 122], [1, 1], [2, 2], [2, 6]]
    assert data.test.inputs.nonzero().tolist() == [[0, 121], [1, 0]]
    assert data.train.targets.tolist() == [0, 1, 0]
    assert data.test.targets.tolist() == [1, 0]
    assert (data.train.inputs.dtype, data.train.targets.dtype, data.classes) == (torch.float32, torch.int64, 2)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
def test_idx_reads_any_rank(shape):
    """Fails if the rank byte or the big-endian sizes are misread."""
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(parse_idx(as_idx(array)), array)


def test_a_file_that_is_not_idx_is_an_assertion():
    """A verified file that does not parse is a bug, not the user's mistake; here signed bytes (type 9)."""
    with pytest.raises(AssertionError):
        parse_idx(bytes([0, 0, 9, 1, 0, 0, 0, 1, 255]))
