"""Folders of images: classes and clients by folder, sizes and kinds of pixels, and what is refused."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from depositum.data import load, partition
from depositum.errors import DataError, DepositumError
from tests.support.small_runs import cli, write_config


def draw(path: Path, color: tuple[int, int, int] = (255, 0, 0), size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def images(path: str = "photos", **arguments):
    return {"images": {"path": path, "size": 4, **arguments}}


def test_folders_are_classes(tmp_path):
    """Pixels are in [0, 1] with channels first, in the natural order of names."""
    for i in (10, 2):
        draw(tmp_path / "photos" / "dog" / f"{i}.png", (0, i, 255))
    draw(tmp_path / "photos" / "cat" / "a.JPG".lower(), (255, 255, 255))
    (tmp_path / "photos" / ".DS_Store").touch()
    data = load(images(), tmp_path)
    assert (data.class_names, data.classes, data.clients) == (("cat", "dog"), 2, None)
    assert data.train.inputs.shape == (3, 3, 4, 4)
    assert data.train.targets.tolist() == [0, 1, 1]
    assert np.allclose(data.train.inputs[:, 1, 0, 0] * 255, [255, 2, 10])
    assert data.train.inputs[1, 2].min() == 1
    assert load(images(gray=True), tmp_path).train.inputs.shape == (3, 1, 4, 4)


def test_folders_of_folders_are_clients(tmp_path):
    """Fails if the classes of a client are numbered by its own folders alone."""
    for client, name in (("Rome", "dog"), ("Rome", "cat"), ("Bern", "dog")):
        draw(tmp_path / "photos" / client / name / "1.png")
    draw(tmp_path / "test" / "eel" / "1.png")
    data = load(images(test="test"), tmp_path)
    assert data.client_names == ("Bern", "Rome")
    assert data.class_names == ("cat", "dog", "eel")
    assert [data.train.targets[part].tolist() for part in partition(None, data, 2, 0)] == [[1], [0, 1]]
    assert data.test.targets.tolist() == [2]


def test_a_run_on_images(tmp_path):
    for i in range(12):
        draw(tmp_path / "photos" / f"c{i % 4}" / ("dark", "light")[i % 2] / f"{i}.png", (i, i, i))
        draw(tmp_path / "photos" / f"c{i % 4}" / ("light", "dark")[i % 2] / f"{i}.png", (255 - i, i, i))
    config = write_config(tmp_path / "c.toml", problem={"dataset": images(test=0.25), "partition": "natural"})
    result = cli("run", str(config), "--out", str(tmp_path / "out"))
    assert result.code == 0, result.err


def bomb(path: Path) -> None:
    """A PNG of a few bytes that claims 50,000 × 50,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


BAD = {
    "no folders": (lambda p: draw(p / "1.png"), "photos: contains no images in folders; it must have one folder per"),
    "empty": (lambda p: (p / "cat").mkdir(), "photos: contains no images in folders"),
    "both": (lambda p: (draw(p / "a" / "1.png"), draw(p / "a" / "b" / "1.png")), "a: contains both images and folders"),
    "mixed": (lambda p: (draw(p / "a" / "1.png"), draw(p / "b" / "c" / "1.png")), "some of its folders contain images"),
    "other file": (lambda p: (draw(p / "a" / "1.png"), (p / "a" / "n.tiff").touch()), "n.tiff: images are .png, .jpg"),
    "damaged": (
        lambda p: (draw(p / "a" / "1.png"), (p / "a" / "1.png").write_bytes(b"no")),
        "1.png: is damaged or not",
    ),
    "bomb": (
        lambda p: (draw(p / "a" / "1.png"), bomb(p / "a" / "1.png")),
        "1.png: has more than the 67,108,864 pixels that are read",
    ),
    "pipe": (lambda p: (draw(p / "a" / "1.png"), os.mkfifo(p / "a" / "2.png")), "2.png: is a pipe, socket or device"),
    "deep": (
        lambda p: (draw(p / "a" / "1.png"), Image.new("I;16", (4, 4)).save(p / "a" / "1.png")),
        "1.png: has pixels of the kind 'I;16'; save it with 8 bits per channel",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_folders_that_cannot_be_used_are_refused(case, tmp_path):
    make, message = BAD[case]
    (tmp_path / "photos").mkdir()
    make(tmp_path / "photos")
    with pytest.raises(DataError) as error:
        load(images(), tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "fotos"}, r"fotos: no such folder"),
        ({"test": "tests"}, r"tests: no such folder"),
        ({"size": 0}, r"dataset\.images\.size: 0 given"),
        ({"test": 1.0}, r"dataset\.images\.test: 1\.0 given; it must be a folder, or a share"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, tmp_path):
    draw(tmp_path / "photos" / "a" / "1.png")
    with pytest.raises(DepositumError, match=message):
        load({"images": {**images()["images"], **arguments}}, tmp_path)


def test_more_images_than_memory_holds_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("depositum.bounded_reading.memory_limit", lambda: 1000)
    draw(tmp_path / "photos" / "a" / "1.png")
    (tmp_path / "photos" / "a" / "2.png").touch()  # would be refused as damaged
    with pytest.raises(DataError, match="2 images of 64×64 pixels: takes 120.0 KiB of memory, but at most 1000 B"):
        load({"images": {"path": "photos", "size": 64}}, tmp_path)
